"""Laws of all prefetching: order, closing, interrupts, forks, no leftovers, no wait for later
elements.
"""

import gc
import itertools
import operator
import random
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import computing_ahead
import pytest
from computing_ahead import (  # noqa: F401
    Gate,
    Plain,
    fails,
    no_threads_left,
    numbers,
    quick_switches,
    wait_for_no_threads,
    without_collector,
    working,
)
from interrupting import Interrupt
from operations import operation
from programs import output
from refusing import assert_raises
from waiting import PATIENCE_SECONDS, wait_until

import gristmill as gm
from gristmill import MapDataset, ReadOptions, SequentialSampler
from gristmill.dataset.ahead import budget, pullahead
from gristmill.experimental import ThreadPrefetchIterDataset, multithread_prefetch


def reading(n, fn, size, num_threads=4):
    return MapDataset.range(n).map(fn).to_iter_dataset(ReadOptions(num_threads, size))


def prefetching(n, fn, size):
    return ThreadPrefetchIterDataset(numbers(n, fn=fn), prefetch_buffer_size=size)


def prefetching_plain(n, fn, size):
    return ThreadPrefetchIterDataset(Plain(range(n)), prefetch_buffer_size=size)


def sharing(n, fn, size):
    return multithread_prefetch(numbers(n, fn=fn), 3, size)


def each_size(reads, *others):
    """Kinds with sizes of their buffers; reads have numbers of threads, too."""
    cases = [(reading, size, threads) for size, *threads in reads]
    cases += [(make, size, ()) for make, *sizes in others for size in sizes]
    return pytest.mark.parametrize(("make", "size", "args"), cases)


each_kind = pytest.mark.parametrize("make", [reading, prefetching, sharing])


