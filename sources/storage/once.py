"""Files that are made by one of many processes, whole or not at all.

What holds when several threads and processes make a file at the same path:

1. What is at the path is whole: it is written under another name, synced to disk and renamed.
2. The one that has locked ``<path>.lock`` makes it; long names are cut, see ``name_that_fits``.
3. The kernel frees the lock of a process that dies. The next one finds nothing at the path, and
   makes it.
4. Nothing else stays. The process that holds the lock removes the lock file; a lock on a removed
   file has no effect. What a process has left half-written, and locked no more, is removed by the
   next that makes the file.
5. Where a file system has no locks, several may make the file; the last to rename wins, and all
   have made the same.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gristmill.sources.storage.posix import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)
_MAX_NAME_BYTES = 255  # of Linux's and macOS's file systems


def name_that_fits(name: str, suffix: str) -> str:
    """Return ``name + suffix``, with a digest in place of the end of a name that is too long.

    Example:
        >>> name_that_fits("a.jsonl", ".gmidx"), name_that_fits("a" * 300, ".gmidx")[230:]
        ('a.jsonl.gmidx', 'aa-003ef1ba9ea9f2f4.gmidx')
    """
    encoded, end = (
        name.encode("utf-8", "surrogateescape"),
        suffix.encode("utf-8", "surrogateescape"),
    )
    if len(encoded) + len(end) <= _MAX_NAME_BYTES:
        return name + suffix
    digest = hashlib.sha1(encoded, usedforsecurity=False).hexdigest()[:16]
    start = encoded[: max(0, _MAX_NAME_BYTES - len(digest) - 1 - len(end))].decode(
        "utf-8", "ignore"
    )
    return f"{start}-{digest}{suffix}"


@contextlib.contextmanager
def renamed(path: Path) -> Iterator[BinaryIO]:
    """Yields a file to write to, which is at ``path`` once it is whole and on disk, or nowhere."""
    token = os.urandom(8).hex()
    part = path.with_name(
        name_that_fits(path.stem, f"{path.suffix}.{os.uname().nodename}-{token}.part")
    )
    start = part.name.removesuffix(f"{token}.part")
    for left in path.parent.glob(f"{glob.escape(start)}*.part"):
        with contextlib.suppress(OSError), left.open("rb+") as file:
            # its writer has died, or it would have the lock
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
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
def explained(
    path: Path, what: str = "write the index", parameter: str = "index_dir"
) -> Iterator[None]:
    """Explains errors of doing ``what`` at ``path``; ``parameter`` can name another folder."""
    try:
        yield
    except OSError as error:
        why = reason(error, parameter)
        if why is None or error.__cause__ is not None:  # something else, or explained already
            raise
        raise type(error)(error.errno, f"cannot {what} {path}: {why}") from error


def reason(error: OSError, parameter: str) -> str | None:
    """Returns the reason why writing fails, with the remedy; ``None`` for other errors."""
    if error.errno in _READ_ONLY:
        text = f"the folder cannot be written; give a folder that can as {parameter}"
    elif error.errno in _FULL:
        text = (
            "there is no space left, or no more may be used; make room, or give a folder with room"
            f" as {parameter}"
        )
    elif error.errno in _NO_FOLDER:
        text = f"a file is in place of a folder; give another one as {parameter}"
    elif error.errno == errno.ENAMETOOLONG:
        text = f"the path is too long; give a folder with a shorter path as {parameter}"
    else:
        return None
    return f"{os.strerror(error.errno)}: {text}"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """True if this is, of all threads and processes, the one that may make the sidecar at
    ``path``.
    """
    name = path.with_name(name_that_fits(path.stem, f"{path.suffix}.lock"))
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
    except FileNotFoundError:  # removed by the previous owner of the lock
        return False
