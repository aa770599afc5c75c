"""Code shared by tests of threads and processes that compute ahead."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from waiting import PATIENCE_SECONDS, running, wait_until

from gristmill import DatasetIterator, IterDataset, MapDataset, ReadOptions

DIRECT = ReadOptions(num_threads=0)


_of_earlier_tests: set[threading.Thread] = set()


def working() -> list[threading.Thread]:
    """Return the threads that compute ahead, except those that another file's tests have left."""
    threads = [*running("gristmill-read"), *running("gristmill-prefetch")]
    return [thread for thread in threads if thread not in _of_earlier_tests]


def wait_for_no_threads() -> None:
    wait_until(lambda: not working())


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    if working():  # garbage of earlier tests may hold their iterators
        gc.collect()
    _of_earlier_tests.update(working())
    yield
    wait_until(lambda: not working() or gc.collect() < 0)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()  # reference counts must do
    yield
    gc.enable()


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads of an interpreter with a GIL take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def numbers(*bounds: int, fn: Any = None, options: ReadOptions = DIRECT) -> Any:
    ds = MapDataset.range(*bounds).to_iter_dataset(options)
    return ds if fn is None else ds.map(fn)


def fails(it: Any, error: type[BaseException], match: str | None = None, times: int = 1) -> None:
    """``next`` raises that error ``times`` times."""
    for _ in range(times):
        with pytest.raises(error, match=match):
            next(it)


class Boom(Exception):
    pass


class Failing:
    """A function of an element that fails at some, the first ``times`` times."""

    def __init__(self, *bad: Any, times: int = 10**9, error: Any = Boom) -> None:
        self.left = dict.fromkeys(bad, times)
        self.error = error
        self.lock = threading.Lock()

    def __call__(self, x: Any) -> Any:
        with self.lock:
            if self.left.get(x, 0) > 0:
                self.left[x] -= 1
                raise self.error(x)
        return x


class Gate:
    """A function of an element that notes what it was called with, and is held up: at all elements,
    or at ``stuck``.
    """

    def __init__(self, *stuck: Any, is_open: bool = False) -> None:
        self.seen: list[Any] = []
        self.stuck, self.num_busy = stuck, 0
        self.lock, self.open = threading.Lock(), threading.Event()
        if is_open:
            self.open.set()

    def __call__(self, x: Any) -> Any:
        is_stuck = not self.stuck or x in self.stuck
        with self.lock:
            self.seen.append(x)
            self.num_busy += is_stuck
        if is_stuck:
            assert self.open.wait(PATIENCE_SECONDS)
            with self.lock:
                self.num_busy -= 1
        return x


class Crowd:
    """A function of an element that returns once ``num`` threads are in it, or were."""

    def __init__(self, num: int) -> None:
        self.missing = num
        self.lock, self.is_there = threading.Lock(), threading.Event()

    def __call__(self, x: Any) -> Any:
        with self.lock:
            self.missing -= 1
        if self.missing <= 0:
            self.is_there.set()
        assert self.is_there.wait(PATIENCE_SECONDS)
        return x

    def __reduce__(self) -> Any:
        return Crowd, (0,)  # a copy in a worker waits for no others


class Plain(IterDataset[Any]):
    """Iterated by a plain Python iterator, which has no state."""

    def __init__(self, elements: Any, fn: Any = lambda x: x) -> None:
        super().__init__()
        self.elements, self.fn = elements, fn

    def __iter__(self) -> Any:
        return map(self.fn, self.elements)


class ClosingDataset(IterDataset[Any]):
    """A user's, whose iterators have something to close, and must not be used by two threads at
    once.
    """

    def __init__(self, parent: Any, fn: Any = lambda x: x) -> None:
        super().__init__(parent)
        self.fn = fn
        self.closed: list[Any] = []  # iterators, each time

    def __iter__(self) -> Closing:
        return Closing(iter(self._parent), self)


class Closing(DatasetIterator[Any]):
    def __init__(self, parent: Any, ds: ClosingDataset) -> None:
        super().__init__(parent)
        self.ds = ds
        self.using = threading.Lock()

    def alone(self, use: Any, *args: Any) -> Any:
        assert self.using.acquire(blocking=False), "used by two threads"
        try:
            return use(*args)
        finally:
            self.using.release()

    def __next__(self) -> Any:
        return self.alone(lambda: self.ds.fn(next(self._parent)))

    def get_state(self) -> Any:
        return self.alone(self._parent.get_state)

    def set_state(self, state: Any) -> None:
        self.alone(self._parent.set_state, state)

    def close(self) -> None:
        self.ds.closed.append(self)
        self.alone(super().close)


class Count:
    """Not one of ours: any object with three methods. Its state is an object that it continues
    changing.
    """

    def __init__(self, n: int) -> None:
        self.state: Any = {"i": [0]}
        self.n = n

    def __next__(self) -> int:
        i: int = self.state["i"][0]
        if i == self.n:
            raise StopIteration
        self.state["i"][0] += 1
        return i

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Sharing(Count, DatasetIterator[Any]):
    """The same as a user's iterator."""


class SharingDataset(IterDataset[Any]):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.made: list[Any] = []  # iterators

    def __iter__(self) -> Any:
        self.made.append(Sharing(self.n))
        return self.made[-1]


class Watched:
    """A source that says what it is asked for, and can be held up; ``before`` is called with the
    keys of every read.
    """

    def __init__(self, length: int, before: Any = lambda keys: None) -> None:
        self.length, self.before, self.gate = length, before, Gate(is_open=True)
        # the keys of every read, in the order in which the reads began
        self.blocks: list[list[int]] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Any) -> list[int]:
        self.before(keys)
        self.blocks.append([*keys])
        self.gate(keys)
        return [*keys]

    @property
    def sizes(self) -> list[int]:
        return [len(block) for block in self.blocks]


class Clock:
    """Stands for the module ``time``: a block takes as long as the test says."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now = self.now_cpu = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now_cpu


@contextlib.contextmanager
def interrupted(when: Any) -> Iterator[None]:
    """A ``KeyboardInterrupt`` ends what is done in this context, when that is true."""
    main = threading.get_ident()

    def interrupt() -> None:
        wait_until(when)
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            yield
        interrupting.result()


def scarce_threads(monkeypatch: pytest.MonkeyPatch, num: int) -> Any:
    """Lets ``num`` threads start; as many are left: ``num_left`` of what is returned."""

    class Scarce(threading.Thread):
        num_left = num

        def start(self) -> None:
            if not Scarce.num_left:
                raise RuntimeError("can't start new thread")
            Scarce.num_left -= 1
            super().start()

    monkeypatch.setattr(threading, "Thread", Scarce)
    return Scarce
