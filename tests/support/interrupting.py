"""Interrupts in the middle of an operation, as a signal handler raises them."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gristmill.core.locks import Lock

# How many interrupts each law of random ones sends.
NUM_INTERRUPTS = int(os.environ.get("GRISTMILL_TEST_INTERRUPTS", "60"))
_LONGEST_SECONDS = 1e-3


class Interrupt(BaseException):
    """As ``KeyboardInterrupt``, which pytest takes for itself."""


def interrupted(operation, number, files=""):
    """True if an interrupt came: at the ``number``-th line that ``operation`` runs in files whose
    names end so.
    """

    def trace(frame, event, arg):
        nonlocal number
        if event == "line" and frame.f_code.co_filename.endswith(files):
            number -= 1
            if number < 0:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        operation()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def interrupted_where_handlers_run(operation: Callable[[], Any], number: int) -> bool:
    """Return whether an interrupt came at the ``number``-th point where Python calls handlers.

    These are the beginnings of functions and the ends of calls of C functions; jumps backwards are
    skipped. Unlike at lines, an interrupt there can come from a signal.
    """

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal number
        if event in ("call", "c_return"):
            number -= 1
            if number < 0:
                raise Interrupt

    try:
        sys.setprofile(profile)
        operation()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@contextlib.contextmanager
def interrupts_at_random(rng: random.Random) -> Iterator[Callable[[Callable[[], Any]], bool]]:
    """Give a function that calls another one and returns whether a signal has interrupted that."""
    is_armed = False

    def handle(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise Interrupt

    def is_interrupted(operation: Callable[[], Any]) -> bool:
        nonlocal is_armed
        try:
            is_armed = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, _LONGEST_SECONDS))
            operation()
            is_armed = False
        except Interrupt:
            return True
        return False

    before = signal.signal(signal.SIGALRM, handle)
    try:
        yield is_interrupted
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Locks:
    """The library's locks, those that there are and those that will be made in this context."""

    def __init__(self) -> None:
        self._refs = [weakref.ref(lock) for lock in gc.get_objects() if isinstance(lock, Lock)]

    def __enter__(self) -> Locks:
        Lock.__init__ = lambda lock: self._refs.append(weakref.ref(lock))
        return self

    def __exit__(self, *_: object) -> None:
        del Lock.__init__

    def held(self) -> list[Lock]:
        """The locks that this thread holds."""
        held = []
        for lock in [ref() for ref in self._refs]:
            with contextlib.suppress(RuntimeError):  # it does not hold it
                if lock is not None:
                    lock.release()
                    held.append(lock)
        self._refs = [ref for ref in self._refs if ref() is not None]
        return held
