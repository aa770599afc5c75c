"""Values of Arrow types, nested and with gaps, are exact and equal in stream and source."""

import datetime
import itertools
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import IS_OLD, is_written
from parquet_rows import exact

import gristmill as grain
from gristmill.sources import ParquetSource, parquet
from gristmill.sources.arrow_exact import exact_values, is_exact
from gristmill.sources.arrow_values import without_dictionary

BIG = 2**60 + 1
DAY = 86_400
LAST = 2_932_896  # 9999-12-31
DAYS = [0, LAST, LAST + 1, -719_162, -719_163, 5 * LAST, -1]  # 0001-01-01 is -719162


def temporal(arrow_type, per_day):
    return pa.array([per_day * day for day in DAYS], pa.int64()).cast(arrow_type)


LEAVES = {
    "int8": pa.array([-128, 127, 0, 1], pa.int8()),
    "uint32": pa.array([2**32 - 1, 0, 1, 2], pa.uint32()),
    "int64 of 53 bits": pa.array([2**53, -(2**53), 0, 2**53 - 1]),
    "int64": pa.array([BIG, -BIG, 2**63 - 1, -(2**63), 2**53 + 1, 1]),
    "uint64": pa.array([2**64 - 1, 2**53 + 1, 0], pa.uint64()),
    "bool": pa.array([True, False]),
    "float16": pa.array([np.float16(1.5), np.float16(-2)]),
    "float64": pa.array([1e300, -0.1]),
    "string": pa.array(["a", "", "b\0c"]),
    "binary": pa.array([b"\xff\0", b""], pa.binary()),
    "fixed binary": pa.array([b"abcd", b"\0\0\0\0"], pa.binary(4)),
    "decimal": pa.array(
        [Decimal("12345678901234567890.12"), Decimal("-0.01")], pa.decimal128(30, 2)
    ),
    **{
        name: pa.array([Decimal("1.5"), Decimal("-0.1")], getattr(pa, name)(5, 1))
        for name in ("decimal32", "decimal64")
        if hasattr(pa, name)
    },
    "time": pa.array([1, 86_399_999_999], pa.time64("us")),
    "date32": pa.array(DAYS, pa.int32()).cast(pa.date32()),
    "date64": temporal(pa.date64(), DAY * 1000),
    "ms": temporal(pa.timestamp("ms"), DAY * 1000),
    "us": temporal(pa.timestamp("us"), DAY * 1_000_000),
    "us in UTC": temporal(pa.timestamp("us", "UTC"), DAY * 1_000_000),
    "us in Berlin": temporal(pa.timestamp("us", "Europe/Berlin"), DAY * 1_000_000),
    "us in range": pa.array([1, -1, DAY * 1_000_000 * LAST + 1], pa.timestamp("us")),
    "ns": pa.array([1, -1, 2**62 + 1], pa.timestamp("ns", "UTC")),
    "duration of s": pa.array([2**40, -(2**53) - 1, 2**62 + 1], pa.duration("s")),
    "duration of ms": pa.array([1, -1, 2**62 + 1], pa.duration("ms")),
    "duration of us": pa.array([1, -1, 2**62 + 1], pa.duration("us")),
    "duration of ns": pa.array([1, -1, 2**62 + 1], pa.duration("ns")),
    "null": pa.nulls(2),
}


def offsets(array):
    """Lists of 0, 2, 1, 2, ... values."""
    return pa.array([0, 0, *range(2, len(array) - 2, 3), len(array)], pa.int32())


def lists(array):
    return pa.ListArray.from_arrays(offsets(array), array)


def large_lists(array):
    return pa.LargeListArray.from_arrays(offsets(array).cast(pa.int64()), array)


def list_views(array):
    ends = offsets(array).to_pylist()
    sizes = [end - start for start, end in itertools.pairwise(ends)]
    return pa.ListViewArray.from_arrays(
        pa.array(ends[:-1], pa.int32()), pa.array(sizes, pa.int32()), array
    )


