"""The guarantees of prefetching by a thread: order, states, the bound, errors, and a thread that goes when it is not needed."""

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from local_workers import LocalWorkersIterDataset
from waiting import PATIENCE_SECONDS, running, wait_until

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset
from gristmill.dataset.ahead import pullahead
from gristmill.dataset.telling.description import describe
from gristmill.experimental import ThreadPrefetchDatasetIterator, ThreadPrefetchIterDataset

DIRECT = ReadOptions(num_threads=0)


def prefetchers():
    return running("gristmill-prefetch")


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    wait_until(lambda: not prefetchers() or gc.collect() < 0)


class Boom(Exception):
    pass


class Gate:
    """A function for ``map`` that says what it was called with, and can be held up."""

    def __init__(self, is_open=True):
        self.seen = []
        self.num_busy = 0
        self.open = threading.Event()
        if is_open:
            self.open.set()

    def __call__(self, x):
        self.seen.append(x)
        self.num_busy += 1
        assert self.open.wait(PATIENCE_SECONDS)
        self.num_busy -= 1
        return x


class Clock:
    """Stands for the module ``time`` in ``pullahead``: a block takes as long as the test says."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(pullahead, "time", fake)
    return fake


def ahead(ds, size=2):
    return iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=size))


def numbers(n=20, fn=lambda x: x):
    return MapDataset.range(n).to_iter_dataset(DIRECT).map(fn)


class Count:
    """Not one of ours: any object with three methods. Its state is an object that it goes on changing."""

    def __init__(self, n):
        self.state = {"i": [0]}
        self.n = n
        self.num_closed = 0

    def __next__(self):
        i = self.state["i"][0]
        if i == self.n:
            raise StopIteration
        self.state["i"][0] += 1
        return i

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


class Closing(DatasetIterator):
    """A user's iterator that has something to close, and must not be used by two threads at once."""

    def __init__(self, parent, fn):
        super().__init__(parent)
        self.fn = fn
        self.num_closed = 0
        self.using = threading.Lock()

    @contextlib.contextmanager
    def alone(self):
        assert self.using.acquire(blocking=False), "used by two threads"
        try:
            yield
        finally:
            self.using.release()

    def __next__(self):
        with self.alone():
            return self.fn(next(self._parent))

    def get_state(self):
        with self.alone():
            return self._parent.get_state()

    def set_state(self, state):
        with self.alone():
            self._parent.set_state(state)

    def close(self):
        with self.alone():
            self.num_closed += 1
            super().close()


class ClosingDataset(IterDataset):
    def __init__(self, parent, fn):
        super().__init__(parent)
        self.fn = fn

    def __iter__(self):
        return Closing(iter(self._parent), self.fn)


class Generated(IterDataset):
    """Iterated by a plain generator, which has no state."""

    def __iter__(self):
        yield from range(200)


