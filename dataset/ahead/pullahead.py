"""Pulling from a stream ahead of a consumer, by a thread.

Guarantees:

1. Elements come out in the order of the stream, each once, with the position after it.
2. No more than ``buffer_size`` elements are ready or being computed beyond those that the consumer
   has asked for.
3. An error, or the end, comes after the elements before it. Then the thread ends, and the iterator
   is where the error met it.
4. While ``_is_inside``, the iterator belongs to the thread. After ``stop`` and
   ``wait_until_outside`` the caller may use it.
5. The thread knows this object and the iterator that it pulls from, not the one that delivers:
   dropping that one stops it.
6. ``wait`` takes nothing away, so that it may be interrupted anywhere; its caller takes elements
   out of the list without calling anything.
7. ``stop`` may be called anywhere, also by the garbage collector in the middle of any line here: it
   takes no lock. No thread misses it: a signal stays set until its receiver has woken up.
8. A consumer that waits when ``stop`` is called gets ``ValueError``.
9. ``close`` waits no longer than its timeout. If the thread is still in the iterator then, it
   closes it on its way out.
10. No element waits for one that comes after it: each is ready when it is computed; a consumer that
   has waited for ``_LATE_SECONDS`` looks.
11. Where the budget has no thread to give, the consumer pulls what it waits for by itself, and asks
   again the next time. A thread that has nothing to do ends if others need one, and comes back in
   the same way.
12. No more is ready than there is memory for, but for what the consumer waits for.
13. In a forked process there is no thread: ``is_stopped`` is true there, and nothing touches the
    lock.

Blocks grow while they are quick (see ``BlockSize``): small elements then cost little more than
without a thread.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from gristmill.core.locks import Lock, Signal
from gristmill.core.pacing import BlockSize
from gristmill.dataset.ahead.budget import Budget, PullingClient
from gristmill.dataset.ahead.sizes import Sampling, spread
from gristmill.dataset.ahead.waits import BudgetWaits, Missing
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.node import parents_of
from gristmill.workers.turns import waiting

_LATE_SECONDS = 0.01  # see guarantee 10
# The longest wait: an interrupt that comes in the moment before a wait is noticed after it. Without
# the GIL, what a thread has made and others have dropped, such as an iterator, is freed when it
# runs.
_LOOK_SECONDS = 0.5

Failure: TypeAlias = tuple[BaseException, TracebackType | None]
# an element, the position after it, and the choices that were made for it
Fetched: TypeAlias = tuple[Any, Any, Any]


class End(Exception):
    """The end of a stream, which comes as a failure does.

    Args:
        pos: the position there.
        records: the choices after the last element.
    """

    def __init__(self, pos: Any, records: Any) -> None:
        super().__init__()
        self.pos, self.records = pos, records


_DELIVERED: Failure = StopIteration(), None


class Source(Protocol):
    """A stream, of which one thread at a time may use ``fill``."""

    def fill(self, put: Callable[[Fetched], None], num: int) -> tuple[int, BaseException | None]:
        """Hand over up to ``num`` elements, each when it is computed.

        Returns:
            Their number, and what came instead of the next one, if that is known.
        """

    def close(self) -> None:
        """Release what the stream holds."""

    def forget(self) -> None:
        """Drops references to the stream, which is not in use at the moment."""

    def end_waits(self) -> None:
        """Close what another thread may wait in. May be called meanwhile."""


class PullAhead(PullingClient):
    """Takes elements from ``source``, before the consumer takes them out of the list that ``wait``
    returns.

    Args:
        source: the stream.
        buffer_size: the most elements to be ahead, at least 1.
        budget: has the thread, and the memory.
        waits: counts how long the consumer waited for these.
    """

    wanted = 0  # elements that the consumer has asked for and not yet taken

    def __init__(
        self, source: Source, buffer_size: int, budget: Budget, waits: BudgetWaits | None = None
    ) -> None:
        super().__init__()
        self._source = source
        self._buffer_size = buffer_size
        self._budget, self._waits = budget, waits or BudgetWaits()
        self._element_bytes, self._sampling = 0.0, Sampling()
        # One block to take from, one to be computed; a larger request is answered in long blocks.
        self._max_block_size = max(1, buffer_size // 2)
        self._block_size = BlockSize()
        self._size = 0  # elements of the block that is being computed
        self._process_id = os.getpid()
        self._has_thread = self._is_working = False  # it was asked for; it is there
        # others need the thread more; it has room, and no memory
        self._must_leave = self._is_held_up = False
        self._thread: threading.Thread | None = None  # the one that was there last
        self.ready: list[Fetched] = []
        self._failure: Failure | None = None  # follows what is ready
        self._is_started = self._is_stopped = False
        self.has_begun = False  # the source may have been used
        self._room = Signal()  # there may be room for another block
        self._filled = Signal()  # there may be what the consumer waits for
        self._lock = Lock()  # of ``_is_working``
        self._inside = Lock()  # held by the thread that is in the iterator
        self._closes = False  # the iterator must be closed, by the thread that is in it, if any
        self._left = Signal()  # the thread is outside

    @property
    def is_stopped(self) -> bool:
        """True if there is no thread, or there soon will be none, even if it met neither an error
        nor the end.
        """
        return self._is_stopped or not self._is_started or self._process_id != os.getpid()

    @property
    def is_here(self) -> bool:
        """False in a process that was forked since."""
        return self._process_id == os.getpid()

    def start(self) -> None:
        self._begin()
        self._is_started = True

    def _begin(self) -> None:
        """Starts the thread, if there is one to be had."""
        self._has_thread = True  # before it can leave
        try:
            if not self._budget.start_pulling(self._work, self._end):
                self._has_thread = False
        except BaseException:
            # if it is about to be, another one that comes finds that out
            self._has_thread = self._is_working
            raise

    @property
    def num_ready(self) -> int:
        """The number of elements that can be taken without waiting."""
        return len(self.ready)

    @property
    def is_drained(self) -> bool:
        return not self.ready and self._inside.is_free()

    def wait(self, n: int) -> tuple[list[Fetched], Failure | None]:
        """Waits until ``n`` elements are ready, or all before an error or the end; returns the
        elements that are ready, and the error or end after them.

        The caller that takes elements out of the list sets ``wanted`` to those that are left to
        take.
        """
        self.wanted = n
        if self._has_room():
            self._room.set()
        began = 0.0
        missing: Missing | None = None
        while True:
            # in this order: a failure is there after all that it follows
            failure, ready = self._failure, self.ready
            if len(ready) >= n or failure is not None:
                if missing is not None:
                    with self._budget.lock:
                        self._waits.add(missing, time.perf_counter() - began)
                return ready, failure
            if self._is_stopped:
                raise ValueError("the iterator was closed while it waited for its next element")
            if not self._has_thread:
                self._begin()
            if not began:
                began = time.perf_counter()
                missing = "memory" if self._is_held_up else None if self._has_thread else "threads"
            if self._has_thread:
                # Only a block of one element has nothing ready before its end, which sets this.
                with waiting():
                    self._filled.wait(_LOOK_SECONDS if self._size == 1 else _LATE_SECONDS)
            elif self._inside.is_free(_LOOK_SECONDS) and (num := n - len(ready)) > 0:
                # the thread may have left more
                self._pull_inside(num)

    def drain(self) -> None:
        """Compute nothing more ahead: only what the consumer waits for."""
        self._buffer_size, self._max_block_size = 0, 1

    def forget_failure(self) -> None:
        """Forget what was delivered last, an error or the end: its traceback may refer to the
        consumer.
        """
        self._failure = _DELIVERED  # the thread ends
        self._budget.dismiss(self.holding)

    def stop(self) -> None:
        """Lets the thread end and forgets what is ready; may be called again."""
        if self._process_id == os.getpid():
            self._is_stopped = True
            self._budget.dismiss(self.holding)
            self.ready, self._failure = [], None  # the traceback of an error may refer to anything
            self._room.set()
            self._filled.set()
            if not self._may_be_inside():  # else the thread does so
                self._source.forget()

    def wait_until_outside(self, seconds: float = math.inf) -> None:
        """Waits until the thread, which has been stopped, is not in the iterator any more; for so
        long at most.
        """
        if self._process_id != os.getpid() or self._thread is threading.current_thread():
            return
        deadline = time.monotonic() + seconds
        while self._may_be_inside() and (left := deadline - time.monotonic()) > 0:
            self._left.wait(min(left, _LOOK_SECONDS))
        self._left.set()  # for other threads that wait

    def close(self, seconds: float) -> None:
        """Stops the thread and closes the iterator, as soon as the thread is out of it; waits for
        that for so long at most.
        """
        if self._process_id != os.getpid():
            self._source.close()
            return
        self.stop()
        self._closes = True
        if not self._may_be_inside():
            self._close_if_asked()
            return
        self._source.end_waits()
        if not sys.is_finalizing():
            self.wait_until_outside(seconds)

    def _end(self) -> None:
        self.stop()
        self._source.end_waits()

    def _may_be_inside(self) -> bool:
        return self.is_here and (
            self._thread is threading.current_thread() or not self._inside.is_free()
        )

    def _work(self) -> None:
        self._is_started = True  # before, or without, the end of ``start``
        with self._lock:
            if self._is_working:
                return
            self._is_working, self._must_leave = True, False
            self._thread = threading.current_thread()
        while self._enter():
            self._pull_inside(max(1, min(self._block_size.now, self._num_free())))

    def _enter(self) -> bool:
        """Waits until there is something to do; false if there will be no more, or not for this
        thread.
        """
        self._is_held_up = False
        if self._num_free() <= 0 or not self._affords():
            self._budget.rest(self)
            while not (self._is_stopped or self._failure):
                if (has_room := self._has_room()) and self._affords():
                    break
                self._is_held_up = has_room
                if self._must_leave:
                    # In this order: the second store lets a thread start, which must see the first.
                    self._is_working = False
                    self._has_thread = False
                    self._filled.set()  # for a consumer that has come to wait for this thread
                    return False
                self._room.wait(_LATE_SECONDS if has_room else _LOOK_SECONDS)
            self._budget.work(self)
        return not (self._is_stopped or self._failure)

    def leave(self) -> None:
        """Lets the thread end if it has nothing to do."""
        self._must_leave = True
        self._room.set()

    def _pull_inside(self, size: int) -> None:
        """Pulls, unless this has been stopped or has failed."""
        try:
            with self._inside:
                if not (self._is_stopped or self._failure):
                    self.has_begun = True
                    self._pull(size)
                if self._is_stopped:
                    self._source.forget()
        finally:
            if self._closes:
                self._close_if_asked()
            self._left.set()

    def _close_if_asked(self) -> None:
        with self._inside:
            closes, self._closes = self._closes, False  # another thread may have been quicker
            if closes:
                self._source.close()

    def _num_free(self) -> int:
        return self._buffer_size + self.wanted - len(self.ready)

    def _has_room(self) -> bool:
        # For a whole block: a thread that is woken up for every element computes blocks of one.
        return self._num_free() >= min(self._block_size.now, self._max_block_size)

    def _affords(self) -> bool:
        """True if there is memory for one more element, or if it is needed at once."""
        if self._budget.memory.affords(1, self._element_bytes) or len(self.ready) < self.wanted:
            return True
        self._count_bytes()
        return self._budget.memory.affords(1, self._element_bytes) > 0

    def _count_bytes(self) -> None:
        num_bytes = int(self._element_bytes * len(self.ready))
        with self._budget.lock:
            self._budget.memory.hold(self.holding, num_bytes - self.holding.num_bytes)

    def _pull(self, size: int) -> None:
        self._size = size
        began = time.perf_counter()
        num_new = 0
        failure: BaseException | None
        try:
            num_new, failure = self._source.fill(self.ready.append, size)
        except BaseException as error:
            failure = error
        self._size = 0
        seconds = time.perf_counter() - began
        self._block_size.adapt(seconds, size, max(self._max_block_size, self.wanted))
        if num_new and (num := self._sampling.num_of(seconds)):
            self._element_bytes = self._sampling.mean_bytes(
                [element for element, _, _ in spread(self.ready[-num_new:], num)]
            )
            self._count_bytes()
        if failure is not None:
            self._failure = failure, failure.__traceback__
            del failure  # its traceback may refer to this frame
        if self._is_stopped:  # in the meantime
            self.stop()
        self._filled.set()

    def has_taken(self) -> None:
        """Called when the consumer has taken what it asked for out of ``ready``."""
        if not self._size and self._has_room():  # else the thread looks by itself after its block
            self._room.set()


def end_waits(it: DatasetIterator[Any]) -> None:
    """Closes the iterators upstream that another thread may wait in."""
    if it._gm_closes_anytime:
        it.close()
    else:
        for parent in parents_of(it):
            end_waits(parent)
