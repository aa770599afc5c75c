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

from gristmill import MultiprocessingOptions, ReadOptions, experimental, sources
from gristmill.dataset.stages.filter_guard import FilterGuard


def lists(batches):
    return [batch.tolist() for batch in batches]


def draw(x, rng):
    return x, int(rng.integers(100))


@pytest.fixture
def letters(grain):
    return grain.MapDataset.source(["w", "x", "y", "z"])


# Factories


def test_concatenate(grain, letters):
    parts = [grain.MapDataset.range(2), letters, grain.MapDataset.range(7, 9)]
    assert list(grain.MapDataset.concatenate(parts)) == [0, 1, "w", "x", "y", "z", 7, 8]


def test_epochs_of_a_concatenation_are_those_of_its_components(grain):
    parts = [grain.MapDataset.range(4).shuffle(seed=i) for i in range(2)]
    both = grain.MapDataset.concatenate(parts)
    assert [both[len(both) + i] for i in range(8)] == [part[4 + i] for part in parts for i in range(4)]


def test_mix(grain):
    ds1, ds2 = grain.MapDataset.range(10, 14), grain.MapDataset.range(20, 22)
    assert list(grain.MapDataset.mix([ds1, ds2])) == [10, 20, 11, 21]
    assert list(grain.MapDataset.mix([ds1, ds2], weights=[2, 1])) == [10, 11, 20, 12, 13, 21]


@pytest.mark.parametrize("args", [(4,), (2, 6), (1, 10, 4), (5, 0, -2)])
def test_range(grain, args):
    assert list(grain.MapDataset.range(*args)) == list(range(*args))