# Elements, blocks and the bound


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_no_more_elements_ahead_than_the_buffer_holds(size):
    num_asked, too_far = 0, []

    def look(x):
        if x >= num_asked + size:
            too_far.append(x)
        return x

    it = ahead(numbers(1000, look), size)
    rng = random.Random(size)
    while num_asked < 1000:
        n = min(rng.choice([1, 1, 1, 2, 5]), 1000 - num_asked)
        first, num_asked = num_asked, num_asked + n
        assert it._take(n) == list(range(first, first + n))
    assert too_far == []


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_start_prefetch_fills_the_buffer_and_waits(size):
    gate = Gate(is_open=False)
    it = ahead(numbers(1000, gate), size)
    it.start_prefetch()  # does not wait for an element
    assert it.get_state() == {"next_index": 0}
    gate.open.set()
    wait_until(lambda: len(gate.seen) == size)
    it.start_prefetch()
    assert len(prefetchers()) == 1
    assert it.get_state() == {"next_index": 0}
    for i in range(3):
        assert next(it) == i
        # Without being asked for more, the thread fills the place: up to half of it may be left empty for a block.
        wait_until(lambda i=i: len(gate.seen) >= i + 1 + size - size // 2)
    assert gate.seen == list(range(len(gate.seen)))
    assert len(gate.seen) <= 3 + size
    it.close()


def test_a_buffer_of_0_uses_no_thread():
    gate = Gate()
    it = ahead(numbers(5, gate), 0)
    it.start_prefetch()
    assert gate.seen == []
    assert next(it) == 0
    assert gate.seen == [0]
    assert it.get_state() == {"next_index": 1}
    assert list(it) == [1, 2, 3, 4]
    assert prefetchers() == []
    it.set_state({"next_index": 3})
    assert list(it) == [3, 4]


def test_blocks_of_small_elements_grow_and_shrink(clock):
    sizes, seconds = [], [0.0]

    class Watched:
        def __len__(self):
            return 2000

        def __getitem__(self, key):
            return self.__getitems__([key])[0]

        def __getitems__(self, keys):
            sizes.append(len(keys))
            clock.now += seconds[0]
            return keys

    it = ahead(MapDataset.source(Watched()).to_iter_dataset(DIRECT), 64)
    assert [next(it) for _ in range(1000)] == list(range(1000))
    assert sizes[:6] == [1, 2, 4, 8, 16, 32]
    assert max(sizes) == 32
    seconds[0] = 0.01
    num = len(sizes) + 1  # one may be under way
    assert list(it) == list(range(1000, 2000))
    assert set(sizes[num + 5 :]) == {1}


@pytest.mark.parametrize(
    "stage", [lambda ds: ds, lambda ds: ds.batch(3, batch_fn=list), lambda ds: ds.map_with_index(lambda i, x: (i, x))]
)
def test_states_are_those_without_a_thread(stage, clock):
    """The clock stands still: blocks grow as far as they may."""
    ds = stage(numbers(300).filter(lambda x: x % 5 < 3 or x > 200))
    it, plain = ahead(ds, 100), iter(ds)
    states = [it.get_state()]
    for expected in plain:
        assert next(it) == expected
        assert it.get_state() == plain.get_state()
        states.append(it.get_state())
    assert next(it, "end") == "end"
    assert it.get_state() == states[-1]
    for k in (0, 1, 17, len(states) - 2, len(states) - 1, 40):
        it.set_state(states[k])
        assert it.get_state() == states[k]
        plain.set_state(states[k])
        assert list(it) == list(plain)


def test_the_state_does_not_count_trailing_elements_that_were_dropped():
    it = ahead(numbers(10).filter(lambda x: x in (1, 2)))
    assert list(it) == [1, 2]
    assert it.get_state() == {"next_index": 3}


def test_states_compute_nothing_and_wait_for_nobody():
    gate = Gate()
    it = ahead(numbers(20, gate))
    it.set_state({"next_index": 4})
    assert it.get_state() == {"next_index": 4}
    assert (gate.seen, prefetchers()) == ([], [])
    assert next(it) == 4
    wait_until(lambda: len(gate.seen) == 3)
    gate.open.clear()
    assert next(it) == 5
    wait_until(lambda: gate.num_busy)
    assert it.get_state() == {"next_index": 6}
    gate.open.set()


@pytest.mark.parametrize("size", [1, 40])
def test_behind_workers_states_and_errors_are_theirs(size):
    def fail(x):
        if x == 7:
            raise Boom(x)
        return x

    ds = LocalWorkersIterDataset(numbers(20, fail), 2)
    it, plain = ahead(ds, size), iter(ds)
    for i in range(7):
        assert (next(it), next(plain)) == (i, i)
        assert it.get_state() == plain.get_state()
    for _ in range(2):
        with pytest.raises(Boom):
            next(it)
        assert it.get_state() == plain.get_state()
    it.skip_failed()
    assert list(it) == list(range(8, 20))
    it.set_state(plain.get_state())
    with pytest.raises(Boom):
        next(it)
    it.close()
    plain.close()


# set_state


@pytest.mark.parametrize("size", [1, 3, 50])
def test_set_state_anywhere(size):
    it = ahead(numbers(30), size)
    rng = random.Random(size)
    for _ in range(60):
        k = rng.randrange(31)
        it.set_state({"next_index": k})
        assert it.get_state() == {"next_index": k}
        n = rng.choice([0, 1, 3, 40])
        if rng.random() < 0.3:
            it.start_prefetch()
        assert it._take(n) == list(range(30))[k : k + n]
        assert it.get_state() == {"next_index": min(k + n, 30)}


def test_set_state_waits_until_the_thread_is_out_of_the_parent():
    gate = Gate()
    ds = ClosingDataset(numbers(20), gate)
    it = ahead(ds)
    next(it)
    wait_until(lambda: len(gate.seen) == 3)
    gate.open.clear()
    next(it)
    wait_until(lambda: gate.num_busy)
    with ThreadPoolExecutor(1) as pool:
        setting = pool.submit(it.set_state, {"next_index": 10})
        assert not setting.done()
        gate.open.set()
        setting.result(PATIENCE_SECONDS)
    assert list(it) == list(range(10, 20))


def test_a_refused_state_loses_nothing_above_a_plain_iterator():
    it = ahead(Generated(), 4)
    assert next(it) == 0
    with pytest.raises(NotImplementedError):
        it.get_state()
    with pytest.raises(NotImplementedError):
        it.set_state({"next_index": 0})
    assert list(it) == list(range(1, 200))


# Errors


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_errors_come_in_order_and_the_same_element_is_tried_again(size):
    left = {3: 2, 4: 1, 9: 1}

    def fail(x):
        if left.get(x):
            left[x] -= 1
            raise Boom(x)
        return x

    it, got = ahead(numbers(12, fail), size), []
    while len(got) < 12:
        try:
            got.append(next(it))
        except Boom as error:
            assert error.args == (len(got),)
        assert it.get_state() == {"next_index": len(got)}
    assert (got, set(left.values())) == (list(range(12)), {0})
    assert next(it, "end") == "end"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_any_exception_of_user_code_arrives(error):
    def fail(x):
        if x == 3:
            raise error
        return x

    it = ahead(numbers(5, fail))
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(RuntimeError if error is StopIteration else error) as caught:
            next(it)
        assert any(entry.name == "fail" for entry in caught.traceback) or isinstance(caught.value.__cause__, error)
    it.set_state({"next_index": 4})
    assert list(it) == [4]


def test_an_iterator_without_states_goes_on_after_an_error():
    """As without a thread: the parent is asked for its next element."""

    class Moody(IterDataset):
        def __iter__(self):
            return map(fail, range(1, 6))

    def fail(x):
        if x == 3:
            raise Boom
        return x

    it = ahead(Moody(), 4)
    assert [next(it), next(it)] == [1, 2]
    with pytest.raises(Boom):
        next(it)
    assert list(it) == [4, 5]


def test_an_error_of_the_parents_set_state_arrives():
    class Refusing(Count):
        def set_state(self, state):
            raise Boom("refused")

    it = ThreadPrefetchDatasetIterator(Refusing(10), 2)
    with pytest.raises(Boom):
        it.set_state({"i": [3]})
    assert next(it) == 0
    with pytest.raises(Boom):
        it.set_state({"i": [3]})
    with pytest.raises(Boom):  # it cannot go back to where it was either, and says so
        next(it)


def test_threads_may_be_scarce(monkeypatch):
    class Scarce(threading.Thread):
        num_left = 0

        def start(self):
            if not Scarce.num_left:
                raise RuntimeError("can't start new thread")
            Scarce.num_left -= 1
            super().start()

    monkeypatch.setattr(pullahead.threading, "Thread", Scarce)
    it = ahead(numbers(5))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            next(it)
    Scarce.num_left = 1
    assert list(it) == list(range(5))


# The end of the thread


def test_the_thread_ends_with_the_data():
    it = ahead(numbers(50), 4)
    assert list(it) == list(range(50))
    wait_until(lambda: not prefetchers())
    for _ in range(3):
        assert next(it, "end") == "end"
    it.start_prefetch()
    assert prefetchers() == []  # the end is the end until the state is set
    it.set_state({"next_index": 49})
    assert list(it) == [49]


def closing(fn=lambda x: x, size=2):
    it = ahead(ClosingDataset(numbers(100), fn), size)
    return it, it._parent


def test_close_before_the_start_and_at_the_end():
    for num in (0, 100):
        it, parent = closing()
        assert it._take(num) == list(range(num))
        state = it.get_state()
        for _ in range(2):
            it.close()
            assert parent.num_closed
            assert it.get_state() == state
            with pytest.raises(ValueError, match=r"ThreadPrefetchDatasetIterator.*closed"):
                next(it)
            with pytest.raises(ValueError, match="closed"):
                it.start_prefetch()


@pytest.mark.parametrize("size", [1, 2, 9])
def test_close_while_the_buffer_is_full(size):
    gate = Gate()
    it, parent = closing(gate, size)
    next(it)
    wait_until(lambda: len(gate.seen) >= 1 + size // 2)
    it.close()
    assert parent.num_closed == 1
    wait_until(lambda: not prefetchers())
    with pytest.raises(ValueError, match="closed"):
        next(it)
    assert it.get_state() == {"next_index": 1}


def test_close_while_the_thread_is_busy_waits_for_it_for_a_moment():
    for _ in range(20):
        it, parent = closing(lambda x: sum(range(1000)), 100)
        next(it)
        it.close()
        assert parent.num_closed == 1


def test_close_while_the_thread_is_stuck_in_user_code():
    gate = Gate()
    it, parent = closing(gate)
    gate.open.clear()
    it.start_prefetch()
    wait_until(lambda: gate.num_busy)
    it.close()
    it.close()
    assert gate.num_busy == 1
    assert parent.num_closed == 0  # the thread is in it
    with pytest.raises(ValueError, match="closed"):
        next(it)
    gate.open.set()
    wait_until(lambda: not prefetchers())
    assert parent.num_closed == 1  # and the thread has closed it
    assert gate.seen == [0]
    it.close()
    assert parent.num_closed == 2


def test_close_ends_a_wait_upstream():
    """The thread waits for read-ahead, for processes or for another thread, and these for user code that does not end."""
    for stage in (
        lambda fn: MapDataset.range(9).map(fn).to_iter_dataset(ReadOptions(2, 4)).map(str),
        lambda fn: ThreadPrefetchIterDataset(numbers(9, fn), prefetch_buffer_size=1).batch(2),
    ):
        gate = Gate(is_open=False)
        it = ahead(stage(gate))
        it.start_prefetch()
        wait_until(lambda gate=gate: gate.num_busy)
        thread = it._ahead._thread
        it.close()
        wait_until(lambda thread=thread: not thread.is_alive())
        assert gate.num_busy  # nobody has waited for user code
        gate.open.set()
        wait_until(lambda: not prefetchers())


def test_close_ends_worker_processes_that_are_stuck():
    def hang(x):
        while True:
            time.sleep(100)

    it = ahead(numbers(9, hang).mp_prefetch(MultiprocessingOptions(num_workers=2)))
    it.start_prefetch()
    wait_until(lambda: it._parent._pool is not None)
    workers = [worker.process_id for worker in it._parent._pool.workers]
    it.close()
    for process_id in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
    wait_until(lambda: not prefetchers())


def test_close_by_user_code_in_the_thread():
    def close(x):
        if x == 3:
            it.close()
        return x

    it, parent = closing(close)
    with pytest.raises(ValueError, match="closed"):
        for _ in range(9):
            next(it)
    wait_until(lambda: not prefetchers())
    assert parent.num_closed == 1


def test_the_thread_that_was_dropped_in_user_code_ends_behind_it():
    gate = Gate(is_open=False)
    it = ahead(numbers(9, gate))
    it.start_prefetch()
    wait_until(lambda: gate.num_busy)
    gone = weakref.ref(it)
    del it
    assert gone() is None
    gate.open.set()
    wait_until(lambda: not prefetchers())
    assert gate.seen == [0]


# Interrupts, other threads, other processes


@pytest.mark.parametrize("what", ["next", "set_state"])
def test_an_interrupted_wait_loses_nothing(what):
    """A ``KeyboardInterrupt`` in the middle of waiting for the thread."""
    gate = Gate(is_open=False)
    it = ahead(numbers(9, gate), 3)
    if what == "set_state":
        it.start_prefetch()
        wait_until(lambda: gate.num_busy)
    main = threading.get_ident()

    def interrupt():
        wait_until(lambda: gate.num_busy if what == "next" else it._ahead.is_stopped)
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(it) if what == "next" else it.set_state({"next_index": 5})
        interrupting.result()
    assert it.get_state() == {"next_index": 0}
    gate.open.set()
    assert list(it) == list(range(9))
    if what == "next":
        assert gate.seen == list(range(9))  # each was computed once


# An interrupt may come in a callback of somebody else's, where Python can only print it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", [lambda: numbers(200), Generated], ids=["with_states", "without"])
@pytest.mark.parametrize("size", [1, 5, 60])
def test_interrupts_at_any_moment_lose_nothing(make, size):
    """A timer interrupts the consumer again and again, wherever it is. What is in its list has been delivered."""

    class Interrupt(BaseException):
        pass

    is_armed = []

    def interrupt(number, frame):
        if is_armed:
            is_armed.clear()
            raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    rng = random.Random(size)
    num_interrupts = 0
    try:
        for _ in range(10):
            it, got = ahead(make(), size), []
            is_over = False
            while not is_over:
                try:
                    is_armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-3))
                    while not is_over:
                        # ``extend`` stores the element in the same moment in which it is delivered.
                        num = len(got)
                        got.extend(it._take(1))
                        is_over = len(got) == num
                    is_armed.clear()
                except Interrupt:
                    num_interrupts += 1
                except RuntimeError as error:  # the start of a Python thread is not made for interrupts
                    assert isinstance(error.__context__, Interrupt)
            assert got == list(range(200))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert num_interrupts


