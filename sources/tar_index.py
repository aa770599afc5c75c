"""What is noted about tar archives: for each record its key, and where its files are.

The arrays of an index: ``starts``, where the entry of each record begins, and the last one ends; ``entries``, the entries, each
with a checksum of its own; ``lengths``, how many bytes the files of each record have.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.sources.storage.errors import DamagedFileError, damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.sidecar import Sidecar
from gristmill.sources.tar_members import BLOCK_BYTES, Member, tar_members

_NUMBER = struct.Struct("<I")
_CHECKSUM_AND_NUMBER = struct.Struct("<II")  # before the files of an entry: how many
_FILE = struct.Struct("<qqI")  # where its data begin, their size, the checksum of the header
_HIDDEN = re.compile(r"__[^/]*__(?:/|$)")


File = tuple[str, int, int, int]
"""A file of a record: its extension; where its data begin, their size, the checksum of its header."""


class Entry(NamedTuple):
    """What an index says of a record."""

    key: str
    files: list[File]


def index_archive(files: Files, number: int, progress: Callable[[int], None], window_bytes: int) -> Mapping[str, np.ndarray]:
    """The arrays of an index. For ``progress``, ``window_bytes`` and what is raised see ``tar_members``."""
    members = tar_members(files, number, window_bytes, progress)
    starts, lengths, entries = [0], [], bytearray()
    for entry in _grouped(members, files.paths[number]):
        entries += _packed(entry)
        starts.append(len(entries))
        lengths.append(sum([size for _, _, size, _ in entry.files]))
    return {
        "starts": np.array(starts, "<i8"),
        "entries": np.frombuffer(entries, np.uint8),
        "lengths": np.array(lengths, "<i8"),
    }


def _grouped(members: Iterable[Member], path: str) -> Iterator[Entry]:
    """The records in an archive. Raises ``DamagedFileError`` if it cannot be told what belongs to one."""
    keys: set[str] = set()
    entry: Entry | None = None
    num_files = 0
    for name, start, size, crc in members:
        num_files += 1
        parts = _key_and_extension(name)
        if parts is None:
            continue
        key, extension = parts
        if entry is None or key != entry.key:
            if entry is not None:
                yield entry
            if key in keys:
                raise damaged(
                    path,
                    start - BLOCK_BYTES,
                    f"the files of the record {key!r} lie apart: before {name!r} are files of other records",
                    "Write the archive with the files of a record together, by tar --sort=name for example",
                )
            keys.add(key)
            entry = Entry(key, [])
        if extension == "__key__" or any([extension == other for other, *_ in entry.files]):
            raise damaged(
                path,
                start - BLOCK_BYTES,
                f"the record {key!r} has {extension!r} already, and here again",
                "Write the archive with each file once, and names that differ before their first dot for different records",
            )
        entry.files.append((extension, start, size, crc))
    if entry is not None:
        yield entry
    elif num_files:
        raise damaged(
            path, 0, f"none of its {num_files} files belongs to a record", "Name them by key and extension, such as 0001.jpg"
        )


def _key_and_extension(name: str) -> tuple[str, str] | None:
    """The key of the record that a file belongs to, and the file's name in it; ``None`` if it belongs to none.

    Example:
        >>> _key_and_extension("train/0001.seg.PNG"), _key_and_extension("README"), _key_and_extension("__about__/x.json")
        (('train/0001', 'seg.png'), None, None)
    """
    stem, dot, extension = name.rpartition("/")[2].partition(".")
    if not stem or not dot or _HIDDEN.match(name):
        return None
    return name[: -len(extension) - 1], extension.lower()


def _packed(entry: Entry) -> bytes:
    names = "\0".join([entry.key, *[extension for extension, *_ in entry.files]])
    files = [_FILE.pack(*numbers) for _, *numbers in entry.files]
    packed = b"".join([_NUMBER.pack(len(files)), *files, names.encode("utf-8", "surrogateescape")])
    return _NUMBER.pack(zlib.crc32(packed)) + packed


def _unpacked(packed: bytes) -> Entry:
    """What was packed. Raises ``ValueError`` or ``struct.error`` for anything else."""
    checksum, num_files = _CHECKSUM_AND_NUMBER.unpack_from(packed)
    if zlib.crc32(packed[_NUMBER.size :]) != checksum:
        raise ValueError
    names = _CHECKSUM_AND_NUMBER.size + num_files * _FILE.size
    key, *extensions = packed[names:].decode("utf-8", "surrogateescape").split("\0")
    numbers = _FILE.iter_unpack(packed[_CHECKSUM_AND_NUMBER.size : names])
    return Entry(key, [(extension, *those) for extension, those in zip(extensions, numbers, strict=True)])


def read_entries(index: Sidecar, numbers: Sequence[int]) -> list[Entry]:
    """What the index says of the records of these ascending numbers, which lie close together, in two reads."""
    first, stop = numbers[0], numbers[-1] + 1
    starts = index.read("starts", first, stop + 1)
    begin, end = int(starts[0]), int(starts[-1])
    try:
        if not 0 <= begin <= end <= index.length("entries"):
            raise ValueError
        entries = index.read("entries", begin, end).tobytes()
        places = starts[np.array(numbers)[:, None] + [-first, 1 - first]] - begin
        return [_unpacked(entries[start:stop]) for start, stop in places.tolist()]
    except (ValueError, struct.error) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(
            f"{index.path} is damaged: what it says of the records {first} to {numbers[-1]} is not what was written. Delete it, "
            "and make the source anew"
        ) from None
