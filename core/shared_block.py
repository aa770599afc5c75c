"""A named block of shared memory that leaves nothing behind.

1. A process that creates a block, or calls ``answer_for`` its name, answers for it: when it ends,
   the name is freed, if it was not freed before. When it is killed, Python's resource tracker frees
   what it had created.
2. A child of ``multiprocessing`` may ``leave`` a block, which then outlives it. What is still there
   when the main process ends is freed by that on Linux, which can list blocks; elsewhere by the
   tracker that they share, which says so.
3. The tracker never complains of a name that was freed by us, no matter which other processes
   registered it.
4. ``free`` may be called from anywhere (a finalizer in the middle of a garbage collection, while a
   lock is held): it takes no lock, starts nothing and never raises.
5. What is mapped stays mapped as long as anything uses it: ``close`` lets go of the memory, it does
   not pull it away.
6. A fork answers for nothing that its parent made.

Windows has no names to free: there, a block goes when the last process that has it open closes it
or ends, and (1), (2) and ``FileNotFoundError`` of ``unlink`` mean nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import mmap
import os
import secrets
import sys
from multiprocessing import current_process, parent_process, resource_tracker, util
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

try:
    # part of CPython, but not of the type checkers' stubs
    _posixshmem: Any = importlib.import_module("_posixshmem")
except ModuleNotFoundError:
    _posixshmem = None  # Windows
_tracker = vars(resource_tracker)["_resource_tracker"]

_LISTING = Path("/dev/shm")


class SharedBlock(SharedMemory):
    """Creates a block of ``size`` bytes; with a ``size`` of 0, attaches to the block that has the
    name.

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
    _mmap: mmap.mmap | None
    _buf: memoryview | None

    def __init__(self, name: str | None = None, size: int = 0) -> None:
        if size == 0:
            self._attach(name)
            return
        # at most 31 characters, with the slash (macOS)
        free_name = _family() + secrets.token_urlsafe(6)
        super().__init__(name or free_name, create=True, size=size)
        answer_for(self.name)
        # Linux: without it, writing to memory that is not there is a SIGBUS
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, size)
            except OSError as error:
                self.close()
                self.unlink()
                raise OSError(
                    error.errno, f"cannot allocate {size} bytes of shared memory: {error.strerror}"
                ) from None

    if sys.version_info >= (3, 13):

        def _attach(self, name: str | None) -> None:
            super().__init__(name, track=False)

    else:

        def _attach(self, name: str | None) -> None:
            if _posixshmem is None:
                super().__init__(name)
                return
            # SharedMemory.__init__ would register the block with the resource tracker, which would
            # free it.
            self._name = f"/{name}"
            self._fd = _posixshmem.shm_open(self._name, os.O_RDWR, mode=0o600)
            self._size = os.fstat(self._fd).st_size
            self._mmap = mmap.mmap(self._fd, self._size)
            self._buf = memoryview(self._mmap)

    @property
    def memory(self) -> mmap.mmap | None:
        """Return the mapped memory; ``None`` if the block is closed.

        Several threads may read slices of it. Of ``buf`` they may not: without the GIL, a
        ``memoryview`` that threads slice at the same time is released while it is used.
        """
        return self._mmap

    def close(self) -> None:
        """Lets go of the memory, which stays mapped as long as an array or a ``memoryview`` uses
        it.
        """
        self._buf = self._mmap = None
        super().close()

    def unlink(self) -> None:
        """Frees the name; the memory goes when the last process has closed it.

        Raises:
            FileNotFoundError: it was unlinked already.
        """
        unlink(self.name)

    def __reduce__(self) -> tuple[type[SharedBlock], tuple[str]]:
        return type(self), (self.name,)


# The names to be freed when this process ends.
_names: set[str] = set()
_exit_call: util.Finalize[None] | None = None
_sharing: bool | None = None


def unlink(name: str) -> None:
    """Frees the name of a block.

    Raises:
        FileNotFoundError: it was unlinked already.
    """
    _free_name(name)
    _names.discard(name)
    _notify_tracker(name)


def free(name: str) -> None:
    """Frees a name that this process answers for, once and from anywhere (4)."""
    try:
        _names.remove(name)
    except KeyError:
        return
    if _shares_tracker():
        # If it is terminated now, as workers of a pool are, it has left the block to the main
        # process.
        _notify_tracker(name)
    with contextlib.suppress(OSError):  # another process has unlinked it, or it is another user's
        _free_name(name)
    _notify_tracker(name)


def _free_name(name: str) -> None:
    if _posixshmem is not None:
        _posixshmem.shm_unlink(f"/{name}")


def answer_for(name: str) -> None:
    """Makes this process free the name when it ends."""
    _watch_exit()
    _names.add(name)


def leave(name: str) -> None:
    """Lets the main process free the name (2): this process, a child of it, will not."""
    if _shares_tracker():
        _names.discard(name)


def _notify_tracker(name: str) -> None:
    """Makes the tracker forget a name (3), which it only does without complaint if it knows the
    name.
    """
    message = f"REGISTER:/{name}:shared_memory\nUNREGISTER:/{name}:shared_memory\n"
    if _tracker._fd is not None:  # otherwise no tracker runs, and no name is known
        # In one write, which cannot be interrupted, and not by its methods, which hold a lock and
        # may start a process (4).
        with contextlib.suppress(OSError):
            os.write(_tracker._fd, message.encode("ascii", "replace"))


def _shares_tracker() -> bool:
    """True if this is a child whose resource tracker is its parent's and outlives it."""
    global _sharing
    if parent_process() is None:  # which it also is while a child imports the main program
        return False
    # asked for the first time before there is a block: later, the tracker may be our own
    if _sharing is None:
        _sharing = _tracker._fd is not None
    return _sharing


def _family() -> str:
    """Returns how the names begin that the main process of this one frees: of its own blocks, and
    of what children left.
    """
    main = (_shares_tracker() and parent_process()) or current_process()
    # Different in all processes and in all containers that share their memory; and it does not give
    # the key away.
    digest = hashlib.sha256(current_process().authkey + str(main.pid).encode()).hexdigest()
    return f"gristmill_{digest[:10]}_"


def _watch_exit(_: object = None) -> None:
    global _exit_call
    if _exit_call is None or not _exit_call.still_active():
        # Unlike atexit this also runs in children of multiprocessing. The priority is lower than
        # that of ending all children, and the threads that feed queues, were waited for.
        _exit_call = util.Finalize(None, _at_exit, exitpriority=-100)


def _at_exit() -> None:
    if not _shares_tracker() and _LISTING.is_dir():
        _names.update(path.name for path in _LISTING.glob(f"{_family()}*"))
    for name in list(_names):
        free(name)


def _forget_all() -> None:
    global _exit_call, _sharing
    _names.clear()
    _exit_call = _sharing = None


_watch_exit()
# multiprocessing's children forget the registered exit functions, and call this
util.register_after_fork(_at_exit, _watch_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
