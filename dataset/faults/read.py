"""The stream that reads a map dataset in which stages tolerate faults, and counts these."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gristmill.core.cached import cached
from gristmill.core.errors import StateMismatchError
from gristmill.core.indices import Indices, as_ints
from gristmill.core.state import plain_counts, shown, state_count, state_field
from gristmill.dataset.ahead.kept import without_blocks
from gristmill.dataset.bases.items import item
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset, ReindexMapDataset
from gristmill.dataset.bases.node import DatasetNode, ancestors, spec_of_first_parent
from gristmill.dataset.bases.observing import Wrap
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.choices import Records
from gristmill.dataset.engine.read import Read
from gristmill.dataset.engine.stream import Cell, Pos
from gristmill.dataset.faults.attempts import Event, Outcome, Reports, current, noted_events
from gristmill.dataset.faults.attempts import Known as KnownAt
from gristmill.dataset.faults.budget import refuse
from gristmill.dataset.faults.counts import Choice, Count, Faults, Skipped, skipped_of
from gristmill.dataset.faults.known import total_in
from gristmill.dataset.slicing import PipelineEditor
from gristmill.dataset.stages.runs import RunsMapDataset


class _Copier(PipelineEditor):
    """Copies the stages that tolerate faults, and those downstream of them, with ``reports``."""

    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self._reports = reports

    def _replace(self, ds: DatasetNode) -> Any:
        if not tolerating(ds):
            return ds
        new = self._over_replaced(ds)
        if isinstance(new, BlockMapDataset):
            new._reports = self._reports
        return new

    def _copied(self, ds: DatasetNode, replaced: Callable[[Any], Any]) -> Any:
        return DatasetNode._gm_over(ds, replaced)  # a copy is enough, since no length changes


class OutcomesMapDataset(BlockMapDataset[Any]):
    """The parent's elements; an ``Outcome`` where something failed."""

    _element_spec = spec_of_first_parent
    _gm_keeps_indices = True
    _gm_adds_step = False
    _gm_stage_name = None  # in descriptions: the same elements
    _is_observed = False

    def __init__(self, parent: MapDataset[Any]) -> None:
        super().__init__(parent)
        self.stages = tolerating(parent)
        self.known = KnownOutcomes()
        self.reports = Reports()
        self._numbers = {stage._gm_tolerance.limits.number for stage in self.stages}

    def _gm_over(self, replaced: Callable[[Any], Any]) -> OutcomesMapDataset:
        new = OutcomesMapDataset(replaced(self._gm_parent))
        new.known = self.known  # an observer's copy, for the same stream
        return new

    def _gm_set_instrument(self, wrap: Wrap | None) -> None:
        super()._gm_set_instrument(wrap)
        self._is_observed = wrap is not None  # and every stage, which a copy would not be

    @cached
    def _has_outcomes(self) -> bool:
        return any([node._gm_gives_outcomes for node in tolerating(self._copy)])

    @cached
    def _copy(self) -> MapDataset[Any]:
        """Return the parent, which reports what fails.

        If only stages that return elements at other indices are downstream of the only one that
        tolerates faults, it returns each ``Outcome`` itself.
        """
        copy = _Copier(self.reports).replaced(self._gm_parent)
        last = copy
        while isinstance(last, ReindexMapDataset) and not last._gm_reads_blocks:
            last = last._gm_parent
        if [last] == tolerating(copy):
            last._gm_gives_outcomes = True
        return copy

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        if self._is_observed or (self.known.until and indices[0] < self.known.until):
            return map(self.outcome, as_ints(indices))
        elements = self._copy._gm_items(indices)
        return elements if self._has_outcomes else self._outcomes(elements)

    def _outcomes(self, elements: Iterator[Any]) -> Iterator[Any]:
        reports = self.reports
        try:
            for x in elements:
                if reports and (events := reports.take()):
                    x = Outcome(x, events)
                yield (x, x := None)[0]
        except BaseException:
            reports.take()  # of an element that is computed again
            raise

    def outcome(self, index: int) -> Any:
        """Return the element at ``index``, or an ``Outcome``."""
        outer, current.known = current.known, self.known.at(index)
        try:
            with noted_events() as events, without_blocks():
                element = item(self._gm_parent, index)
        finally:
            current.known = outer
        # else of a pipeline that a function uses
        events = [event for event in events if event.stage in self._numbers]
        return Outcome(element, events) if events else element


