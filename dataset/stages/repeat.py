"""``repeat``: several epochs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Infinite, Length, num_elements, scaled
from gristmill.dataset.bases.map import ReindexMapDataset
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing, with_epochs
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.joining import Repeat

T = TypeVar("T")


class RepeatIterParameters(Parameters):
    num_epochs: int | None

    def __post_init__(self) -> None:
        if self.num_epochs is not None:
            self._replace(num_epochs=as_int("num_epochs", self.num_epochs, minimum=1))


class RepeatParameters(RepeatIterParameters):
    reseed_each_epoch: bool = field(in_repr=False)


class RepeatMapDataset(ReindexMapDataset[T]):
    """The parent with another length; with ``reseed_each_epoch=False`` its first epoch again and
    again.

    Order: the parent's. Cost: none to speak of.
    """

    _gm_is_rebuilt = True
    _gm_parameters: RepeatParameters

    def __init__(
        self, parent: object, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> None:
        super().__init__(parent)
        self._gm_parameters = RepeatParameters(num_epochs, bool(reseed_each_epoch))
        self._reseed = self._gm_parameters.reseed_each_epoch
        self._parent_length = len(self._gm_parent)
        if self._parent_length >= sys.maxsize:
            raise ValueError(f"cannot repeat {parent}: it is endless already")
        times = self._gm_parameters.num_epochs
        self._length = min(
            self._parent_length * (sys.maxsize if times is None else times), sys.maxsize
        )
        self._gm_has_one_epoch = not self._reseed
        # a split is one of what is repeated
        self._gm_moves_records = self._length != self._parent_length

    def __len__(self) -> int:
        return self._length

    @property
    def _gm_shares_records(self) -> bool:
        return self._length != self._parent_length

    @property
    def _gm_passed_on(self) -> tuple[Any, slice] | None:
        return (self._gm_parent, slice(None)) if self._length == self._parent_length else None

    def _reindex_range(self, indices: range) -> Indices | None:
        return indices if self._reseed else None

    def _reindex(self, index: Any) -> Any:
        if self._reseed:
            return index
        self._check_not_empty(self._parent_length)
        return index % self._parent_length

    def _gm_counts_before(self, num: int) -> dict[str, dict[str, int]] | None:
        return self._gm_parents[0]._gm_counts_before(num) if self._reseed else None

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        epoch = 0 if self._reseed else index // self._parent_length
        return [UpstreamElement(self._gm_parent, self._reindex(index), epoch)]


class RepeatIterDataset(IterDataset[T]):
    """Returns the elements of ``parent`` again and again: every epoch is identical, its random
    stages too.

    Order: the parent's. State: the parent's and the epoch. Cost: one restored state per epoch;
    worker processes of the parent stay the same.

    Args:
        parent: the dataset.
        num_epochs: number of epochs, at least 1; ``None`` repeats forever.

    Raises:
        TypeError: ``num_epochs`` is not an integer.
        ValueError: it is not positive. Also when iterating forever over a parent without elements.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(5).shuffle(seed=1).to_iter_dataset().batch(3)
        >>> list(RepeatIterDataset(ds, num_epochs=2))
        [array([1, 2, 3]), array([0, 4]), array([1, 2, 3]), array([0, 4])]
    """

    _element_spec = spec_of_first_parent
    _gm_parameters: RepeatIterParameters
    _note_epoch: Callable[[int, list[Any]], list[Any]] | None = None  # gets the epoch of elements

    def __init__(self, parent: object, num_epochs: int | None = None) -> None:
        super().__init__(parent)
        self._gm_parameters = RepeatIterParameters(num_epochs)

    def _gm_num_elements(self) -> Length:
        times = self._gm_parameters.num_epochs
        if times is None:
            return Infinite()
        return scaled(num_elements(self._gm_parent), lambda num: num * times)

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _note_epoch=with_epochs)

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(
            self,
            partial(Repeat, num_epochs=self._gm_parameters.num_epochs, note_epoch=self._note_epoch),
        )
