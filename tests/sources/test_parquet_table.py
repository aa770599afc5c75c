import datetime
import os
import pickle
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import (
    NOON,
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

import gristmill as grain
from gristmill.core.errors import KeyRangeError
from gristmill.sources import ChangedFileError, DamagedFileError, ParquetSource
from gristmill.sources.arrow_files import open_ranges
from gristmill.sources.storage.files import Files

fsspec = pytest.importorskip("fsspec")
local_files = pytest.importorskip("fsspec.implementations.local")
# Types of which values are made in other ways than those of ``parquet_files``.
ROLE = pa.struct([("role", pa.string()), ("n", pa.int64())])
XY = pa.struct([("x", pa.list_(pa.int32())), ("y", pa.bool_())])
WORDS = pa.list_(pa.dictionary(pa.int8(), pa.string()))
MORE_TYPES = [
    (pa.list_(pa.int64()), [None, [1], [], [2, 3]]),
    (pa.large_list(pa.float32()), [[1.5], [], [2], [3, 4]]),
    (pa.list_(pa.list_(pa.int16())), [[[1], []], [[2, 3]], [], [[]]]),
    (pa.list_(pa.bool_()), [[True], None, [], [False]]),
    (pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4], [5, 6]]),
    (pa.list_(pa.timestamp("ms")), [[NOON], None, [], [NOON, None]]),
    (XY, [{"x": [1], "y": True}, {"x": []}, None, {"x": None, "y": None}]),
    (pa.list_(ROLE), [[{"role": "a", "n": 1}], [{"role": None}], [], None]),
    (pa.float16(), [1.5, None, 2, 3]),
    (pa.large_binary(), [b"x", b"", None, b"\xff"]),
    (pa.time64("us"), [1, None, 2, 3]),
    (pa.decimal256(40, 3), [Decimal("1.500"), None, None, None]),
    (pa.uuid(), [b"0" * 16, None, b"1" * 16, b"2" * 16]),
    (pa.timestamp("ns"), [1, None, 2, 3]),
    (pa.date64(), [datetime.date(2020, 1, 1), None, None, None]),
    (WORDS, [["a"], None, ["b", None], []]),
    (pa.map_(pa.string(), pa.list_(pa.int8())), [[("a", [1])], [("b", None)], None, []]),
]


class Counting(local_files.LocalFileSystem):
    """Local files, of which it is counted how often each is opened."""

    protocol = "counting"
    cachable = False

    def __init__(self):
        super().__init__()
        self.opened = Counter()

    def _open(self, path, *args, **kwargs):
        self.opened[Path(path).name] += 1
        return super()._open(path, *args, **kwargs)


def streamed(*paths, **options):
    return [
        exact(row)
        for path in paths
        for row in grain.experimental.ParquetIterDataset(path, **options)
    ]


@pytest.fixture
def paths(tmp_path):
    """Three files of 30, 0 and 20 rows in row groups of 7."""
    ends = [30, 30, 50]
    columns = [
        {
            "id": range(start, end),
            "text": [f"row {i}" for i in range(start, end)],
            "tags": [[i] * (i % 3) for i in range(start, end)],
        }
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "tags": pa.list_(pa.int32())})
    found = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path, each in zip(found, columns, strict=True):
        pq.write_table(pa.table(each, schema), path, row_group_size=7)
    return found


def more_written(path, rng):
    for trial in range(30):
        columns = {}
        for number, (arrow_type, values) in enumerate(
            rng.sample(MORE_TYPES, 6) if trial else MORE_TYPES
        ):
            values = [value for value in values if value is not None or trial % 2] or [None]
            column = pa.array(rng.choices(values, k=40), arrow_type)
            columns.update({str(number): column} if is_written(column) else {})
        yield write(path, columns, row_group_size=rng.choice([1, 2, 7, 100]))