@pytest.fixture
def frozen():
    """The elements that exist already are frozen, so that the garbage collector does not visit
    them.
    """
    before = gc.get_threshold()
    gc.freeze()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class TestBuffers:
    @each_size(
        [(1, 1), (8, 4), (15, 16), (500, 16)], (prefetching, 0, 1, 3, 1000), (sharing, 0, 1, 5)
    )
    @pytest.mark.usefixtures("quick_switches")
    def test_order_and_no_more_elements_ahead_than_the_buffer_holds(
        self, make, size, args, monkeypatch
    ):
        monkeypatch.setattr(budget, "_NUM_CPUS", 16)
        num_asked, seen, too_far = 0, [], []

        def look(x):
            seen.append(x)
            # With three threads, of ``num_asked`` elements these are those of the thread of ``x``.
            if (
                x // 3 >= -(-(num_asked - x % 3) // 3) + size
                if make is sharing
                else x >= num_asked + size
            ):
                too_far.append(x)
            return x

        it = iter(make(1000, look, size, *args))
        it.start_prefetch()
        rng = random.Random(size)
        while num_asked < 1000:
            n = min(rng.choice([1] * 12 + [2, 5, 7, 128]), 1000 - num_asked)
            first, num_asked = num_asked, num_asked + n
            assert ([next(it)] if n == 1 else it._gm_take(n)) == list(range(first, first + n))
        assert it._gm_take(1) == too_far == []
        assert sorted(seen) == list(range(1000))  # and each is computed once

    @each_size([(1, 1), (8, 4), (3, 16)], (prefetching, 1, 3), (sharing, 1, 5))
    def test_start_prefetch_fills_the_buffer_and_waits(self, make, size, args, monkeypatch):
        monkeypatch.setattr(budget, "_NUM_CPUS", 16)
        gate, num = Gate(), 3 * size if make is sharing else size
        it = iter(make(10_000, gate, size, *args))
        before = it.get_state()
        it.start_prefetch()  # does not wait for an element
        num_threads = len(working())
        assert num_threads == {prefetching: 1, sharing: 3}.get(make) or min(size, *args)
        wait_until(lambda: gate.num_busy == num_threads)
        assert it.get_state() == before
        gate.open.set()
        wait_until(lambda: len(gate.seen) == num)
        it.start_prefetch()
        assert len(working()) == num_threads
        assert it.get_state() == before
        for i in range(min(num, 9)):
            assert next(it) == i
            # Without being asked for more, the threads fill the place: up to half of it may be left
            # empty for a block.
            wait_until(lambda i=i: len(gate.seen) >= i + 1 + num - num // 2)
        assert len(gate.seen) <= 2 * num
        assert make is sharing or sorted(gate.seen) == list(range(len(gate.seen)))
        it.close()

    @pytest.mark.parametrize(
        "make", [reading, partial(reading, num_threads=0), prefetching, sharing]
    )
    def test_a_buffer_of_0_uses_no_threads(self, make):
        gate = Gate(is_open=True)
        it = iter(make(9, gate, 0))
        it.start_prefetch()
        for i in range(9):
            assert gate.seen == list(range(i))
            assert next(it) == i
            assert working() == []
        assert next(it, "end") == "end"


class TestEnds:
    @each_kind
    def test_threads_start_and_end_with_the_data(self, make):
        gate = Gate(is_open=True)
        it = iter(make(50, gate, 4))
        it.set_state(it.get_state())
        assert (gate.seen, working()) == ([], [])
        assert it._gm_take(49) == list(range(49))
        state = it.get_state()
        assert list(it) == [49]
        wait_for_no_threads()
        for _ in range(3):
            assert next(it, "end") == "end"
            it.start_prefetch()
        assert working() == []  # the end is the end until the state is set
        it.set_state(state)
        assert list(it) == [49]

    @pytest.mark.parametrize("after", [lambda ds: ds, lambda ds: ds.batch(4)])
    @each_kind
    def test_a_consumer_that_waits_learns_of_closing(self, make, after):
        gate = Gate()
        it = iter(after(make(9, gate, 2)))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, it)
            wait_until(lambda: gate.num_busy)
            it.close()
            assert_raises(ValueError, "closed", waiting.result, PATIENCE_SECONDS)
        gate.open.set()

    @pytest.mark.parametrize("ending", ["close", "drop"])
    @each_kind
    def test_no_wait_for_user_code_that_is_stuck(self, make, ending):
        gate = Gate()
        it = iter(make(99, gate, 8))
        it.start_prefetch()
        num = len(working())
        wait_until(lambda: gate.num_busy == num)
        if ending == "close":
            it.close()
            it.close()
        gone = weakref.ref(it)
        del it
        assert gone() is None
        assert gate.num_busy == num >= 1
        gate.open.set()
        wait_for_no_threads()
        assert sorted(gate.seen) == list(range(num))  # and nothing else is computed

    @each_kind
    def test_garbage_collection_at_every_allocation(self, make, frozen):
        def collect(x):
            gc.collect()
            return x

        for i in range(6):
            it = iter(make(10_000, collect, 4))
            it.circle = it
            assert it._gm_take(i) == list(range(i))
            del it
            assert list(make(10, collect, 3)) == list(range(10))
        gc.set_threshold(1)
        for i in range(20):
            it = iter(make(100, lambda x: [x], 6))
            it.circle = it
            assert it._gm_take(i) == [[k] for k in range(i)]
            del it

    @each_kind
    @pytest.mark.usefixtures("without_collector")
    def test_an_error_keeps_no_elements_and_no_iterator_alive(self, make):
        made = []

        def element(i):
            if i == 40:
                raise KeyError(i)
            x = {i}
            made.append(weakref.ref(x))
            return x

        it = iter(make(200, element, 100))
        with pytest.raises(KeyError):
            list(it)
        if make is not sharing:  # there the others stay ahead
            wait_until(lambda: not any(ref() for ref in made))
        gone = weakref.ref(it)
        del it
        assert gone() is None
        wait_until(lambda: not any(ref() for ref in made))


