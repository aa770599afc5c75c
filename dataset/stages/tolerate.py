"""``tolerate``: faults within a budget.

The guarantees, besides those of ``tolerance``:

1. What is passed over depends on the records alone. A map stage answers ``None``, or the element of another index, at any index,
   whoever asks; it counts nothing. The iterator that reads it counts: what fails while a block is computed goes beside the
   elements, and is booked when the element at that index is passed.
2. A stream passes over the outputs of the step before it that fail, each where that step left off: nothing is computed again to
   go past it, where the step can do that.
3. Without faults, a block costs one ``try`` more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gristmill.core.errors import as_int, as_seconds, check_word
from gristmill.core.indices import Indices, as_ints
from gristmill.core.seeds import RngPool
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, iterate, marked, return_to, state_at
from gristmill.dataset.bases.length import some_of_them
from gristmill.dataset.bases.map import BlockMapDataset, same_index
from gristmill.dataset.bases.node import is_of_library, spec_of_first_parent
from gristmill.dataset.bases.origins import Part
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.traced import Tracing, computed
from gristmill.dataset.stages.prefetch import TracedStepwiseIterDataset
from gristmill.dataset.states.values import copied
from gristmill.dataset.tolerance import (
    NUM_LAST,
    Again,
    Event,
    Fault,
    FaultLog,
    Faults,
    Limits,
    Passed,
    Tolerance,
    failed_again,
    keep_known,
    running,
)
from gristmill.dataset.watching import tell_of_faults

T = TypeVar("T")

_MAX_DRAWS = 1000  # for an index of the same component
_MAX_REPLACEMENTS = 100  # in a row, where there is no limit


class TolerateParameters(Parameters):
    errors: Any = aside()
    max_rate: float | None = aside(in_text=True)
    max_total: int | None = aside()
    max_consecutive: int | None = aside()
    retries: int = aside()
    backoff_seconds: float = aside()
    then: str
    log: Any = aside()

    def __post_init__(self) -> None:
        kinds = self.errors if isinstance(self.errors, tuple) else (self.errors,)
        if not kinds or not all([isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds]):
            raise TypeError(f"errors must be a subclass of Exception, or a tuple of them, got {shown(self.errors)}")
        check_word("then", self.then, "skip", "replace")
        if self.max_rate is not None:
            if isinstance(self.max_rate, bool | str) or not hasattr(self.max_rate, "__float__"):
                raise TypeError(f"max_rate must be a number or None, got {shown(self.max_rate)}")
            if not 0 <= float(self.max_rate) <= 1:
                raise ValueError(f"max_rate must be in [0, 1], got {self.max_rate}")
            self._replace(max_rate=float(self.max_rate))
        for name in ("max_total", "max_consecutive"):
            if getattr(self, name) is not None:
                self._replace(**{name: as_int(name, getattr(self, name), minimum=0)})
        if not (self.log is None or isinstance(self.log, str) or hasattr(self.log, "__fspath__") or hasattr(self.log, "write")):
            raise TypeError(f"log must be a path, a file open for text, or None, got {shown(self.log)}")
        self._replace(
            errors=kinds,
            retries=as_int("retries", self.retries, minimum=0),
            backoff_seconds=as_seconds("backoff_seconds", self.backoff_seconds),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "log": None if hasattr(self.log, "write") else self.log}  # an open file stays here

    def tolerance_of(self, stage: Any) -> Tolerance:
        limits = Limits(Tolerance.new_number(), str(stage), self.max_rate, self.max_total, self.max_consecutive)
        return Tolerance(self.errors, limits, self.retries, self.backoff_seconds, self.then == "replace", self.log)


class TolerateMapDataset(BlockMapDataset[T]):
    """The parent's elements; ``None``, or the one at another index, where that fails.

    Order: the parent's. State: of whoever iterates, the counts of faults. Cost: a ``try`` for a block.
    """

    _element_spec = spec_of_first_parent
    _origins = same_index
    _parameters: TolerateParameters

    def __init__(
        self,
        parent: Any,
        errors: Any,
        max_rate: float | None,
        max_total: int | None,
        max_consecutive: int | None,
        retries: int,
        backoff_seconds: float,
        then: str,
        log: Any,
    ) -> None:
        super().__init__(parent)
        given = (errors, max_rate, max_total, max_consecutive, retries, backoff_seconds, then, log)
        self._parameters = TolerateParameters(*given)
        self._drops = self._parameters.then == "skip"
        self._tolerance = self._parameters.tolerance_of(self)
        default = self._default_seed
        self._rng_pool = RngPool(0 if default is None else int(default))

    def _block(self, indices: Indices) -> list[Any]:
        if running.known is not None:
            return [self._one(i) for i in as_ints(indices)]
        events = running.events
        num_events = 0 if events is None else len(events)
        try:
            return self._parents[0]._block(indices)
        except Exception as error:
            if events is not None:
                del events[num_events:]
            return [self._one(i, error if len(indices) == 1 else None) for i in as_ints(indices)]

    def _one(self, index: int, error: Exception | None = None) -> Any:
        tolerance, known, events = self._tolerance, running.known, running.events
        key = tolerance.limits.number, index
        num_known = 0 if known is None else known.get(key, 0)
        num_failed, faults = 0, []
        for candidate in self._candidates(index):
            if num_failed < num_known:
                num_failed += 1
            else:
                element, error = tolerance.attempt(lambda i=candidate: self._parents[0]._block([i])[0], error)
                if error is None:
                    break
                if known is not None:
                    failed_again(error, self)
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

    def _made_of(self, index: int) -> Iterable[Part]:
        if not self._tolerance.replaces:
            return self._origins(index)
        events: list[Event] = []
        outer, running.events = running.events, events
        try:
            self._one(index)
        finally:
            running.events = outer
        key = self._tolerance.limits.number, index
        num = sum([event.num for event in events if event[:2] == key])
        return [Part(self._parent, next(itertools.islice(self._candidates(index), num, None)))]

    def _failing(self, index: int, num: int) -> Iterable[int]:
        """Where the ``num`` elements were that were passed over for the one at ``index``."""
        return itertools.islice(self._candidates(index), num)

    def _check_replacements(self, num_failed: int, faults: list[Fault]) -> None:
        limits = self._tolerance.limits
        if limits.max_consecutive is None:
            limits = limits.replaced(max_consecutive=_MAX_REPLACEMENTS)
        error = limits.replaced(max_rate=None, max_total=None).excess(num_failed, num_failed, num_failed, faults)
        if error is not None:
            raise error

    def _candidates(self, index: int) -> Iterator[int]:
        """``index``, then others of its epoch and component, drawn from the seed and it."""
        yield index
        length = len(self)
        if length < 2:
            return
        start = index // length * length
        component, tried = _component(self._parents[0], index), {index}
        rng = self._rng_pool.acquire_rng(index)
        num_draws = 0
        while len(tried) < length and num_draws < _MAX_DRAWS:
            num_draws += 1
            other = start + int(rng.integers(length))
            if other not in tried and _component(self._parents[0], other) == component:
                tried.add(other)
                num_draws = 0
                yield other
        yield from (i for i in range(start, start + length) if i not in tried and _component(self._parents[0], i) == component)


def _component(ds: Any, index: int) -> tuple[int, ...]:
    """Which component of every mixture on the way to the record an element is of."""
    path = []
    try:
        while is_of_library(ds):
            origins = [one for one in ds._origins(index) if isinstance(one, Part)][:2]
            if len(origins) != 1:
                break
            if len(ds.parents) > 1:
                path.append(next(i for i, parent in enumerate(ds.parents) if parent is origins[0].ds))
            ds, index = origins[0].ds, origins[0].index
    except Exception:
        pass  # it comes again where elements are computed
    return tuple(path)


class TolerateIterDataset(IterDataset[T]):
    """The parent's elements, but those that fail.

    Order: the parent's. State: the parent's, how many were tried, and how many have failed. Cost: a ``try`` for a block.
    """

    _drops = True
    _element_spec = spec_of_first_parent
    _num_elements = some_of_them
    _tracing: Tracing | None = None  # in a twin
    _parameters: TolerateParameters

    def __init__(
        self,
        parent: Any,
        errors: Any,
        max_rate: float | None,
        max_total: int | None,
        max_consecutive: int | None,
        retries: int,
        backoff_seconds: float,
        then: str,
        log: Any,
    ) -> None:
        super().__init__(parent)
        given = (errors, max_rate, max_total, max_consecutive, retries, backoff_seconds, then, log)
        self._parameters = TolerateParameters(*given)
        if self._parameters.then == "replace":
            raise ValueError(
                "then='replace' needs a MapDataset, which has elements at other indices: call tolerate before "
                "to_iter_dataset(), or use then='skip'"
            )
        self._tolerance = self._parameters.tolerance_of(self)

    def _traced(self, tracing: Tracing) -> Any:
        outer, tracing.computes = tracing.computes, True
        elements = tracing.of(self._parent).map(computed)
        tracing.computes = outer
        return TracedStepwiseIterDataset(tracing.over(self, _parents=(elements,), _tracing=tracing))

    def __iter__(self) -> DatasetIterator[T]:
        it: DatasetIterator[Any] = iterate(self._parent)
        if self._tracing is None:
            return TolerateDatasetIterator(it, self._parameters, self._tolerance)
        return TracedTolerateIterator(it, self._parameters, self._tolerance, self._tracing)


class TolerateDatasetIterator(BlockIterator[T]):
    _flow = "dropping"
    _stays_on_error = True
    _counts_faults = True

    def __init__(self, parent: DatasetIterator[Any], parameters: Parameters, tolerance: Tolerance) -> None:
        super().__init__(parent)
        self._source = parent
        self._parameters = parameters
        self._tolerance = tolerance
        self._tried = 0  # outputs of the parent
        self._total = 0  # of them, that have failed
        self._in_row = 0
        self._recent: tuple[Passed, ...] = ()
        self._log = FaultLog()
        self._again = Again()
        self._written = -1
        self._has_raised = False  # the last attempt ended here

    def _take(self, n: int) -> list[Any]:
        source, taken = self._source, []  # type: Any, list[Any]
        began = before, _, _ = marked(source), self._tried, self._total
        if self._tried >= self._again.until and (n == 1 or not source._reads_once):
            try:
                elements: list[Any] = source._take(n)
            except Exception as error:
                if n == 1:
                    taken = self._take_one(before, error)
                    self._last = began if taken else self._last
                    return taken
                if before is None:
                    raise
                return_to(source, before)
            else:
                self._tried += len(elements)
                if elements:
                    self._in_row = 0
                    self._last = began
                return elements
        while len(taken) < n:
            element = self._take_one(marked(source))
            if not element:
                break
            taken += element
        if taken:
            self._last = began
        return taken

    def _before_last(self) -> Any:
        return None if self._last is None else self._state_at(self._last)

    def _state_at(self, mark: Any) -> Any:
        before, tried, total, *_ = mark
        return {"parent": state_at(self._source, before), "tried": tried, "faults": [{"total": total}]}

    def _passed(self, num: int) -> None:
        self._tried += num
        if num:
            self._in_row = 0

    def _take_one(self, before: Any, failed: Exception | None = None) -> list[Any]:
        """The next element, where the parent is at ``before``; or has failed there, with that."""
        start: Any = None
        source, again = self._source, self._again
        try:
            while True:
                if self._tried < again.until and self._tried in again.over:
                    start = start or self._mark()
                    self._note_known()
                    put_back = source._kept_knowledge()
                    source.set_state(keep_known(copied(again.over[self._tried][0][1]), source.get_state()))
                    put_back()
                    self._count(None)
                    before = marked(source)
                    continue
                element, error = self._attempt(before, failed)
                if error is None:
                    self._passed(len(element))
                    return element
                start = start or (before, *self._mark()[1:])
                if self._tried < again.until:
                    failed_again(error, self)
                    raise error
                self._judge(error)
                if before is None:
                    raise error
                if not source._pass_failed():
                    return_to(source, before)
                    source._skip()
                self._count(error)
                before, failed = marked(source), None
        except BaseException:
            if start is not None:
                self._return_to(start)
            self._has_raised = True
            raise

    def _pass_failed(self) -> bool:
        return not self._has_raised  # else a step behind this one has failed, with what it had from here

    def _attempt(self, before: Any, failed: Exception | None) -> tuple[Any, Exception | None]:
        has_failed = failed is not None

        def take() -> list[Any]:
            nonlocal has_failed
            if has_failed:
                return_to(self._source, before)
            has_failed = True
            return self._source._take(1)

        try:
            return self._tolerance.attempt(take, failed)
        except BaseException:
            return_to(self._source, before)
            raise

    def _note_known(self) -> None:
        """Called before skipping an element that failed before the state was taken."""

    def _judge(self, error: Exception) -> None:
        fault = Fault.of(error, self._source)
        limits = self._tolerance.limits
        if self._ctx.lender is not None:
            limits = limits.replaced(max_rate=None, max_total=None)
        last = [*[passed.fault for passed in self._recent], fault]
        excess = limits.excess(self._total + 1, self._tried + 1, self._in_row + 1, last)
        if excess is not None:
            raise excess from error

    def _count(self, error: Exception | None) -> None:
        """Counts that the parent is behind what has failed."""
        after = self._source.get_state()
        if error is not None:
            fault = Fault.of(error, self._source)
            recent = self._recent if self._in_row else self._recent[-NUM_LAST + 1 :]
            self._recent = (*recent, Passed(self._tried, [0, after], fault))
            if self._ctx.lender is None and self._tried > self._written:
                self._written = self._tried
                self._tolerance.write([fault])
                tell_of_faults(self, self._tolerance.limits.name, 1)
        self._log.add(self._tried, [0, after])
        self._tried, self._total, self._in_row = self._tried + 1, self._total + 1, self._in_row + 1

    def get_state(self) -> Any:
        counts: dict[str, Any] = {"total": self._total}
        until = self._again.until
        if self._tried < until:
            over = self._log.between(self._tried, until)
            counts["passed"] = {"until": until, "tried": until, "total": self._total + len(over), "over": copied(over)}
        faults = Faults(counts, self._tolerance.limits, self._recent, self._log)
        return {"parent": self._source.get_state(), "tried": self._tried, "faults": [faults]}

    def _restore(self, state: Any) -> None:
        tried, found = state_count(state, "tried", self), state_field(state, "faults", self)
        total, again = Again.parse(found[0] if isinstance(found, list) and len(found) == 1 else found, self)
        for entries in again.over.values():
            for _, after in entries:
                self._source.set_state(copied(after))  # which refuses what is none
        self._source.set_state(state_field(state, "parent", self))
        self._tried, self._total, self._in_row, self._recent, self._again = tried, total, 0, (), again
        self._log = FaultLog()
        for place, entries in again.over.items():
            for entry in entries:
                self._log.add(place, entry)

    def _mark(self) -> Any:
        return marked(self._source), self._tried, self._total, self._in_row, self._recent

    def _return_to(self, mark: Any) -> None:
        source, self._tried, self._total, self._in_row, self._recent = mark
        self._has_raised = False
        return_to(self._source, source)
        self._log.cut(max(self._again.until, self._tried))

    def _kept_knowledge(self) -> Callable[[], None]:
        put_back_upstream, again, log = super()._kept_knowledge(), self._again, self._log

        def put_back() -> None:
            put_back_upstream()
            self._again, self._log = again, log

        return put_back

    def _skip(self) -> None:
        before = marked(self._source)
        try:
            num = len(self._source._take(1))
        except Exception as error:
            if not self._source._pass_failed():
                return_to(self._source, before)
                self._source._skip()
            self._count(error)
        else:
            self._passed(num)
        self._in_row = 0


class TracedTolerateIterator(TolerateDatasetIterator[T]):
    """The iterator of a twin, which notes what is skipped."""

    def __init__(self, parent: DatasetIterator[Any], parameters: Parameters, tolerance: Tolerance, tracing: Tracing) -> None:
        super().__init__(parent, parameters, tolerance)
        self._tracing = tracing

    def _count(self, error: Exception | None) -> None:
        if error is not None:
            self._tracing.note_fault(error)
        super()._count(error)

    def _note_known(self) -> None:
        try:
            # An element that does not fail this time is skipped, too.
            for x in self._source._take(1):
                self._tracing.note_faults(x.rows)
        except Exception as error:
            self._tracing.note_fault(error)
