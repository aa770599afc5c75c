"""``map``: one element into another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.parameters import Parameters, aside, function
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.elements import Each
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.telling.failures import failed_at
from gristmill.transforms.base import Map, transform_function

T = TypeVar("T")


class MapParameters(Parameters):
    transform: Any = function()


class StreamMapParameters(MapParameters):
    with_nones: bool = aside()  # ``None`` is an element like any other (in a DataLoader)


class MapMapDataset(BlockMapDataset[T]):
    """``transform`` of every element of the parent; ``None`` is passed on without a call.

    Order: the parent's. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _keeps_indices = True
    _may_leave_out = True

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._parameters = MapParameters(transform)
        self._fn = transform_function(transform, Map, "map")

    def _items(self, indices: Indices) -> Iterator[Any]:
        parent = self._parents[0]
        if type(parent) is MapMapDataset and _is_fusible(parent):
            return _fused_items(self, indices)
        return map(_mapped_by_one(self, self._fn), parent._items(indices), as_ints(indices))


def _mapped_by_one(stage: Any, fn: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    def mapped(x: Any, index: int) -> Any:
        try:
            return None if x is None else fn(x)
        except Exception as error:
            failed_at(error, stage, index)
            raise

    return mapped


# Two or three neighbouring stages in one call of a function take half the time of a call for each.


def _is_fusible(ds: Any) -> bool:
    return type(ds) is MapMapDataset and "_items" not in vars(ds)  # else it is observed


def _fused_items(c: MapMapDataset[Any], indices: Indices) -> Iterator[Any]:
    b: Any = c._parents[0]
    a: Any = b._parents[0]
    if _is_fusible(a):
        return map(_mapped_by_three(a, b, c), a._parents[0]._items(indices), as_ints(indices))
    return map(_mapped_by_two(b, c), a._items(indices), as_ints(indices))


def _mapped_by_two(a: MapMapDataset[Any], b: MapMapDataset[Any]) -> Callable[[Any, int], Any]:
    f, g = a._fn, b._fn

    def mapped(x: Any, index: int) -> Any:
        stage = a
        try:
            x = None if x is None else f(x)
            stage = b
            return None if x is None else g(x)
        except Exception as error:
            failed_at(error, stage, index)
            raise

    return mapped


def _mapped_by_three(a: MapMapDataset[Any], b: MapMapDataset[Any], c: MapMapDataset[Any]) -> Callable[[Any, int], Any]:
    f, g, h = a._fn, b._fn, c._fn

    def mapped(x: Any, index: int) -> Any:
        stage = a
        try:
            x = None if x is None else f(x)
            stage = b
            x = None if x is None else g(x)
            stage = c
            return None if x is None else h(x)
        except Exception as error:
            failed_at(error, stage, index)
            raise

    return mapped


class MapIterDataset(IterDataset[T]):
    """``transform`` of every element of the parent; ``None`` is passed on without a call.

    Order: the parent's. State: the parent's. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _num_elements = same_number
    _works_on = "elements"
    _parameters: StreamMapParameters

    def __init__(self, parent: Any, transform: Any, *, with_nones: bool = False) -> None:
        super().__init__(parent)
        self._parameters = StreamMapParameters(transform, with_nones)
        self._fn = transform_function(transform, Map, "map")

    def _traced(self, tracing: Tracing) -> Any:
        fn = self._fn if self._parameters.with_nones else partial(_unless_none, self._fn)
        return tracing.over(self, _fn=lambda x: x.then(fn, self))

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Each, fn=self._fn, with_nones=self._parameters.with_nones))



def _unless_none(fn: Callable[[Any], Any], x: Any) -> Any:
    return None if x is None else fn(x)