class TestInterrupts:
    @each_kind
    def test_an_interrupted_wait_loses_nothing(self, make):
        """A ``KeyboardInterrupt`` in the middle of waiting for a thread."""
        gate = Gate()
        it = iter(make(9, gate, 3))
        before = it.get_state()
        with computing_ahead.interrupted(lambda: gate.num_busy >= (3 if make is sharing else 1)):
            next(it)
        assert it.get_state() == before
        gate.open.set()
        assert list(it) == list(range(9))
        if make is prefetching:
            assert gate.seen == list(range(9))  # each was computed once

    # An interrupt may come in a callback of another library, where Python can only print it.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @each_size([], (prefetching, 5), (prefetching_plain, 1, 60), (sharing, 0, 3))
    def test_interrupts_at_any_moment_lose_nothing(self, make, size, args):
        """A timer interrupts the consumer again and again, wherever it is. What is in its list has
        been delivered.
        """
        is_armed = []

        def interrupt(number, frame):
            if is_armed:
                is_armed.clear()
                raise Interrupt

        def take_all(it, got):
            num = -1
            while len(got) > num:
                # ``extend`` stores the element in the same moment in which it is delivered.
                num = len(got)
                got.extend(it._gm_take(1))

        before = signal.signal(signal.SIGALRM, interrupt)
        rng = random.Random(size)
        num_interrupts = 0
        try:
            for _ in range(4):
                it, got, is_over = iter(make(200, int, size)), [], False
                while not is_over:
                    try:
                        is_armed.append(True)
                        # Later and later, so that threads can start at last where CPUs are busy.
                        longest = 2e-3 * 1.01**num_interrupts
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, longest))
                        # in a function: Python leaves jumps of a loop out of ``try``
                        take_all(it, got)
                        is_over = True
                        is_armed.clear()
                    except Interrupt:
                        num_interrupts += 1
                assert got == list(range(200))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert num_interrupts


FORK = """
import os, signal, sys, warnings
from gristmill import MapDataset, ReadOptions
from gristmill.dataset import IterDataset
from gristmill.experimental import (
    InterleaveIterDataset,
    ThreadPrefetchIterDataset,
    multithread_prefetch,
)

# newer Pythons warn of forks of programs with threads
warnings.simplefilter("ignore", DeprecationWarning)

def text(n, *options):
    return MapDataset.range(n).map(str).to_iter_dataset(ReadOptions(*options))

def prefetched(*options):
    return ThreadPrefetchIterDataset(text(700, *options), prefetch_buffer_size=9)

def opened(name):
    ds = MapDataset.range(10 * name, 10 * name + 5).map(str).to_iter_dataset()
    return ds.filter(lambda x: True) if name % 2 else ds

class Generated(IterDataset):
    def __iter__(self):
        yield from range(9)

def run_in_fork(leave, work, *args):
    process_id = os.fork()
    if not process_id:
        signal.alarm(30)
        work(*args)
        leave(0)
    assert os.waitpid(process_id, 0)[1] == 0

def go_on(it, state, rest):
    assert it.get_state() == state
    for _ in range(2):
        assert list(it) == rest
        it.set_state(state)
    it.close()

def lose_nothing(it):
    try:
        next(it)
    except ValueError as error:
        assert "forked" in str(error)
        return
    raise AssertionError

def check(ds, *nums, starts=True, leave=os._exit):
    whole = list(ds)
    for num in nums:
        it = iter(ds)
        assert it._gm_take(num) == whole[:num]
        state = it.get_state()
        run_in_fork(leave, go_on, it, state, whole[num:])
        if starts:
            it.start_prefetch()
            run_in_fork(leave, go_on, it, state, whole[num:])
        assert list(it) == whole[num:]

check(prefetched(0, 0), 0, 50, 700)
check(prefetched(2, 8), 1, 700)
check(prefetched(16, 500), 50)
for buffer_size, nums in ((0, [1]), (1, [50, 300]), (20, [0, 50])):
    check(multithread_prefetch(text(300, 2, 8), 3, buffer_size), *nums, starts=False)
names, ahead = (
    MapDataset.range(8),
    dict(num_make_iter_threads=2, make_iter_buffer_size=2, iter_buffer_size=3),
)
ds = InterleaveIterDataset(names.map(opened), cycle_length=3, **ahead)
check(ds, 0, 40, starts=False)
for each in ds, multithread_prefetch(text(300, 2, 8), 3, 20), prefetched(2, 8):
    check(each, 7, starts=False, leave=sys.exit)

it = iter(ThreadPrefetchIterDataset(Generated(), prefetch_buffer_size=2))
assert next(it) == 0
run_in_fork(os._exit, lose_nothing, it)
assert list(it) == list(range(1, 9))
"""


def test_a_forked_process_continues_or_says_that_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    assert output(tmp_path, FORK) == []


ONE_WORKER = gm.MultiprocessingOptions(1)


