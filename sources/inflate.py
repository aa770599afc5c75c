"""Reading compressed files as if they were not."""

from __future__ import annotations

import zlib
from typing import BinaryIO

from gristmill.sources.forwards import ForwardFile

_PIECE_BYTES = 1 << 16
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class InflatedFile(ForwardFile):
    """The contents of a gzip or zlib file, to be read forwards; a ``seek`` backwards starts again
    from the beginning.

    Args:
        file: the compressed file, which is closed with this one. A gzip file may consist of
            several, one after another.

    Example:
        >>> import gzip, io
        >>> file = InflatedFile(io.BytesIO(gzip.compress(b"some text")))
        >>> file.seek(5), file.read(100)
        (5, b'text')
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._rest = b""  # of what was read and not yet inflated
        self._position = 0
        self._has_begun = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, at least one unless this is the end.

        Raises:
            ValueError: the file is damaged or cut off here. Reading it again, the bytes before come
                out again.
        """
        while True:
            compressed = self._rest or self._file.read(_PIECE_BYTES)
            # at the end of one of several files, or it is empty
            if self._inflate.eof or not (compressed or self._has_begun):
                if not compressed:
                    return b""
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            self._has_begun = True
            try:
                data = self._inflate.decompress(compressed, size)
            except zlib.error as error:
                raise ValueError(f"the compressed data are damaged ({error})") from error
            self._rest = (
                self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            )
            if data:
                self._position += len(data)
                return data
            if not compressed and not self._inflate.eof:
                raise ValueError("the compressed data are cut off")

    def close(self) -> None:
        self._file.close()
