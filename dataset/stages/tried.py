"""How an iterator of a map dataset books what ``tolerate`` has passed over: the first and second guarantee of ``tolerate``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.core.cached import cached
from gristmill.core.errors import StateMismatchError
from gristmill.core.indices import Indices, as_ints
from gristmill.core.state import plain_counts, shown, state_field
from gristmill.dataset.bases.items import begun_when_needed, item
from gristmill.dataset.bases.iterator import DatasetIterator, state_at
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset
from gristmill.dataset.bases.next_index import move_to_index, next_index_of
from gristmill.dataset.bases.node import DatasetNode, ancestors, spec_of_first_parent, tolerance_of
from gristmill.dataset.bases.observing import Wrap
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.slicing import PipelineEditor
from gristmill.dataset.stages.filter_guard import NONE_SEEN
from gristmill.dataset.stages.prefetch import PrefetchDatasetIterator, PrefetchParameters
from gristmill.dataset.states.values import copied
from gristmill.dataset.tolerance import NUM_LAST, Again, Event, FaultLog, Faults, Passed, running
from gristmill.dataset.watching import tell_of_faults


class Tried:
    """An element in whose making something has failed.

    Args:
        index: of the element.
        element: what there is.
        events: what has failed.
        is_left_out: there is none, since it was passed over.
    """

    __slots__ = ("element", "events", "index", "is_left_out")
    stands_for_another = True

    def __init__(self, index: int, element: Any, events: list[Event], is_left_out: bool) -> None:
        self.index, self.element, self.events, self.is_left_out = index, element, events, is_left_out


class Known:
    """What the iterator of a ``TriedMapDataset`` and this tell each other."""

    __slots__ = ("by_index", "has_more", "until")

    def __init__(self) -> None:
        self.until = 0  # before this index the outcomes are known
        self.by_index: Mapping[int, Mapping[tuple[str, int], int]] = {}  # what fails there, and how often
        self.has_more = False  # something has failed


class _Without(PipelineEditor):
    """Leaves steps out of a pipeline."""

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        self._steps = {id(step) for step in steps}

    def _replace(self, ds: Any) -> Any:
        if id(ds) in self._steps:
            return self.replaced(ds.parents[0])
        return ds if not tolerating(ds) else self._over_replaced(ds)

    def _copied(self, ds: Any, replaced: Callable[[Any], Any]) -> Any:
        return DatasetNode._over(ds, replaced)  # a copy will do, since no length is another one


class TriedMapDataset(BlockMapDataset[Any]):
    """The parent's elements, a ``Tried`` where something has failed in the making: for the iterator that reads it alone.

    Order: the parent's. Cost: nothing worth mention.
    """

    _element_spec = spec_of_first_parent
    _keeps_indices = True
    _adds_step = False

    def __init__(self, parent: MapDataset[Any]) -> None:
        super().__init__(parent)
        self.stages = tolerating(parent)
        self.known = Known()
        self._bare = _Without(self.stages).replaced(parent)  # quicker, as long as nothing fails
        self._leaves_out = {tolerance_of(stage).limits.number for stage in self.stages if not tolerance_of(stage).replaces}

    def _over(self, replaced: Callable[[Any], Any]) -> TriedMapDataset:
        new = TriedMapDataset(replaced(self._parent))
        new.known = self.known  # an observer's, for the same iterator
        return new

    def _set_instrument(self, wrap: Wrap | None) -> None:
        super()._set_instrument(wrap)
        if wrap is not None:
            self._least_bare = sys.maxsize  # who looks sees every step
        else:
            vars(self).pop("_least_bare", None)

    @cached
    def _least_bare(self) -> int:
        """Of so many elements and more, no step is asked alone: one that is the last can be told later what has failed."""
        return 1 if self.stages == [self._parents[0]] else sys.maxsize if self._draws_once else 2

    def _items(self, indices: Indices) -> Iterator[Any]:
        num, until = 0, self.known.until
        while num < len(indices):
            failed: Exception | None = None
            if len(indices) - num >= self._least_bare and not (until and indices[num] < until):
                try:
                    for x in begun_when_needed(self._bare, indices[num:]):
                        num += 1
                        yield (x, x := None)[0]
                    return
                except Exception as error:
                    failed = error
            x = self._tried(as_ints(indices)[num], failed)
            num, failed = num + 1, None
            yield (x, x := None)[0]

    def _tried(self, index: int, failed: Exception | None) -> Any:
        """Returns the element, or a ``Tried`` if something failed; ``failed`` is an error that was raised already."""
        known, parent = self.known, self._parents[0]  # type: Known, Any
        outer, events = (running.events, running.known), []  # type: tuple[Any, Any], list[Event]
        running.events = events
        if known.until and index < known.until:
            running.known = known.by_index.get(index, {})
        try:
            if failed is not None and self.stages == [parent]:
                element = parent._one(index, failed)
            else:
                element = item(parent, index)
        finally:
            running.events, running.known = outer
        if not events:
            return element
        known.has_more = True
        is_left_out = element is None and any([event.number in self._leaves_out for event in events])
        return Tried(index, element, events, is_left_out)


def tried(ds: MapDataset[Any], parameters: PrefetchParameters) -> TriedDatasetIterator:
    """An iterator of ``ds``, in which steps tolerate faults."""
    observed = TriedMapDataset(ds)
    source: DatasetIterator[Any] = PrefetchDatasetIterator(observed, parameters)
    return TriedDatasetIterator(source, observed, keeps_nones=parameters.allow_nones)


def tolerating(ds: Any) -> list[Any]:
    """The steps of map datasets upstream that tolerate faults, the same order for all copies of ``ds``."""
    return [node for node in ancestors(ds) if tolerance_of(node) is not None and isinstance(node, MapDataset)]


class TriedDatasetIterator(PassingIterator[Any]):
    """Books what has failed in the making of the elements that it passes."""

    _flow = "dropping"
    _stays_on_error = True
    _closes_anytime = True
    _counts_faults = True

    def __init__(self, parent: DatasetIterator[Any], ds: TriedMapDataset, *, keeps_nones: bool) -> None:
        super().__init__(parent)
        self._ds, self._known = ds, ds.known
        self._keeps_nones = keeps_nones
        self._stages = [tolerance_of(stage) for stage in ds.stages]
        self._slots = {tolerance.limits.number: i for i, tolerance in enumerate(self._stages)}
        self._is_even = all([num_drawn(ds, stage, num) == num for stage in ds.stages for num in (1, len(ds))])
        num = len(self._stages)
        # Of every step: the total, how many in a row up to which index, and the last ones.
        self._totals: tuple[int, ...] = (0,) * num
        self._rows: tuple[tuple[int, int], ...] = ((0, -1),) * num
        self._recent: tuple[tuple[Passed, ...], ...] = ((),) * num
        self._logs = [FaultLog() for _ in range(num)]
        self._again = [Again() for _ in range(num)]
        self._written = -1

    def _take(self, n: int) -> list[Any]:
        source: Any = self._source
        index = source._next_index
        elements = source._take(n)
        if not self._known.has_more:
            if elements:
                self._last = index, self._totals
            return elements
        before = (index, source._mark()[1]), self._totals, self._rows, self._recent
        taken: list[Any] = []
        try:
            while elements:
                taken += self._booked(elements)
                if len(taken) == n:
                    break
                elements = self._source._take(n - len(taken))
        except BaseException:
            if n == 1:
                self._return_to(before)
            raise
        if taken:
            self._last = index, before[1]
        return taken

    def _before_last(self) -> Any:
        if self._last is None:
            return None
        index, totals = self._last
        return self._state_at(((index, NONE_SEEN), totals))

    def _state_at(self, mark: Any) -> Any:
        start, totals, *_ = mark
        state = state_at(self._source, start)
        return {**self._numbers(state), "faults": [{"total": total} for total in totals]}

    def _numbers(self, state: Any) -> Any:
        """``state``, with how many elements each step has tried up to there, if that is no other number."""
        if not self._is_even:
            state["tried"] = [self._tried(slot, state["next_index"]) for slot in range(len(self._stages))]
        return state

    def _booked(self, elements: list[Any]) -> list[Any]:
        kept = []
        for x in elements:
            if type(x) is not Tried:
                kept.append(x)
                continue
            for event in x.events:
                self._book(x.index, event)
            if not x.is_left_out and (x.element is not None or self._keeps_nones):
                kept.append(x.element)
        return kept

    def _skip(self) -> None:
        try:
            elements = self._source._take(1)
        except Exception:
            self._source._skip()
            return
        for x in elements:
            for event in x.events if type(x) is Tried else ():
                self._book(x.index, event, judges=False)
        self._rows = ((0, -1),) * len(self._stages)

    def _book(self, index: int, event: Event, *, judges: bool = True) -> None:
        slot = self._slots[event.number]
        tolerance = self._stages[slot]
        total = self._totals[slot] + event.num
        num_in_row, last = self._rows[slot]
        row = (num_in_row if last in (index, index - 1) else 0) + event.num, index
        fresh = tuple([Passed(index, [event.at, event.num], fault) for fault in event.faults])
        recent = (self._recent[slot] if row[0] > event.num else self._recent[slot][-NUM_LAST:]) + fresh
        if index >= self._again[slot].until:
            limits = tolerance.limits if self._ctx.lender is None else tolerance.limits.replaced(max_rate=None, max_total=None)
            error = limits.excess(total, self._tried(slot, index + 1), row[0], [passed.fault for passed in recent])
            if judges and error is not None:
                raise error
            if index > self._written and self._ctx.lender is None:
                tolerance.write(event.faults)
                tell_of_faults(self, tolerance.limits.name, event.num)
        self._totals = _with(self._totals, slot, total)
        self._rows = _with(self._rows, slot, row)
        self._recent = _with(self._recent, slot, recent)
        self._logs[slot].add(index, [event.at, event.num])
        if self._ctx.lender is None and slot == len(self._stages) - 1:
            self._written = max(self._written, index)

    def _tried(self, slot: int, stop: int) -> int:
        return stop if self._is_even else num_drawn(self._ds, self._ds.stages[slot], stop)

    def get_state(self) -> Any:
        state = self._numbers(self._source.get_state())
        index = state["next_index"]
        state["faults"] = [self._counts(slot, index) for slot in range(len(self._stages))]
        return state

    def _counts(self, slot: int, index: int) -> Faults:
        counts: dict[str, Any] = {"total": self._totals[slot]}
        until, log = self._again[slot].until, self._logs[slot]
        if index < until:
            over = log.between(index, until)
            total = counts["total"] + sum([entry[2] for entry in over])
            counts["passed"] = {"until": until, "tried": self._tried(slot, until), "total": total, "over": copied(over)}
        return Faults(counts, self._stages[slot].limits, self._recent[slot], log)

    def _restore(self, state: Any) -> None:
        num = len(self._stages)
        found = state_field(state, "faults", self)
        if not isinstance(found, list) or len(found) != num:
            raise self._wrong(found)
        tried = state.get("tried", [])
        if not isinstance(tried, list) or plain_counts(tried) is None:
            raise StateMismatchError(f"tried in the state of {self} must be a list of non-negative integers, got {shown(tried)}")
        parsed = [Again.parse(faults, self) for faults in found]
        known: dict[int, dict[tuple[str, int], int]] = {}
        for tolerance, (_, again) in zip(self._stages, parsed, strict=True):
            for index, entries in again.over.items():
                for entry in entries:
                    if [type(x) for x in entry] != [int, int]:
                        raise self._wrong(found)
                    known.setdefault(index, {})[tolerance.limits.number, entry[0]] = entry[1]
        here = self._ds.known
        old = here.until, here.by_index
        here.until, here.by_index = max([again.until for _, again in parsed]), known
        try:
            self._source.set_state({key: value for key, value in state.items() if key not in ("faults", "tried")})
            index = next_index_of(self._source)
            if not self._is_even and state_field(state, "tried", self) != [self._tried(slot, index) for slot in range(num)]:
                raise StateMismatchError(f"tried in the state of {self} must follow from next_index, got {shown(state['tried'])}")
        except BaseException:
            here.until, here.by_index = old
            raise
        self._totals = tuple([total for total, _ in parsed])
        self._rows, self._recent = ((0, -1),) * num, ((),) * num
        self._again = [again for _, again in parsed]
        self._logs = [FaultLog() for _ in range(num)]
        for log, again in zip(self._logs, self._again, strict=True):
            for index, entries in again.over.items():
                for entry in entries:
                    log.add(index, entry)

    def _wrong(self, found: Any) -> Exception:
        return StateMismatchError(
            f"faults in the state of {self} must be a list of the counts of {len(self._stages)} steps, got {shown(found)}"
        )

    def _mark(self) -> Any:
        return self._source._mark(), self._totals, self._rows, self._recent

    def _return_to(self, mark: Any) -> None:
        source, self._totals, self._rows, self._recent = mark
        self._source._return_to(source)
        for log, again in zip(self._logs, self._again, strict=True):
            log.cut(max(again.until, next_index_of(self._source)))

    def _get_next_index(self) -> int:
        return next_index_of(self._source)

    def _set_next_index(self, index: int) -> None:
        move_to_index(self._source, index)

    def _kept_knowledge(self) -> Callable[[], None]:
        known, again, logs = self._ds.known, self._again, self._logs
        until, by_index = known.until, known.by_index

        def put_back() -> None:
            self._again, self._logs = again, logs
            known.until, known.by_index = until, by_index

        return put_back


def _with(values: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])


def num_drawn(ds: Any, stage: Any, num: int) -> int:
    """How many elements of ``stage``, upstream of ``ds``, its first ``num`` elements are made of."""
    if ds is stage:
        return num
    parents = [(i, parent) for i, parent in enumerate(ds.parents) if stage in tolerating(parent)]
    return sum([num_drawn(parent, stage, ds._num_drawn(num, i)) for i, parent in parents])
