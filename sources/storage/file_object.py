"""A file of ``Files`` as a file object, for libraries that read one."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.sources.storage.files import Files


class FileObject(io.RawIOBase):
    """One of ``files``, to be read by one thread at a time. Errors are raised as they are.

    Args:
        files: the files.
        number: the number of the file.
    """

    def __init__(self, files: Files, number: int) -> None:
        self._files, self._number = files, number
        self._size = files.sizes[number]
        self._position = 0

    def readinto(self, buffer: Any) -> int:
        buffer = memoryview(buffer).cast("B")
        num_bytes = max(0, min(len(buffer), self._size - self._position))
        if num_bytes:
            self._files.read_into(self._number, self._position, buffer[:num_bytes])
        self._position += num_bytes
        return num_bytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
