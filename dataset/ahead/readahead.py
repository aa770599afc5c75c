"""Read-ahead by threads.

Guarantees:

1. Elements come out in the order of their indices, each once.
2. No more than ``buffer_size`` elements are in flight or ready and not yet taken; where blocks are
   quick, two blocks, and no more than ``common_size``.
3. When computing an element fails, all elements before it are delivered first, then its error, then
   nothing more. Once that is known, no element after it is begun.
4. No thread exists before the first ``take`` or ``start``. After ``close`` every thread ends when
   the element, or the vectored read, that it is computing is done. Threads know this object, not
   the iterator that uses it: dropping the iterator closes it.
5. ``close`` may be called anywhere, also by the garbage collector in the middle of any line here:
   the lock is re-entrant, is never held while waiting for a thread, and ``close`` does nothing but
   set a flag, drop what is ready and wake everybody up. A thread that is just about to wait may
   miss that; no thread waits longer than ``_ANEW_SECONDS`` without looking at the flag.
6. A consumer that waits when ``close`` is called gets ``ValueError``.
7. In a forked process there are no threads: ``budget.is_here`` is false there, and ``close`` does
   not touch the lock.
8. No element waits for one that comes after it: a consumer that waits for ``_LATE_SECONDS`` takes
   what is finished of a block that is still being computed, and blocks that take that long are
   shortened to the element that they are at. Any thread may then compute the rest.

9. A consumer that wants several elements is woken up when these are ready, or half of what may be
   ahead is, not for each element.

Blocks grow while they are quick (see ``BlockSize``), and there are more threads than CPUs only
where threads wait for something else. So storage that answers slowly is asked by many threads for
one element each, storage that answers quickly by few threads for many at once: 16 threads that all
want the interpreter between quick reads take four times as long as one.
"""

from __future__ import annotations

import functools
import heapq
import operator
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from gristmill.core.locks import Signal
from gristmill.core.pacing import QUICK_SECONDS, BlockSize
from gristmill.dataset.ahead.budget import NUM_WAITS, Budget, ReadingClient
from gristmill.dataset.ahead.ready import Ready, ReadyBlocks
from gristmill.dataset.ahead.root_log import RootLog
from gristmill.dataset.ahead.sizes import Sampling, spread
from gristmill.dataset.ahead.waits import BudgetWaits, Missing
from gristmill.dataset.bases.items import check_number
from gristmill.workers.turns import waiting

# a consumer that has waited longer, all in all, gets a thread for every CPU,
_PATIENCE_SECONDS = 0.005
_LONG_SECONDS = 0.02  # and as many again whenever it waits this long for one block
_LATE_SECONDS = 0.01  # see guarantee 8

Items: TypeAlias = Callable[[range], Iterator[Any]]
_of_pair = operator.itemgetter(1)


