"""What the reference of ``MapDataset``, ``IterDataset`` and ``DatasetIterator`` says about each method, by example.

The examples of Grain's reference, with other data; where one of them has a slip (``shuffle`` and ``random_map`` need a seed,
a ``map`` that should be a ``map_with_index``) it is mended. Random numbers are those that Grain draws.
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import gristmill as grain
from gristmill import experimental, sources

M, Stream = grain.MapDataset, grain.IterDataset


def lists(batches):
    return [batch.tolist() for batch in batches]


def draw(x, rng):
    return x, int(rng.integers(100))


def stream(*args):
    return M.range(*args).to_iter_dataset()


@pytest.fixture(params=[M.range, stream], ids=["MapDataset", "IterDataset"])
def make(request):
    """Makes a dataset of integers of either kind."""
    return request.param


# Factories


def test_concatenate_and_mix():
    assert list(M.concatenate([M.range(2), M.source(["w", "x", "y"]), M.range(7, 9)])) == [0, 1, "w", "x", "y", 7, 8]
    parts = [M.range(4).shuffle(seed=i) for i in range(2)]
    both = M.concatenate(parts)
    assert [both[len(both) + i] for i in range(8)] == [part[4 + i] for part in parts for i in range(4)]  # epochs of the parts
    ds1, ds2 = M.range(10, 14), M.range(20, 22)
    assert list(M.mix([ds1, ds2])) == [10, 20, 11, 21]
    assert list(M.mix([ds1, ds2], weights=[2, 1])) == [10, 11, 20, 12, 13, 21]
    ds1, ds2 = stream(6, 12), stream(10, 12)
    assert list(Stream.mix([ds1, ds2])) == [6, 10, 7, 11, 8]
    assert list(Stream.mix([ds1, ds2], weights=[1, 2])) == [6, 10, 11, 7]


def test_range_select_and_source(tmp_path):
    for args in ((4,), (2, 6), (1, 10, 4), (5, 0, -2)):
        assert list(M.range(*args)) == list(range(*args))

    class Alternate(grain.DatasetSelectionMap):
        """Two of the first, one of the second, and so on."""

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return (1, index // 3) if index % 3 == 2 else (0, index // 3 * 2 + index % 3)

    ds = M.select_from_datasets([M.range(10, 14), M.range(20, 22)], Alternate())
    assert len(ds) == 6
    assert list(ds) == [10, 11, 20, 12, 13, 21]
    assert list(M.source([2, 3, 5, 7])) == [2, 3, 5, 7]
    paths = [str(tmp_path / f"{i}.array_record") for i in range(2)]
    for i, path in enumerate(paths):
        writer = ArrayRecordWriter(path, "group_size:1")
        writer.write(f"file {i}".encode())
        writer.close()
    assert list(M.source(sources.ArrayRecordDataSource(paths))) == [b"file 0", b"file 1"]


# Methods of both, or of one of them


def test_batch(make):
    assert lists(make(7).batch(batch_size=3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert lists(make(7).batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(make(7).batch(3, batch_fn=sum)) == [3, 12, 6]
    (batch,) = make(3).map(lambda x: {"id": x, "pair": (x, np.full(2, x / 2))}).batch(3)
    assert batch["id"].tolist() == [0, 1, 2]
    assert batch["pair"][0].tolist() == [0, 1, 2]
    assert batch["pair"][1].tolist() == [[0, 0], [0.5, 0.5], [1, 1]]


def test_filter(make):
    class IsBig(grain.FilterTransform):
        def filter(self, element):
            return element > 3

    assert list(make(6).filter(lambda x: x % 3 == 0)) == [0, 3]
    assert list(make(6).filter(IsBig())) == [4, 5]
    # Functions never see what was filtered out.
    assert list(make(6).filter(lambda x: x % 2).map(lambda x: x + 0.5)) == [1.5, 3.5, 5.5]
    ds = M.range(6).filter(lambda x: x % 3 == 0)
    assert (ds[3], ds[4], len(ds)) == (3, None, 6)


def test_map(make):
    class Negate(grain.MapTransform):
        def map(self, element):
            return -element

    class Number(grain.MapWithIndexTransform):
        def map_with_index(self, index, element):
            return f"{index}:{element}"

    class Shift(grain.RandomMapTransform):
        def random_map(self, element, rng):
            return element + rng.integers(5, 10)

    assert list(make(4).map(lambda x: x * 10)) == [0, 10, 20, 30]
    assert list(make(4).map(Negate())) == [0, -1, -2, -3]
    assert list(make(2, 6).map_with_index(lambda i, x: (i, x**2))) == [(0, 4), (1, 9), (2, 16), (3, 25)]
    assert list(make(2, 5).map_with_index(Number())) == ["0:2", "1:3", "2:4"]
    assert list(make(5).random_map(lambda x, rng: x + rng.integers(5, 10), seed=42)) == [9, 7, 9, 12, 9]
    assert list(make(5).random_map(Shift(), seed=42)) == [9, 7, 9, 12, 9]
    assert list(M.range(5).seed(42).random_map(Shift())) == [6, 8, 8, 8, 11]
    with pytest.raises(ValueError, match="seed"):
        make(5).random_map(Shift())


# A thousand integers, shuffled in windows of 128 with seed 0: what Grain's first two batches of 16 are.
WINDOWS = [
    [49, 83, 10, 87, 39, 69, 95, 9, 62, 20, 54, 7, 23, 13, 99, 35],
    [16, 0, 33, 53, 85, 126, 25, 44, 71, 124, 115, 14, 70, 24, 60, 46],
]


def test_pipe_and_parents(make):
    ds = M.range(1000)
    wrapped = experimental.WindowShuffleMapDataset(ds, window_size=128, seed=0).batch(16)
    piped = ds.pipe(experimental.WindowShuffleMapDataset, window_size=128, seed=0).batch(16)
    assert lists(wrapped[:2]) == lists(piped[:2]) == WINDOWS
    piped = stream(10).pipe(experimental.WindowShuffleIterDataset, window_size=4, seed=3)
    assert list(piped) == [1, 0, 3, 2, 7, 6, 4, 5, 8, 9]
    ds = make(3)
    assert ds.pipe(lambda *args, **kwargs: (args, kwargs), 1, func=2) == ((ds, 1), {"func": 2})
    ds1, ds2 = M.range(3), M.range(3)
    mixed = M.mix([ds1, ds2])
    assert list(mixed.parents) == [ds1, ds2]
    assert list(mixed.to_iter_dataset().parents) == [mixed]
    assert list(ds1.parents) == []


def test_repeat_shuffle_and_slice():
    assert list(M.range(3).repeat(3)) == [0, 1, 2] * 3
    ds = M.range(3).repeat()
    assert len(ds) == sys.maxsize
    assert ds[20_000] == 20_000 % 3
    with pytest.raises(ValueError, match="endless"):
        ds.repeat(2)
    assert list(M.range(5).shuffle(seed=42)) == [4, 1, 2, 3, 0]
    assert list(M.range(5).seed(42).shuffle()) == [1, 3, 4, 2, 0]
    with pytest.raises(ValueError, match="seed"):
        M.range(5).shuffle()
    ds = M.range(6).shuffle(seed=1).repeat(3)
    epochs = [[ds[6 * epoch + i] for i in range(6)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    ds = M.range(10, 20)
    assert list(ds.slice(slice(2, 5))) == [12, 13, 14]
    assert list(ds.slice(slice(1, None, 4))) == [11, 15, 19]
    assert list(ds.slice(slice(1, 10, 2))) == list(ds[1:10:2]) == [11, 13, 15, 17, 19]
    assert not hasattr(stream(5), "shuffle") and not hasattr(stream(5), "slice")  # which need an index


def test_to_iter_dataset():
    ds = M.range(5).filter(lambda x: x != 2)
    assert list(ds.to_iter_dataset()) == [0, 1, 3, 4]
    assert list(ds.to_iter_dataset(allow_nones=True)) == [0, 1, None, 3, 4]
    assert list(ds.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=3))) == [0, 1, 3, 4]
    assert isinstance(ds.to_iter_dataset(), Stream)


def test_mp_prefetch():
    def prepare(worker_index, worker_count):
        import builtins

        builtins.gristmill_test_worker = (worker_index, worker_count)

    def who(x):
        import builtins

        return (x, *builtins.gristmill_test_worker)

    ds = stream(4)
    assert ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=0)) is ds
    outputs = list(ds.map(who).mp_prefetch(grain.MultiprocessingOptions(num_workers=2), worker_init_fn=prepare))
    assert outputs == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]
    with pytest.warns(DeprecationWarning, match="mp_prefetch"):
        assert list(ds.prefetch(grain.MultiprocessingOptions(num_workers=1))) == [0, 1, 2, 3]


def test_seeds():
    """Every step derives a seed of its own, a later one replaces an earlier one, and a mixture's is one of all components."""
    ds1, ds2 = M.range(3).seed(1).shuffle(), M.range(10, 13).seed(2).shuffle()
    mixed = Stream.mix([ds1.to_iter_dataset(), ds2.to_iter_dataset()])
    for ds, expected in [
        (stream(3).seed(1).random_map(draw), [(0, 0), (1, 33), (2, 81)]),
        (M.range(6).seed(1).shuffle().random_map(draw), [(1, 13), (5, 7), (2, 90), (3, 96), (0, 9), (4, 78)]),
        (stream(3).seed(1).random_map(draw).random_map(draw), [((0, 0), 13), ((1, 33), 7), ((2, 81), 90)]),
        (M.range(6).seed(1).shuffle().seed(2).random_map(draw), [(1, 54), (5, 22), (2, 47), (3, 60), (0, 18), (4, 32)]),
        (stream(3).seed(1).random_map(draw).seed(2).random_map(draw), [((0, 0), 54), ((1, 33), 22), ((2, 81), 47)]),
        (M.mix([ds1, ds2]).random_map(draw), [(1, 77), (11, 74), (0, 40), (12, 37), (2, 15), (10, 63)]),
        (mixed.random_map(draw), [(1, 16), (11, 39), (0, 48), (12, 1), (2, 68), (10, 58)]),
    ]:
        assert list(ds) == expected
    for seed in (1, 77):
        ds = M.range(6).seed(seed).shuffle(seed=3).random_map(draw, seed=9)  # seeds of their own
        assert ds[0] == (M.range(6).shuffle(seed=3)[0], 29)
        assert list(ds) == list(M.range(6).shuffle(seed=3).random_map(draw, seed=9))


