"""Shared memory that a worker fills and the consumer looks at.

Guarantees:

1. The memory has no name: nothing is left when both processes are gone, however they end. It is not
   in ``/dev/shm`` and does not depend on the size of that.
2. A slot is the worker's from ``allocate`` until its message is sent; then it is the consumer's,
   until the last array that looks at it has been collected and the worker was notified. It never
   belongs to both, so nothing that is still seen is overwritten. A slot that a forked process may
   look at, too, is never used again.
3. ``allocate`` never waits: a consumer that keeps everything makes the arena grow.
4. That an array has been collected is noticed by a callback that may run anywhere, in the middle of
   a garbage collection or while a lock is held: it appends to a deque and does no more; when the
   worker is gone, it returns the memory.
5. Arrays hold no file descriptor: any number of them may outlive their pools.
6. Beside the slots in use there is no more memory than ``MAX_FREE_BYTES`` or, if that is more, what
   slots in use had lately at most: while there is more than the former, a 32nd of the latter is
   forgotten with every message. A slot is less than twice as large as what is in it, or a page.
   Memory that outlives the worker returns to the system with the last array in it, on macOS with
   the last array of this worker.

The address of a slot is an offset into one sparse file, which both processes map in chunks; chunk
``k`` is 2**k times as long as the first. So the consumer finds a slot by its offset alone, and few
mappings suffice for any amount of memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gristmill.core.locks import Lock

_FIRST_CHUNK = 1 << 26
_PAGE = mmap.PAGESIZE
_MAP_FIXED = 0x10  # in place of what is there
_F_PUNCHHOLE = 99  # of macOS; its argument is flags, padding, offset and length
# free slots of a size that keep their memory; what is freed beyond that goes back to the system
_MAX_WARM = 4
MAX_FREE_BYTES = 1 << 27  # see guarantee 6

DType: TypeAlias = np.dtype[Any]
Array: TypeAlias = np.ndarray[Any, DType]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# Arguments of ``numpy.ndarray`` that say the order in memory: none, or offset, strides and order.
Order: TypeAlias = tuple[()] | tuple[int, None, str]


class Slot(NamedTuple):
    """A piece of an arena."""

    offset: int
    num_bytes: int


def open_memory(name: str) -> int:
    """Returns a file descriptor of new memory without a name; ``name`` is only shown in
    ``/proc``.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile  # 5 ms that workers on Linux do without

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Mapping:
    """The memory behind a file descriptor, as seen by one process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._chunks: dict[int, mmap.mmap] = {}
        self._holes: _Holes | None = _Holes(os.dup(fd)) if sys.platform == "darwin" else None

    def view(self, slot: Slot) -> Bytes:
        """Returns an array [num_bytes] that looks at the slot."""
        index = _chunk_of(slot.offset)
        chunk = self._chunks.get(index)
        if chunk is None:
            chunk = self._chunks[index] = _map(self._fd, _chunk_start(index), _chunk_size(index))
        return np.frombuffer(chunk, np.uint8, slot.num_bytes, slot.offset - _chunk_start(index))

    def give_back(self, start: int, stop: int) -> None:
        """Returns the memory between two offsets of one chunk to the system; what is there reads as
        zeros then.
        """
        index, holes = _chunk_of(start), self._holes
        if index in self._chunks and start < stop:
            _remove(self._chunks[index], start - _chunk_start(index), stop - start)
            if holes is not None:
                holes.punch(start, stop - start)

    def give_back_all_but(self, slots: list[Slot]) -> None:
        """Returns all memory that was looked at to the system, but that of ``slots``."""
        for index in list(self._chunks):
            start, stop = _chunk_start(index), _chunk_start(index + 1)
            for slot in sorted([slot for slot in slots if start <= slot.offset < stop]):
                self.give_back(start, slot.offset)
                start = slot.offset + _slot_size(slot.num_bytes)
            self.give_back(start, stop)

    def leave(self, array: Bytes, slot: Slot) -> None:
        """Has the memory of a slot returned to the system when the ``array`` that looks at it is
        collected.
        """
        index = _chunk_of(slot.offset)
        if index in self._chunks:
            left = _Left(array, _give_back_left)
            left.place = (
                self._chunks[index],
                slot.offset - _chunk_start(index),
                _slot_size(slot.num_bytes),
            )
            _left[id(left)] = left

    def close(self) -> None:
        """Memory stays mapped where an array looks at it."""
        self._chunks.clear()
        self._holes = None


class _Holes:
    """Returns parts of a file to the system on macOS, which does so by descriptor.

    It owns the descriptor, which is open as long as a thread uses it: a hole in another file that
    has got the number of a closed one would destroy data.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def punch(self, start: int, num_bytes: int) -> None:
        import fcntl

        with contextlib.suppress(OSError):  # a file system without holes
            fcntl.fcntl(self._fd, _F_PUNCHHOLE, struct.pack("=IIqq", 0, 0, start, num_bytes))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)


