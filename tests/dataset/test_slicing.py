"""The share of a pipeline that a worker runs: what it holds, and that nothing of the user's is changed by making it."""

import itertools
import sys

import cloudpickle
import numpy as np
import pytest

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.core.record import Record
from gristmill.core.sharding import NoSharding
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.slice import SliceMapDataset
from gristmill.loader import DataLoader
from gristmill.loader.records import SampledMapDataset
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.transforms import RandomMap


def shares(ds, count, **options):
    return [slice_pipeline(ds, i, count, **options) for i in range(count)]


def lists(ds, count, **options):
    return [list(share) for share in shares(ds, count, **options)]


def sequential(ds, count):
    return lists(ds, count, sequential=True)


def draw(x, rng):
    return (x, int(rng.integers(10**6)))


class Pass(PassingIterator):
    def _take(self, n):
        return self._source._take(n)


class Joined(IterDataset):
    """Its parents one after the other; each has a name of its own, as users give them."""

    def __init__(self, parents):
        super().__init__(parents)
        self.branches = list(parents)
        self.first = parents[0]
        self.by_name = {str(i): parent for i, parent in enumerate(parents)}

    def __iter__(self):
        return itertools.chain(*self.branches)


class Wrapped(IterDataset):
    def __iter__(self):
        return Pass(self._parent.__iter__())


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
        self.source = parent
        self.factor = factor

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.factor * self.source[index]


