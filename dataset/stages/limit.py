"""``LimitIterDataset``: the first elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from gristmill.core.errors import StateIndexError, as_int
from gristmill.core.state import state_count, state_field
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, iterate, skip_one, stream_of
from gristmill.dataset.bases.length import Exact, Length, num_elements, shortest
from gristmill.dataset.bases.next_index import check_no_gaps, move_to_index
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.origins import Place, place_of
from gristmill.dataset.bases.parameters import Parameters

T = TypeVar("T")


class LimitParameters(Parameters):
    count: int

    def __post_init__(self) -> None:
        self._replace(count=as_int("count", self.count, minimum=1))


class LimitIterDataset(IterDataset[T]):
    """Returns the first ``count`` elements of ``parent``; it is not asked for more.

    Order: the parent's. State: the parent's and the number of elements so far. Cost: none to speak of.

    Args:
        parent: the dataset; a shorter one simply ends.
        count: the most elements, at least 1. ``None`` elements count.

    Raises:
        TypeError: ``count`` is not an integer.
        ValueError: it is not positive.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> list(LimitIterDataset(MapDataset.range(10).to_iter_dataset(), 3))
        [0, 1, 2]
    """

    _passes_on = True
    _tells_place = True
    _element_spec = spec_of_first_parent
    _parameters: LimitParameters

    def __init__(self, parent: Any, count: int) -> None:
        super().__init__(parent)
        self._parameters = LimitParameters(count)

    def _num_elements(self) -> Length:
        return shortest([num_elements(self._parent), Exact(self._parameters.count)])

    def __iter__(self) -> DatasetIterator[T]:
        return LimitDatasetIterator(iterate(self._parent), self._parameters)


class LimitDatasetIterator(BlockIterator[T]):
    _flow = "one_to_one"
    _placed_by = ("_num_read",)

    def __init__(self, parent: DatasetIterator[Any], parameters: LimitParameters) -> None:
        super().__init__(parent)
        self._parameters = parameters
        self._count = parameters.count
        self._num_read = 0

    def _take(self, n: int) -> list[Any]:
        n = min(n, self._count - self._num_read)
        elements = self._parents[0]._take(n) if n > 0 else []
        self._num_read += len(elements)
        return elements

    def _stream(self, n: int) -> Iterator[Any]:
        for x in stream_of(self._parents[0], min(n, self._count - self._num_read)):
            self._num_read += 1
            yield x

    def get_state(self) -> Any:
        return {"parent": self._parents[0].get_state(), "count_elements_read": self._num_read}

    def _restore(self, state: Any) -> None:
        num_read = state_count(state, "count_elements_read", self)
        self._parents[0].set_state(state_field(state, "parent", self))
        self._num_read = num_read

    def _place(self) -> Place | None:
        return place_of(self._parents[0])

    def _skip(self) -> None:
        skip_one(self._parents[0])
        self._num_read += 1

    def _get_next_index(self) -> int:
        return self._num_read

    def _set_next_index(self, index: int) -> None:
        check_no_gaps(self)
        if index > self._count:
            raise StateIndexError(f"the index of the next element of {self} must be in [0, {self._count}], got {index}")
        move_to_index(self._parents[0], index)
        self._num_read = index