def test_select_from_datasets(grain):
    class Alternate(grain.DatasetSelectionMap):
        """Two of the first, one of the second, and so on."""

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return (1, index // 3) if index % 3 == 2 else (0, index // 3 * 2 + index % 3)

    datasets = [grain.MapDataset.range(10, 14), grain.MapDataset.range(20, 22)]
    ds = grain.MapDataset.select_from_datasets(datasets, Alternate())
    assert len(ds) == 6
    assert list(ds) == [10, 11, 20, 12, 13, 21]


def test_source(grain, tmp_path):
    assert list(grain.MapDataset.source([2, 3, 5, 7])) == [2, 3, 5, 7]
    paths = [str(tmp_path / f"{i}.array_record") for i in range(2)]
    for i, path in enumerate(paths):
        writer = ArrayRecordWriter(path, "group_size:1")
        writer.write(f"file {i}".encode())
        writer.close()
    assert list(grain.MapDataset.source(sources.ArrayRecordDataSource(paths))) == [b"file 0", b"file 1"]


def test_mix_of_streams(grain):
    ds1, ds2 = (grain.MapDataset.range(start, 12).to_iter_dataset() for start in (6, 10))
    assert list(grain.IterDataset.mix([ds1, ds2])) == [6, 10, 7, 11, 8]
    assert list(grain.IterDataset.mix([ds1, ds2], weights=[1, 2])) == [6, 10, 11, 7]


# Methods of both, or of one of them


@pytest.fixture(params=["MapDataset", "IterDataset"])
def make(request, grain):
    """Makes a dataset of integers of either kind."""

    def make_range(*args):
        ds = grain.MapDataset.range(*args)
        return ds if request.param == "MapDataset" else ds.to_iter_dataset()

    return make_range


def test_batch(make):
    assert lists(make(7).batch(batch_size=3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert lists(make(7).batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(make(7).batch(3, batch_fn=sum)) == [3, 12, 6]


def test_batch_of_trees(make):
    (batch,) = make(3).map(lambda x: {"id": x, "pair": (x, np.full(2, x / 2))}).batch(3)
    assert batch["id"].tolist() == [0, 1, 2]
    assert batch["pair"][0].tolist() == [0, 1, 2]
    assert batch["pair"][1].tolist() == [[0, 0], [0.5, 0.5], [1, 1]]


def test_filter(grain):
    ds = grain.MapDataset.range(6).filter(lambda x: x % 3 == 0)
    assert ds[3] == 3
    assert ds[4] is None
    assert len(ds) == 6
    assert list(ds) == [0, 3]


def test_filter_of_a_stream(make):
    assert list(make(6).filter(lambda x: x % 3 == 0)) == [0, 3]


def test_filter_takes_a_transformation(grain, make):
    class IsBig(grain.FilterTransform):
        def filter(self, element):
            return element > 3

    assert list(make(6).filter(IsBig())) == [4, 5]


def test_functions_never_see_what_was_filtered_out(make):
    assert list(make(6).filter(lambda x: x % 2).map(lambda x: x + 0.5)) == [1.5, 3.5, 5.5]


@pytest.fixture
def sparse(grain, make, monkeypatch):
    """A stream whose filter removes 95 of 100."""
    monkeypatch.setattr(FilterGuard, "_last_warned", {})  # a step warns once a minute
    ds = make(2000).filter(lambda x: x % 20 == 0)
    return ds.to_iter_dataset() if isinstance(ds, grain.MapDataset) else ds


def test_a_filter_that_removes_nearly_everything_warns(sparse, caplog):
    assert len(list(sparse)) == 100
    assert "dropped 95.00% of 1000" in caplog.text


@pytest.mark.parametrize("ratio", [None, 0.97])
def test_a_filter_may_be_allowed_to_remove_nearly_everything(sparse, caplog, ratio):
    options = experimental.DatasetOptions(filter_warn_threshold_ratio=ratio)
    assert len(list(experimental.WithOptionsIterDataset(sparse, options))) == 100
    assert not caplog.text


def test_a_filter_that_removes_too_much_may_be_an_error(sparse):
    options = experimental.DatasetOptions(filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=0.9)
    with pytest.raises(ValueError, match="dropped"):
        list(experimental.WithOptionsIterDataset(sparse, options))


def test_map(grain, make):
    class Negate(grain.MapTransform):
        def map(self, element):
            return -element

    assert list(make(4).map(lambda x: x * 10)) == [0, 10, 20, 30]
    assert list(make(4).map(Negate())) == [0, -1, -2, -3]


def test_map_with_index(grain, letters):
    class Number(grain.MapWithIndexTransform):
        def map_with_index(self, index, element):
            return f"{index}{element}"

    assert list(letters.map_with_index(lambda i, x: x * i)) == ["", "x", "yy", "zzz"]
    assert list(letters.map_with_index(Number())) == ["0w", "1x", "2y", "3z"]


def test_map_with_index_of_a_stream(make):
    assert list(make(2, 6).map_with_index(lambda i, x: (i, x**2))) == [(0, 4), (1, 9), (2, 16), (3, 25)]


def test_parents(grain):
    ds1, ds2 = grain.MapDataset.range(3), grain.MapDataset.range(3)
    mixed = grain.MapDataset.mix([ds1, ds2])
    assert list(mixed.parents) == [ds1, ds2]
    assert list(mixed.to_iter_dataset().parents) == [mixed]
    assert list(ds1.parents) == []


# A thousand integers, shuffled in windows of 128 with seed 0: what Grain's first two batches of 16 are.
WINDOWS = [
    [49, 83, 10, 87, 39, 69, 95, 9, 62, 20, 54, 7, 23, 13, 99, 35],
    [16, 0, 33, 53, 85, 126, 25, 44, 71, 124, 115, 14, 70, 24, 60, 46],
]


def test_pipe(grain):
    ds = grain.MapDataset.range(1000)
    wrapped = experimental.WindowShuffleMapDataset(ds, window_size=128, seed=0).batch(16)
    piped = ds.pipe(experimental.WindowShuffleMapDataset, window_size=128, seed=0).batch(16)
    assert lists(wrapped[:2]) == lists(piped[:2]) == WINDOWS


def test_pipe_of_a_stream(grain):
    piped = grain.MapDataset.range(10).to_iter_dataset().pipe(experimental.WindowShuffleIterDataset, window_size=4, seed=3)
    assert list(piped) == [1, 0, 3, 2, 7, 6, 4, 5, 8, 9]


def test_pipe_passes_arguments_on(make):
    ds = make(3)
    assert ds.pipe(lambda *args, **kwargs: (args, kwargs), 1, func=2) == ((ds, 1), {"func": 2})


def test_random_map(grain, make):
    class Shift(grain.RandomMapTransform):
        def random_map(self, element, rng):
            return element + rng.integers(5, 10)

    expected = [9, 7, 9, 12, 9]
    assert list(make(5).random_map(lambda x, rng: x + rng.integers(5, 10), seed=42)) == expected
    assert list(make(5).random_map(Shift(), seed=42)) == expected
    with pytest.raises(ValueError, match="seed"):
        make(5).random_map(Shift())


def test_random_map_with_the_seed_of_the_pipeline(grain):
    ds = grain.MapDataset.range(5).seed(42).random_map(lambda x, rng: x + rng.integers(5, 10))
    assert list(ds) == [6, 8, 8, 8, 11]


def test_repeat(grain):
    assert list(grain.MapDataset.range(3).repeat(3)) == [0, 1, 2] * 3
    ds = grain.MapDataset.range(3).repeat()
    assert len(ds) == sys.maxsize
    assert ds[20_000] == 20_000 % 3
    with pytest.raises(ValueError, match="endless"):
        ds.repeat(2)


def test_shuffle(grain):
    assert list(grain.MapDataset.range(5).shuffle(seed=42)) == [4, 1, 2, 3, 0]
    assert list(grain.MapDataset.range(5).seed(42).shuffle()) == [1, 3, 4, 2, 0]
    with pytest.raises(ValueError, match="seed"):
        grain.MapDataset.range(5).shuffle()


def test_every_epoch_is_shuffled_anew(grain):
    ds = grain.MapDataset.range(6).shuffle(seed=1).repeat(3)
    epochs = [[ds[6 * epoch + i] for i in range(6)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_slice(grain):
    ds = grain.MapDataset.range(10, 20)
    assert list(ds.slice(slice(2, 5))) == [12, 13, 14]
    assert list(ds.slice(slice(1, None, 4))) == [11, 15, 19]
    assert list(ds.slice(slice(1, 10, 2))) == list(ds[1:10:2]) == [11, 13, 15, 17, 19]


def test_to_iter_dataset(grain):
    ds = grain.MapDataset.range(5).filter(lambda x: x != 2)
    assert list(ds.to_iter_dataset()) == [0, 1, 3, 4]
    assert list(ds.to_iter_dataset(allow_nones=True)) == [0, 1, None, 3, 4]
    assert list(ds.to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=3))) == [0, 1, 3, 4]
    assert isinstance(ds.to_iter_dataset(), grain.IterDataset)


@pytest.mark.parametrize("name", ["shuffle", "slice"])
def test_what_needs_an_index_is_not_there_for_streams(grain, name):
    assert not hasattr(grain.MapDataset.range(5).to_iter_dataset(), name)


def test_mp_prefetch(grain):
    ds = grain.MapDataset.range(8).map(lambda x: x**2).to_iter_dataset()
    assert list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) == [0, 1, 4, 9, 16, 25, 36, 49]
    assert ds.mp_prefetch(MultiprocessingOptions(num_workers=0)) is ds


def test_workers_may_be_prepared(grain):
    def prepare(worker_index, worker_count):
        import builtins

        builtins.gristmill_test_worker = (worker_index, worker_count)

    def who(x):
        import builtins

        return (x, *builtins.gristmill_test_worker)

    ds = grain.MapDataset.range(4).to_iter_dataset().map(who)
    outputs = list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2), worker_init_fn=prepare))
    assert outputs == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]


