"""Read-ahead by threads.

Guarantees:

1. Elements come out in the order of their indices, each once.
2. No more than ``buffer_size`` elements are in flight or ready and not yet taken.
3. When computing an element fails, all elements before it are delivered first, then its error, then nothing more. Once that is
   known, no element after it is begun.
4. No thread exists before the first ``take`` or ``start``. After ``close`` every thread ends when the element, or the vectored
   read, that it is computing is done. Threads know this object, not the iterator that uses it: dropping the iterator closes it.
5. ``close`` may be called anywhere, also by the garbage collector in the middle of any line here: the lock is re-entrant, is
   never held while waiting for a thread, and ``close`` does nothing but set a flag, drop what is ready and wake everybody
   up. A thread that is just about to wait may miss that; nobody waits for longer than ``_ANEW_SECONDS`` without looking at
   the flag.
6. A consumer that waits when ``close`` is called gets ``ValueError``.
7. In a forked process there are no threads: ``is_here`` is false there, and ``close`` does not touch the lock.
8. No element waits for one that comes after it: a consumer that waits for ``_LATE_SECONDS`` takes what is finished of a block
   that is still being computed, and blocks that take that long are shortened to the element that they are at. The rest is
   anybody's again.

Blocks grow while they are quick (see ``BlockSize``), and there are more threads than CPUs only where threads wait for something
else. So storage that answers slowly is asked by many threads for one element each, storage that answers quickly by few threads
for many at once: 16 threads that all want the interpreter between quick reads take four times as long as one.
"""

from __future__ import annotations

import functools
import heapq
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from gristmill.core.pacing import QUICK_SECONDS, BlockSize
from gristmill.dataset.ahead.root_log import RootLog
from gristmill.dataset.ahead.threads import start_thread
from gristmill.dataset.bases.feed import Feed, what_failed

_ANEW_SECONDS = 1.0  # see guarantee 5
_PATIENCE_SECONDS = 0.005  # a consumer that has waited longer, all in all, gets a thread for every CPU,
_LONG_SECONDS = 0.02  # and as many again whenever it waits this long for one block
_LATE_SECONDS = 0.01  # see guarantee 8
_NUM_WAITS = 2  # elements in a row that waited: there is something to wait for
_NUM_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Compute: TypeAlias = Callable[[range], list[Any]]
Stream: TypeAlias = Callable[[Feed], Iterator[Any]]


