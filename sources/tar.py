"""Records of WebDataset shards: tar archives in which the files of one stem are a record."""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.errors import DamagedFileError, changed, damaged
from gristmill.sources.storage.files import Files, is_url, list_files
from gristmill.sources.storage.sidecar import Sidecar, open_sidecars, without_sidecars
from gristmill.sources.tar_index import (
    File,
    TarIndexEntry,
    index_archive,
    is_tar_index,
    read_entries,
)
from gristmill.sources.tar_members import BLOCK_BYTES, header_crc, is_header

# bytes that are read while one waits for an answer
_LOCAL_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 22
_NEAR_RECORDS = 256  # entries at most that far apart are read at once
_MANY_RECORDS = 1 << 14  # of which all entries are read
_NEAR_BYTES = 1 << 11  # parts of a record at most that far apart are read at once
# longer parts are read by themselves, so that they need not be cut out of what was read
_COPIED_BYTES = 1 << 15


_log = logging.getLogger("gristmill")


class TarSource(ShardedSource[dict[str, Any]]):
    """The records of WebDataset shards, which are tar archives: files of one stem are a record.

    A record is a dictionary: its key under ``"__key__"``, and the bytes of each of its files under
    the file's extension, in the order of the archive. The extension is what follows the first dot
    of a file's name, in small letters; the key is what is before it, with the folder. Nothing is
    decoded: that is for a ``map``. There is no ``"__url__"``: records are the same wherever the
    data are.

    The files of a record must be neighbours in the archive, as for WebDataset. As there, folders,
    files without an extension, hidden files (``.name``) and those whose name, or first folder,
    begins and ends with ``__`` belong to no record. A hard link has the bytes of the file that it
    points to, which must be before it in the archive. Symbolic links are missing from their
    records; a warning counts them.

    The first time an archive is seen its headers are read, not its data, and an index is written:
    to ``<archive>.gmidx``, or into ``index_dir``. From then on a record takes one read, and one
    more for each large file. The header of a file is compared with the index whenever the file is
    read; of data, tar has no checksums.

    Args:
        patterns: a path or URL, or a non-empty sequence of them. ``*``, ``?``, ``[abc]`` and ``**``
            stand for what is there, in the order of the names, ``{a,b}`` and ``{000..127}`` for all
            of these. Archives must not be compressed.
        extensions: the only files to read; the bytes of others stay on disk. A record without one
            of them lacks its entry.
        index_dir: a folder for indices, for data whose own folder cannot be written.
        filesystem: an fsspec file system to read everything through.

    Raises:
        FileNotFoundError: nothing is there for one of the patterns.
        DamagedFileError: a file is no tar archive, is cut off or damaged; files of a record are not
            together, or two have one extension; a hard link points to no file before it; nothing in
            an archive belongs to a record.
        ValueError: an archive is compressed or has sparse files.
        OSError: a file cannot be read, or its index cannot be written.

    Example:
        >>> import io, os, tarfile, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "shard-000.tar")
        >>> with tarfile.open(path, "w") as tar:
        ...     for name, data in [
        ...         ("0.jpg", b"..."),
        ...         ("0.cls", b"7"),
        ...         ("1.jpg", b"...."),
        ...         ("1.cls", b"3"),
        ...     ]:
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(data)
        ...         tar.addfile(member, io.BytesIO(data))
        >>> source = TarSource(path)
        >>> len(source), source[1]
        (2, {'__key__': '1', 'jpg': b'....', 'cls': b'3'})
        >>> TarSource(path, extensions=["cls"])[0]
        {'__key__': '0', 'cls': b'7'}
    """

    def __init__(
        self,
        patterns: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        extensions: Sequence[str] | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
    ) -> None:
        self._extensions = _checked_extensions(extensions)
        paths = without_sidecars(list_files("patterns", patterns, filesystem))
        if not paths:
            raise FileNotFoundError(
                f"patterns: {patterns!r:.200} names indices (.gmidx) alone, and no archive"
            )
        self._files = Files(paths, filesystem)
        self._indices = open_sidecars(
            self._files,
            "tar",
            functools.partial(_scan, filesystem is not None),
            fits=is_tar_index,
            index_dir=index_dir,
            filesystem=filesystem,
        )
        self._shards = ShardMap([index.length("lengths") for index in self._indices])
        self._lengths: np.ndarray | None = None
        self._start_closed()
        self._warn_of_links()

    def _warn_of_links(self) -> None:
        num_links = [index.length("links") for index in self._indices]
        if any(num_links):
            archive = next(number for number, num in enumerate(num_links) if num)
            index = self._indices[archive]
            example = bytes(index.read("example", 0, index.length("example")))
            _log.warning(
                "TarSource: symbolic links are not followed: %d are missing from their records, "
                "such as %r of %s. Write the archives with the files themselves, by "
                "tar --dereference for example",
                sum(num_links),
                example.decode("utf-8", "surrogateescape"),
                self._files.paths[archive],
            )

    @property
    def paths(self) -> list[str]:
        """The archives, in the order of their records."""
        return list(self._files.paths)

    @property
    def lengths(self) -> np.ndarray:
        """The number of bytes of the files of each record, those of ``extensions`` alone; from the
        index, at the first call.
        """
        if self._lengths is None:
            lengths = np.concatenate([self._lengths_in(index) for index in self._indices])
            lengths.setflags(write=False)
            self._lengths = lengths
        return self._lengths

    def _lengths_in(self, index: Sidecar) -> np.ndarray:
        num_records = index.length("lengths")
        if self._extensions is None:
            lengths = index.read("lengths", 0, num_records)
            if (lengths < 0).any():
                raise damaged(
                    index.path,
                    0,
                    "a record has fewer than 0 bytes",
                    "Delete it, and make the source again",
                )
            return lengths
        found = [
            sum([size for extension, _, size, _ in entry.files if extension in self._extensions])
            for start in range(0, num_records, _MANY_RECORDS)
            for entry in read_entries(index, range(start, min(start + _MANY_RECORDS, num_records)))
        ]
        return np.array(found, np.int64)

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        entries = self._entries(places)
        ranges: list[tuple[int, int, int]] = []
        planned = [self._plan(place, entries[place], ranges) for place in places]
        pieces = self._files.read(ranges)
        records = []
        for place, files in zip(places, planned, strict=True):
            record: dict[str, Any] = {"__key__": entries[place].key}
            for file, piece, header in files:
                extension, start, size, crc = file
                data_start = header + BLOCK_BYTES
                block = pieces[piece][header:data_start]
                if header_crc(block) != crc:
                    raise self._other_header(
                        place[0], f"{entries[place].key}.{extension}", start - BLOCK_BYTES, block
                    )
                is_alone = size > _COPIED_BYTES
                record[extension] = (
                    pieces[piece + 1] if is_alone else pieces[piece][data_start : data_start + size]
                )
            records.append(record)
        return records

    def _plan(
        self, place: tuple[int, int], entry: TarIndexEntry, ranges: list[tuple[int, int, int]]
    ) -> list[tuple[File, int, int]]:
        """Appends what has to be read for a record to ``ranges``.

        Returns, for each file, the range that its header is in and where it begins there. The data
        follow the header; those of a large file are the next range.
        """
        archive = place[0]
        planned = []
        # of the range that the next file may be read with; none at first and after a large one
        begin = end = -1
        for file in self._chosen(place, entry):
            _, start, size, _ = file
            header, stop = start - BLOCK_BYTES, start + size
            is_alone = size > _COPIED_BYTES
            together = start if is_alone else stop
            is_near = begin >= 0 and 0 <= header - end <= _NEAR_BYTES  # hard links lead back
            if is_near and together - begin <= _COPIED_BYTES:
                ranges[-1] = archive, begin, together
            else:
                begin = header
                ranges.append((archive, header, together))
            planned.append((file, len(ranges) - 1, header - begin))
            end = together
            if is_alone:
                ranges.append((archive, start, stop))
                begin = end = -1
        return planned

    def _entries(self, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], TarIndexEntry]:
        """Returns the entries of these records in the indices. Entries that are close together are
        read at once.
        """
        entries: dict[tuple[int, int], TarIndexEntry] = {}
        for archive, numbers in itertools.groupby(sorted(set(places)), operator.itemgetter(0)):
            for run in _runs([number for _, number in numbers]):
                found = read_entries(self._indices[archive], run)
                entries.update(zip([(archive, number) for number in run], found, strict=True))
        return entries

    def _chosen(self, place: tuple[int, int], entry: TarIndexEntry) -> list[File]:
        if self._extensions is None:
            return entry.files
        chosen = [file for file in entry.files if file[0] in self._extensions]
        if not chosen:
            raise ValueError(
                f"extensions: the record {entry.key!r} of {self._files.paths[place[0]]} has none of"
                f" {sorted(self._extensions)}; it has"
                f" {[extension for extension, *_ in entry.files]}"
            )
        return chosen

    def _other_header(self, archive: int, name: str, offset: int, block: bytes) -> DamagedFileError:
        path, index = self._files.paths[archive], self._indices[archive].path
        if is_header(block):
            return changed(
                path,
                f"at byte {offset} is not the file {name!r} that its index has there. Delete"
                f" {index}",
            )
        return damaged(
            path,
            offset,
            f"there is no header, where its index has that of {name!r}",
            f"Copy the archive again; if it was written again, delete {index} and make the source"
            " again",
        )

    def close(self) -> None:
        """Closes all archives and their indices. The next read opens them again."""
        super().close()
        self._files.close()
        for index in self._indices:
            index.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lengths": None}

    def __repr__(self) -> str:
        extensions = "" if self._extensions is None else f", extensions={sorted(self._extensions)}"
        return f"TarSource({self._files.described()}{extensions})"


