"""Several threads of a process compute in turns, so that none has to think of the others.

Guarantees:

1. One thread has the turn at a time. While it waits for what threads of its own compute
   (``waiting``), another one may have it; so it may if a turn takes longer than
   ``_PATIENCE_SECONDS``: a stuck worker holds up no other one.
2. The next one is the one that has the fewest messages ahead of its consumer; of several, the one
   that has waited longest. So a thread has its turn as often as its consumer takes messages.
3. A waiting thread learns within ``_LONGEST_SECONDS`` that its turn has not come, to look for what
   else there is to do.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Iterator
from typing import Any

from gristmill.core.locks import Lock, Signal

_SHORTEST_SECONDS = 0.01
_LONGEST_SECONDS = 0.05
_PATIENCE_SECONDS = 0.5

_of_thread = threading.local()


class Turns:
    """Whose turn it is."""

    def __init__(self) -> None:
        self.threads: set[int] = set()  # the identities of those that are to have turns
        self.common: dict[str, Any] = {}  # what all of them share besides
        self._holder = 0  # the identity of the thread whose turn it is
        self._taken_at = 0.0
        self._waiting: list[tuple[int, float, int, Signal]] = []
        self._lock = Lock()  # of these

    def take(self, num_ahead: int, since: float) -> bool:
        """Waits for a turn; false if it has not come for a moment.

        Args:
            num_ahead: the number of messages that this thread is ahead of its consumer.
            since: when it began to wait (``time.monotonic()``).
        """
        own, has_come = threading.get_ident(), Signal()
        entry = num_ahead, since, own, has_come
        with self._lock:
            heapq.heappush(self._waiting, entry)
            if not self._holder:
                self._pass_on()
        if not has_come.wait(
            min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, time.monotonic() - since))
        ):
            with self._lock:
                if time.monotonic() > self._taken_at + _PATIENCE_SECONDS:
                    self._pass_on()
                if self._holder != own:
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)
                    return False
        _of_thread.turns = self
        return True

    def give_back(self) -> None:
        _of_thread.turns = None
        with self._lock:
            if self._holder == threading.get_ident():  # else it has taken too long
                self._pass_on()

    def _pass_on(self) -> None:
        self._holder, self._taken_at = 0, time.monotonic()
        if self._waiting:
            _, _, self._holder, has_come = heapq.heappop(self._waiting)
            has_come.set()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for a turn, however long that takes, and has it inside."""
        since = time.monotonic()
        while not self.take(0, since):
            pass
        try:
            yield
        finally:
            self.give_back()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Yields a context in which a thread waits for other threads of its own; another worker may
    take its turn, if it has one.
    """
    turns: Turns | None = getattr(_of_thread, "turns", None)
    if turns is None:
        yield
        return
    turns.give_back()
    try:
        yield
    finally:
        since = time.monotonic()
        while not turns.take(0, since):
            pass
