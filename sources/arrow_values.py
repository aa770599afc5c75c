"""Values of Arrow columns as pyarrow gives them for NumPy.

What a value is in NumPy may depend on the others of its column: integers are floats if one of them
is missing.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.sources.arrow_exact import exact_values, is_exact
from gristmill.sources.arrow_types import is_text

# For the numbers of some rows, the values of a column there.
Values = Callable[[Sequence[int]], Sequence[Any]]


def without_dictionary(column: Any) -> Any:
    """Return ``column`` with values in place of indices into a dictionary."""
    from pyarrow import types

    # pyarrow looks up a missing value in the dictionary, too, and finds the last one.
    return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def as_numpy(column: Any) -> Any:
    """Return the values of a ``pyarrow.ChunkedArray`` as an array of NumPy.

    They are those of pyarrow's ``to_numpy``, except for the ones that ``arrow_exact`` corrects.
    """
    column = without_dictionary(column)
    return column.to_numpy() if is_text(column.type) else _converted(_one_chunk(column))


def _one_chunk(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _converted(array: Any) -> Any:
    return array.to_numpy(zero_copy_only=False) if is_exact(array) else exact_values(array)


def depends_on_nulls(arrow_type: Any) -> bool:
    """True if missing values make others look different."""
    from pyarrow import types

    return not (
        types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_temporal(arrow_type)
        or is_text(arrow_type)
    )


def has_nulls(array: Any) -> bool:
    """True if values are missing in an array of pyarrow, at any depth."""
    return bool(array.null_count) or any([has_nulls(part) for part in _parts(array)])


def _parts(array: Any) -> list[Any]:
    """Return the children of an array of a nested type; empty for others."""
    if hasattr(array, "storage"):  # an extension type
        return [array.storage]
    if hasattr(array, "keys"):  # a map, which has no flatten()
        return [array.keys, array.items]
    parts = array.flatten() if hasattr(array, "flatten") else []
    return parts if isinstance(parts, list) else [parts]


class DecodedRows:
    """Rows whose columns are decoded: ``rows(numbers)`` are those of the given numbers, as
    dictionaries.

    The rows share no memory with it, so that what is made of them can be written to, and lives on
    alone. Any thread may read.

    Args:
        names: the names of the columns.
        columns: a ``pyarrow.ChunkedArray`` for each.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[Any]) -> None:
        self._names = list(names)
        columns = [_column(column) for column in columns]
        self._columns = [column.values for column in columns]
        self.num_bytes: int = sum([column.num_bytes for column in columns])

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        if not self._columns:
            return [{} for _ in numbers]
        columns = [values(numbers) for values in self._columns]
        return [*map(dict, map(zip, itertools.repeat(self._names), zip(*columns, strict=True)))]


class _Column(NamedTuple):
    values: Values
    num_bytes: int  # of memory, while it is kept


def _column(column: Any) -> _Column:
    from pyarrow import types

    column = without_dictionary(column)
    arrow_type = column.type
    if is_text(arrow_type):
        if column.num_chunks == 1:
            column = column.chunk(0)  # quicker
        return _Column(
            lambda rows: [column[row].as_py() for row in rows], column.get_total_buffer_size()
        )
    array = _one_chunk(column)
    is_single = types.is_primitive(arrow_type) and not types.is_time(arrow_type)
    if is_single or _changes_by_nulls(array) or not is_exact(array):
        return _whole(array)
    if _is_list_of_numbers(arrow_type) and not has_nulls(array):
        return _lists(array)
    return _made_when_read(array)


def _changes_by_nulls(array: Any) -> bool:
    """True if missing values, at any depth, make others look different."""
    from pyarrow import types

    if types.is_fixed_size_list(array.type):  # a missing one has values, which are missing
        return has_nulls(array)
    if parts := _parts(array):
        return any([_changes_by_nulls(part) for part in parts])
    return bool(array.null_count) and depends_on_nulls(array.type)


def _whole(array: Any) -> _Column:
    """Return all values, converted at once."""
    values = _converted(array)
    if values.dtype.hasobject:
        num_bytes = values.nbytes + sum(map(_object_bytes, values)) + array.get_total_buffer_size()
        return _Column(lambda rows: [copy.deepcopy(values[row]) for row in rows], num_bytes)
    return _Column(lambda rows: [values[row] for row in rows], values.nbytes)


def _object_bytes(value: Any) -> int:
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple) or (
        isinstance(value, np.ndarray) and value.dtype.hasobject
    ):
        parts = value
    return sys.getsizeof(value) + sum(map(_object_bytes, parts))


def _is_list_of_numbers(arrow_type: Any) -> bool:
    from pyarrow import types

    is_list = (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )
    return is_list and bool(
        types.is_integer(arrow_type.value_type) or types.is_floating(arrow_type.value_type)
    )


def _lists(column: Any) -> _Column:
    """Lists of numbers, of which none is missing."""
    from pyarrow import types

    if types.is_fixed_size_list(column.type):
        values = column.flatten().to_numpy()
        ends = np.arange(1 + len(column)) * column.type.list_size
    else:
        values, ends = column.values.to_numpy(), column.offsets.to_numpy()
    places = memoryview(ends)  # whose items are built-in integers, which are quicker
    return _Column(
        lambda rows: [values[places[row] : places[row + 1]].copy() for row in rows],
        column.get_total_buffer_size(),
    )


def _made_when_read(array: Any) -> _Column:
    """Values that are made when they are requested."""
    import pyarrow

    def values(rows: Sequence[int]) -> Sequence[Any]:
        some = array.take(pyarrow.array(rows, pyarrow.int64()))
        found: Sequence[Any] = some.to_numpy(zero_copy_only=False)
        return found

    return _Column(values, array.get_total_buffer_size())