@pytest.mark.parametrize("kind", [written, more_written])
def test_rows_are_those_of_the_stream_bit_for_bit(tmp_path, kind):
    rng = random.Random(8)
    for path in kind(tmp_path / "x.parquet", rng):
        expected = streamed(path)
        with pq.ParquetFile(path) as file:
            assert expected == [
                row for group in range(file.num_row_groups) for row in plain_rows(file, group)
            ]
        source = ParquetSource(path, max_bytes=rng.choice([0, 1000, 1 << 30]))
        keys = rng.sample(range(len(source)), len(source))
        assert [exact(row) for row in source.__getitems__(keys)] == [expected[key] for key in keys]
        keys = rng.choices(keys, k=10) if keys else []
        assert [exact(source[key]) for key in keys] == [expected[key] for key in keys]
        assert sum([group.num_bytes for group in kept_groups(source)]) == source.kept_bytes


def kept_groups(source):
    return [entry.value for entry in source._kept._entries.values()]


def test_files_without_rows(paths):
    assert [exact(row) for row in ParquetSource(paths)] == streamed(*paths)
    assert repr(ParquetSource(paths, ["text"])).endswith(", columns=['text'])")
    for empty in (paths[1], [paths[1], paths[1]]):
        assert len(ParquetSource(empty)) == 0 and ParquetSource(empty).__getitems__([]) == []


def test_columns_and_rows_of_ones_own(paths):
    source = ParquetSource(paths, columns=["text", "id", "text"])
    assert [*source[49].items()] == [("text", "row 49"), ("id", 49)]
    source = ParquetSource(paths)
    row = source[5]
    row["tags"][:] = 0  # what is done to a row is not done to the source, nor to another row
    row["text"] = ""
    assert exact(source[5]) == streamed(*paths)[5] and row["tags"].base is None
    path = write(
        paths[0].with_name("y.parquet"), {"x": [{"a": [1, None]}, {"a": None}, {"a": [3]}]}
    )
    source = ParquetSource(path)
    for row in source:
        row["x"]["a"] = 7
    assert [exact(row) for row in source] == streamed(path)
    first = write(paths[1], {"y": [1], "x": [{"f": 1}]})
    for column, match in repeated_names():
        twice = paths[0].with_name("x.parquet")
        pq.write_table(pa.table([pa.array([1]), *column], names=["y", *"xx"[: len(column)]]), twice)
        for given in (twice, [first, twice]):
            assert_raises(ValueError, match, ParquetSource, given)
        assert [row["y"] for row in ParquetSource([first, twice], ["y"])] == [1, 1]
    write(path, {"a": [1, 2], "a.b": [None, 4], "s": [{"b": 5}, {"b": None}]})
    assert [exact(row) for row in ParquetSource(path)] == streamed(path)
    for columns in (["a"], ["a.b"], ["s"], ["s", "a"]):
        assert [exact(row) for row in ParquetSource(path, columns)] == streamed(
            path, columns=columns
        )
    pq.write_table(pa.table({"x": [1, 2]}).select([]), path)
    assert list(ParquetSource(path)) == streamed(path)


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the system does not count what a process reads"
)
def test_only_the_bytes_of_wanted_columns_are_read(tmp_path):
    columns = {"large": [os.urandom(10_000) for _ in range(1000)], "small": range(1000)}
    source = ParquetSource(write(tmp_path / "x.parquet", columns), columns=["small"])

    def num_read():
        return int(Path("/proc/self/io").read_text().split()[1])

    before = num_read()
    assert source[500] == {"small": 500} and num_read() - before < 300_000
    assert source.kept_bytes < 10_000


def decoded(source, filesystem, paths):
    """The number of row groups that were decoded: a file is opened for each, and twice for its
    footer.
    """
    opened = [filesystem.opened[path.name] for path in paths]
    return sum([number - 2 for number in opened if number > 1])


