import contextlib
import datetime
import random
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.sources import parquet
from gristmill.sources.arrow_files import open_input
from gristmill.sources.parquet import ParquetRows
from gristmill.sources.parquet_footer import NullCounts, read_footer


@pytest.fixture(params=[2, 7, None], ids=lambda size: f"block_{size}")
def block_rows(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr(parquet, "_BLOCK_ROWS", request.param)
    return request.param


def write(path, table, **options):
    pq.write_table(table, path, **options)
    return str(path)


def read_all(rows):
    return [list(read_group(rows, group)) for group in range(rows.num_groups)]


def read_group(rows, group, row=0):
    while block := rows.read(group, row):
        row += len(block)
        yield from block


def exact(x):
    """``x`` in a form that ``==`` compares with its types and dtypes, and that takes NaN for NaN."""
    if isinstance(x, np.ndarray):
        return ("array", str(x.dtype), x.shape, [exact(value) for value in x])
    if isinstance(x, dict):
        return {key: exact(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [type(x), *map(exact, x)]
    return (type(x), str(getattr(x, "dtype", "")), repr(x))


# Every type: the values of a row group with missing values, and what they are in NumPy; rows 4 and 5 are in a group without any.
DAY = datetime.date(2020, 1, 1)
NOON = datetime.datetime(2020, 1, 1, 12)
TYPES = {
    "int64": (pa.int64(), [1, None, 3, 4], [np.float64(1), np.float64("nan"), np.float64(3), np.int64(4)]),
    "uint8": (pa.uint8(), [1, 2, 3, 4], [np.uint8(1), np.uint8(2), np.uint8(3), np.uint8(4)]),
    "float32": (pa.float32(), [1, None, 3, 4], [np.float32(1), np.float32("nan"), np.float32(3), np.float32(4)]),
    "bool": (pa.bool_(), [True, None, False, True], [True, None, False, np.bool_(True)]),
    "string": (pa.string(), ["a", None, "", "d"], ["a", None, "", "d"]),
    "large_string": (pa.large_string(), ["a", None, "", "d"], ["a", None, "", "d"]),
    "binary": (pa.binary(), [b"a", None, b"", b"d"], [b"a", None, b"", b"d"]),
    "fixed_binary": (pa.binary(1), [b"a", None, b"c", b"d"], [b"a", None, b"c", b"d"]),
    "null": (pa.null(), [None] * 4, [None] * 4),
    "timestamp": (
        pa.timestamp("us", "Europe/Berlin"),
        [NOON, None, NOON, NOON],
        [np.datetime64("2020-01-01T12", "us"), np.datetime64("NaT", "us"), *[np.datetime64("2020-01-01T12", "us")] * 2],
    ),
    "date": (
        pa.date32(),
        [DAY, None, DAY, DAY],
        [np.datetime64("2020-01-01"), np.datetime64("NaT", "D"), *[np.datetime64("2020-01-01")] * 2],
    ),
    "time": (pa.time32("s"), [datetime.time(1), None, None, None], [datetime.time(1), None, None, None]),
    "duration": (pa.duration("ms"), [1, None, 3, 4], [np.timedelta64(x, "ms") for x in (1, "NaT", 3, 4)]),
    "decimal": (pa.decimal128(4, 2), [Decimal("1.50"), None, None, None], [Decimal("1.50"), None, None, None]),
    "list": (
        pa.list_(pa.int32()),
        [[1, None], None, [], [4]],
        [np.array([1, np.nan]), None, np.array([], np.float64), np.array([4], np.int32)],
    ),
    "texts": (
        pa.list_(pa.string()),
        [["a"], None, [], ["d"]],
        [np.array(["a"], object), None, np.array([], object), np.array(["d"], object)],
    ),
    "pair": (pa.list_(pa.float32(), 2), [[1, 2]] * 4, [np.array([1, 2], np.float32)] * 4),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, None, {"a": 3, "b": None}, {"a": 4, "b": "y"}],
        [{"a": 1.0, "b": "x"}, None, {"a": 3.0, "b": None}, {"a": 4, "b": "y"}],
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1), ("m", None)], [], None, [("l", 4)]],
        [[("k", 1.0), ("m", None)], [], None, [("l", 4)]],
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["b", None, "a", "d"], ["b", None, "a", "d"]),
    "numbers_dictionary": (
        pa.dictionary(pa.int32(), pa.int64()),
        [1, None, 3, 4],
        [np.float64(1), np.float64("nan"), np.float64(3), np.int64(4)],
    ),
    "missing_dictionary": (pa.dictionary(pa.int32(), pa.string()), [None, None, None, "d"], [None, None, None, "d"]),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("statistics", [True, False])
