"""Prefetching by several threads: the same elements, order, states and errors as worker processes have."""

import copy
import gc
import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_workers import LocalWorkersIterDataset
from waiting import PATIENCE_SECONDS, running, wait_until

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset
from gristmill.dataset.telling.description import describe
from gristmill.experimental import DatasetOptions, ThreadPrefetchIterDataset, WithOptionsIterDataset, multithread_prefetch

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
    """A function for ``map`` that can be held up at some elements."""

    def __init__(self, *stuck):
        self.seen = []
        self.stuck = stuck
        self.num_busy = 0
        self.open = threading.Event()
        self.lock = threading.Lock()

    def __call__(self, x):
        with self.lock:
            self.seen.append(x)
        if x in self.stuck:
            with self.lock:
                self.num_busy += 1
            assert self.open.wait(PATIENCE_SECONDS)
            with self.lock:
                self.num_busy -= 1
        return x


def numbers(n=20, fn=lambda x: x):
    return MapDataset.range(n).to_iter_dataset(DIRECT).map(fn)


def failing(*bad, error=Boom):
    def fail(x):
        if x in bad:
            raise error(x)
        return x

    return fail


def walk(shares):
    """Elements and states as the specification has them: one element of each share in turn."""
    iterators = [iter(share) for share in shares]
    count, position = len(shares), 0
    after, exhausted = [it.get_state() for it in iterators], [0] * count
    states = []

    def note():
        states.append(
            {
                "next_index_in_cycle": position,
                "next_index_in_datasets": count,
                "iterators_in_use_indices": list(range(count)),
                "iterators_in_use_states": [*after],
                "exhausted": [*exhausted],
                "future_states": {},
            }
        )

    elements = []
    note()
    while not all(exhausted):
        if not exhausted[position]:
            try:
                elements.append(next(iterators[position]))
            except StopIteration:
                exhausted[position] = 1
            else:
                after[position] = iterators[position].get_state()
                position = (position + 1) % count
                note()
                continue
        position = (position + 1) % count
    note()
    return elements, states


# Elements and states


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_order_and_states(count):
    pipelines = {
        "one_to_one": lambda ds: ds.to_iter_dataset(DIRECT).map(str),
        "threaded": lambda ds: ds.map(str).to_iter_dataset(ReadOptions(2, 4)),
        "filter": lambda ds: ds.to_iter_dataset(DIRECT).filter(lambda x: x % 3 != 1 or x > 8),
        "batch": lambda ds: ds.to_iter_dataset(DIRECT).batch(2, batch_fn=list),
        "shuffled": lambda ds: ds.to_iter_dataset(DIRECT),
    }
    for number, (name, make) in enumerate(pipelines.items()):
        whole = MapDataset.range(14)
        whole = whole.shuffle(seed=4) if name == "shuffled" else whole
        elements, states = walk([make(whole[i::count]) for i in range(count)])
        for buffer_size in (0, (1, 2, 50)[(number + count) % 3]):
            it = iter(multithread_prefetch(make(whole), count, buffer_size))
            for k, element in enumerate(elements):
                now = json.loads(json.dumps(it.get_state()))
                assert now["iterators_in_use_states"] == states[k]["iterators_in_use_states"]
                assert next(it) == element
            for _ in range(2):
                assert next(it, "end") == "end"
            assert it.get_state()["exhausted"] == [1] * count
            for k in [*range(len(elements)), 0]:
                it.set_state(states[k])
                assert it.get_state() == states[k]
                assert list(it) == elements[k:]


@pytest.mark.parametrize("sequential", [False, True])
def test_threads_and_processes_are_interchangeable(sequential):
    ds = MapDataset.range(30).to_iter_dataset().filter(lambda x: x % 3 != 1 or x > 8).batch(2, batch_fn=list)
    one = iter(multithread_prefetch(ds, 3, 2, sequential_slice=sequential))
    other = iter(ds.mp_prefetch(MultiprocessingOptions(3), sequential_slice=sequential))
    assert describe(one) == describe(other)  # each takes the other's checkpoints
    elements, states = [], [one.get_state()]
    for element in other:
        assert next(one) == element
        elements.append(element)
        states.append(one.get_state())
        assert other.get_state() == states[-1]
    assert next(one, "end") == "end"
    assert one.get_state() == other.get_state()
    for it, k in ((one, 4), (other, 4), (one, len(elements))):
        it.set_state(states[k])
        assert list(it) == elements[k:]


