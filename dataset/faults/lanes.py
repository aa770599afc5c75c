"""The error budgets of several lanes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gristmill.core.errors import FaultBudgetError
from gristmill.dataset.faults.budget import Tolerance
from gristmill.dataset.faults.counts import FaultTotals, Skipped, fault_totals, latest
from gristmill.dataset.states.values import LinearStates


class LaneBudgets:
    """Applies the limits to what is delivered of several lanes, in that order.

    Args:
        stream: has ``states_now``, the state of every lane after what was delivered, and
            ``report_faults`` for its observer. It is referred to weakly.
        tolerances: of the stages upstream.
        is_common: true if every lane reads all elements, so that the faults of one are those of
            all.
    """

    def __init__(
        self, stream: Any, tolerances: Iterable[Tolerance], *, is_common: bool = False
    ) -> None:
        self._tolerances = {tolerance.limits.number: tolerance for tolerance in tolerances}
        self._stream = weakref.ref(stream)
        self._is_common = is_common
        # by lane, states that all have the counts that were read last
        self._seen: dict[int, Any] = {}
        # stage, total, tried; by lane and path
        self._counts: dict[tuple[Any, ...], tuple[str, int, int]] = {}
        self._written: dict[tuple[Any, ...], int] = {}

    def _all_totals(self) -> Iterator[tuple[tuple[Any, ...], FaultTotals]]:
        """Yield the counts of all lanes with their keys."""
        stream = self._stream()
        for lane, state in enumerate(() if stream is None else stream.states_now()):
            yield from self._of_lane(lane, state)

    def restart(self) -> None:
        """Begin where the lanes are now."""
        self._seen, self._counts = {}, {}
        for key, totals in self._all_totals():
            if totals.total >= self._known(key):
                self._note(key, totals)

    def pass_skipped(self) -> None:
        """Restart after ``skip_failed``: report the faults of the output, without a limit."""
        for key, totals in self._all_totals():
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
        found = [*self._all_totals()]
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
            if (stream := self._stream()) is not None:
                stream.report_faults(tolerance.limits.name, num)


def lane_budgets(
    stream: object, tolerances: Iterable[Tolerance], *, is_common: bool = False
) -> LaneBudgets | None:
    """Return the budgets of a stream of lanes; ``None`` if nothing is tolerated."""
    found = [*tolerances]
    return LaneBudgets(stream, found, is_common=is_common) if found else None