def test_values(tmp_path, block_rows, name, statistics):
    arrow_type, values, expected = TYPES[name]
    table = pa.table({"x": pa.array(values, arrow_type)})
    path = write(tmp_path / "x.parquet", table, row_group_size=3, write_statistics=statistics)
    first, second = read_all(ParquetRows(path))
    assert [exact(row["x"]) for row in [*first, *second]] == [exact(value) for value in expected]


def test_the_block_size_decides_nothing(tmp_path, block_rows):
    """Any types with and without missing values, in any mixture: the same as of whole row groups."""
    rng = random.Random(5)
    for trial in range(40):
        num_rows = rng.randrange(1, 40)
        columns = {}
        for name in rng.sample(sorted(TYPES), 4):
            arrow_type, values, _ = TYPES[name]
            values = [value for value in values if value is not None or trial % 2] or [None]
            columns[name] = pa.array(rng.choices(values, k=num_rows), arrow_type)
        path = write(
            tmp_path / f"{trial}.parquet",
            pa.table(columns),
            row_group_size=rng.randrange(1, num_rows + 2),
            write_statistics=rng.random() < 0.7,
            store_schema=rng.random() < 0.7,
        )
        file = pq.ParquetFile(path)
        rows = ParquetRows(path)
        for group in range(rows.num_groups):
            table = file.read_row_group(group)
            whole = {}
            for name, column in zip(table.column_names, table.columns, strict=True):
                is_dictionary = pa.types.is_dictionary(column.type)
                whole[name] = (column.cast(column.type.value_type) if is_dictionary else column).to_numpy()
            expected = [{name: exact(whole[name][i]) for name in table.column_names} for i in range(table.num_rows)]
            assert [exact(row) for row in read_group(rows, group)] == expected
            start = rng.randrange(table.num_rows + 1)
            assert [exact(row) for row in read_group(rows, group, start)] == expected[start:]
        rows.close()
        file.close()


def test_places(tmp_path, block_rows):
    path = write(tmp_path / "x.parquet", pa.table({"x": range(20), "y": [None, *range(19)]}), row_group_size=8)
    rows = ParquetRows(path)
    assert rows.num_groups == 3
    assert [rows.num_rows(group) for group in range(3)] == [8, 8, 4]
    for group, row in [(2, 0), (0, 5), (0, 0), (1, 8), (0, 7), (2, 4), (2, 3)]:
        stop = min(8 * group + 8, 20)
        assert [x["x"] for x in read_group(rows, group, row)] == list(range(8 * group + row, stop))
        assert rows.read(group, stop - 8 * group) == []


