"""The stages of ``tolerate``: of map datasets, and of streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import compress, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.cached import cached
from gristmill.core.indices import Indices, as_ints
from gristmill.core.seeds import RngPool
from gristmill.dataset.bases.items import item
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import some_of_them
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import ancestors, is_of_library, spec_of_first_parent
from gristmill.dataset.bases.origins import RecordKey, UpstreamElement
from gristmill.dataset.bases.traced import Tracing, computed
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.faults.attempts import Event, Outcome, current, events_here, noted_events
from gristmill.dataset.faults.budget import Fault, Tolerance, TolerateParameters, failed_again
from gristmill.dataset.faults.skip import SkipFailed
from gristmill.dataset.stages.prefetch import TracedStepwiseIterDataset

if TYPE_CHECKING:
    from gristmill.dataset.bases.map import MapDataset

T = TypeVar("T")

_MAX_DRAWS = 1000  # for an index of the same component
_MAX_REPLACEMENTS = 100  # in a row, where there is no limit


class TolerateMapDataset(BlockMapDataset[T]):
    """Returns the parent's elements; where one fails, ``None`` or the one at another index.

    Order: the parent's. State: the iterator that reads it has the counts of faults. Cost: nothing
    as long as nothing fails.
    """

    _element_spec = spec_of_first_parent
    _gm_keeps_indices = True
    _gm_parameters: TolerateParameters
    _gm_gives_outcomes = False  # a copy returns an ``Outcome`` where something failed

    def __init__(self, parent: object, parameters: TolerateParameters) -> None:
        super().__init__(parent)
        self._gm_parameters = parameters
        self._gm_drops = parameters.then == "skip"
        self._gm_tolerance = Tolerance(parameters, str(self))
        default = self._gm_default_seed
        self._rng_pool = RngPool(0 if default is None else int(default))

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        num, first = 0, 0
        while num < len(indices):
            error: Exception | None = None
            if current.known is None:
                steps = repeat(True, len(indices) - num)
                try:
                    elements = compress(self._gm_parents[0]._gm_items(indices[num:]), steps)
                    if not self._keeps_attempts:
                        yield from elements
                    else:
                        first = self._num_events()
                        for x in elements:
                            yield (x, x := None)[0]
                            first = self._num_events()
                    return
                except Exception as failed:
                    num, error = len(indices) - length_hint(steps), failed
            x = self.one(as_ints(indices)[num], error, first)
            num, error = num + 1, None
            if self._gm_gives_outcomes and self._reports:
                x = Outcome(x, self._reports.take())
            yield (x, x := None)[0]

    @cached
    def _keeps_attempts(self) -> bool:
        """True if a retry drops events of the parent's failed attempt."""
        return self._gm_tolerance.retries > 0 and any(
            [node._gm_tolerance is not None for node in ancestors(self._gm_parent)]
        )

    def _num_events(self) -> int:
        events = events_here(self._reports)
        return 0 if events is None else len(events)

    def one(self, index: int, error: Exception | None = None, first: int = 0) -> Any:
        """Return the element at ``index``, and note what failed.

        Args:
            index: the index.
            error: the error of the first attempt, if it was made already.
            first: how many events there were before that attempt.
        """
        tolerance, known, events = self._gm_tolerance, current.known, events_here(self._reports)
        key = tolerance.limits.number, index
        num_known = 0 if known is None else known.get(key, 0)
        num_failed, faults, element = 0, [], None
        for candidate in self._candidates(index):
            if num_failed < num_known:
                num_failed += 1
            else:
                attempt = partial(
                    self._attempt, candidate, first if error is not None else self._num_events()
                )
                element, error = tolerance.attempt(attempt, error)
                if error is None:
                    break
                if known is not None:
                    failed_again(error, self, tolerance.limits)
                    raise error
                num_failed += 1
                faults.append(Fault.of(error, self))
                error = None
            if not tolerance.replaces:
                element = None
                break
            self._check_replacements(num_failed, faults)
        if num_failed and events is not None:
            events.append(Event(*key, num_failed, tuple(faults)))
        return element

    def _attempt(self, index: int, num_events: int) -> Any:
        """Return the parent's element; of several attempts, the events of the last one count."""
        events = events_here(self._reports)
        if events is not None:
            del events[num_events:]
        return item(self._gm_parents[0], index)

    def _gm_made_of(self, index: int) -> Iterable[UpstreamElement | RecordKey]:
        if not self._gm_tolerance.replaces:
            return self._gm_origins(index)
        with noted_events() as events:
            self.one(index)
        key = self._gm_tolerance.limits.number, index
        num = sum([event.num for event in events if event[:2] == key])
        return [
            UpstreamElement(
                self._gm_parent, next(itertools.islice(self._candidates(index), num, None))
            )
        ]

    def _failing(self, index: int, num: int) -> Iterable[int]:
        """Return the indices that failed in place of ``index``."""
        return itertools.islice(self._candidates(index), num)

    def _check_replacements(self, num_failed: int, faults: list[Fault]) -> None:
        limits = self._gm_tolerance.limits
        if limits.max_consecutive is None:
            limits = limits.replaced(max_consecutive=_MAX_REPLACEMENTS)
        error = limits.replaced(max_rate=None, max_total=None).exceeded(
            num_failed, num_failed, num_failed, faults
        )
        if error is not None:
            raise error

    def _candidates(self, index: int) -> Iterator[int]:
        """Return ``index``, then others of its epoch and component, as the seed says."""
        yield index
        length = len(self)
        if length < 2:
            return
        start = index // length * length
        component, tried = _component(self._gm_parents[0], index), {index}
        rng = self._rng_pool.acquire_rng(index)
        num_draws = 0
        while len(tried) < length and num_draws < _MAX_DRAWS:
            num_draws += 1
            other = start + int(rng.integers(length))
            if other not in tried and _component(self._gm_parents[0], other) == component:
                tried.add(other)
                num_draws = 0
                yield other
        yield from (
            i
            for i in range(start, start + length)
            if i not in tried and _component(self._gm_parents[0], i) == component
        )