FORK = """
import os, signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks of programs with threads
from gristmill import MapDataset, ReadOptions
from gristmill.dataset import IterDataset
from gristmill.experimental import ThreadPrefetchIterDataset

class Generated(IterDataset):
    def __iter__(self):
        yield from range(9)

def run_in_fork(work):
    process_id = os.fork()
    if not process_id:
        signal.alarm(20)
        work()
        os._exit(0)
    assert os.waitpid(process_id, 0)[1] == 0

def go_on():
    assert it.get_state() == state
    for _ in range(2):
        assert list(it) == rest
        it.set_state(state)
    it.close()

def lose_nothing():
    try:
        next(it)
    except ValueError as error:
        assert "forked" in str(error)
        return
    raise AssertionError

for num, *options in (0, 0, 0), (1, 2, 8), (50, 16, 500), (700, 0, 0), (50, 0, 0), (700, 2, 8):
    ds = MapDataset.range(700).map(str).to_iter_dataset(ReadOptions(*options))
    it = iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=9))
    it._take(num)
    rest, state = [str(i) for i in range(num, 700)], {"next_index": num}
    run_in_fork(go_on)
    it.start_prefetch()
    run_in_fork(go_on)
    assert list(it) == rest

it = iter(ThreadPrefetchIterDataset(Generated(), prefetch_buffer_size=2))
assert next(it) == 0
run_in_fork(lose_nothing)
assert list(it) == list(range(1, 9))
"""