def test_row_groups_are_decoded_once_and_the_oldest_dropped(paths):
    expected, counting = streamed(*paths), Counting()
    source = ParquetSource(list(map(str, paths)), filesystem=counting)
    assert sum(counting.opened.values()) == 3
    keys = random.Random(0).choices(range(50), k=500)
    assert [exact(source[key]) for key in keys] == [expected[key] for key in keys]
    assert decoded(source, counting, paths) == 8
    sizes = [group.num_bytes for group in kept_groups(source)]
    assert sum(sizes) == source.kept_bytes > 8 * 7 * 8
    for max_bytes in (0, max(sizes), 3 * max(sizes)):
        counting = Counting()
        source = ParquetSource(list(map(str, paths)), max_bytes=max_bytes, filesystem=counting)
        assert [exact(row) for row in source.__getitems__(keys)] == [expected[key] for key in keys]
        assert decoded(source, counting, paths) == 8
        assert [exact(source[key]) for key in range(50)] == expected
        assert decoded(source, counting, paths) <= 16  # the one used last is there in any case
        assert 0 < source.kept_bytes <= max(max_bytes, max(sizes))
    source.close()
    assert source.kept_bytes == 0 and exact(source[3]) == expected[3]


def test_threads_share_row_groups(paths):
    expected, counting, start = streamed(*paths), Counting(), threading.Barrier(16)
    size = max([group.num_bytes for group in all_groups(paths)])
    for max_bytes in (1 << 20, 0, 2 * size):
        counting = Counting()
        source = ParquetSource(list(map(str, paths)), max_bytes=max_bytes, filesystem=counting)

        def read(number, source=source, max_bytes=max_bytes):
            rng = random.Random(number)
            start.wait()
            for _ in range(40):
                keys = rng.choices(range(50), k=rng.choice([1, 2, 20]))
                assert [exact(row) for row in source.__getitems__(keys)] == [
                    expected[key] for key in keys
                ]
                assert source.kept_bytes <= max(max_bytes, size)
                if not max_bytes and rng.random() < 0.1:
                    source.close()  # while others read

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(read, range(16)))
        assert max_bytes < 1 << 20 or decoded(source, counting, paths) == 8


def all_groups(paths):
    source = ParquetSource(paths)
    list(source)
    return kept_groups(source)


def test_everything_that_names_files(paths, monkeypatch):
    expected, names = streamed(*paths), [path.name for path in paths]
    folder = paths[0].parent
    monkeypatch.chdir(folder)
    in_memory = fsspec.filesystem("memory")
    for path in paths:
        in_memory.pipe(f"/there/{path.name}", path.read_bytes())
    local = fs.LocalFileSystem()
    sources = [
        ParquetSource(patterns)
        for patterns in ("*.parquet", f"{folder}/[0-2].parquet", "{0..2}.parquet", names)
    ]
    for filesystem in (
        fs.SubTreeFileSystem(str(folder), local),
        folder.as_uri(),
        fsspec.filesystem("file"),
    ):
        sources.append(ParquetSource(names, filesystem=filesystem))
    sources.append(ParquetSource([f"/there/{name}" for name in names], filesystem=in_memory))
    for source in sources:
        assert [exact(row) for row in source] == expected and repr(source) == repr(sources[0])
    assert_raises(FileNotFoundError, "missing", ParquetSource, "missing", filesystem=in_memory)
    assert_raises(IsADirectoryError, "is a folder", ParquetSource, folder)
    files = Files([str(path) for path in paths])  # URLs are read in this way
    with open_ranges(files, 0) as opened:
        assert pq.ParquetFile(opened, pre_buffer=True).read().equals(pq.read_table(paths[0]))
        assert (opened.size(), opened.read_at(4, 0)) == (files.sizes[0], b"PAR1")
        paths[0].write_bytes(b"")
        assert_raises(ChangedFileError, "0.parquet has changed", opened.read_at, 4, 0)


