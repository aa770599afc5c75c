"""The error budgets of several lanes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from gristmill.core.errors import FaultBudgetError
from gristmill.dataset.faults.budget import Tolerance
from gristmill.dataset.faults.counts import Skipped, Tally, latest, tallies
from gristmill.dataset.states.values import LinearStates


class LaneBudgets:
    """Applies the limits to what is delivered of several lanes, in that order.

    Args:
        tolerances: of the stages upstream.
        states: returns the state of every lane after what was delivered.
        told: called with the name of a stage, and how many more elements it has skipped.
        is_common: true if every lane reads all elements, so that the faults of one are those of
            all.
    """

    def __init__(
        self,
        tolerances: Iterable[Tolerance],
        states: Callable[[], Iterable[Any]],
        told: Callable[[str, int], None],
        *,
        is_common: bool = False,
    ) -> None:
        self._tolerances = {tolerance.limits.number: tolerance for tolerance in tolerances}
        self._states = states
        self._told = told
        self._is_common = is_common
        # by lane, states that all have the counts that were read last
        self._seen: dict[int, Any] = {}
        # stage, total, tried; by lane and path
        self._counts: dict[tuple[Any, ...], tuple[str, int, int]] = {}
        self._written: dict[tuple[Any, ...], int] = {}

    def restart(self) -> None:
        """Begin where the lanes are now."""
        self._seen, self._counts = {}, {}
        for lane, state in enumerate(self._states()):
            for key, tally in self._of_lane(lane, state):
                if tally.total >= self._known(key):
                    self._note(key, tally)

    def pass_skipped(self) -> None:
        """As ``restart``, after ``skip_failed``: what failed in the output is reported, and no
        limit applies.
        """
        for lane, state in enumerate(self._states()):
            for key, tally in self._of_lane(lane, state):
                if tally.total > self._known(key):
                    self._pass(key, tally)
        self.restart()

    def judge(self, lane: int, source: Any, state: Callable[[], Any]) -> Exception | None:
        """Count an element that is about to be delivered.

        Args:
            lane: whose element it is.
            source: states, that after the element among them.
            state: returns the state after the element.

        Returns:
            The error if a limit is exceeded.
        """
        if self.has_judged(lane, source):
            return None
        if type(source) is LinearStates or getattr(source, "have_same_faults", False):
            self._seen[lane] = source
        fresh = [
            (key, tally)
            for key, tally in self._of_lane(lane, state())
            if tally.total > self._known(key)
        ]
        if not fresh:
            return None
        error = self._judge_all()
        if error is not None:
            self._seen = {}
            return error
        for key, tally in fresh:
            self._pass(key, tally)
        return None

    def has_judged(self, lane: int, source: Any) -> bool:
        """Return true if no element whose state is in ``source`` has faults that were not
        counted.
        """
        return self._seen.get(lane, self) is source

    def _known(self, key: tuple[Any, ...]) -> int:
        return self._counts[key][1] if key in self._counts else 0

    def _judge_all(self) -> FaultBudgetError | None:
        sums: dict[str, list[int]] = {}
        recent: dict[str, list[Skipped]] = {}
        found = [
            pair for lane, state in enumerate(self._states()) for pair in self._of_lane(lane, state)
        ]
        # By key, so that of lanes that have it in common the one that is farthest counts.
        for key, tally in dict(sorted(found, key=lambda pair: pair[1].tried)).items():
            number = key[-1]
            total = sums.setdefault(number, [0, 0])
            total[0] += tally.total
            total[1] += tally.tried
            recent.setdefault(number, []).extend(tally.recent)
        for number, (total_faults, tried) in sums.items():
            limits = self._tolerances[number].limits.replaced(max_consecutive=None)
            error = limits.excess(total_faults, tried, 0, latest(recent[number]))
            if error is not None:
                return error
        return None

    def _of_lane(self, lane: int, state: Any) -> Iterator[tuple[tuple[Any, ...], Tally]]:
        for tally in tallies(state):
            limits = tally.faults.limits
            if limits is not None and limits.number in self._tolerances:
                key = 0 if self._is_common else lane, *tally.path, limits.number
                yield key, tally

    def _note(self, key: tuple[Any, ...], tally: Tally) -> None:
        self._counts[key] = key[-1], tally.total, tally.tried

    def _pass(self, key: tuple[Any, ...], tally: Tally) -> None:
        num = tally.total - max(self._known(key), self._written.get(key, 0))
        self._note(key, tally)
        if num > 0:
            self._written[key] = tally.total
            tolerance = self._tolerances[key[-1]]
            tolerance.write([skipped.fault for skipped in tally.recent[-num:]])
            self._told(tolerance.limits.name, num)


def lane_budgets(
    stream: Any, tolerances: Iterable[Tolerance], *, is_common: bool = False
) -> LaneBudgets | None:
    """Return the budgets of a stream that delivers elements of lanes; ``None`` if nothing is
    tolerated.

    Args:
        stream: has ``states_now``, and ``tell_faults`` for its observer. The budgets do not keep it
            alive.
        tolerances: of the stages upstream.
        is_common: see ``LaneBudgets``.
    """
    found, ref = [*tolerances], weakref.ref(stream)
    return (
        LaneBudgets(found, partial(_states_now, ref), partial(_tell, ref), is_common=is_common)
        if found
        else None
    )


def _states_now(owner: Callable[[], Any]) -> list[Any]:
    stream = owner()
    return [] if stream is None else stream.states_now()


def _tell(owner: Callable[[], Any], stage: str, num: int) -> None:
    stream = owner()
    if stream is not None:
        stream.tell_faults(stage, num)
