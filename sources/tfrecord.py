"""TFRecord files (https://www.tensorflow.org/tutorials/load_data/tfrecord), without TensorFlow.

A file is a sequence of records: the length of the data (8 bytes, little-endian), a masked CRC-32C
of these 8 bytes (4 bytes), the data, and a masked CRC-32C of them (4 bytes).
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, get_args

import numpy as np

from gristmill.core.errors import StateIndexError, add_note, check_word
from gristmill.core.naming import transform_name
from gristmill.sources.crc32c import masked_crc32c
from gristmill.sources.forwards import UnseekableFile, can_seek
from gristmill.sources.inflate import InflatedFile

Compression = Literal["gzip", "zlib"]


class BinaryFile(Protocol):
    """Interface of the result of a function that opens files. It is read from front to back; with a
    method ``seek``, from anywhere.
    """

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> object: ...


Opener = Callable[[Any], BinaryFile]

_HEADER = struct.Struct("<QI")
_FOOTER_SIZE = 4
_BLOCK_BYTES = 1 << 18  # what is read at a time: fits in a processor's cache, where it is checked
_SHOWN_BYTES = 32
_PIECE_BYTES = 1 << 24  # a damaged length must not allocate memory for data that do not exist
_MAGIC_NUMBERS: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip",
    b"\x78\x01": "zlib",
    b"\x78\x9c": "zlib",
    b"\x78\xda": "zlib",
}
_REMEDY = "Write the file again, or leave it out"


def check_compression(compression: Any) -> Compression | None:
    """Returns ``compression``, if it is one."""
    check_word("compression", compression, *get_args(Compression), None)
    found: Compression | None = compression
    return found


def check_opener(open: Any) -> Opener | None:
    """Returns ``open``, if it may be a function that opens files."""
    if open is None or callable(open):
        found: Opener | None = open
        return found
    raise TypeError(
        "open must be a function that takes a path and returns a binary file object, got"
        f" {open!r:.200}"
    )


class TFRecordFile:
    """The records of a file, from any offset on.

    Args:
        path: the file; an object with a method ``open``, like those of ``pathlib`` and
            ``etils.epath``, opens itself.
        check_crc: compare all checksums.
        compression: what the whole file is compressed with. Offsets are those in the uncompressed
            data.
        open: opens the file in place of that.

    Raises:
        OSError: the file cannot be opened.
        TypeError: ``open`` does not return a binary file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        check_crc: bool,
        compression: Compression | None,
        open: Opener | None = None,
    ) -> None:
        self._path = path
        self._check_crc = check_crc
        self._compression = compression
        self._open = open
        file = self._opened()
        if not can_seek(file):
            file = UnseekableFile(file, self._opened)
        self._file = file if compression is None else InflatedFile(file)
        self._window, self._window_offset = b"", 0  # what was read last, where that begins
        # that of the last block's first one: large records mostly come together
        self._record_size = 0

    def _opened(self) -> Any:
        path: Any = self._path
        if self._open is None:
            return (path if hasattr(path, "open") else Path(path)).open("rb")
        try:
            file = self._open(path)
        except Exception as error:
            add_note(error, f"{path} was to be opened by {transform_name(self._open)}.")
            raise
        is_text = isinstance(file, io.TextIOBase)
        if is_text or not (hasattr(file, "read") and hasattr(file, "close")):
            if is_text:
                file.close()
            remedy = ", which is a text file: use the mode rb" if is_text else ""
            raise TypeError(
                "open must return a binary file object, with read(size) and close(), but"
                f" {transform_name(self._open)} returned for {path} a"
                f" {type(file).__name__}{remedy}"
            )
        return file

    def close(self) -> None:
        self._file.close()

    def read(self, offset: int) -> tuple[list[bytes], list[int]]:
        """Returns some records from ``offset`` on; where each of them begins, and where the last
        one ends.

        There is at least one record unless ``offset`` is the end of the file. Records before a
        damaged one are returned first.

        Raises:
            ValueError: the record at ``offset`` is damaged or cut off.
            StateIndexError: ``offset`` is past the end of the file.
            OSError: the file cannot be read.
        """
        data = self._bytes(offset, max(_BLOCK_BYTES, self._record_size), _HEADER.size)
        if not data:
            self._check_end(offset)
            return [], [offset]
        records, begins, checksums = _complete_records(data)
        if not records:
            size = _HEADER.size + self._data_size(data, offset) + _FOOTER_SIZE
            data = self._bytes(offset, size, size)
            if len(data) < size:
                raise self._cut_off("data", data, _HEADER.size, size, offset)
            records, begins, checksums = _complete_records(data)
        self._record_size = begins[1]
        if self._check_crc:
            headers = [data[begin : begin + 8] for begin in begins[:-1]]
            of_lengths = masked_crc32c(headers) != np.array(checksums[::2], np.uint32)
            of_data = masked_crc32c(records) != np.array(checksums[1::2], np.uint32)
            damaged = (of_lengths | of_data).nonzero()[0]
            if damaged.size:
                num_good = int(damaged[0])
                if not num_good:
                    raise self._damaged("length" if of_lengths[0] else "data", data, offset)
                del records[num_good:], begins[num_good + 1 :]
        return records, [offset + begin for begin in begins]

    def check_begin(self, offset: int) -> None:
        """Raises ``StateIndexError`` if no record begins at ``offset``, which is not trusted."""
        if not offset:
            return
        if offset > sys.maxsize:
            raise StateIndexError(
                f"reader_offset must be at most the size of {self._path}, got {offset}"
            )
        header = self._bytes(offset, _HEADER.size, 0)
        if not header:
            self._check_end(offset)
            return
        if len(header) == _HEADER.size and self._is_header(header):
            return
        begin = 0
        while begin < offset:
            header = self._bytes(begin, _HEADER.size, 0)
            if len(header) < _HEADER.size or (self._check_crc and not self._is_header(header)):
                return  # the file is damaged before
            begin += _HEADER.size + _HEADER.unpack(header)[0] + _FOOTER_SIZE
        if begin > offset:
            raise StateIndexError(
                f"reader_offset must be where a record of {self._path} begins, got {offset}: the"
                f" next one begins at {begin}"
            )

    def _check_end(self, offset: int) -> None:
        try:
            size = self._file.seek(0, io.SEEK_END)
        except Exception as error:
            self._raise_named(error, offset)
        if offset > size:
            raise StateIndexError(
                f"reader_offset must be at most {size}, the size of {self._path}, got {offset}"
            )

    @staticmethod
    def _is_header(header: bytes) -> bool:
        return bool(masked_crc32c([header[:8]])[0] == _HEADER.unpack(header)[1])

    def skip(self, offset: int) -> int:
        """Returns the end of the record at ``offset``, whose data may be damaged, or of the file,
        if the record is cut off.

        Raises:
            ValueError: the length of the record is damaged, so the beginning of the next one is
                unknown.
        """
        header = self._bytes(offset, _HEADER.size, _HEADER.size)
        if len(header) < _HEADER.size:
            return offset + len(header)
        size = _HEADER.size + self._data_size(header, offset) + _FOOTER_SIZE
        return offset + len(self._bytes(offset, size, size))

    def _data_size(self, data: bytes, offset: int) -> int:
        """Returns the length that the header at the beginning of ``data`` gives."""
        if len(data) < _HEADER.size:
            raise self._cut_off("header", data, 0, _HEADER.size, offset)
        size, checksum = _HEADER.unpack_from(data)
        if self._check_crc and masked_crc32c([data[:8]])[0] != checksum:
            raise self._damaged("length", data, offset)
        return int(size)

    def _bytes(self, offset: int, size: int, min_size: int) -> bytes:
        """Returns ``size`` bytes; fewer at the end of the file, or if reading on fails and
        ``min_size`` bytes are there.
        """
        begin = offset - self._window_offset
        pieces = [self._window[begin : begin + size]] if 0 <= begin < len(self._window) else []
        num_bytes = len(pieces[0]) if pieces else 0
        try:
            if num_bytes < size:
                self._file.seek(offset + num_bytes)
            while num_bytes < size and (piece := self._piece(size - num_bytes)):
                pieces.append(piece)
                num_bytes += len(piece)
        except Exception as error:
            if num_bytes < min_size:
                self._raise_named(error, offset + num_bytes)
        self._window, self._window_offset = b"".join(pieces), offset
        return self._window

    def _piece(self, size: int) -> bytes:
        piece = self._file.read(min(size, _PIECE_BYTES))
        if isinstance(piece, bytes | bytearray | memoryview):
            return bytes(piece)  # itself, if it is bytes
        raise TypeError(
            f"read() of a binary file must return bytes, that of {self._path} returned"
            f" {piece!r:.200}"
        )

    def _raise_named(self, error: Exception, offset: int) -> NoReturn:
        if isinstance(error, OSError) or not isinstance(error, ValueError):
            add_note(error, f"{self._path} was to be read behind byte {offset}.")
            raise error
        raise ValueError(
            f"{self._path} cannot be read behind byte {offset}: {error}. {_REMEDY}"
        ) from error

    def _cut_off(self, part: str, data: bytes, begin: int, end: int, offset: int) -> ValueError:
        found = data[begin : begin + _SHOWN_BYTES].hex()
        return self._invalid(
            offset, data, f"is cut off: fewer than {end - begin} bytes of its {part}: {found}"
        )

    def _damaged(self, part: str, data: bytes, offset: int) -> ValueError:
        return self._invalid(
            offset, data, f"has a wrong checksum of its {part} (check_crc=False ignores checksums)"
        )

    def _invalid(self, offset: int, data: bytes, what: str) -> ValueError:
        compression = (
            _MAGIC_NUMBERS.get(data[:2]) if not offset and self._compression is None else None
        )
        hint = f", or try compression={compression!r}" if compression else ""
        return ValueError(
            f"{self._path} is damaged or not a valid TFRecord file: the record at byte {offset}"
            f" {what}. {_REMEDY}{hint}"
        )


def _complete_records(data: bytes) -> tuple[list[bytes], list[int], list[int]]:
    """Returns the records in ``data``; where each begins, and the last one ends; the checksums of
    each one's length and data.
    """
    records: list[bytes] = []
    begins = [0]
    checksums: list[int] = []
    stop = 0
    while stop + _HEADER.size <= len(data):
        size, checksum = _HEADER.unpack_from(data, stop)
        begin = stop + _HEADER.size
        end = begin + size
        stop = end + _FOOTER_SIZE
        if stop > len(data):
            break
        records.append(data[begin:end])
        begins.append(stop)
        checksums += checksum, int.from_bytes(data[end:stop], "little")
    return records, begins, checksums
