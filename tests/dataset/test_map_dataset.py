"""What ``MapDataset`` promises beyond the laws: values, lengths, texts, checks of arguments."""

import abc
import itertools
import sys

import numpy as np
import pytest
from refusing import assert_raises
from users_datasets import BareMap

from gristmill.core.options import ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset, MapDatasetMeta
from gristmill.dataset.telling.description import complete_repr
from gristmill.transforms import Filter, Map, MapWithIndex, RandomMap

TEN = MapDataset.range(10)
FILTERED = TEN.filter(bool)
NO_SLICES = (5, "12", {1, 2}, {1: 2}, np.array(3), np.zeros((2, 2), int))
NO_INDICES = (2.0, "2", None, [1, 2], np.float64(1))


def identity(x):
    return x


WRONG = [
    # what is called, with what, error, words that the message has besides the value: the parameter, the remedy
    (MapDataset.source, (5, None), TypeError, "source; __getitem__"),
    (MapDataset.range, (2.0,), TypeError, "start; integer"),
    (lambda x: MapDataset.range(0, x), ("9",), TypeError, "stop"),
    (lambda x: MapDataset.range(0, 9, x), (1.5, None), TypeError, "step"),
    (lambda x: MapDataset.range(0, 9, x), (0,), ValueError, "step"),
    (TEN.map, (3, None), TypeError, "transform; Map"),
    (TEN.filter, ("x",), TypeError, "transform; Filter"),
    (TEN.map_with_index, (3,), TypeError, "transform; MapWithIndex"),
    (lambda x: TEN.random_map(x, seed=1), (3,), TypeError, "transform; RandomMap"),
    (lambda x: TEN.random_map(identity, seed=x), (-1,), ValueError, "seed"),
    (lambda x: TEN.random_map(identity, seed=x), (1.0,), TypeError, "seed"),
    (lambda x: TEN.shuffle(seed=x), (-1, 2**32), ValueError, "seed; 4294967295"),
    (lambda x: TEN.shuffle(seed=x), (1.5, "1"), TypeError, "seed"),
    (TEN.seed, (-1,), ValueError, "seed"),
    (TEN.seed, (0.5,), TypeError, "seed"),
    (TEN.repeat, (0, -3), ValueError, "num_epochs"),
    (TEN.repeat, (2.0,), TypeError, "num_epochs"),
    (TEN.batch, (0, -2), ValueError, "batch_size"),
    (TEN.batch, (2.0,), TypeError, "batch_size"),
    (lambda x: TEN.batch(2, batch_fn=x), (3,), TypeError, "batch_fn"),
    *[(TEN.slice, NO_SLICES, error, "sl must be a slice or a sequence of indices") for error in (TypeError, ValueError)],
    (lambda x: TEN.slice([x])[0], ("a",), TypeError, "indices[0]"),
    (lambda x: TEN.slice([0, x])[1], (1.5,), TypeError, "indices[1]"),
    (TEN.to_iter_dataset, (3, {"num_threads": 1}), TypeError, "read_options; ReadOptions"),
    (TEN.__getitem__, NO_INDICES, TypeError, "index"),
]
REFUSED = [
    (TEN.random_map, (identity,), ValueError, "random_map; seed; ds.seed(seed); seed="),
    (TEN.shuffle, (), ValueError, "shuffle; seed; ds.seed(seed)"),
    *[(TEN.repeat().repeat, args, ValueError, "RepeatMapDataset; endless") for args in ((), (2,))],
    (FILTERED.map(identity).batch, (2,), ValueError, "batch; FilterMapDataset; to_iter_dataset()"),
    (FILTERED.repeat(2)[1:].batch, (2,), ValueError, "to_iter_dataset()"),
    (lambda: TEN[::0], (), ValueError, "step"),
    (TEN.slice, (iter([1]),), TypeError, "sl"),
    (TEN.to_iter_dataset, (ReadOptions(), True), TypeError, ""),
    (MapDataset.range(0).__getitem__, (0,), IndexError, "empty"),
    (MapDataset.source([np.arange(3)]).filter(lambda x: x > 0).__getitem__, (0,), ValueError, "ambiguous"),
    (MapDataset, (), TypeError, "abstract"),
    (type("NoLength", (MapDataset,), {"__getitem__": lambda self, index: index}), (), TypeError, "__len__"),
    (TEN.map, (type("OnlyFilter", (Filter,), {"filter": lambda self, x: True})(),), TypeError, "Map"),
]


