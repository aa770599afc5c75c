"""The guarantees of read-ahead: order, the bound, errors, and threads that go when they are no longer needed."""

import gc
import random
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from gristmill.core.options import ReadOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.ahead import readahead
from gristmill.dataset.ahead.readahead import ReadAhead

PATIENCE_SECONDS = 30.0  # a test that has to wait this long has failed


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        pause.wait(0.002)


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "gristmill-read"]


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    gc.collect()
    wait_until(lambda: not readers())


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


@pytest.mark.parametrize("num_threads", [1, 2, 5, 16])
@pytest.mark.parametrize("buffer", [16, 17, 100, 5000])
def test_order(num_threads, buffer):
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for size in (1, 7, 128):
            it = iter(MapDataset.range(1000).map(str).to_iter_dataset(ReadOptions(num_threads, buffer)))
            got = []
            while block := it._take(size):
                got += block
            assert got == [str(i) for i in range(1000)]
    finally:
        sys.setswitchinterval(switch)


def test_buffers_smaller_than_the_number_of_threads():
    for buffer in (1, 2, 3, 15):
        source = Watched(60)
        assert list(stream(source, 16, buffer)) == list(range(60))
        assert source.keys == list(range(60))


@pytest.mark.parametrize(("num_threads", "buffer"), [(1, 1), (1, 8), (4, 8), (16, 16), (3, 100)])
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
    assert delivered == 1000
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


def test_start_prefetch_at_the_end_of_the_data_starts_no_more_threads_than_elements():
    source = Watched(3)
    source.gate.clear()
    it = stream(source, 16, 32)
    it.start_prefetch()
    wait_until(lambda: source.num_busy == 3)
    assert len(readers()) == 3
    source.gate.set()
    assert list(it) == [0, 1, 2]
    it.start_prefetch()
    assert next(it, "end") == "end"


def test_slow_storage_is_asked_by_all_threads_for_one_element_each():
    source = Watched(100)
    source.gate.clear()
    it = stream(source, 4, 8)
    it.start_prefetch()
    wait_until(lambda: source.num_busy == 4)
    assert sorted(source.blocks) == [[0], [1], [2], [3]]
    source.gate.set()
    assert list(it) == list(range(100))


def test_threads_beyond_the_cpus_come_when_the_consumer_waits_for_long(monkeypatch):
    monkeypatch.setattr(readahead, "_NUM_CPUS", 2)
    source = Watched(100)
    source.gate.clear()
    it = stream(source, 5, 8)
    it.start_prefetch()
    wait_until(lambda: source.num_busy == 2)
    assert len(readers()) == 2
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, it)
        wait_until(lambda: source.num_busy == 5)
        source.gate.set()
        assert first.result() == 0
    assert list(it) == list(range(1, 100))


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


def test_a_consumer_that_waits_gets_all_the_threads():
    source = Watched(100)
    source.gate.clear()
    it = stream(source, 4, 8)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, it)
        wait_until(lambda: source.num_busy == 4)
        source.gate.set()
        assert first.result() == 0
    assert list(it) == list(range(1, 100))


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


def test_nothing_is_read_before_the_first_next():
    source = Watched(100)
    it = stream(source)
    it.get_state()
    it.set_state({"next_index": 40})
    it.get_state()
    it.close()
    it = iter(MapDataset.source(source).map(str).shuffle(seed=1).to_iter_dataset().batch(10))
    it.get_state()
    assert source.blocks == []
    assert readers() == []


def test_get_state_reads_nothing():
    source = Watched(100)
    it = stream(source)
    next(it)
    wait_until(lambda: len(source.keys) >= 1)
    source.gate.clear()
    wait_until(lambda: source.num_busy or len(source.keys) >= 8)
    for _ in range(100):
        assert it.get_state() == {"next_index": 1}  # does not wait for anybody either
    source.gate.set()
    it.close()


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


def test_threads_end_with_the_data():
    it = stream(Watched(100))
    list(it)
    wait_until(lambda: not readers())
    assert next(it, "end") == "end"


def test_threads_end_after_close():
    for num_taken in (0, 1, 50):
        it = stream(Watched(1000))
        it.start_prefetch()
        for _ in range(num_taken):
            next(it)
        assert readers()
        it.close()
        wait_until(lambda: not readers())
        with pytest.raises(ValueError, match=r"PrefetchDatasetIterator.*closed"):
            next(it)


