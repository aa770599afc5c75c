"""Block shuffle: a permutation at every length, mixed nearly as well as globally, and each block is
read once.
"""

import threading
import warnings

import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.core import permutation
from gristmill.core.options import DatasetOptions
from gristmill.dataset.bases.iterator import iterate
from gristmill.diagnostics import shuffle_quality
from gristmill.diagnostics.cli import main

_range = grain.MapDataset.range
ONE = grain.ReadOptions(num_threads=0)
THREADS = grain.ReadOptions(num_threads=4, prefetch_buffer_size=50)


class Counted:
    """A source that counts how often, and with which keys, it is asked."""

    def __init__(self, length, broken=()):
        self.length, self.broken = length, broken
        self.asked = []
        self.seconds, self.starts = 0.0, []  # of each read: its time, and its first key
        self.lock = threading.Lock()

    def __len__(self):
        return self.length

    def __getitem__(self, key):
        return self.__getitems__([key])[0]

    def __getitems__(self, keys):
        with self.lock:
            self.asked.append(len(keys))
            self.starts.append(keys[0])
        if self.seconds:
            threading.Event().wait(self.seconds)
        for key in keys:
            if key in self.broken:
                raise ValueError(f"record {key}")
        return [np.full(10, key) for key in keys]


def slowly(x):
    threading.Event().wait(0.001)
    return x


def flat(element):
    return numbers(np.atleast_2d(element))


def numbers(elements):
    return [int(x[0]) for x in elements]


def test_it_is_a_permutation_at_every_length(monkeypatch):
    # any permutation will do for the arithmetic; the real one takes a millisecond
    def rotated(start, stop, max_index, seed):
        return (np.arange(start, stop) + seed) % (max_index + 1)

    monkeypatch.setattr(permutation, "_permute_range", rotated)
    for length in range(1, 1001):
        for block_size, group_size in (
            ((1, 1), (7, 5), (64, 8), (4000, 3)) if length % 100 == 1 else ((16, 6),)
        ):
            ds = _range(length).block_shuffle(block_size, group_size=group_size, seed=7)
            for epoch in (0, -3) if length % 10 == 1 else (1,):
                found = np.array(list(ds._gm_items(range(epoch * length, (epoch + 1) * length))))
                assert found.min() == 0 and (np.bincount(found, minlength=length) == 1).all(), (
                    length,
                    block_size,
                )


