"""The threads and the memory that everything shares which computes ahead below one iterator.

Guarantees:

1. There are never more than ``max_threads`` threads: those that read by index, and those that pull
   from iterators.
2. What is ready, or being computed ahead, takes no more than ``max_bytes``, if the sizes of
   elements are known before they are computed: the last ones of the same reader stand for the next.
   What a consumer waits for is computed in any case.
3. What will be needed first is read first. This follows from how often elements were drawn from
   each reader and, before that, from what was expected. No reader is ahead by more draws, counted
   over all readers, than the one that is drawn from most.
4. No thread waits for an element that waits for a thread: a thread that needs an element that no
   thread computes while all are busy computes it in place. So one thread is enough for pipelines of
   any depth.
5. ``dismiss`` may be called anywhere, also by the garbage collector in the middle of any line here:
   it appends to a list.
6. In a forked process ``is_here`` is false, and nothing of this may be used.
7. With ``"auto"`` one controller bounds the number of threads that read. What is measured in
   milliseconds (a consumer that waits) starts threads up to this bound, and never moves it but
   once, to the largest number, where elements take long without a CPU.

8. Threads that read and use all CPUs become few: one more than there are CPUs. Threads that were
   started while elements waited, such as the first ones, would wait for each other. Worker
   processes that share the CPUs use a part each, and keep their threads.

Source: to keep what is needed soonest is the optimal rule for caches (Belady, 1966).
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from gristmill.core.cgroup import usable_cpus, usable_memory
from gristmill.core.locks import Lock, Signal
from gristmill.core.options import DatasetOptions
from gristmill.core.uninterrupted import uninterrupted
from gristmill.dataset.ahead.cpu_use import CpuUse
from gristmill.dataset.ahead.draws import Drawn, Draws
from gristmill.dataset.ahead.memory import Holding, Memory
from gristmill.dataset.ahead.threads import ThreadNumbers, start_thread
from gristmill.dataset.ahead.tuning import ThreadTuning

_NUM_CPUS = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)
NUM_WAITS = 2  # elements in a row that waited: there is something to wait for
# no thread waits longer without looking again: it may miss the signal of a ``close``
_ANEW_SECONDS = 1.0
_MIN_THREADS = 16
_MEMORY_PARTS = 8


class ReadingClient(Drawn):
    """Reads by index, with threads of the budget. All of this is called under the budget's lock.

    Args:
        num_threads: the most threads that may work for it at a time.
        rate: the share of all draws that will be from it.
    """

    element_bytes = 0.0  # about; 0 is unknown
    is_auto = False  # the number of threads is found

    def __init__(self, num_threads: int, rate: float) -> None:
        self.num_threads = num_threads
        # of all readers with the same options: each lane may have its part at a time
        self.most_threads = num_threads
        self.rate = rate
        self.holding = Holding()

    @property
    @abc.abstractmethod
    def num_left(self) -> int:
        """The number of elements that no thread has begun."""

    @abc.abstractmethod
    def claim(self, num: int) -> Callable[[], None]:
        """Begins ``num`` elements; what computes them, to be called without the lock."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends its work."""


class PullingClient(abc.ABC):
    """Pulls from an iterator, in a thread of its own or in its consumer's."""

    def __init__(self) -> None:
        self.holding = Holding()

    @abc.abstractmethod
    def leave(self) -> None:
        """Lets its thread end if it has nothing to do."""


class Idle:
    """Threads that have nothing to read. All of this is called under the budget's lock."""

    def __init__(self) -> None:
        self.num = 0
        self._signals: deque[Signal] = deque()  # of those that were not woken up

    def add(self, signal: Signal) -> None:
        """Counts the thread that will wait for ``signal``."""
        self.num += 1
        self._signals.append(signal)

    def remove(self, signal: Signal) -> None:
        """Counts it no more."""
        self.num -= 1
        with contextlib.suppress(ValueError):
            self._signals.remove(signal)

    def wake(self, num: int | None = None) -> None:
        """Wakes up ``num`` of the threads, or all."""
        for signal in [*self._signals][:num]:
            signal.set()  # first: an interrupt, or a finalizer that does the same, may come next
            with contextlib.suppress(ValueError):
                self._signals.remove(signal)


