"""The share of a pipeline that a worker runs: what it holds, and that nothing of the user's is
changed by making it.
"""

import itertools
import sys

import numpy as np
import pytest
from computing_ahead import ClosingDataset as Wrapped
from refusing import assert_raises
from users_datasets import BareMap, Plain

from gristmill import (
    IndexSampler,
    IterDataset,
    MapDataset,
    NoSharding,
    ReadOptions,
    SequentialSampler,
)
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.slice import SliceMapDataset
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset
from gristmill.loader.records import SampledMapDataset

each_way = pytest.mark.parametrize("sequential", [False, True])


def shares(ds, count, sequential=False):
    return [slice_pipeline(ds, i, count, sequential=sequential) for i in range(count)]


def lists(ds, count, sequential=False):
    ds = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    return [list(share) for share in shares(ds, count, sequential)]


def parts(ds, count=2):
    return lists(ds, count, sequential=True)


def draw(x, rng):
    return (x, int(rng.integers(10**6)))


class Joined(IterDataset):
    """Its parents one after the other; each has a name of its own, as users give them."""

    def __init__(self, parents):
        super().__init__(parents)
        self.branches = list(parents)
        self.first = parents[0]
        self.by_name = {str(i): parent for i, parent in enumerate(parents)}

    def __iter__(self):
        return itertools.chain(*self.branches)


class Files(IterDataset):
    """A source that slices itself."""

    sequential = None

    def __init__(self, files):
        self.files = files

    def set_slice(self, sl, sequential_slice=False):
        self.files = self.files[sl]
        self.sequential = sequential_slice

    def __iter__(self):
        return itertools.chain(*self.files)


class Doubled(MapDataset):
    """Element-wise, its parent under a name of its own."""

    def __init__(self, parent, factor=2):
        super().__init__(parent)
        self.source, self.factor = parent, factor

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.factor * self.source[index]


class LateSeed(IterDataset):
    """Asks for its default seed as late as possible; and makes a random stage of its own when it is
    iterated.
    """

    def __iter__(self):
        seed = int(self._default_seed)
        return iter(self._parent.random_map(draw).map(lambda x: (seed, x[0])))


