"""Measures what a running pool does, and asks the controller of ``"auto"`` for the number and
the kind of workers.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from gristmill.dataset.ahead.sizes import mean_bytes
from gristmill.dataset.executors.auto import (
    Controller,
    Decision,
    Measured,
    is_window,
    kept,
    own_cpus,
)

_log = logging.getLogger("gristmill")

_LOOK_SECONDS = 0.01  # between two looks at the workers
_SHORT_SECONDS = 0.5  # of a measurement whose result is clear, and of one without workers
_SETTLE_SECONDS = 2.0  # after a change, at most, until lanes deliver as they will,
_SETTLE_ELEMENTS = 16  # of each lane


class Tuning:
    """The measurements of one executor, and the decisions that follow from them.

    Args:
        least, most: the bounds of the number of workers.
        num: the number at the beginning.
        most_threads: see ``Controller``.
    """

    def __init__(self, least: int, most: int, num: int, most_threads: int = 0) -> None:
        self.decisions: list[Decision] = []
        self.is_on = True
        self._controller = Controller(least, most, num, most_threads=most_threads)
        self.restart()

    def restart(self) -> None:
        """Measure from now on, after another start."""
        self._is_settling = True  # a change has just been made
        self._has_begun = False  # the consumer is measured, since its first output
        self._have_moved = False  # lanes, since the last measurement began
        self._begin(time.monotonic())

    def _begin(self, now: float, lanes: Any = None) -> None:
        self._began = self._look_at = now
        self._num_before = 0 if lanes is None else lanes.num_delivered
        self._num_received = 0 if lanes is None else lanes.num_received
        self._cpu_before = None if lanes is None else lanes.cpu_seconds()
        self._waited_before = 0.0 if lanes is None else lanes.waited_seconds
        self._busy, self._num_looks = 0.0, 0

    def receive(self, lanes: Any, number: int, num: int) -> Decision | None:
        """Wait until a lane has something; return the change to make now, if there is one."""
        lane = lanes.lanes[number]
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._busy += lanes.busy()
            self._num_looks += 1
        lane.receive(num)
        if not lanes.is_settled:  # what is measured while lanes move says nothing
            self._measure_without(lanes, time.monotonic())
            return None
        if self._have_moved:
            self._have_moved = False
            self._begin(time.monotonic(), lanes)
            return None
        decision = self._look(lanes, lane, time.monotonic())
        if decision is not None:
            self._note(decision)
        return decision

    def refuse(self, num: int, error: Exception, *, of_kind: bool = False) -> None:
        """Take note that the last change could not be made.

        Args:
            num: how many workers there are.
            error: of the system.
            of_kind: true if it was a change of the kind.
        """
        reason = f"the system gave no more: {type(error).__name__}: {error}"
        decision = self._controller.refuse(time.monotonic(), num, reason, of_kind=of_kind)
        _log.warning('"auto" continues: %s', decision)
        self._note(decision)

    def _note(self, decision: Decision) -> None:
        self._is_settling = True
        self.decisions = kept(self.decisions, decision)

    def _measure_without(self, lanes: Any, now: float) -> None:
        """Measure the consumer, as long as it computes all lanes while the first workers start."""
        if self.decisions or not lanes.are_here:
            self._have_moved = True
        elif not self._has_begun:
            self._has_begun = True
            self._begin(now, lanes)
        elif (seconds := now - self._began) >= _SHORT_SECONDS:
            rate = (lanes.num_delivered - self._num_before) / seconds
            self._controller.begin(Measured(now, rate, 1.0, 1.0))

    def _look(self, lanes: Any, lane: Any, now: float) -> Decision | None:
        """Ask the controller, if this is a measurement."""
        seconds = now - self._began
        if seconds < _SHORT_SECONDS:
            return None
        if self._is_settling:
            self._settle(lanes, now, seconds)
            return None
        num = lanes.num_delivered - self._num_before
        rate = num / seconds
        if not (self._controller.is_clear(rate) or is_window(seconds, num)):
            return None
        measured = Measured(
            now,
            rate,
            max(0.0, lanes.waited_seconds - self._waited_before) / seconds,
            self._busy / self._num_looks if self._num_looks else 1.0,
            sent=rate * mean_bytes([fetched[0] for fetched in [*lane.ready][:1]]),
            load=self._load(lanes.cpu_seconds(), seconds),
        )
        self._begin(now, lanes)
        return self._controller.decide(measured)

    def _settle(self, lanes: Any, now: float, seconds: float) -> None:
        """Measure from when lanes deliver what was computed since a change. At first, they have
        elements of before, and workers read ahead less than they may. Until the consumer has taken
        the former, which may take long, nothing is computed, and the latter has not begun.
        """
        num = lanes.num_received - self._num_received
        is_over = seconds >= _SETTLE_SECONDS or num >= _SETTLE_ELEMENTS * len(lanes.lanes)
        waited = lanes.waited_seconds - self._waited_before
        if not num or (is_over and lanes.are_beginning and waited < seconds / 2):
            self._begin(now, lanes)
        elif is_over:
            self._is_settling = False
            self._begin(now, lanes)

    def _load(self, cpu_seconds: float | None, seconds: float) -> float:
        before = self._cpu_before
        if before is None or cpu_seconds is None:
            return 0.0
        return max(0.0, cpu_seconds - before) / seconds / own_cpus()