class ReadAhead(ReadingClient):
    """Computes ``items(range(start, stop))`` ahead of a consumer, from ``budget.enroll`` on.

    Args:
        items: returns an iterator over the elements at a range of indices; called by several
            threads at once.
        start: first index.
        stop: the index before which to stop.
        num_threads: the most threads to use, at least 1.
        buffer_size: the most elements to be ahead, at least 1.
        budget: whose threads these are.
        log: records which elements are being computed.
        rate: the share of all draws from readers of the budget that will be from this one.
        waits: counts how long the consumer waited for the budget.
    """

    def __init__(
        self,
        items: Items,
        start: int,
        stop: int,
        num_threads: int,
        buffer_size: int,
        budget: Budget,
        log: RootLog | None = None,
        rate: float = 1.0,
        waits: BudgetWaits | None = None,
    ) -> None:
        super().__init__(min(num_threads, buffer_size), rate)
        self.items = items
        self.budget = budget
        self._log = log
        self._waits = waits or BudgetWaits()
        self._stop = stop
        self._buffer_size = buffer_size
        self.common_size = buffer_size  # that of all readers which share the options
        self._filled = Signal()  # what the consumer waits for may be there
        self._num_awaited = 1  # elements that the consumer waits for
        # indices before it belong to some thread, were given back or are done
        self._claimed = start
        self._returned: list[tuple[int, int]] = []  # ranges that were given back, a heap
        self.taken = start  # indices before it have been delivered
        self._running: list[_Block] = []  # blocks that are being computed
        self._ready = ReadyBlocks(start)
        self._block_size, self._sampling = BlockSize(), Sampling()
        self.is_draining = False  # nothing more is begun, unless the consumer waits for it
        self._closed = False
        self.block: list[Any] = []  # what the consumer takes from
        self._drawn = 0, 0  # how many elements, and bytes, it had
        self._error: BaseException | None = None  # follows the block

    @property
    def num_ready(self) -> int:
        """The number of elements that can be taken without waiting."""
        return len(self.block) + self._ready.num_from(self.taken + len(self.block))

    @property
    def _most_ahead(self) -> int:
        """The most elements to be ahead: those of two blocks, one to take from and one to be
        computed, also where that is more than the part of this reader.
        """
        return max(self._buffer_size, min(2 * self._block_size.now, self.common_size))

    @property
    def num_ahead(self) -> int:
        return self._claimed - self.taken

    @property
    def lowest(self) -> int:
        """The lowest index that is being computed or has not been begun."""
        with self.budget.lock:
            return min(
                [self._claimed, *[x.start for x in self._running], *[i for i, _ in self._returned]]
            )

    @property
    def num_left(self) -> int:
        if self._closed:
            return 0
        return self._stop - self._claimed + sum([stop - start for start, stop in self._returned])

    def take(self, n: int) -> list[Any]:
        """Return the next elements, at least one and at most ``n``; waits for them. Not to be
        called at the end.
        """
        if not self.block:
            if self._error is None:
                self._next_blocks(n)
            error = self._error
            if not self.block and error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame
        elements = self.block[:n]
        del self.block[:n]  # delivered elements are the consumer's alone
        self.taken += len(elements)
        if not self.block:
            with self.budget.lock:
                self.budget.drawn(self, *self._drawn)
        return elements

    def close(self) -> None:
        """Ends the work; may be called again."""
        self._closed = True
        self.budget.dismiss(self.holding)
        self.items = _nothing  # the dataset is not needed
        if self.budget.is_here:
            with self.budget.lock:
                # the traceback of an error refers to this object
                self._ready, self._error = ReadyBlocks(self.taken), None
                for block in self._running:
                    block.leave(0)
                self.budget.wake()
                self._filled.set()

    def _next_blocks(self, n: int) -> None:
        budget = self.budget
        if not budget.num_reading:
            budget.start(1)
        self._num_awaited = min(n, max(1, self._most_ahead // 2))  # which leaves room for more
        missing = None if self.taken in self._ready else self._missing()
        began, waited = time.perf_counter(), 0.0
        while not self._wait(_LATE_SECONDS):
            waited += _LATE_SECONDS
            if self._shorten_late_blocks() or waited > _LONG_SECONDS - _LATE_SECONDS:
                waited = 0.0
                budget.start_more()
        seconds = (ended := time.perf_counter()) - began
        budget.waited_seconds += seconds
        if budget.tuning is not None:
            budget.tuning.look(ended)
        if missing is not None:
            with budget.lock:
                self._waits.add(missing, seconds)
        if budget.waited_seconds > _PATIENCE_SECONDS:
            budget.start()

    def _missing(self) -> Missing | None:
        """Return the resource of the budget, if any, that was too scarce to avoid the wait of the
        consumer.
        """
        budget = self.budget
        with budget.lock:
            budget.draws.waits(self, self._most_ahead)
            num = self.room()
            if num and (budget.is_held_up or not budget.memory.affords(num, self.element_bytes)):
                return "memory"
            is_short = num and budget.is_full and 2 * len(self._running) <= self.num_threads
            return "threads" if is_short else None

    def _wait(self, seconds: float) -> bool:
        """Takes the elements that the consumer waits for, if they come within this time, or what is
        finished of them then.
        """
        with self.budget.lock:
            work = self._await()
            if work is None and (self._is_enough() or self._closed):
                return self._take_next()
            self._filled.clear()  # it may have been set for a block that was taken without a wait
        if work is not None:
            work()
        else:
            with waiting():
                self._filled.wait(seconds)
        with self.budget.lock:
            return self._take_next()

    def _await(self) -> Callable[[], None] | None:
        """Makes sure that a thread computes the element for which the consumer waits: the
        consumer's, by this call, if all others are busy.
        """
        first_left = self._returned[0][0] if self._returned else self._claimed
        if self.taken != first_left or self.taken >= self._stop:
            return None
        if self.budget.is_full and (num := self.room()):
            return self.claim(max(1, self.budget.memory.affords(num, self.element_bytes)))
        self.is_awaited = True
        self.budget.offer(self)
        return None

    def _is_enough(self) -> bool:
        """Return true if there is what the consumer waits for, or no thread computes the rest."""
        return self._ready.has(self.taken, self._num_awaited, is_all=not self._running)

    def _take_next(self) -> bool:
        found = self._ready.take(self.taken, self._num_awaited)
        if found is not None:
            self.block, self._error, num_bytes = found
            self._drawn = len(self.block), num_bytes
            return True
        if self._closed:
            raise ValueError("the iterator was closed while it waited for its next element")
        for block in self._running:
            if block.start == self.taken and (finished := block.take_finished()):
                self.block = finished
                self._drawn = len(finished), 0
                return True
        return False

    def _shorten_late_blocks(self) -> bool:
        """Gives back what blocks that take long have not begun; whether there is any of that."""
        late = time.perf_counter() - _LATE_SECONDS
        with self.budget.lock:
            for block in self._running:
                if block.began < late and (left := block.shorten()):
                    heapq.heappush(self._returned, left)
                    self._block_size.restart()
            self.budget.offer(self)
            return bool(self._returned)

    def room(self) -> int:
        if self._closed or len(self._running) >= self.num_threads:
            return 0
        size, most = self._block_size.now, self._most_ahead
        if self._returned:
            start, stop = self._returned[0]
            return min(size, stop - start)
        limit = (
            int(self.is_awaited) if self.is_draining else self.budget.draws.most_ahead(self, most)
        )
        room = limit - self.num_ahead
        if limit < most and room < min(size, limit // 2):
            return 0  # not in many small blocks
        return max(0, min(size, self._stop - self._claimed, room))

    def claim(self, num: int) -> Callable[[], None]:
        if self._returned:
            start, stop = heapq.heappop(self._returned)
            if start + num < stop:
                heapq.heappush(self._returned, (start + num, stop))
        else:
            start = self._claimed
            self._claimed += num
        self.is_awaited = False
        block = _Block(start, num, time.perf_counter(), int(num * self.element_bytes))
        self._running.append(block)
        self.budget.memory.hold(self.holding, block.num_bytes)
        return functools.partial(self._run, block, self.items)

    def _run(self, block: _Block, items: Items) -> None:
        size, began_cpu = block.size, time.thread_time()
        log, budget = self._log, self.budget
        entry = 0 if log is None else log.enter(block.start, block.start + size)
        error = block.compute(items)
        if log is not None:
            log.leave(entry)
        seconds, cpu_seconds = time.perf_counter() - block.began, time.thread_time() - began_cpu
        element_bytes = block.element_bytes(self._sampling, seconds)
        with budget.lock:
            self._block_size.adapt(seconds, size, self.common_size // 2, num=block.size)
            self._put(block, error, element_bytes)
            del error
            # Longer than its own work and that of all other threads, which may want the same
            # interpreter lock.
            waited = (
                seconds > QUICK_SECONDS and seconds > 2 * (budget.num_threads + 1) * cpu_seconds
            )
            budget.num_waits = budget.num_waits + 1 if size == 1 and waited else 0
            budget.computed(block.began + seconds, cpu_seconds)
            more = budget.num_waits == NUM_WAITS
        if more:
            if budget.tuning is not None:
                budget.tuning.jump(seconds)
            budget.start(budget.max_threads)

    def _put(self, block: _Block, error: BaseException | None, element_bytes: float) -> None:
        self._running.remove(block)
        if self._closed:
            return
        start, elements = block.start, block.take_finished()
        num_bytes = int((element_bytes or self.element_bytes) * len(elements))
        if num_bytes != block.num_bytes:
            self.budget.memory.hold(self.holding, num_bytes - block.num_bytes)
        if element_bytes:
            self.element_bytes = self.budget.memory.learned(self.element_bytes, element_bytes)
        if error is not None:
            self._stop = min(self._stop, start + len(elements))
            self._returned = sorted([part for part in self._returned if part[0] < self._stop])
        if elements or error is not None:
            self._ready.put(start, Ready(elements, error, num_bytes))
            if self._is_enough():
                self._filled.set()
        self.budget.draws.queue(self)  # the thread that has called this looks there next


def _nothing(indices: range) -> Iterator[Any]:
    return iter(())


class _Block:
    """Consecutive indices that a thread computes. All but ``compute`` is called under the lock.

    Args:
        start: the first one.
        size: how many.
        began: when.
        num_bytes: how much is reserved for its elements.
    """

    def __init__(self, start: int, size: int, began: float, num_bytes: int) -> None:
        self.start = start  # of what is not yet taken out
        self.size = size
        self.began = began
        self.num_bytes = num_bytes
        self._elements: list[Any] = []  # finished ones
        self._num_taken = 0  # of them
        self._first = start
        self._todo = [*range(start, start + size)]  # decides how many elements are computed
        self._is_whole = True  # records are read by one call, which nothing makes shorter

    def take_finished(self) -> list[Any]:
        """Takes out the finished elements that were not taken yet."""
        start = self._num_taken
        finished = self._elements[start : self.size]
        self._num_taken += len(finished)
        # They are the consumer's alone. The thread that computes may have appended more since.
        self._elements[start : self._num_taken] = [None] * len(finished)
        self.start += len(finished)
        return finished

    def element_bytes(self, sampling: Sampling, seconds: float) -> float:
        """Return the mean bytes of the finished elements that ``sampling`` chooses; 0 if it chooses
        none.
        """
        num = sampling.num_of(seconds)
        return sampling.mean_bytes(spread(self._elements[self._num_taken :], num)) if num else 0.0

    def shorten(self) -> tuple[int, int] | None:
        """Leaves the elements after the one that is being computed to others; their range, if there
        are any.
        """
        size, stop = len(self._elements) + 1, self._first + self.size
        if size >= self.size or self._is_whole:
            return None
        self.leave(size)
        return self._first + size, stop

    def leave(self, size: int) -> None:
        """Computes no more than the first ``size`` elements, or one more that was begun in this
        moment, which is discarded.
        """
        self.size = size
        del self._todo[size:]

    def compute(self, items: Items) -> BaseException | None:
        """Computes the elements; returns the error that follows them, if any."""
        append = self._elements.append
        try:
            elements = items(range(self._first, self._first + self.size))
            self._is_whole = False
            # Without the GIL, ``extend`` would hold the lock of the list until the last element,
            # and no other thread would see the elements before.
            deque(map(append, map(_of_pair, zip(self._todo, elements, strict=False))), maxlen=0)
            check_number(len(self._elements), self.size)
        except BaseException as error:
            if len(self._elements) < self.size:  # else it is discarded
                return error
        return None
