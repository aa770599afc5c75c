"""Values that can be packed as a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from gristmill.transforms.batching import ends_in_nul

Array: TypeAlias = "np.ndarray[Any, Any]"


def as_sequence(name: str, value: Any) -> Array:
    """Returns ``value`` as an array whose first axis is that of the sequence; a scalar is a
    sequence of length 1.

    Raises:
        ValueError: ``value`` is nested, ragged, or nothing that NumPy has a dtype for, or text or
            bytes in it end in NUL, which they would lose; names the feature.
    """
    if type(value) is np.ndarray and value.ndim:
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"feature {name} cannot be made an array: {error}; got {value!r:.100}"
        ) from error
    if isinstance(value, Mapping) or (array.dtype.hasobject and not isinstance(value, np.ndarray)):
        raise ValueError(
            f"feature {name} must be an array, a list of numbers or a scalar, got {value!r:.100} of"
            f" type {type(value).__name__}. Should it be a meta feature?"
        )
    if (
        array.dtype.kind in "SU"
        and not isinstance(value, np.ndarray)
        and any(map(ends_in_nul, np.array(value, object).flat))
    ):
        raise ValueError(
            f"feature {name} must not be text or bytes that end in NUL, which NumPy's arrays of"
            f" them lose, got {value!r:.100}. Should it be a meta feature?"
        )
    return array if array.ndim else array.reshape(1)


def as_dtype_of(
    name: str, array: Array, dtype: np.dtype[Any], trailing: tuple[int, ...], whose: str
) -> Array:
    """Returns ``array`` in another dtype, without any loss but rounding from one float dtype to
    another.

    Raises:
        ValueError: it has another trailing shape, or values that ``dtype`` cannot hold; names the
            feature.
    """
    if array.shape[1:] != trailing:
        raise ValueError(
            f"feature {name} has the trailing shape {array.shape[1:]}, that of {whose} is"
            f" {trailing}: they must be equal to be packed together"
        )
    if array.dtype == dtype:
        return array
    kind, new_kind = array.dtype.kind, dtype.kind
    converted, is_same = array, np.False_
    if kind == new_kind or new_kind == "O" or (kind in "biuf" and new_kind in "biufc"):
        with np.errstate(all="ignore"):
            converted = array.astype(dtype)
            back = converted.real if kind != new_kind == "c" else converted
            # Either comparison alone misses something: -1 becomes 2**64 - 1 and -1 again; 2**53 + 1
            # and 2.0**53 are equal floats.
            is_same = (converted == array) & (back.astype(array.dtype) == array)
            if kind == new_kind == "f":
                is_same |= np.isfinite(array) & np.isfinite(converted)
            if kind in "fc":
                is_same |= np.isnan(array) & np.isnan(back)
    if not np.all(is_same):
        raise ValueError(
            f"feature {name} has values of dtype {array.dtype} that {dtype}, the dtype of {whose},"
            " cannot hold: convert the feature to one dtype before packing"
        )
    return converted
