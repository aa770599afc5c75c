"""Reading blocks of records from any source, for pipelines.

* ``read_keys(source, keys)``: the records at the keys, which are handed to the source as they are.
  Nothing else is done per key, so a caller whose keys are built-in ints below the source's length
  calls this alone.
* ``wrap_keys(source, keys)``: the keys as they have to be handed to the source when they may be out
  of range. ``read_keys(source, wrap_keys(source, keys))`` is the general way to read.

Both keep no state and look at the source again at each call: its length may change between two
blocks.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import SourceEnded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# TFDS, Hugging Face, PyTorch and our ArrayRecordDataSource use the first name, Grain the second.
_VECTORED_READS = ("__getitems__", "_getitems")


def read_keys(source: Any, keys: Sequence[Any]) -> list[Any]:
    """Returns ``[source[key] for key in keys]``, by one vectored read where the source has one.

    A vectored read is the method ``__getitems__`` or ``_getitems``, provided that its class does
    not come after the one that defines ``__getitem__``: a subclass that overrides ``__getitem__``
    alone (such as to parse records) is read by it. A data set of Hugging Face in a format
    (``numpy``, ``jax``) is read one by one: of a block it makes other types.

    Args:
        source: anything with ``__getitem__``.
        keys: the keys, each as the source takes it.

    Raises:
        SourceEnded: the source raised ``StopIteration``.
        TypeError, ValueError: the vectored read did not return one record per key.
        Exception: any error of the source.

    Example:
        >>> read_keys("abc", [2, 0, 0])
        ['c', 'a', 'a']
    """
    try:
        name = _vectored_read(source) if len(keys) > 1 else None
        if name is None:
            return [source[key] for key in keys]
        answer = getattr(source, name)(keys)
    except StopIteration as error:
        raise SourceEnded from error
    # a table of columns, for example: as long as keys only by accident
    if isinstance(answer, dict | str | bytes):
        raise TypeError(
            f"{type(source).__name__}.{name} must return a sequence of records, got"
            f" {type(answer).__name__}"
        )
    records = list(answer)
    if len(records) != len(keys):
        raise ValueError(
            f"{type(source).__name__}.{name} must return one record per key, got {len(records)} for"
            f" {len(keys)} keys"
        )
    return records


def is_read_in_blocks(source: Any) -> bool:
    """True if ``read_keys`` reads several records at once."""
    return _vectored_read(source) is not None


def may_be_read_again(source: Any) -> bool:
    """True if ``source`` is sure to give the same record for a key again.

    Ours do, and sequences of Python and NumPy, and what reads several records at once. Another one
    may be a disguised stream.

    Example:
        >>> may_be_read_again([1, 2])
        True
    """
    return type(source).__module__.partition(".")[0] in (
        "builtins",
        "numpy",
        "gristmill",
    ) or is_read_in_blocks(source)


def _vectored_read(source: Any) -> str | None:
    kind = type(source)
    for base in kind.__mro__:
        methods = vars(base)
        for name in _VECTORED_READS:
            # None in a subclass switches it off
            if name in methods and getattr(kind, name) is not None:
                return None if _converts_blocks(source, base) else name
        if "__getitem__" in methods:
            return None
    return None


def _converts_blocks(source: Any, base: type) -> bool:
    """True if records have other types in a block than alone, as Hugging Face's do in formats like
    ``numpy``.
    """
    return base.__module__ == "datasets.arrow_dataset" and source.format["type"] is not None


def wrap_keys(source: Any, keys: Sequence[Any] | NDArray[Any]) -> list[Any]:
    """Returns the keys reduced modulo ``len(source)``, as built-in ints: keys past the end start
    again, -1 is the last.

    Keys that are not integers, and all keys of a source without a length, come back unchanged
    (dictionaries with string keys are sources, too).

    Raises:
        IndexError: the source is empty, and a key is an integer.

    Example:
        >>> wrap_keys([10, 11, 12], [0, 2, 3, -1])
        [0, 2, 0, 2]
        >>> wrap_keys({"a": 1}, ["a"])
        ['a']
    """
    try:
        length = len(source)
    except TypeError:
        return list(keys)
    try:
        if type(keys) is not list:
            if isinstance(keys, np.ndarray):
                return (
                    (keys % length).tolist()
                    if length and keys.dtype == np.int64
                    else [key % length for key in keys.tolist()]
                )
            if (
                isinstance(keys, range)
                and keys
                and 0 <= keys[0] < length
                and 0 <= keys[-1] < length
            ):
                return list(keys)
        try:
            return [operator.index(key) % length for key in keys]
        except TypeError:  # rare, and no reason to make integers pay for a check
            return [_wrap_key(key, length) for key in keys]
    except ZeroDivisionError:
        raise IndexError(
            f"the source {type(source).__name__} is empty, no key can be read from it"
        ) from None


def _wrap_key(key: Any, length: int) -> Any:
    try:
        return operator.index(key) % length
    except TypeError:
        return key
