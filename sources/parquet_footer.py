"""The footer of a Parquet file: how many values are missing in each column of a row group.

``pyarrow`` has this too, but ``RowGroupMetaData.column(i)`` ends the interpreter if a footer is
damaged. Its binding declares the C++ function ``ColumnChunk`` without ``except +``, so an exception
that the function throws is not caught (pyarrow 26). We found no issue of Arrow about it. The
nearest is https://github.com/apache/arrow/issues/40081, about the same classes.
``tests/sources/test_parquet_footer.py`` fails once pyarrow raises an error; then this module can
go.

The footer is a Thrift structure in the compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), defined in
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

_MAGIC = b"PAR1"
_END_BYTES = 8  # the footer's length, and the magic number
_TAIL_BYTES = 1 << 16  # read at once: most footers are smaller

# Types of the compact protocol; true and false are types of fields that have no further bytes.
(
    _STOP,
    _TRUE,
    _FALSE,
    _BYTE,
    _I16,
    _I32,
    _I64,
    _DOUBLE,
    _BINARY,
    _LIST,
    _SET,
    _MAP,
    _STRUCT,
    _UUID,
) = range(14)
_FIXED_BYTES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}

# Fields in parquet.thrift: number and type.
_ROW_GROUPS_OF_FILE = 4 << 4 | _LIST
_COLUMNS_OF_ROW_GROUP = 1 << 4 | _LIST
_METADATA_OF_COLUMN = 3 << 4 | _STRUCT
_STATISTICS_OF_METADATA = 12 << 4 | _STRUCT
_NULL_COUNT_OF_STATISTICS = 3 << 4 | _I64

# For fields of which numbers and types: what reads one at a position and returns where it ends.
_Readers = Mapping[int, Callable[[int], int]]


def read_footer(file: Any) -> bytes:
    """Returns the footer of an open ``pyarrow.NativeFile``; nothing if it is encrypted, or longer
    than the file.
    """
    size = file.size()
    num_bytes = min(size, _TAIL_BYTES)
    tail = file.read_at(num_bytes, size - num_bytes)
    if not tail.endswith(_MAGIC):
        return b""
    length = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
    if length > size - _END_BYTES:
        return b""
    begin = len(tail) - _END_BYTES - length
    return bytes(
        tail[begin:-_END_BYTES] if begin >= 0 else file.read_at(length, size - _END_BYTES - length)
    )


class NullCounts:
    """The numbers of missing values in the columns of the row groups, from the statistics in a
    footer.

    Row groups are read when they are requested: about 8 µs for each column of each row
    group.
    """

    def __init__(self, footer: bytes) -> None:
        self._data = footer
        self._groups: list[list[int | None]] = []  # those read so far
        self._num_left, self._position = 0, 0  # how many follow, and where the next one begins
        self._of_row_group: _Readers = {_COLUMNS_OF_ROW_GROUP: self._columns}
        self._of_column: _Readers = {_METADATA_OF_COLUMN: self._metadata}
        self._of_metadata: _Readers = {_STATISTICS_OF_METADATA: self._statistics}
        self._of_statistics: _Readers = {_NULL_COUNT_OF_STATISTICS: self._null_count}
        # comes mostly: bytes after the row groups are not read
        with contextlib.suppress(LookupError):
            self._struct(0, {_ROW_GROUPS_OF_FILE: self._row_groups})

    def of_group(self, group: int) -> list[int | None]:
        """Returns the number of missing values of each column of a row group; ``None`` where the
        file does not say.

        Fewer if the footer is damaged.
        """
        while len(self._groups) <= group and self._num_left:
            self._groups.append([])
            self._num_left -= 1
            try:
                self._position = self._struct(self._position, self._of_row_group)
            except LookupError:
                self._num_left = 0
        return self._groups[group] if group < len(self._groups) else []

    def _row_groups(self, position: int) -> int:
        self._num_left, _, self._position = self._list_header(position)
        return len(self._data)  # they are read later, and what follows them not at all

    def _columns(self, position: int) -> int:
        num_columns, _, position = self._list_header(position)
        counts = self._groups[-1]
        for _ in range(num_columns):
            counts.append(None)
            position = self._struct(position, self._of_column)
        return position

    def _metadata(self, position: int) -> int:
        return self._struct(position, self._of_metadata)

    def _statistics(self, position: int) -> int:
        return self._struct(position, self._of_statistics)

    def _null_count(self, position: int) -> int:
        self._groups[-1][-1], position = self._zigzag(position)
        return position

    # The compact protocol. Each function takes a position; an end of the data too early, or an
    # unknown type, is a ``LookupError``.

    def _struct(self, position: int, readers: _Readers) -> int:
        data, number = self._data, 0
        while header := data[position]:
            kind = header & 15
            position += 1
            if header > 15:  # the number of the field, as the difference from the one before
                number += header >> 4
            else:
                number, position = self._zigzag(position)
            if read := readers.get(number << 4 | kind):
                position = read(position)
            elif _I16 <= kind <= _I64:  # the commonest ones, here for speed
                while data[position] > 127:
                    position += 1
                position += 1
            elif kind == _BINARY and data[position] < 128:
                position += data[position] + 1
            else:
                position = self._skip(kind, position)
        return position + 1

    def _zigzag(self, position: int) -> tuple[int, int]:
        value, position = self._varint(position)
        return value >> 1 ^ -(value & 1), position

    def _varint(self, position: int) -> tuple[int, int]:
        byte = self._data[position]
        value, shift = byte & 127, 7
        while byte > 127:
            position += 1
            byte = self._data[position]
            value |= (byte & 127) << shift
            shift += 7
        return value, position + 1

    def _list_header(self, position: int) -> tuple[int, int, int]:
        """Returns the size of a list, the type of its items, and where the first one begins."""
        header = self._data[position]
        size, position = (header >> 4, position + 1) if header < 240 else self._varint(position + 1)
        return size, header & 15, position

    def _skip(self, kind: int, position: int) -> int:
        if _I16 <= kind <= _I64:
            return self._varint(position)[1]
        if kind == _STRUCT:
            return self._struct(position, {})
        if kind in (_LIST, _SET):
            return self._skip_list(position)
        if kind == _BINARY:
            size, position = self._varint(position)
            return position + size
        if kind == _MAP:
            return self._skip_map(position)
        return position + _FIXED_BYTES[kind]

    def _skip_list(self, position: int) -> int:
        size, kind, position = self._list_header(position)
        for _ in range(size):
            position = self._skip_item(kind, position)
        return position

    def _skip_map(self, position: int) -> int:
        size, position = self._varint(position)
        kinds = self._data[position] if size else 0
        position += bool(size)
        for _ in range(size):
            position = self._skip_item(kinds & 15, self._skip_item(kinds >> 4, position))
        return position

    def _skip_item(self, kind: int, position: int) -> int:
        if _I16 <= kind <= _I64 and self._data[position] < 128:
            return position + 1
        # here they have a byte
        return position + 1 if kind in (_TRUE, _FALSE) else self._skip(kind, position)