class Arena:
    """The worker's side: cuts the memory into slots and uses them again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mapping = Mapping(fd)
        self._lock = Lock()  # two threads of a worker send
        self._num_chunks = 0
        self._end = 0  # no slot reaches beyond
        # offsets by size; those that keep their memory are at the right end
        self._free: dict[int, deque[int]] = {}
        self._num_warm: dict[int, int] = {}  # how many of these there are, by size
        # their sizes by offset, what is longest unused first
        self._warm: OrderedDict[int, int] = OrderedDict()
        self._warm_bytes = 0
        self._used_bytes = 0
        self._recent_bytes = 0  # the most of these lately

    def allocate(self, num_bytes: int) -> Slot:
        with self._lock:
            return self._allocate(num_bytes)

    def _allocate(self, num_bytes: int) -> Slot:
        size = _slot_size(num_bytes)
        self._used_bytes += size
        if self._used_bytes > self._recent_bytes:
            self._recent_bytes = self._used_bytes
        free = self._free.get(size)
        if free:
            offset = free.pop()
            if offset in self._warm:
                self._forget_warm(offset)
            return Slot(offset, num_bytes)
        start = self._end
        while start + size > _chunk_start(_chunk_of(start) + 1):
            start = _chunk_start(_chunk_of(start) + 1)
        if _chunk_of(start) >= self._num_chunks:
            self._num_chunks = _chunk_of(start) + 1
            os.ftruncate(self._fd, _chunk_start(self._num_chunks))
        self._end = start + size
        return Slot(start, num_bytes)

    def view(self, slot: Slot) -> Bytes:
        return self._mapping.view(slot)

    def store(self, array: Array, order: Order) -> Slot:
        """Copies an array, whose order in memory ``order`` says as arguments of ``numpy.ndarray``
        do.
        """
        slot = self.allocate(array.nbytes)
        np.ndarray(array.shape, array.dtype, self.view(slot), *order)[...] = array
        return slot

    def free(self, slot: Slot) -> None:
        with self._lock:
            self._put_back(slot)

    def _put_back(self, slot: Slot) -> None:
        size = _slot_size(slot.num_bytes)
        self._used_bytes -= size
        free = self._free.setdefault(size, deque())
        if self._num_warm.setdefault(size, 0) < _MAX_WARM:
            free.append(slot.offset)
            self._warm[slot.offset] = size
            self._num_warm[size] += 1
            self._warm_bytes += size
        else:
            self._mapping.give_back(slot.offset, slot.offset + size)
            free.appendleft(slot.offset)
        if self._warm_bytes > MAX_FREE_BYTES:
            self._settle()

    def settle(self) -> None:
        """Called for every message: lowers the estimate of the memory needed a little, and returns
        the excess.
        """
        if self._warm_bytes > MAX_FREE_BYTES:
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        self._recent_bytes = max(self._used_bytes, self._recent_bytes - (self._recent_bytes // 32))
        limit = max(MAX_FREE_BYTES, self._recent_bytes)
        # the longest unused of all is the first one of its size, and stays where it is
        while self._warm_bytes > limit:
            offset = next(iter(self._warm))
            self._mapping.give_back(offset, offset + self._forget_warm(offset))

    def _forget_warm(self, offset: int) -> int:
        size = self._warm.pop(offset)
        self._num_warm[size] -= 1
        self._warm_bytes -= size
        return size


class _Watched(weakref.ref["Bytes"]):
    # stays so where an interrupt came first, and then the worker is replaced
    slot: Slot | None = None
    is_shared = False  # whether another process sees it


class _Left(weakref.ref["Bytes"]):
    """An array that outlives its worker."""

    place: tuple[mmap.mmap, int, int]  # and where in it, and how many bytes


_left: dict[int, _Left] = {}  # by id

if hasattr(os, "register_at_fork"):
    # the new process sees these arrays, too: they stay as they are
    os.register_at_fork(before=_left.clear)


def _give_back_left(left: _Left, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if not is_finalizing() and _left.pop(id(left), None) is not None:
        _remove(*left.place)


class ArenaReader:
    """The consumer's side: arrays that look at slots, and the slots that are no longer
    referenced.
    """

    def __init__(self, fd: int) -> None:
        self._mapping = Mapping(fd)
        self._watched: dict[Slot, _Watched] = {}
        self._unseen: deque[_Watched] = deque()

    def take(self, slot: Slot) -> Bytes:
        """Returns an array [num_bytes] of a slot; when it and all arrays that view it are gone,
        ``released`` gives the slot.
        """
        array = self._mapping.view(slot)
        watched = _Watched(array, self._unseen.append)
        watched.slot = slot
        self._watched[slot] = watched
        return array

    def look(self, slot: Slot) -> Bytes:
        """Returns an array [num_bytes] of a slot that is not watched: the caller returns the slot
        when it has read it.
        """
        return self._mapping.view(slot)

    def released(self) -> list[Slot]:
        """Returns the slots that have become free since the last call."""
        slots = []
        while self._unseen:
            watched = self._unseen.popleft()
            slot = watched.slot
            if slot is not None and not watched.is_shared:
                self._watched.pop(slot, None)
                slots.append(slot)
        return slots

    def share(self) -> None:
        """Called when this process is forked: slots that are referenced now stay as they are."""
        for watched in [*self._watched.values()]:
            watched.is_shared = True

    def forget(self) -> None:
        """Drops the memory in a forked process, without returning the parent's slots."""
        self._mapping.close()

    def close(self) -> None:
        """Returns all memory to the system except referenced slots, which follow when they are
        released.
        """
        self.released()
        self._mapping.give_back_all_but([*self._watched])
        for slot, watched in [*self._watched.items()]:
            array = watched()
            if array is not None and not watched.is_shared:
                self._mapping.leave(array, slot)
        for slot in self.released():  # since the beginning
            self._mapping.give_back(slot.offset, slot.offset + _slot_size(slot.num_bytes))
        self._mapping.close()


