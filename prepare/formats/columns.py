"""The types of values of elements that are dicts of columns, so that reading gives them back.

JSON and Parquet know numbers and lists, but not whether these were Python's or NumPy's. The types
are taken from the first elements, stored in the manifest, and required of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gristmill.core.state import shown
from gristmill.prepare.codecs import is_array

_KINDS = "biuf"  # of dtypes: truth values, integers, floats
_PLAIN = (bool, int, float, str, bytes)


class Columns:
    """The columns of elements, by name.

    Args:
        types: of each column ``{"kind": "plain"}``, ``{"kind": "scalar", "dtype": ...}`` or
            ``{"kind": "array", "dtype": ..., "row_shape": [...]}``, where ``row_shape`` is the
            shape of an array without its first axis; ``null`` for an array without axes.
    """

    def __init__(self, types: Mapping[str, Mapping[str, Any]]) -> None:
        self.types = {name: dict(column) for name, column in types.items()}

    @classmethod
    def of(cls, elements: Sequence[Any]) -> Self:
        """Returns the columns of the first elements.

        Raises:
            TypeError: an element is no dict with texts as keys, or has a value of a type that is
                not known.
        """
        types: dict[str, Mapping[str, Any]] = {}
        for element in elements:
            if not isinstance(element, dict):
                raise TypeError(
                    f"it must be a dict of columns, got {shown(element)} of type "
                    f"{type(element).__name__}"
                )
            for name, value in element.items():
                if not isinstance(name, str):
                    raise TypeError(
                        f"the keys of a dict of columns must be texts, got {shown(name)}"
                    )
                types.setdefault(name, _type_of(name, value))
        return cls(types)

    def plain(self, element: Any) -> dict[str, Any]:
        """Returns an element with lists and Python's numbers in place of NumPy's values.

        Raises:
            TypeError: a value is of another type than those before it; the text says what to do.
        """
        if not isinstance(element, dict):
            raise TypeError(
                f"it must be a dict of columns, got {shown(element)} of type "
                f"{type(element).__name__}"
            )
        return {name: self._plain(name, value) for name, value in element.items()}

    def element(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the element that a row was, of lists, arrays and numbers of any type."""
        return {
            name: _restored(value, self.types.get(name, {"kind": "plain"}))
            for name, value in row.items()
        }

    def _plain(self, name: str, value: Any) -> Any:
        found = _type_of(name, value)
        if found["kind"] != "plain" or self.types.get(name, found)["kind"] != "plain":
            if found != self.types.get(name):
                raise TypeError(
                    f"column {name!r} has {_text(found)}, and {_text(self.types.get(name))} in "
                    "the first elements: a column must have one type. Convert it by a map before, "
                    "or write array_record with the codec msgpack"
                )
            return value.tolist()
        return value


def _type_of(name: str, value: Any) -> Mapping[str, Any]:
    if is_array(value):
        if value.dtype.kind not in _KINDS:
            is_for_msgpack = value.dtype.names is None and not value.dtype.hasobject
            remedy = (
                "write array_record with the codec msgpack"
                if is_for_msgpack
                else "make arrays of numbers or texts of it by a map before"
            )
            raise TypeError(
                f"column {name!r} has dtype {value.dtype}, which this format cannot hold: {remedy}"
            )
        if isinstance(value, np.generic):
            return {"kind": "scalar", "dtype": value.dtype.str}
        return {
            "kind": "array",
            "dtype": value.dtype.str,
            "row_shape": [*value.shape[1:]] if value.ndim else None,
        }
    _check_plain(name, value)
    return {"kind": "plain"}


def _check_plain(name: str, value: Any) -> None:
    if value is None or type(value) in _PLAIN:
        return
    if type(value) is list:
        for item in value:
            _check_plain(name, item)
    elif type(value) is dict:
        for item in value.values():
            _check_plain(name, item)
    else:
        inner = "within a list or dict " if is_array(value) else ""
        more = (
            ", or write array_record with the codec msgpack"
            if inner or type(value) in (tuple, complex)
            else ""
        )
        raise TypeError(
            f"column {name!r} has a value of type {type(value).__name__} {inner}that this format "
            f"cannot hold: convert it by a map before (tuples to lists, tensors to arrays){more}"
        )


def _text(column: Mapping[str, Any] | None) -> str:
    if column is None:
        return "nothing"
    if column["kind"] == "plain":
        return "a Python value"
    if column["kind"] == "scalar":
        return f"a NumPy scalar {column['dtype']}"
    shape = (
        "()"
        if column["row_shape"] is None
        else f"(any, {', '.join(map(str, column['row_shape']))})"
    )
    return f"an array {column['dtype']} {shape}"


def _restored(value: Any, column: Mapping[str, Any]) -> Any:
    if column["kind"] == "scalar":
        return np.dtype(column["dtype"]).type(value)
    if column["kind"] == "plain":
        return _python(value)
    dtype, row_shape = np.dtype(column["dtype"]), column["row_shape"]
    if row_shape is None:
        return np.array(value, dtype)
    shape = (len(value), *row_shape)
    while isinstance(value, np.ndarray) and value.dtype.hasobject and len(value):
        value = np.concatenate([*value])  # an array of arrays
    return np.array(value, dtype).reshape(shape)


def _python(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_python(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [_python(item) for item in value]
    if isinstance(value, dict):
        return {name: _python(item) for name, item in value.items()}
    return value
