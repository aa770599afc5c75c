"""Arrays of one length as a source of rows."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import key_out_of_range
from gristmill.core.state import shown
from gristmill.sources.base import check_no_table
from gristmill.sources.reading import read_keys
from gristmill.sources.sharded import read_in_order


class SeriesDataSource:
    """The values of a Series of pandas by position; ``series[key]`` takes labels.

    The ``repr`` is that of the Series, because states contain it.
    """

    def __init__(self, series: Any) -> None:
        self._series = series

    def __len__(self) -> int:
        return len(self._series)

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        series = self._series
        # Series of some other libraries have only iloc, which is slower.
        values = series.array if hasattr(series, "array") else series.iloc
        return values[operator.index(record_key)]

    def __repr__(self) -> str:
        return repr(self._series)


def by_position(source: Any) -> Any:
    """Return a source of the values of a Series of pandas, and any other source as it is."""
    return SeriesDataSource(source) if hasattr(type(source), "iloc") else source


def is_columns(source: Any) -> bool:
    """True if ``source`` is a mapping of columns: a ``dict`` of which all keys are ``str``, or an
    empty one.

    Mappings with a ``__getitem__`` of their own may return anything for a key. A ``dict`` of
    other keys, ``{0: a, 1: b}``, is a source as it is.
    """
    return (
        isinstance(source, dict)
        and type(source).__getitem__ is dict.__getitem__
        and all([isinstance(k, str) for k in source])
    )


class ColumnsDataSource:
    """Rows of a mapping of columns: record ``i`` is a ``dict`` of the entries ``i`` of all columns.

    Rows are new dicts, and entries of NumPy arrays copies: what is done to a record does not change
    the columns.

    Args:
        columns: sequences of one length by name: arrays, lists, other data sources; or mappings of
            such, which become dicts in the record. They are kept, not copied.

    Raises:
        TypeError: a column has no length or no ``[]``, or a name is no ``str``.
        ValueError: there are no columns, or their lengths differ.

    Example:
        >>> source = ColumnsDataSource({"x": np.arange(6).reshape(3, 2), "label": ["a", "b", "c"]})
        >>> source[2]
        {'x': array([4, 5]), 'label': 'c'}
        >>> source
        ColumnsDataSource(len=3, columns={'x': int64[2], 'label': list})
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        lengths: dict[str, int] = {}
        self._columns = _checked(columns, "source", lengths)
        if len(set(lengths.values())) > 1:
            found = ", ".join([f"{name} has {length}" for name, length in lengths.items()])
            raise ValueError(
                f"the columns of a source must have as many entries as one another, but {found}"
            )
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        return self._rows_at([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Return the records at the indices, in this order.

        Raises:
            KeyRangeError: one of them is not in ``[0, len(self))``.
            TypeError: one of them is no integer.
        """
        return read_in_order(self._rows_at, self.__getitem__, indices)

    def _rows_at(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        keys = [operator.index(index) for index in indices]
        if keys and not 0 <= min(keys) <= max(keys) < self._length:
            wrong = next(key for key in keys if not 0 <= key < self._length)
            raise key_out_of_range(wrong, self._length)
        return _rows(self._columns, keys)

    @property
    def element_spec(self) -> Any:
        """The spec of a record, if all columns declare it: NumPy arrays, and sources with an
        ``element_spec``.
        """
        return _spec(self._columns)

    def __repr__(self) -> str:
        return f"ColumnsDataSource(len={self._length}, columns={_text(self._columns)})"


def _checked(columns: Mapping[Any, Any], name: str, lengths: dict[str, int]) -> dict[str, Any]:
    """Return the columns, with the length of each by its place."""
    if not columns:
        raise ValueError(
            f"{name} must have columns, as in {{'x': array, 'y': array}}, got an empty mapping"
        )
    found: dict[str, Any] = {}
    for key, column in columns.items():
        place = f"{name}[{key!r}]"
        if not isinstance(key, str):
            raise TypeError(
                f"names of columns must be str, got {shown(key):.100} of type {type(key).__name__}"
                f" in {name}"
            )
        if isinstance(column, dict):
            found[key] = _checked(column, place, lengths)
            continue
        check_no_table(place, column)
        # A Series of pandas. For its own types, to_numpy rounds integers beside a missing one.
        if hasattr(type(column), "iloc"):
            column = column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array
        try:
            lengths[place] = len(column)
        except TypeError:
            lengths.pop(place, None)
        if (
            place not in lengths
            or isinstance(column, str | bytes)
            or not hasattr(column, "__getitem__")
        ):
            raise TypeError(
                f"{place} must have an entry for every row (an array, a list, a data source), got"
                f" {shown(column):.100} of type {type(column).__name__}"
            )
        found[key] = column
    return found


def _rows(columns: dict[str, Any], keys: list[int]) -> list[dict[str, Any]]:
    entries = [
        _rows(column, keys) if isinstance(column, dict) else _entries(column, keys)
        for column in columns.values()
    ]
    names = list(columns)
    return [dict(zip(names, row, strict=False)) for row in zip(*entries, strict=True)]


def _entries(column: Any, keys: list[int]) -> list[Any]:
    if type(column) not in (np.ndarray, np.memmap):
        return read_keys(column, keys)
    # one copy, of which the entries are parts
    return list(np.asarray(column[np.asarray(keys, np.intp)]))


def _spec(column: Any) -> Any:
    if isinstance(column, dict):
        return {name: _spec(part) for name, part in column.items()}
    return (
        ShapeDtypeStruct(column.shape[1:], column.dtype)
        if isinstance(column, np.ndarray)
        else column.element_spec
    )


def _text(column: Any) -> str:
    if isinstance(column, dict):
        return "{" + ", ".join([f"{name!r}: {_text(part)}" for name, part in column.items()]) + "}"
    return (
        f"{column.dtype}{list(column.shape[1:])}"
        if isinstance(column, np.ndarray)
        else type(column).__name__
    )