@pytest.mark.parametrize(
    ("call", "args", "error", "words"),
    [(call, (x,), error, f"{x!r}; {words}") for call, values, error, words in WRONG for x in values] + REFUSED,
)
def test_wrong_arguments(call, args, error, words):
    with pytest.raises(error) as caught:
        call(*args)
    for word in words.split("; "):
        assert word in str(caught.value)


def test_factories_belong_to_the_class():
    assert isinstance(MapDataset, MapDatasetMeta) and issubclass(MapDatasetMeta, abc.ABCMeta)
    assert not hasattr(TEN, "range") and not hasattr(TEN, "source")

    class Mine(BareMap):
        """Attributes that bear the factories' names."""

        range, mix, source = 7, "mix", [1, 2, 3]

    ds = Mine(3)
    assert (ds.range, ds.source, list(ds.map(lambda x: x + 1))) == (7, [1, 2, 3], [1, 2, 3])
    assert list(ds.shuffle(seed=1)) == list(MapDataset.range(3).shuffle(seed=1))

    class Combined(MapDataset, abc.ABC):
        @abc.abstractmethod
        def extra(self): ...

    assert_raises(TypeError, None, Combined)
    assert list(Combined.range(3)) == [0, 1, 2]


def test_range():
    for args in [(3,), (0,), (-2,), (2, 7), (7, 2), (0, 10, 3), (10, 0, -3), (0, 0), (-5, 5, 2), (np.int64(2), np.int8(9))]:
        ds = MapDataset.range(*args)
        assert list(ds) == list(range(*args)) and len(ds) == len(range(*args))
        assert all([type(x) is int for x in ds])
    assert list(MapDataset.range(7, step=3)) == [0, 3, 6]
    ds = MapDataset.range(1, 9, 2)
    assert (ds.start, ds.stop, ds.step) == (1, 9, 2)


