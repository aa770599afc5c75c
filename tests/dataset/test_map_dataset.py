"""What ``MapDataset`` promises beyond the laws: values, lengths, texts, checks of arguments."""

import abc
import itertools
import sys

import numpy as np
import pytest

from gristmill.core.options import ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset, MapDatasetMeta
from gristmill.dataset.telling.description import complete_repr
from gristmill.transforms import Filter, Map, MapWithIndex, RandomMap

TEN = MapDataset.range(10)


def identity(x):
    return x


BAD_CALLS = [
    # call, error, words that the message has: the parameter, the value, the remedy
    (lambda: MapDataset.source(5), TypeError, ["source", "5", "__getitem__"]),
    (lambda: MapDataset.source(None), TypeError, ["source", "None"]),
    (lambda: MapDataset.range(2.0), TypeError, ["start", "2.0", "integer"]),
    (lambda: MapDataset.range(0, "9"), TypeError, ["stop", "'9'"]),
    (lambda: MapDataset.range(0, 9, 1.5), TypeError, ["step", "1.5"]),
    (lambda: MapDataset.range(0, 9, None), TypeError, ["step", "None"]),
    (lambda: MapDataset.range(0, 9, 0), ValueError, ["step", "0"]),
    (lambda: TEN.map(3), TypeError, ["transform", "3", "Map"]),
    (lambda: TEN.map(None), TypeError, ["transform", "None"]),
    (lambda: TEN.filter("x"), TypeError, ["transform", "'x'", "Filter"]),
    (lambda: TEN.map_with_index(3), TypeError, ["transform", "3", "MapWithIndex"]),
    (lambda: TEN.random_map(3, seed=1), TypeError, ["transform", "3", "RandomMap"]),
    (lambda: TEN.random_map(identity), ValueError, ["random_map", "seed", "ds.seed(seed)", "seed="]),
    (lambda: TEN.random_map(identity, seed=-1), ValueError, ["seed", "-1"]),
    (lambda: TEN.random_map(identity, seed=1.0), TypeError, ["seed", "1.0"]),
    (lambda: TEN.shuffle(), ValueError, ["shuffle", "seed", "ds.seed(seed)"]),
    (lambda: TEN.shuffle(seed=-1), ValueError, ["seed", "-1", "4294967295"]),
    (lambda: TEN.shuffle(seed=2**32), ValueError, ["seed", str(2**32), "4294967295"]),
    (lambda: TEN.shuffle(seed=1.5), TypeError, ["seed", "1.5"]),
    (lambda: TEN.shuffle(seed="1"), TypeError, ["seed", "'1'"]),
    (lambda: TEN.seed(-1), ValueError, ["seed", "-1"]),
    (lambda: TEN.seed(0.5), TypeError, ["seed", "0.5"]),
    (lambda: TEN.repeat(0), ValueError, ["num_epochs", "0"]),
    (lambda: TEN.repeat(-3), ValueError, ["num_epochs", "-3"]),
    (lambda: TEN.repeat(2.0), TypeError, ["num_epochs", "2.0"]),
    (lambda: TEN.repeat().repeat(), ValueError, ["RepeatMapDataset", "endless"]),
    (lambda: TEN.repeat().repeat(2), ValueError, ["RepeatMapDataset"]),
    (lambda: TEN.batch(0), ValueError, ["batch_size", "0"]),
    (lambda: TEN.batch(-2), ValueError, ["batch_size", "-2"]),
    (lambda: TEN.batch(2.0), TypeError, ["batch_size", "2.0"]),
    (lambda: TEN.batch(2, batch_fn=3), TypeError, ["batch_fn", "3"]),
    (lambda: TEN.filter(identity).map(identity).batch(2), ValueError, ["batch", "FilterMapDataset", "to_iter_dataset()"]),
    (lambda: TEN.filter(identity).repeat(2)[1:].batch(2), ValueError, ["to_iter_dataset()"]),
    (lambda: TEN[::0], ValueError, ["step"]),
    (lambda: TEN.slice(5), TypeError, ["sl", "5"]),
    (lambda: TEN.slice("12"), TypeError, ["sl", "'12'"]),
    (lambda: TEN.slice({1, 2}), TypeError, ["sl", "{1, 2}"]),
    (lambda: TEN.slice(iter([1])), TypeError, ["sl"]),
    (lambda: TEN.slice(["a"])[0], TypeError, ["indices[0]", "'a'"]),
    (lambda: TEN.slice([0, 1.5])[1], TypeError, ["indices[1]", "1.5"]),
    (lambda: TEN.to_iter_dataset(3), TypeError, ["read_options", "3", "ReadOptions"]),
    (lambda: TEN.to_iter_dataset({"num_threads": 1}), TypeError, ["read_options"]),
    (lambda: TEN[2.0], TypeError, ["index", "2.0"]),
    (lambda: TEN["2"], TypeError, ["index", "'2'"]),
    (lambda: TEN[None], TypeError, ["index", "None"]),
    (lambda: TEN[[1, 2]], TypeError, ["index", "[1, 2]"]),
    (lambda: TEN[np.float64(1)], TypeError, ["index"]),
    (lambda: MapDataset.range(0)[0], IndexError, ["empty"]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_wrong_arguments(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_base_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        MapDataset()

    class NoLength(MapDataset):
        def __getitem__(self, index):
            return index

    with pytest.raises(TypeError, match="__len__"):
        NoLength()


def test_factories_belong_to_the_class():
    assert isinstance(MapDataset, MapDatasetMeta) and issubclass(MapDatasetMeta, abc.ABCMeta)
    assert not hasattr(TEN, "range") and not hasattr(TEN, "source")

    class Mine(MapDataset):
        """Attributes that bear the factories' names."""

        range = 7
        mix = "mix"

        def __init__(self):
            super().__init__()
            self.source = [1, 2, 3]

        def __len__(self):
            return len(self.source)

        def __getitem__(self, index):
            return self.source[index % 3] * self.range

    assert list(Mine().map(lambda x: x + 1)) == [8, 15, 22]
    assert list(Mine().shuffle(seed=1)) == [[7, 14, 21][i] for i in MapDataset.range(3).shuffle(seed=1)]

    class Combined(MapDataset, abc.ABC):
        @abc.abstractmethod
        def extra(self): ...

    with pytest.raises(TypeError):
        Combined()
    assert list(Combined.range(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "args", [(3,), (0,), (-2,), (2, 7), (7, 2), (0, 10, 3), (10, 0, -3), (0, 0), (-5, 5, 2), (np.int64(2), np.int8(9))]
)
def test_range(args):
    ds = MapDataset.range(*args)
    expected = list(range(*args))
    assert len(ds) == len(expected) and list(ds) == expected
    assert all(type(x) is int for x in ds)


def test_range_with_a_step_alone():
    assert list(MapDataset.range(7, step=3)) == [0, 3, 6]
    ds = MapDataset.range(1, 9, 2)
    assert (ds.start, ds.stop, ds.step) == (1, 9, 2)
    assert str(MapDataset.range(3)) == "RangeMapDataset(start=0, stop=3, step=1)"


def test_lengths_beyond_the_largest_are_the_largest():
    assert len(MapDataset.range(2**80)) == sys.maxsize
    assert MapDataset.range(2**80)[2**79] == 2**79
    assert len(TEN.repeat()) == len(TEN.repeat(sys.maxsize)) == sys.maxsize
    assert len(TEN.repeat().batch(1)) == sys.maxsize
    assert len(TEN.repeat().batch(3)) == -(-sys.maxsize // 3)
    assert len(TEN.repeat().batch(3, drop_remainder=True)) == sys.maxsize // 3
    assert len(TEN.repeat()[::2]) == -(-sys.maxsize // 2)
    assert len(TEN.repeat().shuffle(seed=1)) == sys.maxsize


def test_endless_data_sets():
    assert [MapDataset.range(6).repeat().shuffle(seed=5)[i] for i in range(6)] == [0, 3, 4, 1, 2, 1]
    assert list(itertools.islice(TEN.repeat(), 23)) == [i % 10 for i in range(23)]
    assert list(itertools.islice(TEN.repeat()[5:], 3)) == [5, 6, 7]
    far = TEN.repeat().batch(4, batch_fn=list)
    assert far[10**15] == [(4 * 10**15 + i) % 10 for i in range(4)]
    assert bool(TEN.repeat())
    assert 3 in TEN.repeat()
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
    ):  # fmt: skip
        assert len(ds) == 0 and not ds
        assert list(ds) == []
        assert iter(ds).get_state() == {"next_index": 0}
        for index in (0, 1, -1, 2**70):
            with pytest.raises(IndexError, match="empty"):
                ds[index]


def test_container_protocols():
    sparse = MapDataset.source([1, None, 3])
    assert list(sparse) == [1, 3]
    assert sum(sparse) == 4
    assert list(reversed(sparse)) == [3, None, 1]
    one, two = sparse
    assert (one, two) == (1, 3)
    assert 3 in sparse and 2 not in sparse
    assert isinstance(iter(sparse), DatasetIterator)
    assert not hasattr(iter(sparse), "__len__")


def test_every_method_leaves_the_data_set_alone():
    ds = MapDataset.source([3, 1, 2])
    before = list(ds)
    made = [ds.map(str), ds.shuffle(seed=1), ds[1:], ds.repeat(2), ds.batch(2), ds.seed(1), ds.filter(bool), ds.to_iter_dataset()]
    assert all(other is not ds and other.parents == (ds,) for other in made)
    assert list(ds) == before and ds.parents == ()


def test_slices_are_those_of_lists():
    numbers = list(range(10))
    bounds = [None, 0, 1, 5, 9, 10, 20, -1, -3, -10, -20]
    for start, stop in itertools.product(bounds, bounds):
        for step in (None, 1, 2, 3, 11, -1, -2, -11):
            sl = slice(start, stop, step)
            assert list(TEN[sl]) == numbers[sl]
            assert list(TEN.slice(sl)) == numbers[sl]
    assert str(MapDataset.range(5)[::-1]) == "SliceMapDataset[4:-1:-1]"
    assert list(TEN[np.int64(2) : np.int64(5)]) == [2, 3, 4]


def test_slices_by_indices():
    ds = MapDataset.range(6).map_with_index(lambda i, x: (i, x))
    for indices in ([3, 1, 4, 1, 5], (3, 1, 4, 1, 5), np.array([3, 1, 4, 1, 5]), MapDataset.source([3, 1, 4, 1, 5])):
        taken = ds.slice(indices)
        assert len(taken) == 5
        assert list(taken) == [(i, i) for i in (3, 1, 4, 1, 5)]
        assert taken[7] == (10, 4)
        assert list(taken[1::2]) == [(1, 1), (1, 1)]
    assert ds.slice([-1, 6])[0] == (-1, 5) and ds.slice([-1, 6])[1] == (6, 0)
    assert list(ds.slice([True, False])) == [(1, 1), (0, 0)]
    assert list(ds.slice(np.array([True, False]))) == [(1, 1), (0, 0)]
    growing = [2]
    taken = ds.slice(growing)
    growing.append(4)
    assert len(taken) == 2 and list(taken) == [(2, 2), (4, 4)]
    assert str(MapDataset.range(9).slice([3, 1, 4, 1, 5])) == "ReindexMapDataset(indices=[3, 1, 4, 1, 5], len=5)"
    assert str(MapDataset.range(9).slice(range(8))) == "ReindexMapDataset(indices=[0, 1, ..., 6, 7], len=8)"


def test_a_description_shows_only_the_first_of_many_indices():
    shown = []

    class Index(int):
        def __repr__(self):
            shown.append(self)
            return int.__repr__(self)

    few, many = ([Index(7)] * n for n in (3, 100_000))
    assert "indices=[7, 7, 7]" in complete_repr(MapDataset.range(10).slice(few))
    assert "indices=[7, 7, 7, 7," in complete_repr(MapDataset.range(10).slice(many))
    assert len(shown) < 1000


def test_only_the_needed_entry_of_an_index_sequence_is_read():
    asked = []

    class Entries:
        def __len__(self):
            return 1000

        def __getitem__(self, i):
            asked.append(i)
            return i // 100

    assert TEN.slice(Entries())[1500] == 5
    assert asked == [500]


def test_repeat():
    ds = MapDataset.range(3).shuffle(seed=1)
    assert list(ds.repeat(2)) == [*ds, *[ds[i] for i in range(3, 6)]]
    assert list(ds.repeat(2, reseed_each_epoch=False)) == [*ds, *ds]
    assert sorted(ds.repeat(2)) == [0, 0, 1, 1, 2, 2]
    assert list(MapDataset.range(2).repeat(np.int64(2))) == [0, 1, 0, 1]
    assert str(ds.repeat(2)) == "RepeatMapDataset(num_epochs=2)"
    assert str(ds.repeat()) == "RepeatMapDataset(num_epochs=None)"


def test_batch():
    assert [b.tolist() for b in MapDataset.range(5).batch(2)] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in MapDataset.range(5).batch(np.int8(2), drop_remainder=True)] == [[0, 1], [2, 3]]
    assert MapDataset.range(5).batch(2)[3].tolist() == [0, 1]  # batches never straddle epochs
    assert MapDataset.range(5).batch(2).shuffle(seed=0)[7].tolist() in ([0, 1], [2, 3], [4])
    assert str(TEN.batch(2)) == "BatchMapDataset(batch_size=2, drop_remainder=False)"
    seen = []
    list(MapDataset.source([1, None, 3]).batch(2, batch_fn=lambda xs: seen.append(xs)).to_iter_dataset(ReadOptions(0)))
    assert seen == [[1, None], [3]]


def test_batching_holes_is_explained():
    ds = MapDataset.range(4).map(lambda x: x if x % 2 else None).batch(2)
    with pytest.raises(ValueError) as caught:
        ds[0]
    assert "to_iter_dataset()" in "".join(caught.value.__notes__)


def test_first_values_of_the_specification():
    assert list(MapDataset.range(5).shuffle(seed=0)) == [0, 4, 1, 2, 3]
    assert [MapDataset.range(5).shuffle(seed=0)[i] for i in range(5, 10)] == [1, 2, 3, 0, 4]
    assert list(MapDataset.range(10).shuffle(seed=42)) == [8, 6, 7, 9, 0, 5, 1, 2, 4, 3]
    tutorial = MapDataset.source(list(range(11))).shuffle(seed=10).map(lambda x: x + 1).batch(2)
    assert [b.tolist() for b in tutorial] == [[6, 11], [2, 10], [3, 5], [1, 4], [8, 9], [7]]
    assert tutorial[8].tolist() == [7, 3]


def test_user_code_gets_built_in_integers():
    kinds = set()

    def remember(i, x=0):
        kinds.update((type(i), type(x)))
        return i

    class Source:
        def __len__(self):
            return 50

        def __getitem__(self, key):
            kinds.add(type(key))
            return key

    ds = MapDataset.source(Source()).shuffle(seed=1)[::-2].map_with_index(remember).repeat(2).map(remember)
    list(ds)
    list(ds.batch(7))
    ds[np.int64(3)]
    ds._block(np.arange(5))
    ds._block(np.array([2**70, 3], dtype=object))
    list(ds.to_iter_dataset().map_with_index(remember))
    assert kinds == {int}


def test_none_skips_user_code():
    calls = []

    def note(*args):
        calls.append(args)
        return 1

    ds = MapDataset.source([None, 5])
    for made in (ds.map(note), ds.map_with_index(note), ds.random_map(note, seed=1), ds.filter(note)):
        assert made[0] is None
        assert made[1] is not None
    assert len(calls) == 4


def test_filter_goes_by_truth():
    assert list(MapDataset.source([0, "", "a", [], 2]).filter(lambda x: x)) == ["a", 2]
    with pytest.raises(ValueError, match="ambiguous"):
        MapDataset.source([np.arange(3)]).filter(lambda x: x > 0)[0]
    assert len(TEN.filter(lambda x: False)) == 10


class AddOne(Map):
    def map(self, x):
        return x + 1

    def __call__(self, x):
        raise AssertionError("the method comes first")


class Both(Map, Filter, RandomMap, MapWithIndex):
    """Inherits from several classes: each method of the data set uses its own."""

    def map(self, x):
        return ("map", x)

    def filter(self, x):
        return x % 2 == 0

    def random_map(self, x, rng):
        return ("random", x, int(rng.integers(10)))

    def map_with_index(self, i, x):
        return ("index", i, x)


def test_transform_objects():
    assert list(MapDataset.range(2).map(AddOne())) == [1, 2]
    two = MapDataset.range(2)
    assert list(two.map(Both())) == [("map", 0), ("map", 1)]
    assert list(two.filter(Both())) == [0]
    assert [x[0] for x in two.random_map(Both(), seed=1)] == ["random", "random"]
    assert list(two.map_with_index(Both())) == [("index", 0, 0), ("index", 1, 1)]
    with pytest.raises(TypeError, match="Map"):

        class OnlyFilter(Filter):
            def filter(self, x):
                return True

        two.map(OnlyFilter())


def test_exceptions_of_user_code_arrive_as_they_are():
    cause = KeyError("inner")

    def fail(x):
        raise OSError(3, "text") from cause

    for ds in (TEN.map(fail), TEN.filter(fail), TEN.batch(2, batch_fn=fail)):
        with pytest.raises(OSError) as caught:
            ds[1]
        assert caught.value.args == (3, "text") and caught.value.__cause__ is cause
        with pytest.raises(OSError) as caught:
            next(iter(ds.to_iter_dataset()))
        assert caught.value.args == (3, "text") and caught.value.__cause__ is cause


def test_pipe():
    def call(*args, **kwargs):
        return args, kwargs

    for ds in (TEN, TEN.to_iter_dataset()):
        assert ds.pipe(call, 1, func=2, self=3) == ((ds, 1), {"func": 2, "self": 3})
        assert ds.pipe(lambda ds: ds) is ds
        with pytest.raises(TypeError):
            ds.pipe(func=call)


def test_to_iter_dataset():
    assert isinstance(TEN.to_iter_dataset(), IterDataset)
    assert str(TEN.to_iter_dataset()) == (
        "PrefetchIterDataset(read_options=ReadOptions(num_threads=16, prefetch_buffer_size=0), allow_nones=False)"
    )
    assert "prefetch_buffer_size=500" in str(TEN.map(identity).to_iter_dataset())
    sparse = MapDataset.source([None, 1, None])
    assert list(sparse.to_iter_dataset()) == [1]
    assert list(sparse.to_iter_dataset(allow_nones=True)) == [None, 1, None]
    with pytest.raises(TypeError):
        TEN.to_iter_dataset(ReadOptions(), True)


def test_texts():
    ds = MapDataset.source([1])
    assert str(ds) == "SourceMapDataset(source=list)"
    assert str(ds.map(len)) == "MapMapDataset(transform=len)"
    assert "identity @ " in str(ds.map(identity)) and "test_map_dataset.py:" in str(ds.map(identity))
    assert str(ds.map(AddOne())) == "MapMapDataset(transform=AddOne)"
    assert str(ds.filter(Both())) == "FilterMapDataset(transform=Both)"
    assert str(ds.map_with_index(Both())) == "MapWithIndexMapDataset(transform=Both)"
    assert str(ds.random_map(Both(), seed=1)) == "RandomMapMapDataset(transform=Both)"
    assert str(ds.shuffle(seed=1)) == "ShuffleMapDataset"


@pytest.mark.parametrize("bad", [{1: 2}, np.array(3), np.zeros((2, 2), int), "012", {1, 2}])
def test_slice_takes_sequences_only(bad):
    for error in (TypeError, ValueError):  # Python's, and Grain's
        with pytest.raises(error, match="sl must be a slice or a sequence of indices"):
            MapDataset.range(5).slice(bad)
