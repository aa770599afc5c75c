"""The guarantees of read-ahead: order, the bound, errors, and threads that go when they are no longer needed."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import PATIENCE_SECONDS, running, wait_until

from gristmill.core.options import ReadOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.ahead import readahead
from gristmill.dataset.ahead.readahead import ReadAhead


def readers():
    return running("gristmill-read")


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    wait_until(lambda: not readers() or gc.collect() < 0)


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch):
    monkeypatch.setattr(readahead, "_NUM_CPUS", 16)


class Watched:
    """A source that says what it is asked for, and can be held up."""

    def __init__(self, length):
        self.length = length
        self.lock = threading.Lock()
        self.blocks = []  # the keys of every read, in the order in which the reads began
        self.num_busy = 0
        self.gate = threading.Event()
        self.gate.set()

    def __len__(self):
        return self.length

    def __getitem__(self, key):
        return self.__getitems__([key])[0]

    def __getitems__(self, keys):
        with self.lock:
            self.blocks.append(list(keys))
            self.num_busy += 1
        assert self.gate.wait(PATIENCE_SECONDS)
        with self.lock:
            self.num_busy -= 1
        return list(keys)

    @property
    def keys(self):
        with self.lock:
            return sorted(key for block in self.blocks for key in block)


class Clock:
    """Stands for the module ``time`` in ``readahead``: a block takes as long as the test says."""

    def __init__(self):
        self.now = 0.0
        self.now_cpu = 0.0

    def perf_counter(self):
        return self.now

    def thread_time(self):
        return self.now_cpu


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(readahead, "time", fake)
    return fake


def stream(source, num_threads=4, buffer=8):
    return iter(MapDataset.source(source).to_iter_dataset(ReadOptions(num_threads, buffer)))


@pytest.mark.parametrize(("num_threads", "buffer"), [(1, 1), (1, 8), (4, 8), (16, 3), (3, 100)])
def test_no_more_elements_ahead_than_the_buffer_holds(num_threads, buffer):
    delivered, too_far = 0, []

    class Source(Watched):
        def __getitems__(self, keys):
            # While ``next`` is at work, one more may have been taken than is counted here.
            too_far.extend(key for key in keys if key > delivered + buffer)
            return super().__getitems__(keys)

    source = Source(1000)
    it = stream(source, num_threads, buffer)
    for element in it:
        assert element == delivered
        delivered += 1
    assert too_far == []
    assert source.keys == list(range(1000))  # and each is read once


@pytest.mark.parametrize(("num_threads", "buffer"), [(1, 8), (4, 8), (16, 500)])
def test_start_prefetch_fills_the_buffer_and_waits(num_threads, buffer):
    source = Watched(10_000)
    it = stream(source, num_threads, buffer)
    it.start_prefetch()
    wait_until(lambda: len(source.keys) == buffer)
    for _ in range(3):
        it.start_prefetch()
    assert it.get_state() == {"next_index": 0}
    assert [next(it) for _ in range(buffer)] == list(range(buffer))
    wait_until(lambda: len(source.keys) >= buffer + buffer // 2)
    assert source.keys == list(range(len(source.keys)))
    assert len(source.keys) <= 2 * buffer
    it.close()


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize(
    ("num", "num_threads", "num_cpus", "at_once", "in_the_end"), [(100, 4, 16, 4, 4), (100, 5, 2, 2, 5), (3, 16, 16, 3, 3)]
)
def test_slow_storage_is_asked_by_a_thread_for_each_cpu_and_more_when_somebody_waits(
    num, num_threads, num_cpus, at_once, in_the_end, starts, monkeypatch
):
    monkeypatch.setattr(readahead, "_NUM_CPUS", num_cpus)
    source = Watched(num)
    source.gate.clear()
    it = stream(source, num_threads, 8)
    if starts:
        it.start_prefetch()
        wait_until(lambda: source.num_busy == at_once)
        assert len(readers()) == at_once
        assert sorted(source.blocks) == [[i] for i in range(at_once)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, it)
        wait_until(lambda: source.num_busy == in_the_end)
        source.gate.set()
        assert first.result() == 0
    assert list(it) == list(range(1, num))
    it.start_prefetch()
    assert next(it, "end") == "end"


def test_threads_beyond_the_cpus_come_when_two_elements_in_a_row_are_slow(clock, monkeypatch):
    monkeypatch.setattr(readahead, "_NUM_CPUS", 1)

    class Slow(Watched):
        def __getitems__(self, keys):
            if self.gate.is_set():
                clock.now += 0.01
            if keys == [1]:
                self.gate.clear()  # after two slow elements, everything is held up
            return list(keys) if keys == [1] else super().__getitems__(keys)

    source = Slow(100)
    it = stream(source, 5, 100)
    it.start_prefetch()
    wait_until(lambda: source.num_busy == 5)
    source.gate.set()
    assert list(it) == list(range(100))


def test_elements_that_are_slow_because_they_are_computed_get_no_more_threads_than_cpus(clock, monkeypatch):
    monkeypatch.setattr(readahead, "_NUM_CPUS", 1)
    monkeypatch.setattr(readahead, "_LONG_SECONDS", 30.0)

    class Computed(Watched):
        def __getitems__(self, keys):
            clock.now += 0.01
            clock.now_cpu += 0.01
            return super().__getitems__(keys)

    for i, element in enumerate(stream(Computed(200), 5, 100)):
        assert element == i
        assert len(readers()) <= 1


def test_fewer_threads_than_asked_for_do(monkeypatch):
    class Scarce(threading.Thread):
        num_left = 2

        def start(self):
            if not Scarce.num_left:
                raise RuntimeError("can't start new thread")
            Scarce.num_left -= 1
            super().start()

    monkeypatch.setattr(readahead.threading, "Thread", Scarce)
    it = stream(Watched(100), 16, 32)
    it.start_prefetch()
    assert list(it) == list(range(100))
    with pytest.raises(RuntimeError, match="can't start new thread"):  # not one thread: an error, not a wait
        list(stream(Watched(100)))


def test_a_quick_source_has_no_more_threads_than_cpus(clock, monkeypatch):
    monkeypatch.setattr(readahead, "_NUM_CPUS", 2)
    monkeypatch.setattr(readahead, "_LONG_SECONDS", 30.0)
    it = stream(Watched(5000), 16, 500)
    for i in range(5000):
        assert next(it) == i
        assert len(readers()) <= 2


def test_blocks_of_a_quick_source_grow_up_to_half_the_buffer(clock):
    source = Watched(300)
    assert list(stream(source, 1, 64)) == list(range(300))
    sizes = [len(block) for block in source.blocks]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert max(sizes) == 32
    assert sum(sizes) == 300


def test_blocks_of_a_slow_source_stay_single_and_shrink_again(clock):
    class Slow(Watched):
        slow = True

        def __getitems__(self, keys):
            if self.slow:
                clock.now += 0.01
            return super().__getitems__(keys)

    source = Slow(60)
    assert list(stream(source, 1, 16)) == list(range(60))
    assert source.blocks == [[key] for key in range(60)]

    changing = Slow(600)
    changing.slow = False
    it = stream(changing, 1, 16)
    for _ in range(200):
        next(it)
    changing.slow = True
    seen = len(changing.blocks) + 1  # one may be under way
    assert list(it) == list(range(200, 600))
    sizes = [len(block) for block in changing.blocks]
    assert max(sizes) == 8
    assert sizes[seen + 4 :] == [1] * len(sizes[seen + 4 :])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_everything_before_an_error_is_delivered(clock, num_threads):
    for bad in range(40):

        def compute(indices, bad=bad):
            if bad in indices:
                raise KeyError(bad)
            return list(indices)

        for size in (1, 3, 50):
            ahead = ReadAhead(compute, 0, 60, num_threads, 32)
            got = []
            with pytest.raises(KeyError) as caught:
                while True:
                    taken = ahead.take(size)
                    assert 1 <= len(taken) <= size
                    got += taken
            assert caught.value.args == (bad,)
            assert got == list(range(bad))
            with pytest.raises(KeyError):  # and nothing more
                ahead.take(size)
            ahead.close()


def test_a_long_quick_run_up_to_an_error():
    def fail(x):
        if x == 997:
            raise KeyError(x)
        return x

    for options in (ReadOptions(1, 64), ReadOptions(16, 500)):
        it = iter(MapDataset.range(2000).map(fail).to_iter_dataset(options))
        assert [next(it) for _ in range(997)] == list(range(997))
        with pytest.raises(KeyError):
            next(it)
        assert it.get_state() == {"next_index": 997}
        batches = iter(MapDataset.range(2000).map(fail).to_iter_dataset(options).batch(50, batch_fn=list))
        assert [next(batches) for _ in range(19)] == [list(range(i, i + 50)) for i in range(0, 950, 50)]
        with pytest.raises(KeyError):
            next(batches)


def test_states_read_nothing_and_wait_for_nobody():
    source = Watched(100)
    it = iter(MapDataset.source(source).map(str).shuffle(seed=1).to_iter_dataset().batch(10))
    it.get_state()
    it = stream(source)
    it.set_state({"next_index": 40})
    assert it.get_state() == {"next_index": 40}
    assert (source.blocks, readers()) == ([], [])
    next(it)
    source.gate.clear()
    wait_until(lambda: source.num_busy or len(source.keys) >= 8)
    assert it.get_state() == {"next_index": 41}
    source.gate.set()


def test_threads_end_with_the_data_an_error_or_close():
    it = stream(Watched(100))
    list(it)
    wait_until(lambda: not readers())
    assert next(it, "end") == "end"
    it = iter(MapDataset.range(-9, 99).map(lambda x: 1 // (x + 9)).to_iter_dataset(ReadOptions(4, 8)))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            next(it)
    wait_until(lambda: not readers())
    for num_taken in (0, 1, 50):
        it = stream(Watched(1000))
        it.start_prefetch()
        assert [next(it) for _ in range(num_taken)] == list(range(num_taken))
        assert readers()
        it.close()
        wait_until(lambda: not readers())
        with pytest.raises(ValueError, match=r"PrefetchDatasetIterator.*closed"):
            next(it)


def test_set_state_discards_what_was_read():
    source = Watched(100)
    it = stream(source, 2, 8)
    it.start_prefetch()
    wait_until(lambda: len(source.keys) == 8)
    for index in (50, 3, 3, 99, 100, 0):
        it.set_state({"next_index": index})
        assert it.get_state() == {"next_index": index}
        if index < 100:
            assert next(it) == index
        else:
            assert next(it, "end") == "end"
    it.close()


def test_on_demand_reads_use_no_threads():
    for options in (ReadOptions(0, 500), ReadOptions(16, 0)):
        source = Watched(20)
        it = iter(MapDataset.source(source).to_iter_dataset(options))
        it.start_prefetch()
        assert source.blocks == []
        assert next(it) == 0
        assert source.keys == [0]
        assert list(it) == list(range(1, 20))
        assert readers() == []
    assert list(MapDataset.range(5)) == list(range(5))
    assert readers() == []


def test_no_lock_is_held_while_a_thread_starts(monkeypatch):
    """A new thread may collect garbage, and close, before ``start`` returns to the thread that waits for it."""
    plain = threading.Thread
    closed = []

    class Closing(plain):
        def start(self):
            super().start()
            closer = plain(target=ahead.close)
            closer.start()
            closer.join(PATIENCE_SECONDS)
            closed.append(not closer.is_alive())

    ahead = ReadAhead(list, 0, 100, 4, 8)
    monkeypatch.setattr(readahead.threading, "Thread", Closing)
    ahead.start()
    assert closed == [True] * 4


def test_closing_does_not_wait_for_user_code():
    source = Watched(100)
    source.gate.clear()
    it = stream(source, 4, 8)
    it.start_prefetch()
    wait_until(lambda: source.num_busy == 4)
    it.close()
    assert source.num_busy == 4
    other = stream(source, 4, 8)
    other.start_prefetch()
    wait_until(lambda: source.num_busy == 8)
    del other
    assert source.num_busy == 8
    source.gate.set()
    wait_until(lambda: not readers())
    assert len(source.keys) == 8


@pytest.mark.parametrize("condition", ["_room", "_filled"])
def test_close_in_the_very_moment_before_waiting(monkeypatch, condition):
    """As if the garbage collector, or a signal handler, had come between the look at the flag and the wait."""
    monkeypatch.setattr(readahead, "_ANEW_SECONDS", 0.01)
    gate = threading.Event()
    ahead = ReadAhead(lambda r: [gate.wait(PATIENCE_SECONDS), list(r)][1], 0, 100, 1, 1)
    waiting = getattr(ahead, condition)
    wait = waiting.wait
    calls = []

    def close_and_wait(timeout):
        calls.append(timeout)
        if condition == "_room" or len(calls) > 1:  # the consumer's first wait is a short one anyway
            ahead.close()
        return wait(timeout)

    waiting.wait = close_and_wait
    if condition == "_room":
        gate.set()
        ahead.start()
        wait_until(lambda: calls)
    else:
        with pytest.raises(ValueError, match="closed"):
            ahead.take(1)
        gate.set()
    wait_until(lambda: not readers())
