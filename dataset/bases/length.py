"""The number of elements of a stream, if it follows from its stages.

Of a map dataset, the elements of an epoch that are there. Holes that a function of ``map`` makes by
``None`` are not known: lengths are exact as ``len`` counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from gristmill.core.value import Value

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_MAX_HINT = 2**24  # ``list(stream)`` sets aside as many places at once


class Exact(Value):
    """That many."""

    num: int


class AtMost(Value):
    """That many or fewer."""

    num: int


class Infinite(Value):
    """It does not end."""


class Unknown(Value):
    """Length that is known only after all elements were read."""


Length: TypeAlias = Exact | AtMost | Infinite | Unknown


def num_elements(ds: Any) -> Length:
    """Return the number of elements that ``ds`` delivers.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(10).to_iter_dataset()
        >>> num_elements(ds.batch(3)), num_elements(ds.filter(bool)), num_elements(ds.repeat())
        (Exact(num=4), AtMost(num=10), Infinite())
    """
    length: Length = ds._gm_num_elements()
    return length


def dataset_length(ds: object) -> Length:
    """Returns how many elements ``ds`` delivers, as known from its stages without reading any.

    ``Exact(num)``: that many; ``len`` of a stream gives it then. ``AtMost(num)``: that many or
    fewer, as after a filter. ``Infinite()``: it does not end. ``Unknown()``: not known before it
    has been read. The classes are in ``gristmill.lengths``. Elements that a function of ``map``
    drops by ``None`` are counted.

    Args:
        ds: a ``MapDataset``, ``IterDataset`` or ``DataLoader``.

    Raises:
        TypeError: it is something else.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(10)
        >>> (
        ...     dataset_length(ds.to_iter_dataset().batch(3)),
        ...     dataset_length(ds.filter(bool)),
        ...     dataset_length(ds.repeat()),
        ... )
        (Exact(num=4), AtMost(num=10), Infinite())
    """
    if not hasattr(ds, "_gm_num_elements"):
        raise TypeError(
            f"ds must be a MapDataset, IterDataset or DataLoader, got {ds!r:.200} of type"
            f" {type(ds).__name__}"
        )
    return num_elements(ds)


def of_number(num: int) -> Length:
    """Return the ``Length`` of an integer, of which the greatest one stands for endless."""
    return Infinite() if num >= sys.maxsize else Exact(num)


def scaled(length: Length, number: Callable[[int], int]) -> Length:
    """Return the length of a stage that makes ``number(n)`` elements of ``n``."""
    return type(length)(number(length.num)) if isinstance(length, Exact | AtMost) else length


def at_most(length: Length) -> Length:
    """Return the length of a stage that may drop elements; an infinite one stays infinite."""
    return AtMost(length.num) if isinstance(length, Exact) else length


def added(lengths: Iterable[Length]) -> Length:
    """Return the length of a concatenation."""
    total = 0
    kind: type[Exact | AtMost] = Exact
    found = list(lengths)
    for length in found:
        if isinstance(length, Exact | AtMost):
            total += length.num
            kind = AtMost if isinstance(length, AtMost) else kind
        elif isinstance(length, Unknown):
            return length
    return Infinite() if Infinite() in found else kind(total)


def shortest(lengths: Iterable[Length]) -> Length:
    """Return the smallest of the lengths."""
    found = [length for length in lengths if not isinstance(length, Infinite)]
    if not found:
        return Infinite()
    bounds = [length.num for length in found if isinstance(length, Exact | AtMost)]
    if not bounds:
        return Unknown()
    is_exact = all([isinstance(length, Exact) for length in found])
    return Exact(min(bounds)) if is_exact else AtMost(min(bounds))


def longest(lengths: Iterable[Length]) -> Length:
    """Return the largest of the lengths."""
    found = list(lengths)
    for kind in (Infinite, Unknown):
        if any([isinstance(length, kind) for length in found]):
            return kind()
    bounds = [length.num for length in found if isinstance(length, Exact | AtMost)]
    is_exact = all([isinstance(length, Exact) for length in found])
    return Exact(max(bounds, default=0)) if is_exact else AtMost(max(bounds))


def same_number(stage: DatasetNode) -> Length:
    """Implement ``_gm_num_elements`` for stages that make one element of one."""
    return num_elements(stage._gm_parents[0])


def some_of_them(stage: DatasetNode) -> Length:
    """Implement ``_gm_num_elements`` for stages that may drop elements."""
    return at_most(num_elements(stage._gm_parents[0]))


def unknown_number(stage: DatasetNode) -> Length:
    """Implement ``_gm_num_elements`` for stages whose elements have to be counted."""
    return Unknown()


def exact_length(stream: Any) -> int:
    """Return ``len(stream)``.

    Raises:
        TypeError: the number of elements does not follow from the stages.
    """
    try:
        length = num_elements(stream)
    except Exception as error:
        # of a source; ``list`` asks for lengths too, and the source's error is to come from reading
        raise _no_length(
            stream,
            f"its source does not say how long it is ({type(error).__name__}: {error!s:.200})",
        ) from error
    match length:
        case Exact(num) if num <= sys.maxsize:
            return num
        case AtMost(num):
            reason = (
                f"it has {num} elements at most, how many is known when they have been read; count"
                " with sum(1 for _ in ds)"
            )
        case Unknown():
            reason = (
                "how many elements it has is not known before they have been read; count with sum(1"
                " for _ in ds)"
            )
        case _:
            reason = "it does not end; ds.limit(n) does"
    raise _no_length(stream, reason)


def elements_left(it: object, ds: object, next_index: Callable[[], int]) -> int:
    """Return ``len(it)``, the number of elements of ``ds`` that its iterator has not delivered.

    Raises:
        TypeError: the number does not follow from the stages and the position. ``list(it)`` ignores
            this error alone.
    """
    if ds is None:
        raise _no_length(it, "its dataset is not known")
    length = exact_length(ds)
    try:
        return max(0, length - next_index())
    except Exception as error:  # ``list`` must raise what ``next`` raises
        raise _no_length(
            it,
            f"the index of its next element is not known ({type(error).__name__}: {error!s:.200})",
        ) from error


def has_own_length(node: DatasetNode) -> bool:
    """Return True if the length of a dataset does not follow from its parents'."""
    return (
        not hasattr(node, "__next__")
        and getattr(type(node), "__len__", exact_length) is not exact_length
    )


def _no_length(stream: object, reason: str) -> TypeError:
    return TypeError(f"object of type '{type(stream).__name__}' has no len(): {reason}")


def length_hint(stream: Any) -> Any:
    """Return the most elements that ``stream`` has, ``NotImplemented`` if unknown or huge."""
    try:
        length = num_elements(stream)
    except Exception:
        return NotImplemented
    if isinstance(length, Exact | AtMost) and length.num <= _MAX_HINT:
        return length.num
    return NotImplemented