def pairs(array):
    return pa.FixedSizeListArray.from_arrays(array[: len(array) // 2 * 2], 2)


def structs(array):
    return pa.StructArray.from_arrays(
        [array, pa.array(map(str, range(len(array))))], names=["x", "text"]
    )


def maps(array):
    return pa.MapArray.from_arrays(offsets(array), pa.array(map(str, range(len(array)))), array)


NESTED = [
    *([], [lists], [large_lists], [list_views], [pairs], [structs], [maps]),
    *([lists, lists], [lists, structs], [structs, lists], [structs, maps]),
    *([maps, lists], [maps, structs], [list_views, pairs], [lists, structs, lists]),
]


def nestings(leaf):
    has_no_dictionary = str(leaf.type).startswith(("null", "duration", "decimal32", "decimal64"))
    return (
        NESTED
        if has_no_dictionary or not has_encoder(leaf)
        else [*NESTED, [pa.Array.dictionary_encode]]
    )


def has_encoder(leaf):
    """True if the installed pyarrow makes dictionaries of such values. Only an old one may not."""
    if not IS_OLD:
        return True
    try:
        leaf.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return False
    return True


# The nanoseconds of what Arrow holds as an integer.
UNITS = {"D": DAY * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
PYTHON = {
    datetime.datetime: "datetime64[us]",
    datetime.date: "datetime64[D]",
    datetime.timedelta: "timedelta64[us]",
}


def repeated(array, length):
    return pa.concat_arrays([array] * (length // len(array) + 1))[:length]


def with_gap(array):
    return pa.concat_arrays([array[:2], pa.nulls(1, array.type), array[2:]])


def columns(leaf, functions):
    """Columns of one type: without gaps, with gaps in the leaf, and with gaps at every level."""
    leaf = repeated(leaf, 14)
    for array in (leaf, with_gap(leaf)):
        for function in functions:
            array = function(array)
        yield repeated(array, 12)
    array = with_gap(leaf)
    for function in functions:
        array = function(array)
        array = array if pa.types.is_dictionary(array.type) else with_gap(array)
    yield repeated(array, 12)


def expected(leaf, functions):
    """The values of ``columns`` by ``to_pylist``; dates, times and durations in nanoseconds."""
    unit = None
    if pa.types.is_temporal(leaf.type) and not pa.types.is_time(leaf.type):
        unit = {"date32[day]": "D", "date64[ms]": "ms"}.get(str(leaf.type)) or leaf.type.unit
        leaf = leaf.cast(pa.int32() if unit == "D" else pa.int64())
    return [
        [python(value, unit) for value in array.to_pylist()] for array in columns(leaf, functions)
    ]


def python(value, unit=None):
    """A value as ``to_pylist`` has it; dates, times and durations in nanoseconds."""
    if isinstance(value, np.ndarray | list):
        return [python(part, unit) for part in value]
    if isinstance(value, tuple):
        return (value[0], python(value[1], unit))
    if isinstance(value, dict):
        return {name: python(part, unit) for name, part in value.items()}
    if unit and type(value) is int:
        return value * UNITS[unit]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if type(value) in PYTHON:
        value = np.array(value, PYTHON[type(value)])[()]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return (
            None
            if np.isnat(value)
            else int(value.astype(np.int64)) * UNITS[np.datetime_data(value)[0]]
        )
    value = value.item() if isinstance(value, np.generic) else value
    return None if value != value else value  # NaN stands only for gaps: no leaf has one


@pytest.mark.parametrize("name", LEAVES)
def test_values_are_exact_and_those_of_stream_and_source_equal(name, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", 2)
    leaf, path = LEAVES[name], tmp_path / "x.parquet"
    table, model = {}, {}
    for functions in nestings(leaf):
        for number, (array, values) in enumerate(
            zip(columns(leaf, functions), expected(leaf, functions), strict=True)
        ):
            label = f"{[function.__name__ for function in functions]} {number}"
            if is_written(array):
                table[label], model[label] = array, values
    pq.write_table(pa.table(table), path, row_group_size=5)  # and one of 2
    source, stream = list(ParquetSource(path)), list(grain.experimental.ParquetIterDataset(path))
    for label, values in model.items():
        assert [python(row[label]) for row in source] == values, label
        assert [exact(row[label]) for row in stream] == [exact(row[label]) for row in source], label


@pytest.mark.parametrize("name", [name for name in LEAVES if name != "null"])
def test_exact_values_are_those_of_pyarrow(name):
    compared = 0
    for functions in nestings(LEAVES[name]):
        for array in columns(LEAVES[name], functions):
            array = without_dictionary(array)
            for part in (array, array[1:], array[2:5], array[:0]):
                values = exact_values(part)
                if is_exact(part):
                    compared += 1
                    assert exact(values) == exact(part.to_numpy(zero_copy_only=False)), (
                        functions,
                        part.type,
                    )
    assert compared
