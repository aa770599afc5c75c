"""``map_with_index``: an element and its index into another."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.parameters import FunctionParameters
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.elements import Numbered
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.errors.context import failed_at
from gristmill.transforms.base import MapWithIndex, transform_function

T = TypeVar("T")


class NumberedMapDataset(BlockMapDataset[T]):
    """Base of the stages that call a function of the index and the element."""

    _element_spec = transformed_spec
    _gm_keeps_indices = True
    _gm_gets_index = True
    _gm_may_drop = True

    @abc.abstractmethod
    def _function(self) -> Callable[[int, Any], Any]:
        """Returns the function, for one call of ``_gm_items``."""

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        mapped = partial(self._mapped, self._function())
        return map(mapped, self._gm_parents[0]._gm_items(indices), as_ints(indices))

    def _mapped(self, fn: Callable[[int, Any], Any], x: object, index: int) -> Any:
        try:
            return None if x is None else fn(index, x)
        except Exception as error:
            failed_at(error, self, index)
            raise


class MapWithIndexMapDataset(NumberedMapDataset[T]):
    """``transform(i, element)`` of every element of the parent, ``i`` as it was requested; ``None``
    is passed on.

    Order: the parent's. Cost: one call per element.
    """

    def __init__(self, parent: object, transform: object) -> None:
        super().__init__(parent)
        self._gm_parameters = FunctionParameters(transform)
        self._fn = transform_function(transform, MapWithIndex, "map_with_index")

    def _function(self) -> Callable[[int, Any], Any]:
        return self._fn


class MapWithIndexIterDataset(IterDataset[T]):
    """``transform(i, element)`` of every element of the parent, ``i`` counting from 0; ``None``
    counts and is passed on.

    Order: the parent's. State: the parent's and the count. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _gm_num_elements = same_number
    _gm_works_on = "numbered elements"

    def __init__(self, parent: object, transform: object) -> None:
        super().__init__(parent)
        self._gm_parameters = FunctionParameters(transform)
        self._fn = transform_function(transform, MapWithIndex, "map_with_index")

    def _gm_traced(self, tracing: Tracing) -> Any:
        fn = self._fn
        return tracing.over(
            self,
            _fn=lambda i, x: x.then(lambda value: None if value is None else fn(i, value), self),
        )

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Numbered, fn=self._fn, key="counter"))