def _checked_extensions(extensions: Any) -> frozenset[str] | None:
    if extensions is None:
        return None
    if isinstance(extensions, str) or not isinstance(extensions, Sequence | frozenset | set):
        raise TypeError(
            "extensions must be a list of extensions, such as ['jpg', 'cls'], got"
            f" {extensions!r:.200}"
        )
    if not extensions or not all(isinstance(extension, str) for extension in extensions):
        raise ValueError(
            f"extensions must have items that are text, and at least one, got {extensions!r:.200}"
        )
    return frozenset(extension.lower().removeprefix(".") for extension in extensions)


def _scan(
    is_remote: bool, files: Files, number: int, progress: Callable[[int], None]
) -> Mapping[str, np.ndarray]:
    is_remote = is_remote or is_url(files.paths[number])
    return index_archive(files, number, progress, _REMOTE_WINDOW if is_remote else _LOCAL_WINDOW)


def _runs(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Yields ascending numbers, grouped by closeness.

    Example:
        >>> list(_runs([1, 2, 5, 1000, 1001]))
        [[1, 2, 5], [1000, 1001]]
    """
    run: list[int] = []
    for number in numbers:
        if run and number - run[-1] > _NEAR_RECORDS:
            yield run
            run = []
        run.append(number)
    yield run
