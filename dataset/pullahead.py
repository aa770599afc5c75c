"""Pulling from an iterator ahead of a consumer, by a thread.

Guarantees:

1. Elements come out in the order of the iterator, each once, with the state after it.
2. No more than ``buffer_size`` elements are ready or being computed beyond those that the consumer has asked for.
3. An error, or the end, comes behind the elements before it. Then the thread ends, and the iterator is where the error met it.
4. While ``is_inside``, the iterator belongs to the thread; otherwise to whoever made this object, if they stop it first.
5. Threads know this object and the iterator that they pull from, not the one that delivers: dropping that one stops the thread.
6. ``wait`` takes nothing away: it may be interrupted. What is delivered is taken from ``ready`` without calling anything.
7. ``stop`` may be called anywhere, also by the garbage collector in the middle of any line here: the lock is re-entrant, is
   never held while something else is waited for, and ``stop`` does nothing but set a flag, drop what is ready and wake
   everybody up. Whoever is just about to wait may miss that, and looks again after ``_ANEW_SECONDS``.
8. A consumer that waits when ``stop`` is called gets ``ValueError``.
9. ``close`` never waits for longer than it is told. If the thread is still in the iterator then, it closes it on the way out.
10. In a forked process there is no thread: ``is_stopped`` is true there, and nothing touches the lock.

Blocks grow 1, 2, 4, … while one takes less than about a millisecond: small elements then cost little more than without a thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, TypeAlias

from gristmill.dataset.iterator import BlockIterator, DatasetIterator, rewind
from gristmill.dataset.round_robin import Fetched
from gristmill.dataset.stated_blocks import StatedBlocks

_QUICK_SECONDS = 0.0005  # grow while a block takes less
_SLOW_SECONDS = 0.002  # shrink when it takes more
_ANEW_SECONDS = 1.0  # see guarantee 7

Failure: TypeAlias = tuple[BaseException, TracebackType | None]


class PullAhead:
    """Takes elements from ``it``, from ``start`` on.

    Args:
        it: the iterator.
        state: where to begin; ``None`` is where it is.
        buffer_size: the most elements to be ahead, at least 1.
    """

    wanted = 0  # elements that the consumer has asked for and not yet taken from ``ready``

    def __init__(self, it: DatasetIterator[Any], state: Any, buffer_size: int) -> None:
        self._it = it
        self._state = state
        self._buffer_size = buffer_size
        self._max_block_size = max(1, buffer_size // 2)  # one block to take from, one to be computed
        self._process_id = os.getpid()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ready: list[Fetched] = []
        self._failure: Failure | None = None  # follows what is ready
        self._block_size = 1
        self._is_waiting = False  # the thread, for room
        self._is_inside = False
        self._is_stopped = False
        self._closes = False  # the thread closes the iterator

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped or self._process_id != os.getpid()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="gristmill-prefetch", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.stop()  # should it run all the same
            raise

    def wait(self, n: int) -> tuple[list[Fetched], Failure | None]:
        """Waits until ``n`` elements are ready, or all before an error or the end; what is ready, and what follows.

        Whoever takes elements out of the list sets ``wanted`` back to 0.
        """
        with self._lock:
            self.wanted = n
            if self._is_waiting and self._has_room():
                self._changed.notify_all()
            while len(self._ready) < n and self._failure is None:
                if self._is_stopped:
                    raise ValueError("the iterator was closed while it waited for its next element")
                self._changed.wait(_ANEW_SECONDS)
            return self._ready, self._failure

    def stop(self) -> None:
        """Lets the thread end and forgets what is ready; may be called again."""
        if self._process_id == os.getpid():
            self._is_stopped = True
            with self._lock:
                self._ready, self._failure = [], None  # the traceback of an error refers to this object
                self._changed.notify_all()

    def wait_until_outside(self, seconds: float = float("inf")) -> None:
        """Waits until the thread, which has been stopped, is not in the iterator any more."""
        deadline = time.monotonic() + seconds
        if self._process_id != os.getpid() or self._thread is threading.current_thread():
            return
        with self._lock:
            while self._is_inside and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, _ANEW_SECONDS))

    def close(self, seconds: float) -> None:
        """Stops the thread and closes the iterator, as soon as the thread is out of it; waits for that for this time."""
        self.stop()
        if self._process_id == os.getpid():
            with self._lock:
                self._closes = self._is_inside
        if self._closes:
            _end_waits(self._it)
            if not sys.is_finalizing():
                self.wait_until_outside(seconds)
        else:
            self._it.close()

    def _work(self) -> None:
        blocks = StatedBlocks(self._it)
        while self._enter():
            try:
                self._pull(blocks)
            finally:
                self._leave()

    def _enter(self) -> bool:
        """Waits until there is something to do; false if there will be no more."""
        with self._lock:
            self._is_waiting = True
            while not self._is_stopped and self._failure is None and not self._has_room():
                self._changed.wait(_ANEW_SECONDS)
            self._is_waiting = False
            self._is_inside = not self._is_stopped and self._failure is None
            return self._is_inside

    def _leave(self) -> None:
        with self._lock:
            closes = self._closes
            self._is_inside = closes
            self._changed.notify_all()
        if closes:
            try:
                self._it.close()
            finally:
                with self._lock:
                    self._is_inside = False
                    self._changed.notify_all()

    def _has_room(self) -> bool:
        # For a whole block: a thread that is woken up for every element computes blocks of one.
        return self._buffer_size + self.wanted - len(self._ready) >= self._block_size

    def _pull(self, blocks: StatedBlocks) -> None:
        size = self._block_size
        began = time.perf_counter()
        failure: BaseException | None
        try:
            state, self._state = self._state, None
            if state is not None:
                rewind(self._it, state)
            elements, states, failure = blocks.take(size)
        except BaseException as error:
            elements, states, failure = [], (), error
        seconds = time.perf_counter() - began
        fetched = [(x, states, i) for i, x in enumerate(elements)]
        try:
            with self._lock:
                if seconds < _QUICK_SECONDS:
                    self._block_size = min(2 * size, self._max_block_size)
                elif seconds > _SLOW_SECONDS:
                    self._block_size = max(1, size // 2)
                if not self._is_stopped:
                    self._ready += fetched
                    self._failure = failure and (failure, failure.__traceback__)
        finally:
            del failure  # its traceback may refer to this frame


def _end_waits(it: DatasetIterator[Any]) -> None:
    """Closes the iterators upstream that another thread may wait in."""
    if isinstance(it, BlockIterator) and it._closes_anytime:
        it.close()
    else:
        for parent in it._parents:
            _end_waits(parent)