def test_every_nth_element_from_index_on():
    ds = MapDataset.range(7).to_iter_dataset()
    assert lists(ds, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert lists(ds, 9) == [[0], [1], [2], [3], [4], [5], [6], [], []]
    assert lists(ds.map(str).filter(lambda x: x != "3").batch(2, batch_fn=list), 2) == [[["0", "2"], ["4", "6"]], [["1", "5"]]]
    assert lists(MapDataset.range(7).filter(lambda x: x % 3).to_iter_dataset(), 2) == [[2, 4], [1, 5]]


def test_one_worker_gets_the_pipeline_itself():
    ds = Files([[1]]).map(str)
    assert slice_pipeline(ds, 0, 1) is ds
    assert slice_pipeline(ds, 0, 1, sequential=True) is ds


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_no_such_worker(index, count):
    with pytest.raises(ValueError, match="shard_"):
        slice_pipeline(MapDataset.range(3).to_iter_dataset(), index, count)


def test_streams_and_shuffles_before_the_slice_are_those_of_the_whole():
    ds = MapDataset.range(9).seed(42).shuffle().random_map(draw).map_with_index(lambda i, x: (i, x)).repeat(2)
    assert lists(ds.to_iter_dataset(), 2) == [list(ds)[::2], list(ds)[1::2]]


def test_endless_and_huge_data():
    endless = MapDataset.range(5).shuffle(seed=1).repeat()
    it = iter(slice_pipeline(endless.to_iter_dataset(), 1, 3))
    assert [next(it) for _ in range(20)] == [endless[i] for i in range(1, 61, 3)]
    it.set_state({"next_index": sys.maxsize // 3})
    assert list(it) == []
    it.set_state({"next_index": sys.maxsize // 3 - 1})
    assert list(it) == [endless[1 + 3 * (sys.maxsize // 3 - 1)]]

    sampler = IndexSampler(num_records=2**62, shuffle=True, num_epochs=2, seed=3)
    records = SampledMapDataset(MapDataset.range(2**62), sampler, NoSharding(), sys.maxsize, as_records=False)
    it = iter(slice_pipeline(records.to_iter_dataset(allow_nones=True), 2, 4))
    assert [next(it) for _ in range(9)] == [records[i] for i in range(2, 38, 4)]

    for part in shares(MapDataset.range(sys.maxsize).map(str).to_iter_dataset(), 2, sequential=True):
        it = iter(part)
        it.set_state({"next_index": sys.maxsize // 2})
        assert next(it, None) in (str(sys.maxsize // 2), None)


def test_settings_and_names_stay():
    ds = MapDataset.range(5000).filter(lambda x: x < 4).to_iter_dataset(ReadOptions(2, 10))
    strict = WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.9))
    for options in ({}, {"sequential": True}):
        it = iter(slice_pipeline(strict, 1, 2, **options))
        assert str(it) == str(iter(strict))
        with pytest.raises(ValueError, match=r"FilterMapDataset\(.*dropped"):
            list(it)
    share = slice_pipeline(MapDataset.range(5).to_iter_dataset(), 0, 2)
    assert "prefetch_buffer_size=0" in str(share)  # still a bare range, which is not worth threads
    assert lists(MapDataset.range(4).map(lambda x: x if x % 3 else None).to_iter_dataset(allow_nones=True), 2) == [
        [None, 2],
        [1, None],
    ]


def test_every_dataset_is_sliced_once():
    a = MapDataset.range(6).to_iter_dataset()
    assert lists(Joined([a, a]), 2) == [[0, 2, 4] * 2, [1, 3, 5] * 2]
    share = slice_pipeline(Joined([Wrapped(a), a.map(str), a]), 0, 2)
    wrapped, mapped, last = share.parents
    assert wrapped.parents[0] is mapped.parents[0] is last
    assert list(share) == [0, 2, 4, "0", "2", "4", 0, 2, 4]


def test_parents_under_other_names_are_sliced_too():
    a, b = MapDataset.range(4).to_iter_dataset(), MapDataset.range(10, 14)
    share = slice_pipeline(Joined((a, b)), 1, 2)
    assert list(share) == [1, 3, 11, 13]
    assert share.first is share.branches[0] is share.by_name["0"] is share.parents[0]
    assert share.by_name["1"] is share.parents[1]

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
    assert list(share) == [[2, 4]]
    assert share.unrelated is b and share.later is ds.later


def test_map_datasets_directly_under_a_stream():
    assert lists(Wrapped(MapDataset.range(5)), 2) == [[0, 2, 4], [1, 3]]
    assert sequential(Wrapped(MapDataset.range(5).map(str)), 2) == [["0", "1", "2"], ["3", "4"]]
    assert lists(Joined([MapDataset.range(3), MapDataset.range(10, 13).to_iter_dataset()]), 2) == [[0, 2, 10, 12], [1, 11]]


def test_datasets_that_slice_themselves():
    files = Files([[0, 1], [2], [3, 4], [5]])
    ds = files.map(str)
    assert lists(ds, 2) == [["0", "1", "3", "4"], ["2", "5"]]
    assert lists(ds, 3) == [["0", "1", "5"], ["2"], ["3", "4"]]
    assert [slice_pipeline(files, 0, 2, sequential=s).sequential for s in (False, True)] == [False, True]
    assert files.files == [[0, 1], [2], [3, 4], [5]] and files.sequential is None

    class InPlace(Files):
        def set_slice(self, sl, sequential_slice=False):
            self.files[:] = self.files[sl]

    files = InPlace([[0], [1], [2]])
    assert lists(files, 2) == lists(files, 2) == [[0, 2], [1]]
    assert list(files) == [0, 1, 2]

    class Limited(Wrapped):
        """The walk stops here, whatever comes before."""

        def set_slice(self, sl, sequential_slice=False):
            self.sl = sl

    share = slice_pipeline(Limited(files), 1, 4)
    assert share.sl == slice(1, None, 4) and share.parents == (files,)


def test_sources_that_cannot_be_sliced():
    class Socket(IterDataset):
        def __iter__(self):
            return iter([1])

    for ds in (Socket(), Socket().map(str), Joined([MapDataset.range(2), Socket()])):
        for options in ({}, {"sequential": True}):
            with pytest.raises(ValueError, match=r"class Socket cannot be sliced among 2 workers.*set_slice.*one worker"):
                slice_pipeline(ds, 0, 2, **options)


@pytest.mark.parametrize("options", [{}, {"sequential": True}])
def test_nothing_of_the_users_is_changed_or_copied(options):
    class Uncopyable(list):
        def __reduce_ex__(self, protocol):
            raise AssertionError("copied")

        def __call__(self, x):
            return x

    source, fn = Uncopyable(range(8)), Uncopyable(range(8))
    ds = MapDataset.source(source).map(fn).seed(1).shuffle().repeat(2).to_iter_dataset().map(fn).random_map(draw)
    ds = Joined([ds.batch(2, batch_fn=list), Files([[1], [2], [3]])])
    expected = list(ds)
    nodes = list(ancestors(ds))
    before = [dict(vars(node)) for node in nodes]
    results = lists(ds, 2, **options)
    assert [dict(vars(node)) for node in nodes] == before
    assert list(ds) == expected and lists(ds, 2, **options) == results
    share = slice_pipeline(ds, 0, 2, **options)
    functions = [node._fn for node in ancestors(share) if getattr(node._parameters, "transform", None) is fn]
    assert len(functions) == 2
    assert [node._source is source for node in ancestors(share) if hasattr(node, "_source")] == [True]
    if not options:
        map_datasets = [node for node in ancestors(share) if isinstance(node, MapDataset)]
        assert len(map_datasets) == 6 and [node for node in map_datasets if node not in nodes] == map_datasets[:1]


@pytest.mark.parametrize("options", [{}, {"sequential": True}])
def test_shares_can_be_pickled(options):
    source = MapDataset.source(list(range(9))).seed(3).shuffle().map(lambda x: x + 1).batch(2)
    ds = Joined([source.to_iter_dataset().random_map(lambda x, rng: x + rng.integers(99)), MapDataset.range(5)])
    for share in shares(ds, 2, **options):
        copy = cloudpickle.loads(cloudpickle.dumps(share))
        assert list(map(repr, copy)) == list(map(repr, share)) != []


class LateSeed(IterDataset):
    """Asks for its default seed as late as can be; and makes a random step of its own when it is iterated."""

    def __iter__(self):
        seed = int(self._default_seed)
        return iter(self._parent.random_map(draw).map(lambda x: (seed, x[0])))


@pytest.mark.parametrize("options", [{}, {"sequential": True}])
def test_default_seeds_are_those_of_the_whole(options):
    ds = MapDataset.range(6).seed(7).repeat(1).to_iter_dataset().map(str)
    late = LateSeed(ds)
    share = slice_pipeline(late, 0, 2, **options)
    expected = LateSeed(ds)._default_seed
    assert share._default_seed == expected and {seed for seed, _ in share} == {int(expected)}
    assert share._parent.random_map(draw)._default_seed == ds.random_map(draw)._default_seed
    assert "_default_seed" not in vars(late)
    assert slice_pipeline(share, 1, 2)._default_seed == expected


def test_default_seeds_after_a_dataset_that_slices_itself():
    class Interleaved(Joined):
        def set_slice(self, sl, sequential_slice=False):
            self._parents = self._parents[sl]

    ds = LateSeed(Interleaved([MapDataset.range(3).seed(i).to_iter_dataset() for i in range(4)]))
    assert {share._default_seed for share in shares(ds, 2)} == {ds._default_seed}


# The source cut into parts.


def test_each_worker_gets_a_part_of_the_source():
    assert sequential(MapDataset.range(10).to_iter_dataset(), 3) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert sequential(MapDataset.range(20, 0, -4).to_iter_dataset(), 2) == [[20, 16, 12], [8, 4]]
    assert sequential(MapDataset.source("abc").to_iter_dataset(), 5) == [["a"], ["b"], ["c"], [], []]
    assert sequential(MapDataset.range(0).map(str).to_iter_dataset(), 2) == [[], []]
    assert sequential(MapDataset.range(5).to_iter_dataset().batch(2, batch_fn=list), 2) == [[[0, 1], [2]], [[3, 4]]]


def test_steps_on_a_part():
    ds = MapDataset.range(5).map(str)
    assert sequential(ds.repeat(2).to_iter_dataset(), 2) == [["0", "1", "2"] * 2, ["3", "4"] * 2]
    endless = [iter(share) for share in shares(ds.repeat().to_iter_dataset(), 2, sequential=True)]
    assert [[next(it) for _ in range(5)] for it in endless] == [["0", "1", "2", "0", "1"], ["3", "4", "3", "4", "3"]]
    assert sequential(ds.batch(2, batch_fn=list).to_iter_dataset(), 2) == [[["0", "1"], ["2"]], [["3", "4"]]]
    assert sequential(ds.batch(2, drop_remainder=True, batch_fn=list).to_iter_dataset(), 2) == [[["0", "1"]], [["3", "4"]]]
    assert sequential(ds.map_with_index(lambda i, x: (i, x)).to_iter_dataset(), 2) == [
        [(0, "0"), (1, "1"), (2, "2")],
        [(0, "3"), (1, "4")],
    ]
    assert sequential(ds.filter(lambda x: x != "1")[:].to_iter_dataset(), 2) == [["0", "2"], ["3", "4"]]
    assert sequential(ds[::-1].to_iter_dataset(), 2) == [["2", "1", "0"], ["4", "3"]]
    batches = slice_pipeline(MapDataset.range(5).batch(2).repeat(2).to_iter_dataset(), 0, 2, sequential=True)
    assert [b.tolist() for b in batches] == [[0, 1], [2], [0, 1], [2]]
    part = MapDataset.range(3, 5).shuffle(seed=4).random_map(draw, seed=5).repeat(3)
    whole = MapDataset.range(5).shuffle(seed=4).random_map(draw, seed=5).repeat(3)
    assert list(slice_pipeline(whole.to_iter_dataset(), 1, 2, sequential=True)) == list(part)
    same = whole._parent.repeat(3, reseed_each_epoch=False).to_iter_dataset()
    assert list(slice_pipeline(same, 1, 2, sequential=True)) == 3 * list(part[:2])


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (lambda ds: ds[1:], r"SliceMapDataset\[1:8:1\] selects"),
        (lambda ds: ds.map(str)[::2].map(str), r"SliceMapDataset\[0:8:2\] selects"),
        (lambda ds: ds.slice([3, 1, 2, 0, 7, 6, 5, 4]), r"ReindexMapDataset\(indices=\[3, 1, \.\.\., 5, 4\], len=8\) selects"),
    ],
)
def test_steps_without_a_meaning_on_a_part(step, name):
    ds = step(MapDataset.range(8)).to_iter_dataset()
    for i in range(2):
        with pytest.raises(ValueError, match=f"{name}.*sequential_slice=False"):
            slice_pipeline(ds, i, 2, sequential=True)
    assert sorted(itertools.chain(*lists(ds, 2))) == sorted(ds)


def test_only_source_and_range_can_be_cut():
    sampled = SampledMapDataset("abc", SequentialSampler(3), NoSharding(), 3, as_records=False)
    for root, name in ((sampled, "SampledMapDataset"), (Squares(3), "Squares")):
        with pytest.raises(ValueError, match=f"source and MapDataset.range into parts, not {name}"):
            slice_pipeline(root.map(str).to_iter_dataset(), 0, 2, sequential=True)


class Squares(MapDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return (index % self.n) ** 2


def test_a_users_element_wise_step_is_copied():
    ds = Doubled(MapDataset.range(5).shuffle(seed=1)).repeat(2)
    parts = [Doubled(MapDataset.range(*part).shuffle(seed=1)).repeat(2) for part in ((3,), (3, 5))]
    assert sequential(ds.to_iter_dataset(), 2) == [list(part) for part in parts]
    assert sequential(Doubled(MapDataset.range(1)).to_iter_dataset(), 2) == [[0], []]
    assert sequential(Doubled(MapDataset.range(0), factor=[]).to_iter_dataset(), 2) == [[], []]
    assert sequential(Doubled(MapDataset.range(5), factor=np.array(5)).to_iter_dataset(), 2) == [[0, 5, 10], [15, 20]]


def test_a_users_step_of_which_it_is_not_known_is_refused():
    class FixedLength(Doubled):
        def __init__(self, parent):
            super().__init__(parent)
            self.length = len(parent)

        def __len__(self):
            return self.length

    class FirstThree(Doubled):
        def __len__(self):
            return min(3, len(self._parent))

    class Labelled(Doubled):
        def __init__(self, parent):
            super().__init__(parent)
            self.labels = np.arange(len(parent))

    class Zipped(Doubled):
        def __init__(self, *parents):
            MapDataset.__init__(self, parents)

        def __len__(self):
            return len(self._parents[0])

    ds = MapDataset.range(6)
    refused = [
        (FixedLength(ds), "FixedLength.*length of its own"),
        (FirstThree(ds), "FirstThree.*length of its own"),
        (Labelled(ds), "Labelled.*attribute, labels"),
        (Zipped(ds, ds.map(str)), "Zipped.*several datasets"),
    ]
    for step, message in refused:
        with pytest.raises(ValueError, match=message):
            slice_pipeline(step.to_iter_dataset(), 0, 2, sequential=True)
    assert lists(FixedLength(ds).to_iter_dataset(), 2) == [[0, 4, 8], [2, 6, 10]]


def test_branches_are_cut_one_by_one():
    source = MapDataset.range(5)
    ds = Joined([source.to_iter_dataset(), source.map(str).to_iter_dataset(), MapDataset.range(10, 13).to_iter_dataset()])
    assert sequential(ds, 2) == [[0, 1, 2, "0", "1", "2", 10, 11], [3, 4, "3", "4", 12]]
    share = slice_pipeline(ds, 0, 2, sequential=True)
    assert sum(type(node) is SliceMapDataset for node in ancestors(share)) == 2


def test_the_pipeline_of_a_data_loader():
    class Noise(RandomMap):
        def random_map(self, element, rng):
            return draw(element, rng)

    def named(records):
        for record in records:
            yield Record(record.metadata, (record.metadata.index, record.data))

    sampler = IndexSampler(num_records=11, shuffle=True, num_epochs=2, seed=4)
    ds = DataLoader(data_source=range(100, 111), sampler=sampler, operations=[Noise(), named])._dataset
    elements = list(ds)
    assert [index for index, _ in elements] == list(range(22))
    assert lists(ds, 3) == [elements[i::3] for i in range(3)]


def test_a_share_is_iterated_like_any_dataset():
    share = slice_pipeline(Wrapped(MapDataset.range(9).to_iter_dataset()).batch(2, batch_fn=list), 1, 2)
    it = iter(share)
    assert isinstance(it, DatasetIterator)
    assert next(it) == [1, 3]
    state = it.get_state()
    assert state == {"next_index": 2}
    again = iter(share)
    again.set_state(state)
    assert list(again) == list(it) == [[5, 7]]
