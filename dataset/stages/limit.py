"""``LimitIterDataset``: the first elements."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from gristmill.core.errors import as_int
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Exact, Length, num_elements, shortest
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.engine.elements import Limit
from gristmill.dataset.engine.iterators import open_stage

T = TypeVar("T")


class LimitParameters(Parameters):
    count: int

    def __post_init__(self) -> None:
        self._replace(count=as_int("count", self.count, minimum=1))


class LimitIterDataset(IterDataset[T]):
    """Returns the first ``count`` elements of ``parent``; it is not asked for more.

    Order: the parent's. State: the parent's and the number of elements so far. Cost: none to speak
    of.

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

    _gm_passes_on = True
    _gm_states_have_place = True
    _element_spec = spec_of_first_parent
    _gm_parameters: LimitParameters

    def __init__(self, parent: object, count: int) -> None:
        super().__init__(parent)
        self._gm_parameters = LimitParameters(count)

    def _gm_num_elements(self) -> Length:
        return shortest([num_elements(self._gm_parent), Exact(self._gm_parameters.count)])

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Limit, most=self._gm_parameters.count))
