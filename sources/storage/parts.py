"""Parts of remote files that are kept on a local disk: which bytes of them are there, and which
parts have to go.

A part is a file that begins with a table and holds consecutive blocks of one remote file, each at
its place. The table has a checksum for each page of 4 KB, 0 for one that was never written.

Guarantees for all threads and processes that share a folder, also if one is killed, the machine
stops, the disk is full, or a part is cut, overwritten or damaged by something else, at any moment:

1. Bytes are returned only if the checksums of all their pages are right. A checksum depends on the
   name of the part and on the place of the page, so a right page at a wrong place is not taken for
   another one. A page that was right is not compared again while the size and the time of change of
   the part, which are read after each read, stay the same.
2. A block with a wrong page is fetched and written again. Nothing depends on the order in which
   writes reach the disk.
3. All writers of a block write the same bytes: a part is of one object in one version.
4. Parts are removed as a whole, by their names. A process that has one open continues with it, and
   closes it within a second if it reads at all.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gristmill.core.locks import Lock
from gristmill.sources.storage.posix import fcntl

_BLOCK_BYTES = 1 << 20
_BLOCKS_PER_PART = 256  # many, so that few files have to be open
_PAGE_BYTES = 4096
_SUM_BYTES = 4
_UNIT_BYTES = 1 << 16  # of pages that are compared together if they are trusted afterwards
_CLOCK_NANOSECONDS = 100_000_000  # two writes within this time may have one time of change
SUFFIX = ".part"


class PartLayout(NamedTuple):
    """Sizes of parts, of their blocks, which are fetched whole, and of the pages of blocks."""

    block_bytes: int
    part_bytes: int
    page_bytes: int = _PAGE_BYTES  # for the text alone, which names of parts depend on


def layout_for(max_bytes: int | None) -> PartLayout:
    """Blocks of 1 MB and parts of 256, or smaller ones where few of those would have room.

    Example:
        >>> layout_for(None)
        PartLayout(block_bytes=1048576, part_bytes=268435456, page_bytes=4096)
        >>> layout_for(1 << 20)
        PartLayout(block_bytes=131072, part_bytes=131072, page_bytes=4096)
    """
    part_bytes = _BLOCKS_PER_PART * _BLOCK_BYTES
    if max_bytes is not None:
        part_bytes = min(part_bytes, 1 << ((max_bytes // 8).bit_length() - 1))
    return PartLayout(min(_BLOCK_BYTES, part_bytes), part_bytes)


def _rounded_up(num_bytes: int, unit: int = _PAGE_BYTES) -> int:
    return -(-num_bytes // unit) * unit


def write_all(descriptor: int, data: bytes, place: int) -> None:
    """Writes all of ``data`` at byte ``place`` of a file, of which one call may write only a
    part.
    """
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], place + done)


class Trust(NamedTuple):
    """Pages of a part with right checksums (1, others 0) at this size and time of change."""

    status: tuple[int, int]
    pages: bytearray


class CachePart:
    """A part, open until the last reference to it is gone. All its methods may be called by several
    threads at once.

    Args:
        path: its file, which is made if missing.
        num_bytes: how many bytes of the remote file it is to hold.
        layout: how it is cut.

    Raises:
        OSError: the file cannot be opened or made.
    """

    def __init__(self, path: str, num_bytes: int, layout: PartLayout) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._num_bytes = num_bytes
        self._block_bytes = layout.block_bytes
        self._unit_bytes = min(_UNIT_BYTES, self._block_bytes)
        self._seed = zlib.crc32(Path(path).name.encode())
        self._table_bytes = _rounded_up(layout.part_bytes // _PAGE_BYTES * _SUM_BYTES)
        self._is_used = True
        self.trust = self._no_trust()

    def _no_trust(self) -> Trust:
        status = os.fstat(self._descriptor)
        return Trust(
            (status.st_size, status.st_mtime_ns),
            bytearray(_rounded_up(self._num_bytes) // _PAGE_BYTES),
        )

    def is_unchanged(self, trust: Trust) -> bool:
        """Returns True if nothing was written into the part since ``trust`` was read from it."""
        self._is_used = True
        status = os.fstat(self._descriptor)
        return trust is self.trust and trust.status == (status.st_size, status.st_mtime_ns)

    def has(self, block: int) -> bool:
        """Returns True if all bytes of the block may be read."""
        start = block * self._block_bytes
        return self.read(start, min(start + self._block_bytes, self._num_bytes)) is not None

    def read(self, start: int, stop: int) -> bytes | None:
        """Returns the bytes ``start`` to ``stop - 1``, or ``None`` if one is missing."""
        if not self.is_unchanged(self.trust):
            self.trust = self._no_trust()
        trust = self.trust
        is_settled = time.time_ns() - trust.status[1] > _CLOCK_NANOSECONDS
        unit = self._unit_bytes if is_settled else _PAGE_BYTES
        begin, end = start // unit * unit, min(_rounded_up(stop, unit), self._num_bytes)
        first, last = begin // _PAGE_BYTES, _rounded_up(end) // _PAGE_BYTES
        sums = os.pread(self._descriptor, (last - first) * _SUM_BYTES, first * _SUM_BYTES)
        data = os.pread(self._descriptor, end - begin, self._table_bytes + begin)
        if stop > end or len(data) != end - begin or sums != self._sums(first, data):
            return None
        if is_settled:
            trust.pages[first:last] = b"\1" * (last - first)
        return data[start - begin : stop - begin]

    def read_trusted(self, start: int, stop: int) -> bytes | None:
        """Returns the bytes of trusted pages, or ``None`` if one of the pages is not trusted.

        The bytes are right if ``is_unchanged(trust)`` is true afterwards for the earlier ``trust``.
        """
        if self.trust.pages.find(0, start // _PAGE_BYTES, (stop - 1) // _PAGE_BYTES + 1) >= 0:
            return None
        data = os.pread(self._descriptor, stop - start, self._table_bytes + start)
        return data if len(data) == stop - start and stop <= self._num_bytes else None

    def _sums(self, first: int, data: bytes) -> bytes:
        """Returns the checksums of pages, from number ``first`` on."""
        view, sums = memoryview(data), []
        for number, start in enumerate(range(0, len(data), _PAGE_BYTES), self._seed + first):
            sums.append(zlib.crc32(view[start : start + _PAGE_BYTES], number & 0xFFFFFFFF) or 1)
        return struct.pack(f"<{len(sums)}I", *sums)

    def fill(self, block: int, data: bytes) -> None:
        """Makes ``data`` the bytes of the block.

        Raises:
            OSError: it cannot be written; pages that were not written completely are missing.
        """
        start = block * self._block_bytes
        write_all(self._descriptor, data, self._table_bytes + start)
        first = start // _PAGE_BYTES
        write_all(self._descriptor, self._sums(first, data), first * _SUM_BYTES)

    def is_mine_to_fill(self, block: int) -> bool:
        """True if no other process is about to fill the block; if so, none is until
        ``end_filling``. A killed one is not.
        """
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, block)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: both fetch it
            return True
        return True

    def end_filling(self, block: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, block)

    def is_kept(self) -> bool:
        """Returns True if the part still has its name; records any use since the last call."""
        if self._is_used:
            self._is_used = False
            with contextlib.suppress(OSError):  # its time of change stays
                os.utime(
                    self._descriptor, ns=(time.time_ns(), os.fstat(self._descriptor).st_mtime_ns)
                )
        return not self.is_thrown_away()

    def is_thrown_away(self) -> bool:
        """True if the part has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor >= 0:
            close(self._descriptor)


