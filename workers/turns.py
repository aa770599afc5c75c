"""The main thread of a process computes for several other threads, one call after the other.

Guarantees:

1. What is called runs in the main thread and to its end, and nothing else is called meanwhile: as if the process were there for
   it alone.
2. Next comes a call of the thread that has the fewest messages ahead of its consumer; of several, the one that has waited
   longest. So a thread has as many calls as its consumer takes messages.
3. Who waits for the turn of a call is told within ``_LONGEST_SECONDS`` if it has not come, to look for what else there is to do.
   What has begun is waited for.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_SHORTEST_SECONDS = 0.01
_LONGEST_SECONDS = 0.05


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:
            self._error = error
        self.done.release()

    def results(self) -> list[T]:
        error, self._error = self._error, None
        if error is None:
            return self._results
        try:
            raise error
        finally:
            del error  # which refers to this frame


class Turns:
    """What is to be called, and in which order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float, int, _Call[Any]]] = []
        self._lock = threading.Lock()  # of these
        self._numbers = itertools.count()
        self._there: SimpleQueue[None] = SimpleQueue()  # as many as calls have come

    def run(self) -> None:
        """Called by the main thread: does what others want done."""
        while True:
            self._there.get()
            with self._lock:
                call = heapq.heappop(self._waiting)[-1] if self._waiting else None
            if call is not None:
                call.run()
            del call  # what it has made is its caller's

    def do(self, function: Callable[[], T], num_ahead: int, since: float) -> list[T]:
        """What ``function()`` returns, as the only item; none if its turn has not come for a moment.

        Args:
            function: what is to be called.
            num_ahead: the number of messages that the caller is ahead of its consumer.
            since: when it began to wait (``time.monotonic()``).
        """
        entry = num_ahead, since, next(self._numbers), _Call(function)
        call = entry[-1]
        with self._lock:
            heapq.heappush(self._waiting, entry)
        self._there.put(None)
        if not call.done.acquire(timeout=min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, time.monotonic() - since))):
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)
                    return []
            call.done.acquire()
        return call.results()

    def wait_for(self, function: Callable[[], T]) -> T:
        """What ``function()`` returns."""
        since = time.monotonic()
        while not (results := self.do(function, 0, since)):
            pass
        return results[0]
