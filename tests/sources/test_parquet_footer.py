import random

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.sources.arrow_files import open_input
from gristmill.sources.parquet_footer import NullCounts, read_footer

TYPES = [
    *((pa.int64(), [1, -(2**40), None]), (pa.bool_(), [True, False, None]), (pa.string(), ["a" * 300, "", None])),
    *((pa.float32(), [1.5, None, 2.0]), (pa.list_(pa.int32()), [[1, None], [], None])),
    (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), [{"a": None, "b": ["x"]}, None, {"a": 1, "b": []}]),
    *((pa.map_(pa.string(), pa.int64()), [[("k", 1)], [("m", None)], []]), (pa.decimal128(30, 2), [1, None, 3])),
]


def footer_of(path):
    with open_input(str(path)) as file:
        return read_footer(file)


def as_pyarrow_says(path):
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    statistics = [[group.column(i).statistics for i in range(group.num_columns)] for group in groups]
    return [[s.null_count if s is not None and s.has_null_count else None for s in group] for group in statistics]


def write_random(path, rng):
    num_rows = rng.randrange(60)
    types = rng.choices(TYPES, k=rng.randrange(1, 40))
    columns = [pa.array(rng.choices(values[: rng.randrange(1, 4)], k=num_rows), kind) for kind, values in types]
    names = [f"column {i}" * rng.choice([1, 30]) for i in range(len(columns))]
    options = {"write_statistics": [True, True, False, names[:3]], "store_schema": [True, False]}
    options |= {"write_page_index": [True, False], "compression": ["none", "snappy"], "data_page_version": ["1.0", "2.0"]}
    chosen = {name: rng.choice(values) for name, values in options.items()}
    pq.write_table(pa.table(columns, names=names), path, row_group_size=rng.randrange(1, 30), **chosen)


def test_null_counts_of_random_large_cut_off_and_missing_footers(tmp_path):
    path = tmp_path / "x.parquet"
    for seed in range(20):
        rng = random.Random(seed)
        write_random(path, rng)
        expected = as_pyarrow_says(path)
        counts = NullCounts(footer_of(path))
        for group in rng.sample(range(len(expected)), len(expected)):  # in any order
            assert counts.of_group(group) == expected[group], seed
        assert counts.of_group(len(expected)) == []
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({f"column {i}": [None, i] for i in range(1500)}), path, row_group_size=1)
    footer = footer_of(path)
    assert len(footer) > 1 << 17
    assert [NullCounts(footer).of_group(i) for i in range(2)] == [[1] * 1500, [0] * 1500]
    pq.write_table(pa.table({"x": [None, 1, None], "y": [1, 2, 3]}), path, row_group_size=2)
    footer, whole = footer_of(path), as_pyarrow_says(path)
    for size in range(len(footer)):
        counts = NullCounts(footer[:size])
        for group in range(2):
            told = counts.of_group(group)
            assert all(one in (None, other) for one, other in zip(told, whole[group], strict=False))  # less, and nothing else
    for content in (b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"PAR1\4\0\0\0PAR1", b"x" * 100):
        path.write_bytes(content)
        assert NullCounts(footer_of(path)).of_group(0) == []


def field(number, kind, *value):
    return bytes([kind, 2 * number, *value])  # the number in full, not as the difference from the one before


def test_fields_of_all_types_are_passed_over():
    """A footer as a later version of Parquet may write it, with fields that nobody knows before the row groups."""
    binary, integers, booleans = [2, 9, 9], [0xF5, 16, *[3] * 16], [0x21, 1, 2]
    unknown = field(40, 1) + field(41, 2) + field(42, 3, 7) + field(43, 4, 0x80, 1) + field(44, 7, *range(8))
    unknown += field(45, 8, *binary) + field(46, 9, *booleans) + field(47, 10, *integers) + field(48, 13, *range(16))
    unknown += field(49, 11, 0) + field(50, 11, 2, 0x89, *binary, *booleans, *binary, *integers)
    unknown += field(51, 12, *field(4, 9, 0x1C, *field(1, 6, 2), 0), 0)  # what looks like row groups, but is deeper
    statistics = field(3, 6, 10) + unknown
    column = unknown + field(3, 12, *unknown, *field(12, 12, *statistics, 0), 0)
    group = unknown + field(1, 9, 0x1C, *column, 0)
    footer = unknown + field(4, 9, 0x1C, *group, 0) + bytes([0])
    assert NullCounts(footer).of_group(0) == [5]
