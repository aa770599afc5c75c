"""``filter``: drop elements that a predicate rejects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import compress, repeat
from operator import length_hint
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import some_of_them
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import FunctionParameters
from gristmill.dataset.bases.traced import Tracing, noting_failed
from gristmill.dataset.engine.elements import Keep
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.errors.context import failed_at
from gristmill.transforms.base import Filter, transform_function

T = TypeVar("T")


class FilterMapDataset(BlockMapDataset[T]):
    """The parent's elements, ``None`` instead of those that ``transform`` rejects.

    Order: the parent's. Cost: one call per element.
    """

    _gm_drops = True
    _element_spec = spec_of_first_parent
    _gm_keeps_indices = True

    def __init__(self, parent: object, transform: object) -> None:
        super().__init__(parent)
        self._gm_parameters = FunctionParameters(transform)
        self._fn = transform_function(transform, Filter, "filter")

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        fn, steps = self._fn, repeat(True, len(indices))
        for x in compress(self._gm_parents[0]._gm_items(indices), steps):
            try:
                if x is not None and not fn(x):
                    x = None
            except Exception as error:
                failed_at(error, self, as_ints(indices)[~length_hint(steps)])
                raise
            yield (x, x := None)[0]


class FilterIterDataset(IterDataset[T]):
    """The elements of the parent that ``transform`` accepts.

    Order: the parent's. State: the parent's. Cost: one call per element of the parent.
    """

    _gm_drops = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = some_of_them
    _gm_works_on = "choice"

    def __init__(self, parent: object, transform: object) -> None:
        super().__init__(parent)
        self._gm_parameters = FunctionParameters(transform)
        self._fn = transform_function(transform, Filter, "filter")

    def _gm_traced(self, tracing: Tracing) -> Any:
        fn = self._fn
        return tracing.over(self, _fn=noting_failed(lambda x: fn(x.value)))

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Keep, fn=self._fn))
