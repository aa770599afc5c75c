"""Checks that a transformation keeps the promises on which pipelines depend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gristmill.core.naming import transform_name
from gristmill.core.seeds import keyed_rng
from gristmill.dataset.descriptions.equality import are_equal
from gristmill.dataset.stages.flat_map import as_list, items_of
from gristmill.testing.laws import Law, check_answers, kept
from gristmill.transforms import Filter, FlatMap, Map, MapWithIndex, RandomMap, TfRandomMap
from gristmill.transforms.base import check_max_fan_out, transform_function

_METHODS: dict[type, str] = {
    Map: "map",
    RandomMap: "random_map",
    TfRandomMap: "np_random_map",
    FlatMap: "flat_map",
    Filter: "filter",
    MapWithIndex: "map_with_index",
}
_INPUT = Law(
    "a transformation leaves its input as it is",
    "Sources and caches hand out what they keep, so a change in place is there again in the next"
    " epoch: make a new element (x = x + 1, not x += 1; {**x, 'key': value}). If every element is"
    " always a new one, say may_change_input=True.",
)


def assert_transform_conforms(
    transform: Any,
    elements: Iterable[Any],
    *,
    kind: type | None = None,
    may_change_input: bool = False,
    in_worker: bool = False,
) -> None:
    """Asserts that ``transform`` depends on nothing but its arguments, and does not change them.

    Checked are equal results for equal elements (and equal generators), regardless of elements
    transformed before, in eight threads at a time, and by copies made by cloudpickle; that inputs
    stay as they are; that a ``Filter`` gives a truth value, and a ``FlatMap`` no more than
    ``max_fan_out`` items.

    Args:
        transform: a ``Map``, ``RandomMap``, ``TfRandomMap``, ``MapWithIndex``, ``Filter`` or
            ``FlatMap``, or a function.
        elements: some elements for it; copies of them are transformed, about 20 times each.
        kind: for a function, the class that it replaces; by default ``Map``.
        may_change_input: whether it may change its input in place.
        in_worker: also start a worker process and transform there.

    Raises:
        AssertionError: something is not so; says which law is broken, what was found, and what to
            do.
        TypeError: ``transform`` is neither callable nor of one of these classes.
        ValueError: there are no elements.

    Example:
        >>> assert_transform_conforms(lambda x: x + 1, [1, 2, 3])
        >>> assert_transform_conforms(lambda x, rng: x + rng.normal(), [1.0, 2.0], kind=RandomMap)
        >>> assert_transform_conforms(lambda x: x.pop(), [[1], [2, 3]])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        AssertionError: broken law: a transformation leaves its input as it is. Found: ...
    """
    if kind is None:
        kind = next((kind for kind in _METHODS if isinstance(transform, kind)), Map)
    elif kind not in _METHODS:
        raise TypeError(
            f"kind must be one of {', '.join(kind.__name__ for kind in _METHODS)}, got"
            f" {kind!r:.200}"
        )
    transform_function(transform, kind, _METHODS[kind])
    elements = list(elements)
    if not elements:
        raise ValueError("elements must be some elements to transform, got none")

    def results(transform: Any, indices: list[int]) -> list[Any]:
        return [_result(transform, kind, i, kept(elements[i])) for i in indices]

    name = transform_name(transform)
    check_answers(
        transform,
        range(len(elements)),
        results,
        lambda i: f"the result of {name} for element {i}",
        in_worker=in_worker,
    )
    for i, element in enumerate(elements) if not may_change_input else ():
        given = kept(element)
        _result(transform, kind, i, given)
        _INPUT.check(
            are_equal(element, given),
            f"element {i} was {element!r:.200} before and {given!r:.200} after",
        )


def _result(transform: Any, kind: type, index: int, element: Any) -> Any:
    fn = transform_function(transform, kind, _METHODS[kind])
    if kind in (RandomMap, TfRandomMap):
        return fn(element, keyed_rng(0, index))
    if kind is MapWithIndex:
        return fn(index, element)
    if kind is Filter:
        return bool(fn(element))
    if kind is FlatMap:
        return (
            items_of(transform, element, check_max_fan_out(transform))
            if isinstance(transform, FlatMap)
            else as_list(fn(element), transform)
        )
    return fn(element)
