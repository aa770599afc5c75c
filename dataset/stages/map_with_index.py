"""``map_with_index``: an element and its index into another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.feed import Feed, failed_in_stream
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset, same_index, stream_elements
from gristmill.dataset.bases.parameters import Parameters, function
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.elements import Numbered
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.telling.failures import tell
from gristmill.transforms.base import MapWithIndex, transform_function

T = TypeVar("T")


class MapWithIndexParameters(Parameters):
    transform: Any = function()


class MapWithIndexMapDataset(BlockMapDataset[T]):
    """``transform(i, element)`` of every element of the parent, ``i`` as it was asked for; ``None`` is passed on.

    Order: the parent's. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _origins = same_index
    _may_leave_out = True

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._parameters = MapWithIndexParameters(transform)
        self._fn = transform_function(transform, MapWithIndex, "map_with_index")

    def _block(self, indices: Indices) -> list[Any]:
        fn = self._fn
        elements = self._parents[0]._block(indices)
        try:
            return [None if x is None else fn(i, x) for i, x in zip(as_ints(indices), elements, strict=True)]
        except Exception as error:
            tell(error, self, indices)
            raise

    def _stream(self, feed: Feed) -> Iterator[Any]:
        return self._mapped(stream_elements(self._parents[0], feed), feed)

    def _mapped(self, elements: Iterator[Any], feed: Feed) -> Iterator[Any]:
        fn = self._fn
        for x, i in zip(elements, as_ints(feed.indices), strict=False):  # the elements may end early
            try:
                yield None if x is None else fn(i, x)
            except Exception as error:
                failed_in_stream(error, self, feed)
                raise


class MapWithIndexIterDataset(IterDataset[T]):
    """``transform(i, element)`` of every element of the parent, ``i`` counting from 0; ``None`` counts and is passed on.

    Order: the parent's. State: the parent's and the count. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _num_elements = same_number
    _works_on = "numbered elements"

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._parameters = MapWithIndexParameters(transform)
        self._fn = transform_function(transform, MapWithIndex, "map_with_index")

    def _traced(self, tracing: Tracing) -> Any:
        fn = self._fn
        return tracing.over(self, _fn=lambda i, x: x.then(lambda value: None if value is None else fn(i, value), self))

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Numbered, fn=self._fn, key="counter"))
