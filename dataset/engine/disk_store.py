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
3. A store that cannot be written to is read.
"""

from __future__ import annotations

import atexit
import contextlib
import copyreg
import ctypes
import errno
import functools
import io
import logging
import math
import os
import pickle
import shutil
import struct
import time
from collections import ChainMap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gristmill.core.checksums import crc32
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
_RECORD_MAGIC = 0x4B41484344524353
_ALIGNMENT = 64
_BUFFER_BYTES = 1 << 16  # the smallest array that is stored beside its pickle: less is copied twice
_SYNC_BYTES = 64 << 20
_SYNC_SECONDS = 5.0
_SEGMENT_BYTES = 1 << 28
_MAX_WRITERS = 64  # processes that together stay within max_bytes, but for a record of each
_UNKNOWN = bytes(36)
_CREATED = os.O_RDWR | os.O_CREAT
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_STORES: dict[tuple[int, str, int | None], DiskStore] = {}
_OPENING = Lock()


def store_at(folder: str, max_bytes: int | None, begin: Callable[[], None]) -> DiskStore:
    """Returns the store in ``folder``, which all threads of this process share.

    ``begin`` is called before it is opened by the first of them.
    """
    key = (os.getpid(), folder, max_bytes)
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
            raise OSError(
                f"nothing can be kept in {root}: cache(path) needs a system with locks of files"
                " (POSIX)"
            )
        self._root, self._folder, self._max_bytes = root, Path(folder), max_bytes
        is_read_only = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._in_use = self._opened_file("in_use", _CREATED)
        except OSError as error:
            if error.errno not in _READ_ONLY or not (self._folder / "table").exists():
                raise
            _log.warning(
                "cache: %s cannot be written to (%s): what is there is read, and what is not is"
                " computed each time",
                root,
                error.strerror,
            )
            is_read_only = True
            self._in_use = self._opened_file("in_use", os.O_RDONLY)
        fcntl.flock(self._in_use, fcntl.LOCK_SH)
        if not is_read_only:
            os.utime(self._folder / "in_use")
        self._table = self._opened_file("table", os.O_RDONLY if is_read_only else _CREATED)
        self._lock = Lock()
        # keys whose values are being computed: a lock that the thread holds
        self.claims: dict[int, Lock] = {}
        # of those that are read: descriptor, what is on the disk
        self._segments: dict[int, tuple[int, float]] = {}
        # number and descriptor of the segment that is written
        self._own: tuple[int, int] | None = None
        self._end = self._synced = 0
        self._last_sync = time.monotonic()
        self._is_full = is_read_only
        self._room = 0  # bytes that may be written before the size of the folder is looked at
        atexit.register(self.sync)

    def get(self, keys: Sequence[int]) -> list[Any]:
        """Returns the values at ``keys``, ``MISSING`` where there is none."""
        return [self.value(key) for key in keys]

    def put(self, key: int, value: object) -> None:
        """Stores a value, if there is room.

        Raises:
            TypeError, pickle.PicklingError, AttributeError: it cannot be pickled.
        """
        if self._is_full:
            return
        text, buffers = pickled(value)
        with self._lock:
            try:
                self._write(key, text, buffers)
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

    def value(self, key: int, *, leaves_arrays: bool = False) -> Any:
        """Returns the value at ``key``; ``MISSING`` if there is none.

        Args:
            key: of the value.
            leaves_arrays: in place of each ``pickle.PickleBuffer`` of at least 64 KiB, return its
                ``ArrayOnDisk`` on disk.
        """
        entry = os.pread(self._table, _ENTRY.size, key * _ENTRY.size)
        number, offset, length = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, 0, 0)
        if not number:
            return MISSING
        try:
            descriptor, synced = self._segments.get(number - 1) or self._opened(number - 1)
            value_in = _value_with_places if leaves_arrays else _value_in
            return value_in(descriptor, key, offset, length, offset + length <= synced)
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
            found = self._segments.setdefault(
                number, (descriptor, math.inf if is_of_now else synced)
            )
        if found[0] != descriptor:  # another thread was quicker
            os.close(descriptor)
        return found

    def _write(self, key: int, text: bytes, buffers: list[memoryview]) -> None:
        lengths = [buffer.nbytes for buffer in buffers]
        parts: list[Any] = [_lengths_of(len(buffers)).pack(*lengths), text]
        length = _HEAD.size + sum(map(len, parts))
        for buffer in buffers:
            parts += [bytes(-length % _ALIGNMENT), buffer]
            length += -length % _ALIGNMENT + buffer.nbytes
        if not self._has_room(length):
            self._is_full = True
            _log.info(
                "cache: %s has max_bytes; what is not in it is computed each time", self._root
            )
            return
        if self._own is None or self._end > _SEGMENT_BYTES:
            self._begin_segment()
        assert self._own is not None
        number, descriptor = self._own
        self._end += -self._end % _ALIGNMENT
        checksum = 0
        for part in parts:
            checksum = crc32(part, checksum)
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
        if num_bytes > self._room:
            used = _size_of(self._root)
            if used + num_bytes > self._max_bytes:
                used -= self._remove_others(used + num_bytes - self._max_bytes)
            if used + num_bytes > self._max_bytes:
                return False
            self._room = (self._max_bytes - used) // _MAX_WRITERS
        self._room -= num_bytes
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

    def _opened_file(self, name: str, flags: int) -> int:
        return os.open(self._folder / name, flags | os.O_CLOEXEC, 0o666)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.data"


class ArrayOnDisk(NamedTuple):
    """Bytes of a segment, which stays open as long as the process.

    Args:
        descriptor: of the segment.
        offset: of the first byte.
        length: the number of bytes.
    """

    descriptor: int
    offset: int
    length: int

    def read(self) -> memoryview:
        """Returns the bytes, in memory of their own.

        Raises:
            OSError: the disk fails, or the segment was cut off.
        """
        view = _read(self.descriptor, self.offset, self.length)
        if len(view) != self.length:
            raise OSError(errno.EIO, "a file of cache(path) was cut off: remove the cache")
        return view


def _value_in(descriptor: int, key: int, offset: int, length: int, is_safe: bool) -> Any:
    """Returns a value whose arrays are views of memory of its own; ``MISSING`` if the record is not
    whole.
    """
    view = _read(descriptor, offset, length)
    if len(view) != length or not (is_safe or _is_whole(view)):
        return MISSING
    parts = _parts_in(view, key, length)
    if not parts:
        return MISSING
    text, *buffers = [view[start:end] for start, end in parts]
    return pickle.loads(text, buffers=buffers)


def _value_with_places(descriptor: int, key: int, offset: int, length: int, is_safe: bool) -> Any:
    """Returns a value with the places of its buffers; ``MISSING`` if the record is not whole."""
    if not is_safe and not _is_whole(_read(descriptor, offset, length)):
        return MISSING
    head = os.pread(descriptor, _HEAD.size, offset)
    if len(head) != _HEAD.size or offset + length > os.fstat(descriptor).st_size:
        return MISSING
    _, _, text_length, num_buffers, _ = _HEAD.unpack(head)
    view = memoryview(os.pread(descriptor, _HEAD.size + 8 * num_buffers + text_length, offset))
    parts = _parts_in(view, key, length)
    if not parts:
        return MISSING
    (start, end), *others = parts
    places = [ArrayOnDisk(descriptor, offset + start, end - start) for start, end in others]
    return pickle.loads(view[start:end], buffers=places)


def _parts_in(view: memoryview, key: int, length: int) -> list[tuple[int, int]]:
    """Returns where the pickle and the buffers of a record begin and end.

    Args:
        view: the record, or its beginning.
        key: the key that it must have. If it has another one, there are no parts.
        length: of the whole record.
    """
    if length < _HEAD.size:
        return []
    magic, found, text_length, num_buffers, _ = _HEAD.unpack_from(view)
    if magic != _RECORD_MAGIC or found != key:
        return []
    start = _HEAD.size + 8 * num_buffers
    end = start + text_length
    parts = [(start, end)]
    for size in _lengths_of(num_buffers).unpack_from(view, _HEAD.size):
        start = end + -end % _ALIGNMENT
        end = start + size
        parts.append((start, end))
    return parts if end == length else []


def _is_whole(view: memoryview) -> bool:
    """Returns True if a record has its checksum."""
    if len(view) < _HEAD.size:
        return False
    checksum: int = _HEAD.unpack_from(view)[-1]
    return crc32(view[_HEAD.size :]) == checksum


@functools.cache
def _lengths_of(num_buffers: int) -> struct.Struct:
    return struct.Struct(f"<{num_buffers}Q")


def _read(descriptor: int, offset: int, length: int) -> memoryview:
    """Returns bytes of a file, in memory that can be changed if there may be arrays among them.

    Args:
        descriptor: of the file.
        offset: a multiple of ``_ALIGNMENT``. The memory is aligned likewise: some processors take
            ten times as long to copy by a distance of less than that.
        length: the number of bytes.
    """
    if length < _BUFFER_BYTES:
        return memoryview(os.pread(descriptor, length, offset))
    memory = np.empty(length + _ALIGNMENT, np.uint8).data
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _ALIGNMENT
    view = memory[start : start + length]
    found = os.preadv(descriptor, [view], offset)
    return view if found == length else view[:found]


def pickled(value: object) -> tuple[bytes, list[memoryview]]:
    """Returns the pickle of a value, and the contents of its large arrays, which are beside it."""
    buffers: list[memoryview] = []

    def is_within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _BUFFER_BYTES:
            buffers.append(raw)
        return raw.nbytes < _BUFFER_BYTES

    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5, buffer_callback=is_within)
    pickler.dispatch_table = _REDUCE
    pickler.dump(value)
    return file.getvalue(), buffers


def _array_as_call(array: Any) -> Any:
    """Returns a call that makes an array, which takes half as long as NumPy's own pickles."""
    dtype = array.dtype
    if dtype.isbuiltin != 1 or dtype.hasobject or not array.flags.c_contiguous:
        return array.__reduce_ex__(5)
    return np.ndarray, (array.shape, dtype.str, pickle.PickleBuffer(array))


_REDUCE: Any = ChainMap[Any, Any]({np.ndarray: _array_as_call}, copyreg.dispatch_table)


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