def test_a_forked_process_goes_on_from_the_state_or_says_that_it_cannot():
    done = subprocess.run([sys.executable, "-X", "dev", "-c", FORK], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


# Iterators that are not ours, arguments, descriptions


@pytest.mark.parametrize("size", [0, 1, 4])
def test_any_object_with_three_methods_can_be_prefetched_from(size):
    it = ThreadPrefetchDatasetIterator(Count(9), size)
    assert str(it) == f"ThreadPrefetchDatasetIterator(prefetch_buffer_size={size})"
    states = [it.get_state()]
    for i in range(9):
        assert next(it) == i
        states.append(it.get_state())
    assert next(it, "end") == "end"
    assert states == [{"i": [k]} for k in range(10)]
    for k in (3, 9, 0, 3):
        state = {"i": [k]}
        it.set_state(state)
        assert it.get_state() == {"i": [k]}
        assert list(it) == list(range(k, 9))
    it.start_prefetch()
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)


def test_close_and_start_prefetch_reach_such_an_object():
    class Full(Count):
        num_started = num_closed = 0

        def start_prefetch(self):
            self.num_started += 1

        def close(self):
            self.num_closed += 1

    parent = Full(5)
    it = ThreadPrefetchDatasetIterator(parent, 0)
    it.start_prefetch()
    assert parent.num_started == 1
    it.close()
    assert parent.num_closed == 1
    parent = Full(5)
    it = ThreadPrefetchDatasetIterator(parent, 1)
    next(it)
    del it
    wait_until(lambda: not prefetchers())
    assert parent.num_closed == 0  # it is somebody else's


