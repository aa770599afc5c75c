"""Small files for the table of stages."""

import functools
import tempfile
from pathlib import Path
from typing import Any

from tfrecords import framed


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gristmill-laws-")


@functools.cache
def records_file(start: int, stop: int) -> str:
    path = Path(_folder().name) / f"{start}-{stop}.tfrecord"
    path.write_bytes(b"".join([framed(bytes([record]) * record) for record in range(start, stop)]))
    return str(path)


class Stream:
    """What opens a file that cannot seek, and gives as few bytes as it may."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115  (``close`` closes it)

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, 7))

    def close(self) -> None:
        self._file.close()


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
