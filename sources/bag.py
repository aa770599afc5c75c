"""The records of Bagz files.

A file is its records, one after the other, and then for each of them where it ends, in 64-bit
little-endian words; the last word is so where the words begin. Records are compressed one by one in
files called ``.bagz``, and as they are in others.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import missing_package
from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.errors import DamagedFileError, changed, damaged
from gristmill.sources.storage.files import Files, is_url, list_files

_WORD_BYTES = 8
_SHARDS = r"(.*)@(\d+|\*)(\.[^/@]*)?"
_REMEDY = "Copy or write the file again"

# The library reads single records from mapped memory, and many in threads. Threads hide slow
# storage, but cost about this much per record even where there is nothing to hide.
_POOLED_READ_SECONDS = 50e-6


class BagDataSource(ShardedSource[bytes]):
    """Returns the records of Bagz files, as ``bytes``: those of the first file, then those of the
    second, and so on.

    Files called ``.bagz`` have compressed records, others plain ones, as the library ``bagz`` has
    it. It reads them; each file is mapped into memory when a record of it is wanted for the first
    time. A block is read record by record, and in the library's threads if that is slow. Damage is
    an error that names file and byte; the format has no checksums, so a plain record whose bytes
    were changed cannot be determined.

    Copies in workers carry paths and sizes, and open the files again. All methods may be called by
    several threads at once. The files must not change while they are read: before each block it is
    looked whether they did.

    ``lengths``, for ``bucket_batch``, are the sizes of the records in bytes; sources with
    compressed files have none.

    Args:
        paths: a file, or a sequence of files; ``*``, ``?``, ``{000..127}`` and the like stand for
            what is there, and, as in the library, ``name@3.bagz`` for ``name-00000-of-00003.bagz``
            to ``name-00002-of-00003.bagz``, ``name@*.bagz`` for as many as there are, and commas
            separate files.

    Raises:
        TypeError, ValueError: ``paths`` is something else, or has URLs.
        FileNotFoundError: a file is missing.
        DamagedFileError: a file is cut off, or no Bagz file.
        ImportError: ``bagz`` is not installed (it exists for Linux only).

    Errors of reading: ``KeyRangeError`` if a key is not in ``[0, len(source))``;
    ``DamagedFileError``; ``ChangedFileError``.

    Example:
        >>> import os, tempfile, bagz
        >>> path = os.path.join(tempfile.mkdtemp(), "letters.bagz")
        >>> with bagz.Writer(path) as writer:
        ...     for record in (b"a", b"bb", b""):
        ...         writer.write(record)
        >>> source = BagDataSource(path)
        >>> len(source), source[1], source.__getitems__([2, 0])
        (3, b'bb', [b'', b'a'])
    """

    _of_process = ("_readers",)

    def __init__(self, paths: Any) -> None:
        _library()
        self._files = Files(_expanded(paths))
        self._shards = ShardMap(
            [self._num_records_of(number) for number in range(len(self._files))]
        )
        self._start_closed()

    def _start_closed(self) -> None:
        # of open files, and what they were when they were opened
        self._readers: dict[int, tuple[Any, tuple[int, int]]] = {}
        super()._start_closed()

    def _num_records_of(self, number: int) -> int:
        path, size = self._files.paths[number], self._files.sizes[number]
        if not size:
            return 0
        if size < _WORD_BYTES:
            raise damaged(path, 0, f"it has {size} bytes, too few for a Bagz file", _REMEDY)
        begin = int.from_bytes(self._files.read([(number, size - _WORD_BYTES, size)])[0], "little")
        num_records, rest = divmod(size - begin, _WORD_BYTES)
        if rest or num_records < 1:
            limits = Path(path).parent / f"limits.{Path(path).name}"
            if limits.exists():
                what = f"the ends of its records are in a file of their own, {limits}"
                raise damaged(
                    path, size, what, "Close its writer, or write it with LimitsPlacement.TAIL"
                )
            raise damaged(
                path,
                size - _WORD_BYTES,
                f"it is cut off, or no Bagz file: its last word is {begin}",
                _REMEDY,
            )
        return num_records

    def _read_one(self, number: int, position: int) -> bytes:
        self._check_unchanged([number])
        return self._read(number, position)

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        self._check_unchanged({number for number, _ in places})
        records: list[bytes] = []
        deadline = time.perf_counter() + _POOLED_READ_SECONDS * len(places)
        for number, position in places:
            records.append(self._read(number, position))
            if time.perf_counter() > deadline:  # slow storage, large records, or a busy interpreter
                break
        return records + self._pooled_read(places[len(records) :])

    def _check_unchanged(self, numbers: Any) -> None:
        """Refuses to read on in files that were written to, or replaced: memory that is mapped to a
        file that was cut off must not be touched, or the system ends the process.
        """
        for number in numbers:
            _, opened_as = self._readers.get(number) or self._open(number)
            if _status(self._files.local_path(number)) != opened_as:
                raise changed(
                    self._files.paths[number], "it was written to or replaced while it was read"
                )

    def _open(self, number: int) -> tuple[Any, tuple[int, int]]:
        path, size = self._files.paths[number], self._files.sizes[number]
        located = self._files.local_path(number)
        opened_as = _status(located)
        if opened_as[0] != size:
            raise changed(path, f"it had {size} bytes and has {opened_as[0]}")
        bagz = _library()
        try:
            # The library takes a comma for the end of a path, and a folder may have one in its
            # name.
            reader = bagz.Reader(os.path.relpath(located) if "," in located else located)
        except ValueError as error:
            raise damaged(path, 0, f"it is no Bagz file ({error})", _REMEDY) from error
        return self._readers.setdefault(number, (reader, opened_as))

    def _read(self, number: int, position: int) -> bytes:
        reader, _ = self._readers.get(number) or self._open(number)
        try:
            record: bytes = reader[position]
        except (ValueError, IndexError) as error:
            raise self._damaged(number, position, error) from error
        return record

    def _damaged(self, number: int, position: int, error: Exception) -> DamagedFileError:
        path, size = self._files.paths[number], self._files.sizes[number]
        words = self._words(number, max(position - 1, 0), position + 1).tolist()
        begin, end = words if position else (0, *words)
        last = int(self._words(number, -1, 0)[0])
        if not begin <= end <= last:
            word = last + _WORD_BYTES * position
            return damaged(
                path,
                min(word, size),
                f"record {position} is said to be from byte {begin} to {end}",
                _REMEDY,
            )
        return damaged(
            path, begin, f"record {position}, up to byte {end}, cannot be read ({error})", _REMEDY
        )

    def _words(self, number: int, first: int, stop: int) -> NDArray[np.uint64]:
        """Returns the ends of the records ``first`` to ``stop - 1`` of a file; negative ones and 0
        are counted from its end.
        """
        bounds = self._shards.bounds
        num_records = bounds[number + 1] - bounds[number]
        first, stop = (num_records + first, num_records + stop) if first < 0 else (first, stop)
        table = self._files.sizes[number] - _WORD_BYTES * num_records
        data = self._files.read(
            [(number, table + _WORD_BYTES * first, table + _WORD_BYTES * stop)]
        )[0]
        return np.frombuffer(data, "<u8")

    def _pooled_read(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads by the library's threads. They give empty records, and no error, for damaged
        compressed ones.
        """
        found: dict[tuple[int, int], bytes] = {}
        for number in {number for number, _ in places}:
            positions = sorted({position for of, position in places if of == number})
            reader, _ = self._readers.get(number) or self._open(number)
            try:
                records = reader.read_indices(positions)
            except ValueError:
                continue  # it is met below, in order
            found.update(
                {
                    (number, position): record
                    for position, record in zip(positions, records, strict=True)
                    if record
                }
            )
        return [found.get(place) or self._read(*place) for place in places]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The sizes of all records, in bytes. Reads 8 bytes per record.

        Raises:
            AttributeError: records are compressed, so their lengths are unknown.
        """
        compressed = next((path for path in self._files.paths if path.endswith(".bagz")), None)
        if compressed is not None:
            raise AttributeError(
                f"lengths: the records of {compressed} are compressed: only reading them tells"
                " their sizes"
            )
        parts = [
            np.diff(self._words(number, 0, end - start).astype(np.int64), prepend=0)
            for number, (start, end) in enumerate(itertools.pairwise(self._shards.bounds))
            if end > start
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def close(self) -> None:
        """Closes all files. The next read opens them again."""
        super().close()
        self._files.close()

    def __repr__(self) -> str:
        return f"BagDataSource({self._files.described()})"


def _library() -> Any:
    try:
        import bagz
    except ImportError as error:
        if sys.platform != "linux":
            raise ImportError(
                "BagDataSource needs the package bagz, which exists for Linux only: read the files"
                " there, or keep the data in another format (ArrayRecordDataSource, ParquetSource)"
            ) from error
        raise missing_package("bagz", "bagz", "BagDataSource") from error
    return bagz


def _status(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns


def _expanded(paths: Any) -> list[str]:
    """Returns the files that ``paths`` stands for."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if (
        not isinstance(paths, Sequence)
        or not all([isinstance(path, str | os.PathLike) for path in paths])
        or not paths
    ):
        return list_files("paths", paths)  # which says what is wrong
    found: list[str] = []
    for path in paths:
        for part in re.split(r",(?![^{]*\})", str(os.fspath(path))):
            if is_url(part) and not part.startswith("file://"):
                raise ValueError(
                    "paths must be local files, as the library bagz maps them into memory, got"
                    f" {part!r}: keep a copy on disk, by gristmill.sources.cached(urls, folder,"
                    " max_bytes=...); bagz.Reader itself, which is a source as it is, reads gs://"
                    " with the package bagz-gcs"
                )
            found += _shards(part.removeprefix("file://"))
    for path in found:
        if "," in path or re.fullmatch(_SHARDS, path):
            raise ValueError(
                f"paths: the library takes the name {path!r} for that of several files: rename the"
                " file"
            )
    return found