def test_prefetch_is_deprecated(grain):
    ds = grain.MapDataset.range(3).to_iter_dataset()
    with pytest.warns(DeprecationWarning, match="mp_prefetch"):
        assert list(ds.prefetch(MultiprocessingOptions(num_workers=1))) == [0, 1, 2]


# Seeds


def test_seed_of_one_step(grain):
    assert list(grain.MapDataset.range(3).to_iter_dataset().seed(1).random_map(draw)) == [(0, 0), (1, 33), (2, 81)]


def test_every_step_derives_a_seed_of_its_own(grain):
    ds = grain.MapDataset.range(6).seed(1).shuffle().random_map(draw)
    assert list(ds) == [(1, 13), (5, 7), (2, 90), (3, 96), (0, 9), (4, 78)]
    ds = grain.MapDataset.range(3).to_iter_dataset().seed(1).random_map(draw).random_map(draw)
    assert list(ds) == [((0, 0), 13), ((1, 33), 7), ((2, 81), 90)]


@pytest.mark.parametrize("seed", [1, 77])
def test_a_step_may_have_a_seed_of_its_own(grain, seed):
    ds = grain.MapDataset.range(6).seed(seed).shuffle(seed=3).random_map(draw, seed=9)
    assert ds[0] == (grain.MapDataset.range(6).shuffle(seed=3)[0], 29)
    assert list(ds) == list(grain.MapDataset.range(6).shuffle(seed=3).random_map(draw, seed=9))


