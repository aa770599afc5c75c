"""The index of an iterator's next element: asking for it, and jumping to another one."""

from __future__ import annotations

from typing import Any

from gristmill.core.errors import StateIndexError, as_int
from gristmill.core.state import shown


def get_next_index(ds_iter: object) -> int:
    """Returns the index of the element that ``next(ds_iter)`` would deliver.

    That is the number of elements before it. Only where a ``MapDataset`` is iterated that leaves
    out elements, as ``filter`` does, and nothing follows but ``map`` and prefetching, it is the
    index in that dataset. Nothing is computed; elements that threads have read ahead may be dropped
    and read again.

    Args:
        ds_iter: an iterator of a dataset or of a ``DataLoader``.

    Raises:
        NotImplementedError: the index does not follow from the position: of a filter, a flat map
            and the like.
        TypeError: ``ds_iter`` is no such iterator.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> it = iter(MapDataset.range(10).to_iter_dataset().batch(4))
        >>> next(it)
        array([0, 1, 2, 3])
        >>> get_next_index(it)
        1
    """
    index: int = _checked(ds_iter)._get_next_index()
    return index


def set_next_index(ds_iter: object, index: int) -> None:
    """Lets ``ds_iter`` continue with the element at ``index``, as if it had delivered those before
    it, without computing them.

    ``set_next_index(it, get_next_index(it))`` changes nothing. If it raises, ``ds_iter`` stays
    where it was.

    Args:
        ds_iter: an iterator of a dataset or of a ``DataLoader``.
        index: from 0 up to the number of elements, which is the end.

    Raises:
        IndexError: ``index`` is out of range (the error is a ``ValueError`` too).
        NotImplementedError: the position does not follow from the index: of a filter, a mixture and
            the like.
        TypeError: ``ds_iter`` is no such iterator, or ``index`` no integer.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> it = iter(MapDataset.range(10).to_iter_dataset().batch(4))
        >>> set_next_index(it, 2)
        >>> next(it)
        array([8, 9])
    """
    it = _checked(ds_iter)
    number = as_int("index", index)
    if number < 0:
        raise StateIndexError(f"index must not be negative, got {number}")
    try:
        it._set_next_index(number)
    except IndexError as error:
        # about the index of something upstream, which the caller does not know
        raise StateIndexError(f"index {number} is out of range: {error}") from error


def check_no_gaps(stage: Any) -> None:
    """Raises unless every index upstream of ``stage`` has an element."""
    if stage.has_gaps():
        raise NotImplementedError(
            f"{stage} has no index for its elements: a step of the MapDataset before it may leave"
            " out elements, so that how many come before one does not follow from its index. Use"
            " get_state and set_state"
        )


def _checked(ds_iter: object) -> Any:
    if not hasattr(ds_iter, "_get_next_index"):
        raise TypeError(
            f"ds_iter must be an iterator of a dataset, got {shown(ds_iter)} of type"
            f" {type(ds_iter).__name__}; make one with iter(ds)"
        )
    return ds_iter
