"""Small files for the table of stages."""

import functools
import tempfile
from pathlib import Path
from typing import Any

from tfrecords import framed


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gristmill-laws-")


def cache_folder() -> str:
    return tempfile.mkdtemp(dir=_folder().name)


@functools.cache
def records_file(start: int, stop: int) -> str:
    path = Path(_folder().name) / f"{start}-{stop}.tfrecord"
    path.write_bytes(b"".join([framed(bytes([record]) * record) for record in range(start, stop)]))
    return str(path)


class Stream:
    """Opens a file that cannot seek, and returns as few bytes as allowed."""

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


def examples(shards: list[tuple[int, int]]) -> Any:
    """The rows from which a Hugging Face data set is generated."""
    for start, stop in shards:
        yield from [{"x": x} for x in range(start, stop)]


def examples_of(*shards: tuple[int, int]) -> Any:
    import datasets

    return datasets.IterableDataset.from_generator(examples, gen_kwargs={"shards": list(shards)})


def rows_of(*files: str) -> Any:
    """The rows of Parquet files, streamed by Hugging Face's library without a network and a
    cache.
    """
    import datasets

    return datasets.IterableDataset.from_parquet(list(files), cache_dir=_folder().name)


def is_no_multiple_of_three(row: dict[str, Any]) -> bool:
    return bool(row["x"] % 3)


def twice_of_each(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"x": [x for x in rows["x"] for _ in range(2)]}


def number(row: dict[str, Any]) -> int:
    return int(row["x"])


def size(record: bytes) -> int:
    assert record == bytes([len(record)]) * len(record)
    return len(record)