class Source:
    """Wait without end at the first of its late keys, in any process; or compute without end."""

    gate = threading.Event()

    def __init__(self, num_quick, num_late=40, computes=False):
        self.num_quick, self.num_late, self.computes = num_quick, num_late, computes

    def __len__(self):
        return self.num_quick + self.num_late

    def __getitem__(self, key):
        if key >= self.num_quick:
            while self.computes and not Source.gate.is_set():
                pass
            Source.gate.wait(10 * PATIENCE_SECONDS)
        return key

    def __repr__(self):
        return "Source()"


def loader(source, num_workers):
    operations, length = [operation(gm.transforms.Map, "map", source.__getitem__)], len(source)
    sampler, records = SequentialSampler(length), [*range(length)]
    return gm.DataLoader(
        data_source=records, sampler=sampler, operations=operations, worker_count=num_workers
    )


def mapped(source, options=None):
    """Read ahead by threads, or not, and mapped after that."""
    return numbers(len(source), options=options).map(source.__getitem__)


WAYS = {
    "threads": lambda s: MapDataset.source(s).shuffle(seed=1).map(lambda x: x).to_iter_dataset(),
    "one thread": lambda s: (
        MapDataset.source(s).map_with_index(lambda i, x: x).to_iter_dataset(ReadOptions(1, 500))
    ),
    "mixture": (
        lambda s: MapDataset.mix([MapDataset.source(s), MapDataset.source(s)]).to_iter_dataset()
    ),
    "thread_prefetch": lambda s: ThreadPrefetchIterDataset(
        mapped(s, computing_ahead.DIRECT), prefetch_buffer_size=50
    ),
    "multithread_prefetch": lambda s: multithread_prefetch(
        mapped(s, computing_ahead.DIRECT), 1, 50
    ),
    "short thread_prefetch": lambda s: ThreadPrefetchIterDataset(
        mapped(s, computing_ahead.DIRECT), prefetch_buffer_size=16
    ),
    "short multithread_prefetch": lambda s: multithread_prefetch(
        mapped(s, computing_ahead.DIRECT), 1, 16
    ),
    "loader": lambda s: loader(s, 0),
    "worker": lambda s: mapped(s, computing_ahead.DIRECT).mp_prefetch(ONE_WORKER),
    "worker with threads": lambda s: MapDataset.source(s).to_iter_dataset().mp_prefetch(ONE_WORKER),
    "loader with a worker": lambda s: loader(s, 1),
}


@pytest.mark.parametrize(
    ("way", "computes"),
    [(way, False) for way in WAYS]
    + [(way, True) for way in ("one thread", "thread_prefetch", "multithread_prefetch")],
)
def test_elements_before_one_that_hangs_are_delivered(way, computes, monkeypatch):
    """No wait is longer than ``_LATE_SECONDS`` while the block has more than one element.

    On free-threaded builds, a thread that waits releases the locks of lists. One that computes does
    not.
    """
    monkeypatch.setattr(pullahead, "_LOOK_SECONDS", 10 * PATIENCE_SECONDS)
    for num_quick in (100,) if "worker" in way else (2, 1500):
        num_expected = num_quick
        if way in ("threads", "mixture"):  # in another order
            with iter(WAYS[way](Source(num_quick + 40, 0))) as it:
                num_expected = next(i for i, x in enumerate(it) if x >= num_quick)
        Source.gate.clear()
        it, got = iter(WAYS[way](Source(num_quick, computes=computes))), []

        def consume(it=it, got=got, num_expected=num_expected):
            while len(got) < num_expected:
                got.append(next(it))

        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(consume).result(PATIENCE_SECONDS)
        finally:
            Source.gate.set()
            it.close()


def of_a_file(tmp_path):
    """Its iterator has a ``next`` of its own."""
    pyarrow = pytest.importorskip("pyarrow", reason="the file is a Parquet file")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"x": range(300)}), tmp_path / "file.parquet"
    )
    return gm.experimental.ParquetIterDataset(str(tmp_path / "file.parquet"))


FILES = "bases/iterator.py", "engine/iterators.py", "stages/files.py"


