"""Random access to TFRecord files, whose records are found by going through the file once."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gristmill.core.locks import Lock
from gristmill.sources.crc32c import masked_crc32c
from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.files import Files

_HEADER_BYTES = 12  # the length of the data, and a checksum of it
_FOOTER_BYTES = 4
_PIECE_BYTES = 1 << 22
_REMEDY = "Write the file again"


class TFRecordRecords:
    """The records of TFRecord files. A file is gone through when a record of it is first wanted.

    Args:
        paths: the files.
        counts: how many records each has.
    """

    def __init__(self, paths: Sequence[str], counts: Sequence[int]) -> None:
        self._files = Files(paths)
        self._counts = list(counts)
        self._ends = [*itertools.accumulate(counts)]
        self._start_closed()

    def _start_closed(self) -> None:
        self._lock = Lock()
        self._offsets: dict[int, array[int]] = {}  # of each file, where its records begin

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, key: int) -> bytes:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[int]) -> list[bytes]:
        ranges = []
        for key in keys:
            number = bisect_right(self._ends, key)
            place = key - (self._ends[number - 1] if number else 0)
            offsets = self._offsets_of(number)
            ranges.append((number, offsets[place], offsets[place + 1]))
        frames = self._files.read(ranges)
        return [self._data(one, frame) for one, frame in zip(ranges, frames, strict=True)]

    def __repr__(self) -> str:
        return f"TFRecordRecords({self._files.described()})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("_lock", "_offsets")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_closed()

    def close(self) -> None:
        """Closes all files. The next read opens them again."""
        self._files.close()

    def _data(self, one: tuple[int, int, int], frame: bytes) -> bytes:
        data = frame[_HEADER_BYTES:-_FOOTER_BYTES]
        [crc] = masked_crc32c([data])
        if int(crc) != int.from_bytes(frame[-_FOOTER_BYTES:], "little"):
            raise damaged(
                self._files.paths[one[0]], one[1], "a record has another checksum", _REMEDY
            )
        return data

    def _offsets_of(self, number: int) -> array[int]:
        if number not in self._offsets:
            with self._lock:
                if number not in self._offsets:
                    self._offsets[number] = self._found_offsets(number)
        return self._offsets[number]

    def _found_offsets(self, number: int) -> array[int]:
        """Returns the offsets of the records of a file, and the end of the last one."""
        size, path = self._files.sizes[number], self._files.paths[number]
        offsets, start, piece = array("q", [0]), 0, b""
        while offsets[-1] < size:
            at = offsets[-1] - start
            if at + _HEADER_BYTES > len(piece):
                start, at = offsets[-1], 0
                piece = self._files.read_one(number, start, min(start + _PIECE_BYTES, size))
            length = int.from_bytes(piece[at : at + 8], "little")
            end = offsets[-1] + _HEADER_BYTES + length + _FOOTER_BYTES
            if len(piece) - at < _HEADER_BYTES or end > size:
                raise damaged(path, offsets[-1], "it is cut off, or no TFRecord file", _REMEDY)
            offsets.append(end)
        if len(offsets) != self._counts[number] + 1:
            what = f"it has {len(offsets) - 1} records in place of {self._counts[number]}"
            raise damaged(path, size, what, _REMEDY)
        return offsets