class ReadAhead:
    """Computes ``compute(range(start, stop))`` ahead of a consumer.

    Args:
        compute: gives the elements at a range of indices; called by several threads at once.
        start: first index.
        stop: the index before which to stop.
        num_threads: the most threads to use, at least 1.
        buffer_size: the most elements to be ahead, at least 1.
        stream: gives the same elements one after the other. Without it, guarantee 8 holds from block to block only.
        log: is told what is being computed.
    """

    def __init__(
        self,
        compute: Compute,
        start: int,
        stop: int,
        num_threads: int,
        buffer_size: int,
        stream: Stream | None = None,
        log: RootLog | None = None,
    ) -> None:
        self.compute = compute
        self.stream = stream
        self._log = log
        self._stop = stop
        self._process_id = os.getpid()
        self._num_threads = min(num_threads, buffer_size)
        self._buffer_size = buffer_size
        self._max_block_size = max(1, buffer_size // 2)  # one block to take from, one to be computed
        lock = threading.RLock()
        self._room = threading.Condition(lock)  # there may be something to claim
        self._filled = threading.Condition(lock)  # the block that the consumer waits for may be there
        self._claimed = start  # indices before it belong to some thread, were given back or are done
        self._returned: list[tuple[int, int]] = []  # ranges that were given back, a heap
        self._taken = start  # indices before it have been delivered
        self._running: list[_Block] = []  # blocks that are being computed
        self._ready: dict[int, tuple[list[Any], BaseException | None]] = {}  # by the first index of the block
        self._block_size = BlockSize()
        self._num_alive = 0  # threads
        self._numbers = [*range(self._num_threads)]  # of threads to come, a heap
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
            missing = min(_NUM_CPUS if num_threads is None else num_threads, self._num_threads) - self._num_alive
            missing = max(0, min(missing, self._stop - self._claimed + sum([stop - start for start, stop in self._returned])))
            numbers = [heapq.heappop(self._numbers) for _ in range(missing)]
            self._num_alive += missing
        # Not under the lock: a new thread may collect garbage, and close this, before it tells the old one that it runs.
        for i, number in enumerate(numbers):
            try:
                # Sources may tell threads apart by the number, as that of a Python executor: it is below ``num_threads``.
                start_thread(functools.partial(self._work, number), f"gristmill-read_{number}", self.close)
            except BaseException as error:
                with self._room:
                    self._num_alive -= missing - i
                    for unused in numbers[i:]:
                        heapq.heappush(self._numbers, unused)
                    if self._num_alive and isinstance(error, RuntimeError):
                        return  # the system gives no more, or the interpreter is about to exit: one is enough
                raise

    def close(self) -> None:
        """Ends the threads; may be called again."""
        self._closed = True
        if self.is_here:
            with self._room:
                self._ready, self._error = {}, None  # the traceback of an error refers to this object
                for block in self._running:
                    block.leave(0)
                self._room.notify_all()
                self._filled.notify_all()

    def _next_block(self) -> None:
        if not self._num_alive:
            self.start(1)
        began, waited = time.perf_counter(), 0.0
        while not self._wait(_LATE_SECONDS):
            waited += _LATE_SECONDS
            if self._shorten_late_blocks() or waited > _LONG_SECONDS - _LATE_SECONDS:
                waited = 0.0
                self.start(self._num_alive + _NUM_CPUS)
        self._waited_seconds += time.perf_counter() - began
        if self._waited_seconds > _PATIENCE_SECONDS:
            self.start()

    def _wait(self, seconds: float) -> bool:
        """Takes the next block, if it comes within this time, or what is finished of it then."""
        with self._filled:
            if self._taken not in self._ready:
                self._filled.wait(seconds)
            found = self._ready.pop(self._taken, None)
            if found is not None:
                self._block, self._error = found
                return True
            if self._closed:
                raise ValueError("the iterator was closed while it waited for its next element")
            for block in self._running:
                if block.start == self._taken and (finished := block.take_finished()):
                    self._block = finished
                    return True
            return False

    def _shorten_late_blocks(self) -> bool:
        """Gives back what blocks that take long have not begun; whether there is any of that."""
        late = time.perf_counter() - _LATE_SECONDS
        with self._room:
            for block in self._running:
                if block.began < late and (left := block.shorten()):
                    heapq.heappush(self._returned, left)
                    self._block_size.restart()
            self._room.notify(len(self._returned))
            return bool(self._returned)

    def _work(self, number: int) -> None:
        try:
            while (block := self._claim()) is not None:
                self._run(block)
                del block  # not to be kept alive by a thread that waits
        finally:
            with self._room:
                self._num_alive -= 1
                heapq.heappush(self._numbers, number)

    def _claim(self) -> _Block | None:
        """Waits for something to compute; ``None`` at the end."""
        with self._room:
            while not (self._returned or self._closed or self._claimed >= self._stop or self._num_ahead() < self._buffer_size):
                self._room.wait(_ANEW_SECONDS)
            if self._closed:
                return None
            if self._returned:
                start, stop = heapq.heappop(self._returned)
                size = min(self._block_size.now, stop - start)
                if start + size < stop:
                    heapq.heappush(self._returned, (start + size, stop))
            elif self._claimed < self._stop:
                start = self._claimed
                size = min(self._block_size.now, self._stop - start, self._buffer_size - self._num_ahead())
                self._claimed = start + size
            else:
                return None
            if self._returned or self._num_ahead() < self._buffer_size:
                self._room.notify()  # there is work for one more
            block = _Block(start, size, time.perf_counter())
            self._running.append(block)
            return block

    def _run(self, block: _Block) -> None:
        size, began_cpu = block.size, time.thread_time()
        log = self._log
        entry = 0 if log is None else log.enter(block.start, block.start + size)
        error = block.compute(self.compute, self.stream)
        if log is not None:
            log.leave(entry)
        seconds, cpu_seconds = time.perf_counter() - block.began, time.thread_time() - began_cpu
        with self._room:
            self._block_size.adapt(seconds, size, self._max_block_size, num=block.size)
            self._put(block, error)
            del error
            # Longer than its own work and that of all other threads, which may want the same interpreter lock.
            waited = seconds > QUICK_SECONDS and seconds > 2 * (self._num_alive + 1) * cpu_seconds
            self._num_waits = self._num_waits + 1 if size == 1 and waited else 0
            more = self._num_waits == _NUM_WAITS
        if more:
            self.start(self._num_threads)

    def _put(self, block: _Block, error: BaseException | None) -> None:
        self._running.remove(block)
        if self._closed:
            return
        start = block.start
        elements = block.take_finished()
        if error is not None:
            self._stop = min(self._stop, start + len(elements))
            self._returned = sorted([part for part in self._returned if part[0] < self._stop])
        if elements or error is not None:
            self._ready[start] = elements, error
            if start == self._taken:
                self._filled.notify()

    def _num_ahead(self) -> int:
        return self._claimed - self._taken


class _Block:
    """Consecutive indices that a thread computes. All but ``compute`` is called under the lock.

    Args:
        start: the first one.
        size: how many.
        began: when.
    """

    def __init__(self, start: int, size: int, began: float) -> None:
        self.start = start  # of what is not yet taken out
        self.size = size
        self.began = began
        self._elements: list[Any] = []  # finished ones
        self._num_taken = 0  # of them
        self._first = start
        self._feed: Feed | None = None
        self._feed_start = 0
        self._is_whole = False  # it is computed by one call, which nothing makes shorter

    def take_finished(self) -> list[Any]:
        """Takes out the finished elements that nobody has taken yet."""
        finished = self._elements[self._num_taken : self.size]
        self._elements[self._num_taken : self.size] = [None] * len(finished)  # they are the consumer's alone
        self._num_taken += len(finished)
        self.start += len(finished)
        return finished

    def shorten(self) -> tuple[int, int] | None:
        """Leaves the elements after the one that is being computed to others; their range, if there are any."""
        size, stop = len(self._elements) + 1, self._first + self.size
        if size >= self.size or self._is_whole:
            return None
        self.leave(size)
        return self._first + size, stop

    def leave(self, size: int) -> None:
        """Computes no more than the first ``size`` elements, or one more that was begun in this moment, which is in vain."""
        self.size = size
        if self._feed is not None:
            self._feed.leave(max(0, size - self._feed_start))

    def compute(self, compute: Compute, stream: Stream | None) -> BaseException | None:
        """Computes the elements; the error that follows them, if any."""
        elements, in_one = self._elements, True
        while (num := len(elements)) < self.size:
            rest = range(self._first + num, self._first + self.size)
            found: Iterable[Any] | None = None
            if len(rest) > 1 and in_one:
                self._is_whole = stream is None
                try:
                    found = compute(rest) if stream is None else self._begin(stream, rest)
                except Exception:  # which element is it, and what comes of it alone?
                    in_one = False
                except BaseException as error:
                    return error
                self._is_whole = False
            try:
                elements.extend(compute(rest[:1]) if found is None else found)
            except BaseException as error:
                if len(elements) < self.size:  # else it was begun in vain
                    return what_failed(error)
        return None

    def _begin(self, stream: Stream, indices: range) -> Iterator[Any]:
        feed = Feed(indices)
        self._feed_start = indices.start - self._first
        self._feed = feed
        if self._first + self.size < indices.stop:  # has become smaller in this moment
            self.leave(self.size)
        return stream(feed)


def compute_in_order(compute: Compute, stream: Stream | None, indices: range) -> tuple[list[Any], BaseException | None]:
    """The elements at ``indices``, all asked for at once if there is no ``stream``; and the error that follows them, if any."""
    block = _Block(indices.start, len(indices), 0.0)
    error = block.compute(compute, stream)
    return block.take_finished(), error
