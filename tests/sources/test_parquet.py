import contextlib
import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import (
    DAY,
    is_written,
    no_parquet,
    repeated_names,
    with_damaged_group,
    with_invalid_text,
    with_other_number,
    write,
    written,
)
from parquet_rows import exact, plain_rows
from pyarrow import fs
from refusing import assert_raises

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.sources import parquet
from gristmill.sources.arrow_files import open_input
from gristmill.sources.parquet import ParquetRows
from gristmill.sources.parquet_footer import NullCounts, read_footer


@pytest.fixture(params=[2, 7, None], ids=lambda size: f"block_{size}")
def block_rows(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr(parquet, "_BLOCK_ROWS", request.param)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.parquet"


def read_all(rows):
    return [list(read_group(rows, group)) for group in range(rows.num_groups)]


def read_group(rows, group, row=0):
    while block := rows.read(group, row):
        row += len(block)
        yield from block


@pytest.mark.usefixtures("block_rows")
def test_values_do_not_depend_on_the_size_of_blocks(path):
    rng = random.Random(5)
    for file in written(path, rng):
        rows = ParquetRows(file)
        with pq.ParquetFile(file) as whole:
            for group in range(rows.num_groups):
                expected = plain_rows(whole, group)
                assert [exact(row) for row in read_group(rows, group)] == expected
                start = rng.randrange(len(expected) + 1)
                assert [exact(row) for row in read_group(rows, group, start)] == expected[start:]
        rows.close()
    rows = [
        row
        for group in read_all(ParquetRows(write(path, {"x": [1, None, 3, 4]}, row_group_size=3)))
        for row in group
    ]
    assert [*map(exact, rows)] == [
        exact({"x": x}) for x in (np.float64(1), np.float64("nan"), np.float64(3), np.int64(4))
    ]


@pytest.mark.usefixtures("block_rows")
def test_places_row_groups_and_columns(path):
    rows = ParquetRows(write(path, {"x": range(20), "y": [None, *range(19)]}, row_group_size=8))
    assert [rows.num_rows(group) for group in range(rows.num_groups)] == [8, 8, 4]
    for group, row in [(2, 0), (0, 5), (0, 0), (1, 8), (0, 7), (2, 4), (2, 3)]:
        stop = min(8 * group + 8, 20)
        assert [x["x"] for x in read_group(rows, group, row)] == list(range(8 * group + row, stop))
        assert rows.read(group, stop - 8 * group) == []
    write(path, {"x": range(10)}, row_group_size=2)
    odd = slice(1, None, 2)
    for *slices, groups in (
        (odd, [1, 3]),
        (slice(4, None, 5), [4]),
        (slice(5, None, 6), []),
        (odd, odd, [3]),
    ):
        expected = [[{"x": 2 * group}, {"x": 2 * group + 1}] for group in groups]
        assert read_all(ParquetRows(path, slices=tuple(slices))) == expected
    write(path, {"a": [1, 2], "a.b": [None, 4], "s": [{"b": 5}, {"b": None}], "c": ["x", "y"]})
    assert list(read_all(ParquetRows(path))[0][0]) == ["a", "a.b", "s", "c"]
    (rows,) = read_all(ParquetRows(path, columns=["c", "a"]))
    assert [[*row.items()] for row in rows] == [[("c", "x"), ("a", 1)], [("c", "y"), ("a", 2)]]
    assert read_all(ParquetRows(path, columns=["s"])) == [[{"s": {"b": 5.0}}, {"s": {"b": None}}]]
    match = r"x\.parquet has no 'b', it has \['a', 'a\.b', 's', 'c'\]"
    assert_raises(ValueError, match, ParquetRows, path, columns=["a", "b"])
    for column, match in repeated_names():
        pq.write_table(pa.table([pa.array([1]), *column], names=["y", *"xx"[: len(column)]]), path)
        assert_raises(ValueError, match, ParquetRows, path)
        assert_raises(ValueError, match, ParquetRows, path, columns=["x"])
        assert read_all(ParquetRows(path, columns=["y"])) == [[{"y": 1}]]


def test_small_blocks_and_arguments_of_pyarrow(path, monkeypatch):
    write(path, {"text": ["a" * 1000] * 10_000, "x": range(10_000)})
    assert len(ParquetRows(path, columns=["x"]).read(0, 0)) == parquet._BLOCK_ROWS
    monkeypatch.setattr(parquet, "_BLOCK_BYTES", 10)
    assert len(ParquetRows(path).read(0, 0)) < 10_000
    write(path, {"x": ["a", "b"]})
    folder = fs.SubTreeFileSystem(str(path.parent), fs.LocalFileSystem())
    for name, arguments in ((path, {"memory_map": True}), ("x.parquet", {"filesystem": folder})):
        assert len(read_all(ParquetRows(name, read_kwargs=arguments))[0]) == 2
    wrong = {"no_such_argument": 1}
    assert_raises(TypeError, "no_such_argument", ParquetRows, path, read_kwargs=wrong)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert_raises(ImportError, r"pip install 'gristmill\[parquet\]'", ParquetRows, path)


def test_element_spec(path):
    arrays = {
        "int": (pa.array([1, 2], pa.int16()), (), np.int16),
        "float": (pa.array([1, None], pa.float32()), (), np.float32),
        "date": (pa.array([DAY, None]), (), np.dtype("datetime64[D]")),
        "list": (pa.array([[1], [2, 3]], pa.list_(pa.int8())), (None,), np.int8),
        "pair": (pa.array([[1, 2]] * 2, pa.list_(pa.float64(), 2)), (2,), np.float64),
        "flag": (pa.array([True, False]), (), np.bool_),
    }
    rows = ParquetRows(
        write(path, {name: row[0] for name, row in arrays.items()}, row_group_size=1)
    )
    assert rows.element_spec() == {name: ShapeDtypeStruct(*row[1:]) for name, row in arrays.items()}
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    pq.write_table(pa.table([[1], [2]], schema=schema), path, write_statistics=False)
    assert ParquetRows(path, columns=["x"]).element_spec() == {"x": ShapeDtypeStruct((), np.int64)}
    assert_raises(NotImplementedError, "column 'y'", ParquetRows(path).element_spec)
    others = [["a"], [{"a": 1}], [[[1]]]]
    others += filter(is_written, [pa.array([[1]], pa.list_view(pa.int32()))])
    reasons = ["not NumPy numbers or dates"] * len(others) + ["missing values"] * 3
    for reason, values in zip(
        reasons, [*others, [1, None], [[1], None], [True, None]], strict=True
    ):
        write(path, {"good": [1] * len(values), "bad": values})
        match = rf"column 'bad' of .*x\.parquet .*{reason}.*columns="
        assert_raises(NotImplementedError, match, ParquetRows(path).element_spec)
        assert list(ParquetRows(path, columns=["good"]).element_spec()) == ["good"]


def test_files_that_are_none_or_damaged(path, monkeypatch):
    content = write(path, {"x": range(1000)}).read_bytes()
    for bad in [*no_parquet(content), content[100:]]:
        path.write_bytes(bad)
        match = r"x\.parquet cannot be read as Parquet: .*[^.]\. Write the file again"
        with pytest.raises(ValueError, match=match):
            read_all(ParquetRows(path))
    missing = path.parent / "missing.parquet"
    assert_raises(FileNotFoundError, r"missing\.parquet", ParquetRows, missing)
    assert_raises(ValueError, "is a directory", ParquetRows, path.parent)
    rows = ParquetRows(with_damaged_group(path))
    assert len(list(read_group(rows, 0))) == 1000
    for _ in range(2):
        assert_raises(ValueError, r"row group 1 of .*x\.parquet cannot be read", rows.read, 1, 0)
    assert [row["x"] for row in read_group(rows, 2)] == list(range(2000, 3000))
    # Checksums of pages are compared if that is asked for; otherwise another byte may be another
    # value.
    numbers = [row["x"] for row in read_all(ParquetRows(with_other_number(path)))[0]]
    assert numbers == [*range(500), -500, *range(501, 1000)]
    rows = ParquetRows(path, read_kwargs={"page_checksum_verification": True})
    assert_raises(ValueError, r"row group 0 of .*x\.parquet cannot be read .*CRC", read_all, rows)
    match = r"row group 0 of .*x\.parquet cannot be read as Parquet: .* failed"
    assert_raises(ValueError, match, read_all, ParquetRows(with_invalid_text(path)))
    for error in (OSError(5, "Input/output error"), MemoryError("too large")):

        def fail(*_, error=error, **kwargs):
            raise error

        rows = ParquetRows(path)
        monkeypatch.setattr(rows._file, "read_row_group", fail)
        with pytest.raises(type(error)) as caught:
            rows.read(0, 0)
        assert caught.value is error
        assert ("x.parquet" in str(getattr(error, "__notes__", ""))) == isinstance(error, OSError)


def footer_of(path):
    with open_input(str(path)) as file:
        return read_footer(file)


def damage_footer(path, byte, is_wanted):
    """Lowers a byte of this value in the footer by two or one, such that ``is_wanted()``."""
    good = path.read_bytes()
    for position in range(len(good) - 8 - int.from_bytes(good[-8:-4], "little"), len(good) - 8):
        for lower in (2, 1) if good[position] == byte else ():
            path.write_bytes(good[:position] + bytes([byte - lower]) + good[position + 1 :])
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                if is_wanted():
                    return
    raise AssertionError("no such byte")


def test_footers_that_lie(path, monkeypatch):
    """Rows whose types would depend on the block that they are read in are an error, and so are
    fewer rows.
    """
    write(path, {"x": ["a"] * 50}, row_group_size=30)
    # 20, as Thrift writes it
    damage_footer(path, 40, lambda: pq.ParquetFile(path).metadata.row_group(1).num_rows < 0)
    rows = ParquetRows(path)
    assert rows.num_rows(0) == 30
    match = r"row group 1 of .*x\.parquet cannot be read .* it has -\d+ rows"
    assert_raises(ValueError, match, rows.num_rows, 1)
    assert_raises(ValueError, match, rows.read, 1, 0)
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", 2)
    for values in (
        [1, 2, None, 4],
        [[1], [2, 3], [4, None], [5]],
        [{"a": 1}, {"a": 2}, {"a": None}, {"a": 3}],
    ):
        write(path, {"x": values})
        # one, as Thrift writes it
        damage_footer(path, 2, lambda: NullCounts(footer_of(path)).of_group(0) == [0])
        rows = ParquetRows(path)
        assert len(rows.read(0, 0)) == 2
        match = (
            r"row group 0 of .*x\.parquet .* column 'x' has missing values, but its statistics say"
        )
        assert_raises(ValueError, match, rows.read, 0, 2)
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", 100)
    rows = ParquetRows(write(path, {"x": range(1000)}))
    rows._metadata = pq.ParquetFile(write(path.with_name("y.parquet"), {"x": range(1001)})).metadata
    read = []
    for _ in range(2):  # an error is not the end
        with pytest.raises(ValueError, match="fewer rows than its metadata say"):
            while block := rows.read(0, len(read)):
                read += block
        assert len(read) == 1000


def as_pyarrow_says(path):
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    statistics = [
        [group.column(i).statistics for i in range(group.num_columns)] for group in groups
    ]
    return [
        [s.null_count if s is not None and s.has_null_count else None for s in group]
        for group in statistics
    ]


def test_null_counts_of_random_and_damaged_footers(tmp_path):
    path = tmp_path / "x.parquet"
    rng = random.Random(7)
    for number, _ in enumerate(written(path, rng)):
        expected = as_pyarrow_says(path)
        counts = NullCounts(footer_of(path))
        for group in rng.sample(range(len(expected)), len(expected)):  # in any order
            assert counts.of_group(group) == expected[group], number
        assert counts.of_group(len(expected)) == []
    pq.write_table(
        pa.table({f"column {i}": [None, i] for i in range(1500)}), path, row_group_size=1
    )
    footer = footer_of(path)
    assert len(footer) > 1 << 17 and [NullCounts(footer).of_group(i) for i in range(2)] == [
        [1] * 1500,
        [0] * 1500,
    ]
    pq.write_table(pa.table({"x": [None, 1, None], "y": [1, 2, 3]}), path, row_group_size=2)
    footer, whole = footer_of(path), as_pyarrow_says(path)
    for size in range(len(footer)):
        counts = NullCounts(footer[:size])
        for group in range(2):  # less, and nothing else
            assert all(
                one in (None, other)
                for one, other in zip(counts.of_group(group), whole[group], strict=False)
            )
    for content in (
        b"",
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1\xff\xff\xff\xffPAR1",
        b"PAR1\4\0\0\0PAR1",
        b"x" * 100,
    ):
        path.write_bytes(content)
        assert NullCounts(footer_of(path)).of_group(0) == []


def field(number, kind, *value):
    # the number in full, not as the difference from the one before
    return bytes([kind, 2 * number, *value])


def test_fields_of_all_types_are_passed_over():
    """A footer as a later version of Parquet may write it, with fields that are unknown, before the
    row groups.
    """
    binary, integers, booleans = [2, 9, 9], [0xF5, 16, *[3] * 16], [0x21, 1, 2]
    fields = [
        (40, 1),
        (41, 2),
        (42, 3, 7),
        (43, 4, 0x80, 1),
        (44, 7, *range(8)),
        (45, 8, *binary),
        (46, 9, *booleans),
        (47, 10, *integers),
        (48, 13, *range(16)),
        (49, 11, 0),
        (50, 11, 2, 0x89, *binary, *booleans, *binary, *integers),
    ]
    unknown = b"".join([field(*values) for values in fields])
    # what looks like row groups, but is deeper
    unknown += field(51, 12, *field(4, 9, 0x1C, *field(1, 6, 2), 0), 0)
    statistics = field(3, 6, 10) + unknown
    column = unknown + field(3, 12, *unknown, *field(12, 12, *statistics, 0), 0)
    group = unknown + field(1, 9, 0x1C, *column, 0)
    footer = unknown + field(4, 9, 0x1C, *group, 0) + bytes([0])
    assert NullCounts(footer).of_group(0) == [5]
