"""Records of ArrayRecord files (https://github.com/google/array_record).

What holds when several threads use one source:

1. A file is opened once, by the first read that needs it. Other reads of that file wait meanwhile,
   those of other files do not.
2. Readers are shared by all threads; the two calls used here, ``read(start, stop)`` and
   ``read(positions)``, keep no position in the reader.
3. ``close`` drops the source's references to its readers. A read under way keeps its own reader
   alive until it is done.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gristmill.core.config import config
from gristmill.core.errors import as_int
from gristmill.core.locks import Lock
from gristmill.core.uninterrupted import in_threads
from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.files import is_url
from gristmill.sources.storage.local import starting_folder

_log = logging.getLogger("gristmill")

# The reader works through a list of positions in a pool of threads. That hides slow storage and
# decodes large records in parallel, but costs about this much per record even when there is nothing
# to hide. One by one, small records from the page cache take a quarter of it.
_POOLED_READ_SECONDS = 8e-6


class MissingFileError(FileNotFoundError, RuntimeError):
    """An ArrayRecord file that does not exist. Grain raises ``RuntimeError`` for it."""


class MissingArrayRecordError(ImportError, RuntimeError):
    """The package array_record is not installed, or does not load."""


@runtime_checkable
class FileInstruction(Protocol):
    """Records ``skip`` to ``skip + take - 1`` of a file, in the form that TFDS gives them."""

    filename: Any
    skip: int
    take: int
    examples_in_shard: int


class _Part(NamedTuple):
    """Records ``start`` to ``stop - 1`` of a file; all from ``start`` on when ``stop`` is
    ``None``.
    """

    filename: str
    start: int
    stop: int | None
    is_range: bool = False  # at the end of a path


class ArrayRecordDataSource(ShardedSource[bytes]):
    """The records of one or more ArrayRecord files, as ``bytes``; keys count through the files in
    the order given.

    Files are opened at the first read and shared by all threads. Only the record counts of files
    that are named by paths are read at construction, many files at a time
    (``gristmill.config.num_threads_computing_num_records``). Relative paths are relative to the
    current folder at construction.

    Files should be written with ``group_size:1``: records of a group can only be decoded together.

    Args:
        paths: one item or a non-empty sequence of items, each of them a path, a path that ends in
            ``[a:b]`` (records ``a`` to ``b - 1`` of that file), or a file instruction (an object
            with ``filename``, ``skip``, ``take`` and ``examples_in_shard``, such as those of TFDS).
            Patterns are not expanded.
        reader_options: options of the ArrayRecord reader, such as
            ``{"index_storage_option": "offloaded", "footer_prefetch_bytes": "0"}``. The reader
            checks them when it opens a file.

    Raises:
        ValueError: ``paths`` is empty or of another type, or has an item of another type, a
            negative range, or at the end of a path a range beyond the end of the file.
        MissingFileError: a file does not exist (a ``FileNotFoundError`` and a ``RuntimeError``).
            For an item that is a range it is raised at the first read, at which file instructions
            are compared with the file, too.
        RuntimeError: a file is not a valid ArrayRecord file.
        MissingArrayRecordError: array_record is not installed (an ``ImportError`` and a
            ``RuntimeError``). It comes with gristmill on Python 3.11 and 3.12, and else with the
            extra ``array-record``.

    Example:
        >>> import os, tempfile
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> path = os.path.join(tempfile.mkdtemp(), "letters.array_record")
        >>> writer = ArrayRecordWriter(path, "group_size:1")
        >>> for letter in "abcdef":
        ...     writer.write(letter.encode())
        >>> writer.close()
        >>> source = ArrayRecordDataSource([path, f"{path}[2:4]"])
        >>> len(source), source[1], source[7]
        (8, b'b', b'd')
    """

    _of_process = ("_readers", "_locks", "_file_texts")

    def __init__(
        self,
        paths: (
            str
            | os.PathLike[str]
            | FileInstruction
            | Sequence[str | os.PathLike[str] | FileInstruction]
        ),
        reader_options: Mapping[str, str] | None = None,
    ) -> None:
        # where there is no array_record, say so now and not in some thread at the first read
        _reader_class()
        if not isinstance(reader_options, Mapping | None):
            raise TypeError(
                f"reader_options must be a dict of options, got {reader_options!r:.200}"
            )
        self._reader_options = "".join(
            f",{name}:{value}" for name, value in (reader_options or {}).items()
        )
        parts = [_parse_path(path) for path in _as_sequence(paths)]
        whole_files = [part.filename for part in parts if part.stop is None]
        _check_ranges(parts)
        counts = iter(
            in_threads(_count_records, whole_files, config.num_threads_computing_num_records)
        )
        stops = [next(counts) if part.stop is None else part.stop for part in parts]

        self._paths = [part.filename for part in parts]
        self._starting_folder = starting_folder([path for path in self._paths if not is_url(path)])
        self._starts = [part.start for part in parts]
        self._stops = stops
        self._shards = ShardMap(
            [stop - start for start, stop in zip(self._starts, stops, strict=True)]
        )
        # The number of records that each file must have is checked when it is opened.
        self._min_records: dict[str, int] = {}
        for filename, stop in zip(self._paths, stops, strict=True):
            self._min_records[filename] = max(stop, self._min_records.get(filename, 0))
        self._start_closed()

    def _start_closed(self) -> None:
        self._readers: dict[str, Any] = {}
        self._locks = {filename: Lock() for filename in self._paths}
        self._file_texts: list[str] | None = None
        super()._start_closed()

    @property
    def paths(self) -> list[str]:
        """The names of the files, one for each item the source was made of, without ranges."""
        return list(self._paths)

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        records: list[bytes] = []
        deadline = time.perf_counter() + _POOLED_READ_SECONDS * len(places)
        for number, position in places:
            records.append(self._read_one(number, position))
            if time.perf_counter() > deadline:  # slow storage, large records, or a busy interpreter
                break
        return records + self._pooled_read(places[len(records) :])

    def _read_one(self, number: int, position: int) -> bytes:
        filename = self._paths[number]
        position += self._starts[number]
        reader = self._readers.get(filename) or self._open(filename)
        try:
            # A range of one: half the cost of a list of one, because the reader's threads are left
            # out of it.
            record: bytes = reader.read(position, position + 1)[0]
        except RuntimeError as error:
            raise RuntimeError(f"cannot read record {position} of {filename}: {error}") from error
        return record

    def _pooled_read(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        places: dict[str, list[int]] = {}
        positions: dict[str, list[int]] = {}
        for place, (number, position) in enumerate(wanted):
            filename = self._paths[number]
            places.setdefault(filename, []).append(place)
            positions.setdefault(filename, []).append(position + self._starts[number])

        def read(filename: str) -> list[bytes]:
            reader = self._readers.get(filename) or self._open(filename)
            answer: list[bytes] = reader.read(positions[filename])
            return answer

        answers = in_threads(read, list(places), config.num_threads_fetching_records)
        records = [b""] * len(wanted)
        for filename, answer in zip(places, answers, strict=True):
            for place, record in zip(places[filename], answer, strict=True):
                records[place] = record
        return records

    def _open(self, filename: str) -> Any:
        with self._locks[filename]:
            reader = self._readers.get(filename)
            if reader is None:
                # Read ahead of a random access is thrown away: none, and a small file buffer.
                reader = _open_reader(
                    self._located(filename), f"readahead_buffer_size:0{self._reader_options}"
                )
                num_records, expected = reader.num_records(), self._min_records[filename]
                if num_records < expected:
                    raise RuntimeError(
                        f"{filename} has {num_records} records, but {expected} were to be read"
                        " from it"
                    )
                _check_group_size(filename, reader)
                self._readers[filename] = reader
            return reader

    def _located(self, filename: str) -> str:
        return filename if is_url(filename) else os.path.join(self._starting_folder, filename)  # noqa: PTH118

    def described_files(self) -> list[str]:
        """Texts that identify the files in any folder: the name of each, the records read from it,
        and its size.
        """
        if self._file_texts is None:
            sizes = in_threads(
                _size_text,
                map(self._located, self._paths),
                config.num_threads_computing_num_records,
            )
            self._file_texts = [
                f"{PurePath(path).name}[{start}:{stop}], {size}"
                for path, start, stop, size in zip(
                    self._paths, self._starts, self._stops, sizes, strict=True
                )
            ]
        return self._file_texts

    def __repr__(self) -> str:
        import hashlib

        digest = hashlib.sha1("".join(self._paths).encode(), usedforsecurity=False).hexdigest()
        return f"ArrayRecordDataSource(hash_of_paths={digest})"


def _as_sequence(paths: Any) -> Sequence[Any]:
    # first: a file instruction may be a named tuple
    if isinstance(paths, (str, os.PathLike, FileInstruction)):
        return [paths]
    if not isinstance(paths, Sequence):
        raise ValueError(
            f"paths must be a path, a file instruction or a sequence of them, got {paths!r} of type"
            f" {type(paths).__name__}"
        )
    if not paths:
        raise ValueError("paths must not be empty: it has to name at least one file")
    return paths


def _parse_path(path: Any) -> _Part:
    if isinstance(path, (str, os.PathLike)):
        filename = os.fspath(path)
        match = re.fullmatch(r"(.*)\[([0-9]+):([0-9]+)\]", filename, re.DOTALL)
        if match is None:
            return _Part(filename, 0, None)
        start, stop = int(match[2]), int(match[3])
        if stop < start:
            raise ValueError(f"paths: the range at the end of {filename!r} ends before it starts")
        return _Part(match[1], start, stop, is_range=True)
    if isinstance(path, FileInstruction):
        skip, take = as_int("skip", path.skip, minimum=0), as_int("take", path.take, minimum=0)
        return _Part(os.fspath(path.filename), skip, skip + take)
    raise ValueError(
        "paths must have items that are str, path objects or file instructions (filename, skip,"
        f" take, examples_in_shard), got {path!r} of type {type(path).__name__}"
    )


def _check_ranges(parts: Sequence[_Part]) -> None:
    """Refuses ranges beyond the end of their files.

    A file that cannot be opened is an error when it is read.
    """
    ranges = [part for part in parts if part.is_range]
    filenames = list(dict.fromkeys(part.filename for part in ranges))
    counts = in_threads(_count_if_readable, filenames, config.num_threads_computing_num_records)
    num_records = dict(zip(filenames, counts, strict=True))
    for part in ranges:
        count = num_records[part.filename]
        if count is not None and part.stop is not None and part.stop > count:
            raise ValueError(
                f"paths: the range [{part.start}:{part.stop}] is beyond the end of {part.filename},"
                f" which has {count} records"
            )


def _count_if_readable(filename: str) -> int | None:
    try:
        return _count_records(filename)
    except RuntimeError:
        return None


def _reader_class() -> Any:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        if sys.platform == "win32":
            raise MissingArrayRecordError(
                "ArrayRecordDataSource: the package array_record does not exist for Windows: read"
                " the files on Linux (WSL) or macOS, or keep the data in another format"
                " (TFRecordIterDataset, ParquetIterDataset)"
            ) from error
        raise MissingArrayRecordError(
            "ArrayRecordDataSource needs the package array_record, which is not installed or does"
            " not load; run: pip install 'gristmill[array-record]'. Where that finds no wheel"
            " (free-threaded Python, a Python that is newer than the package, Intel Macs), use"
            " another Python or keep the data in another format (TFRecordIterDataset,"
            " ParquetIterDataset)"
        ) from error
    return ArrayRecordReader


def _count_records(filename: str) -> int:
    num_records: int = _open_reader(filename, "readahead_buffer_size:0").num_records()
    return num_records


def _size_text(filename: str) -> str:
    try:
        return f"{Path(filename).stat().st_size} bytes"
    except OSError:  # of another kind of file system
        return "of unknown size"


def _open_reader(filename: str, options: str) -> Any:
    reader = _reader_class()(filename, options, file_reader_buffer_size=32768)
    if reader.ok():
        return reader
    try:
        reader.close()  # the only call that says what is wrong
        reason = ""
    except RuntimeError as error:
        reason = str(error)
    if filename and Path(filename).exists():
        raise RuntimeError(
            f"{filename} cannot be read as an ArrayRecord file: {reason or 'it is incomplete'}"
        )
    hint = (
        "; patterns are not expanded, pass a list of files" if re.search(r"[*?@]", filename) else ""
    )
    if "://" in filename:
        hint = (
            f"; grain.sources.cached([{filename!r}], folder) downloads it, and gives the path to"
            " read"
        )
    raise MissingFileError(f"{filename or repr(filename)} does not exist: {reason}{hint}")


def _check_group_size(filename: str, reader: Any) -> None:
    # Files written before October 2022 say nothing about how they were written.
    group_size = re.search(r"group_size:(\d+)", reader.writer_options_string() or "")
    if group_size is not None and group_size[1] != "1":
        _log.error(
            "%s was written with group_size:%s: reading one record decodes %s of them. Write files"
            " with group_size:1",
            filename,
            group_size[1],
            group_size[1],
        )