def _shards(path: str) -> list[str]:
    """Returns ``name-00000-of-00003.bagz`` and so on, of ``name@3.bagz``; of another path what the
    pattern stands for.
    """
    match = re.fullmatch(_SHARDS, path)
    if match is None:
        return list_files("paths", path)
    name, number, suffix = match[1], match[2], match[3] or ""
    if number == "*":
        beside = [file.name for file in Path(name).parent.glob("*")]
        first_shard = re.escape(Path(name).name) + r"-00000-of-(\d{5})" + re.escape(suffix)
        numbers = [re.fullmatch(first_shard, file) for file in beside]
        counts = sorted({int(found[1]) for found in numbers if found is not None})
        if len(counts) != 1:
            what = f"several sets of shards, of {counts}" if counts else "no first shard"
            raise FileNotFoundError(
                f"paths: there is {what} for {path!r}: name the shards you mean, as"
                f" {name}@8{suffix}"
            )
        number = str(counts[0])
    files = [f"{name}-{shard:05d}-of-{int(number):05d}{suffix}" for shard in range(int(number))]
    missing = [file for file in files if not Path(file).exists()]
    if missing or not files:
        raise FileNotFoundError(
            f"paths: of the {number} shards of {path!r}, {len(missing)} are missing: {missing[:3]}"
        )
    return files
