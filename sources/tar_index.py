"""Index of a tar archive: for each record its key and the places of its files.

The arrays of an index:

- ``starts``: the offset of each record's entry in ``entries``, and the end of the last one
- ``entries``: the entries, each with a checksum of its own
- ``lengths``: the number of bytes of each record's files
- ``links``: the offsets of the headers of symbolic links that are missing from their records
- ``example``: the name of the first of these links
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import normpath
from typing import NamedTuple

import numpy as np

from gristmill.sources.storage.errors import DamagedFileError, damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.sidecar import Sidecar
from gristmill.sources.tar_members import TarMember, tar_members

_NUMBER = struct.Struct("<I")
_CHECKSUM_AND_NUMBER = struct.Struct("<II")  # before the files of an entry: how many
_FILE = struct.Struct("<qqI")  # where its data begin, their size, the checksum of the header
_HIDDEN = re.compile(r"__[^/]*__(?:/|$)")


File = tuple[str, int, int, int]
"""A file of a record: its extension; where its data begin, their size, the checksum of its
header.
"""


class TarIndexEntry(NamedTuple):
    """The entry of a record in an index."""

    key: str
    files: list[File]


def index_archive(
    files: Files, number: int, progress: Callable[[int], None], window_bytes: int
) -> Mapping[str, np.ndarray]:
    """Return the arrays of an index.

    For ``progress``, ``window_bytes`` and errors see ``tar_members``.
    """
    starts, lengths, entries = [0], [], bytearray()
    links: list[TarMember] = []
    members = _resolved(files, number, window_bytes, progress)
    for entry in _grouped(members, files.paths[number], links):
        entries += _packed(entry)
        starts.append(len(entries))
        lengths.append(sum([size for _, _, size, _ in entry.files]))
    example = links[0].name.encode("utf-8", "surrogateescape") if links else b""
    return {
        "starts": np.array(starts, "<i8"),
        "entries": np.frombuffer(entries, np.uint8),
        "lengths": np.array(lengths, "<i8"),
        "links": np.array([link.offset for link in links], "<i8"),
        "example": np.frombuffer(example, np.uint8),
    }


def is_tar_index(sizes: Mapping[str, tuple[str, int]]) -> bool:
    """Returns true if ``index_archive`` may have made arrays of these dtypes and lengths."""
    dtypes = {"starts": "<i8", "entries": "|u1", "lengths": "<i8", "links": "<i8", "example": "|u1"}
    if {name: dtype for name, (dtype, _) in sizes.items()} != dtypes:
        return False
    return sizes["starts"][1] == sizes["lengths"][1] + 1


def _resolved(
    files: Files, number: int, window_bytes: int, progress: Callable[[int], None]
) -> Iterator[TarMember]:
    """Yields the members of an archive, hard links with kind and data of the member they point to.

    A link stays as it is if no member before it has that name. A link whose target has the same
    name is skipped: tar writes one for a file that is stored twice.
    """
    before: dict[str, TarMember] | None = None  # by name
    for count, member in enumerate(tar_members(files, number, window_bytes, progress)):
        if member.kind == "hard link":
            # Headers are read twice here, because most archives have no links.
            if before is None:
                first = itertools.islice(tar_members(files, number, window_bytes), count)
                before = {normpath(other.name): other for other in first}
            target = before.get(normpath(member.target), member)
            namesake = before.get(normpath(member.name))
            if namesake is not None and namesake[1:5] == target[1:5]:
                continue
            member = target._replace(name=member.name, offset=member.offset, target=member.target)
        if before is not None:
            before[normpath(member.name)] = member
        yield member


def _grouped(
    members: Iterable[TarMember], path: str, links: list[TarMember]
) -> Iterator[TarIndexEntry]:
    """Yields the records in an archive.

    Symbolic links that are missing from the records are appended to ``links``.

    Raises:
        DamagedFileError: it is not known which files belong to a record.
    """
    keys: set[str] = set()
    extensions: set[str] = set()  # of the record that is being put together
    entry: TarIndexEntry | None = None
    counts = {"file": 0, "hard link": 0, "symbolic link": 0, "other": 0}
    for member in members:
        counts[member.kind] += 1
        parts = _key_and_extension(member.name)
        if parts is None or member.kind == "other":
            continue
        if member.kind == "symbolic link":
            links.append(member)
            continue
        if member.kind == "hard link":
            raise damaged(
                path,
                member.offset,
                f"{member.name!r} is a hard link to {member.target!r}, and no file before it in the"
                " archive has that name",
                "Write the archive with both files, or without hard links, by tar"
                " --hard-dereference for example",
            )
        key, extension = parts
        if entry is None or key != entry.key:
            if entry is not None:
                yield entry
            if key in keys:
                raise damaged(
                    path,
                    member.offset,
                    f"the files of the record {key!r} lie apart: before {member.name!r} are files"
                    " of other records",
                    "Write the archive with the files of a record together, by tar --sort=name for"
                    " example",
                )
            keys.add(key)
            entry, extensions = TarIndexEntry(key, []), {"__key__"}
        if extension in extensions:
            raise damaged(
                path,
                member.offset,
                f"the record {key!r} has {extension!r} already, and here again",
                "Write the archive with each file once, and names that differ before their first"
                " dot for different records",
            )
        extensions.add(extension)
        entry.files.append((extension, member.start, member.size, member.header_crc))
    if entry is not None:
        yield entry
    elif any(counts.values()):
        raise _without_records(path, counts)


def _without_records(path: str, counts: Mapping[str, int]) -> DamagedFileError:
    num_files, num_links = counts["file"] + counts["hard link"], counts["symbolic link"]
    others = ""
    if num_links or counts["other"]:
        others = f"; it has {num_links} symbolic links and {counts['other']} folders and devices"
    remedy = "Name them by key and extension, such as 0001.jpg"
    if num_links:
        remedy += ", and store files in place of symbolic links, by tar --dereference for example"
    return damaged(path, 0, f"none of its {num_files} files belongs to a record{others}", remedy)


def _key_and_extension(name: str) -> tuple[str, str] | None:
    """Returns the key of the record that a file belongs to, and the file's name in it; ``None`` if
    it belongs to none.

    Example:
        >>> (
        ...     _key_and_extension("train/0001.seg.PNG"),
        ...     _key_and_extension("README"),
        ...     _key_and_extension("__about__/x.json"),
        ... )
        (('train/0001', 'seg.png'), None, None)
    """
    stem, dot, extension = name.rpartition("/")[2].partition(".")
    if not stem or not dot or _HIDDEN.match(name):
        return None
    return name[: -len(extension) - 1], extension.lower()


def _packed(entry: TarIndexEntry) -> bytes:
    names = "\0".join([entry.key, *[extension for extension, *_ in entry.files]])
    files = [_FILE.pack(*numbers) for _, *numbers in entry.files]
    packed = b"".join([_NUMBER.pack(len(files)), *files, names.encode("utf-8", "surrogateescape")])
    return _NUMBER.pack(zlib.crc32(packed)) + packed


def _unpacked(packed: bytes) -> TarIndexEntry:
    """Unpacks an entry. Raises ``ValueError`` or ``struct.error`` for anything else."""
    checksum, num_files = _CHECKSUM_AND_NUMBER.unpack_from(packed)
    if zlib.crc32(packed[_NUMBER.size :]) != checksum:
        raise ValueError
    names = _CHECKSUM_AND_NUMBER.size + num_files * _FILE.size
    key, *extensions = packed[names:].decode("utf-8", "surrogateescape").split("\0")
    numbers = _FILE.iter_unpack(packed[_CHECKSUM_AND_NUMBER.size : names])
    return TarIndexEntry(
        key, [(extension, *those) for extension, those in zip(extensions, numbers, strict=True)]
    )


def read_entries(index: Sidecar, numbers: Sequence[int]) -> list[TarIndexEntry]:
    """Returns the entries of the records of these ascending numbers, which are close together, in
    two reads.
    """
    first, stop = numbers[0], numbers[-1] + 1
    starts = index.read("starts", first, stop + 1)
    begin, end = int(starts[0]), int(starts[-1])
    try:
        is_all = stop < index.length("starts") - 1 or end == index.length("entries")
        if not 0 <= begin <= end <= index.length("entries") or (begin and not first) or not is_all:
            raise ValueError
        entries = index.read("entries", begin, end).tobytes()
        places = starts[np.array(numbers)[:, None] + [-first, 1 - first]] - begin
        return [_unpacked(entries[start:stop]) for start, stop in places.tolist()]
    except (ValueError, struct.error) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(
            f"{index.path} is damaged: what it says of the records {first} to {numbers[-1]} is not"
            " what was written. Delete it, and make the source again"
        ) from None
