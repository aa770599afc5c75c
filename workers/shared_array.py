"""Arrays that several processes share: only a name travels between them.

1. The memory of an array, of its views and of all other users stays mapped as long as one
   of them exists, also if a process unlinks the block's name, closes ``.shm``, or ends.
2. The name is freed once: by ``unlink_on_del`` when the array and all its views are gone, by
   ``close_and_unlink_shm``, or else when the process that made the block ends. A child of
   ``multiprocessing`` that has given away metadata or a pickle leaves the block to its main
   process. Nothing of this prints anything, with arrays alive or not.
3. A forked process inherits the memory and no duty: only the process that called ``unlink_on_del``
   unlinks.
4. A deletion may happen anywhere (in the middle of a garbage collection, while a lock is held), so
   it waits for no lock and starts no thread: it unlinks, or puts the block into a queue that is
   made for this.
5. A pickle is by name only where the name says all: an array that is the whole block. Everything
   else is pickled as the ordinary array that it equals.
"""

from __future__ import annotations

import mmap
import operator
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing import util
from multiprocessing.shared_memory import SharedMemory
from queue import SimpleQueue
from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from gristmill.core.errors import as_int
from gristmill.core.locks import Lock
from gristmill.core.shared_block import SharedBlock, answer_for, free, leave, unlink
from gristmill.core.uninterrupted import uninterrupted
from gristmill.workers.arena import Array, DType


@dataclass(frozen=True, slots=True)
class SharedMemoryArrayMetadata:
    """The data that another process needs to attach to a ``SharedMemoryArray``: hashable,
    comparable, and small to pickle.

    Args:
        name: the name of the block of shared memory.
        shape: the array's shape.
        dtype: the array's dtype; kept as a ``numpy.dtype``.

    Example:
        >>> SharedMemoryArrayMetadata("psm_4d41caad", [2, 3], "int32")
        SharedMemoryArrayMetadata(name='psm_4d41caad', shape=(2, 3), dtype=dtype('int32'))
    """

    name: str
    shape: Iterable[int]
    dtype: npt.DTypeLike

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, Iterable) else (self.shape,)
        object.__setattr__(self, "shape", tuple(map(operator.index, shape)))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def close_and_unlink_shm(self) -> None:
        """Frees the block without attaching to it. Arrays that are attached keep the memory.

        Raises:
            FileNotFoundError: it was unlinked already.
        """
        unlink(self.name)


