"""``map_with_index``: an element and its index into another."""

from __future__ import annotations

from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import transform_name
from gristmill.core.state import state_count, state_field
from gristmill.dataset.element_spec import transformed_spec
from gristmill.dataset.iter_dataset import IterDataset
from gristmill.dataset.iterator import BlockIterator, DatasetIterator, iterate, merged_with_count, skip_one
from gristmill.dataset.map_dataset import BlockMapDataset
from gristmill.dataset.next_index import check_no_gaps
from gristmill.transforms.base import MapWithIndex, transform_function

T = TypeVar("T")


class MapWithIndexMapDataset(BlockMapDataset[T]):
    """``transform(i, element)`` of every element of the parent, ``i`` as it was asked for; ``None`` is passed on.

    Order: the parent's. Cost: one call per element.
    """

    _element_spec = transformed_spec

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._transform = transform
        self._fn = transform_function(transform, MapWithIndex, "map_with_index")

    def __str__(self) -> str:
        return f"MapWithIndexMapDataset(transform={transform_name(self._transform)})"

    def _block(self, indices: Indices) -> list[Any]:
        fn = self._fn
        elements = self._parents[0]._block(indices)
        return [None if x is None else fn(i, x) for i, x in zip(as_ints(indices), elements, strict=True)]


class MapWithIndexIterDataset(IterDataset[T]):
    """``transform(i, element)`` of every element of the parent, ``i`` counting from 0; ``None`` counts and is passed on.

    Order: the parent's. State: the parent's and the count. Cost: one call per element.
    """

    _element_spec = transformed_spec

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._transform = transform
        self._fn = transform_function(transform, MapWithIndex, "map_with_index")

    def __str__(self) -> str:
        return f"MapWithIndexIterDataset(transform={transform_name(self._transform)})"

    def __iter__(self) -> DatasetIterator[T]:
        return MapWithIndexDatasetIterator(iterate(self._parent), self._fn, self._transform)


class MapWithIndexDatasetIterator(BlockIterator[T]):
    _kind = "one_to_one"

    def __init__(self, parent: DatasetIterator[Any], fn: Any, transform: Any) -> None:
        super().__init__(parent)
        self._fn = fn
        self._transform = transform
        self._count = 0  # elements that arrived, in this worker

    def __str__(self) -> str:
        return f"MapWithIndexDatasetIterator(transform={transform_name(self._transform)})"

    def _take(self, n: int) -> list[Any]:
        fn, ctx = self._fn, self._ctx
        step = ctx.worker_count
        first = ctx.worker_index + self._count * step
        elements = self._parents[0]._take(n)
        result = [None if x is None else fn(first + i * step, x) for i, x in enumerate(elements)]
        self._count += len(elements)
        return result

    def get_state(self) -> Any:
        return {"parent": self._parents[0].get_state(), "counter": self._count}

    def _restore(self, state: Any) -> None:
        count = state_count(state, "counter", self)
        self._parents[0].set_state(state_field(state, "parent", self))
        self._count = count

    def _mark(self) -> Any:
        return self._parents[0]._mark(), self._count

    def _return_to(self, mark: Any) -> None:
        parent, self._count = mark
        self._parents[0]._return_to(parent)

    def _merged_state(self, states: Any) -> Any:
        return merged_with_count(self, states, "counter")

    def _get_next_index(self) -> int:
        return self._count

    def _set_next_index(self, index: int) -> None:
        check_no_gaps(self)
        self._parents[0]._set_next_index(index)
        self._count = index

    def _skip(self) -> None:
        skip_one(self._parents[0])
        self._count += 1
