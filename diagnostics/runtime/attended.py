"""Uses a pipeline that may be stuck: in a thread of its own, so that the caller can stop waiting
for it.

Guarantees:

1. ``call`` returns what it was given to do, or raises what that raises; or ``PipelineStalledError``
   soon after nothing has happened for the time that is allowed, with what the pipeline waits for.
   An interrupt from the keyboard ends it at once, wherever the pipeline is.
2. All calls are made by one thread, one after the other, with the context variables of the caller.
3. At the end of the ``with`` block the iterator is closed, if that is requested. One that is still
   stuck then is closed if another thread can: its threads end as soon as they come back, its worker
   processes end. The thread is left behind; it does not keep the program from ending.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, cast

from gristmill.core.locks import Lock, Signal
from gristmill.core.uninterrupted import uninterrupted
from gristmill.dataset.ahead.pullahead import end_waits
from gristmill.dataset.watching import observed_by
from gristmill.diagnostics.runtime.stalls import waiting_text

T = TypeVar("T")

_LOOK_SECONDS = 0.25
_LEAVE_SECONDS = 0.5  # for a thread to come back from what it does at the end

# for the first element, unless something else is requested: workers import what they need,
START_SECONDS = 20.0
NEXT_SECONDS = 5.0  # and for others: enough for a pause, and short for an interactive session


class PipelineStalledError(TimeoutError):
    """Nothing has come for too long; ``str`` says what a pipeline waits for."""


class _Call(Generic[T]):
    """Something to do, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._run = contextvars.copy_context().run
        self._work = work
        self._done = Signal()  # for the thread that waits
        self._is_done = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def make(self) -> None:
        try:
            self._result = self._run(self._work)
        except BaseException as error:
            self._error = error
        self._is_done = True
        self._done.set()

    def is_done(self, seconds: float) -> bool:
        if not self._is_done:
            self._done.wait(seconds)
        return self._is_done

    def result(self) -> T:
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return cast(T, self._result)  # it has been made


class Attended:
    """A thread that uses an iterator for a caller that will not wait forever. A context manager.

    Args:
        it: gives the iterator of a dataset that is in use.
        seconds: how long nothing may happen; 0 is forever.
        hint: a further sentence of the error, for a pipeline that is only slow.
        close: the function that closes the iterator in the end, if it must be closed.
    """

    def __init__(
        self, it: Callable[[], Any], seconds: float, hint: str, *, close: Callable[[], None] | None
    ) -> None:
        self._it = it
        self._seconds = seconds
        self._hint = hint
        self._close = close
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._last: _Call[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name="gristmill-consumer", daemon=True)
        self._lock = Lock()
        self.is_ending = False  # loops that are called look at it

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()
            del call  # and what it refers to

    def call(
        self,
        work: Callable[[], T],
        *,
        progress: Callable[[], int] | None = None,
        seconds: float | None = None,
    ) -> T:
        """Returns ``work()``.

        Args:
            work: done by the thread.
            progress: gives another number whenever something has happened.
            seconds: how long nothing may happen, if that is another time than usual.

        Raises:
            PipelineStalledError: nothing has happened for so long.
        """
        limit = self._seconds if seconds is None else seconds
        call = self._begin(work)
        before, since = progress() if progress is not None else 0, time.monotonic()
        while not call.is_done(_LOOK_SECONDS):
            now = progress() if progress is not None else 0
            if now != before:
                before, since = now, time.monotonic()
            elif limit and time.monotonic() - since > limit:
                raise PipelineStalledError(
                    f"{self._stall_text(before, time.monotonic() - since)}\n{self._hint}"
                )
        return call.result()

    def _begin(self, work: Callable[[], T]) -> _Call[T]:
        if not self._thread.ident:
            uninterrupted(self._start)
        call = self._last = _Call(work)
        self._calls.put(call)
        return call

    def _start(self) -> None:
        with self._lock:  # after an interrupt, another thread may be about to do the same
            if not self._thread.ident:
                self._thread.start()

    def _stall_text(self, num: int, seconds: float) -> str:
        # since the last call only: threads may be stuck in what began before
        observer = observed_by(self._it())
        return waiting_text(
            self._it(),
            self._thread.ident,
            num if observer is None else observer.output.elements,
            seconds,
        )

    @property
    def is_stuck(self) -> bool:
        return self._last is not None and not self._last.is_done(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_ending = True
        if self._last is not None and not self._last.is_done(_LEAVE_SECONDS):
            end_waits(self._it())
            self._last.is_done(_LEAVE_SECONDS)
        if self._close is not None and not self.is_stuck:
            with contextlib.suppress(TimeoutError):
                self.call(self._close, seconds=START_SECONDS)
        self._calls.put(None)
        if self._thread.ident and not self.is_stuck:
            self._thread.join(_LEAVE_SECONDS)
