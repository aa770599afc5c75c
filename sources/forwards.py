"""Files that are read forwards, as if they could seek."""

from __future__ import annotations

import abc
import io
import sys
from collections.abc import Callable
from typing import Any

_PIECE_BYTES = 1 << 16


class ForwardFile(abc.ABC):
    """Moves forwards by reading, and backwards by restarting.

    Subclasses define ``read``, which keeps ``_position``, and ``_restart``.
    """

    _position = 0

    @abc.abstractmethod
    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, at least one unless this is the end."""

    @abc.abstractmethod
    def _restart(self) -> None:
        """Goes to the beginning."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to ``offset``, or with ``io.SEEK_END`` to the end; returns where it got."""
        if whence == io.SEEK_END:
            offset = sys.maxsize
        if offset < self._position:
            self._restart()
        while self._position < offset and self.read(min(offset - self._position, _PIECE_BYTES)):
            pass
        return self._position


class UnseekableFile(ForwardFile):
    """A file that cannot seek: to go back, it is opened again, and what comes before is read and
    dropped.

    Args:
        file: the file, at its beginning; ``close`` closes it.
        reopened: opens it again.

    Example:
        >>> class Stream:
        ...     def __init__(self):
        ...         self.rest = list(b"some text")
        ...
        ...     def read(self, size):
        ...         data, self.rest = bytes(self.rest[:size]), self.rest[size:]
        ...         return data
        ...
        ...     def close(self):
        ...         pass
        >>> file = UnseekableFile(Stream(), Stream)
        >>> file.seek(5), file.read(100), file.seek(2), file.read(2)
        (5, b'text', 2, b'me')
    """

    def __init__(self, file: Any, reopened: Callable[[], Any]) -> None:
        self._file = file
        self._reopened = reopened

    def _restart(self) -> None:
        self.close()
        self._file = self._reopened()
        self._position = 0

    def read(self, size: int) -> bytes:
        if self._file is None:
            position = self._position
            self._restart()
            self.seek(position)
        try:
            data: bytes = self._file.read(size)
            self._position += len(data)
        except BaseException:  # its position is unknown now
            self.close()
            raise
        return data

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def can_seek(file: Any) -> bool:
    """True if a file object says that it can go to any place."""
    return hasattr(file, "seek") and (not hasattr(file, "seekable") or bool(file.seekable()))