@pytest.mark.parametrize("parent", [object(), iter([1]), [1], None, MapDataset.range(3)])
def test_other_objects_cannot(parent):
    with pytest.raises(TypeError, match="parent must be an iterator with get_state and set_state"):
        ThreadPrefetchDatasetIterator(parent, 2)


@pytest.mark.parametrize(("size", "error"), [(-1, ValueError), (1.5, TypeError), (None, TypeError), ("3", TypeError)])
def test_wrong_buffer_sizes(size, error):
    with pytest.raises(error, match=f"prefetch_buffer_size must be .* got {size!r}"):
        ThreadPrefetchIterDataset(numbers(), prefetch_buffer_size=size)
    with pytest.raises(error, match="prefetch_buffer_size"):
        ThreadPrefetchDatasetIterator(iter(numbers()), size)


def test_the_dataset():
    ds = ThreadPrefetchIterDataset(numbers(), prefetch_buffer_size=2)
    assert str(ds) == "ThreadPrefetchIterDataset(prefetch_buffer_size=2)"
    with pytest.raises(TypeError):
        ThreadPrefetchIterDataset(numbers(), 2)
    with pytest.raises(TypeError):
        ThreadPrefetchIterDataset([1, 2], prefetch_buffer_size=2)
    assert list(ThreadPrefetchIterDataset(MapDataset.range(4), prefetch_buffer_size=2)) == [0, 1, 2, 3]


