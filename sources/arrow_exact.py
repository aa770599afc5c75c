"""Values of Arrow columns that pyarrow's ``to_numpy`` rounds, refuses or gives as bare numbers.

* pyarrow converts integers to floats if one of them is missing. Beyond 2**53 these are inexact.
* In structs and maps, pyarrow converts dates, times and durations to objects of Python. Those that
  Python cannot hold, such as dates after 9999, are errors or bare numbers.
* pyarrow does not convert lists of ``string_view``, ``binary_view``, ``fixed_size_binary`` and
  decimals of 32 or 64 bits, and confuses values of list views. Its casts of these in nested arrays
  lose values: only leaves are cast here.

Otherwise the values here are those of pyarrow, in structure, types and dtypes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.sources.arrow_types import is_list, is_text, stored_type

_MAX_EXACT = 1 << 53  # floats of 64 bits hold all integers up to it
# The days since 1970 that Python's dates can hold in every time zone, and those of its durations.
_DATES, _DURATIONS = (-719_161, 2_932_895), (-999_999_998, 999_999_998)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def is_exact(array: Any, in_struct: bool = False) -> bool:
    """Return true if ``to_numpy`` of pyarrow gives all values of an array as they are.

    Args:
        array: a ``pyarrow.Array``, except a dictionary at the top level.
        in_struct: true if it is a part of a struct or map.
    """
    from pyarrow import types

    array = _stored(array)
    arrow_type = array.type
    if types.is_integer(arrow_type):
        return not array.null_count or _are_within(array, -_MAX_EXACT, _MAX_EXACT)
    if types.is_temporal(arrow_type):
        return not in_struct or _python_holds(array)
    if types.is_struct(arrow_type):
        return all([is_exact(array.field(i), True) for i in range(arrow_type.num_fields)])
    if types.is_map(arrow_type):
        return is_exact(array.keys, True) and is_exact(array.items, True)
    if is_list(arrow_type):
        is_refused = _is_view(arrow_type) or _is_never_in_lists(stored_type(arrow_type.value_type))
        return not is_refused and is_exact(array.values, in_struct)
    return not _is_view(arrow_type)


def _is_never_in_lists(arrow_type: Any) -> bool:
    """Return true for types of fixed width of which pyarrow does not convert lists."""
    from pyarrow import types

    return types.is_fixed_size_binary(arrow_type) or _is_small_decimal(arrow_type)


def _is_small_decimal(arrow_type: Any) -> bool:
    return str(arrow_type).startswith(("decimal32", "decimal64"))  # of pyarrow 18 and newer


def _is_view(arrow_type: Any) -> bool:
    return str(arrow_type).partition("<")[0].endswith("_view")


def _stored(array: Any) -> Any:
    """Return the stored values of extension types and of dictionaries other than most of text."""
    from pyarrow import types

    value_type = array.type.value_type if types.is_dictionary(array.type) else None
    if value_type and (not is_text(value_type) or types.is_fixed_size_binary(value_type)):
        return _stored(array.dictionary_decode())
    return _stored(array.storage) if hasattr(array, "storage") else array


def _are_within(array: Any, low: int, high: int) -> bool:
    import pyarrow.compute

    found = pyarrow.compute.min_max(array).as_py()
    return found["min"] is None or low <= found["min"] <= found["max"] <= high


def _range(arrow_type: Any) -> tuple[int, int] | None:
    """Return the least and largest values that Python is sure to hold; ``None`` for no limit."""
    from pyarrow import types

    if types.is_date(arrow_type) or types.is_timestamp(arrow_type):
        low, high = _DATES
    elif types.is_duration(arrow_type):
        low, high = _DURATIONS
    else:
        return None
    if types.is_date32(arrow_type):
        return low, high
    per_day = _PER_DAY.get("ms" if types.is_date64(arrow_type) else arrow_type.unit)
    return None if per_day is None else (low * per_day, high * per_day)


def _python_holds(array: Any) -> bool:
    limits = _range(array.type)
    return limits is None or _are_within(_numbers(array), *limits)


def _numbers(array: Any) -> Any:
    """Return dates, times or durations as the integers that Arrow holds."""
    import pyarrow

    return array.cast(pyarrow.int32() if pyarrow.types.is_date32(array.type) else pyarrow.int64())


def exact_values(array: Any, in_struct: bool = False) -> Any:
    """Return the values of an array as an array of NumPy.

    If an integer is missing, the others are floats if these can hold all of them. Otherwise they
    stay integers, and the missing one is ``None``.
    """
    import pyarrow
    from pyarrow import types

    array = _stored(array)
    arrow_type = array.type
    if types.is_struct(arrow_type):
        names = [field.name for field in arrow_type]
        columns = [_objects(array.field(i)) for i in range(len(names))]
        return _object_array(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], array
        )
    if types.is_map(arrow_type):
        ends = array.offsets.to_pylist()
        start, stop = ends[0], ends[-1]
        keys, items = array.keys.slice(start, stop - start), array.items.slice(start, stop - start)
        entries = list(zip(_objects(keys), _objects(items), strict=True))
        return _object_array(
            [entries[i - start : j - start] for i, j in itertools.pairwise(ends)], array
        )
    if is_list(arrow_type):
        return _lists(array, in_struct)
    if types.is_integer(arrow_type) and not is_exact(array):
        return _object_array(array.fill_null(0).to_numpy(), array)
    if types.is_timestamp(arrow_type) and in_struct and not _python_holds(array):
        return _object_array(_objects(array), array)
    if types.is_string_view(arrow_type):
        array = array.cast(pyarrow.large_string())
    elif types.is_binary_view(arrow_type) or types.is_fixed_size_binary(arrow_type):
        array = array.cast(pyarrow.large_binary())
    elif _is_small_decimal(arrow_type):
        array = array.cast(pyarrow.decimal128(arrow_type.precision, arrow_type.scale))
    # For a missing value of a dictionary, to_numpy looks up a word, except in lists.
    if in_struct or types.is_dictionary(arrow_type):
        return _in_struct(_as_list(array))[0]
    return array.to_numpy(zero_copy_only=False)


def _lists(array: Any, in_struct: bool) -> Any:
    from pyarrow import types

    arrow_type = array.type
    if types.is_fixed_size_list(arrow_type):
        size = arrow_type.list_size
        starts = [size * (array.offset + i) for i in range(len(array))]
        ends = [start + size for start in starts]
    elif types.is_list(arrow_type) or types.is_large_list(arrow_type):
        starts = array.offsets.to_pylist()
        ends = starts[1:]
    else:
        starts = array.offsets.to_pylist()
        ends = [start + size for start, size in zip(starts, array.sizes.to_pylist(), strict=True)]
    first = min(starts, default=0)
    child = _stored(array.values.slice(first, max(ends, default=first) - first))
    values = exact_values(child, in_struct)
    lists = [values[start - first : end - first] for start, end in zip(starts, ends, strict=False)]
    # Lists without a gap are arrays of integers, as those in columns without gaps are.
    if types.is_integer(child.type) and values.dtype.hasobject:
        dtype = np.dtype(str(child.type))
        lists = [
            each if any([value is None for value in each]) else each.astype(dtype) for each in lists
        ]
    return _object_array(lists, array)


def _objects(array: Any) -> Sequence[Any]:
    """Return the values of a part of a struct or map as objects of Python."""
    from pyarrow import types

    array = _stored(array)
    arrow_type = array.type
    if is_list(arrow_type) or types.is_struct(arrow_type) or types.is_map(arrow_type):
        return list(exact_values(array, True))
    if types.is_integer(arrow_type):
        return array.to_pylist() if not is_exact(array) else _in_struct(array)
    if types.is_temporal(arrow_type) and not _python_holds(array):
        return _dates(array)
    return _in_struct(array)


def _dates(array: Any) -> list[Any]:
    """Return dates and durations as objects of Python, or of NumPy if Python cannot hold them."""
    import pyarrow
    import pyarrow.compute as pc

    limits = _range(array.type)
    assert limits is not None
    numbers = _numbers(array)
    is_outside = pc.or_(pc.less(numbers, limits[0]), pc.greater(numbers, limits[1]))
    values = _in_struct(pc.if_else(is_outside, pyarrow.scalar(None, array.type), array))
    numpy_values = array.to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(is_outside.fill_null(False).to_numpy(zero_copy_only=False)).tolist():
        # Python holds some of these values, because the limits are narrower than its own.
        try:
            (value,) = _in_struct(array.slice(i, 1))
        except (ValueError, OverflowError):
            value = None
        values[i] = numpy_values[i] if value is None or isinstance(value, int) else value
    return values


def _in_struct(array: Any) -> list[Any]:
    """Return the values as pyarrow gives them for the field of a struct."""
    import pyarrow

    rows = pyarrow.StructArray.from_arrays([array], names=["x"]).to_numpy(zero_copy_only=False)
    return [row["x"] for row in rows]


def _as_list(array: Any) -> Any:
    """Return an array whose only element is the list of all values."""
    import pyarrow

    return pyarrow.LargeListArray.from_arrays(
        pyarrow.array([0, len(array)], pyarrow.int64()), array
    )


def _object_array(values: Sequence[Any], array: Any) -> Any:
    """Return an array of objects; ``None`` where the value is missing in ``array``."""
    found = np.empty(len(values), object)
    is_valid = array.is_valid().to_pylist()
    # One by one: NumPy would make one array of arrays of the same length.
    for i, value in enumerate(values):
        found[i] = value if is_valid[i] else None
    return found
