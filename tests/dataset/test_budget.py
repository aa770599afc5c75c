"""Guarantees of budgets: threads, memory, priority, and no wait for a thread."""

import threading
import time
import weakref

import numpy as np
import pytest
from computing_ahead import Crowd, Gate, no_threads_left, wait_for_no_threads, working  # noqa: F401
from waiting import wait_until

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, Schedule
from gristmill.dataset.ahead.budget import Budget, divide
from gristmill.dataset.ahead.readahead import ReadAhead
from gristmill.dataset.ahead.sizes import Sampling
from gristmill.experimental import (
    DatasetOptions,
    InterleaveIterDataset,
    WithOptionsIterDataset,
    ZipIterDataset,
)


def within(ds, **options):
    return iter(WithOptionsIterDataset(ds, DatasetOptions(**options)))


def mixed(functions, weights=None):
    parts = [MapDataset.range(1000).map(fn).to_iter_dataset() for fn in functions]
    return IterDataset.mix(parts, weights)


class Threads:
    """A function that waits a moment, and counts the threads in it and those that work ahead."""

    def __init__(self):
        self.most = 0

    def __call__(self, x):
        threading.Event().wait(0.001)
        self.most = max(self.most, len(working()))
        return x


@pytest.mark.parametrize("num_threads", [1, 16, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda fn: mixed([fn] * 35),
        lambda fn: IterDataset.mix(
            [mixed([fn] * 3).thread_prefetch(2) for _ in range(12)]
        ).thread_prefetch(3),
        lambda fn: ZipIterDataset([mixed([fn]).thread_prefetch(2), mixed([fn] * 20)]).map(
            lambda pair: pair[1]
        ),
        lambda fn: InterleaveIterDataset(
            [mixed([fn] * 2) for _ in range(30)], cycle_length=20, num_make_iter_threads=4
        ),
        lambda fn: mixed([fn] * 9).mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=3)),
        lambda fn: mixed([fn] * 2).multithread_prefetch(20, 2),
    ],
    ids=["mixture", "nested", "zip", "interleave", "lanes", "threads"],
)
def test_a_pipeline_has_no_more_threads_than_its_budget(make, num_threads):
    threads = Threads()
    with iter(make(lambda x: x)) as it:
        expected = it._gm_take(70)
    wait_for_no_threads()
    with within(make(threads), max_threads=num_threads) as it:
        it.start_prefetch()
        assert it._gm_take(70) == expected
    limit = Budget().max_threads if num_threads is None else num_threads
    # 20 were asked for by number
    assert threads.most <= max(limit, 20 if num_threads is None else 0)


def test_lanes_have_the_threads_of_the_options_together():
    ds = MapDataset.range(160).map(Crowd(40)).to_iter_dataset(ReadOptions(48))
    with iter(ds.mp_prefetch(MultiprocessingOptions(0, num_lanes=16))) as it:
        assert [*it] == [*range(160)]


def test_readers_that_begin_later_have_threads():
    budget = Budget(64)

    def reader(fn, num_threads):
        def items(indices):
            return map(fn, indices)

        ahead = ReadAhead(items, 0, 10**6, num_threads, 100, budget)
        budget.enroll(ahead)
        return ahead

    first = reader(lambda x: time.sleep(0.005), 2)
    while budget.num_waits < 9:
        first.take(1)
    assert budget.num_reading == 2
    crowd = Crowd(62)
    second = reader(crowd, 62)  # without waiting for what it reads
    wait_until(crowd.is_there.is_set)
    first.close()
    second.close()


def test_promised_threads_stay_when_processes_change():
    for given, after in ((None, 48), (9, 3)):
        budget = Budget(given)
        budget.allow(48)
        divide(budget, DatasetOptions(max_threads=given), 3)
        assert budget.max_threads == after


def test_a_thread_computes_itself_while_all_others_are_stuck():
    gate = Gate(1)
    with within(mixed([gate, lambda x: ~x], [1, 300]), max_threads=1) as it:
        num_before = len(list(iter(it.__next__, 0)))  # of the other component
        wait_until(lambda: gate.num_busy)
        assert it._gm_take(300) == [~x for x in range(num_before, num_before + 300)]
        gate.open.set()
        assert next(it) == 1
    wait_for_no_threads()


class Live:
    """Arrays of some size, and how many bytes of them there are and were at most; the time of one
    is that of a small wait.
    """

    def __init__(self):
        self.lock = threading.RLock()  # finalizers may run where a thread has it
        self.now = self.most = 0

    def of(self, size):
        def make(x):
            threading.Event().wait(0.0005)
            array = np.empty(size, np.uint8)
            self.count(size)
            weakref.finalize(array, self.count, -size).atexit = False
            return array

        return make

    def count(self, size):
        with self.lock:
            self.now += size
            self.most = max(self.most, self.now)