def test_it_is_a_step_for_seeds():
    seeded = numbers().seed(1)
    ds = ThreadPrefetchIterDataset(seeded, prefetch_buffer_size=1)
    assert ds._default_seed == seeded.map(str)._default_seed != seeded._default_seed


def test_checkpoints_fit_with_and_without_it(tmp_path):
    """It changes nothing about elements and states, so a checkpoint does not say whether it is there."""

    class Directory:
        async def await_creation(self):
            return tmp_path

    async def save(it):
        await (await it.save(Directory()))

    async def load(it):
        await (await it.load(tmp_path))

    plain = numbers(9).batch(2)
    inner = ThreadPrefetchIterDataset(numbers(9), prefetch_buffer_size=3).batch(2)
    outer = ThreadPrefetchIterDataset(plain, prefetch_buffer_size=3)
    variants = [plain, inner, outer, ThreadPrefetchIterDataset(inner, prefetch_buffer_size=0)]
    for saver in variants:
        it = iter(saver)
        next(it), next(it)
        asyncio.run(save(it))
        for loader in variants:
            it = iter(loader)
            assert describe(it) == describe(iter(plain))
            asyncio.run(load(it))
            assert [x.tolist() for x in it] == [[4, 5], [6, 7], [8]]


# Any use of it is a use of the plain pipeline