def test_a_later_seed_replaces_an_earlier_one(grain):
    ds = grain.MapDataset.range(6).seed(1).shuffle().seed(2).random_map(draw)
    assert list(ds) == [(1, 54), (5, 22), (2, 47), (3, 60), (0, 18), (4, 32)]
    ds = grain.MapDataset.range(3).to_iter_dataset().seed(1).random_map(draw).seed(2).random_map(draw)
    assert list(ds) == [((0, 0), 54), ((1, 33), 22), ((2, 81), 47)]


def test_a_mixture_derives_its_seed_from_all_components(grain):
    ds1 = grain.MapDataset.range(3).seed(1).shuffle()
    ds2 = grain.MapDataset.range(10, 13).seed(2).shuffle()
    ds = grain.MapDataset.mix([ds1, ds2]).random_map(draw)
    assert list(ds) == [(1, 77), (11, 74), (0, 40), (12, 37), (2, 15), (10, 63)]
    ds = grain.IterDataset.mix([ds1.to_iter_dataset(), ds2.to_iter_dataset()]).random_map(draw)
    assert list(ds) == [(1, 16), (11, 39), (0, 48), (12, 1), (2, 68), (10, 58)]


# Classes of ones own


def test_a_map_dataset_of_ones_own(grain):
    class Reverse(grain.MapDataset):
        def __init__(self, parent):
            super().__init__(parents=parent)

        def __len__(self):
            return len(self.parents[0])

        def __getitem__(self, index):
            if isinstance(index, slice):
                return self.slice(index)
            epoch, position = divmod(index, len(self))
            return self.parents[0][epoch * len(self) + len(self) - 1 - position]

    ds = Reverse(grain.MapDataset.range(5))
    assert list(ds) == [4, 3, 2, 1, 0]
    assert lists(ds[1:].map(lambda x: x * 2).batch(2)) == [[6, 4], [2, 0]]


def test_an_iter_dataset_of_ones_own(grain):
    class PairsIterator(grain.DatasetIterator):
        def __init__(self, parent):
            super().__init__(parents=parent)

        def __next__(self):
            return next(self._parents[0]), next(self._parents[0])

        def get_state(self):
            return {"parent": self._parents[0].get_state()}

        def set_state(self, state):
            self._parents[0].set_state(state["parent"])

    class Pairs(grain.IterDataset):
        def __iter__(self):
            return PairsIterator(iter(self.parents[0]))

    ds = Pairs(parents=grain.MapDataset.range(6).to_iter_dataset()).map(sum)
    assert list(ds) == [1, 5, 9]
    it = iter(ds)
    next(it)
    state = it.get_state()
    assert list(it) == [5, 9]
    it.set_state(state)
    assert list(it) == [5, 9]


# Iterators


class Creating:
    """A directory that Orbax is about to create."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def await_creation(self) -> Path:
        self.path.mkdir()
        return self.path


def test_states(make):
    it = iter(make(6).map(str))
    assert iter(it) is it
    assert [next(it), next(it)] == ["0", "1"]
    state = json.loads(json.dumps(it.get_state()))
    assert list(it) == ["2", "3", "4", "5"]
    it.set_state(state)
    assert list(it) == ["2", "3", "4", "5"]


def test_save_and_load(make, tmp_path):
    it = iter(make(6))
    next(it), next(it)

    async def save():
        writing = await it.save(Creating(tmp_path / "checkpoint"))
        next(it)  # what comes after the call is not saved
        await writing

    async def load(other):
        await (await other.load(tmp_path / "checkpoint"))

    asyncio.run(save())
    other = iter(make(6))
    asyncio.run(load(other))
    assert list(other) == [2, 3, 4, 5]
    assert list(it) == [3, 4, 5]


def test_start_prefetch_changes_nothing(make):
    it = iter(make(6).map(lambda x: x))
    state = it.get_state()
    it.start_prefetch()
    assert it.get_state() == state
    it.start_prefetch()
    assert list(it) == [0, 1, 2, 3, 4, 5]
