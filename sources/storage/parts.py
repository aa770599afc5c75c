"""Parts of remote files that are kept on a local disk: which bytes of them are there, and which parts have to go.

A part is a file that begins with a table and holds some blocks of one remote file, each at its place. The table has, for each
block, its checksum and a number that stands for the run of this machine in which it was written, 0 while the block is not there.

What holds for all threads and processes that share a folder, whenever one of them is killed or the disk is full:

1. A block is read only if its entry says that it is there. Entries are written after the bytes, and never taken back.
2. Who writes a block that is there already writes the same bytes: a part is of one object in one version.
3. What was written before the machine was started the last time may have been lost in part: its checksum is looked at first.
4. Parts are thrown away whole, by removing their names. Who has one open goes on in it, and closes it within a second if it
   reads at all.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gristmill.sources.storage.posix import fcntl

_BLOCK_BYTES = 1 << 20
_BLOCKS_PER_PART = 256  # as large as can be, so that few files have to be open: a table has one page
_ENTRY = struct.Struct("<II")
_TABLE_BYTES = 4096
SUFFIX = ".part"


def _run_of_this_machine() -> int:
    """A number, not 0, that changes when the machine is started anew, or with each process where that cannot be told."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return random.SystemRandom().getrandbits(32) | 1
    return zlib.crc32(text) | 1


_RUN = _run_of_this_machine()


class Layout(NamedTuple):
    """How remote files are cut: into parts of ``part_bytes``, and these into blocks, what is fetched at least."""

    block_bytes: int
    part_bytes: int


def layout_for(max_bytes: int | None) -> Layout:
    """Blocks of 1 MB and parts of 256, or smaller ones where few of those would have room.

    Example:
        >>> layout_for(None), layout_for(1 << 20)
        (Layout(block_bytes=1048576, part_bytes=268435456), Layout(block_bytes=131072, part_bytes=131072))
    """
    part_bytes = _BLOCKS_PER_PART * _BLOCK_BYTES
    if max_bytes is not None:
        part_bytes = min(part_bytes, 1 << ((max_bytes // 8).bit_length() - 1))
    return Layout(min(_BLOCK_BYTES, part_bytes), part_bytes)


class Part:
    """A part, open until nobody refers to it any more. All its methods may be called by several threads at once.

    Args:
        path: its file, which is made if there is none.
        num_bytes: how many bytes of the remote file it is to hold.
        layout: how it is cut.

    Raises:
        OSError: the file cannot be opened or made.
    """

    def __init__(self, path: str, num_bytes: int, layout: Layout) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._num_bytes = num_bytes
        self._block_bytes = layout.block_bytes
        self._is_there = bytearray(-(-num_bytes // self._block_bytes))  # as far as was looked at
        self._is_used = True

    def has(self, block: int) -> bool:
        """Whether the block may be read."""
        return bool(self._is_there[block]) or self._look_up(block)

    def _look_up(self, block: int) -> bool:
        entry = os.pread(self._descriptor, _ENTRY.size, block * _ENTRY.size)
        checksum, run = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, 0)
        if not run:
            return False
        if run != _RUN:
            start = block * self._block_bytes
            data = os.pread(self._descriptor, min(self._block_bytes, self._num_bytes - start), _TABLE_BYTES + start)
            if zlib.crc32(data) != checksum:
                return False
            self._enter(block, checksum)
        self._is_there[block] = 1
        return True

    def _enter(self, block: int, checksum: int) -> None:
        os.pwrite(self._descriptor, _ENTRY.pack(checksum, _RUN), block * _ENTRY.size)

    def read(self, start: int, stop: int) -> bytes | None:
        """The bytes ``start`` to ``stop - 1``, counted from the part's first; ``None`` unless all of them are there."""
        self._is_used = True
        if stop > self._num_bytes:
            return None
        block = start // self._block_bytes
        if not self._is_there[block] or stop > (block + 1) * self._block_bytes:
            for needed in range(block, -(-stop // self._block_bytes)):
                if not self.has(needed):
                    return None
        data = os.pread(self._descriptor, stop - start, _TABLE_BYTES + start)
        return data if len(data) == stop - start else None  # somebody has cut the file

    def fill(self, block: int, data: bytes) -> None:
        """Makes ``data`` the bytes of the block.

        Raises:
            OSError: it cannot be written; what is there is as it was.
        """
        done, start = 0, _TABLE_BYTES + block * self._block_bytes
        while done < len(data):
            done += os.pwrite(self._descriptor, memoryview(data)[done:], start + done)
        self._enter(block, zlib.crc32(data))
        self._is_there[block] = 1

    def is_mine_to_fill(self, block: int) -> bool:
        """Whether no other process is about to fill the block; if so, none is until ``end_filling``. A killed one is not."""
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
        """Whether the part has not been thrown away. Notes that it was used, if it was since this was called the last time."""
        if self._is_used:
            self._is_used = False
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)
        return not self.is_thrown_away()

    def is_thrown_away(self) -> bool:
        """Whether the part has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Room:
    """How much is kept in a folder, and what has to go. One in a process for a folder.

    The sizes of all files there are added up only now and then: processes may write a 64th of what is free before they look
    again, so that 64 of them stay below ``max_bytes``.

    Args:
        folder: where parts are, and in ``files`` whole files.
        max_bytes: what it may hold, ``None`` for as much as there is room for.
    """

    def __init__(self, folder: str, max_bytes: int | None) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._lock = threading.Lock()
        self._allowance = 0
        self._look_again_at = 0.0
        self.num_thrown_away = 0

    def take(self, num_bytes: int) -> bool:
        """Whether ``num_bytes`` of parts may be written, after what was used least recently has been thrown away if need be."""
        if self._max_bytes is None:
            return True
        with self._lock:
            num_bytes += 2 * _TABLE_BYTES  # what files are rounded up to
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
        """Throws away parts, and of ``files`` what has to go, until ``num_bytes`` and an eighth are free. What is free then.

        Nothing goes as long as a 64th more than ``num_bytes`` is free: adding up all files takes a while, and the less is free,
        the more often it is done.
        """
        assert self._max_bytes is not None
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
        """Of each file: when it was used, what it takes of the disk, and its path."""
        with os.scandir(self._folder) as entries:
            paths = [Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX)]
        for path in (*paths, *Path(self._folder).glob("files/*/*")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield status.st_mtime_ns, status.st_blocks * 512, path
