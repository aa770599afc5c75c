"""Read-ahead by threads.

Guarantees:

1. Elements come out in the order of their indices, each once.
2. No more than ``buffer_size`` elements are in flight or ready and not yet taken.
3. When computing an element fails, all elements before it are delivered first, then its error, then nothing more.
4. No thread exists before the first ``take`` or ``start``. After ``close`` every thread ends when the block that it is
   computing is done. Threads know this object, not the iterator that uses it: dropping the iterator closes it.
5. ``close`` may be called anywhere, also by the garbage collector in the middle of any line here: the lock is re-entrant, is
   never held while waiting for a thread, and ``close`` does nothing but set a flag, drop what is ready and wake everybody
   up. A thread that is just about to wait may miss that; nobody waits for longer than ``_ANEW_SECONDS`` without looking at
   the flag.
6. A consumer that waits when ``close`` is called gets ``ValueError``.
7. In a forked process there are no threads: ``is_here`` is false there, and ``close`` does not touch the lock.

Blocks grow 1, 2, 4, … while one takes less than about a millisecond, and there are more threads than CPUs only where threads
wait for something else. So storage that answers slowly is asked by many threads for one element each, storage that answers
quickly by few threads for many at once: 16 threads that all want the interpreter between quick reads take four times as long
as one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gristmill.dataset.threads import start_thread

_QUICK_SECONDS = 0.0005  # grow while a block takes less
_SLOW_SECONDS = 0.002  # shrink when it takes more
_ANEW_SECONDS = 1.0  # see guarantee 5
_PATIENCE_SECONDS = 0.005  # a consumer that has waited longer, all in all, gets a thread for every CPU,
_LONG_SECONDS = 0.02  # and as many again whenever it waits this long for one block
_NUM_WAITS = 2  # elements in a row that waited: there is something to wait for
_NUM_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ReadAhead:
    """Computes ``compute(range(start, stop))`` ahead of a consumer.

    Args:
        compute: gives the elements at a range of indices; called by several threads at once.
        start: first index.
        stop: the index before which to stop.
        num_threads: the most threads to use, at least 1.
        buffer_size: the most elements to be ahead, at least 1.
    """

    def __init__(self, compute: Callable[[range], list[Any]], start: int, stop: int, num_threads: int, buffer_size: int) -> None:
        self._compute = compute
        self._stop = stop
        self._process_id = os.getpid()
        self._num_threads = min(num_threads, buffer_size)
        self._buffer_size = buffer_size
        self._max_block_size = max(1, buffer_size // 2)  # one block to take from, one to be computed
        lock = threading.RLock()
        self._room = threading.Condition(lock)  # there may be something to claim
        self._filled = threading.Condition(lock)  # the block that the consumer waits for may be there
        self._claimed = start  # indices before it belong to some thread or are done
        self._taken = start  # indices before it have been delivered
        self._ready: dict[int, tuple[list[Any], BaseException | None]] = {}  # by the first index of the block
        self._block_size = 1
        self._num_started = 0
        self._num_waits = 0
        self._waited_seconds = 0.0
        self._closed = False
        self._block: list[Any] = []  # what the consumer takes from
        self._error: BaseException | None = None  # follows the block

    @property
    def is_here(self) -> bool:
        return self._process_id == os.getpid()

    @property
    def num_ready(self) -> int:
        """How many elements could be taken without waiting."""
        num, ready = len(self._block), self._ready
        while (block := ready.get(self._taken + num)) is not None and block[0]:
            num += len(block[0])
        return num

    def take(self, n: int) -> list[Any]:
        """The next elements, at least one and at most ``n``; waits for them. Not to be called at the end."""
        if not self._block:
            if self._error is None:
                self._next_block()
            error = self._error
            if not self._block and error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame
        elements = self._block[:n]
        del self._block[:n]  # delivered elements are the consumer's alone
        self._taken += len(elements)
        if not self._block:
            with self._room:
                self._room.notify()
        return elements

    def start(self, num_threads: int | None = None) -> None:
        """Starts threads, until there are ``num_threads`` (by default, one for every CPU) or as many as there may be."""
        with self._room:
            missing = min(_NUM_CPUS if num_threads is None else num_threads, self._num_threads) - self._num_started
            missing = max(0, min(missing, self._stop - self._claimed))
            self._num_started += missing
        # Not under the lock: a new thread may collect garbage, and close this, before it tells the old one that it runs.
        for left in range(missing, 0, -1):
            try:
                start_thread(self._work, "gristmill-read", self.close)
            except BaseException as error:
                with self._room:
                    self._num_started -= left
                    if self._num_started and isinstance(error, RuntimeError):
                        return  # the system gives no more, or the interpreter is about to exit: one is enough
                raise

    def close(self) -> None:
        """Ends the threads; may be called again."""
        self._closed = True
        if self.is_here:
            with self._room:
                self._ready, self._error = {}, None  # the traceback of an error refers to this object
                self._room.notify_all()
                self._filled.notify_all()

    def _next_block(self) -> None:
        if not self._num_started:
            self.start(1)
        began = time.perf_counter()
        while not self._wait(_LONG_SECONDS):
            self.start(self._num_started + _NUM_CPUS)
        self._waited_seconds += time.perf_counter() - began
        if self._waited_seconds > _PATIENCE_SECONDS:
            self.start()

    def _wait(self, seconds: float) -> bool:
        """Takes the next block, if it comes within this time."""
        with self._filled:
            if self._taken not in self._ready:
                self._filled.wait(seconds)
            found = self._ready.pop(self._taken, None)
            if found is not None:
                self._block, self._error = found
                return True
            if self._closed:
                raise ValueError("the iterator was closed while it waited for its next element")
            return False

    def _work(self) -> None:
        while True:
            with self._room:
                while self._claimed < self._stop and not self._closed and self._num_ahead() >= self._buffer_size:
                    self._room.wait(_ANEW_SECONDS)
                if self._closed or self._claimed >= self._stop:
                    return
                start = self._claimed
                size = min(self._block_size, self._stop - start, self._buffer_size - self._num_ahead())
                self._claimed = start + size
                if self._num_ahead() < self._buffer_size:
                    self._room.notify()  # there is work for one more
            began, began_cpu = time.perf_counter(), time.thread_time()
            elements, error = self._compute_until_error(range(start, start + size))
            seconds, cpu_seconds = time.perf_counter() - began, time.thread_time() - began_cpu
            with self._room:
                if seconds < _QUICK_SECONDS:
                    self._block_size = min(max(self._block_size, 2 * size), self._max_block_size)
                elif seconds > _SLOW_SECONDS:
                    self._block_size = max(1, size // 2)
                self._put(start, elements, error)
                del elements, error  # not to be kept alive by a thread that waits
                # Longer than its own work and that of all other threads, which may want the same interpreter lock.
                waited = seconds > _QUICK_SECONDS and seconds > 2 * (self._num_started + 1) * cpu_seconds
                self._num_waits = self._num_waits + 1 if size == 1 and waited else 0
                more = self._num_waits == _NUM_WAITS
            if more:
                self.start(self._num_threads)

    def _put(self, start: int, elements: list[Any], error: BaseException | None) -> None:
        if not self._closed:
            self._ready[start] = elements, error
            if start == self._taken:
                self._filled.notify()

    def _num_ahead(self) -> int:
        return self._claimed - self._taken

    def _compute_until_error(self, indices: range) -> tuple[list[Any], BaseException | None]:
        elements: list[Any] = []
        try:
            return self._compute(indices), None
        except BaseException as error:
            if len(indices) == 1:
                return elements, error
        for i in indices:  # one of several elements failed: which, and what came before?
            try:
                elements += self._compute(range(i, i + 1))
            except BaseException as error:
                return elements, error
        return elements, None