def test_threads_in_processes_and_threads_in_threads():
    ds = numbers(30).map_with_index(lambda i, x: (i, x)).random_map(lambda x, rng: (*x, int(rng.integers(1000))), seed=3)
    expected = list(ds)
    nested = multithread_prefetch(multithread_prefetch(ds, 3, 1), 2, 1)
    assert list(LocalWorkersIterDataset(multithread_prefetch(ds, 3, 1), 2)) == expected
    it = iter(nested)
    assert it._take(11) == expected[:11]
    state = json.loads(json.dumps(it.get_state()))
    assert list(it) == expected[11:]
    it = iter(nested)
    it.set_state(state)
    assert list(it) == expected[11:]


def test_seeds_are_those_without_threads():
    ds = numbers(10).seed(5).map(lambda x: x)
    threads = multithread_prefetch(ds, 2, 1)
    assert threads._default_seed == ds._default_seed
    draw = lambda x, rng: (x, int(rng.integers(1000)))  # noqa: E731
    assert list(threads.random_map(draw)) == list(ds.random_map(draw))


def test_options_reach_the_threads():
    strict = WithOptionsIterDataset(
        multithread_prefetch(numbers(2000).filter(lambda x: False), 2, 1), DatasetOptions(filter_raise_threshold_ratio=0.5)
    )
    with pytest.raises(ValueError, match="filter"):
        list(strict)


# Arguments


def test_arguments():
    ds = numbers()
    assert multithread_prefetch(ds, 0, 1) is ds
    assert multithread_prefetch(ds=ds, num_threads=0, buffer_size=0, sequential_slice=True) is ds
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError)):
        with pytest.raises(error, match="num_threads"):
            multithread_prefetch(ds, wrong, 1)
        with pytest.raises(error, match="buffer_size"):
            multithread_prefetch(ds, 1, wrong)
    with pytest.raises(TypeError):
        multithread_prefetch([1, 2], 2, 1)
    threads = multithread_prefetch(ds, 2, 3)
    assert str(threads) == "MultithreadPrefetchIterDataset(num_threads=2, buffer_size=3)"
    assert str(iter(threads)) == "MultithreadPrefetchIterator(num_threads=2, buffer_size=3)"
    assert threads.parents == (ds,)


def test_what_cannot_be_sliced_is_refused_at_once():
    class Source(IterDataset):
        def __iter__(self):
            return iter(range(5))

    class Items(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

    with pytest.raises(ValueError, match="Source cannot be sliced among 2"):
        multithread_prefetch(Source(), 2, 1)
    assert list(multithread_prefetch(Source(), 1, 1)) == list(range(5))  # nothing to slice
    with pytest.raises(ValueError, match="sequential_slice"):
        multithread_prefetch(Items().to_iter_dataset(), 2, 1, sequential_slice=True)
    assert list(multithread_prefetch(Items().to_iter_dataset(), 2, 1)) == [0, 1, 2]


def test_sources_are_shared_and_not_copied():
    class Source:
        def __len__(self):
            return 9

        def __getitem__(self, key):
            return key

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

        __copy__ = __deepcopy__

    ds = MapDataset.source(Source()).to_iter_dataset()
    before = copy.copy(vars(ds))
    assert list(multithread_prefetch(ds, 3, 1)) == list(range(9))
    assert vars(ds) == before


@pytest.mark.parametrize("has_init", [False, True])
def test_free_threaded_python_uses_threads_for_mp_prefetch(monkeypatch, recwarn, has_init):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    options, called = MultiprocessingOptions(2, per_worker_buffer_size=3), []
    if has_init:
        with pytest.warns(UserWarning, match="worker_init_fn is ignored") as caught:
            ds = numbers().mp_prefetch(options, lambda *args: called.append(args), sequential_slice=True)
        assert caught[0].filename == __file__
    else:
        ds = numbers().mp_prefetch(options)
    assert str(ds) == "MultithreadPrefetchIterDataset(num_threads=2, buffer_size=3)"
    assert list(ds) == ([x for i in range(10) for x in (i, i + 10)] if has_init else list(range(20)))
    assert called == []
    assert numbers().mp_prefetch(MultiprocessingOptions(0), str).__class__.__name__ == "MapIterDataset"
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True)
    assert str(numbers().mp_prefetch(options)).startswith("MultiprocessPrefetchIterDataset")


