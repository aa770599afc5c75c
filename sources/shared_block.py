"""A named block of shared memory that leaves nothing behind.

1. The process that creates a block owns it. The name is gone after ``unlink`` by any process, after the owner's exit,
   and, thanks to Python's resource tracker, after the owner was killed.
2. Only the owner talks to the resource tracker, and tells it each thing once. A tracker that is told twice, or of one
   thing by several processes (``multiprocessing``'s children share their parent's), complains on stderr or frees the
   block too early.
3. What is mapped stays readable until ``close``, whoever unlinks the name.
"""

from __future__ import annotations

import importlib
import mmap
import os
import sys
from multiprocessing import resource_tracker, util
from multiprocessing.shared_memory import SharedMemory

_posixshmem = importlib.import_module("_posixshmem")  # part of CPython, but not of the type checkers' stubs


class SharedBlock(SharedMemory):
    """Creates a block of ``size`` bytes; with a ``size`` of 0, attaches to the block that has the name.

    Args:
        name: the block's name. ``None`` chooses a free one when creating.
        size: bytes to allocate; the operating system may round up.

    Raises:
        FileExistsError: there is a block of this name already.
        FileNotFoundError: there is no block of this name to attach to.
        OSError: there is not enough shared memory.
    """

    _name: str
    _fd: int
    _owner: int | None = None  # process id; None where attached
    _at_exit: util.Finalize[None]

    def __init__(self, name: str | None = None, size: int = 0) -> None:
        if size == 0:
            self._attach(name)
            return
        super().__init__(name, create=True, size=size)
        # Unlike atexit this also runs in children of multiprocessing, and not in forks of this process (2).
        self._at_exit = util.Finalize(None, _disown, args=(self._name,), exitpriority=0)
        self._owner = os.getpid()
        if hasattr(os, "posix_fallocate"):  # Linux: without it, writing to memory that is not there is a SIGBUS
            try:
                os.posix_fallocate(self._fd, 0, size)
            except OSError as error:
                self.close()
                self.unlink()
                raise OSError(error.errno, f"cannot allocate {size} bytes of shared memory: {error.strerror}") from None

    if sys.version_info >= (3, 13):

        def _attach(self, name: str | None) -> None:
            super().__init__(name, track=False)

    else:

        def _attach(self, name: str | None) -> None:
            # SharedMemory.__init__ would register the block with the resource tracker (2).
            self._name = f"/{name}"
            self._fd = _posixshmem.shm_open(self._name, os.O_RDWR, mode=0o600)
            self._size = os.fstat(self._fd).st_size
            self._mmap = mmap.mmap(self._fd, self._size)
            self._buf = memoryview(self._mmap)

    def unlink(self) -> None:
        """Frees the name; the memory goes when the last process has closed it.

        Raises:
            FileNotFoundError: somebody has done so already.
        """
        _posixshmem.shm_unlink(self._name)
        if self._owner == os.getpid() and self._at_exit.still_active():
            self._at_exit.cancel()
            resource_tracker.unregister(self._name, "shared_memory")

    def __reduce__(self) -> tuple[type[SharedBlock], tuple[str]]:
        return type(self), (self.name,)


def _disown(name: str) -> None:
    try:
        _posixshmem.shm_unlink(name)
    except FileNotFoundError:  # another process has unlinked it, and could not tell our tracker
        pass
    resource_tracker.unregister(name, "shared_memory")
