"""Stages that read files in order."""

from __future__ import annotations

import functools
import struct
import tempfile
from pathlib import Path
from typing import Any

from entry import IterEntry, MapEntry, not_multiple_of_three

from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset.stages.parquet import ParquetIterDataset
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.sources.crc32c import masked_crc32c

MAP_ENTRIES: list[MapEntry] = []


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gristmill-laws-")


@functools.cache
def _records(start: int, stop: int) -> str:
    path = Path(_folder().name) / f"{start}-{stop}.tfrecord"
    with path.open("wb") as file:
        for record in range(start, stop):
            data = bytes([record]) * record
            size = struct.pack("<Q", len(data))
            for part in (size, data):
                file.write(part + struct.pack("<I", masked_crc32c([part])[0]))
    return str(path)


@functools.cache
def _rows(start: int, stop: int) -> str:
    import pyarrow
    import pyarrow.parquet

    path = Path(_folder().name) / f"{start}-{stop}.parquet"
    x = pyarrow.array(range(start, stop), pyarrow.int64())
    some = pyarrow.array([None if i % 3 == 1 else i for i in range(start, stop)], pyarrow.int64())
    pyarrow.parquet.write_table(pyarrow.table({"x": x, "some": some}), path, row_group_size=3)
    return str(path)


def number(row: dict[str, Any]) -> int:
    return int(row["x"])


def size(record: bytes) -> int:
    assert record == bytes([len(record)]) * len(record)
    return len(record)


ITER_ENTRIES = [
    IterEntry("tfrecord", lambda: TFRecordIterDataset(_records(0, 9)), [bytes([i]) * i for i in range(9)]),
    IterEntry("tfrecord_empty", lambda: TFRecordIterDataset(_records(3, 3), check_crc=False), []),
    IterEntry("tfrecord_no_files", lambda: TFRecordIterDataset([]), []),
    IterEntry("tfrecord_files", lambda: TFRecordIterDataset([_records(0, 4), _records(10, 12)]).map(size), [0, 10, 1, 11, 2, 3]),
    IterEntry("parquet", lambda: ParquetIterDataset(_rows(0, 8)).map(number), list(range(8))),
    IterEntry(
        "parquet_filter", lambda: ParquetIterDataset(_rows(0, 8)).map(number).filter(not_multiple_of_three), [1, 2, 4, 5, 7]
    ),
    IterEntry("parquet_empty", lambda: ParquetIterDataset(_rows(3, 3)), []),
    IterEntry("parquet_files", lambda: ParquetIterDataset([_rows(0, 4), _rows(10, 12)]).map(number), [0, 10, 1, 11, 2, 3]),
    IterEntry(
        "parquet_workers",
        lambda: ParquetIterDataset(_rows(0, 8)).map(number).mp_prefetch(MultiprocessingOptions(num_workers=2)),
        [0, 3, 1, 4, 2, 5, 6, 7],
    ),
]
