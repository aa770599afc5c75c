"""Habits from other libraries: they work here, or an error says what to write, and what it says to
write works.
"""

import collections
import copy
import functools
import inspect
import itertools
import operator
import pathlib
import pickle
import re
from typing import Protocol, runtime_checkable

import cloudpickle
import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill import IterDataset, MapDataset, transforms
from gristmill.core.errors import KeyRangeError
from gristmill.dataset.bases.migration_hints import OF_MAP_DATASETS, OF_STREAMS
from gristmill.sources.columns import ColumnsDataSource
from gristmill.testing import assert_source_conforms

FIVE = MapDataset.range(5)
STREAM = FIVE.to_iter_dataset()
# Class, name, what the hint says to write, and what that gives for 0…4.
ADVICE = [
    (FIVE, "take", "ds[:n]", [0, 1]),
    (FIVE, "skip", "ds[n:]", [2, 3, 4]),
    (FIVE, "limit", "ds[:n]", [0, 1]),
    (FIVE, "shard", "ds[index::num_shards]", [1, 4]),
    (FIVE, "select", "ds.slice(indices)", [4, 0]),
    (FIVE, "enumerate", "ds.map_with_index(lambda i, x: (i, x))", [(i, i) for i in range(5)]),
    (FIVE, "concatenate", "grain.MapDataset.concatenate([ds, other])", [0, 1, 2, 3, 4, 7]),
    (FIVE, "rebatch", "ds.to_iter_dataset().rebatch(n)", None),
    (FIVE, "unbatch", "ds.flat_map(rows, max_fan_out=n)", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    (FIVE, "thread_prefetch", "ds.to_iter_dataset().thread_prefetch(n)", [*range(5)]),
    (
        FIVE,
        "multithread_prefetch",
        "ds.to_iter_dataset().multithread_prefetch(num_threads, buffer_size)",
        [*range(5)],
    ),
    (FIVE, "train_test_split", "ds.split({'train': 0.9, 'test': 0.1}, seed=0)", None),
    (FIVE, "prefetch", "mp_prefetch", None),
    (FIVE, "cardinality", "len(ds)", 5),
    (
        FIVE,
        "element_spec",
        "grain.experimental.get_element_spec(ds)",
        grain.experimental.ShapeDtypeStruct((), np.int64),
    ),
    (STREAM, "take", "ds.limit(n)", [0, 1]),
    (STREAM, "skip", "itertools.islice(ds, n, None)", [2, 3, 4]),
    (STREAM, "enumerate", "ds.map_with_index(lambda i, x: (i, x))", [(i, i) for i in range(5)]),
    (
        STREAM,
        "concatenate",
        "grain.MapDataset.source([ds, other]).interleave(cycle_length=1)",
        [0, 1, 2, 3, 4, 7],
    ),
    (STREAM, "cardinality", "operator.length_hint(ds)", 5),
    (STREAM, "shuffle", "before to_iter_dataset()", None),
    (STREAM, "shuffle", "ds.window_shuffle(window_size, seed=", None),
    (STREAM, "interleave", "MapDataset.source(paths).interleave(", None),
    (STREAM, "unbatch", "ds.flat_map(rows)", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    (STREAM, "to_iter_dataset", "a stream already", None),
    (
        MapDataset,
        "from_tensor_slices",
        "MapDataset.source({'x': x, 'y': y})",
        [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}],
    ),
    (IterDataset, "range", "MapDataset.range(n).to_iter_dataset()", [0, 1]),
]


@pytest.mark.parametrize(("ds", "name", "advice", "gives"), ADVICE)
def test_what_the_error_says_to_write(ds, name, advice, gives):
    assert (
        not hasattr(ds, name) and getattr(ds, name, "nothing") == "nothing" and name not in dir(ds)
    )
    with pytest.raises(AttributeError) as caught:
        getattr(ds, name)
    assert f"has no attribute '{name}': " in str(caught.value) and advice in str(caught.value)
    if gives is None:
        return
    other = MapDataset.source([7]) if ds is FIVE else MapDataset.source([7]).to_iter_dataset()
    names = {
        "ds": ds,
        "other": other,
        "n": 2,
        "x": [1, 2],
        "y": ["a", "b"],
        "index": 1,
        "num_shards": 3,
        "indices": [4, 0],
    }
    names |= {"num_threads": 1, "buffer_size": 1, "rows": lambda x: [x, x]}
    found = eval(
        advice, vars(grain) | {"grain": grain, "itertools": itertools, "operator": operator} | names
    )
    assert (
        found if isinstance(gives, int | grain.experimental.ShapeDtypeStruct) else list(found)
    ) == gives


@pytest.mark.parametrize(
    ("ds", "name"), [(FIVE, n) for n in OF_MAP_DATASETS] + [(STREAM, n) for n in OF_STREAMS]
)
def test_a_name_with_a_hint_is_no_attribute(ds, name):
    assert_raises(AttributeError, f"no attribute '{name}': .{{8}}", getattr, ds, name)
    asks = runtime_checkable(type("Asks", (Protocol,), {name: lambda self: None}))
    assert not isinstance(ds, asks) and not issubclass(type(ds), asks)
    assert inspect.getattr_static(ds, name, None) is None
    assert name not in dir(ds) and name not in dir(type(ds))
    assert hasattr(type(ds), name) == hasattr(type(type(ds)), name)  # true for a factory


def test_a_stream_is_no_source_for_other_libraries():
    @runtime_checkable
    class RandomAccess(Protocol):
        def __len__(self): ...

        def __getitem__(self, index): ...

    assert isinstance(FIVE, RandomAccess) and issubclass(MapDataset, RandomAccess)
    assert not isinstance(STREAM, RandomAccess) and not issubclass(IterDataset, RandomAccess)


class Delegating:
    def __getattr__(self, name):
        if name.startswith("of_"):
            return name
        raise AttributeError(f"no {name} here")


class Wrapping(MapDataset, Delegating):
    __len__, __getitem__ = (lambda self: 1), (lambda self, index: index)


def test_attributes_and_errors_of_users_classes_are_their_own():
    assert Wrapping().of_another_base == "of_another_base"
    assert_raises(AttributeError, "no take here", getattr, Wrapping(), "take")
    own = type("Own", (Own,), {"unbatch": property(lambda self: {}.none)})()
    assert_raises(AttributeError, "^'dict' object has no attribute 'none'$", lambda: own.unbatch)


class Mixin:
    @property
    def cardinality(self):
        return "of a mixin"

    def __getitem__(self, index):
        return index


class Own(IterDataset, Mixin):
    skip = "of the class"

    def __init__(self):
        super().__init__()
        self.take = "of the object"

    def __iter__(self):
        return iter(STREAM)

    def shuffle(self):
        return self


def test_what_others_call_so_is_found_and_streams_have_no_items():
    for ds in (
        Own(),
        pickle.loads(pickle.dumps(Own())),
        copy.copy(Own()),
        cloudpickle.loads(cloudpickle.dumps(Own())),
    ):
        assert (ds.skip, ds.take, ds.cardinality, ds.shuffle(), ds[3]) == (
            "of the class",
            "of the object",
            "of a mixin",
            ds,
            3,
        )
        assert not hasattr(ds, "unbatch")
        assert_raises(TypeError, r"'Own' object has no len|'Own' has no len", len, ds)
        assert bool(ds) and list(ds) == [*range(5)] and operator.length_hint(ds, 3) == 3
    with pytest.raises(TypeError, match="'PrefetchIterDataset' object is not subscriptable"):
        operator.getitem(STREAM, 0)
    assert not hasattr(STREAM, "__getitem__")
    assert not isinstance(STREAM, grain.RandomAccessDataSource)
    assert not issubclass(IterDataset, grain.RandomAccessDataSource)
    assert isinstance(FIVE, grain.RandomAccessDataSource)
    assert_raises(TypeError, "source must have __getitem__", MapDataset.source, STREAM)


class Source:
    def __len__(self):
        raise OSError("disk")

    def __getitem__(self, index):
        raise OSError("disk")


LENGTHS = [
    (STREAM.batch(2), 3, 3),
    # a list of them would be too long to set aside at once
    (STREAM.repeat(10**9), 5 * 10**9, None),
    *((STREAM.filter(bool), "at most", 5), (STREAM.repeat(), "does not end", None)),
    (FIVE.repeat().to_iter_dataset(), "does not end", None),
    (STREAM.repeat(2**62), "does not end", None),
    (STREAM.flat_map(lambda x: [x]), "not known before", None),
    (
        MapDataset.source(Source()).to_iter_dataset(),
        "does not say how long it is .OSError: disk",
        None,
    ),
]


def test_lengths():
    for ds, length, hint in LENGTHS:
        assert bool(ds)
        if isinstance(length, int):
            assert len(ds) == length
        else:
            with pytest.raises(
                TypeError, match=f"^object of type '{type(ds).__name__}' has no len.*: .*{length}"
            ):
                len(ds)
        assert hint is None or operator.length_hint(ds) == hint
    assert not list(FIVE[:0].to_iter_dataset()) and bool(FIVE[:0].to_iter_dataset())
    assert_raises(OSError, "disk", list, LENGTHS[-1][0])  # of the reading


Up = type("Up", (transforms.Map,), {"map": lambda self, element: element + 1})
BASES = {
    "filter": "Filter",
    "random_map": "RandomMap",
    "map_with_index": "MapWithIndex",
    "flat_map": "FlatMap",
}
CLASSES = {"map": Up, "apply": Up} | {
    method: type("Own", (getattr(transforms, base),), {}) for method, base in BASES.items()
}


@pytest.mark.parametrize("method", CLASSES)
@pytest.mark.parametrize("ds", [FIVE, STREAM], ids=["map", "stream"])
def test_a_class_of_transformations_is_no_transformation(ds, method):
    cls = CLASSES[method]
    message = rf"{cls.__name__} is a class, pass an instance, {cls.__name__}\(\)"
    for given in [cls, [cls]] if method == "apply" else [cls]:
        with pytest.raises(NotImplementedError if method == "apply" else TypeError, match=message):
            getattr(ds, method)(given)
    sampler = grain.samplers.SequentialSampler(1)
    with pytest.raises(TypeError, match=message):
        grain.DataLoader(data_source=[1], sampler=sampler, operations=[cls])
    # other classes are functions
    assert list(ds.map(str)) == list("01234") and list(ds.map(np.float32)) == [0, 1, 2, 3, 4]


def test_text_is_no_source():
    sampler = grain.samplers.SequentialSampler(1)
    for path in ("/data/*.array_record", b"/data", pathlib.Path("/data")):
        for make in (
            MapDataset.source,
            grain.load,
            lambda source: grain.DataLoader(data_source=source, sampler=sampler),
        ):
            with pytest.raises(
                TypeError, match=r"source must have .* a path is no source.*ArrayRecordDataSource, "
            ):
                make(path)
    assert list(MapDataset.source(["/a", "/b"])) == ["/a", "/b"]
    assert_raises(TypeError, r"got 3 of type int$", MapDataset.source, 3)


def columns():
    return {
        "x": np.arange(6.0).reshape(3, 2),
        "n": np.arange(3),
        "in": {"label": ["a", "b", "c"], "rest": range(3)},
    }


def test_columns_are_read_as_rows():
    given = columns()
    ds = MapDataset.source(given)
    row = ds[1]
    assert row["x"].tolist() == [2, 3] and row["n"] == 1 and type(row["n"]) is np.int64
    assert row["in"] == {"label": "b", "rest": 1} and list(row) == ["x", "n", "in"] and len(ds) == 3
    for element in (ds[1], *ds.repeat(2)):
        element["x"][:] = -1
        element["in"]["label"] = "z"
    assert all(np.array_equal(given[key], columns()[key]) for key in ("x", "n"))
    assert given["in"] == columns()["in"]
    batch = ds.seed(1).shuffle().batch(3)[0]
    assert batch["x"].shape == (3, 2) and sorted(batch["in"]["label"].tolist()) == ["a", "b", "c"]
    source = ColumnsDataSource(given)
    assert_source_conforms(source)
    text = (
        "ColumnsDataSource(len=3, columns={'x': float64[2], 'n': int64[], 'in': {'label': list,"
        " 'rest': range}})"
    )
    assert repr(source) == text and repr(ds) == f"SourceMapDataset(source={text})"
    for index in (-1, 3, 10**30):
        assert_raises(
            KeyRangeError, f"the number of records, got {index}", source.__getitem__, index
        )
    spec = grain.experimental.get_element_spec(
        MapDataset.source({"x": np.zeros((3, 2)), "in": {"n": np.arange(3)}})
    )
    assert spec["x"].shape == (2,) and spec["in"]["n"].dtype == np.int64
    assert_raises(NotImplementedError, "element_spec", grain.experimental.get_element_spec, ds)


def loaded(source):
    """The records of ``source`` from everything that takes sources."""
    sampler = grain.samplers.SequentialSampler(len(source), grain.sharding.NoSharding())
    yield list(MapDataset.source(source))
    yield list(grain.DataLoader(data_source=source, sampler=sampler))
    yield list(grain.python.load(source, num_epochs=1))
    yield [row["x"]["y"] for row in MapDataset.source({"x": {"y": source}})]


def test_series_of_pandas_are_read_by_position():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": list("xyz")}).iloc[::-1]
    assert list(MapDataset.source(dict(frame))) == [
        {"a": 3, "b": "z"},
        {"a": 2, "b": "y"},
        {"a": 1, "b": "x"},
    ]
    large, missing = 2**60 + 1, pandas.NA
    for series, expected in [
        (frame["a"], [3, 2, 1]),
        (frame["b"], ["z", "y", "x"]),
        (frame["a"][frame["a"] > 1], [3, 2]),
        (frame["a"].sort_values(), [1, 2, 3]),
        (pandas.Series([large, missing, 1], index=[2, 1, 0], dtype="Int64"), [large, missing, 1]),
        (pandas.Series(["a", "b"], index=[1, 0], dtype="category"), ["a", "b"]),
        (pandas.Series([True, missing], index=[1, 0], dtype="boolean"), [True, missing]),
        (
            pandas.Series(pandas.to_datetime(["2020-01-01"]), index=["x"]),
            [pandas.Timestamp("2020-01-01")],
        ),
        (frame["a"].array, [3, 2, 1]),
        (frame.index, [2, 1, 0]),
    ]:
        for records in loaded(series):
            assert len(records) == len(expected)
            assert all(
                [got is want or got == want for got, want in zip(records, expected, strict=True)]
            )
    ds = MapDataset.source(frame["a"])
    assert repr(ds) == f"SourceMapDataset(source={frame['a']!r})"  # as states have it
    assert list(pickle.loads(cloudpickle.dumps(ds))) == [3, 2, 1]


def test_tables_are_refused_and_what_the_error_says_works():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    columns = {"a": [1, 2], "b": ["x", "y"]}  # as many as rows: each has something at 0 and 1
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    makers = [MapDataset.source, grain.python.load, lambda source: MapDataset.source({"x": source})]
    makers += [
        lambda source: grain.DataLoader(data_source=source, sampler=None),
        grain.sources.SharedMemoryDataSource,
    ]
    for table in (
        pandas.DataFrame(columns, index=[1, 0]),
        pyarrow.table(columns),
        pyarrow.record_batch(columns),
    ):
        for make in makers:
            with pytest.raises(
                TypeError, match=f"got a p.* {type(table).__name__}, whose"
            ) as caught:
                make(table)
            name, method = re.search(
                r"its rows, (\S+)\.(to_\w+\(\S*\)),", str(caught.value)
            ).groups()
            assert name in ("source", "source['x']", "data_source", "elements")
            assert list(MapDataset.source(eval(f"table.{method}"))) == rows


def test_dicts_that_make_records_up_are_refused():
    counted, made_up = collections.Counter([5, 7]), collections.defaultdict(list, {5: 1, 7: 2})
    loader = functools.partial(
        grain.DataLoader, sampler=grain.samplers.SequentialSampler(2, grain.sharding.NoSharding())
    )
    for make, name in (
        (MapDataset.source, "source"),
        (lambda source: loader(data_source=source), "data_source"),
    ):
        for given in (counted, made_up):
            match = (
                rf"{name} must have the keys 0 to 1, got a {type(given).__name__} without 0, .*"
                rf" list\({name}.values\(\)\)"
            )
            assert_raises(ValueError, match, make, given)
    assert len(made_up) == 2
    assert list(MapDataset.source(collections.defaultdict(list, {0: "a", 1: "b"}))) == ["a", "b"]
    assert list(MapDataset.source(collections.deque("ab"))) == ["a", "b"]
    with pytest.raises(ValueError, match=r"data_source .* a Counter"):
        loader(data_source=collections.Counter("ab"))
    for given in ({"a": 1}, {1, 2}, frozenset([1]), "ab", b"ab", counted):
        match = (
            f"elements must be a sequence of records, got a {type(given).__name__}: hand in a list"
        )
        assert_raises(TypeError, match, grain.sources.SharedMemoryDataSource, given)


Lazy = type("Lazy", (dict,), {"__getitem__": lambda self, key: f"record {key}"})


def test_what_columns_are():
    for given, error, message in [
        ({"x": [1, 2], "y": np.zeros(3)}, ValueError, r"source\['x'\] has 2, source\['y'\] has 3"),
        ({"x": [1, 2], "y": {"z": [1]}}, ValueError, r"source\['y'\]\['z'\] has 1"),
        (
            {"x": [1], "y": 3},
            TypeError,
            r"source\['y'\] must have an entry for every row .*, got 3 of type int",
        ),
        ({"x": np.array(3)}, TypeError, r"source\['x'\] must have an entry for every row"),
        (
            {"x": "abc"},
            TypeError,
            r"source\['x'\] must have an entry for every row .*, got 'abc' of type str",
        ),
        (
            {"x": {1, 2}},
            TypeError,
            r"source\['x'\] must have an entry for every row .*, got {1, 2}",
        ),
        (
            {"x": {0: [1]}},
            TypeError,
            r"names of columns must be str, got 0 of type int in source\['x'\]",
        ),
        ({"x": {}}, ValueError, r"source\['x'\] must have columns"),
        ({}, ValueError, "source must have columns, as in"),
    ]:
        assert_raises(error, message, MapDataset.source, given)
    assert list(MapDataset.source({0: "a", 1: "b"})) == ["a", "b"]  # as in Grain
    assert list(MapDataset.source(Lazy(a=1, b=2))) == ["record 0", "record 1"]


MIXED = [
    [1, "a"],
    ["a", 2.5],
    [True, "a"],
    [b"a", "a"],
    [np.int32(1), b"a"],
    [np.arange(2), np.array(["a", "b"])],
    [1, None],
]
NUMBERS = [
    ([1, 2.5], "float64"),
    ([True, 2], "int64"),
    ([np.float32(1), np.int8(2)], "float32"),
    (["a", np.str_("bcd")], "<U3"),
]


def test_a_batch_makes_no_text_of_numbers():
    message = "^Expected all input elements to have the same structure but got: "
    for elements in MIXED:
        for wrap in (lambda x: x, lambda x: {"k": x}, lambda x: [x, {"k": x}]):
            ds = MapDataset.source([wrap(x) for x in elements])
            assert_raises(ValueError, message, ds.batch(2).__getitem__, 0)
        if elements[1] is not None:
            pieces = (
                MapDataset.source([np.asarray(x).reshape(1, -1) for x in elements])
                .to_iter_dataset()
                .rebatch(2)
            )
            assert_raises(ValueError, "cannot join pieces of", list, pieces)
        assert ds.batch(2, batch_fn=list)[0] == [ds[0], ds[1]]
    for elements, dtype in NUMBERS:
        assert MapDataset.source(elements).batch(2)[0].dtype == dtype
