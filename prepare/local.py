"""The local folder that files are written to.

What holds for any number of processes that write into one folder, whenever one of them is killed:

1. A file gets its name by a rename, after all of it is on the disk. Before that it is in
``.unfinished``.
2. One process at a time writes a file of a given name. It holds a lock that the kernel releases if
the process dies.
3. What a killed process has left of a file is removed by the next one that writes this file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gristmill.sources.storage.posix import fcntl

UNFINISHED = ".unfinished"


class LocalFolder:
    """A folder of this machine, or of a file system that several hosts share.

    Args:
        path: the folder; made when something is written.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100 - a text, as URLs are

    def __str__(self) -> str:
        return self.path

    def read(self, name: str) -> bytes | None:
        """Returns the bytes of a small file; ``None`` if there is none."""
        try:
            return self._at(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, name: str) -> int | None:
        """Returns the size of a file; ``None`` if there is none."""
        try:
            return self._at(name).stat().st_size
        except FileNotFoundError:
            return None

    def version(self, name: str) -> str:
        """Returns a text that a file of another content most likely does not have."""
        return str(self._at(name).stat().st_mtime_ns)

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file unless one of this name exists. Return False if it exists."""
        try:
            self._place(name, content, os.link)
        except FileExistsError:
            return False
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file, in place of the one of this name."""
        self._place(name, content, os.replace)

    def exchange(self, name: str, old: bytes, new: bytes) -> bool:
        """Write a small file if the one of this name is ``old``. Return False if it is not."""
        with self.lock(name):
            if self.read(name) != old:
                return False
            self.replace(name, new)
            return True

    def publish(self, path: Path, name: str) -> None:
        """Gives a file that is whole its name."""
        with _writable(self.path):
            path.replace(self._at(name))
        sync(Path(self.path))

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        with _writable(self.path):
            self._at(name).unlink(missing_ok=True)

    def unfinished_names(self) -> list[str]:
        """Returns the names of the small files that are left of writing."""
        return [
            f"{UNFINISHED}/{path.name}"
            for path in sorted(self._at(UNFINISHED).glob("*"))
            if path.is_file()
        ]

    def unfinished_sizes(self) -> list[int]:
        """Returns the number of bytes that is written of each file in work."""
        sizes = []
        for folder in self._at(UNFINISHED).glob("*.tmp"):
            with contextlib.suppress(OSError):  # it has just been finished
                sizes.append(sum([path.stat().st_size for path in folder.iterdir()]))
        return sizes

    def remove_unfinished(self) -> None:
        """Removes all that is left of writing."""
        shutil.rmtree(self._at(UNFINISHED), ignore_errors=True)

    @contextlib.contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """Yields an empty folder for what becomes ``name``, which is removed at the end.

        The caller holds the lock of ``name``.
        """
        for old in self._at(UNFINISHED).glob(f"{name}.*.tmp"):
            shutil.rmtree(old, ignore_errors=True)
        path = self._at(UNFINISHED) / f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Waits until no other process writes ``name``.

        Raises:
            OSError: this system has no locks of files, as Windows.
        """
        if fcntl is None:
            raise OSError(f"{self} cannot be written: this system has no locks of files (POSIX)")
        descriptor = self._opened(f"{UNFINISHED}/{name}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _opened(self, name: str) -> int:
        """Open a file, which is created if it does not exist."""
        path, flags = self._at(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        while True:
            with _unless_removed(path.parent):
                return os.open(path, flags, 0o666)

    def _place(self, name: str, content: bytes, move: Callable[[Path, Path], object]) -> None:
        """Write a small file aside and ``move`` it to its name when it is on the disk."""
        target = self._at(name)
        path = self._at(UNFINISHED) / f"{target.name}.{uuid.uuid4().hex[:8]}"
        is_placed = False
        while not is_placed:
            with _unless_removed(path.parent):
                try:
                    with path.open("wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    move(path, target)
                    is_placed = True
                finally:
                    path.unlink(missing_ok=True)
        sync(target.parent)

    def _at(self, name: str) -> Path:
        return Path(self.path, name)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _unless_removed(folder: Path) -> Iterator[None]:
    """Create ``folder`` for the body, which is left early if ``folder`` is removed meanwhile.

    A process that completes the whole folder removes ``.unfinished`` while another one may
    still use it. The caller tries again.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:  # exist_ok=True raises if it is just removed
        pass
    except OSError as error:
        raise OSError(
            error.errno,
            f"path must be a folder that can be written to, got {folder.parent}: {error.strerror}",
        ) from error
    with contextlib.suppress(FileNotFoundError), _writable(folder.parent):
        yield


@contextlib.contextmanager
def _writable(folder: Any) -> Iterator[None]:
    """Says of a folder without the right to write what ``write`` needs."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise OSError(
            error.errno,
            f"path must be a folder that can be written to, got {folder}: {error.strerror}",
        ) from error