class Stopping:
    """Stops a thread before the ``number``-th line that it runs in some files."""

    def __init__(self, number, files):
        self.left, self.files = number, files
        self.is_stopped, self.go_on = threading.Event(), threading.Event()

    def trace(self, frame, event, arg):
        if event == "line" and frame.f_code.co_filename.endswith(self.files):
            self.left -= 1
            if self.left < 0 and not self.is_stopped.is_set():
                self.is_stopped.set()
                assert self.go_on.wait(PATIENCE_SECONDS)
        return self.trace

    def run(self, function, *args):
        sys.settrace(self.trace)
        try:
            return function(*args)
        finally:
            sys.settrace(None)


@pytest.mark.parametrize(
    "options", [computing_ahead.DIRECT, ReadOptions(2, 4)], ids=["direct", "threads"]
)
def test_closed_while_a_thread_is_at_any_line_of_its_reader(options):
    """The other thread gets the element, or an error that says so."""
    num_closed = 0
    for number in itertools.count():
        stopping, it = Stopping(number, "ahead/reader.py"), iter(numbers(9, options=options))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(stopping.run, next, it)
            wait_until(
                lambda found=stopping, other=other: found.is_stopped.is_set() or other.done()
            )
            it.close()
            stopping.go_on.set()
            try:
                assert other.result(PATIENCE_SECONDS) == 0
            except ValueError as error:
                assert "closed" in str(error)
                num_closed += 1
        if not stopping.is_stopped.is_set():
            break
    assert number > 10 and (num_closed or options is computing_ahead.DIRECT)


def stopped_at(number, dataset_of, key):
    """Stop a thread before a line of ``next``, and call ``next``; return False if it has fewer
    lines.
    """
    main, stopping = threading.current_thread(), Stopping(number, FILES)
    inside, refused = [], []

    def take():
        try:
            return [key(next(it))]
        except RuntimeError as error:
            refused.append(str(error))
            return []

    def in_next(x):
        """While this thread is in ``next``, the other one runs and must be refused."""
        inside.append(x)
        is_stopped = stopping.is_stopped.is_set() and not stopping.go_on.is_set()
        if threading.current_thread() is main and is_stopped:
            stopping.go_on.set()
            other.result(PATIENCE_SECONDS)
        assert inside == [x]
        inside.clear()
        return x

    it = iter(dataset_of(in_next))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(stopping.run, take)
        wait_until(lambda: stopping.is_stopped.is_set() or other.done())
        got = take()
        stopping.go_on.set()
        got += [*other.result(PATIENCE_SECONDS), *take()]
    assert sorted(got) == [*range(len(got))], number
    assert len(got) + len(refused) == 3
    return stopping.is_stopped.is_set()


@pytest.mark.parametrize("way", ["direct", "file"])
def test_a_thread_is_refused_while_one_is_at_any_line_of_next(way, tmp_path):
    """Without the GIL, another thread may come in between any two operations."""
    if way == "direct":
        num_lines = next(
            i for i in itertools.count() if not stopped_at(i, lambda fn: numbers(9, fn=fn), int)
        )
    else:
        ds = of_a_file(tmp_path)
        num_lines = next(
            i
            for i in itertools.count()
            if not stopped_at(i, lambda fn: ds, operator.itemgetter("x"))
        )
    assert num_lines > 10


def test_another_thread_that_comes_into_next_is_refused():
    gate = Gate()
    it = iter(numbers(9, fn=gate, options=None).batch(2))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, it)
        wait_until(lambda: gate.num_busy)
        uses = [lambda: next(it), lambda: it.set_state({"next_index": 4}), it.skip_failed]
        uses += [lambda: gm.experimental.get_next_index(it), lambda: run_to_end(it.save("folder"))]
        uses += [lambda: gm.experimental.set_next_index(it, 1)]
        for use in uses:
            assert_raises(
                RuntimeError,
                r"BatchDatasetIterator.*one thread at a time\. Give each thread an iterator",
                use,
            )
        gate.open.set()
        assert first.result(PATIENCE_SECONDS).tolist() == [0, 1]
    assert next(it).tolist() == [2, 3]
    it = iter(numbers(9, fn=lambda x: next(it), options=None))
    fails(it, RuntimeError, match="by a function of its own pipeline")


def run_to_end(coroutine):
    """Runs what awaits nothing."""
    with pytest.raises(StopIteration):
        coroutine.send(None)
