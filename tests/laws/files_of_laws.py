"""Small files for the table of stages."""

import functools
import struct
import tempfile
from pathlib import Path
from typing import Any

from gristmill.sources.crc32c import masked_crc32c


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gristmill-laws-")


@functools.cache
def records_file(start: int, stop: int) -> str:
    path = Path(_folder().name) / f"{start}-{stop}.tfrecord"
    with path.open("wb") as file:
        for record in range(start, stop):
            data = bytes([record]) * record
            size = struct.pack("<Q", len(data))
            for part in (size, data):
                file.write(part + struct.pack("<I", masked_crc32c([part])[0]))
    return str(path)


@functools.cache
def rows_file(start: int, stop: int) -> str:
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