class SharedMemoryArray(Array):
    """An array of zeros in a new block of shared memory. Pickling sends the block's name: no
    process copies the data.

    Views (``a[1:]``, ``a.T``, ``a.reshape(...)``) share the block and keep it alive. Results of
    ufuncs, comparisons and reductions, and of ``np.asarray``, ``np.stack`` and ``np.concatenate``,
    are ordinary arrays and scalars. A copy (``a.copy()``, ``a.astype(...)``, ``a[[0, 1]]``) has
    memory of its own: its class is still this one, but its ``shm`` is ``None``, and it behaves like
    any other array.

    An array that is the whole block, in the order of its memory, is pickled by name, and what is
    unpickled shares the memory: a write on one side shows on the other. All other views, and
    copies, are pickled as the ordinary ``numpy.ndarray`` they are equal to.

    The block stays until it is unlinked: the array for which ``unlink_on_del`` was called, when it
    goes away; ``SharedMemoryArrayMetadata.close_and_unlink_shm``; or the end of the process that
    made it. A child process of ``multiprocessing`` that has given away ``metadata`` or a pickle may
    end before the receiver attaches: then the block stays, to the end of the main process at the
    latest. (Where the start method is ``fork``, if the main process used shared memory before.)
    Attached arrays can be used for as long as they exist in any case.

    Args:
        shape: the shape, a sequence of integers. Empty arrays, and ``()``, are allowed.
        dtype: anything that NumPy accepts but Python objects, which mean nothing in another
            process.

    Raises:
        TypeError: ``shape`` is not a sequence of integers, or ``dtype`` has Python objects.
        ValueError: a dimension is negative, or there are too many of them or too large ones.
        OSError: there is not enough shared memory.

    Example:
        >>> import pickle
        >>> array = SharedMemoryArray((2, 3), "int32")
        >>> array.unlink_on_del()  # the block goes when the array does
        >>> attached = pickle.loads(pickle.dumps(array))  # in another process, usually
        >>> attached[0] = [1, 2, 3]
        >>> array
        SharedMemoryArray([[1, 2, 3],
                           [0, 0, 0]], dtype=int32)
        >>> array.metadata == attached.metadata
        True
        >>> array + 1
        array([[2, 3, 4],
               [1, 1, 1]], dtype=int32)
    """

    _block: _ArrayBlock | None
    _travels_as_ndarray = True  # from our workers, at whose end their blocks go

    def __new__(cls, shape: Iterable[int], dtype: npt.DTypeLike = float) -> Self:
        try:
            sizes = tuple(shape)
        except TypeError:
            raise TypeError(
                f"shape must be a sequence of integers, as in (5,), got {shape!r}"
            ) from None
        sizes = tuple(
            [as_int(f"shape[{axis}]", size, minimum=0) for axis, size in enumerate(sizes)]
        )
        dtype = _without_objects(dtype)
        # Costs nothing and lets NumPy decide on shape, dtype and size before there is a block.
        array = np.broadcast_to(np.empty((), dtype.base), sizes + dtype.shape)
        return cls.from_shared_memory(
            SharedBlock(size=max(1, array.nbytes)), array.shape, array.dtype
        )

    @classmethod
    def from_shared_memory(cls, shm: SharedMemory, shape: Any, dtype: npt.DTypeLike) -> Self:
        """Returns an array over an open block: over its first bytes, if the block is larger. It
        keeps ``shm`` open.

        Args:
            shm: the block. If its owner closes it, the array keeps the memory.
            shape: the array's shape.
            dtype: the array's dtype, without Python objects.

        Raises:
            TypeError: ``dtype`` has Python objects, or the block is smaller than the array.
            ValueError: ``shm`` is closed.

        Example:
            >>> from multiprocessing.shared_memory import SharedMemory
            >>> shm = SharedMemory(create=True, size=16)
            >>> SharedMemoryArray.from_shared_memory(shm, (2,), "float64")
            SharedMemoryArray([0., 0.])
            >>> shm.unlink()
        """
        dtype = _without_objects(dtype)
        if shm.buf is None:
            raise ValueError(
                f"shm must be open, got {shm!r}, which is closed; attach to it again by its name"
            )
        # A SharedMemory that is closed pulls its memory away from under the array, so the array has
        # its own map of it (1).
        memory = shm.buf if isinstance(shm, SharedBlock) else _map(shm)
        array = super().__new__(cls, shape, dtype, buffer=memory)
        array._block = _ArrayBlock(shm, array)
        # All views keep this very array alive. What lives to the end of the process is seen to by
        # the block's module.
        weakref.finalize(array, _release, array._block).atexit = False
        return array

    @classmethod
    def from_metadata(cls, metadata: SharedMemoryArrayMetadata) -> Self:
        """Returns the array that ``metadata`` describes, attached: both see each other's writes.

        Raises:
            FileNotFoundError: the block has been unlinked, or never was.
        """
        return cls.from_shared_memory(SharedBlock(metadata.name), metadata.shape, metadata.dtype)

    @classmethod
    def enable_async_del(cls, num_threads: int = 1, max_outstanding_requests: int = 50) -> None:
        """Has blocks closed and unlinked by threads in the background from now on; freeing large
        ones takes a while.

        There is one pool of threads in a process: later calls keep the first one. It does not keep
        the process alive, and forked processes start without one.

        Args:
            num_threads: the number of threads, positive.
            max_outstanding_requests: how many blocks may wait for the threads, and at least
                ``num_threads`` may; further ones are closed where they are deleted.
        """
        num_threads = as_int("num_threads", num_threads, minimum=1)
        limit = as_int("max_outstanding_requests", max_outstanding_requests, minimum=0)
        uninterrupted(partial(_start_pool, num_threads, max(limit, num_threads)))

    @property
    def shm(self) -> SharedMemory | None:
        """The block of shared memory; ``None`` if this array is a copy, with memory of its own."""
        return None if self._block is None else self._block.shm

    @property
    def metadata(self) -> SharedMemoryArrayMetadata:
        """The data that another process needs to attach.

        Raises:
            AssertionError: the array is a copy and shares nothing.
            ValueError: it is a view of a part, or in another order: the block's name does not say
                which.
        """
        if self._block is None:
            raise AssertionError(
                "this array is a copy with memory of its own: it has no shared memory to describe"
            )
        if not self._is_whole():
            raise ValueError(
                f"this array of shape {self.shape} and strides {self.strides} is a view of a part"
                " of its shared memory, or in another order, which metadata cannot describe; send"
                " the metadata of the whole array, or a pickle of this one"
            )
        self._block.give_away()
        return SharedMemoryArrayMetadata(self._block.shm.name, self.shape, self.dtype)

    def unlink_on_del(self) -> None:
        """Makes this process free the block when the array and all its views are gone, at the
        latest when the process ends.

        Called on a view, it means the block all the same; a copy has nothing to free. Unpickling or
        attaching gives an array of its own, for which this is off.
        """
        if self._block is not None:
            self._block.unlink_on_release()

    def __array_finalize__(self, obj: object) -> None:
        block = getattr(obj, "_block", None)
        self._block = block if block is not None and block.holds(self) else None

    def __array_wrap__(
        self, array: Any, context: object = None, return_scalar: bool = False
    ) -> Any:
        if array is self:  # the ``out=`` of a ufunc
            return self
        return array[()] if array.ndim == 0 else array

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self._is_whole():
            return type(self).from_metadata, (self.metadata,)
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def _is_whole(self) -> bool:
        return (
            self._block is not None
            and self.flags.c_contiguous
            and _address(self) == self._block.address
            and self.nbytes == self._block.nbytes
        )


