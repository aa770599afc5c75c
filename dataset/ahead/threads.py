"""Threads that compute ahead, and the end of the interpreter.

They are daemons: a program whose data is stuck can still end. But a daemon that comes back from C++
code (an ArrayRecord or image decoder, say) to an interpreter that has gone is unwound through that
code, and takes the process down with SIGABRT. So the exit first lets every thread finish what it is
computing, and waits for that; for so long at most.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import os
import threading
import time
from collections.abc import Callable

from gristmill.core.exiting import end_thread_at_exit
from gristmill.core.uninterrupted import uninterrupted

_EXIT_SECONDS = 2.0  # beyond that, user code is taken to be stuck


class ThreadNumbers:
    """Gives each thread the smallest number that no other one has, from 0 on."""

    def __init__(self) -> None:
        self._free: list[int] = []  # a heap
        self._num = 0  # of those that were given out, or are free

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._num += 1
        return self._num - 1

    def give_back(self, *numbers: int) -> None:
        for number in numbers:
            heapq.heappush(self._free, number)


_running: dict[threading.Thread, Callable[[], None]] = {}


def start_thread(work: Callable[[], None], name: str, end: Callable[[], None]) -> threading.Thread:
    """Starts a thread that does ``work``. At exit, ``end`` is called: it asks the thread to end
    soon, without waiting for it.
    """

    end_thread_at_exit()

    def run() -> None:
        try:
            work()
        finally:
            _running.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _running[thread] = end
    try:
        uninterrupted(thread.start)
    except RuntimeError:  # there is no thread; after an interrupt there is one
        _running.pop(thread, None)
        raise
    return thread


def running_threads() -> list[threading.Thread]:
    """Returns the threads that prefetch at the moment."""
    return [*_running]


def _end_all() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for end in list(_running.values()):
        end()
    with contextlib.suppress(KeyboardInterrupt):  # a caller does not want to wait
        for thread in list(_running):
            with contextlib.suppress(RuntimeError):  # another thread is about to start it
                thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # no thread of the parent is there
