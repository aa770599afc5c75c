"""Files that are made by one of many processes, whole or not at all.

What holds when several threads and processes make a file at the same path:

1. What is at the path is whole: it is written under another name, synced to disk and renamed.
2. One of them makes it, who has locked ``<path>.lock``.
3. The kernel frees the lock of a process that dies. The next one finds nothing at the path, and makes it.
4. Nothing else stays. Whoever holds the lock removes the lock file; a lock on a file that has been removed counts for nothing.
   What a process has left half-written, and locked no more, is removed by the next that makes the file.
5. Where a file system has no locks, several may make the file; the last to rename wins, and all have made the same.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gristmill.sources.storage.posix import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def renamed(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which is at ``path`` once it is whole and on disk, or nowhere."""
    start = f"{path.name}.{os.uname().nodename}-"
    for left in path.parent.glob(f"{glob.escape(start)}*.part"):
        with contextlib.suppress(OSError), left.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who wrote it has died, or it would have the lock
            left.unlink()
    part = path.with_name(f"{start}{os.urandom(8).hex()}.part")
    try:
        with part.open("wb") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # not every file system syncs folders
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Explains why an index cannot be written at ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in _READ_ONLY:
            text = "the folder cannot be written; give a folder that can as index_dir"
        elif error.errno in _FULL:
            text = "there is no space left, or no more may be used; make room, or give a folder with room as index_dir"
        else:
            raise
        raise type(error)(error.errno, f"cannot write the index {path}: {os.strerror(error.errno)}: {text}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this is, of all threads and processes, the one that may make the sidecar at ``path``."""
    name = path.with_name(f"{path.name}.lock")
    with explained(path):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        is_mine = _has_lock(descriptor, name)
        try:
            yield is_mine
        finally:
            if is_mine:
                name.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _has_lock(descriptor: int, name: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        return os.path.samestat(os.fstat(descriptor), name.stat())
    except FileNotFoundError:  # removed by who had the lock, before it was ours
        return False
