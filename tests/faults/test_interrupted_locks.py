"""Interrupts leave no lock held and lose no element.

They come where Python calls handlers of signals, and at random.

``GRISTMILL_TEST_INTERRUPTS=1250`` sends 10000 random ones in all, and one at every such point.
"""

import gc
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupting import NUM_INTERRUPTS, Locks, interrupted_where_handlers_run, interrupts_at_random
from new_seed import SEED

import gristmill as gm
from gristmill.core.exiting import end_thread_at_exit
from gristmill.core.locks import Lock, Signal
from gristmill.core.uninterrupted import computed_by, uninterrupted
from gristmill.dataset.ahead import threads
from gristmill.experimental import ThreadPrefetchIterDataset
from gristmill.sources.kept import KeptValues

NUM = 60  # elements
THREADS = gm.ReadOptions(num_threads=2, prefetch_buffer_size=8)


@pytest.fixture(autouse=True)
def without_collector():
    gc.disable()  # pytest has callbacks for it, in which an interrupt is printed, not raised
    yield
    gc.enable()
    gc.collect()
    # An interrupt of the finalizer that dismisses a reader leaves an idle thread.
    for end in [*threads._running.values()]:
        end()


class Streaming:
    """Takes the elements of one epoch after the other; each has to be ``expected``."""

    def __init__(self, ds, expected):
        self.ds, self.expected = ds, expected
        self.it, self.got = iter(ds), []

    def use(self, num=7):
        for _ in range(num):
            length = len(self.got)
            # ``extend`` stores the element in the same moment in which it is delivered.
            self.got.extend(self.it._gm_take(1))
            if len(self.got) == length:
                assert self.got == self.expected
                before = self.it
                self.it, self.got = iter(self.ds), []
                before.close()
        assert self.got == self.expected[: len(self.got)]

    def close(self):
        self.use(NUM)
        self.it.close()


def within(ds, **options):
    return gm.experimental.WithOptionsIterDataset(ds, gm.experimental.DatasetOptions(**options))


def reading():
    return Streaming(gm.MapDataset.range(NUM).map(int).to_iter_dataset(THREADS), [*range(NUM)])


def pulling():
    ds = gm.MapDataset.range(NUM).to_iter_dataset(gm.ReadOptions(num_threads=0))
    return Streaming(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=4), [*range(NUM)])


def pulling_without_threads():
    """One thread for two that pull: their consumers pull, too."""
    ds = gm.MapDataset.range(NUM).to_iter_dataset(gm.ReadOptions(num_threads=0))
    for _ in range(2):
        ds = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=4)
    return Streaming(within(ds, max_threads=1), [*range(NUM)])


def reading_blocks():
    ds = gm.MapDataset.range(NUM).block_shuffle(4, group_size=5, seed=1)
    return Streaming(ds.to_iter_dataset(THREADS), list(ds))


def interleaving():
    """Threads as workers, each of which computes whole datasets of an interleave."""
    parts = [gm.MapDataset.range(NUM)[i::5].to_iter_dataset(gm.ReadOptions(0)) for i in range(5)]
    workers = gm.MultiprocessingOptions(2, executor="threads")
    ds = gm.experimental.InterleaveIterDataset(parts, cycle_length=3)
    return Streaming(ds.mp_prefetch(workers, order="stream"), list(ds))


class Values:
    """Values that several threads ask for, of which few have room."""

    def __init__(self):
        self.kept, self.is_over = KeptValues(3), False
        self.others = ThreadPoolExecutor(2)
        self.ends = [self.others.submit(self.use_all) for _ in range(2)]

    def use_all(self):
        while not self.is_over:
            self.use()

    def use(self):
        for key in range(6):
            assert self.kept.get(key, lambda: 1, lambda key=key: (key, 1)) == key
            assert self.kept.num_bytes <= 3

    def close(self):
        self.is_over = True
        for end in self.ends:
            end.result(10)
        self.others.shutdown()
        assert not self.kept._making


class Handing:
    """A lock and two signals between two threads."""

    def __init__(self):
        self.lock, self.asked, self.answered = Lock(), Signal(), Signal()
        self.num = self.seen = 0
        self.thread = threading.Thread(target=self.answer, daemon=True)
        self.thread.start()

    def answer(self):
        while self.num >= 0:
            self.asked.wait(1)
            with self.lock:
                self.seen = self.num
            self.answered.set()

    def use(self):
        with self.lock:
            self.num += 1
        self.asked.set()
        while self.seen != self.num:
            assert self.answered.wait(5)
            self.asked.set()
        assert self.lock.is_free(5)

    def close(self):
        with self.lock:
            self.num = -1
        self.asked.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


class Ending:
    """A question whether the program ends: Python must not lose sight of a running main thread."""

    def use(self):
        for _ in range(20):
            end_thread_at_exit()

    def close(self):
        assert threading.main_thread().is_alive()


class Starting:
    """Threads that are started, and a pool of them."""

    def __init__(self):
        self.pool, self.started = ThreadPoolExecutor(2), []

    def use(self):
        thread = threading.Thread(target=int, daemon=True)
        self.started.append(thread)
        uninterrupted(thread.start)
        assert computed_by(self.pool, str, [1, 2, 3]) == ["1", "2", "3"]

    def close(self):
        self.use()
        self.pool.shutdown()
        for thread in self.started:
            if thread.ident:
                thread.join(10)
                assert not thread.is_alive()


# Interrupts of finalizers are printed, and files whose opening was interrupted are closed by one.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Hiring:
    """A worker of a pool, which is acquired, used and released."""

    def __init__(self):
        options = gm.MultiprocessingOptions(num_workers=1)
        self.ds = gm.MapDataset.range(NUM).to_iter_dataset().mp_prefetch(options)

    def use(self):
        it = iter(self.ds)
        assert next(it) == 0
        it.close()

    def close(self):
        self.use()


CASES = [reading, pulling, pulling_without_threads, reading_blocks, interleaving]
STEPS = {interleaving: 71, Hiring: 197}  # from one interrupt to the next, where that takes long
CASES += [Values, Handing, Ending, Starting, Hiring]


@pytest.mark.parametrize("make", CASES)
def test_where_handlers_run(make):
    with Locks() as locks:
        step = 1 if NUM_INTERRUPTS > 1000 else STEPS.get(make, 11)
        number, num_whole = SEED % step, 0
        while num_whole < 3:  # calls that do not reach the number; others may do more
            used = make()
            num_whole += not interrupted_where_handlers_run(used.use, number)
            assert not locks.held(), number
            used.close()
            number += step
        assert number > 10


@pytest.mark.parametrize("make", CASES)
def test_at_random(make):
    num_left = NUM_INTERRUPTS
    with Locks() as locks, interrupts_at_random(random.Random(SEED)) as is_interrupted:
        used = make()
        while num_left:
            num_left -= is_interrupted(lambda: [used.use() for _ in range(100)])
            assert not locks.held()
        used.close()


def test_a_lock_that_is_entered_by_a_plain_call_is_left_held(monkeypatch):
    """Otherwise the tests above could not fail."""
    monkeypatch.setattr(Lock, "__enter__", lambda lock: lock.acquire())
    with Locks() as locks:
        lock, held = Lock(), []
        for number in itertools.count():
            was_interrupted = interrupted_where_handlers_run(lambda: lock.__enter__(), number)
            if not was_interrupted:
                break
            held += locks.held()
        assert held == [lock]