# Threads and the bound


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_each_thread_is_no_further_ahead_than_its_buffer(buffer_size):
    num_asked, too_far = 0, []

    def look(x):
        # Of ``num_asked`` elements, these are those of the thread of ``x``.
        if x // 3 >= -(-(num_asked - x % 3) // 3) + buffer_size:
            too_far.append(x)
        return x

    it = iter(multithread_prefetch(numbers(600, look), 3, buffer_size))
    it.start_prefetch()
    for i in range(600):
        num_asked += 1
        assert next(it) == i
    assert too_far == []


def test_threads_work_at_the_same_time_and_start_with_the_first_element():
    gate = Gate(0, 1, 2)
    it = iter(multithread_prefetch(numbers(9, gate), 3, 1))
    it.get_state()
    it.set_state(it.get_state())
    assert (gate.seen, prefetchers()) == ([], [])
    it.start_prefetch()  # does not wait
    wait_until(lambda: gate.num_busy == 3)
    it.start_prefetch()
    assert len(prefetchers()) == 3
    gate.open.set()
    assert list(it) == list(range(9))
    wait_until(lambda: not prefetchers())
    it.start_prefetch()
    assert prefetchers() == []


def test_a_buffer_of_0_uses_no_threads():
    gate = Gate()
    it = iter(multithread_prefetch(numbers(9, gate), 3, 0))
    it.start_prefetch()
    for i in range(9):
        assert next(it) == i
        assert gate.seen == list(range(i + 1))
        assert prefetchers() == []
    assert next(it, "end") == "end"


# Errors


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_an_error_stays_until_the_state_is_set(buffer_size):
    left = [2]

    def fail(x):
        if x == 5 and left[0]:
            left[0] -= 1
            raise Boom(x)
        return x

    it = iter(multithread_prefetch(numbers(12, fail), 3, buffer_size))
    assert [next(it) for _ in range(5)] == list(range(5))
    state = it.get_state()
    for trial in range(2):
        errors = []
        for _ in range(3):
            with pytest.raises(Boom) as caught:
                next(it)
            assert caught.value.args == (5,)
            assert any(entry.name == "fail" for entry in caught.traceback)
            errors.append(caught.value)
            assert it.get_state() == state
        assert left == [1 - trial]  # it was not tried again
        it.set_state(state)
    assert list(it) == list(range(5, 12))


@pytest.mark.parametrize("buffer_size", [0, 1, 4])
def test_errors_can_be_skipped(buffer_size):
    for size in (1, 3):
        groups = [list(range(14))[i : i + size] for i in range(0, 14, size)]
        ds = multithread_prefetch(numbers(14, failing(3, 4, 11)), 3, buffer_size)
        it = iter(ds.batch(size, batch_fn=list) if size > 1 else ds.map(lambda x: [x]))
        for group in groups:
            if not {3, 4, 11} & {*group}:
                assert next(it) == group
                continue
            for _ in range(2):
                with pytest.raises(Boom):
                    next(it)
            it.skip_failed()
            with pytest.raises(ValueError, match="nothing to skip"):
                it.skip_failed()
        assert list(it) == []


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_stop_iteration_in_user_code_ends_nothing(buffer_size):
    it = iter(multithread_prefetch(numbers(9, failing(4, error=StopIteration)), 2, buffer_size))
    assert [next(it) for _ in range(4)] == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(it)
    it.skip_failed()
    assert list(it) == [5, 6, 7, 8]


class Peculiar(Exception):
    """Cannot be made again from its ``args``."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def test_errors_keep_what_they_carry():
    cause = KeyError("cause")

    def fail(x):
        if x == 2:
            error = OSError(2, "no such file", "name")
            error.add_note("a note")
            error.extra = [cause]
            raise error from cause
        if x == 3:
            raise Peculiar(1, 2)
        return x

    it = iter(multithread_prefetch(numbers(9, fail), 2, 1))
    assert (next(it), next(it)) == (0, 1)
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as caught:
            next(it)
        assert (caught.value.errno, caught.value.filename, caught.value.__cause__) == (2, "name", cause)
        assert caught.value.extra == [cause]
        assert [note[:9] for note in caught.value.__notes__] == ["a note", "Raised by", "Frames of"]
    it.skip_failed()
    for _ in range(2):
        with pytest.raises(Peculiar) as caught:
            next(it)
        assert str(caught.value) == "1 and 2"
        assert caught.value.lock


@pytest.fixture
def without_collector():  # reference counts must do
    gc.disable()
    yield
    gc.enable()


def test_an_error_does_not_keep_the_iterator_alive(without_collector):
    it = iter(multithread_prefetch(numbers(99, failing(5)), 3, 2))
    with pytest.raises(Boom):
        list(it)
    assert prefetchers()
    gone = weakref.ref(it)
    del it
    assert gone() is None
    wait_until(lambda: not prefetchers())


# The end of the threads


class Closing(DatasetIterator):
    """A user's iterator that has something to close."""

    closed = []  # noqa: RUF012

    def __init__(self, parent):
        super().__init__(parent)

    def __next__(self):
        return next(self._parent)

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)

    def close(self):
        Closing.closed.append(self)
        super().close()