class Budget:
    """Divides threads and memory among readers.

    Args:
        max_threads: the most threads; ``None``: 16, twice the number of CPUs, or the limit of one
            reader, the largest of these.
        max_bytes: the most bytes; ``None``: an eighth of the memory that this process may use.
        num_processes: how many processes share all that.
    """

    def __init__(
        self, max_threads: int | None = None, max_bytes: int | None = None, num_processes: int = 1
    ) -> None:
        self.lock = Lock()
        self.num_waits = 0  # elements in a row for which threads waited, other than for a CPU
        self.waited_seconds = self.cpu_seconds = 0.0  # by consumers; of threads that read
        self.cpu_use = CpuUse(_cpus())
        self.num_drawn = 0  # elements
        self.tuning: ThreadTuning | None = None  # finds the number of threads that read
        self._process_id = os.getpid()
        self.is_flexible = max_threads is None  # more threads are started if a stage may use more
        self.promised = 0  # threads, to one reader
        self.max_threads, num_bytes = _part_of(max_threads, max_bytes, num_processes)
        self.memory = Memory(num_bytes)
        self.is_held_up = False  # there is no memory for what would be read next
        self._readers: dict[Holding, ReadingClient] = {}
        self._dismissed: deque[Holding] = deque()
        self._numbers = ThreadNumbers()  # of threads that read
        self.num_reading = 0  # threads that read
        self._idle = Idle()  # of them
        self._num_pulling = 0  # threads
        self._num_leaving = 0  # threads that read, for others to pull
        self._resting: dict[Holding, PullingClient] = {}  # whose threads have nothing to do
        self.draws = Draws()

    @property
    def is_here(self) -> bool:
        return self._process_id == os.getpid()

    @property
    def num_threads(self) -> int:
        return self.num_reading + self._num_pulling

    @property
    def busy(self) -> float:
        """Returns the share of the threads that read that have something to do."""
        return 1 - self._idle.num / (self.num_reading or 1)

    @property
    def is_full(self) -> bool:
        """True if all allowed threads are busy."""
        return not self._idle.num and self.num_threads >= self.max_threads

    # The methods below are called with the lock held.

    def settle(self) -> None:
        """Forgets the readers that were dismissed."""
        gone: list[Drawn] = []
        while self._dismissed:
            holding = self._dismissed.popleft()
            if self.memory.release(holding) and holding in self._readers:
                gone.append(self._readers.pop(holding))
        if gone:
            self.draws.remove(gone)

    def drawn(self, reader: ReadingClient, num: int, num_bytes: int) -> None:
        """Records that elements of this many bytes were drawn."""
        self.settle()
        self.memory.hold(reader.holding, -num_bytes)
        self.num_drawn += num
        self.draws.count(reader, num)
        self.offer(reader)

    def offer(self, reader: ReadingClient) -> None:
        """Lets a thread begin what ``reader`` has room for."""
        self.draws.queue(reader)
        self._idle.wake(1)

    def wake(self) -> None:
        """Lets all threads look again."""
        self._idle.wake()

    def computed(self, now: float, cpu_seconds: float) -> None:
        """Records that a block has ended. While threads use all CPUs, half of those end that there
        are beyond one for every CPU, and one more, which computes while another one waits for the
        interpreter lock.
        """
        self.cpu_seconds += cpu_seconds
        if self.cpu_use.add(now, cpu_seconds, self.num_reading) and self.tuning is None:
            num = self.num_reading - _NUM_CPUS - 1
            self._num_leaving = max(self._num_leaving, (num + 1) // 2)

    # The methods below take the lock.

    def enroll(self, reader: ReadingClient) -> None:
        """Let threads work for ``reader``, until it is dismissed. Its owner prepares that
        before.
        """
        try:
            with self.lock:
                self.settle()
                self._readers[reader.holding] = reader
                self.allow(reader.most_threads)
                if reader.is_auto and self.tuning is None:
                    self.tuning = ThreadTuning(min(reader.most_threads, self.max_threads), self)
                self.draws.add(reader)
                self.offer(reader)
            if self.num_waits >= NUM_WAITS:  # all threads may wait for storage
                self.start(self.max_threads)
        except BaseException:
            self.dismiss(reader.holding)  # after an interrupt, nothing else would do it
            raise

    def expect(self, reader: ReadingClient, rate: float, due: float) -> None:
        """See ``Draws``."""
        with self.lock:
            self.draws.expect(reader, rate, due)
            self.offer(reader)

    def dismiss(self, holding: Holding) -> None:
        """Counts nothing of it any more."""
        self._dismissed.append(holding)

    def allow(self, num_threads: int) -> None:
        """Raises the limit to a number promised to a reader; no effect if a number was given."""
        with self.lock:
            self.promised = max(self.promised, num_threads)
            if self.is_flexible:
                self.max_threads = max(self.max_threads, num_threads)

    def start(self, num: int | None = None) -> None:
        """Starts threads that read, until there are ``num`` (by default, one for every CPU) or as
        many as there is work for.
        """
        wanted = _NUM_CPUS if num is None else num
        with self.lock:
            are_missing = self._num_missing(wanted) > 0
        if are_missing:
            uninterrupted(functools.partial(self._start, wanted))

    def _start(self, num: int) -> None:
        with self.lock:
            missing = self._num_missing(num)
            numbers = [self._numbers.take() for _ in range(missing)]
            self.num_reading += missing
        # Not under the lock: a new thread may collect garbage, and close a reader, before it
        # notifies the old one.
        for i, number in enumerate(numbers):
            try:
                # Sources may distinguish threads by the number, as in names of a Python executor.
                start_thread(
                    functools.partial(self._read, number), f"gristmill-read_{number}", self._end
                )
            except BaseException as error:
                with self.lock:
                    self.num_reading -= missing - i
                    self._numbers.give_back(*numbers[i:])
                    if self.num_reading and isinstance(error, RuntimeError):
                        # the system gives no more, or the interpreter is about to exit: one is
                        # enough
                        return
                raise

    def bound(self) -> None:
        """Let threads end that ``tuning`` does not allow."""
        assert self.tuning is not None
        self._num_leaving = max(0, self.num_reading - self.tuning.most(self._readers.values()))
        self._idle.wake(self._num_leaving)

    def start_more(self) -> None:
        """Starts as many threads that read as there are CPUs."""
        self.start(self.num_reading + _NUM_CPUS)

    def start_pulling(self, work: Callable[[], None], end: Callable[[], None]) -> bool:
        """Starts a thread that does ``work``, if there may be one more; see ``start_thread``."""
        with self.lock:
            if self.num_threads >= self.max_threads:
                self._ask()
                return False
        return uninterrupted(functools.partial(self._start_pulling, work, end))

    def _start_pulling(self, work: Callable[[], None], end: Callable[[], None]) -> bool:
        with self.lock:
            if self.num_threads >= self.max_threads:  # another thread was quicker
                return False
            self._num_pulling += 1

        def run() -> None:
            try:
                work()
            finally:
                self._num_pulling_less()

        try:
            start_thread(run, "gristmill-prefetch", end)
        except BaseException:
            self._num_pulling_less()
            raise
        return True

    def rest(self, client: PullingClient) -> None:
        """Notes that the thread of ``client`` has nothing to do."""
        with self.lock:
            self._resting[client.holding] = client

    def work(self, client: PullingClient) -> None:
        """Notes that it has."""
        with self.lock:
            self._resting.pop(client.holding, None)

    def _ask(self) -> None:
        """Has a thread that pulls and has nothing to do end, or one that reads."""
        if self._resting:
            _, client = self._resting.popitem()
            client.leave()
        elif self.num_reading > 1:
            self._num_leaving = min(self._num_leaving + 1, self.num_reading - 1)
            self._idle.wake(1)

    def _num_pulling_less(self) -> None:
        with self.lock:
            self._num_pulling -= 1
            self.settle()

    def _num_missing(self, num: int) -> int:
        most = min(num, self.max_threads - self._num_pulling)
        if self.tuning is not None:
            most = min(most, self.tuning.most(self._readers.values()))
        if most <= self.num_reading:
            return 0
        self.settle()
        readers = self._readers.values()
        most = min(most, sum([reader.num_threads for reader in readers]))
        return max(0, min(most - self.num_reading, sum([reader.num_left for reader in readers])))

    def _end(self) -> None:
        for reader in [*self._readers.values()]:
            reader.close()

    def _read(self, number: int) -> None:
        signal = Signal()
        try:
            while (work := self._claim(signal)) is not None:
                work()
                del work  # not to be kept alive by a thread that waits
        finally:
            with self.lock:
                self.num_reading -= 1
                self._numbers.give_back(number)
                self.settle()

    def _claim(self, signal: Signal) -> Callable[[], None] | None:
        """Waits for something to read; ``None`` if there will be nothing, or others need the
        thread.
        """
        while True:
            with self.lock:
                self.settle()
                if self._num_leaving:
                    self._num_leaving -= 1
                    return None
                work = self._next()
                if work is not None or not any(
                    [reader.num_left for reader in self._readers.values()]
                ):
                    return work
                self._idle.add(signal)
            signal.wait(_ANEW_SECONDS)
            with self.lock:
                self._idle.remove(signal)

    def _next(self) -> Callable[[], None] | None:
        """Work for one of the readers; ``None`` if there is none, or no memory for that which is
        needed first.
        """
        reader: Any = self.draws.first()
        self.is_held_up = False
        if reader is None:
            return None
        num = self.memory.affords(reader.room(), reader.element_bytes) or int(reader.is_awaited)
        self.is_held_up = not num
        if not num:
            return None
        work: Callable[[], None] = reader.claim(num)
        self.draws.begun(reader)
        if self.draws.first() is not None:
            self._idle.wake(1)  # there is work for one more
        return work


def budget_of(options: DatasetOptions, num_processes: int = 1) -> Budget:
    """Returns a budget as ``options`` say."""
    return Budget(options.max_threads, options.max_bytes_ahead, num_processes)


def divide(budget: Budget, options: DatasetOptions, num_processes: int) -> None:
    """Let a budget as ``options`` say be that of one of ``num_processes``."""
    with budget.lock:
        limits = _part_of(options.max_threads, options.max_bytes_ahead, num_processes)
        budget.max_threads, budget.memory.max_bytes = limits
        if budget.is_flexible:
            budget.max_threads = max(budget.max_threads, budget.promised)


def _part_of(max_threads: int | None, max_bytes: int | None, num_processes: int) -> tuple[int, int]:
    """Return the threads and the bytes of one of ``num_processes``."""
    num_threads = (
        _usual_threads(num_processes)
        if max_threads is None
        else max(1, max_threads // num_processes)
    )
    return num_threads, (_usual_bytes() if max_bytes is None else max_bytes) // num_processes


@functools.cache
def _usual_threads(num_processes: int) -> int:
    return max(_MIN_THREADS, 2 * usable_cpus() // num_processes)


@functools.cache
def _cpus() -> int:
    return usable_cpus()


@functools.cache
def _usual_bytes() -> int:
    return usable_memory() // _MEMORY_PARTS