def test_classes_of_ones_own():
    class Reverse(M):
        def __init__(self, parent):
            super().__init__(parents=parent)

        def __len__(self):
            return len(self.parents[0])

        def __getitem__(self, index):
            return self.slice(index) if isinstance(index, slice) else self.parents[0][len(self) - 1 - index]

    class PairsIterator(grain.DatasetIterator):
        def __init__(self, parent):
            super().__init__(parents=parent)

        def __next__(self):
            return next(self._parents[0]) + next(self._parents[0])

        def get_state(self):
            return {"parent": self._parents[0].get_state()}

        def set_state(self, state):
            self._parents[0].set_state(state["parent"])

    class Pairs(Stream):
        def __iter__(self):
            return PairsIterator(iter(self.parents[0]))

    ds = Reverse(M.range(5))
    assert list(ds) == [4, 3, 2, 1, 0]
    assert lists(ds[1:].map(lambda x: x * 2).batch(2)) == [[6, 4], [2, 0]]
    it = iter(Pairs(parents=stream(6)).map(str))
    assert next(it) == "1"
    state = it.get_state()
    for _ in range(2):
        assert list(it) == ["5", "9"]
        it.set_state(state)


class Creating:
    """A directory that Orbax is about to create."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def await_creation(self) -> Path:
        self.path.mkdir()
        return self.path


def test_states_and_files(make, tmp_path):
    it = iter(make(6).map(str))
    state = it.get_state()
    it.start_prefetch()
    assert it.get_state() == state
    it.start_prefetch()
    assert iter(it) is it
    assert [next(it), next(it)] == ["0", "1"]
    state = json.loads(json.dumps(it.get_state()))
    assert list(it) == ["2", "3", "4", "5"]
    it.set_state(state)

    async def save():
        writing = await it.save(Creating(tmp_path / "checkpoint"))
        next(it)  # what comes after the call is not saved
        await writing

    async def load(other):
        await (await other.load(tmp_path / "checkpoint"))

    asyncio.run(save())
    other = iter(make(6).map(str))
    asyncio.run(load(other))
    assert list(other) == ["2", "3", "4", "5"]
    assert list(it) == ["3", "4", "5"]