def _component(ds: MapDataset[Any], index: int) -> tuple[int, ...]:
    """Return the component of the element in every mixture on the way to its record."""
    path = []
    try:
        while is_of_library(ds):
            origins = [one for one in ds._gm_origins(index) if isinstance(one, UpstreamElement)][:2]
            if len(origins) != 1:
                break
            if len(ds._gm_parents) > 1:
                path.append(
                    next(i for i, parent in enumerate(ds._gm_parents) if parent is origins[0].ds)
                )
            ds, index = origins[0].ds, origins[0].index
    except Exception:
        pass  # the error is raised again where elements are computed
    return tuple(path)


class TolerateIterDataset(IterDataset[T]):
    """Returns the parent's elements, without those that fail.

    Order: the parent's. State: the parent's, how many elements were tried, and how many have
    failed. Cost: 0.2 µs per element.
    """

    _gm_drops = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = some_of_them
    _tracing: Tracing | None = None  # of a pipeline that is explained
    _gm_parameters: TolerateParameters

    def __init__(self, parent: object, parameters: TolerateParameters) -> None:
        super().__init__(parent)
        self._gm_parameters = parameters
        if parameters.then == "replace":
            raise ValueError(
                "then='replace' needs a MapDataset, which has elements at other indices: call"
                " tolerate before to_iter_dataset(), or use then='skip'"
            )
        self._gm_tolerance = Tolerance(parameters, str(self))

    def _gm_traced(self, tracing: Tracing) -> Any:
        outer, tracing.computes = tracing.computes, True
        elements = tracing.of(self._gm_parent).map(computed)
        tracing.computes = outer
        return TracedStepwiseIterDataset(
            tracing.over(self, _gm_parents=(elements,), _tracing=tracing)
        )

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(
            self, partial(SkipFailed, tolerance=self._gm_tolerance, tracing=self._tracing)
        )
