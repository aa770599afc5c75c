"""Ranges of local files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gristmill.sources.storage.errors import changed


class LocalFile:
    """A local file, open until nobody refers to it any more. All its methods may be called by several threads at once.

    Args:
        path: the file.
        size: how many bytes it must have.

    Raises:
        OSError: it cannot be opened.
        ChangedFileError: it has another size.
    """

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._opened_as = self._status()
        if self._opened_as[0] != size:
            raise changed(path, f"it had {size} bytes and has {self._opened_as[0]}")

    def _status(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def _check(self) -> None:
        """A file that was written in place is noticed after each read; one that was replaced is read as it was."""
        if self._status() != self._opened_as:
            raise changed(self._path, "it was written to while it was read")

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes from ``start`` to ``stop - 1`` of each range, which must lie in the file."""
        descriptor = self._descriptor
        pieces = [os.pread(descriptor, stop - start, start) for start, stop in ranges]
        self._check()
        for place, (start, stop) in enumerate(ranges):
            if len(pieces[place]) < stop - start:  # Linux reads at most 2 GB at a time
                whole = bytearray(stop - start)
                self.read_into(start, memoryview(whole))
                pieces[place] = bytes(whole)
        return pieces

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fills ``buffer``, which is writable and contiguous, with the bytes from ``start`` on."""
        buffer = buffer.cast("B")
        done = 0
        while done < len(buffer):
            num_bytes = os.preadv(self._descriptor, [buffer[done:]], start + done)
            if not num_bytes:
                self._check()
                raise OSError(f"{self._path} ends at byte {start + done}, which should have {len(buffer) - done} bytes more")
            done += num_bytes
        self._check()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def local_size(path: str) -> int:
    """The number of bytes of a file.

    Raises:
        OSError: there is no such file, or it is a folder.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder, not a file: name its files, or a pattern such as {os.path.join(path, '*')}")
    return os.stat(path).st_size