def test_streams_of_few_elements_and_endless_and_huge_data():
    ds = MapDataset.range(7).to_iter_dataset()
    assert lists(Wrapped(MapDataset.range(5)), 2) == [[0, 2, 4], [1, 3]]
    assert parts(Wrapped(MapDataset.range(5).map(str))) == [["0", "1", "2"], ["3", "4"]]
    assert lists(Joined([MapDataset.range(3), MapDataset.range(10, 13).to_iter_dataset()]), 2) == [
        [0, 2, 10, 12],
        [1, 11],
    ]
    assert slice_pipeline(ds, 0, 1) is slice_pipeline(ds, 0, 1, sequential=True) is ds
    for index, count in [(2, 2), (-1, 2), (0, 0)]:
        assert_raises(ValueError, "shard_", slice_pipeline, ds, index, count)
    endless = MapDataset.range(5).shuffle(seed=1).repeat()
    it = iter(slice_pipeline(endless.to_iter_dataset(), 1, 3))
    assert [next(it) for _ in range(20)] == [endless[i] for i in range(1, 61, 3)]
    it.set_state({"next_index": sys.maxsize // 3})
    assert list(it) == []
    it.set_state({"next_index": sys.maxsize // 3 - 1})
    assert list(it) == [endless[1 + 3 * (sys.maxsize // 3 - 1)]]
    sampler = IndexSampler(num_records=2**62, shuffle=True, num_epochs=2, seed=3)
    records = SampledMapDataset(
        MapDataset.range(2**62), sampler, NoSharding(), sys.maxsize, as_records=False
    )
    it = iter(slice_pipeline(records.to_iter_dataset(allow_nones=True), 2, 4))
    assert [next(it) for _ in range(9)] == [records[i] for i in range(2, 38, 4)]
    for part in shares(
        MapDataset.range(sys.maxsize).map(str).to_iter_dataset(), 2, sequential=True
    ):
        it = iter(part)
        it.set_state({"next_index": sys.maxsize // 2})
        assert next(it, None) in (str(sys.maxsize // 2), None)
    endless = [
        iter(share) for share in shares(TEXTS.repeat().to_iter_dataset(), 2, sequential=True)
    ]
    assert [[next(it) for _ in range(5)] for it in endless] == [
        ["0", "1", "2", "0", "1"],
        ["3", "4", "3", "4", "3"],
    ]


@each_way
def test_settings_and_names_stay(sequential):
    ds = MapDataset.range(5000).filter(lambda x: x < 4).to_iter_dataset(ReadOptions(2, 10))
    strict = WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.9))
    it = iter(slice_pipeline(strict, 1, 2, sequential=sequential))
    assert str(it) == str(iter(strict))
    assert_raises(ValueError, r"FilterMapDataset\(.*dropped", list, it)
    share = slice_pipeline(MapDataset.range(5).to_iter_dataset(), 0, 2)
    assert "prefetch_buffer_size=0" in str(share)  # still a bare range, which is not worth threads


def test_every_dataset_is_sliced_once_under_all_its_names():
    a, b = MapDataset.range(6).to_iter_dataset(), MapDataset.range(10, 14)
    assert lists(Joined([a, a]), 2) == [[0, 2, 4] * 2, [1, 3, 5] * 2]
    share = slice_pipeline(Joined([Wrapped(a), a.map(str), a]), 0, 2)
    wrapped, mapped, last = share.parents
    assert wrapped.parents[0] is mapped.parents[0] is last
    assert list(share) == [0, 2, 4, "0", "2", "4", 0, 2, 4]
    share = slice_pipeline(Joined((a, b)), 1, 2)
    assert list(share) == [1, 3, 5, 11, 13]
    assert share.first is share.branches[0] is share.by_name["0"] is share.parents[0]
    assert share.by_name["1"] is share.parents[1]
    share = slice_pipeline(
        Joined([FIVE.to_iter_dataset(), TEXTS.to_iter_dataset()]), 0, 2, sequential=True
    )
    assert sum(type(node) is SliceMapDataset for node in ancestors(share)) == 1

    class Composed(IterDataset):
        def __init__(self, parent):
            super().__init__(parent)
            self.inner = parent.map(lambda x: x + 1).batch(2, batch_fn=list)
            self.unrelated = b
            self.later = self.map(str)  # made of this one: to slice it would have no end

        def __iter__(self):
            return iter(self.inner)

    ds = Composed(a)
    share = slice_pipeline(ds, 1, 2)
    assert list(share) == [[2, 4], [6]]
    assert share.unrelated is b and share.later is ds.later


def test_datasets_that_slice_themselves():
    files = Files([[0, 1], [2], [3, 4], [5]])
    assert lists(files.map(str), 2) == [["0", "1", "3", "4"], ["2", "5"]]
    assert lists(files.map(str), 3) == [["0", "1", "5"], ["2"], ["3", "4"]]
    assert [slice_pipeline(files, 0, 2, sequential=s).sequential for s in (False, True)] == [
        False,
        True,
    ]
    assert files.files == [[0, 1], [2], [3, 4], [5]] and files.sequential is None

    class InPlace(Files):
        def set_slice(self, sl, sequential_slice=False):
            self.files[:] = self.files[sl]

    class Limited(Wrapped):
        """The walk stops here, for any stages upstream."""

        def set_slice(self, sl, sequential_slice=False):
            self.sl = sl

    class Interleaved(Joined):
        def set_slice(self, sl, sequential_slice=False):
            self._parents = self._parents[sl]

    files = InPlace([[0], [1], [2]])
    assert lists(files, 2) == lists(files, 2) == [[0, 2], [1]]
    assert list(files) == [0, 1, 2]
    share = slice_pipeline(Limited(files), 1, 4)
    assert share.sl == slice(1, None, 4) and share.parents == (files,)
    ds = LateSeed(Interleaved([MapDataset.range(3).seed(i).to_iter_dataset() for i in range(4)]))
    assert {share._default_seed for share in shares(ds, 2)} == {ds._default_seed}


@each_way
def test_nothing_of_the_users_is_changed_or_copied(sequential):
    class Uncopyable(list):
        def __reduce_ex__(self, protocol):
            raise AssertionError("copied")

        def __call__(self, x):
            return x

    source, fn = Uncopyable(range(8)), Uncopyable(range(8))
    ds = (
        MapDataset.source(source)
        .map(fn)
        .seed(1)
        .shuffle()
        .repeat(2)
        .to_iter_dataset()
        .map(fn)
        .random_map(draw)
    )
    ds = Joined([ds.batch(2, batch_fn=list), Files([[1], [2], [3]])])
    expected = list(ds)
    nodes = list(ancestors(ds))
    before = [dict(vars(node)) for node in nodes]
    results = lists(ds, 2, sequential)
    assert [dict(vars(node)) for node in nodes] == before
    assert list(ds) == expected and lists(ds, 2, sequential) == results
    in_turn = [x for turn in itertools.zip_longest(*results) for x in turn if x is not None]
    assert list(ds.multithread_prefetch(2, 1, sequential_slice=sequential)) == in_turn
    made = list(ancestors(slice_pipeline(ds, 0, 2, sequential=sequential)))
    assert (
        len([node for node in made if getattr(node._gm_parameters, "transform", None) is fn]) == 2
    )
    assert [node for node in made if node._gm_source is source] == made[-1:]
    if not sequential:
        map_datasets = [node for node in made if isinstance(node, MapDataset)]
        assert len(map_datasets) == 6
        assert [node for node in map_datasets if node not in nodes] == map_datasets[:1]


@each_way
def test_default_seeds_are_those_of_the_whole(sequential):
    ds = MapDataset.range(6).seed(7).repeat(1).to_iter_dataset().map(str)
    late = LateSeed(ds)
    share = slice_pipeline(late, 0, 2, sequential=sequential)
    expected = LateSeed(ds)._default_seed
    assert share._default_seed == expected and {seed for seed, _ in share} == {int(expected)}
    assert share._parent.random_map(draw)._default_seed == ds.random_map(draw)._default_seed
    assert "_default_seed" not in vars(late)
    assert slice_pipeline(share, 1, 2)._default_seed == expected


FIVE, PARTS = MapDataset.range(5), (MapDataset.range(3), MapDataset.range(3, 5))
TEXTS = FIVE.map(str)


@pytest.mark.parametrize(
    ("ds", "expected"),
    [
        (MapDataset.range(20, 0, -4), [[20, 16, 12], [8, 4]]),
        (MapDataset.source(list("abc")), [["a"], ["b"], ["c"], [], []]),
        (TEXTS.filter(lambda x: x != "1")[:], [["0", "2"], ["3", "4"]]),
        (TEXTS[::-1], [["2", "1", "0"], ["4", "3"]]),
        (
            FIVE.shuffle(seed=4).repeat(3, reseed_each_epoch=False),
            [list(part.shuffle(seed=4)) * 3 for part in PARTS],
        ),
        # Element-wise stages of users are copied.
        (Doubled(MapDataset.range(1)), [[0], []]),
        (Doubled(MapDataset.range(0), factor=[]), [[], []]),
        (Doubled(MapDataset.range(5), factor=np.array(5)), [[0, 5, 10], [15, 20]]),
        (Doubled(MapDataset.range(5)).repeat(2), [[0, 2, 4] * 2, [6, 8] * 2]),
        # Branches are cut one by one.
        (
            Joined([FIVE.to_iter_dataset(), TEXTS.to_iter_dataset()]),
            [[0, 1, 2, "0", "1", "2"], [3, 4, "3", "4"]],
        ),
    ],
)
def test_each_worker_gets_a_part_of_the_source(ds, expected):
    assert parts(ds, len(expected)) == expected


methods = {
    "__len__": lambda self: self.factor(self.source),
    "__getitem__": lambda self, index: self.source[index],
}
Sized = type("Sized", (Doubled,), methods)
SIX = MapDataset.range(6)
LABELLED = Doubled(SIX)
LABELLED.labels = np.arange(6)
SAMPLED = SampledMapDataset("abc", SequentialSampler(3), NoSharding(), 3, as_records=False)
STREAM = r"class Plain cannot be sliced among 2 workers.*set_slice.*one worker"


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        *[
            (ds, STREAM)
            for ds in (Plain(1), Plain(1).map(str), Joined([MapDataset.range(2), Plain(1)]))
        ],
        # Steps without a meaning on a part of the source.
        (SIX[1:], r"SliceMapDataset\[1:6:1\] selects.*sequential_slice=False"),
        (SIX.map(str)[::2].map(str), r"SliceMapDataset\[0:6:2\] selects.*sequential_slice=False"),
        (
            SIX.slice([3, 1, 2]),
            r"ReindexMapDataset\(indices=\[3, 1, 2\], len=3\) selects.*sequential_slice=False",
        ),
        (SAMPLED.map(str), "source and MapDataset.range into parts, not SampledMapDataset"),
        (BareMap(3).map(str), "source and MapDataset.range into parts, not BareMap"),
        # Steps of users of which it is not known.
        (Sized(SIX, lambda parent: 6), "Sized.*length of its own"),
        (Sized(SIX, lambda parent: min(3, len(parent))), "Sized.*length of its own"),
        (LABELLED, "Doubled.*attribute, labels"),
        (Doubled([SIX, SIX.map(str)]), "Doubled.*several datasets"),
    ],
)
def test_what_cannot_be_cut_into_parts(ds, message):
    stream = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    for i in range(2):
        assert_raises(ValueError, message, slice_pipeline, stream, i, 2, sequential=True)
    if message is STREAM:
        assert_raises(ValueError, message, slice_pipeline, stream, 0, 2)
    elif "several" not in message:
        assert sorted(itertools.chain(*lists(stream, 2))) == sorted(stream)
