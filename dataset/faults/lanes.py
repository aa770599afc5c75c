"""The error budgets of several lanes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from gristmill.core.errors import FaultBudgetError
from gristmill.dataset.faults.budget import Tolerance
from gristmill.dataset.faults.counts import FaultTotals, Skipped, fault_totals, latest
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
        report: Callable[[str, int], None],
        *,
        is_common: bool = False,
    ) -> None:
        self._tolerances = {tolerance.limits.number: tolerance for tolerance in tolerances}
        self._states = states
        self._report = report
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
            for key, totals in self._of_lane(lane, state):
                if totals.total >= self._known(key):
                    self._note(key, totals)

    def pass_skipped(self) -> None:
        """Restart after ``skip_failed``: report the faults of the output, without a limit."""
        for lane, state in enumerate(self._states()):
            for key, totals in self._of_lane(lane, state):
                if totals.total > self._known(key):
                    self._pass(key, totals)
        self.restart()

    def check(self, lane: int, source: object, state: Callable[[], Any]) -> Exception | None:
        """Count an element of ``lane`` that is about to be delivered; return the error if a limit
        is exceeded.

        Args:
            lane: whose element it is.
            source: states, that after the element among them.
            state: returns the state after the element.
        """
        if self.has_checked(lane, source):
            return None
        if type(source) is LinearStates or getattr(source, "have_same_faults", False):
            self._seen[lane] = source
        fresh = [
            (key, totals)
            for key, totals in self._of_lane(lane, state())
            if totals.total > self._known(key)
        ]
        if not fresh:
            return None
        error = self._exceeded()
        if error is not None:
            self._seen = {}
            return error
        for key, totals in fresh:
            self._pass(key, totals)
        return None

    def has_checked(self, lane: int, source: object) -> bool:
        """Return true if all faults of elements with states in ``source`` are counted."""
        return self._seen.get(lane, self) is source

    def _known(self, key: tuple[Any, ...]) -> int:
        return self._counts[key][1] if key in self._counts else 0

    def _exceeded(self) -> FaultBudgetError | None:
        sums: dict[str, list[int]] = {}
        recent: dict[str, list[Skipped]] = {}
        found = [
            pair for lane, state in enumerate(self._states()) for pair in self._of_lane(lane, state)
        ]
        # By key, so that of lanes that have it in common the one that is farthest counts.
        for key, totals in dict(sorted(found, key=lambda pair: pair[1].tried)).items():
            number = key[-1]
            total = sums.setdefault(number, [0, 0])
            total[0] += totals.total
            total[1] += totals.tried
            recent.setdefault(number, []).extend(totals.recent)
        for number, (total_faults, tried) in sums.items():
            limits = self._tolerances[number].limits.replaced(max_consecutive=None)
            error = limits.exceeded(total_faults, tried, 0, latest(recent[number]))
            if error is not None:
                return error
        return None

    def _of_lane(self, lane: int, state: object) -> Iterator[tuple[tuple[Any, ...], FaultTotals]]:
        for totals in fault_totals(state):
            limits = totals.faults.limits
            if limits is not None and limits.number in self._tolerances:
                key = 0 if self._is_common else lane, *totals.path, limits.number
                yield key, totals

    def _note(self, key: tuple[Any, ...], totals: FaultTotals) -> None:
        self._counts[key] = key[-1], totals.total, totals.tried

    def _pass(self, key: tuple[Any, ...], totals: FaultTotals) -> None:
        num = totals.total - max(self._known(key), self._written.get(key, 0))
        self._note(key, totals)
        if num > 0:
            self._written[key] = totals.total
            tolerance = self._tolerances[key[-1]]
            tolerance.write([skipped.fault for skipped in totals.recent[-num:]])
            self._report(tolerance.limits.name, num)


def lane_budgets(
    stream: object, tolerances: Iterable[Tolerance], *, is_common: bool = False
) -> LaneBudgets | None:
    """Return the budgets of a stream that delivers elements of lanes; ``None`` if nothing is
    tolerated. They refer weakly to ``stream``, which has ``states_now`` and ``report_faults``.
    """
    found, ref = [*tolerances], weakref.ref(stream)
    if found:
        return LaneBudgets(
            found, partial(_states_now, ref), partial(_report_faults, ref), is_common=is_common
        )
    return None


def _states_now(owner: Callable[[], Any]) -> list[Any]:
    stream = owner()
    return [] if stream is None else stream.states_now()


def _report_faults(owner: Callable[[], Any], stage: str, num: int) -> None:
    stream = owner()
    if stream is not None:
        stream.report_faults(stage, num)
