"""Measures the threads that read ahead, and asks the controller of ``"auto"`` how many there are to
be.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gristmill.dataset.executors.auto import (
    Controller,
    Decision,
    Measured,
    is_window,
    kept,
    own_cpus,
)

if TYPE_CHECKING:
    from gristmill.dataset.ahead.budget import Budget, ReadingClient

_WAITING = 0.25  # of a CPU is what threads use at most that wait for storage


class ThreadTuning:
    """The measurements of one budget, and the decisions that follow from them.

    Args:
        most: the largest number of threads.
        budget: whose threads these are.
    """

    def __init__(self, most: int, budget: Budget) -> None:
        self.decisions: list[Decision] = []
        self._budget = weakref.proxy(budget)
        self._controller = Controller(1, most, min(math.ceil(own_cpus()), most), "threads")
        self._begin(time.perf_counter())

    @property
    def num(self) -> int:
        """Returns the largest number of threads that may read now."""
        return self._controller.num

    def most(self, readers: Iterable[ReadingClient]) -> int:
        """Return the largest number of threads that may read for ``readers``, some of which may
        have been given one.
        """
        given = [reader.most_threads for reader in readers if not reader.is_auto]
        return max([self.num, *given])

    def _begin(self, now: float) -> None:
        budget = self._budget
        self._began = now
        self._before = budget.num_drawn, budget.waited_seconds, budget.cpu_seconds
        self._busy, self._num_looks = 0.0, 0

    def restart(self) -> None:
        """Measure from now on, since threads begin to read something else."""
        with self._budget.lock:
            self._begin(time.perf_counter())

    def jump(self, seconds: float) -> None:
        """Allow the largest number, since an element took ``seconds`` with next to no CPU time,
        unless other elements have used a CPU: then it has waited for that.
        """
        now = time.perf_counter()
        with self._budget.lock:
            if self._budget.cpu_seconds - self._before[2] <= _WAITING * (now - self._began):
                reason = f"an element took {seconds * 1e3:.0f} ms with next to no CPU time"
                self._note(self._controller.jump(now, reason), now)

    def look(self, now: float) -> None:
        """Start threads, or let some end, if the controller says so. To be called whenever a
        consumer has taken a block.
        """
        with self._budget.lock:
            has_changed = self._decide(now)
        if has_changed:
            self._budget.start(self.num)

    def _decide(self, now: float) -> bool:
        budget = self._budget
        self._busy += budget.busy
        self._num_looks += 1
        seconds, num = now - self._began, budget.num_drawn - self._before[0]
        if not is_window(seconds, num):
            return False
        measured = Measured(
            now,
            num / seconds,
            min(1.0, (budget.waited_seconds - self._before[1]) / seconds),
            self._busy / self._num_looks,
            (budget.cpu_seconds - self._before[2]) / seconds,
        )
        self._begin(now)
        return self._note(self._controller.decide(measured), now)

    def _note(self, decision: Decision | None, now: float) -> bool:
        if decision is None:
            return False
        self.decisions = kept(self.decisions, decision)
        self._begin(now)
        self._budget.bound()
        return True
