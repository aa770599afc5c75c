"""Values that processes keep on disk for each other, by number: the files of ``cache(path)``.

A store is a folder with segments, each written by one process from front to back, and a table,
which has for each key the segment, offset and length of its record. What holds for any number of
processes, whenever one of them is killed or the machine stops:

1. A record is named in the table after it was written. If the machine has stopped since then, and
   the record was not known to be on the disk, its checksum is compared. What does not fit is
   missing, and is computed again.
2. Nothing is changed after it was written. A store of another pipeline in the same folder is
   removed, the one that was opened longest ago first, if ``max_bytes`` is reached and no process
   has it open. If that does not suffice, nothing more is stored.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import pickle
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.locks import Lock
from gristmill.sources.storage.posix import fcntl

_log = logging.getLogger("gristmill")

MISSING: Any = object()
_ENTRY = struct.Struct("<QQQ")  # of the table: segment + 1, offset, length; zeros: nothing
# at the beginning of one: magic, boot, what is known to be on the disk
_SEGMENT = struct.Struct("<16s36sxxxxQ")
# of a record: magic, key, length of the pickle, number of buffers, checksum of the rest
_HEAD = struct.Struct("<QQQII")
_MAGIC = b"gristmill cache1"
_RECORD_MAGIC = 0x4B41484344524352
_ALIGNMENT = 64
_SYNC_BYTES = 64 << 20
_SYNC_SECONDS = 5.0
_SEGMENT_BYTES = 1 << 28
_UNKNOWN = bytes(36)
_STORES: dict[tuple[int, str], DiskStore] = {}
_OPENING = Lock()


def store_at(folder: str, max_bytes: int | None, begin: Callable[[], None]) -> DiskStore:
    """Returns the store in ``folder``, which all threads of this process share.

    ``begin`` is called before it is opened by the first of them.
    """
    key = (os.getpid(), folder)
    found = _STORES.get(key)
    if found is None:
        with _OPENING:
            found = _STORES.get(key)
            if found is None:
                begin()
                found = _STORES[key] = DiskStore(folder, max_bytes)
    return found


class DiskStore:
    """Values by key, in a folder.

    Args:
        folder: of this store, in a folder of the user that may have several.
        max_bytes: how much all stores there may have together; ``None``: no limit.
    """

    def __init__(self, folder: str, max_bytes: int | None) -> None:
        root = Path(folder).parent
        if fcntl is None:
            raise OSError(f"nothing can be kept in {root}: cache(path) needs a system with locks of files (POSIX)")
        self._root, self._folder, self._max_bytes = root, Path(folder), max_bytes
        self._folder.mkdir(parents=True, exist_ok=True)
        self._in_use = os.open(self._folder / "in_use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._in_use, fcntl.LOCK_SH)
        os.utime(self._folder / "in_use")
        self._table = os.open(self._folder / "table", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._lock = Lock()
        # keys whose values are being computed: a lock that the thread holds
        self.claims: dict[int, Lock] = {}
        # of those that are read: descriptor, what is on the disk
        self._segments: dict[int, tuple[int, float]] = {}
        # number and descriptor of the segment that is written
        self._own: tuple[int, int] | None = None
        self._end = self._synced = 0
        self._last_sync = time.monotonic()
        self._is_full = False
        self._num_unchecked = -1  # bytes since the size of the folder was looked at
        atexit.register(self.sync)

    def get(self, keys: Sequence[int]) -> list[Any]:
        """Returns the values at ``keys``, ``MISSING`` where there is none."""
        return [self._value(key) for key in keys]

    def put(self, key: int, value: Any) -> None:
        """Stores a value, if there is room.

        Raises:
            TypeError, pickle.PicklingError, AttributeError: it cannot be pickled.
        """
        if self._is_full:
            return
        buffers: list[pickle.PickleBuffer] = []
        text = pickle.dumps(value, 5, buffer_callback=buffers.append)
        with self._lock:
            try:
                self._write(key, text, [buffer.raw() for buffer in buffers])
                is_late = time.monotonic() - self._last_sync > _SYNC_SECONDS
                if is_late or self._end - self._synced >= _SYNC_BYTES:
                    self._sync()
            except OSError as error:
                self._is_full = True
                _log.warning("cache: nothing more is kept in %s: %s", self._root, error)

    def sync(self) -> None:
        """Brings all values to the disk."""
        with self._lock, contextlib.suppress(OSError):
            self._sync()

    def _value(self, key: int) -> Any:
        entry = os.pread(self._table, _ENTRY.size, key * _ENTRY.size)
        if len(entry) < _ENTRY.size or entry == bytes(_ENTRY.size):
            return MISSING
        number, offset, length = _ENTRY.unpack(entry)
        try:
            descriptor, synced = self._segments.get(number - 1) or self._opened(number - 1)
            return _value_in(descriptor, key, offset, length, offset + length <= synced)
        except OSError:
            return MISSING

    def _opened(self, number: int) -> tuple[int, float]:
        """Opens a segment: its descriptor, and up to where it is known to be on the disk, or in the
        memory of the kernel.
        """
        descriptor = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        head = os.pread(descriptor, _SEGMENT.size, 0)
        magic, boot, synced = _SEGMENT.unpack(head) if len(head) == _SEGMENT.size else (b"", b"", 0)
        is_of_now = magic == _MAGIC and boot == _boot() != _UNKNOWN
        with self._lock:
            found = self._segments.setdefault(number, (descriptor, math.inf if is_of_now else synced))
        if found[0] != descriptor:  # another thread was quicker
            os.close(descriptor)
        return found

    def _write(self, key: int, text: bytes, buffers: list[memoryview]) -> None:
        parts: list[Any] = [struct.pack(f"<{len(buffers)}Q", *[buffer.nbytes for buffer in buffers]), text]
        length = _HEAD.size + sum(map(len, parts))
        for buffer in buffers:
            parts += [bytes(-length % _ALIGNMENT), buffer]
            length += -length % _ALIGNMENT + buffer.nbytes
        if not self._has_room(length):
            self._is_full = True
            _log.info("cache: %s has max_bytes; what is not in it is computed each time", self._root)
            return
        if self._own is None or self._end > _SEGMENT_BYTES:
            self._begin_segment()
        assert self._own is not None
        number, descriptor = self._own
        self._end += -self._end % _ALIGNMENT
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        os.lseek(descriptor, self._end, os.SEEK_SET)
        for part in [_HEAD.pack(_RECORD_MAGIC, key, len(text), len(buffers), checksum), *parts]:
            _write_all(descriptor, part)
        os.pwrite(self._table, _ENTRY.pack(number + 1, self._end, length), key * _ENTRY.size)
        self._end += length

    def _sync(self) -> None:
        self._last_sync = time.monotonic()
        if self._own is not None and self._end > self._synced:
            os.fsync(self._own[1])
            self._synced = self._end
            os.pwrite(self._own[1], _SEGMENT.pack(_MAGIC, _boot(), self._synced), 0)

    def _begin_segment(self) -> None:
        if self._own is not None:
            self._sync()
            os.close(self._own[1])
            self._own = None
        number = max([int(path.stem) for path in self._folder.glob("*.data")], default=-1) + 1
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while self._own is None:
            with contextlib.suppress(FileExistsError):
                self._own = number, os.open(self._path(number), flags, 0o666)
            number += 1
        _write_all(self._own[1], _SEGMENT.pack(_MAGIC, _boot(), 0))
        self._end = self._synced = _SEGMENT.size

    def _has_room(self, num_bytes: int) -> bool:
        if self._max_bytes is None:
            return True
        if not 0 <= self._num_unchecked + num_bytes <= self._max_bytes // 64:
            used = _size_of(self._root)
            if used + num_bytes > self._max_bytes:
                used -= self._remove_others(used + num_bytes - self._max_bytes)
            if used + num_bytes > self._max_bytes:
                return False
            self._num_unchecked = max(0, self._max_bytes // 64 - (self._max_bytes - used))
        self._num_unchecked += num_bytes
        return True

    def _remove_others(self, num_bytes: int) -> int:
        """Removes stores that no process has open until that much is free. Returns how much was
        freed.
        """
        freed = 0
        for path in sorted(self._root.glob("*/in_use"), key=lambda path: path.stat().st_mtime):
            if freed >= num_bytes or path.parent == self._folder:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                freed += _size_of(path.parent)
                shutil.rmtree(path.parent, ignore_errors=True)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)
        return freed

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.data"


def _value_in(descriptor: int, key: int, offset: int, length: int, is_safe: bool) -> Any:
    """Returns a value whose arrays are views of memory of its own; ``MISSING`` if the record is not
    whole.
    """
    data = np.empty(length, np.uint8)
    view = data.data
    if length < _HEAD.size or os.preadv(descriptor, [view], offset) != length:
        return MISSING
    magic, found, text_length, num_buffers, checksum = _HEAD.unpack_from(view)
    if magic != _RECORD_MAGIC or found != key or not (is_safe or zlib.crc32(view[_HEAD.size :]) == checksum):
        return MISSING
    lengths = struct.unpack_from(f"<{num_buffers}Q", view, _HEAD.size)
    start = _HEAD.size + 8 * num_buffers
    text, start, buffers = view[start : start + text_length], start + text_length, []
    for size in lengths:
        start += -start % _ALIGNMENT
        buffers.append(view[start : start + size])
        start += size
    return pickle.loads(text, buffers=buffers) if start == length else MISSING


def _write_all(descriptor: int, part: Any) -> None:
    view = memoryview(part).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


@functools.cache
def _boot() -> bytes:
    """Returns the identity of this start of the machine; ``_UNKNOWN`` if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36].ljust(36)
    except OSError:
        return _UNKNOWN


def _size_of(folder: Path) -> int:
    """Returns the bytes of all segments in a folder."""
    total = 0
    for path in folder.rglob("*.data"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
