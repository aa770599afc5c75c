"""Promises of ``MapDataset`` beyond the laws: values, lengths, texts, sources, seeds, ``apply``,
checks of arguments.
"""

import abc
import itertools
import sys

import numpy as np
import pytest
from refusing import assert_raises
from users_datasets import BareMap, BareStream

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset, MapDatasetMeta
from gristmill.dataset.descriptions.pipeline import complete_repr
from gristmill.experimental import WithOptionsIterDataset, apply_transformations
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap, TfRandomMap

TEN = MapDataset.range(10)
FILTERED = TEN.filter(bool)
NO_SLICES = (5, "12", {1, 2}, {1: 2}, np.array(3), np.zeros((2, 2), int))
NO_INDICES = (2.0, "2", None, [1, 2], np.float64(1))


def identity(x):
    return x


WRONG = [
    # what is called, with what, error, words that the message has besides the value: the parameter,
    # the remedy
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
    (lambda x: TEN.batch(2, batch_fn=x), (3,), TypeError, "batch_fn"),
    *[
        (TEN.slice, NO_SLICES, error, "sl must be a slice or a sequence of indices")
        for error in (TypeError, ValueError)
    ],
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
    (
        MapDataset.source([np.arange(3)]).filter(lambda x: x > 0).__getitem__,
        (0,),
        ValueError,
        "ambiguous",
    ),
    (MapDataset, (), TypeError, "abstract"),
    (
        type("NoLength", (MapDataset,), {"__getitem__": lambda self, index: index}),
        (),
        TypeError,
        "__len__",
    ),
    (
        TEN.map,
        (type("OnlyFilter", (Filter,), {"filter": lambda self, x: True})(),),
        TypeError,
        "Map",
    ),
]