def test_lengths_beyond_the_largest_are_the_largest():
    endless = TEN.repeat()
    assert MapDataset.range(2**80)[2**79] == 2**79
    for ds in (MapDataset.range(2**80), endless, TEN.repeat(sys.maxsize), endless.batch(1), endless.shuffle(seed=1)):
        assert len(ds) == sys.maxsize and ds
    assert len(endless.batch(3)) == -(-sys.maxsize // 3)
    assert len(endless.batch(3, drop_remainder=True)) == sys.maxsize // 3
    assert len(endless[::2]) == -(-sys.maxsize // 2)
    assert list(itertools.islice(endless, 23)) == [i % 10 for i in range(23)]
    assert list(itertools.islice(endless[5:], 3)) == [5, 6, 7]
    assert endless.batch(4, batch_fn=list)[10**15] == [(4 * 10**15 + i) % 10 for i in range(4)]
    assert 3 in endless
    it = iter(MapDataset.source([1, 2]).repeat())
    it.set_state({"next_index": 10**18})
    assert [next(it), next(it)] == [1, 2]
    it.set_state({"next_index": sys.maxsize})
    assert next(it, "end") == "end"


def test_empty_data_sets():
    empty = MapDataset.source([])
    for ds in (
        empty, empty.map(identity), empty.shuffle(seed=1), empty.repeat(), empty.repeat(3), empty.batch(2), empty[2:], TEN[5:5],
        empty.filter(identity), empty.seed(1), empty.map_with_index(identity), empty.random_map(identity, seed=1), TEN.slice([]),
        empty.repeat(2, reseed_each_epoch=False), TEN.batch(11, drop_remainder=True), empty.shuffle(seed=1).batch(3)[1:].repeat(),
        empty.window_shuffle(3, seed=1),
    ):  # fmt: skip
        assert len(ds) == 0 and not ds
        assert list(ds) == []
        assert iter(ds).get_state() == {"next_index": 0}
        for index in (0, 1, -1, 2**70):
            assert_raises(IndexError, "empty", ds.__getitem__, index)


def test_container_protocols():
    sparse = MapDataset.source([1, None, 3])
    one, two = sparse
    assert (one, two, sum(sparse)) == (1, 3, 4)
    assert list(reversed(sparse)) == [3, None, 1]
    assert 3 in sparse and 2 not in sparse
    assert isinstance(iter(sparse), DatasetIterator)
    assert not hasattr(iter(sparse), "__len__")
    # Every method leaves the data set alone.
    ds = MapDataset.source([3, 1, 2])
    made = [ds.map(str), ds.shuffle(seed=1), ds[1:], ds.repeat(2), ds.batch(2), ds.seed(1), ds.filter(bool), ds.to_iter_dataset()]
    assert all([other is not ds and other.parents == (ds,) for other in made])
    assert list(ds) == [3, 1, 2] and ds.parents == ()


def test_slices_are_those_of_lists_or_by_indices():
    bounds = [None, 0, 1, 5, 9, 10, 20, -1, -3, -10, -20]
    for sl in itertools.starmap(slice, itertools.product(bounds, bounds, (None, 1, 2, 3, 11, -1, -2, -11))):
        assert list(TEN[sl]) == list(TEN.slice(sl)) == list(range(10))[sl]
    assert list(TEN[np.int64(2) : np.int64(5)]) == [2, 3, 4]
    # By indices.
    ds = MapDataset.range(6).map_with_index(lambda i, x: (i, x))
    for indices in ([3, 1, 4, 1, 5], (3, 1, 4, 1, 5), np.array([3, 1, 4, 1, 5]), MapDataset.source([3, 1, 4, 1, 5])):
        taken = ds.slice(indices)
        assert len(taken) == 5 and list(taken) == [(i, i) for i in (3, 1, 4, 1, 5)]
        assert taken[7] == (10, 4) and list(taken[1::2]) == [(1, 1), (1, 1)]
    assert [ds.slice([-1, 6])[i] for i in range(2)] == [(-1, 5), (6, 0)]
    for indices in ([True, False], np.array([True, False])):
        assert list(ds.slice(indices)) == [(1, 1), (0, 0)]
    growing = [2]
    taken = ds.slice(growing)
    growing.append(4)
    assert len(taken) == 2 and list(taken) == [(2, 2), (4, 4)]
    # Only the needed entry is read, and a description shows the first of many.
    asked, shown = [], []
    entries = MapDataset.range(1000).map(lambda i: (asked.append(i), i // 100)[1])
    assert TEN.slice(entries)[1500] == 5 and asked == [500]

    class Index(int):
        def __repr__(self):
            shown.append(self)
            return int.__repr__(self)

    assert "indices=[7, 7, 7]" in complete_repr(TEN.slice([Index(7)] * 3))
    assert "indices=[7, 7, 7, 7," in complete_repr(TEN.slice([Index(7)] * 100_000))
    assert len(shown) < 1000


def test_repeat_batch_and_filter():
    assert list(MapDataset.range(2).repeat(np.int64(2))) == [0, 1, 0, 1]
    assert [b.tolist() for b in MapDataset.range(5).batch(np.int8(2), drop_remainder=True)] == [[0, 1], [2, 3]]
    seen = []
    list(MapDataset.source([1, None, 3]).batch(2, batch_fn=lambda xs: seen.append(xs)).to_iter_dataset(ReadOptions(0)))
    assert seen == [[1, None], [3]]
    tutorial = MapDataset.source(list(range(11))).shuffle(seed=10).map(lambda x: x + 1).batch(2)
    assert [b.tolist() for b in tutorial] == [[6, 11], [2, 10], [3, 5], [1, 4], [8, 9], [7]]
    assert tutorial[8].tolist() == [7, 3]  # batches never straddle epochs
    assert list(MapDataset.source([0, "", "a", [], 2]).filter(lambda x: x)) == ["a", 2]
    assert len(TEN.filter(lambda x: False)) == 10 and MapDataset.source([None]).filter(lambda x: x > 0)[0] is None
    with pytest.raises(ValueError) as caught:
        MapDataset.source([1, None]).batch(2)[0]
    assert "to_iter_dataset()" in "".join(caught.value.__notes__)


methods = {
    "map": lambda self, x: ("map", x),
    "filter": lambda self, x: x % 2 == 0,
    "random_map": lambda self, x, rng: ("random", x),
    "map_with_index": lambda self, i, x: ("index", i, x),
    "__call__": lambda self, x: 1 // 0,  # the method comes first
}
All = type("All", (Map, Filter, RandomMap, MapWithIndex), methods)  # each method of the data set uses its own


def test_transform_objects_and_texts():
    two = MapDataset.range(2)
    for ds, elements, text in [
        (two.map(All()), [("map", 0), ("map", 1)], "MapMapDataset(transform=All)"),
        (two.filter(All()), [0], "FilterMapDataset(transform=All)"),
        (two.random_map(All(), seed=1), [("random", 0), ("random", 1)], "RandomMapMapDataset(transform=All)"),
        (two.map_with_index(All()), [("index", 0, 0), ("index", 1, 1)], "MapWithIndexMapDataset(transform=All)"),
        (MapDataset.source([1]), [1], "SourceMapDataset(source=list)"),
        (MapDataset.range(3), [0, 1, 2], "RangeMapDataset(start=0, stop=3, step=1)"),
        (two[::-1], [1, 0], "SliceMapDataset[1:-1:-1]"),
        (TEN.slice([3, 1, 4, 1, 5]), [3, 1, 4, 1, 5], "ReindexMapDataset(indices=[3, 1, 4, 1, 5], len=5)"),
        (TEN.slice(range(8)), list(range(8)), "ReindexMapDataset(indices=[0, 1, ..., 6, 7], len=8)"),
        (two.repeat(2), [0, 1, 0, 1], "RepeatMapDataset(num_epochs=2)"),
        (two[:0].repeat(), [], "RepeatMapDataset(num_epochs=None)"),
        (two.batch(3, batch_fn=list), [[0, 1]], "BatchMapDataset(batch_size=3, drop_remainder=False)"),
        (two[:1].shuffle(seed=1), [0], "ShuffleMapDataset"),
    ]:
        assert list(ds) == elements and str(ds) == text
    assert str(two.map(len)) == "MapMapDataset(transform=len)"
    assert "identity @ " in str(two.map(identity)) and "test_map_dataset.py:" in str(two.map(identity))


def test_pipe_and_to_iter_dataset():
    def call(*args, **kwargs):
        return args, kwargs

    for ds in (TEN, TEN.to_iter_dataset()):
        assert ds.pipe(call, 1, func=2, self=3) == ((ds, 1), {"func": 2, "self": 3})
        assert ds.pipe(lambda ds: ds) is ds
        assert_raises(TypeError, None, ds.pipe, func=call)
    assert isinstance(TEN.to_iter_dataset(), IterDataset)
    assert str(TEN.to_iter_dataset()) == (
        "PrefetchIterDataset(read_options=ReadOptions(num_threads=16, prefetch_buffer_size=0), allow_nones=False)"
    )
    assert "prefetch_buffer_size=500" in str(TEN.map(identity).to_iter_dataset())