def _remove(chunk: mmap.mmap, start: int, num_bytes: int) -> None:
    if hasattr(mmap, "MADV_REMOVE"):
        # a file system without holes: the memory stays until the end
        with contextlib.suppress(OSError):
            chunk.madvise(mmap.MADV_REMOVE, start, num_bytes)


def _map(fd: int, start: int, size: int) -> mmap.mmap:
    """Returns a part of a file, without a descriptor of its own if that is possible."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, offset=start, trackfd=False)
    else:
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            _put_over(memory, fd, start)
            return memory
        except (ImportError, OSError):
            # no ctypes, a system of 32 bits, or one that counts the memory that would be covered
            return mmap.mmap(fd, size, offset=start)


def _put_over(memory: mmap.mmap, fd: int, start: int) -> None:
    """Has the addresses of ``memory`` show a part of a file instead."""
    import ctypes

    if ctypes.sizeof(ctypes.c_long) != 8:
        raise OSError("how wide an offset is depends on the C library here")
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if library.mmap(address, len(memory), *how, fd, start) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _slot_size(num_bytes: int) -> int:
    return max(_PAGE, 1 << (num_bytes - 1).bit_length())


def _chunk_of(offset: int) -> int:
    return (offset // _FIRST_CHUNK + 1).bit_length() - 1


def _chunk_start(index: int) -> int:
    return _FIRST_CHUNK * ((1 << index) - 1)


def _chunk_size(index: int) -> int:
    return _FIRST_CHUNK << index