class ClosingDataset(IterDataset):
    def __iter__(self):
        return Closing(iter(self._parent))


@pytest.mark.parametrize("buffer_size", [0, 1, 4])
def test_close(buffer_size):
    for num in (0, 1, 7, 20):
        Closing.closed.clear()
        it = iter(multithread_prefetch(ClosingDataset(numbers()), 3, buffer_size))
        assert it._take(num) == list(range(num))
        state = it.get_state()
        if num == 7:
            it.start_prefetch()
        Closing.closed.clear()
        for _ in range(2):
            it.close()
            assert it.get_state() == state
            with pytest.raises(ValueError, match=r"MultithreadPrefetchIterator.*closed"):
                next(it)
        it.start_prefetch()
        assert len(set(Closing.closed)) == (3 if num else 0)
    wait_until(lambda: not prefetchers())
    Closing.closed.clear()


def test_close_while_threads_are_stuck_in_user_code_waits_once():
    gate = Gate(*range(8))
    it = iter(multithread_prefetch(numbers(99, gate), 8, 1))
    it.start_prefetch()
    wait_until(lambda: gate.num_busy == 8)
    it.close()
    assert gate.num_busy == 8
    gate.open.set()
    wait_until(lambda: not prefetchers())
    assert sorted(gate.seen) == list(range(8))


def test_a_consumer_that_waits_learns_that_the_iterator_was_closed():
    gate = Gate(3)
    it = iter(multithread_prefetch(numbers(99, gate), 2, 2))
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, it)
        wait_until(lambda: gate.num_busy)
        it.close()
        with pytest.raises(ValueError, match="closed"):
            waiting.result(PATIENCE_SECONDS)
    gate.open.set()


def test_close_behind_another_thread_ends_the_wait_for_stuck_threads():
    gate = Gate(0)
    it = iter(ThreadPrefetchIterDataset(multithread_prefetch(numbers(99, gate), 2, 2), prefetch_buffer_size=1))
    it.start_prefetch()
    wait_until(lambda: gate.num_busy)
    it.close()
    wait_until(lambda: len(prefetchers()) == 1)
    gate.open.set()


def test_threads_end_when_the_iterator_is_dropped(without_collector):
    it = iter(multithread_prefetch(numbers(1000), 4, 2))
    next(it)
    assert prefetchers()
    del it
    wait_until(lambda: not prefetchers())
    for _ in multithread_prefetch(numbers(1000), 4, 2):
        break
    wait_until(lambda: not prefetchers())


def test_abandoned_iterators_leave_no_threads():
    for i in range(40):
        it = iter(multithread_prefetch(numbers(1000), 2, 3).batch(3, batch_fn=list))
        assert next(it) == [0, 1, 2]
        if i % 2:
            it.circle = [it]  # for the garbage collector
    del it
    gc.collect()
    wait_until(lambda: not prefetchers())


def test_set_state_does_not_wait_for_threads_in_user_code():
    gate = Gate(2, 3)
    it = iter(multithread_prefetch(numbers(20, gate), 2, 2))
    state = it.get_state()
    assert next(it) == 0
    wait_until(lambda: gate.num_busy == 2)
    gate.stuck = ()
    it.set_state(state)
    assert list(it) == list(range(20))
    assert gate.num_busy == 2
    gate.open.set()


def test_an_interrupted_wait_loses_nothing():
    gate = Gate(3)
    it = iter(multithread_prefetch(numbers(12, gate), 2, 2))
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    main = threading.get_ident()
    is_waiting = threading.Event()

    def interrupt():
        assert is_waiting.wait(PATIENCE_SECONDS)
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            is_waiting.set()
            next(it)
            gate.open.wait(PATIENCE_SECONDS)  # the signal may come a little later
        interrupting.result()
    assert it.get_state()["next_index_in_cycle"] == 1
    gate.open.set()
    assert list(it) == list(range(3, 12))