def test_blocks_are_small(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", pa.table({"text": ["a" * 1000] * 10_000, "x": range(10_000)}))
    assert len(ParquetRows(path, columns=["x"]).read(0, 0)) == parquet._BLOCK_ROWS
    monkeypatch.setattr(parquet, "_BLOCK_BYTES", 10)
    assert len(ParquetRows(path).read(0, 0)) < 10_000


@pytest.mark.parametrize(
    ("slices", "groups"),
    [
        ((slice(1, None, 2),), [1, 3]),
        ((slice(4, None, 5),), [4]),
        ((slice(5, None, 6),), []),
        ((slice(1, None, 2), slice(1, None, 2)), [3]),
    ],
)
def test_some_row_groups(tmp_path, slices, groups):
    path = write(tmp_path / "x.parquet", pa.table({"x": range(10)}), row_group_size=2)
    rows = ParquetRows(path, slices=slices)
    assert read_all(rows) == [[{"x": 2 * group}, {"x": 2 * group + 1}] for group in groups]


def test_columns(tmp_path, block_rows):
    table = pa.table({"a": [1, 2], "a.b": [None, 4], "s": [{"b": 5}, {"b": None}], "c": ["x", "y"]})
    path = write(tmp_path / "x.parquet", table)
    assert list(read_all(ParquetRows(path))[0][0]) == ["a", "a.b", "s", "c"]
    assert read_all(ParquetRows(path, columns=["c", "a"])) == [[{"c": "x", "a": 1}, {"c": "y", "a": 2}]]
    assert [list(row) for row in read_all(ParquetRows(path, columns=["c", "a"]))[0]] == [["c", "a"]] * 2
    assert read_all(ParquetRows(path, columns=["s"])) == [[{"s": {"b": 5.0}}, {"s": {"b": None}}]]
    with pytest.raises(ValueError, match=r"x\.parquet has no 'b', it has \['a', 'a\.b', 's', 'c'\]"):
        ParquetRows(path, columns=["a", "b"])


def test_a_name_twice_is_the_last_column(tmp_path):
    path = write(tmp_path / "x.parquet", pa.table([pa.array([1, 2]), pa.array([3, 4])], names=["x", "x"]))
    assert read_all(ParquetRows(path)) == [[{"x": 3}, {"x": 4}]]


def test_required_columns_without_statistics(tmp_path):
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    path = write(tmp_path / "x.parquet", pa.table([[1], [2]], schema=schema), write_statistics=False)
    rows = ParquetRows(path, columns=["x"])
    assert rows.element_spec() == {"x": ShapeDtypeStruct((), np.int64)}
    with pytest.raises(NotImplementedError, match="column 'y'"):
        ParquetRows(path).element_spec()


def test_element_spec(tmp_path):
    table = pa.table(
        {
            "int": pa.array([1, 2], pa.int16()),
            "float": pa.array([1, None], pa.float32()),
            "date": pa.array([DAY, None]),
            "list": pa.array([[1], [2, 3]], pa.list_(pa.int8())),
            "pair": pa.array([[1, 2]] * 2, pa.list_(pa.float64(), 2)),
            "flag": pa.array([True, False]),
        }
    )
    rows = ParquetRows(write(tmp_path / "x.parquet", table, row_group_size=1))
    assert rows.element_spec() == {
        "int": ShapeDtypeStruct((), np.int16),
        "float": ShapeDtypeStruct((), np.float32),
        "date": ShapeDtypeStruct((), np.dtype("datetime64[D]")),
        "list": ShapeDtypeStruct((None,), np.int8),
        "pair": ShapeDtypeStruct((2,), np.float64),
        "flag": ShapeDtypeStruct((), np.bool_),
    }


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["a"], "not NumPy numbers or dates"),
        ([{"a": 1}], "not NumPy numbers or dates"),
        ([[[1]]], "not NumPy numbers or dates"),
        ([1, None], "missing values"),
        ([[1], None], "missing values"),
        ([True, None], "missing values"),
        (pa.array([[1]], pa.list_view(pa.int32())), "not NumPy numbers or dates"),
    ],
)
def test_what_has_no_element_spec(tmp_path, values, reason):
    path = write(tmp_path / "x.parquet", pa.table({"good": [1] * len(values), "bad": values}))
    with pytest.raises(NotImplementedError, match=rf"column 'bad' of .*x\.parquet .*{reason}.*columns="):
        ParquetRows(path).element_spec()
    assert list(ParquetRows(path, columns=["good"]).element_spec()) == ["good"]


def test_read_kwargs(tmp_path):
    path = write(tmp_path / "x.parquet", pa.table({"x": ["a", "b"]}))
    assert len(read_all(ParquetRows(path, read_kwargs={"memory_map": True}))[0]) == 2
    folder = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert len(read_all(ParquetRows("x.parquet", read_kwargs={"filesystem": folder}))[0]) == 2
    with pytest.raises(TypeError, match="no_such_argument"):
        ParquetRows(path, read_kwargs={"no_such_argument": 1})