class Room:
    """The amount kept in a folder, and the choice of what to remove. One object in a process for a
    folder.

    The sizes of all files there are added up only now and then: processes may write a 64th of what
    is free before they look again, so that 64 of them stay below ``max_bytes``.

    Args:
        folder: where parts are, and in ``files`` whole files.
        max_bytes: what it may hold, ``None`` for as much as there is room for.
    """

    def __init__(self, folder: str, max_bytes: int | None) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._lock = Lock()
        self._allowance = 0
        self._look_again_at = 0.0
        self.num_thrown_away = 0

    def take(self, num_bytes: int) -> bool:
        """True if ``num_bytes`` of parts may be written, after what was used least recently has
        been thrown away if need be.
        """
        if self._max_bytes is None:
            return True
        with self._lock:
            num_bytes += 2 * _PAGE_BYTES  # what files are rounded up to
            self._allowance -= num_bytes
            if self._allowance >= 0:
                return True
            if time.monotonic() < self._look_again_at:
                return False
            free = self.make_room(num_bytes) - num_bytes
            self._allowance = max(free // 64, 0)
            if free < 0:
                self._look_again_at = time.monotonic() + 1
            return free >= 0

    def make_room(self, num_bytes: int, files: Sequence[Path] = ()) -> int:
        """Throws away parts, and of ``files`` what has to go, until ``num_bytes`` and an eighth are
        free. What is free then.

        Nothing goes as long as a 64th more than ``num_bytes`` is free: adding up all files takes a
        while, and the less is free, the more often it is done. Without a limit, there is always
        room.
        """
        if self._max_bytes is None:
            return num_bytes
        kept = sorted(self._kept())
        free = self._max_bytes - sum(size for _, size, _ in kept)
        goal = num_bytes + self._max_bytes // 8
        if free >= num_bytes + self._max_bytes // 64:
            return free
        for _, size, path in kept:
            if path.suffix == SUFFIX or path in files:
                with contextlib.suppress(FileNotFoundError):  # another process threw it away
                    path.unlink()
                    self.num_thrown_away += 1
                free += size
            if free >= goal:
                break
        return free

    def _kept(self) -> Iterator[tuple[int, int, Path]]:
        """Yields for each file when it was used, its bytes on disk, and its path."""
        with os.scandir(self._folder) as entries:
            paths = [Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX)]
        for path in (*paths, *Path(self._folder).glob("files/*/*"), Path(self._folder, "records")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield max(status.st_atime_ns, status.st_mtime_ns), status.st_blocks * 512, path
