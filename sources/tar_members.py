"""The files in tar archives (POSIX, and what GNU tar and Python's ``tarfile`` write), found by
their headers.

``tarfile`` is not used: it takes several times as long for a header, and one that is damaged ends
the archive for it without an error, so that all files after it would be missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from gristmill.sources.storage.errors import DamagedFileError, damaged
from gristmill.sources.storage.files import Files

BLOCK_BYTES = 512  # headers and data begin at multiples of it
_MAX_EXTENDED_BYTES = 1 << 24  # a damaged size must not allocate memory for data that do not exist
_MAX_EMPTY_BYTES = 1 << 20  # most that programs fill up an archive with, without files
_REMEDY = "Write the archive again, or leave it out"
_FILES = b"0\x007"  # types: a file, one of old programs, one of those that know contiguous files
_WITHOUT_DATA = b"\x00123456"  # links, devices, folders; an old program's folder
_EXTENDED = b"xXgLK"  # headers of the next members
_PASSED_OVER = b"DV"  # GNU tar's lists of folders, and names of volumes
_USED = (b"path", b"linkpath", b"size")  # the keywords of extended headers that are used
_SPARSE = b"GNU.sparse"  # prefix of their keywords for a file that is not stored in one piece
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}


Kind = Literal["file", "hard link", "symbolic link", "other"]
"""Kind of a member; folders, devices and names of volumes are ``"other"``."""
_LINKS: dict[int, Kind] = {ord("1"): "hard link", ord("2"): "symbolic link"}


class TarMember(NamedTuple):
    """Member of an archive.

    Attributes:
        name: its name.
        start: the offset of its data in the archive.
        size: the number of bytes of its data.
        header_crc: a checksum of the header before the data.
        kind: its kind; only files have data.
        offset: the offset of its header.
        target: the name that a link points to.
    """

    name: str
    start: int
    size: int
    header_crc: int
    kind: Kind
    offset: int
    target: str


def header_crc(block: bytes) -> int:
    """Return a checksum of a header: files with the same one have the same name, size and time."""
    return zlib.crc32(block)


def is_header(block: bytes) -> bool:
    """True if these 512 bytes are the header of a member: it contains the sum of its bytes."""
    try:
        stated = _octal(block[148:156])
    except ValueError:
        return False
    others = block[:148] + b" " * 8 + block[156:]
    found = sum(others)
    if stated != found:
        found -= 256 * sum([byte > 127 for byte in others])  # old programs took bytes for signed
    return stated == found and len(block) == BLOCK_BYTES


def tar_members(
    files: Files,
    number: int,
    window_bytes: int = 1 << 12,
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[TarMember]:
    """Yields all members of archive ``number`` of ``files``, in its order.

    Args:
        window_bytes: how much to read at a time, more than the 512 bytes of a header: what can be
            read while one waits for an answer. Data that are longer are not read.
        progress: called with the number of bytes that have been passed.

    Raises:
        DamagedFileError: the file is no archive, is cut off or damaged.
        ValueError: it is compressed, or has a file that is not stored in one piece.
        OSError: it cannot be read.

    Example:
        >>> import io, os, tarfile, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "letters.tar")
        >>> with tarfile.open(path, "w") as tar:
        ...     member = tarfile.TarInfo("a.txt")
        ...     member.size = 3
        ...     tar.addfile(member, io.BytesIO(b"abc"))
        >>> [(member.name, member.start, member.size) for member in tar_members(Files([path]), 0)]
        [('a.txt', 512, 3)]
    """
    return _Archive(files, number, window_bytes).members(progress)


class _Archive:
    """One pass over the headers of an archive."""

    def __init__(self, files: Files, number: int, window_bytes: int) -> None:
        self._files = files
        self._number = number
        self._path = files.paths[number]
        self._size = files.sizes[number]
        self._window_bytes = window_bytes
        self._window, self._window_start = b"", 0

    def members(self, progress: Callable[[int], object]) -> Iterator[TarMember]:
        of_all: dict[bytes, bytes] = {}  # headers of all members from here on
        of_next: dict[bytes, bytes] = {}
        offset = 0
        while block := self._header(offset):
            if block[156] in _EXTENDED:
                stated, stop = self._extended(block, offset)
                if block[156:157] == b"g":
                    of_all |= stated
                else:
                    of_next |= stated
            else:
                member, stop = self._member(block, offset, of_all | of_next)
                of_next = {}
                yield member
            progress(stop)
            offset = stop
        if of_next:
            raise self._damaged(offset, "the archive ends behind a header that announces a file")

    def _header(self, offset: int) -> bytes:
        """Return the header at ``offset``; nothing at the end of the archive."""
        block = self._read(offset, BLOCK_BYTES)
        if is_header(block):
            return block
        if not offset:
            self._check_format(block)
        if block.strip(b"\0"):
            raise self._damaged(
                offset,
                (
                    "the header of a file is cut off"
                    if len(block) < BLOCK_BYTES
                    else "there is no header"
                ),
            )
        self._check_rest(offset)
        return b""

    def _check_format(self, block: bytes) -> None:
        for magic, name in _COMPRESSIONS.items():
            if block.startswith(magic):
                raise ValueError(
                    f"{self._path} is compressed ({name}): nothing in it can be found without"
                    " reading all that is before. Unpack it to a plain tar archive; images and the"
                    " like gain nothing from compression"
                )
        if block.strip(b"\0") or len(block) < BLOCK_BYTES or self._size > _MAX_EMPTY_BYTES:
            what = "it is empty" if not block else f"it begins with {block[:16]!r}"
            raise damaged(self._path, 0, f"{what}, which is no header of a tar archive", _REMEDY)

    def _check_rest(self, offset: int) -> None:
        """Behind the end of an archive, a block of zeros, is nothing but zeros."""
        while piece := self._read(offset, min(self._size - offset, 1 << 20)):
            if rest := piece.lstrip(b"\0"):
                offset += len(piece) - len(rest)
                raise damaged(
                    self._path,
                    offset,
                    "the archive has ended before, but there is something",
                    "If archives were written one after another, use each by itself, or join them"
                    " with tar --concatenate; if not, write the archive again",
                )
            offset += len(piece)

    def _member(
        self, block: bytes, offset: int, stated: dict[bytes, bytes]
    ) -> tuple[TarMember, int]:
        """Return the member whose header is at ``offset``, and the offset after it."""
        kind = block[156]
        name = stated.get(b"path") or _name(block)
        is_file = kind in _FILES and not (kind == 0 and name.endswith(b"/"))
        shown = name.decode("utf-8", "surrogateescape")
        if kind == ord("S") or any([key.startswith(_SPARSE) for key in stated]):
            raise ValueError(
                f"{self._path} has at byte {offset} a file that is not stored in one piece,"
                f" {shown!r}: write the archive without --sparse"
            )
        if not is_file and kind not in _WITHOUT_DATA + _PASSED_OVER:
            raise self._damaged(offset, f"{shown!r} is of the unknown kind {block[156:157]!r}")
        start = offset + BLOCK_BYTES
        size = self._num_bytes(block, offset, stated.get(b"size"))
        stop = self._stop(
            start + size if is_file or kind not in _WITHOUT_DATA else start, offset, shown
        )
        target = stated.get(b"linkpath") or block[157:257].split(b"\0", 1)[0]
        return (
            TarMember(
                shown,
                start,
                size,
                header_crc(block),
                "file" if is_file else _LINKS.get(kind, "other"),
                offset,
                target.decode("utf-8", "surrogateescape") if kind in _LINKS else "",
            ),
            stop,
        )

    def _extended(self, block: bytes, offset: int) -> tuple[dict[bytes, bytes], int]:
        """Return the contents of an extended header, and its end."""
        start = offset + BLOCK_BYTES
        size = self._num_bytes(block, offset)
        stop = self._stop(start + size, offset, "an extended header")
        if size > _MAX_EXTENDED_BYTES:
            raise self._damaged(offset, f"an extended header of {size} bytes is too long")
        data = self._read(start, size)
        if block[156] in b"LK":  # GNU tar's: the whole text
            key = b"path" if block[156:157] == b"L" else b"linkpath"
            return {key: data.split(b"\0", 1)[0]}, stop
        try:
            records = _pax_records(data)
            stated = {
                key: value for key, value in records if key in _USED or key.startswith(_SPARSE)
            }
            if any([b"\0" in stated.get(key, b"") for key in (b"path", b"linkpath")]):
                raise ValueError
            return stated, stop
        except ValueError:
            raise self._damaged(start, f"there is no extended header, but {data[:32]!r}") from None

    def _num_bytes(self, block: bytes, offset: int, stated: bytes | None = None) -> int:
        """Return the length of the data of a member, from its header or from an earlier extended
        one.
        """
        try:
            size = int(stated) if stated else _size(block[124:136])
        except ValueError:
            size = -1
        if size < 0:
            raise self._damaged(offset, f"{stated or block[124:136]!r} is no size of a file")
        return size

    def _stop(self, stop: int, offset: int, what: str) -> int:
        """Return the end of a member whose data end at ``stop``."""
        stop += -stop % BLOCK_BYTES
        if stop > self._size:
            raise self._damaged(
                offset,
                f"{what!r}, which begins there, would end at byte {stop}; the archive has"
                f" {self._size}",
            )
        return stop

    def _read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start`` on; fewer at the end of the archive."""
        begin = start - self._window_start
        if not 0 <= begin <= len(self._window) - size:
            stop = min(start + max(size, self._window_bytes), self._size)
            self._window = (
                self._files.read([(self._number, start, stop)])[0] if start < stop else b""
            )
            self._window_start, begin = start, 0
        return self._window[begin : begin + size]

    def _damaged(self, offset: int, what: str) -> DamagedFileError:
        return damaged(self._path, offset, what, _REMEDY)


def _octal(field: bytes) -> int:
    return int(field.split(b"\0", 1)[0].strip() or b"0", 8)


def _size(field: bytes) -> int:
    if field[0] & 0x80:  # large numbers, as GNU tar and others write them
        return int.from_bytes(field[1:], "big") + ((field[0] & 0x7F) << 88)
    return _octal(field)


def _name(block: bytes) -> bytes:
    """Return the name in a header, of at most 255 bytes; a longer one in an earlier header replaces
    it.
    """
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs in an extended header, each written as ``length name=value`` and a newline.

    Raises:
        ValueError: there is something else.
    """
    start = 0
    while start < len(data):
        space = data.index(b" ", start)
        stop = start + int(data[start:space])
        name, equals, value = data[space + 1 : stop - 1].partition(b"=")
        if not equals or data[stop - 1 : stop] != b"\n" or stop <= space:
            raise ValueError
        yield name, value
        start = stop
