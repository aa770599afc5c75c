"""Comparison of two elements or two states of any types."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gristmill.core import tree

_IDENTITY: Any = object.__eq__


def are_equal(a: Any, b: Any) -> bool:
    """True if ``a`` and ``b`` have equal types, structures and values; NaN equals NaN here.

    Arrays of any library are compared by dtype, shape and values; generators by what they
    will draw; objects without an ``==`` of their own by their attributes.

    Example:
        >>> are_equal({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})
        True
        >>> are_equal(1, 1.0)
        False
    """
    try:
        return _are_equal(a, b)
    except RecursionError:
        # objects that refer to one another in a circle: nothing was found in which they differ
        return True


def _are_equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if hasattr(a, "dtype") or hasattr(b, "dtype"):
        return _are_equal_arrays(np.asarray(a), np.asarray(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all([_are_equal(a[key], b[key]) for key in a])
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    if dataclasses.is_dataclass(a):
        return all(
            [
                _are_equal(getattr(a, field.name), getattr(b, field.name))
                for field in dataclasses.fields(a)
            ]
        )
    if isinstance(a, np.random.Generator):
        return _are_equal(a.bit_generator.state, b.bit_generator.state)
    if type(a).__eq__ is _IDENTITY:
        return _are_equal(getattr(a, "__dict__", None), getattr(b, "__dict__", None))
    return bool(np.all(a == b)) or bool(np.all((a != a) & (b != b)))


def _are_equal_arrays(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object:  # whose elements may be arrays
        return all(map(_are_equal, a.flat, b.flat))
    if a.dtype.names is not None:
        return all([_are_equal_arrays(a[name], b[name]) for name in a.dtype.names])
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")


def shape_of(state: Any) -> Any:
    """Returns the structure of a state, and the types and shapes of its leaves."""
    leaves, structure = tree.flatten(state)
    return structure, [(type(leaf).__name__, np.shape(leaf)) for leaf in leaves]