def test_a_missing_package_is_named(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    message = r"ParquetSource needs .*pip install 'gristmill\[parquet\]'"
    assert_raises(ImportError, message, ParquetSource, paths)


# Types that hold equal values in different ways, and the values; null agrees with all types.
STRING, INT, LARGE = pa.string(), pa.int64(), pa.large_string()
AS_TEXT = pa.dictionary(pa.int8(), STRING)
X = pa.field("x", INT, False)
TWO = pa.struct([("a", pa.list_(STRING)), ("b", INT)])
SWAPPED = pa.struct([("b", INT), ("a", pa.list_(LARGE))])
NESTED_NULL = pa.struct([("b", pa.null()), ("a", pa.list_(pa.null()))])
LISTS = [pa.list_(INT), pa.large_list(INT), pa.list_view(INT), pa.list_(INT, 1), pa.list_(X)]
TEXTS = [pa.list_(item) for item in (STRING, LARGE, pa.string_view(), pa.null())]
MAPS = [pa.map_(STRING, INT), pa.map_(LARGE, X), pa.map_(STRING, pa.null())]
DECIMALS = [pa.decimal128(4, 2), pa.decimal32(6, 2), pa.decimal256(50, 2)]
AGREEING = [
    ([STRING, LARGE, pa.string_view(), AS_TEXT, pa.null()], ["a"]),
    ([pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)], [b"a"]),
    (LISTS, [[1]]),
    (TEXTS, [["a"]]),
    ([TWO, SWAPPED], [{"a": ["x"], "b": 1}]),
    ([TWO, NESTED_NULL], [{"a": ["x"], "b": 1}]),
    (MAPS, [[("k", 1)]]),
    (DECIMALS, [Decimal("1.50")]),
    ([pa.time32("ms"), pa.time64("us"), pa.time64("ns")], [datetime.time(1)]),
]
A, B = pa.struct([("a", INT)]), pa.struct([("b", INT)])
DISAGREEING = [
    [INT, pa.float64()],
    [INT, pa.int32()],
    [STRING, pa.binary()],
    [pa.list_(INT), pa.list_(pa.int32())],
    [pa.list_(INT), INT],
    [pa.timestamp("ms"), pa.timestamp("us")],
    [pa.timestamp("us"), pa.timestamp("us", "UTC")],
    [pa.date32(), pa.timestamp("ms")],
    [A, B],
    [A, pa.struct([("a", INT), ("b", INT)])],
    [pa.decimal128(4, 2), pa.decimal128(4, 1)],
    [pa.map_(STRING, INT), pa.map_(STRING, STRING)],
    [INT, pa.null(), STRING],
    [pa.null(), INT, STRING],
    [pa.list_(pa.null()), pa.list_(INT), pa.list_(STRING)],
]


def written_as(folder, types, values=None):
    for number, arrow_type in enumerate(types):
        is_null = "null" in str(arrow_type).replace("not null", "")
        column = (
            pa.nulls(1, arrow_type) if values is None or is_null else pa.array(values, arrow_type)
        )
        pq.write_table(pa.table({"x": column}), folder / f"{number}.parquet")
    return [folder / f"{number}.parquet" for number in range(len(types))]


def test_files_agree_if_their_values_do(tmp_path):
    for types, values in AGREEING:
        types = [each for each in types if is_written(pa.nulls(1, each))]
        (expected,) = ParquetSource(written_as(tmp_path, types[:1], values))
        for order in (types, types[::-1]):
            paths = written_as(tmp_path, order, values)
            rows = list(ParquetSource(paths))
            assert [exact(row) for row in rows] == streamed(*paths)
            present = [exact(row) for row in rows if row["x"] is not None]
            assert present == [exact(expected)] * len(present) and len(present) >= len(types) - 1
    for types in DISAGREEING:
        message, paths = "have different columns: 'x' is .* and ", written_as(tmp_path, types)
        assert_raises(ValueError, message, ParquetSource, paths)


def test_the_number_of_rows_in_the_footer_is_not_used(tmp_path):
    path = write(tmp_path / "x.parquet", {"a": range(6)}, row_group_size=4)
    content = path.read_bytes()
    place = content.rindex(b"\x16\x0c\x19")  # the field of 6 rows, before the list of row groups
    for number in (0, 3, 7):
        path.write_bytes(content[: place + 1] + bytes([2 * number]) + content[place + 2 :])
        assert pq.read_metadata(path).num_rows == number
        rows = [exact(row) for row in ParquetSource(path)]
        assert len(rows) == 6 and rows == streamed(path)


