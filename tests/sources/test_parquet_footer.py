import random

import pyarrow as pa
import pyarrow.parquet as pq
from parquet_files import written

from gristmill.sources.arrow_files import open_input
from gristmill.sources.parquet_footer import NullCounts, read_footer


def footer_of(path):
    with open_input(str(path)) as file:
        return read_footer(file)


def as_pyarrow_says(path):
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    statistics = [[group.column(i).statistics for i in range(group.num_columns)] for group in groups]
    return [[s.null_count if s is not None and s.has_null_count else None for s in group] for group in statistics]


def test_null_counts_of_random_large_cut_off_and_missing_footers(tmp_path):
    path = tmp_path / "x.parquet"
    rng = random.Random(7)
    for number, _ in enumerate(written(path, rng)):
        expected = as_pyarrow_says(path)
        counts = NullCounts(footer_of(path))
        for group in rng.sample(range(len(expected)), len(expected)):  # in any order
            assert counts.of_group(group) == expected[group], number
        assert counts.of_group(len(expected)) == []
    pq.write_table(pa.table({f"column {i}": [None, i] for i in range(1500)}), path, row_group_size=1)
    footer = footer_of(path)
    assert len(footer) > 1 << 17 and [NullCounts(footer).of_group(i) for i in range(2)] == [[1] * 1500, [0] * 1500]
    pq.write_table(pa.table({"x": [None, 1, None], "y": [1, 2, 3]}), path, row_group_size=2)
    footer, whole = footer_of(path), as_pyarrow_says(path)
    for size in range(len(footer)):
        counts = NullCounts(footer[:size])
        for group in range(2):  # less, and nothing else
            assert all(one in (None, other) for one, other in zip(counts.of_group(group), whole[group], strict=False))
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