def test_files_that_are_none(tmp_path):
    good = tmp_path / "good.parquet"
    write(good, pa.table({"x": range(1000)}))
    content = good.read_bytes()
    for bad in (b"", b"PAR1", b"some text, and nothing else", content[: len(content) // 2], content[:-1], content[100:]):
        path = tmp_path / "bad.parquet"
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"bad\.parquet cannot be read as Parquet: .*[^.]\. Write the file again"):
            read_all(ParquetRows(path))
    with pytest.raises(FileNotFoundError, match=r"missing\.parquet"):
        ParquetRows(tmp_path / "missing.parquet")
    with pytest.raises(ValueError, match="is a directory"):
        ParquetRows(tmp_path)


def test_a_damaged_row_group(tmp_path):
    good = tmp_path / "x.parquet"
    write(good, pa.table({"x": range(3000)}), row_group_size=1000, compression="none", use_dictionary=False)
    start = pq.ParquetFile(good).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(good.read_bytes())
    content[start : start + 40] = bytes(40)
    good.write_bytes(content)
    rows = ParquetRows(good)
    assert len(list(read_group(rows, 0))) == 1000
    for _ in range(2):
        with pytest.raises(ValueError, match=r"row group 1 of .*x\.parquet cannot be read"):
            rows.read(1, 0)
    assert [row["x"] for row in read_group(rows, 2)] == list(range(2000, 3000))


def test_errors_name_the_file(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    write(path, pa.table({"x": ["some text"] * 3}), compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"some", b"s\xffme"))
    with pytest.raises(ValueError, match=r"row group 0 of .*x\.parquet cannot be read as Parquet: .* failed"):
        read_all(ParquetRows(path))
    for error in (OSError(5, "Input/output error"), MemoryError("too large")):
        rows = ParquetRows(path)
        monkeypatch.setattr(rows._file, "read_row_group", raising(error))
        with pytest.raises(type(error)) as caught:
            rows.read(0, 0)
        assert caught.value is error
        assert ("x.parquet" in str(getattr(error, "__notes__", ""))) == isinstance(error, OSError)


def test_page_checksums(tmp_path):
    """They are compared if that is asked for; otherwise another byte may be another value."""
    path = tmp_path / "x.parquet"
    write(path, pa.table({"x": range(1000)}), compression="none", use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(np.int64(500).tobytes(), np.int64(-500).tobytes(), 1))
    assert [row["x"] for row in read_all(ParquetRows(path))[0]] == [*range(500), -500, *range(501, 1000)]
    with pytest.raises(ValueError, match=r"row group 0 of .*x\.parquet cannot be read .*CRC"):
        read_all(ParquetRows(path, read_kwargs={"page_checksum_verification": True}))


@pytest.mark.parametrize("values", [[1, 2, None, 4], [[1], [2, 3], [4, None], [5]], [{"a": 1}, {"a": 2}, {"a": None}, {"a": 3}]])
def test_statistics_are_not_believed(tmp_path, monkeypatch, values):
    """Rows whose types would depend on the block that they are read in are an error."""
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", 2)
    path = tmp_path / "x.parquet"
    write(path, pa.table({"x": values}))
    damage_footer(path, 2, lambda: null_counts(path) == [0])  # one, as Thrift writes it
    rows = ParquetRows(path)
    assert len(rows.read(0, 0)) == 2
    with pytest.raises(ValueError, match=r"row group 0 of .*x\.parquet .* column 'x' has missing values, but its statistics say"):
        rows.read(0, 2)


def test_a_number_of_rows_below_zero(tmp_path):
    path = tmp_path / "x.parquet"
    write(path, pa.table({"x": ["a"] * 50}), row_group_size=30)
    damage_footer(path, 40, lambda: pq.ParquetFile(path).metadata.row_group(1).num_rows < 0)  # 20, as Thrift writes it
    rows = ParquetRows(path)
    assert rows.num_rows(0) == 30
    for use in (lambda: rows.num_rows(1), lambda: rows.read(1, 0)):
        with pytest.raises(ValueError, match=r"row group 1 of .*x\.parquet cannot be read .* it has -\d+ rows"):
            use()


def null_counts(path):
    with open_input(str(path)) as file:
        return NullCounts(read_footer(file)).of_group(0)


def damage_footer(path, byte, is_wanted):
    """Lowers a byte of this value in the footer by two or one, such that ``is_wanted()``."""
    good = path.read_bytes()
    for position in range(len(good) - 8 - int.from_bytes(good[-8:-4], "little"), len(good) - 8):
        for lower in (2, 1) if good[position] == byte else ():
            content = bytearray(good)
            content[position] -= lower
            path.write_bytes(content)
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                if is_wanted():
                    return
    raise AssertionError("no such byte")


def raising(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def test_an_error_is_not_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", 100)
    path = write(tmp_path / "x.parquet", pa.table({"x": range(1000)}))
    rows = ParquetRows(path)
    rows._metadata = pq.ParquetFile(write(tmp_path / "y.parquet", pa.table({"x": range(1001)}))).metadata
    read = []
    with pytest.raises(ValueError, match="fewer rows than its metadata say"):
        while block := rows.read(0, len(read)):
            read += block
    assert len(read) == 1000
    with pytest.raises(ValueError, match="fewer rows than its metadata say"):
        rows.read(0, len(read))


def test_pyarrow_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install 'gristmill\[parquet\]'"):
        ParquetRows(tmp_path / "x.parquet")
