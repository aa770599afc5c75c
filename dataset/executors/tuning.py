"""Measures what a running pool does, and asks the controller of ``"auto"`` for the number and
the kind of workers.
"""

from __future__ import annotations

import time
from typing import Any

from gristmill.dataset.executors.auto import Controller, Decision, Measured, is_window, kept

_LOOK_SECONDS = 0.01  # between two looks at the workers


class Tuning:
    """The measurements of one executor, and the decisions that follow from them.

    Args:
        least, most: the bounds of the number of workers.
        num: the number at the beginning.
        most_threads: see ``Controller``.
    """

    def __init__(self, least: int, most: int, num: int, most_threads: int = 0) -> None:
        now = time.monotonic()
        self.decisions: list[Decision] = []
        self.is_on = True
        self._is_first_window = False  # since a change
        self._controller = Controller(least, most, num, most_threads=most_threads)
        self._begin(now, 0)

    def _begin(self, now: float, num_received: int) -> None:
        self._began, self._num_before = now, num_received
        self._waited = self._busy = 0.0
        self._num_looks = 0
        self._look_at = now

    def begin_anew(self) -> None:
        """Measure from now on, after another start."""
        self._begin(time.monotonic(), 0)

    def receive(self, lanes: Any, number: int, num: int) -> Decision | None:
        """Wait until a lane has something; return the change to make now, if there is one."""
        lane = lanes.lanes[number]
        began = time.monotonic()
        if began >= self._look_at:
            self._look_at = began + _LOOK_SECONDS
            self._busy += lanes.busy()
            self._num_looks += 1
        is_there = lanes.has_sent(lane)
        lane.receive(num)
        ended = time.monotonic()
        if not is_there:
            self._waited += ended - began
        if not lanes.is_settled:  # what is measured while lanes move says nothing
            self._begin(ended, lanes.num_received)
            return None
        seconds, num_received = ended - self._began, lanes.num_received - self._num_before
        if not is_window(seconds, num_received):
            return None
        if self._is_first_window:  # after a change, workers read ahead less than they may
            self._is_first_window = False
            self._begin(ended, lanes.num_received)
            return None
        busy = self._busy / self._num_looks if self._num_looks else 1.0
        decision = self._controller.decide(
            Measured(ended, num_received / seconds, self._waited / seconds, busy)
        )
        self._begin(ended, lanes.num_received)
        if decision is not None:
            self._is_first_window = True
            self.decisions = kept(self.decisions, decision)
        return decision
