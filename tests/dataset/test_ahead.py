"""What holds for threads that read ahead and for a thread that prefetches: order, and that nothing of them is left."""

import gc
import random
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import PATIENCE_SECONDS, running, wait_until

from gristmill import MapDataset, ReadOptions
from gristmill.experimental import ThreadPrefetchIterDataset


def reading(n, fn, size, num_threads=4):
    return MapDataset.range(n).map(fn).to_iter_dataset(ReadOptions(num_threads, size))


def prefetching(n, fn, size):
    return ThreadPrefetchIterDataset(MapDataset.range(n).to_iter_dataset(ReadOptions(0)).map(fn), prefetch_buffer_size=size)


each_kind = pytest.mark.parametrize("make", [reading, prefetching])


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    wait_until(lambda: not running("gristmill") or gc.collect() < 0)


@pytest.fixture
def frozen():
    """What is there already need not be looked at by the garbage collector."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def without_collector():
    gc.disable()  # reference counts must do
    yield
    gc.enable()


class Element:
    pass


PREFETCHES = [(prefetching, size) for size in (0, 1, 2, 3, 64, 1000)]
READS = [(reading, size, num) for num, size in ((1, 16), (2, 17), (5, 100), (16, 16), (16, 5000), (1, 2), (16, 1), (16, 15))]


@pytest.mark.parametrize(("make", "args"), [(make, args) for make, *args in PREFETCHES + READS])
def test_order(make, args):
    ds = make(500, str, *args)
    expected = [str(i) for i in range(500)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for n in (1, 2, 7, 128):
            it, got = iter(ds), []
            while block := it._take(n):
                got += block
            assert got == expected
        assert list(ds) == expected
    finally:
        sys.setswitchinterval(switch)


@each_kind
def test_iterators_of_several_threads(make):
    ds = make(500, str, 7).batch(2, batch_fn=list)
    expected = list(ds)

    def consume(seed):
        it, got = iter(ds), []
        while block := it._take(random.Random(seed).randint(1, 9)):
            got += block
        return got

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(consume, range(16))) == [expected] * 16


@each_kind
def test_an_iterator_may_move_from_thread_to_thread(make):
    it = iter(make(40, int, 8))
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(next, it).result() if i % 2 else next(it) for i in range(40)] == list(range(40))


@pytest.mark.parametrize("after", [lambda ds: ds, lambda ds: ds.batch(4)])
@each_kind
def test_a_consumer_that_waits_learns_that_the_iterator_was_closed(make, after):
    busy, gate = threading.Event(), threading.Event()
    it = iter(after(make(9, lambda x: busy.set() or gate.wait(PATIENCE_SECONDS), 2)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, it)
        wait_until(busy.is_set)
        it.close()
        with pytest.raises(ValueError, match="closed"):
            waiting.result(PATIENCE_SECONDS)
    gate.set()


@each_kind
def test_100_abandoned_iterators_leave_no_threads(make):
    for i in range(100):
        it = iter(make(1000, str, 8).batch(3, batch_fn=list))
        assert next(it) == ["0", "1", "2"]
        if i % 2:
            it.circle = [it]  # for the garbage collector


@each_kind
def test_a_loop_that_is_left_leaves_no_threads(make, without_collector):
    for _ in make(1000, str, 5):
        break
    wait_until(lambda: not running("gristmill"))


@each_kind
def test_garbage_collection_inside_the_thread(make, frozen):
    def collect(x):
        gc.collect()
        return x

    for i in range(6):
        it = iter(make(10_000, collect, 4))
        it.circle = it
        for _ in range(i):
            next(it)
        del it
        assert list(make(10, collect, 3)) == list(range(10))


@each_kind
def test_garbage_collection_at_every_allocation(make, frozen):
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(20):
            it = iter(make(100, lambda x: [x], 6))
            it.circle = it
            assert [next(it) for _ in range(i)] == [[k] for k in range(i)]
            del it
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("size", [1, 2, 50])
@each_kind
def test_delivered_elements_are_not_kept_alive(make, size):
    it, made = iter(make(40, lambda x: Element(), size)), []
    for _ in range(40):
        made.append(weakref.ref(next(it)))
        wait_until(lambda: made[-1]() is None)
    assert next(it, "end") == "end"


@each_kind
def test_an_error_keeps_no_elements_and_no_iterator_alive(make, without_collector):
    made = []

    def element(i):
        if i == 40:
            raise KeyError(i)
        x = Element()
        made.append(weakref.ref(x))
        return x

    it = iter(make(200, element, 100))
    with pytest.raises(KeyError):
        list(it)
    wait_until(lambda: not any(ref() for ref in made))
    gone = weakref.ref(it)
    del it
    assert gone() is None