def test_threads_end_when_the_iterator_is_dropped():
    it = stream(Watched(1000))
    next(it)
    assert readers()
    del it
    wait_until(lambda: not readers())
    for _ in stream(Watched(1000)):
        break
    wait_until(lambda: not readers())


def test_threads_end_after_an_error():
    def fail(x):
        raise KeyError(x)

    it = iter(MapDataset.range(1000).map(fail).to_iter_dataset(ReadOptions(4, 8)))
    for _ in range(3):
        with pytest.raises(KeyError):
            next(it)
    wait_until(lambda: not readers())


def test_an_error_keeps_no_elements_alive():
    class Element:
        pass

    made = []

    def element(i):
        if i == 40:
            raise KeyError(i)
        x = Element()
        made.append(weakref.ref(x))
        return x

    gc.disable()  # reference counts must do
    try:
        it = iter(MapDataset.range(200).map(element).to_iter_dataset(ReadOptions(4, 100)))
        assert len([next(it) for _ in range(40)]) == 40
        with pytest.raises(KeyError):
            next(it)
        wait_until(lambda: not any(ref() for ref in made))
    finally:
        gc.enable()


def test_the_last_elements_are_not_kept_alive():
    class Element:
        pass

    it = iter(MapDataset.range(20).map(lambda i: Element()).to_iter_dataset(ReadOptions(1, 8)))
    made = [weakref.ref(next(it)) for _ in range(20)]
    wait_until(lambda: not any(ref() for ref in made))
    assert next(it, "end") == "end"


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


def test_200_abandoned_iterators_leave_no_threads():
    for i in range(200):
        it = iter(MapDataset.range(1000).map(str).to_iter_dataset(ReadOptions(4, 8)).batch(3, batch_fn=list))
        assert next(it) == ["0", "1", "2"]
        if i % 2:
            it.circle = [it]  # for the garbage collector
    del it
    gc.collect()
    wait_until(lambda: not readers())


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


def test_a_consumer_that_waits_learns_that_the_iterator_was_closed():
    for after in (lambda ds: ds, lambda ds: ds.batch(4)):
        source = Watched(100)
        source.gate.clear()
        it = iter(after(MapDataset.source(source).to_iter_dataset(ReadOptions(4, 8))))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, it)
            wait_until(lambda source=source: source.num_busy == 4)
            it.close()
            with pytest.raises(ValueError, match="closed"):
                waiting.result(PATIENCE_SECONDS)
        source.gate.set()
        wait_until(lambda: not readers())


def test_iterators_of_several_threads():
    ds = MapDataset.range(500).shuffle(seed=1).map(str).to_iter_dataset(ReadOptions(3, 7))
    expected = list(ds)

    def consume(seed):
        it, got = iter(ds), []
        while block := it._take(random.Random(seed).randint(1, 9)):
            got += block
        return got

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(consume, range(16))) == [expected] * 16


def test_an_iterator_may_move_from_thread_to_thread():
    it = stream(Watched(40))
    with ThreadPoolExecutor(1) as pool:
        got = [pool.submit(next, it).result() if i % 2 else next(it) for i in range(40)]
    assert got == list(range(40))


def test_garbage_collection_of_an_iterator_inside_a_read_thread():
    def collect(x):
        gc.collect()
        return x

    def abandon(num_taken):
        it = iter(MapDataset.range(10_000).map(collect).to_iter_dataset(ReadOptions(2, 4)))
        it.circle = it
        for _ in range(num_taken):
            next(it)

    for i in range(6):
        abandon(i)
        busy = iter(MapDataset.range(10).map(collect).to_iter_dataset(ReadOptions(3, 6)))
        assert list(busy) == list(range(10))
    wait_until(lambda: not readers())


def test_garbage_collection_at_every_allocation():
    before = gc.get_threshold()
    gc.freeze()  # what is there already need not be looked at
    gc.set_threshold(1)
    try:
        for i in range(20):
            it = iter(MapDataset.range(100).map(lambda x: [x]).to_iter_dataset(ReadOptions(4, 8)))
            it.circle = it
            assert [next(it) for _ in range(i)] == [[k] for k in range(i)]
            del it
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    gc.collect()
    wait_until(lambda: not readers())


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