class KnownOutcomes:
    """The faults of elements that are computed again, by index."""

    __slots__ = ("_by_index", "until")

    def __init__(self) -> None:
        self.until = 0  # the outcomes at the indices below it are known
        self._by_index: Mapping[int, KnownAt] = {}

    def set(self, until: int, by_index: Mapping[int, KnownAt]) -> None:
        self._by_index, self.until = by_index, until

    def at(self, index: int) -> KnownAt | None:
        return self._by_index.get(index, {}) if index < self.until else None


def tolerating(ds: DatasetNode) -> list[Any]:
    """Return the map datasets upstream that tolerate faults, always in the same order."""
    return [
        node
        for node in ancestors(ds)
        if node._gm_tolerance is not None and isinstance(node, MapDataset)
    ]


class _At(NamedTuple):
    """A position: the next index, the number of indices in earlier epochs, and the counts of each
    stage that tolerates faults.
    """

    next_index: int
    before: int
    counts: tuple[Count, ...]

    @property
    def place(self) -> int:
        """The number of indices before the next one, in all epochs."""
        return self.before + self.next_index


class ReadOutcomes(Read):
    """The elements of ``ds``, whose faults count when the element is delivered or skipped."""

    makes_choices = counts_faults = True

    def __init__(self, stage: DatasetNode, ds: MapDataset[Any]) -> None:
        self.outcomes = OutcomesMapDataset(ds)
        super().__init__(stage, self.outcomes)
        self.numbers = ds.numbers if type(ds) is RunsMapDataset else None
        self.tolerances = [node._gm_tolerance for node in self.outcomes.stages]
        self._slots = {tolerance.limits.number: i for i, tolerance in enumerate(self.tolerances)}
        pairs = [(node, num) for node in self.outcomes.stages for num in (1, len(ds))]
        self._is_even = all([num_drawn(ds, node, num) == num for node, num in pairs])

    def _run(self, cell: Cell) -> Iterator[Any]:
        cell.end_block()
        index, before, counts = cell.pos
        inner = self.inner.at(index, cell)
        inner.go_to(index)  # a run that was left in the middle of a block has not settled it
        choices = self._replayed_choices(cell, _At(*cell.pos))
        replays = sys.maxsize if cell.choices is not None else self.outcomes.known.until
        skipping = {x.limits.number for x in self.tolerances if not x.replaces}
        num_passed = index
        is_settled = cell.wanted <= 1 and (cell.outer is None or cell.outer.wanted <= 1)
        if not is_settled:
            cell.compute_by(lambda: _At(inner.settle(), before, counts))
        try:
            for x in super()._run(inner):
                if type(x) is not Outcome and not replays:
                    if is_settled:
                        cell.pos = inner.settle(), before, counts
                        yield (x, x := None)[0]
                    elif inner.is_counting:  # quicker, and not the last one of a block
                        yield x
                    else:
                        yield (x, x := None)[0]
                else:
                    index = inner.settle()
                    start = num_passed if index <= replays else index - 1
                    for i in range(start, index):
                        events = x.events if i == index - 1 and type(x) is Outcome else []
                        counts = self._passed(cell, _At(i, before, counts), events, choices)
                    num_passed = index
                    cell.pos = index, before, counts
                    if type(x) is not Outcome:
                        yield (x, x := None)[0]
                    elif x.element is not None or (
                        self.with_nones and not skipping.intersection([e.stage for e in x.events])
                    ):
                        yield (x.element, x := None)[0]
        except Exception:
            cell.end_block()
            if cell.past_failed is None:
                at = _At(num_passed, before, counts)
                cell.past_failed = partial(self._pass, cell, at, choices)
            raise
        cell.end_block()
        index = inner.settle()
        for i in range(num_passed, min(index, replays)):
            counts = self._passed(cell, _At(i, before, counts), [], choices)
        cell.pos = index, before, counts

    def _replayed_choices(self, cell: Cell, at: _At) -> Mapping[int, Choice]:
        """Return the known faults from ``at`` on by index, noted for the dataset."""
        found: dict[int, Choice] = {}
        until = 0
        for record in () if cell.choices is None else cell.choices.to_come():
            if record.key == self.key:
                until = max(until, at.next_index + record.num)
                found.update({at.next_index + i: choice for i, choice in record.unusual})
        if until > at.next_index or self.outcomes.known.until:
            self.reader.stop()  # elements that were computed ahead may have other outcomes
            known_at = {i: self._known_at(choice) for i, choice in found.items()}
            self.outcomes.known.set(until, known_at)
        return found

    def _known_at(self, choice: Mapping[str, Any]) -> KnownAt:
        return {
            (self.tolerances[slot].limits.number, at): num for slot, at, num, *_ in choice["faults"]
        }

    def _passed(
        self, cell: Cell, at: _At, events: list[Event], choices: Mapping[int, Choice]
    ) -> tuple[Count, ...]:
        """Return the counts after the element at ``at``, in which ``events`` have happened.

        Raises:
            FaultBudgetError: a limit is exceeded.
        """
        if cell.choices is not None:
            cell.choices.ask(self.key)
        if at.next_index < self.outcomes.known.until:
            choice, is_new = choices.get(at.next_index), False
        else:
            choice, is_new = self._choice(at, events) if events else None, True
        counts = at.counts if choice is None else self._added(at, choice)
        if choice is None:
            return counts
        if is_new:
            try:
                self._check_budgets(at, counts)
            except Exception:
                cell.past_failed = partial(self._pass_exceeded, cell, at, counts, choice)
                raise
            self._report(at, choice)
        if cell.choices is not None:
            cell.choices.note(self.key, choice)
        return counts

    def _choice(self, at: _At, events: list[Event]) -> Choice:
        entries, skipped = [], []
        for event in events:
            slot = self._slots[event.stage]
            entries.append([slot, event.at, event.num, *([] if event.counts else [0])])
            if event.counts:
                skipped += [Skipped(at.place, fault, slot) for fault in event.faults]
        return Choice({"faults": entries}, tuple(skipped))

    def _added(self, at: _At, choice: Mapping[str, Any]) -> tuple[Count, ...]:
        """Return the counts with the faults of the element at ``at``."""
        counts = [*at.counts]
        nums = [0] * len(counts)
        for slot, _, num, *elsewhere in choice["faults"]:
            nums[slot] += 0 if elsewhere else num
            if elsewhere and counts[slot].row_at(at.place):
                counts[slot] = counts[slot]._replace(last=at.place)
        for slot, num in enumerate(nums):
            if num:
                counts[slot] = counts[slot].added(at.place, num, skipped_of(choice, slot))
        return tuple(counts)

    def _check_budgets(self, at: _At, counts: Sequence[Count]) -> None:
        for slot, (tolerance, count) in enumerate(zip(self.tolerances, counts, strict=True)):
            if count.total > at.counts[slot].total:
                limits = tolerance.limits
                if self.ctx.lender is not None:
                    limits = limits.replaced(max_rate=None, max_total=None)
                num_tried = self._num_tried(slot, at.place + 1)
                error = limits.exceeded(count.total, num_tried, count.row, count.last_faults)
                if error is not None:
                    refuse(error, limits)
                    raise error

    def _report(self, at: _At, choice: Choice) -> None:
        """Log faults, and report them to the observer."""
        if self.ctx.lender is not None or self.is_logged(at.place):
            return
        for slot, tolerance in enumerate(self.tolerances):
            skipped = skipped_of(choice, slot)
            if skipped:
                tolerance.write([x.fault for x in skipped])
                self.report_faults(tolerance.limits.name, len(skipped))

    def _pass_exceeded(self, cell: Cell, at: _At, counts: Sequence[Count], choice: Choice) -> None:
        """Move past an element whose faults exceed a limit, for ``skip_failed``."""
        self._report(at, choice)
        if cell.choices is not None:
            cell.choices.note(self.key, choice)
        without_row = tuple([count._replace(row=0) for count in counts])
        cell.pos = at._replace(next_index=at.next_index + 1, counts=without_row)

    def _pass(self, cell: Cell, at: _At, choices: Mapping[int, Choice]) -> None:
        """Move past an element that has failed with an error that is not tolerated."""
        stop, counts = self.inner.settle(), at.counts
        if cell.choices is not None:
            for i in range(at.next_index, stop):
                counts = self._passed(cell, at._replace(next_index=i, counts=counts), [], choices)
        cell.pos = at._replace(next_index=stop, counts=counts)

    def _num_tried(self, slot: int, stop: int) -> int:
        """Return how many elements of a stage the first ``stop`` elements are made of."""
        return stop if self._is_even else num_drawn(self.ds, self.outcomes.stages[slot], stop)

    def start(self) -> Pos:
        num = len(self.tolerances)
        return _At(0, 0, (Count(),) * num)

    def kind(self, index: int) -> tuple[Any, ...]:
        return ReadOutcomes, len(self.tolerances)

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        index, before, counts = end
        for record in [record for record in records if record.key == self.key]:
            for i, choice in record.unusual:
                counts = self._added(_At(index + i, before, counts), choice)
            index += record.num
        return _At(0, before + index, counts)

    def save(self, pos: Pos) -> Any:
        index, before, counts = pos
        state: dict[str, Any] = {"next_index": index, **({"before": before} if before else {})}
        if not self._is_even:
            state["tried"] = [self._num_tried(slot, before + index) for slot in range(len(counts))]
        state["faults"] = [self._counts(slot, count) for slot, count in enumerate(counts)]
        return state

    def faults_in(self, pos: Pos) -> Any:
        return pos[2]

    def _counts(self, slot: int, count: Count) -> Faults:
        length = max(1, self.length)
        rate = (1, 1) if self._is_even else (self._num_tried(slot, length), length)
        values, limits = {"total": count.total}, self.tolerances[slot].limits
        return Faults(values, limits, count.recent, self.key, rate)

    def load(self, state: Any) -> Pos:
        found, num = state_field(state, "faults", self), len(self.tolerances)
        tried = state.get("tried", [])
        if not isinstance(found, list) or len(found) != num:
            raise self._wrong(found)
        if not isinstance(tried, list) or plain_counts(tried) is None:
            raise StateMismatchError(
                f"tried in the state of {self} must be a list of non-negative integers, got"
                f" {shown(tried)}"
            )
        totals = [total_in(faults, self) for faults in found]
        index = super().load(state)
        before = state_count(state, "before", self) if "before" in state else 0
        expected = [self._num_tried(slot, before + index) for slot in range(num)]
        if not self._is_even and state.get("tried", expected) != expected:
            raise StateMismatchError(
                f"tried in the state of {self} must follow from next_index, got"
                f" {shown(state['tried'])}"
            )
        return _At(index, before, tuple(map(Count, totals)))

    def _wrong(self, found: object) -> Exception:
        return StateMismatchError(
            f"faults in the state of {self} must be a list of the counts of {len(self.tolerances)}"
            f" steps, got {shown(found)}"
        )

    def check_choice(self, choice: object) -> None:
        check_faults(choice, len(self.tolerances), self)

    def place(self, pos: Pos) -> Place:
        return super().place(pos[0])

    def index_of(self, pos: Pos) -> int:
        return int(pos[0])

    def at_index(self, index: int) -> Pos:
        return self.start()._replace(next_index=super().load({"next_index": index}))


def check_faults(choice: object, num_stages: int, owner: object) -> None:
    """Check a choice of a state.

    Raises:
        StateMismatchError: it is not one that ``ReadOutcomes`` over as many stages has recorded.
    """
    entries = choice.get("faults") if isinstance(choice, dict) else None
    for entry in entries if isinstance(entries, list) else [None]:
        is_entry = isinstance(entry, list) and len(entry) in (3, 4)
        numbers = plain_counts(entry) if is_entry else None
        if numbers is None or numbers[0] >= num_stages:
            raise StateMismatchError(
                f"a choice in the state of {owner} must be a list of [stage, index, number of"
                f" faults], got {shown(choice)}"
            )


def num_drawn(ds: MapDataset[Any], stage: object, num: int) -> int:
    """Return how many elements of ``stage`` the first ``num`` elements of ``ds`` are made of."""
    if ds is stage:
        return num
    parents = [
        (i, parent) for i, parent in enumerate(ds._gm_parents) if stage in tolerating(parent)
    ]
    return sum([num_drawn(parent, stage, ds._gm_num_drawn(num, i)) for i, parent in parents])
