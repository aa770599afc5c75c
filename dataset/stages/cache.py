"""``CacheIterDataset``: elements kept in memory."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.caching import Cache
from gristmill.dataset.engine.iterators import open_stage

T = TypeVar("T")


class CacheParameters(Parameters):
    copy_elements: bool = field(in_checkpoint=False, in_repr=False)


class CacheIterDataset(IterDataset[T]):
    """Returns the elements of ``parent``, kept in memory: ``RepeatIterDataset(CacheIterDataset(ds),
    n)`` computes them once.

    Every iterator has a cache of its own, filled as elements pass. It is complete when the parent
    has ended, which is not touched any more then. Going back within what is in memory computes
    nothing.

    Order: the parent's. State: the parent's, the number of elements so far, whether the cache is
    complete, and the positions that ``skip_failed`` has skipped, if any; no elements. A new
    iterator that is restored computes those before its position again. So the state is refused if a
    mixture in mapping form has other weights or components, unless nothing has come yet: mix
    downstream of the cache.
    Cost: a list's, and the memory of all elements.

    Args:
        parent: the dataset; all its elements must fit in memory.
        copy_elements: hand out deep copies, so that elements may be changed in place. Otherwise
            every epoch has the very same objects, and a change would be seen in the next one.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(3).map(lambda x: print("computing", x) or x).to_iter_dataset()
        >>> list(CacheIterDataset(ds).repeat(2))
        computing 0
        computing 1
        computing 2
        [0, 1, 2, 0, 1, 2]
    """

    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number
    _gm_parameters: CacheParameters

    def __init__(self, parent: object, *, copy_elements: bool = False) -> None:
        super().__init__(parent)
        self._gm_parameters = CacheParameters(bool(copy_elements))

    def __str__(self) -> str:
        return f"CacheIterDataset(parent={self._gm_parent})"

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _gm_parameters=self._gm_parameters.replaced(copy_elements=False))

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Cache, copy_elements=self._gm_parameters.copy_elements))