@pytest.mark.parametrize(
    ("call", "args", "error", "words"),
    [(call, (x,), error, f"{x!r}; {words}") for call, values, error, words in WRONG for x in values]
    + REFUSED,
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


def test_range_and_lengths_beyond_the_largest():
    for args in [
        (3,),
        (0,),
        (-2,),
        (2, 7),
        (7, 2),
        (0, 10, 3),
        (10, 0, -3),
        (0, 0),
        (-5, 5, 2),
        (np.int64(2), np.int8(9)),
    ]:
        ds = MapDataset.range(*args)
        assert list(ds) == list(range(*args)) and len(ds) == len(range(*args))
        assert all([type(x) is int for x in ds])
    assert list(MapDataset.range(7, step=3)) == [0, 3, 6]
    ds = MapDataset.range(1, 9, 2)
    assert (ds.start, ds.stop, ds.step) == (1, 9, 2)
    endless = TEN.repeat()
    assert MapDataset.range(2**80)[2**79] == 2**79
    for ds in (
        MapDataset.range(2**80),
        endless,
        TEN.repeat(sys.maxsize),
        endless.batch(1),
        endless.shuffle(seed=1),
    ):
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


def test_container_protocols_also_of_empty_data_sets():
    sparse = MapDataset.source([1, None, 3])
    one, two = sparse
    assert (one, two, sum(sparse)) == (1, 3, 4)
    assert list(reversed(sparse)) == [3, None, 1]
    assert 3 in sparse and 2 not in sparse
    assert isinstance(iter(sparse), DatasetIterator)
    assert len(iter(sparse)) == len(sparse.to_iter_dataset()) == 3  # missing elements count
    # Every method leaves the data set alone.
    ds = MapDataset.source([3, 1, 2])
    made = [
        ds.map(str),
        ds.shuffle(seed=1),
        ds[1:],
        ds.repeat(2),
        ds.batch(2),
        ds.seed(1),
        ds.filter(bool),
        ds.to_iter_dataset(),
    ]
    assert all([other is not ds and other.parents == (ds,) for other in made])
    assert list(ds) == [3, 1, 2] and ds.parents == ()
    empty = MapDataset.source([])
    without = [
        empty.map(identity),
        empty.repeat(),
        empty[2:],
        TEN[5:5],
        TEN.slice([]),
        TEN.batch(11, drop_remainder=True),
    ]
    without += [
        empty.repeat(2, reseed_each_epoch=False),
        empty.window_shuffle(3, seed=1),
        empty.shuffle(seed=1).batch(3)[1:].repeat(),
    ]
    for ds in without:
        assert (len(ds), bool(ds), list(ds), iter(ds).get_state()) == (
            0,
            False,
            [],
            {"next_index": 0},
        )
        for index in (0, 1, -1, 2**70):
            assert_raises(IndexError, "empty", ds.__getitem__, index)


def test_slices_are_those_of_lists_or_by_indices():
    bounds = [None, 0, 1, 9, 10, 20, -1, -10]
    for sl in itertools.starmap(
        slice, itertools.product(bounds, bounds, (None, 1, 2, 3, 11, -1, -2, -11))
    ):
        assert list(TEN[sl]) == list(TEN.slice(sl)) == list(range(10))[sl]
    assert list(TEN[np.int64(2) : np.int64(5)]) == [2, 3, 4]
    # By indices.
    ds = MapDataset.range(6).map_with_index(lambda i, x: (i, x))
    for indices in (
        [3, 1, 4, 1, 5],
        (3, 1, 4, 1, 5),
        np.array([3, 1, 4, 1, 5]),
        MapDataset.source([3, 1, 4, 1, 5]),
    ):
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


@pytest.mark.filterwarnings("ignore:.*takes every n-th element")
def test_repeat_batch_filter_and_starts_anywhere():
    assert list(MapDataset.range(2).repeat(np.int64(2))) == [0, 1, 0, 1]
    assert [b.tolist() for b in MapDataset.range(5).batch(np.int8(2), drop_remainder=True)] == [
        [0, 1],
        [2, 3],
    ]
    seen = []
    list(
        MapDataset.source([1, None, 3])
        .batch(2, batch_fn=lambda xs: seen.append(xs))
        .to_iter_dataset(ReadOptions(0))
    )
    assert seen == [[1, None], [3]]
    tutorial = MapDataset.source(list(range(11))).shuffle(seed=10).map(lambda x: x + 1).batch(2)
    assert [b.tolist() for b in tutorial] == [[6, 11], [2, 10], [3, 5], [1, 4], [8, 9], [7]]
    assert tutorial[8].tolist() == [7, 3]  # batches never straddle epochs
    assert list(MapDataset.source([0, "", "a", [], 2]).filter(lambda x: x)) == ["a", 2]
    assert len(TEN.filter(lambda x: False)) == 10
    assert MapDataset.source([None]).filter(lambda x: x > 0)[0] is None
    with pytest.raises(ValueError) as caught:
        MapDataset.source([1, None]).batch(2)[0]
    assert "to_iter_dataset()" in "".join(caught.value.__notes__)
    read = []
    ds = MapDataset.range(1000).map(lambda x: read.append(x) or x)
    mixed = MapDataset.mix(
        [ds.shuffle(seed=1).repeat(), ds.seed(2).shuffle().repeat()], weights=[1, 3]
    )[3::8]
    mixed = mixed.map(lambda x: x + 1)
    assert not read  # sharding, repeating, mixing and shuffling know only indices
    assert isinstance(mixed[10**9], int) and len(read) == 1
    ds = ds.shuffle(seed=8).random_map(lambda x, rng: (x, int(rng.integers(10**6))), seed=3)
    for position in (0, 1, 57, 999):
        expected = [ds[i] for i in range(position, min(position + 3, 1000))]
        read.clear()
        it = iter(ds.to_iter_dataset(ReadOptions(0)))
        it.set_state({"next_index": position})
        assert list(itertools.islice(it, 3)) == expected and len(read) <= 4


methods = {
    "map": lambda self, x: ("map", x),
    "filter": lambda self, x: x % 2 == 0,
    "random_map": lambda self, x, rng: ("random", x),
    "map_with_index": lambda self, i, x: ("index", i, x),
    "__call__": lambda self, x: 1 // 0,  # the method comes first
}
# each method of the data set uses its own
All = type("All", (Map, Filter, RandomMap, MapWithIndex), methods)


def test_transform_objects_texts_pipe_and_to_iter_dataset():
    two = MapDataset.range(2)
    for ds, elements, text in [
        (two.map(All()), [("map", 0), ("map", 1)], "MapMapDataset(transform=All)"),
        (two.filter(All()), [0], "FilterMapDataset(transform=All)"),
        (
            two.random_map(All(), seed=1),
            [("random", 0), ("random", 1)],
            "RandomMapMapDataset(transform=All)",
        ),
        (
            two.map_with_index(All()),
            [("index", 0, 0), ("index", 1, 1)],
            "MapWithIndexMapDataset(transform=All)",
        ),
        (MapDataset.source([1]), [1], "SourceMapDataset(source=list)"),
        (MapDataset.range(3), [0, 1, 2], "RangeMapDataset(start=0, stop=3, step=1)"),
        (two[::-1], [1, 0], "SliceMapDataset[1:-1:-1]"),
        (
            TEN.slice([3, 1, 4, 1, 5]),
            [3, 1, 4, 1, 5],
            "ReindexMapDataset(indices=[3, 1, 4, 1, 5], len=5)",
        ),
        (
            TEN.slice(range(8)),
            list(range(8)),
            "ReindexMapDataset(indices=[0, 1, ..., 6, 7], len=8)",
        ),
        (two.repeat(2), [0, 1, 0, 1], "RepeatMapDataset(num_epochs=2)"),
        (two[:0].repeat(), [], "RepeatMapDataset(num_epochs=None)"),
        (
            two.batch(3, batch_fn=list),
            [[0, 1]],
            "BatchMapDataset(batch_size=3, drop_remainder=False)",
        ),
        (two[:1].shuffle(seed=1), [0], "ShuffleMapDataset"),
    ]:
        assert list(ds) == elements and str(ds) == text
    assert str(two.map(len)) == "MapMapDataset(transform=len)"
    assert "identity @ " in str(two.map(identity))
    assert "test_map_dataset.py:" in str(two.map(identity))

    def call(*args, **kwargs):
        return args, kwargs

    for ds in (TEN, TEN.to_iter_dataset()):
        assert ds.pipe(call, 1, func=2, self=3) == ((ds, 1), {"func": 2, "self": 3})
        assert ds.pipe(lambda ds: ds) is ds
        assert_raises(TypeError, None, ds.pipe, func=call)
    assert isinstance(TEN.to_iter_dataset(), IterDataset)
    assert (
        str(TEN.to_iter_dataset())
        == "PrefetchIterDataset(read_options=ReadOptions(num_threads=16, prefetch_buffer_size=0),"
        " allow_nones=False)"
    )
    assert "prefetch_buffer_size=500" in str(TEN.map(identity).to_iter_dataset())


class TorchLike:
    """A map-style data set of PyTorch: ``__getitem__`` and ``__len__`` alone."""

    paths = ["a", "b"]  # noqa: RUF012

    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert type(index) is int and 0 <= index < 5
        return {"x": index}


class TfdsLike(TorchLike):
    """Sources of TFDS and Hugging Face read many records at once."""

    def __init__(self):
        self.calls = []

    def __getitems__(self, keys):
        self.calls.append(list(keys))
        return [self[key] for key in keys]


ROWS = [{"x": i} for i in range(5)]
SOURCES = [
    *[
        (source, list(source))
        for source in ([1, "a", (2,)], (1, 2, 3), range(3, 30, 7), bytearray(b"xy"))
    ],
    (MapDataset.range(5), [*range(5)]),
    ({0: "a", 1: "b"}, ["a", "b"]),
    (TorchLike(), ROWS),
    (TfdsLike(), ROWS),
]


def test_a_batch_is_one_vectored_read_of_any_source():
    for source, records in SOURCES:
        ds, n = MapDataset.source(source), len(records)
        assert (
            [ds[i] for i in range(-n, 2 * n)]
            == list(ds._gm_items(range(-n, 2 * n)))
            == 3 * list(ds)
            == 3 * records
        )
    source = TfdsLike()
    MapDataset.source(source).repeat().batch(8)[0]
    assert source.calls == [[0, 1, 2, 3, 4, 0, 1, 2]]
    array = np.arange(12).reshape(4, 3)
    ds = MapDataset.source(array)
    assert len(ds) == 4
    assert np.array_equal(np.stack([*list(ds._gm_items([3, 0, 7])), ds[-1]]), array[[3, 0, 3, 3]])
    assert [batch.tolist() for batch in ds.batch(3)] == [array[:3].tolist(), array[3:].tolist()]


def test_sources_that_grow_and_what_they_may_lack():
    records = [1, 2]
    ds = MapDataset.source(records)
    fixed, shuffled = ds.repeat(1), ds.shuffle(seed=1)
    assert ds[2] == 1 and sorted(shuffled) == [1, 2]
    records.append(3)
    assert len(ds) == len(ds.map(str)) == 3
    assert ds[2] == 3
    assert list(ds) == sorted(shuffled) == [1, 2, 3]
    assert len(fixed) == 2
    it = iter(ds)
    records.append(4)
    assert list(it) == [1, 2, 3]  # the length was read when the iterator was made
    assert list(ds) == [1, 2, 3, 4]

    def source(**methods):
        return type("Source", (), {f"__{name}__": method for name, method in methods.items()})()

    def fail(self, *args):
        raise OSError("disk")

    # a source without length gets the index as it is
    ds = MapDataset.source(source(getitem=lambda self, index: index))
    assert ds[10**20] == 10**20 and ds[-7] == -7
    for function in (len, iter):  # and nothing on stderr when the half-made iterator goes
        assert_raises(TypeError, "len", function, ds)
    assert_raises(KeyError, None, MapDataset.source({"a": 1, 1: 2}).__getitem__, 0)
    assert list(MapDataset.source([None, 0, None, False])) == [0, False]
    found = str(MapDataset.source(source(len=fail, getitem=fail)).map(str).shuffle(seed=1))
    assert found == "ShuffleMapDataset"
    assert MapDataset.source(TorchLike()).paths == ["a", "b"] and MapDataset.source([1]).paths == []
    ds = MapDataset.source(
        source(len=lambda self: 5, getitem=lambda self, index: index if index != 3 else fail(self))
    )
    it = iter(ds)
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    for read in (lambda: ds[3], lambda: next(it)):
        assert_raises(OSError, "disk", read)  # as it is


NINE = MapDataset.range(9)
SEEDED = NINE.seed(42)
STREAM = SEEDED.to_iter_dataset()


def derived(*entropy):
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


def draw(x, rng):
    return int(rng.integers(10**9))


Joined = type("Joined", (BareMap,), {"__init__": MapDataset.__init__})
NEAR, FAR = MapDataset.range(3).seed(1).shuffle(), MapDataset.range(3).map(str).seed(2)
SEEDS = [
    (SEEDED.shuffle(), 3329053876, (42, 1)),
    # Distance counts and nothing else.
    *[
        (ds.shuffle(), 955475868, (42, 2))
        for ds in (SEEDED.map(str), SEEDED[1:], SEEDED.repeat(2), SEEDED.batch(2))
    ],
    (SEEDED.filter(str).shuffle(), None, (42, 2)),
    (STREAM.random_map(draw), None, (42, 2)),
    (WithOptionsIterDataset(STREAM, DatasetOptions()).random_map(str), None, (42, 3)),
    (STREAM.seed(5).random_map(str), None, (5, 1)),
    # The nearest seed counts; ``None`` is no seed point, but a stage.
    (NINE.seed(1).map(str).seed(2).shuffle(), None, (2, 1)),
    (NINE.seed(1).map(str).seed(2).seed(None).shuffle(), None, (2, 2)),
    (NINE.seed(1).shuffle(seed=5).shuffle(), None, (1, 2)),
    # Seeds of any size
    (NINE.seed(2**32).shuffle(), None, (2**32, 1)),
    (NINE.seed(2**200).shuffle(), None, (2**200, 1)),
    (NINE.seed(np.uint32(7)).shuffle(), None, (7, 1)),
    # Several parents level by level, counted on each path
    (Joined([NEAR, FAR, MapDataset.range(3)]).map(str), None, (2, 2, 1, 3)),
    (Joined([FAR, FAR]), None, (2, 1, 2, 1)),
    # The walk ends at classes that know nothing of it.
    (BareMap(3).seed(1).shuffle(), None, (1, 1)),
    (BareStream(3).seed(1).random_map(str), None, (1, 1)),
]


def test_the_default_seed_and_missing_ones():
    for ds, number, entropy in SEEDS:
        assert ds._default_seed == derived(*entropy)
        assert number in (None, ds._default_seed)
        assert ds._default_seed.dtype == np.uint32
    for ds, same in [
        (SEEDED.shuffle(), SEEDED.shuffle(seed=derived(42, 1))),
        (SEEDED.random_map(draw), SEEDED.random_map(draw, seed=derived(42, 1))),
        (STREAM.random_map(draw), STREAM.random_map(draw, seed=derived(42, 2))),
        (
            SEEDED.shuffle().shuffle(),
            SEEDED.shuffle(seed=derived(42, 1)).shuffle(seed=derived(42, 2)),
        ),
    ]:
        assert list(ds) == list(same)
    assert derived(2**32, 1) != derived(0, 1)
    assert len(list(NINE.random_map(draw, seed=2**40))) == 9
    for ds in (NINE, NINE.to_iter_dataset(), NINE.seed(None), BareMap(3), BareStream(3)):
        assert ds._default_seed is None
        for method in {"shuffle", "random_map"} & {*dir(ds)}:
            with pytest.raises(ValueError, match=r"ds\.seed\(seed\)"):
                getattr(ds, method)(*[str] * (method == "random_map"))
    assert_raises(ValueError, r"ds\.seed\(seed\)", NINE.shuffle(seed=1).shuffle)


AddOne = type("AddOne", (Map,), {"map": lambda self, x: x + 1})
Odd = type("Odd", (Filter,), {"filter": lambda self, x: x % 2 == 1})
Numbered = type("Numbered", (MapWithIndex,), {"map_with_index": lambda self, i, x: (i, x)})
Draw = type("Draw", (RandomMap,), {"random_map": lambda self, x, rng: (x, int(rng.integers(100)))})
Tf = type("Tf", (TfRandomMap,), {"np_random_map": lambda self, x, rng: x})
# Of two classes, the one that comes first in the order of dispatch counts, not in the list of
# bases.
MapAndFilter = type("MapAndFilter", (Odd, AddOne), {})
IndexAndRandom = type("IndexAndRandom", (Numbered, Draw), {})
BatchAndMap = type("BatchAndMap", (Batch, AddOne), {})


def test_what_becomes_of_them():
    ds, stream = MapDataset.range(6).seed(7), MapDataset.range(6).to_iter_dataset().seed(7)
    drawn = list(ds.random_map(Draw()))
    for transforms, expected in [
        (AddOne(), [1, 2, 3, 4, 5, 6]),
        ([AddOne(), Numbered()], [(i, i + 1) for i in range(6)]),
        ((AddOne(), Numbered()), [(i, i + 1) for i in range(6)]),
        ([Odd()], [1, 3, 5]),
        (Batch(4, batch_fn=list), [[0, 1, 2, 3], [4, 5]]),
        (Batch(4, True, list), [[0, 1, 2, 3]]),
        (MapAndFilter(), [1, 2, 3, 4, 5, 6]),
        (BatchAndMap(4, batch_fn=list), [[0, 1, 2, 3], [4, 5]]),
        (Draw(), drawn),
        (IndexAndRandom(), drawn),
    ]:
        assert list(ds.apply(transforms)) == list(apply_transformations(ds, transforms)) == expected
        assert list(stream.apply(transforms)) == (
            expected if expected is not drawn else list(stream.random_map(Draw()))
        )
    assert ds.apply([]) is ds and stream.apply([]) is stream
    for wrong, match in ((Draw(), "seed"), (Batch(0), "batch_size")):
        assert_raises(ValueError, match, MapDataset.range(3).apply, wrong)
    for wrong in (lambda x: x, 3, None, "map", Tf(), AddOne, (x for x in [AddOne()]), {AddOne()}):
        for ds in (MapDataset.range(3), MapDataset.range(3).to_iter_dataset()):
            for argument in (wrong, [AddOne(), wrong]):
                assert_raises(NotImplementedError, type(wrong).__name__, ds.apply, argument)
