"""A named block of shared memory that leaves nothing behind.

1. A process that creates a block, or calls ``answer_for`` its name, answers for it: when it ends, the name is freed, if
   nobody has done so before. When it is killed, Python's resource tracker frees what it had created.
2. A child of ``multiprocessing`` may ``leave`` a block to its main process, which ``remember``s the name when it attaches
   and frees it when both have ended. If it never attaches, the tracker that they share frees the name, and says so.
3. The tracker never complains of a name that was freed by us, whoever has or has not told it: we tell it to forget a
   name together with the name itself. It is told from ordinary code only: it holds a lock, and may start a process.
4. ``free`` may be called from anywhere (a finalizer in the middle of a garbage collection, under somebody's lock): it
   waits for nothing, starts nothing and never raises.
5. What is mapped stays mapped as long as anything uses it: ``close`` lets go of the memory, it does not pull it away.
6. A fork answers for nothing that its parent made.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import re
import sys
from collections import deque
from multiprocessing import parent_process, resource_tracker, util
from multiprocessing.shared_memory import SharedMemory

_posixshmem = importlib.import_module("_posixshmem")  # part of CPython, but not of the type checkers' stubs
_tracker = vars(resource_tracker)["_resource_tracker"]

# The process that made the block is in its name, in at most 31 characters with the slash (macOS).
_NEW_NAME = "gristmill_{process:x}_{random}"
_MADE_HERE = re.compile("gristmill_([0-9a-f]{1,7})_[0-9a-f]{12}")


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
    _mmap: mmap.mmap | None
    _buf: memoryview | None

    def __init__(self, name: str | None = None, size: int = 0) -> None:
        tell_tracker()
        if size == 0:
            self._attach(name)
            return
        _shares_tracker()  # to be asked before the next line starts one
        name = name or _NEW_NAME.format(process=os.getpid(), random=os.urandom(6).hex())
        super().__init__(name, create=True, size=size)
        answer_for(self.name)
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
            # SharedMemory.__init__ would register the block with the resource tracker, which would free it.
            self._name = f"/{name}"
            self._fd = _posixshmem.shm_open(self._name, os.O_RDWR, mode=0o600)
            self._size = os.fstat(self._fd).st_size
            self._mmap = mmap.mmap(self._fd, self._size)
            self._buf = memoryview(self._mmap)

    def close(self) -> None:
        """Lets go of the memory, which stays mapped as long as an array or a ``memoryview`` uses it."""
        self._buf = self._mmap = None
        super().close()

    def unlink(self) -> None:
        """Frees the name; the memory goes when the last process has closed it.

        Raises:
            FileNotFoundError: somebody has done so already.
        """
        unlink(self.name)

    def __reduce__(self) -> tuple[type[SharedBlock], tuple[str]]:
        return type(self), (self.name,)


# The names to be freed when this process ends: for certain, or (False) if their creator has ended by then.
_names: dict[str, bool] = {}
# Freed names of which the tracker still has to be told.
_untold: deque[str] = deque()
_exit_is_watched = False
_sharing: bool | None = None


def unlink(name: str) -> None:
    """Frees the name of a block.

    Raises:
        FileNotFoundError: somebody has done so already.
    """
    _posixshmem.shm_unlink(f"/{name}")
    _names.pop(name, None)
    _untold.append(name)
    tell_tracker()


def free(name: str) -> None:
    """Frees a name that this process answers for, once and from anywhere (4)."""
    if _names.pop(name, None) is None:
        return
    with contextlib.suppress(OSError):  # another process has done so already, or it is another user's
        _posixshmem.shm_unlink(f"/{name}")
    _untold.append(name)


def answer_for(name: str) -> None:
    """This process will free the name when it ends."""
    _watch_exit()
    _names[name] = True


def leave(name: str) -> None:
    """This process will not free the name when it ends, if it is a child whose main process can (2)."""
    if _shares_tracker():
        _names.pop(name, None)


def remember(name: str) -> None:
    """This process will free the name when it ends if the creator has ended by then and left it (2)."""
    if not _shares_tracker():
        _watch_exit()
        _names.setdefault(name, False)


def tell_tracker() -> None:
    """Makes the tracker forget the names that were freed."""
    while True:
        try:
            name = f"/{_untold.popleft()}"
        except IndexError:
            return
        if _tracker._fd is not None:  # otherwise there is none, and it knows nothing
            resource_tracker.register(name, "shared_memory")
            resource_tracker.unregister(name, "shared_memory")


def _shares_tracker() -> bool:
    """Whether this is a child whose resource tracker is its parent's and lives on after it."""
    global _sharing
    if _sharing is None:
        _sharing = parent_process() is not None and _tracker._fd is not None
    return _sharing


def _watch_exit() -> None:
    global _exit_is_watched
    if not _exit_is_watched:
        # Unlike atexit this also runs in children of multiprocessing, and in forks only if they ask for it. The priority
        # is that of what comes after all children, and the threads that feed queues, were waited for.
        util.Finalize(None, _at_exit, exitpriority=-100)
        _exit_is_watched = True


def _at_exit() -> None:
    for name, certain in list(_names.items()):
        if certain or _creator_is_gone(name):
            free(name)
    tell_tracker()


def _creator_is_gone(name: str) -> bool:
    made_here = _MADE_HERE.fullmatch(name)
    if made_here is None:
        return False
    try:
        os.kill(int(made_here[1], 16), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        return False
    return False


def _forget_all() -> None:
    global _exit_is_watched, _sharing
    _names.clear()
    _untold.clear()
    _exit_is_watched = False
    _sharing = None


os.register_at_fork(after_in_child=_forget_all)
