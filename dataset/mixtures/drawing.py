"""Which component of a mixture of streams is next, and how often each one was drawn before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.errors import as_int
from gristmill.dataset.engine.draws import DELIVERED, ELEMENT, END, Draw
from gristmill.dataset.engine.stream import Cell, Pos
from gristmill.dataset.errors.context import add_error_context, with_error_context
from gristmill.dataset.mixtures.draw_counts import Aims, RunningCounts
from gristmill.dataset.mixtures.plans import Plan
from gristmill.dataset.mixtures.position import (
    DRAWN,
    ENDED,
    LAST,
    RESTARTED,
    MixturePos,
    count_entry,
)
from gristmill.dataset.mixtures.recorded import Places, Recorded

if TYPE_CHECKING:
    from gristmill.dataset.mixtures.stream import Mix

_BLOCK = 64  # entries of a log, besides one for each component, after which a new one begins


class _HeldShares(NamedTuple):
    """The shares of components at positions from ``start`` to ``stop``."""

    plan: Plan
    start: int
    stop: int
    num_ended: int  # components, by then
    aims: Aims


class Drawing:
    """The mutable part of a run of a mixture: its position and the next component."""

    def __init__(self, mix: Mix, cell: Cell) -> None:
        self.mix, self.cell = mix, cell
        self.base = base = mix.settled(cell.pos)
        self.log: list[Any] = []
        self.num = 0
        self.parts = [*base.parts]  # at the beginning of the run, or of the epoch of a component
        self.index, self.has_ended = base.num_asked, base.has_ended
        self.counts = None if base.counts is None else RunningCounts(base.counts)
        self.choices = cell.choices if mix.makes_choices else None
        # an element of the last turns has nothing to be counted but the index
        self.is_simple = False
        self._pauses = False  # the mixture ended here in an earlier run, and does not now
        self.record = None if self.choices is None else Recorded(mix, self.choices)
        self._asked: Recorded | None = None  # which was requested for the last turn
        # A plan, how many components have ended, and what is left of the plan without them.
        self._left: tuple[Plan, int, tuple[Plan, Places]] | None = None
        self._held: _HeldShares | None = None
        for i in range(len(self.parts)):
            mix.parent_in(i, base.counts)

    def begin_log(self) -> list[Any]:
        """Return the log, a new one if it has become long."""
        if self.num > _BLOCK + len(self.parts):
            self.base = self.mix.settled((self.base, self.log, self.num))
            self.log = []
            self.num = 0
        return self.log

    def begin_block(self) -> MixturePos:
        """Return the position before a block whose position is computed on demand."""
        if self.num:
            self.base = self.mix.settled((self.base, self.log, self.num))
            self.log, self.num = [], 0
        return self.base

    def end_block(self, base: MixturePos) -> None:
        """Continue after such a block."""
        cell = self.cell
        cell.is_counting = False
        self.base, self.index = base, base.num_asked
        cell.pos = base, self.log, 0

    # Which component is next.

    @property
    def in_blocks(self) -> bool:
        """True if the elements that follow are determined by the index and the own plan."""
        mix = self.mix
        return self.counts is None and not (mix.by or self.choices)

    def turns(self, num: int) -> Iterable[Any]:
        """Return up to ``num`` components that are next; an empty list if the mixture has ended."""
        if self.has_ended:
            return []
        mix = self.mix
        self.is_simple = False
        while True:
            self._asked = record = self.record
            if record is not None and (known := record.ask()) is not None:
                if known.name in mix.places:
                    return [mix.places[known.name]]
                if known.kind in (ELEMENT, DELIVERED):  # of a component that was dropped
                    self.index += 1
                if known.kind == END:
                    # More may follow under these weights: a replay makes a separate group of those.
                    self._pauses = bool(self._due(*self._without_ended(self._own), 1))
                    return []
                continue
            found = self._due(*self._without_ended(self._own), num)
            self.is_simple = self.counts is None
            if record is not None and found:
                return record.new(found)
            if record is not None:
                record.note(Draw(mix.own, None, END))
            return found

    def _due(self, plan: Plan, places: Places, num: int) -> Sequence[Any]:
        """Return the next components under a plan, at most ``num``."""
        if not places or (plan.end is not None and self.index >= plan.end):
            return []
        if self.mix.by is None:
            stop = self.index + num
            positions = range(self.index, stop if plan.end is None else min(stop, plan.end))
            components = plan.components(positions)
            if type(places) is range:  # all are there
                return components
            return [places[component] for component in components]
        aims = self._aims(plan, places)
        assert self.counts is not None
        return [self.counts.furthest_behind(aims)] if aims else []

    def _aims(self, plan: Plan, places: Places) -> Aims:
        """Return the components that are drawn from at the index, with their shares."""
        counts = self.counts
        assert counts is not None
        held, num_ended = self._held, len(counts.ended)
        is_held = held is not None and held.plan is plan and held.num_ended == num_ended
        if held is None or not (is_held and held.start <= self.index < held.stop):
            weights = zip(places, plan.weights(self.index), strict=True)
            pairs = [(i, weight) for i, weight in weights if weight and i is not None]
            total = sum([weight for _, weight in pairs])
            aims = [(i, weight * counts.whole // total) for i, weight in pairs]
            self._held = held = _HeldShares(
                plan, self.index, plan.weights_until(self.index), num_ended, aims
            )
        return held.aims

    @property
    def _own(self) -> tuple[Plan, Places]:
        """The plan of the mixture, and which component each of that is."""
        return self.mix.plan, range(len(self.parts))

    def _without_ended(self, planned: tuple[Plan, Places]) -> tuple[Plan, Places]:
        ended = None if self.counts is None or self.mix.stop != "all" else self.counts.ended
        if not ended:
            return planned
        plan, places = planned
        left = self._left
        if left is None or left[0] is not plan or left[1] != len(ended):
            kept = [i for i, place in enumerate(places) if place not in ended]
            found = plan.only([plan.names[i] for i in kept]), [places[i] for i in kept]
            self._left = left = plan, len(ended), found
        return left[2]

    # What has happened.

    def draw(self, i: int, x: object, part: Pos) -> bool:
        """Count an element; return true if it is dropped."""
        mix, length, aims = self.mix, 1, None
        if mix.by is not None:
            try:
                length = as_int("the length of an element", mix.by(x), minimum=0)
            except Exception as error:
                add_error_context(error, mix)
                self.cell.past_failed = partial(self.pass_one, i, part)
                raise
            if length:
                then = None if self._asked is None else self._asked.then
                aims = self._aims(*self._without_ended(then or self._own))
        is_left_out = self._asked is not None and self._asked.drops()
        self.index += 1
        self._enter(i, part, length, DRAWN, aims)
        return is_left_out

    def pass_one(self, i: int, part: Pos) -> None:
        """Move past an element that failed."""
        self.index += 1
        self._enter(i, part, 1 if self.mix.by is None else 0, DRAWN, None)

    def end(self, i: int) -> None:
        """Component ``i`` has no more elements when its turn comes."""
        mix, part = self.mix, self.mix.cells[i].settle()
        if self._asked is not None:
            self._asked.end(i)
        if mix.stop == "first":
            self.index += 1
            self._enter(i, part, 0, LAST, None)
            self.has_ended = True
            return
        counts = self.counts
        assert counts is not None
        if mix.stop == "all":
            self._enter(i, part, 0, ENDED, None)
            return
        if i in counts.ended:
            self.cell.past_failed = partial(self._refuse, i)
            self._refuse(i)
        mix.open(i, counts.epochs[i] + 1)
        self.parts[i] = mix.parents[i].next_epoch(part)  # with the totals of faults
        self._enter(i, self.parts[i], 0, RESTARTED, None)

    def _refuse(self, i: int) -> None:
        reason = (
            f"an epoch of {self.mix.parents[i]} has no elements, so restarting it would never end"
        )
        raise with_error_context(ValueError(f"{self.mix} cannot continue: {reason}"), self.mix)

    def finish(self) -> None:
        """End the mixture: no component is next."""
        if not (self.has_ended or self._pauses):
            self.has_ended = True
            self._enter(None, None, 0, LAST, None)

    def _enter(self, i: int | None, part: Pos, length: int, kind: int, aims: Aims | None) -> None:
        if self.counts is not None:
            count_entry(self.counts, i, length, kind, aims)
        self.log.append((i, part, self.index, length, kind, aims))
        self.num += 1
        self.cell.pos = self.base, self.log, self.num