@pytest.mark.parametrize("length", [10**12, 10**12 + 77])
def test_any_element_of_a_long_dataset(length):
    ds = _range(length).block_shuffle(seed=1)
    starts = [0, 131_072 * 12_345, length - 131_072 * 3, length - 5, length * 7 - 3]
    for start in starts:
        block = range(start, start + 300)
        assert list(ds._gm_items(block)) == [ds[i] for i in block]
    group = 131_072 * 12_345
    found = np.array(list(ds._gm_items(range(group, group + 131_072))))
    whole = np.unique(found // 256, return_counts=True)[1]
    assert len(np.unique(found)) == 131_072
    assert len(whole) in (512, 513)
    assert (whole == 256).sum() >= 511
    assert len(np.unique(list(ds._gm_items([*range(0, length, length // 999)])))) == len(
        range(0, length, length // 999)
    )
    assert ds[5] != ds[5 + length]


def test_it_mixes_nearly_as_well_as_a_global_shuffle():
    ds = _range(2**20)
    found = {}
    for name, shuffled in (
        ("block", ds.block_shuffle(seed=3)),
        ("window", ds.window_shuffle(131_072, seed=3)),
        ("none", ds),
    ):
        found[name] = shuffle_quality(shuffled, lambda x: x * 60 >> 20, 256, max_batches=64)
    assert found["block"].ratio < 1.25 < 4 < found["window"].ratio < found["none"].ratio
    assert abs(found["block"].correlation) < 0.05 < 0.9 < found["none"].correlation
    assert found["none"].blocks_per_batch == 1 < found["block"].blocks_per_batch < 256
    stream = shuffle_quality(
        ds[:10_000].to_iter_dataset().window_shuffle(500, seed=0), lambda x: x // 100, 50
    )
    assert stream.blocks_per_batch is None and stream.num_batches == 200
    picture = found["block"].svg()
    assert picture.count("<circle") > 500 and found["block"].to_dict()["num_classes"] == 60
    assert_raises(ValueError, "not a whole batch", shuffle_quality, _range(10), None, 11)
    assert_raises(TypeError, "key must be a function", shuffle_quality, ds, "label")


def test_iteration_reads_every_block_once():
    length = 3_000
    for options, make in (
        (ONE, lambda ds: ds),
        (THREADS, lambda ds: ds.map(np.copy)),
        (THREADS, lambda ds: ds.batch(16)),
    ):
        source = Counted(length)
        ds = make(grain.MapDataset.source(source).block_shuffle(50, group_size=20, seed=5))
        expected = [x for i in range(len(ds)) for x in flat(ds[i])]
        source.asked.clear()
        it = iter(ds.to_iter_dataset(options))
        assert [x for element in it for x in flat(element)] == expected
        assert sum([num == 50 for num in source.asked]) <= length // 50 + 4, source.asked
        assert len(source.asked) <= 0.0055 * 256 / 50 * length
        assert it._ctx.budget.memory.num_bytes <= 0 + 8 * 10**5
    for make in (
        lambda ds: ds[:-1].map(slowly),
        lambda ds: ds.repeat(1).map(slowly),
        lambda ds: ds[1::2].map(slowly),
    ):
        source = Counted(1_500)
        ds = make(grain.MapDataset.source(source).block_shuffle(50, group_size=20, seed=5))
        found = list(ds.to_iter_dataset(THREADS))  # elements are asked for one by one
        assert numbers(found) == numbers([ds._parent[i] for i in range(len(ds))])
        assert sum([num == 50 for num in source.asked]) <= 30 + 3
        assert sum(source.asked[: -len(ds)]) < 1_700
    source = Counted(length)
    share = grain.MapDataset.source(source).block_shuffle(50, group_size=20, seed=5)
    source.asked.clear()
    assert numbers(share[1::4].to_iter_dataset(THREADS)) == numbers(
        [share[i] for i in range(1, length, 4)]
    )


@pytest.mark.parametrize(
    ("options", "seconds"),
    [(ONE, 0), (grain.ReadOptions(1), 0), (grain.ReadOptions(), 0), (grain.ReadOptions(), 0.001)],
)
def test_groups_that_are_small_beside_what_is_read_ahead(options, seconds):
    """Many groups are read at a time, in any order; each block once, also after a restart."""
    for make, start, num_epochs in [
        (lambda ds: ds.map(np.copy), 0, 1),
        (lambda ds: ds.batch(16), 0, 1),
        (lambda ds: ds.batch(33), 7, 1),
        (lambda ds: ds[1::4].batch(8), 11, 1),
        (lambda ds: ds.repeat(2).batch(40), 10, 2),
    ]:
        source = Counted(1_003)
        ds = make(grain.MapDataset.source(source).block_shuffle(8, group_size=8, seed=5))
        expected = [
            x for element in list(ds._gm_items(range(start, len(ds)))) for x in flat(element)
        ]
        source.asked, source.starts = [], []
        source.seconds = seconds
        it = iter(ds.to_iter_dataset(options))
        it.set_state({"next_index": start})
        assert [x for element in it for x in flat(element)] == expected
        assert set(source.asked) <= {8, 1_003 % 8}
        assert max(np.bincount(source.starts)) == num_epochs


def test_elements_that_are_never_asked_for_are_dropped():
    """Each epoch of a part of an epoch leaves elements of its first and last groups unused."""
    part = grain.MapDataset.source(Counted(200)).block_shuffle(10, group_size=4, seed=5)[15:105]
    with pytest.warns(UserWarning, match="takes a part"):
        ds = part.repeat(40)
    expected = numbers([ds[i] for i in range(len(ds))])
    for options in (ONE, THREADS):
        it = iter(ds.to_iter_dataset(options))
        assert numbers(it) == expected
        assert it._ctx.budget.memory.num_bytes < 5 * 40 * 81  # five groups


def test_states_restore_and_memory_is_bounded():
    source = Counted(3_000)
    ds = grain.MapDataset.source(source).block_shuffle(50, group_size=20, seed=5).repeat(2)
    expected = numbers([ds[i] for i in range(len(ds))])
    it = iter(ds.to_iter_dataset(THREADS))
    assert numbers([next(it) for _ in range(700)]) == expected[:700]
    state = it.get_state()
    assert numbers([next(it) for _ in range(500)]) == expected[700:1200]
    it.set_state(state)
    assert numbers(it) == expected[700:]
    for max_bytes in (1, 40_000):
        stream = grain.experimental.WithOptionsIterDataset(
            ds.to_iter_dataset(THREADS), DatasetOptions(max_bytes_ahead=max_bytes)
        )
        it = iterate(stream)
        found = []
        for x in it:
            found += numbers([x])
            memory = it._ctx.budget.memory
            assert memory.num_bytes <= max_bytes + 10 * 1000
        assert found == expected


@pytest.mark.parametrize("options", [ONE, THREADS])
def test_an_error_comes_at_its_own_element(options):
    source, order = Counted(900, {100, 777}), list(_range(900).block_shuffle(50, seed=5))
    it = iter(grain.MapDataset.source(source).block_shuffle(50, seed=5).to_iter_dataset(options))
    for num, expected in enumerate(order):
        if expected in source.broken:
            assert_raises(ValueError, f"record {expected}", next, it)
            it.set_state({"next_index": num + 1})
        else:
            assert next(it)[0] == expected


def test_refusals_and_the_warning():
    assert_raises(ValueError, "block_shuffle needs a seed", _range(9).block_shuffle)
    ds = _range(100).block_shuffle(4, group_size=3, seed=1)
    for small in (ds, ds.map(str).to_iter_dataset()):
        with pytest.warns(UserWarning, match="fewer than a batch of 13"):
            small.batch(13)
        with pytest.warns(UserWarning, match="fewer than a batch of 14"):
            small.global_batch(14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.batch(12)


def test_the_command(tmp_path, capsys):
    (tmp_path / "pipe.py").write_text(
        "import gristmill as g\nds = g.MapDataset.source([{'label': i // 100} for i in"
        " range(1000)]).block_shuffle(20, seed=1)\n"
    )
    target = f"{tmp_path / 'pipe.py'}:ds"
    options = ["--key", "label", "--batch-size", "50", "--output"]
    assert main(["shuffle", target, *options, str(tmp_path / "x.svg")]) == 0
    assert "distance of batches from the whole: 0." in capsys.readouterr().out
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    assert main(["shuffle", target, "--batch-size", "0"]) == 2