# An interrupt may come in a callback of somebody else's, where Python can only print it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_lose_nothing():
    """A timer interrupts the consumer again and again, wherever it is. What is in its list has been delivered."""

    class Interrupt(BaseException):
        pass

    is_armed = []

    def interrupt(number, frame):
        if is_armed:
            is_armed.clear()
            raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    rng = random.Random(1)
    num_interrupts = 0
    try:
        for buffer_size in (0, 1, 3, 30) * 8:
            it, got = iter(multithread_prefetch(numbers(150), 2, buffer_size)), []
            is_over = False
            while not is_over:
                try:
                    is_armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))
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
            assert got == list(range(150))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert num_interrupts


PRELUDE = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks of programs with threads
from gristmill import MapDataset, ReadOptions
from gristmill.experimental import multithread_prefetch
"""


def run(script):
    command = [sys.executable, "-X", "dev", "-c", PRELUDE + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_goes_on_from_the_state():
    run(
        """
        ds = MapDataset.range(300).map(str).to_iter_dataset(ReadOptions(2, 8))
        for buffer_size, num in ((0, 1), (1, 50), (20, 0), (20, 50), (1, 300)):
            it = iter(multithread_prefetch(ds, 3, buffer_size))
            it._take(num)
            rest, state = [str(i) for i in range(num, 300)], it.get_state()
            process_id = os.fork()
            if not process_id:
                signal.alarm(20)
                assert it.get_state() == state
                assert list(it) == rest
                it.set_state(state)
                assert list(it) == rest
                it.close()
                sys.exit(0)
            assert os.waitpid(process_id, 0)[1] == 0
            assert list(it) == rest
        """
    )


ENDINGS = {
    "live": """
        one, two, three, four, *its = [iter(ds) for _ in range(8)]
        next(one); two.start_prefetch(); three.circle = three; next(three); del three; next(four); four.close()
        for it in its: next(it)
        for x in ds: break
    """,
    "stuck": """
        stuck = threading.Barrier(3)
        slow = MapDataset.range(9).map(lambda x: stuck.wait() and 0 or threading.Event().wait()).to_iter_dataset(ReadOptions(0))
        it = iter(multithread_prefetch(slow, 2, 1)); it.start_prefetch(); stuck.wait()
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_is_silent(ending):
    ds = "ds = multithread_prefetch(MapDataset.range(100_000).map(lambda x: [x]).to_iter_dataset(), 3, 2)\n"
    run(ds + textwrap.dedent(ENDINGS[ending]))


# Any use of it is a use of its shares in turn


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(0, 25),
    count=st.integers(1, 4),
    buffer_size=st.integers(0, 5),
    batch=st.integers(0, 3),
    bad=st.sets(st.integers(0, 24), max_size=2),
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("next"), st.integers(1, 6)),
            st.tuples(st.just("restore"), st.integers(0, 30)),
            st.tuples(st.just("prefetch"), st.just(0)),
        ),
        max_size=10,
    ),
)
def test_like_the_shares_in_turn(length, count, buffer_size, batch, bad, actions):
    is_sick = False

    def maybe_fail(x):
        if is_sick and x in bad:
            raise Boom(x)
        return x

    def stages(ds):
        it = ds.to_iter_dataset(DIRECT).map(maybe_fail).filter(lambda x: x % 4 != 2)
        return it.batch(batch, batch_fn=list) if batch else it

    elements, states = walk([stages(MapDataset.range(length)[i::count]) for i in range(count)])
    it = iter(multithread_prefetch(stages(MapDataset.range(length)), count, buffer_size))
    is_sick = True
    position = 0
    for action, n in actions:
        if action == "restore":
            position = n % len(elements) if elements else 0
            it.set_state(states[position])
            assert it.get_state() == states[position]
            wrong = {"next_index_in_cycle": count}, {"iterators_in_use_states": [{"next_index": 99}] * count}
            with pytest.raises(ValueError):
                it.set_state({**states[0], **wrong[n % 2]})
            assert it.get_state() == states[position]
        elif action == "prefetch":
            it.start_prefetch()
        else:
            for _ in range(n):
                try:
                    got = next(it, "end")
                except Boom:
                    assert it.get_state()["iterators_in_use_states"] == states[position]["iterators_in_use_states"]
                    break
                if position == len(elements):
                    assert got == "end"
                else:
                    assert got == elements[position]
                    position += 1
                    assert it.get_state() == states[position] or position == len(elements)
    is_sick = False
    it.set_state(it.get_state())
    assert list(it) == elements[position:]
    it.close()
