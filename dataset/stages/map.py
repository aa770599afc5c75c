"""``map``: one element into another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from gristmill.core.indices import Indices
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.feed import Feed, failed_in_stream
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset, same_index, stream_elements
from gristmill.dataset.bases.parameters import Parameters, aside, function
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.elements import Each
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.telling.failures import tell
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
    _origins = same_index
    _may_leave_out = True

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._parameters = MapParameters(transform)
        self._fn = transform_function(transform, Map, "map")

    def _block(self, indices: Indices) -> list[Any]:
        fn, elements = self._fn, self._parents[0]._block(indices)
        try:
            return [None if x is None else fn(x) for x in elements]
        except Exception as error:
            tell(error, self, indices)
            raise

    def _stream(self, feed: Feed) -> Iterator[Any]:
        return self._mapped(stream_elements(self._parents[0], feed), feed)

    def _mapped(self, elements: Iterator[Any], feed: Feed) -> Iterator[Any]:
        fn = self._fn
        for x in elements:
            try:
                yield None if x is None else fn(x)
            except Exception as error:
                failed_in_stream(error, self, feed)
                raise


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
