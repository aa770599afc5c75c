"""``to_iter_dataset``: from random access to a stream, read ahead by threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import stable_repr
from gristmill.core.options import ReadOptions
from gristmill.dataset.bases.items import item
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Infinite, Length, num_elements, of_number, same_number
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset
from gristmill.dataset.bases.node import (
    dropping_steps,
    may_drop,
    spec_of,
    spec_of_first_parent,
    tolerances,
)
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Traced, Tracing, note_failed, rows_at
from gristmill.dataset.engine.iterators import StreamIterator, open_stage
from gristmill.dataset.engine.read import Read
from gristmill.dataset.engine.stream import Cell, Stream, observed
from gristmill.dataset.stages.range import RangeMapDataset

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")


class PrefetchParameters(Parameters):
    read_options: ReadOptions = field(in_checkpoint=False, show=stable_repr)
    allow_nones: bool


class PrefetchIterDataset(IterDataset[T]):
    """One epoch of a map dataset, in the order of its indices.

    State: the next index to look at. Cost: about 0.3 µs per element in blocks; threads compute them
    ahead.
    """

    _gm_states_have_place = True
    _element_spec = spec_of_first_parent
    _gm_parameters: PrefetchParameters

    def __init__(
        self, parent: object, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> None:
        super().__init__(parent)
        if not isinstance(parent, MapDataset):
            raise TypeError(f"parent must be a MapDataset, got {type(parent).__name__}")
        if read_options is None:
            if isinstance(parent, RangeMapDataset):
                read_options = ReadOptions(prefetch_buffer_size=0)
            else:
                read_options = ReadOptions()
        if not isinstance(read_options, ReadOptions):
            raise TypeError(f"read_options must be a ReadOptions, got {read_options!r:.200}")
        self._gm_parameters = PrefetchParameters(read_options, bool(allow_nones))
        self._gm_drops = not allow_nones
        self._tolerates = bool(tolerances(parent))

    def _gm_num_elements(self) -> Length:
        length = num_elements(self._gm_parent)
        if self._gm_drops or isinstance(length, Infinite):
            return length
        return of_number(len(self._gm_parent))

    @property
    def _gm_work_options(self) -> Sequence[Any]:
        return (self._gm_parameters.read_options,)

    def _gm_computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        if threads is None:
            return self
        new = copy.copy(self)
        new._gm_parameters = self._gm_parameters.replaced(read_options=threads)
        return new

    def _gm_traced(self, tracing: Tracing) -> Any:
        given = self._gm_parameters
        traced: PrefetchIterDataset[Any] = PrefetchIterDataset(
            TracedMapDataset(self._gm_parent, tracing, given.allow_nones),
            ReadOptions(0),
            allow_nones=given.allow_nones,
        )
        return TracedStepwiseIterDataset(traced) if self._tolerates else traced

    def __iter__(self) -> DatasetIterator[T]:
        parent = self._gm_parents[0]
        if self._tolerates:
            from gristmill.dataset.faults.read import ReadOutcomes

            return PrefetchDatasetIterator(self, [], partial(ReadOutcomes, ds=parent))
        return PrefetchDatasetIterator(self, [], partial(Read, ds=parent))


class PrefetchDatasetIterator(StreamIterator[T]):
    """The iterator of a stream that reads a map dataset, a class of its own for ``isinstance``."""


class TracedStepwiseIterDataset(IterDataset[Any]):
    """The parent's elements, none of them read early, so that faults are noted with their outputs.

    Order, state: the parent's.
    """

    _gm_adds_step = False
    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number

    def __iter__(self) -> DatasetIterator[Any]:
        return open_stage(self, TracedStepwise)


class TracedStepwise(Stream):
    """The elements of the parent, each computed when it is requested."""

    def __init__(self, stage: DatasetNode, parent: Stream) -> None:
        super().__init__(stage, parent)
        parent.take_singly()

    def run(self, cell: Cell) -> Iterator[Any]:
        run = self.parent.run(cell)
        return run if self.wrap is None else observed(run, self)


class TracedMapDataset(BlockMapDataset[Any]):
    """The elements of the parent with their records."""

    _gm_keeps_indices = True
    _gm_is_rebuilt = True

    def __init__(self, parent: MapDataset[Any], tracing: Tracing, with_nones: bool) -> None:
        super().__init__(parent)
        part = deciding_part(parent)
        self._tracing, self._with_nones = tracing, with_nones
        # What says where there are elements, and which.
        self._deciding = (
            part if tolerances(part) or (not with_nones and dropping_steps(part)) else None
        )
        if not with_nones and may_drop(parent):
            if tracing.is_exact:
                self._deciding = parent
            else:
                tracing.assumes = True

    @property
    def _element_spec(self) -> Any:
        return spec_of(self._gm_parent)

    def _gm_num_elements(self) -> Length:
        return num_elements(self._gm_parent)

    def _gm_over(self, replaced: Callable[[Any], Any]) -> TracedMapDataset:
        return TracedMapDataset(replaced(self._gm_parent), self._tracing, self._with_nones)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        return map(self._traced_at, as_ints(indices))

    def _traced_at(self, index: int) -> Traced | None:
        ds, deciding = self._gm_parent, self._deciding
        if deciding is None:
            return Traced(lambda: ds[index], *rows_at(ds, index))
        try:
            with self._tracing.noting_faults(deciding):
                value = item(deciding, index)
        except Exception as error:
            note_failed(error, rows_at(ds, index)[0])
            raise
        if value is None and not self._with_nones:
            return None
        rows, is_batch = rows_at(ds, index)
        return Traced(lambda: value if deciding is ds else ds[index], rows, is_batch)


def deciding_part(ds: MapDataset[Any]) -> MapDataset[Any]:
    """Returns the part of ``ds`` that decides at which indices there are elements."""
    while ds._gm_may_drop and ds._gm_parents:
        ds = ds._gm_parents[0]
    return ds
