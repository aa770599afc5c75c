"""Tables of integers of which a few rows are needed at a time: in memory, or in a file that is
never loaded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.files import Files

Range = tuple[int, int, int]  # number of a file, first byte, end

_NPY_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 4096  # bytes; a header of integers has 128
_COPY_AGAIN = "Copy or write the file again"


class Table(Protocol):
    """Rows of integers by number."""

    def __len__(self) -> int: ...

    def rows(self, spans: Sequence[tuple[int, int]], /) -> list[NDArray[Any]]:
        """Returns the rows from ``start`` to ``stop - 1`` of each span, all of which exist."""
        ...


class ArrayTable:
    """A table in memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, spans: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        return [self.array[start:stop] for start, stop in spans]


class FileTable:
    """A table in a file, of which only the requested rows are read.

    Args:
        files: the files that it is one of.
        number: which one.
        array: the place of the values in it.
        columns: how many values a row has.
    """

    def __init__(self, files: Files, number: int, array: StoredArray, columns: int = 1) -> None:
        self._files, self._number, self._array, self._columns = files, number, array, columns
        self._row_bytes = array.dtype.itemsize * columns

    def __len__(self) -> int:
        return self._array.num_values // self._columns

    def rows(self, spans: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        first, size = self._array.start, self._row_bytes
        pieces = self._files.read(
            [(self._number, first + start * size, first + stop * size) for start, stop in spans]
        )
        arrays = [np.frombuffer(piece, self._array.dtype) for piece in pieces]
        return (
            arrays if self._columns == 1 else [array.reshape(-1, self._columns) for array in arrays]
        )

    def byte_of(self, row: int) -> int:
        """Returns the byte of the file at which a row begins."""
        return self._array.start + row * self._row_bytes


class StoredArray(NamedTuple):
    """The place of the values of an array in a file, and their type."""

    start: int
    num_values: int
    dtype: np.dtype[Any]


def heads(files: Files, numbers: Sequence[int]) -> list[bytes]:
    """Returns the first bytes of files: enough for ``npy_array``."""
    return files.read([(number, 0, min(files.sizes[number], _MAX_HEADER)) for number in numbers])


def npy_array(files: Files, number: int, head: bytes, columns: int = 1) -> StoredArray | None:
    """Returns the contents of the header of a NumPy file; ``None`` if the file has no such header.

    Args:
        files: the files that it is one of.
        number: which one.
        head: its ``heads``.
        columns: how many values a row of the array must have; an array of rows of one value must
            have a single axis.

    Raises:
        DamagedFileError: the header is damaged or of another array, or the file has another size
            than the header says.
        ValueError: the values are not integers.
    """
    if not head.startswith(_NPY_MAGIC):
        return None
    path, size, stream = files.paths[number], files.sizes[number], io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = read(stream)
    except (ValueError, KeyError) as error:
        raise damaged(
            path, 0, f"the header of the NumPy file cannot be read ({error})", _COPY_AGAIN
        ) from error
    if dtype.kind not in "iu":
        raise ValueError(
            f"tokens must be integers, and so must an order of them, got {dtype} in {path}"
        )
    if shape[1:] != (columns,) * (columns > 1) or not shape or (by_columns and columns > 1):
        wanted = (
            "integers with one axis"
            if columns == 1
            else f"integers of shape (n, {columns}) in C order"
        )
        remedy = "Save array.ravel()" if columns == 1 else "Name the file that has one"
        raise damaged(
            path,
            0,
            f"it has an array of {dtype} of shape {shape}, and one of {wanted} is needed",
            remedy,
        )
    start, num_values = stream.tell(), shape[0] * columns
    end = start + num_values * dtype.itemsize
    if size != end:
        raise damaged(
            path,
            min(size, end),
            f"its header says that it has {end} bytes, but it has {size}",
            _COPY_AGAIN,
        )
    return StoredArray(start, num_values, dtype)


def plain_array(files: Files, number: int, dtype: np.dtype[Any], start: int = 0) -> StoredArray:
    """Returns the values of a file that has nothing but values from ``start`` on.

    Raises:
        DamagedFileError: the file is empty, or its size is not that of whole values.
    """
    path, size = files.paths[number], files.sizes[number]
    if size <= start:
        raise damaged(path, size, "the file is empty", "Write it again, or leave it out")
    if (size - start) % dtype.itemsize:
        whole = size - (size - start) % dtype.itemsize
        raise damaged(
            path,
            whole,
            f"it ends within a value of {dtype}",
            f"{_COPY_AGAIN}, or give the dtype that it was written with",
        )
    return StoredArray(start, (size - start) // dtype.itemsize, dtype)