@pytest.mark.parametrize("prefetches", [False, True])
def test_memory_stays_within_the_budget_for_all_sizes(prefetches):
    live, num_bytes = Live(), 4_000_000
    ds = mixed(
        [live.of(size) for size in (1000, 10_000, 100_000, 1_000_000) * 5], [1000, 300, 30, 3] * 5
    )
    ds = ds.thread_prefetch(300) if prefetches else ds
    with within(ds, max_threads=4, max_bytes_ahead=num_bytes) as it:
        for _ in range(3000):
            next(it)
    # of four threads the results are unknown
    assert num_bytes / 4 < live.most <= 1.1 * num_bytes + 4 * 1_000_000


class Costly:
    """An element whose size takes 5 ms to find."""

    @property
    def nbytes(self):
        stop = time.thread_time() + 0.005
        while time.thread_time() < stop:
            pass
        return 1000


def test_measuring_sizes_takes_a_hundredth_of_the_time():
    sampling = Sampling()
    chosen = []
    for _ in range(20):
        num = sampling.num_of(0.25)
        chosen.append(num)
        if num:
            assert sampling.mean_bytes([Costly()]) == 1000
    assert chosen[0] >= 1 and sum(chosen[1:]) * 0.005 <= 0.01 * 20 * 0.25


def test_outputs_of_workers_that_wait_are_in_the_budget(tmp_path):
    made, size = tmp_path / "made", 1 << 20

    def make(x):
        with made.open("ab") as file:
            file.write(b".")
        return np.full(size, x, np.uint8)

    def num_made():
        return made.stat().st_size if made.exists() else 0

    ds = MapDataset.range(60).map(make).to_iter_dataset(ReadOptions(num_threads=0))
    work = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=100)
    with within(ds.mp_prefetch(work), max_bytes_ahead=8 * size) as it:
        for i in range(60):
            assert next(it)[0] == i
            wait_until(lambda i=i: num_made() >= min(60, i + 1 + 6))
            # Four of each worker wait, one does not fit in, and the consumer's message that one was
            # taken may be on its way.
            assert num_made() <= i + 1 + 2 * (4 + 2)


def constants(ds, element):
    return ds.map(lambda _: element)


COMMON = constants(MapDataset.range(10**6), "common")
STREAM = COMMON.to_iter_dataset(ReadOptions(num_threads=0))
COMMON = COMMON.to_iter_dataset()
RARELY = [1, 300]
WITH_A_RARE_COMPONENT = {
    "drawn first": lambda rare: IterDataset.mix([rare, COMMON], RARELY),
    "drawn second": lambda rare: IterDataset.mix([COMMON, rare], RARELY[::-1]),
    "beside a stream that is not read ahead": lambda rare: IterDataset.mix([rare, STREAM], RARELY),
    "later": lambda rare: IterDataset.mix([rare, COMMON], Schedule({0: [0, 1], 9: RARELY})),
    "others begun again": lambda rare: IterDataset.mix(
        [rare, COMMON.limit(500)], RARELY, stop="never"
    ),
    "begun again": lambda rare: IterDataset.mix([rare.limit(1), COMMON], RARELY, stop="never"),
    "nested": lambda rare: IterDataset.mix(
        [IterDataset.mix([rare, COMMON], [1, 99]), STREAM], [1, 2]
    ),
    "in a thread": lambda rare: IterDataset.mix([rare, COMMON], RARELY).thread_prefetch(9),
}


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("way", WITH_A_RARE_COMPONENT)
def test_a_rare_component_is_read_few_elements_ahead(way, starts):
    """It is ahead by as many draws as the others, also while it is the only one that is read."""
    read = []
    rare = MapDataset.range(10**6).map(lambda i: read.append(i) or "rare").to_iter_dataset()
    with iter(WITH_A_RARE_COMPONENT[way](rare)) as it:
        if starts:
            it.start_prefetch()
        num = [next(it) for _ in range(700)].count("rare")
        assert 2 <= num <= len(read) <= num + 9


def test_a_component_drawn_more_often_is_read_ahead():
    """The other component has ended, so the consumer waits for this one each time."""
    lock, busy = threading.Lock(), [0]

    def slowly(x):
        with lock:
            busy.append(busy[-1] + 1)
        threading.Event().wait(0.002)
        with lock:
            busy.append(busy[-1] - 1)
        return x

    slow = MapDataset.range(10**4).map(slowly).to_iter_dataset()
    with iter(IterDataset.mix([slow, STREAM.limit(300)], RARELY, stop="all")) as it:
        assert [next(it) for _ in range(500)][-1] == 199
    assert max(busy) > 3


def test_a_budget_is_divided_but_for_numbers_given_to_stages():
    assert (Budget(5, 100, 2).max_threads, Budget(1, 10, 3).max_threads) == (2, 1)
    assert Budget(1, 100, 2).memory.max_bytes == 50
    with within(MapDataset.range(9).map(str).to_iter_dataset(ReadOptions(99, 100))) as it:
        next(it)
        assert it._ctx.budget.max_threads == 99
