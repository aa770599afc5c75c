"""Ranges of local files.

What holds:

1. A file stays open as long as there is a reference to it: reads under way end before it is closed.
2. What is read is what the file was when its size was found out: another size or time of change is
   an error, in the file that is open and in one that is opened again under the same name.
3. Each ``LocalFiles`` has few files open, and fewer where the process may not have many. If
   descriptors run out, all idle files of the process are closed, and then parked worker processes
   (see ``core.descriptors``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from gristmill.core.descriptors import max_descriptors, release_when_scarce, with_descriptors
from gristmill.core.live import LiveObjects
from gristmill.sources.storage.errors import changed

_MAX_OPEN = 128
_SHARE_OF_LIMIT = 8  # of the files that a process may have open
_MAX_READ = (1 << 31) - (1 << 12)  # at a time; Linux reads no more, macOS raises an error for more

_everybody: LiveObjects[LocalFiles] = LiveObjects()


class LocalFile:
    """A local file, open until the last reference to it is gone. All its methods may be called by
    several threads at once.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self.status = status.st_size, status.st_mtime_ns

    def _check(self) -> None:
        """Raises after a read if the file was written in place; a file that was replaced is read as
        it was.
        """
        status, (size, changed_at) = os.fstat(self._descriptor), self.status
        if status.st_size != size or status.st_mtime_ns != changed_at:
            raise changed(self._path, "it was written to while it was read")

    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Returns the bytes from ``start`` to ``stop - 1`` for each ``(_, start, stop)``."""
        descriptor, pieces, are_whole = self._descriptor, [], True
        for _, start, stop in ranges:
            num_bytes = stop - start
            piece = os.pread(descriptor, num_bytes if num_bytes < _MAX_READ else _MAX_READ, start)
            pieces.append(piece)
            are_whole = are_whole and len(piece) == num_bytes
        self._check()
        if not are_whole:
            for place, (_, start, stop) in enumerate(ranges):
                if len(pieces[place]) < stop - start:
                    pieces[place] = b""  # frees the memory before all of the range is read
                    pieces[place] = self._whole(start, stop)
        return pieces

    def read_one(self, start: int, stop: int) -> bytes:
        """Returns the bytes from ``start`` to ``stop - 1``."""
        num_bytes = stop - start
        piece = os.pread(self._descriptor, num_bytes if num_bytes < _MAX_READ else _MAX_READ, start)
        self._check()
        return piece if len(piece) == num_bytes else self._whole(start, stop)

    def _whole(self, start: int, stop: int) -> bytes:
        """Returns the bytes of a range that one call of ``pread`` did not read to its end."""
        whole = bytearray(stop - start)
        self.read_into(start, memoryview(whole))
        return bytes(whole)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fills ``buffer``, which is writable and contiguous, with the bytes from ``start`` on."""
        buffer = buffer.cast("B")
        done = 0
        while done < len(buffer):
            num_bytes = _read_into(self._descriptor, start + done, buffer[done:])
            if not num_bytes:
                self._check()
                raise OSError(
                    f"{self._path} ends at byte {start + done}, which should have"
                    f" {len(buffer) - done} bytes more"
                )
            done += num_bytes
        self._check()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor >= 0:
            close(self._descriptor)


class LocalFiles:
    """Local files by number, opened when they are read."""

    def __init__(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        self._paths, self._sizes = paths, sizes
        self.opened: dict[int, LocalFile] = {}
        # of files that this process has opened before
        self._statuses: dict[int, tuple[int, int]] = {}
        _everybody.add(self)

    def file(self, number: int) -> LocalFile:
        """Returns the file, open.

        Raises:
            ChangedFileError: it has another size, or was another one when it was opened last.
            OSError: it cannot be opened.
        """
        opened = self.opened
        file = opened.get(number)
        if file is not None:
            return file
        file = with_descriptors(partial(LocalFile, self._paths[number]))
        if file.status[0] != self._sizes[number]:
            raise changed(
                self._paths[number], f"it had {self._sizes[number]} bytes and has {file.status[0]}"
            )
        if self._statuses.setdefault(number, file.status) != file.status:
            raise changed(self._paths[number], "it was written again")
        for other in list(opened)[: len(opened) + 1 - _max_open()]:
            opened.pop(other, None)
        opened[number] = file
        return file

    def close(self) -> None:
        """Closes files that are not being read. The next read opens them again."""
        self.opened = {}


def is_local(filesystem: Any) -> bool:
    """Returns true for the local file system of pyarrow or fsspec."""
    return type(filesystem).__name__ == "LocalFileSystem"


def starting_folder(paths: Iterable[str]) -> str:
    """Return the current folder if one of these local paths is relative, else an empty text.

    Sources keep it, so that a change of the current folder changes no data. They show paths as they
    were given.
    """
    return os.getcwd() if any([not os.path.isabs(path) for path in paths]) else ""  # noqa: PTH109, PTH117


def _read_into(descriptor: int, start: int, buffer: memoryview) -> int:
    buffer = buffer[:_MAX_READ]
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], start)
    data = os.pread(descriptor, len(buffer), start)  # macOS before 11
    buffer[: len(data)] = data
    return len(data)


def _close_idle() -> None:
    for files in _everybody.all():
        files.close()


release_when_scarce(_close_idle, first=True)


def _max_open() -> int:
    return max(2, min(_MAX_OPEN, max_descriptors() // _SHARE_OF_LIMIT))


def local_size(path: str) -> int:
    """Returns the number of bytes of a file.

    Raises:
        OSError: there is no such file, or it is a folder or a pipe.
    """
    if not hasattr(os, "pread"):
        raise RuntimeError(
            f"{path} cannot be read by ranges here, where there is no os.pread: use Linux, macOS"
            " or WSL"
        )
    status = os.stat(path)  # noqa: PTH116 - a path as it was given
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(
            f"{path} is a folder, not a file: name its files, or a pattern such as"
            f" {path.rstrip('/')}/*"
        )
    if not stat.S_ISREG(status.st_mode):
        raise OSError(
            f"{path} is a pipe or a device, which cannot be read in any order: copy what it gives"
            " to a file"
        )
    return status.st_size
