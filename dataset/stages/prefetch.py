"""``to_iter_dataset``: from random access to a stream, read ahead by threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.core.cached import cached
from gristmill.core.errors import SourceEnded, StateIndexError
from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import stable_repr
from gristmill.core.options import ReadOptions
from gristmill.core.state import plain_int, shown, state_field
from gristmill.dataset.ahead.reader import Reader
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.feed import OneByOne
from gristmill.dataset.bases.items import item
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, go_to, iterate
from gristmill.dataset.bases.length import Infinite, Length, num_elements, of_number, same_number
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset
from gristmill.dataset.bases.node import dropping_steps, may_leave_out, spec_of, spec_of_first_parent, tolerances
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.bases.traced import Traced, Tracing, note_failed, rows_at
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.read import Read
from gristmill.dataset.stages.filter_guard import NONE_SEEN, FilterGuard
from gristmill.dataset.stages.range import RangeMapDataset
from gristmill.dataset.stages.runs import RunsMapDataset

T = TypeVar("T")


class PrefetchParameters(Parameters):
    read_options: ReadOptions = aside(in_text=True, show=stable_repr)
    allow_nones: bool


class PrefetchIterDataset(IterDataset[T]):
    """One epoch of a map dataset, in the order of its indices.

    State: the next index to look at. Cost: about 0.3 µs per element in blocks; threads compute them ahead.
    """

    _tells_place = True
    _element_spec = spec_of_first_parent
    _parameters: PrefetchParameters

    def __init__(self, parent: Any, read_options: ReadOptions | None = None, *, allow_nones: bool = False) -> None:
        super().__init__(parent)
        if not isinstance(parent, MapDataset):
            raise TypeError(f"parent must be a MapDataset, got {type(parent).__name__}")
        if read_options is None:
            read_options = ReadOptions(prefetch_buffer_size=0) if isinstance(parent, RangeMapDataset) else ReadOptions()
        if not isinstance(read_options, ReadOptions):
            raise TypeError(f"read_options must be a ReadOptions, got {read_options!r:.200}")
        self._parameters = PrefetchParameters(read_options, bool(allow_nones))
        self._drops = not allow_nones
        self._tolerates = bool(tolerances(parent))

    def _num_elements(self) -> Length:
        length = num_elements(self._parent)
        return length if self._drops or isinstance(length, Infinite) else of_number(len(self._parent))

    @property
    def _work_options(self) -> Sequence[Any]:
        return (self._parameters.read_options,)

    def _computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        if threads is None:
            return self
        new = copy.copy(self)
        new._parameters = self._parameters.replaced(read_options=threads)
        return new

    def _traced(self, tracing: Tracing) -> Any:
        given = self._parameters
        twin: PrefetchIterDataset[Any] = PrefetchIterDataset(
            TracedMapDataset(self._parent, tracing, given.allow_nones), ReadOptions(0), allow_nones=given.allow_nones
        )
        return TracedStepwiseIterDataset(twin) if self._tolerates else twin

    def __iter__(self) -> DatasetIterator[T]:
        parent = self._parents[0]
        if self._tolerates:
            from gristmill.dataset.stages.tried import tried

            return tried(parent, self._parameters)
        return StreamIterator(self, [], partial(Read, ds=parent))


class TracedStepwiseIterDataset(IterDataset[Any]):
    """The parent's elements, none of them read early, so that faults are noted with their outputs.

    Order, state: the parent's.
    """

    _adds_step = False
    _element_spec = spec_of_first_parent
    _num_elements = same_number

    def __iter__(self) -> DatasetIterator[Any]:
        return TracedStepwiseIterator(iterate(self._parent))


class TracedStepwiseIterator(PassingIterator[Any]):
    _flow = "stateful"

    def _take(self, n: int) -> list[Any]:
        return self._source._take(n)


class TracedMapDataset(BlockMapDataset[Any]):
    """The elements of the parent with their records; ``None`` where there is none, unless ``None`` is an element."""

    _keeps_indices = True
    _is_made_anew = True

    def __init__(self, parent: Any, tracing: Tracing, with_nones: bool) -> None:
        super().__init__(parent)
        part = deciding_part(parent)
        self._tracing, self._with_nones = tracing, with_nones
        # What says where there are elements, and which.
        self._deciding = part if tolerances(part) or (not with_nones and dropping_steps(part)) else None
        if not with_nones and may_leave_out(parent):
            if tracing.is_exact:
                self._deciding = parent
            else:
                tracing.assumes = True

    @property
    def _element_spec(self) -> Any:
        return spec_of(self._parent)

    def _num_elements(self) -> Length:
        return num_elements(self._parent)

    def _over(self, replaced: Callable[[Any], Any]) -> TracedMapDataset:
        return TracedMapDataset(replaced(self._parent), self._tracing, self._with_nones)

    def _items(self, indices: Indices) -> Iterator[Any]:
        return map(self._traced_at, as_ints(indices))

    def _traced_at(self, index: int) -> Traced | None:
        ds, deciding = self._parent, self._deciding
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
    """Of ``ds`` what says at which indices there are elements, if the functions behind it leave out none."""
    while ds._may_leave_out and ds.parents:
        ds = ds.parents[0]
    return ds


class PrefetchDatasetIterator(BlockIterator[T]):
    """Quick to make, since a mixture has hundreds that are not needed soon: what it needs is made when it is used first."""

    _parameters: PrefetchParameters
    _flow = "dropping"
    _work_category = "prefetch"
    _stays_on_error = True
    _closes_anytime = True
    _next_index = 0
    _failed_index = -1  # the last attempt failed there

    def __init__(self, ds: MapDataset[Any], parameters: PrefetchParameters) -> None:
        super().__init__()
        self._ds = ds
        self._length = self._end = len(ds)  # the end, or where the source has ended
        self._parameters = parameters
        self._allow_nones = parameters.allow_nones
        if type(ds) is RunsMapDataset:
            self._ctx.numbers = ds.numbers

    @cached
    def _reader(self) -> Reader:
        options = self._parameters.read_options
        return Reader(self._ds, options.num_threads, options.prefetch_buffer_size, self._ctx)

    @cached
    def _reads_once(self) -> bool:
        return self._ds._draws_once

    @cached
    def _is_sparse(self) -> bool:
        return bool(dropping_steps(self._ds))

    @cached
    def _guard(self) -> FilterGuard:
        return FilterGuard([*dropping_steps(self._ds), self][0])

    @cached
    def _budget_waits(self) -> BudgetWaits:
        return self._reader.waits

    def _share_context(self, ctx: IteratorContext) -> None:
        super()._share_context(ctx)
        if "_reader" in vars(self):
            self._reader.ctx = ctx

    def _counts_at(self, num: int) -> dict[str, dict[str, int]] | None:
        """See ``MapDataset._counts_before``."""
        return self._ds._counts_before(num)

    @property
    def _draws_from(self) -> Sequence[Any]:
        return (self._ds,)

    _observed_upstream = _draws_from

    @property
    def _work_options(self) -> Sequence[Any]:
        return (self._parameters.read_options,)

    def _work_ahead(self) -> WorkAhead:
        num_threads = self._reader.num_threads
        return WorkAhead(num_threads > 0, num_threads, self._reader.num_ready, reads=True)

    def _observe_reads(self, replace: Callable[[Any], Any] | None) -> None:
        self._reader.observe(None if replace is None else replace(self._ds))

    def _take(self, n: int) -> list[Any]:
        if n > 1 and self._reader.is_careful:
            raise OneByOne
        if self._closed:
            raise ValueError(f"{self} is closed")
        taken: list[Any] = []
        read: list[Any] = []  # since ``_next_index``
        index = self._next_index
        try:
            while len(taken) < n and index < self._end:
                try:
                    elements = self._reader.take(index, min(n - len(taken), self._end - index))
                except SourceEnded:
                    self._end = index
                    break
                except Exception as error:
                    if not read:
                        self._failed_index = index
                        raise
                    self._reader.give_back(index, [], error)
                    raise OneByOne from None
                read = read + elements if read else elements
                index += len(elements)
                if not self._allow_nones:
                    kept = [x is not None for x in elements]
                    self._guard.observe(kept, self._ctx.options)
                    if not all(kept):
                        elements = [x for x in elements if x is not None]
                taken += elements
                if not taken:
                    self._next_index = index  # past elements that are not there, whatever comes next
                    read = []
        except Exception:
            if read:
                self._reader.give_back(self._next_index, read)
            raise
        except BaseException:
            self._reader.stop()  # what was read and not delivered is read again
            raise
        if taken:
            self._last = self._next_index
        self._next_index = index
        return taken

    def _stream(self, n: int) -> Iterator[Any]:
        reader, skips = self._reader, not self._allow_nones
        if reader.is_careful:
            raise OneByOne
        stop = min(self._next_index + n, self._end)
        while self._next_index < stop:  # not moved before the end of a part: whoever leaves off earlier goes back
            index, num, is_missing = self._next_index, 0, False
            try:
                part, size = reader.part(index, stop - index)
                for x in part:
                    if x is None and skips:
                        is_missing = True
                        break
                    yield x
                    num += 1
            except Exception as error:
                self._next_index = index + num
                reader.give_back(index + num, [], error)
                raise OneByOne from None
            except GeneratorExit:
                raise
            except BaseException:
                reader.stop()
                raise
            if is_missing:
                self._next_index = index + num
                reader.give_back(index + num, [None])
            self._guard.observe([True] * num, self._ctx.options)
            if is_missing:
                return
            self._next_index = index + size

    def start_prefetch(self) -> None:
        if not self._closed:
            self._reader.start()

    def _expect(self, rate: float, due: float | None) -> None:
        if not self._closed:
            self._reader.expect(rate, due)

    def close(self) -> None:
        super().close()
        if "_reader" in vars(self):
            self._reader.close()

    def get_state(self) -> Any:
        return {"next_index": self._next_index}

    def _restore(self, state: Any) -> None:
        index = state_field(state, "next_index", self)
        position = plain_int(index)
        if position is None or not 0 <= position <= self._length:
            raise StateIndexError(
                f"next_index in the state of {self} must be in [0, {self._length}], the length of the dataset, got {shown(index)}"
            )
        self._reader.go_to(position)
        self._next_index, self._end, self._failed_index = position, self._length, -1

    def _mark(self) -> tuple[int, tuple[int, int]]:
        return self._next_index, self._guard.counts if "_guard" in vars(self) else NONE_SEEN

    def _return_to(self, mark: tuple[int, tuple[int, int]]) -> None:
        index, counts = mark
        if "_guard" in vars(self):
            self._guard.counts = counts
        go_to(self, {"next_index": index})

    def _state_at(self, mark: tuple[int, tuple[int, int]]) -> Any:
        return {"next_index": mark[0]}

    def _before_last(self) -> Any:
        return None if self._last is None else {"next_index": self._last}

    def _place(self) -> Place:
        last = self._reader.last_of_part  # while elements are taken one by one, ``_next_index`` stands before them
        return Place(self._ds, self._next_index - 1 if last is None else last, is_exact=not self._has_gaps())

    def _get_next_index(self) -> int:
        return self._next_index

    def _set_next_index(self, index: int) -> None:
        self._restore({"next_index": index})

    def _has_gaps(self) -> bool:
        return self._is_sparse and not self._allow_nones

    def _pass_failed(self) -> bool:
        self._next_index += self._next_index == self._failed_index  # else a step behind this one has failed
        return True

    def _skip(self) -> None:
        if self._next_index == self._failed_index:
            self._next_index += 1
            return
        while self._next_index < self._length:
            try:
                missing = self._reader.take(self._next_index, 1)[0] is None and not self._allow_nones
            except Exception:
                missing = False
            self._next_index += 1
            if not missing:
                break