def test_files_of_other_columns(tmp_path):
    first = write(tmp_path / "a.parquet", {"x": [1, 2], "y": ["a", "b"]})
    second = write(tmp_path / "b.parquet", {"y": ["c"], "x": [3]})  # in another order
    assert [[*row] for row in ParquetSource([first, second])] == [["x", "y"]] * 3
    text = pa.array(["c"], pa.large_string())
    for column in (text, text.cast(pa.string()).dictionary_encode(), text.dictionary_encode()):
        write(second, {"x": [3], "y": column})
        assert [row["y"] for row in ParquetSource([first, second])] == ["a", "b", "c"]
    for columns, difference, same in [
        ({"x": [1.5], "y": ["c"]}, "'x' is int64 and double", "y"),
        ({"x": [1]}, "'y' is only in the first", "x"),
        ({"x": [1], "y": ["c"], "z": [1]}, "'z' is only in the second", "x"),
    ]:
        write(second, columns)
        match = rf"a\.parquet and .*b\.parquet have different columns: {difference}\. Name columns"
        assert_raises(ValueError, match, ParquetSource, [first, second])
        assert len(ParquetSource([first, second], columns=[same])) == 3
    write(second, {"x": ["a"]})
    assert_raises(ValueError, "different columns", ParquetSource, [first, second], columns=["x"])


def test_damaged_files(tmp_path, paths):
    path = tmp_path / "bad.parquet"
    for bad in no_parquet(paths[0].read_bytes()):
        path.write_bytes(bad)
        match = r"bad\.parquet cannot be read as Parquet: .*\. Write the file again"
        for name in (path, [*paths, path]):
            assert_raises(DamagedFileError, match, ParquetSource, name)
    source = ParquetSource(with_damaged_group(path))
    match = r"row group 1 of .*bad\.parquet cannot be read as Parquet"
    for _ in range(2):
        assert_raises(DamagedFileError, match, source.__getitem__, 1500)
        assert_raises(DamagedFileError, match, source.__getitems__, [0, 1500, 9999, 2500])
        assert_raises(KeyRangeError, "got 9999", source.__getitems__, [0, 9999, 1500, 2500])
    keys = [*range(1000), *range(2000, 3000)]
    assert [row["x"] for row in source.__getitems__(keys)] == keys
    with_other_number(path)
    assert ParquetSource(path)[500] == {"x": -500}
    source = ParquetSource(path, page_checksum_verification=True)
    assert_raises(DamagedFileError, "CRC", source.__getitem__, 0)
    source = ParquetSource(with_invalid_text(path))
    match = r"row group 0 of .*bad\.parquet cannot be read as Parquet: .*utf-8"
    assert_raises(DamagedFileError, match, source.__getitem__, 0)
    assert_raises(DamagedFileError, match, source.__getitems__, [1, 0, 2])
    assert_raises(KeyRangeError, "got 2", source.__getitems__, [1, 2, 0])
    assert source[1] == {"x": "more", "y": "b"}


def test_files_that_change(paths):
    expected = streamed(*paths)
    content, status = paths[0].read_bytes(), paths[0].stat()
    times = status.st_atime_ns, status.st_mtime_ns
    other = pq.read_table(paths[0]).set_column(0, "id", [range(100, 130)])

    def longer():
        paths[0].write_bytes(content + b"more")

    def damaged():
        paths[0].write_bytes(b"x" * len(content))

    def rewritten():
        pq.write_table(other, paths[0], row_group_size=7)

    for change in (longer, damaged, rewritten):
        for rows_before in ([], [0], [0, 8]):
            source, other_source = ParquetSource(paths), ParquetSource(paths)
            source.__getitems__(rows_before)
            copy = pickle.loads(pickle.dumps(other_source))
            change()
            match = r"0\.parquet has changed since this source was made"
            for each in (source, copy):
                assert_raises(ChangedFileError, match, each.__getitem__, 29)
                assert exact(each[30]) == expected[30]  # of another file
            paths[0].write_bytes(content)
            os.utime(paths[0], ns=times)
            assert exact(source[29]) == expected[29]
    paths[0].unlink()
    assert_raises(FileNotFoundError, r"0\.parquet", source.__getitem__, 15)
