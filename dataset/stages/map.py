"""``map``: one element into another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import compress, repeat
from operator import length_hint
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.parameters import FunctionParameters, field
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.elements import Each, unless_none
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.errors.context import failed_at
from gristmill.transforms.base import Map, transform_function

T = TypeVar("T")


class StreamMapParameters(FunctionParameters):
    # ``None`` is an element like any other, in a DataLoader.
    with_nones: bool = field(in_checkpoint=False, in_repr=False)


class MapMapDataset(BlockMapDataset[T]):
    """``transform`` of every element of the parent; ``None`` is passed on without a call.

    Order: the parent's. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _gm_keeps_indices = True
    _gm_may_drop = True

    def __init__(self, parent: object, transform: object) -> None:
        super().__init__(parent)
        self._gm_parameters = FunctionParameters(transform)
        self._fn = transform_function(transform, Map, "map")

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        fn, steps = self._fn, repeat(True, len(indices))
        for x in compress(self._gm_parents[0]._gm_items(indices), steps):
            try:
                # The last element of the parent is kept until the next one is requested: a batch of
                # elements costs a third less than if each was dropped at once.
                yield None if x is None else fn(x)
            except Exception as error:
                failed_at(error, self, as_ints(indices)[~length_hint(steps)])
                raise


class MapIterDataset(IterDataset[T]):
    """``transform`` of every element of the parent; ``None`` is passed on without a call.

    Order: the parent's. State: the parent's. Cost: one call per element.
    """

    _element_spec = transformed_spec
    _gm_num_elements = same_number
    _gm_works_on = "elements"
    _gm_parameters: StreamMapParameters

    def __init__(self, parent: object, transform: object, *, with_nones: bool = False) -> None:
        super().__init__(parent)
        self._gm_parameters = StreamMapParameters(transform, with_nones)
        self._fn = transform_function(transform, Map, "map")

    def _gm_traced(self, tracing: Tracing) -> Any:
        fn = self._fn if self._gm_parameters.with_nones else partial(unless_none, self._fn)
        return tracing.over(self, _fn=lambda x: x.then(fn, self))

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(
            self, partial(Each, fn=self._fn, with_nones=self._gm_parameters.with_nones)
        )