class _ArrayBlock:
    """The block of an array and the clean-up when the array is gone. All its views have it too."""

    def __init__(self, shm: SharedMemory, array: SharedMemoryArray) -> None:
        self.shm = shm
        self.address = _address(array)
        self.nbytes = array.nbytes
        self._unlinks = False

    def holds(self, array: SharedMemoryArray) -> bool:
        # an empty array may be at the end
        return self.address <= _address(array) <= self.address + self.nbytes

    def give_away(self) -> None:
        if not self._unlinks:
            leave(self.shm.name)

    def unlink_on_release(self) -> None:
        answer_for(self.shm.name)
        self._unlinks = True

    def release(self) -> None:
        """Called once, when the block is no longer in use. Closing is a matter of letting go of
        ``self``.
        """
        if self._unlinks:
            free(self.shm.name)  # in a forked process nothing: it answers for no names (3)


class _Pool:
    """Threads that release blocks. Only what (4) allows is used by ``take``."""

    def __init__(self, num_threads: int, limit: int) -> None:
        self._permits = [None] * limit
        # its `put` may be interrupted by a `put` of the same thread
        self._blocks: SimpleQueue[_ArrayBlock | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"gristmill-async-del-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        # Before the names that are left are freed: a thread that is cut off would leave its one to
        # the tracker.
        util.Finalize(None, self._stop, exitpriority=-50)

    def take(self, block: _ArrayBlock) -> bool:
        """Returns whether there was room for the block."""
        try:
            self._permits.pop()
        except IndexError:
            return False
        self._blocks.put(block)
        return True

    def _run(self) -> None:
        while self._release_next():
            self._permits.append(None)

    def _release_next(self) -> bool:
        block = self._blocks.get()
        if block is not None:
            block.release()
        return block is not None

    def _stop(self) -> None:
        global _pool
        _pool = None
        for _ in self._threads:
            self._blocks.put(None)
        for thread in self._threads:
            thread.join()


_pool: _Pool | None = None
_pool_lock = Lock()


def _start_pool(num_threads: int, limit: int) -> None:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = _Pool(num_threads, limit)


def _release(block: _ArrayBlock) -> None:
    pool = _pool
    if pool is None or not pool.take(block):
        block.release()


def _after_fork() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, Lock()  # threads do not survive a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _map(shm: SharedMemory) -> mmap.mmap:
    fd: int = vars(shm)["_fd"]
    if fd >= 0:
        return mmap.mmap(fd, shm.size)
    by_name: Any = mmap.mmap  # Windows: a block has a name there, and no descriptor
    return by_name(-1, shm.size, tagname=shm.name)


def _address(array: SharedMemoryArray) -> int:
    return array.__array_interface__["data"][0]


def _without_objects(dtype: npt.DTypeLike) -> DType:
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(
            "dtype must not have Python objects, which mean nothing in another process, got"
            f" {dtype!r}"
        )
    return dtype
