"""Parquet files of columns of every type, with and without missing values."""

import datetime
import sysconfig
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

# Every type: the values of a group of three rows, some of them missing, and one of a group without.
DAY, NOON = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 12)
TIME = datetime.time(1)
TYPES = [
    (pa.int64(), [1, None, 3, 4]),
    (pa.uint8(), [1, 2, 3, 4]),
    (pa.float32(), [1, None, 3, 4]),
    (pa.null(), [None] * 4),
    (pa.bool_(), [True, None, False, True]),
    (pa.string(), ["a", None, "", "d"]),
    (pa.large_string(), ["a", None, "", "d"]),
    (pa.binary(), [b"a", None, b"", b"d"]),
    (pa.binary(1), [b"a", None, b"c", b"d"]),
    (pa.duration("ms"), [1, None, 3, 4]),
    (pa.timestamp("us", "Europe/Berlin"), [NOON, None, NOON, NOON]),
    (pa.date32(), [DAY, None, DAY, DAY]),
    (pa.time32("s"), [TIME, None, None, None]),
    (pa.decimal128(4, 2), [Decimal("1.50"), None, None, None]),
    (pa.list_(pa.int32()), [[1, None], None, [], [4]]),
    (pa.list_(pa.string()), [["a"], None, [], ["d"]]),
    (pa.list_(pa.float32(), 2), [[1, 2]] * 4),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, None, {"a": 3}, {"a": 4}]),
    (pa.struct([("a", pa.string())]), [{"a": "x"}, None, {"a": None}, {"a": "y"}]),
    (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [("m", None)], [], [("l", 4)]]),
    (pa.map_(pa.string(), pa.string()), [[("k", "a")], None, [("m", None)], []]),
    (pa.dictionary(pa.int32(), pa.string()), ["b", None, "a", "d"]),
    (pa.dictionary(pa.int32(), pa.int64()), [1, None, 3, 4]),
    (pa.dictionary(pa.int32(), pa.string()), [None, None, None, "d"]),
    (pa.decimal128(30, 2), [1, None, 3, 4]),
    (
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
        [{"a": None, "b": ["x"]}, None, {"a": 1, "b": []}, {}],
    ),
]


# The newest pyarrow with a wheel for free-threaded builds lacks types and lists that later ones
# have.
IS_OLD = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def is_written(column):
    """True if the installed pyarrow can write the column and read it. Only an old one may not."""
    if not IS_OLD:
        return True
    # with a file of Python, pyarrow 24 may hang at exit without the GIL
    file = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table({"x": column}), file)
        pq.read_table(pa.BufferReader(file.getvalue()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        # The answer for this old build: writing raises the first two for a type or list that it
        # lacks, and reading raises OSError for a file that it has written wrongly.
        return False
    return True


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def written(path, rng):
    """Files of every type with values missing in one group of rows alone, and of any types in any
    mixture.
    """
    columns = {str(i): pa.array(values, arrow_type) for i, (arrow_type, values) in enumerate(TYPES)}
    for statistics in (True, False):
        yield write(path, columns, row_group_size=3, write_statistics=statistics)
    for trial in range(40):
        num_rows, columns = rng.randrange(60), {}
        for arrow_type, values in rng.choices(TYPES, k=rng.choice([1, 4, 4, 20])):
            values = [value for value in values if value is not None or trial % 2] or [None]
            columns[f"column {len(columns)}" * rng.choice([1, 30])] = pa.array(
                rng.choices(values, k=num_rows), arrow_type
            )
        options = {
            "write_statistics": [True, True, False, [*columns][:3]],
            "store_schema": [True, False],
        }
        options |= {
            "write_page_index": [True, False],
            "compression": ["none", "snappy"],
            "data_page_version": ["1.0", "2.0"],
        }
        chosen = {name: rng.choice(values) for name, values in options.items()}
        yield write(path, columns, row_group_size=rng.randrange(1, 30), **chosen)


def repeated_names():
    """Yields columns ``x`` whose values do not fit into one row, and the error for them."""
    one, two = pa.array([1]), pa.array(["a"])
    struct = pa.StructArray.from_arrays([one, two], names=["f", "f"])
    yield [one, two], r"x\.parquet has 2 columns 'x', .* leave the column out with columns="
    for column in (
        struct,
        pa.ListArray.from_arrays([0, 1], struct),
        pa.StructArray.from_arrays([struct], names=["s"]),
    ):
        yield (
            [column],
            r"column 'x' of .*x\.parquet has several fields 'f' in one struct, .* columns=",
        )


def no_parquet(content):
    """Contents of files that are no Parquet files, made of those of one."""
    return [
        b"",
        b"PAR1",
        b"some text, and nothing else",
        content[: len(content) // 2],
        content[:-1],
        b"x" * 99 + content[-8:],
    ]


PLAIN = {"compression": "none", "use_dictionary": False}


def with_damaged_group(path):
    """Return a file of three row groups of 1000 numbers, of which the second is damaged."""
    write(path, {"x": range(3000)}, row_group_size=1000, **PLAIN)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    return path


def with_other_number(path):
    """Return a file of 1000 numbers with checksums, in which 500 has become -500."""
    write(path, {"x": range(1000)}, write_page_checksum=True, **PLAIN)
    good, bad = [number.to_bytes(8, "little", signed=True) for number in (500, -500)]
    path.write_bytes(path.read_bytes().replace(good, bad, 1))
    return path


def with_invalid_text(path):
    write(path, {"x": ["some text", "more"], "y": ["a", "b"]}, **PLAIN)
    path.write_bytes(path.read_bytes().replace(b"some", b"s\xffme"))
    return path
