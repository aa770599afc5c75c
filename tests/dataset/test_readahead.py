"""The guarantees of read-ahead: order, the bound, errors, threads that end when they are not
needed; and blocks with states.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import computing_ahead
import numpy as np
import pytest
from computing_ahead import (  # noqa: F401
    DIRECT,
    Failing,
    Gate,
    Watched,
    fails,
    no_threads_left,
    numbers,
    quick_switches,
    wait_for_no_threads,
    without_collector,
    working,
)
from interrupting import interrupted_where_handlers_run
from refusing import assert_raises
from users_datasets import BareIterator
from waiting import PATIENCE_SECONDS, wait_until

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.locks import Signal
from gristmill.dataset.ahead import budget, readahead
from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.ahead.readahead import ReadAhead, _Block
from gristmill.dataset.engine import blocks as stream_blocks
from gristmill.dataset.engine.blocks import StreamBlocks
from gristmill.dataset.engine.recording import shard_iterator
from gristmill.experimental import ConcatThenSplitIterDataset


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch):
    monkeypatch.setattr(budget, "_NUM_CPUS", 16)


@pytest.fixture
def clock(monkeypatch):
    fake = computing_ahead.Clock()
    monkeypatch.setattr(readahead, "time", fake)
    return fake


def enrolled(*args):
    ahead = ReadAhead(*args)
    ahead.budget.enroll(ahead)
    return ahead


def stream(source, num_threads=4, buffer=8):
    return iter(MapDataset.source(source).to_iter_dataset(ReadOptions(num_threads, buffer)))


class TestThreadsAndBlocks:
    @pytest.mark.parametrize("starts", [True, False])
    @pytest.mark.parametrize(
        ("num", "num_threads", "num_cpus", "at_once", "in_the_end"),
        [(100, 4, 16, 4, 4), (100, 5, 2, 2, 5), (3, 16, 16, 3, 3)],
    )
    def test_slow_storage_gets_more_threads_when_the_consumer_waits(
        self, num, num_threads, num_cpus, at_once, in_the_end, starts, monkeypatch
    ):
        monkeypatch.setattr(budget, "_NUM_CPUS", num_cpus)
        source = Watched(num)
        source.gate.open.clear()
        it = stream(source, num_threads, 8)
        if starts:
            it.start_prefetch()
            wait_until(lambda: source.gate.num_busy == at_once)
            assert sorted([thread.name for thread in working()]) == [
                f"gristmill-read_{i}" for i in range(at_once)
            ]
            assert sorted(source.blocks) == [[i] for i in range(at_once)]
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, it)
            wait_until(lambda: source.gate.num_busy == in_the_end)
            source.gate.open.set()
            assert first.result() == 0
        assert list(it) == list(range(1, num))
        it.start_prefetch()
        assert next(it, "end") == "end"

    def test_more_threads_come_when_two_elements_are_slow(self, clock, monkeypatch):
        monkeypatch.setattr(budget, "_NUM_CPUS", 1)

        def slow(keys):
            if source.gate.open.is_set():
                clock.now += 0.01
            if keys == [2]:
                source.gate.open.clear()  # after two slow elements, everything is held up

        source = Watched(100, slow)
        it = stream(source, 5, 100)
        it.start_prefetch()
        wait_until(lambda: source.gate.num_busy == 5)
        source.gate.open.set()
        assert list(it) == list(range(100))

    @pytest.mark.parametrize(("num", "seconds", "num_cpus"), [(200, 0.01, 1), (5000, 0.0, 2)])
    def test_quick_elements_get_no_more_threads_than_cpus(
        self, clock, monkeypatch, num, seconds, num_cpus
    ):
        monkeypatch.setattr(budget, "_NUM_CPUS", num_cpus)
        monkeypatch.setattr(readahead, "_LONG_SECONDS", 30.0)

        def compute(keys):
            clock.now += seconds
            clock.now_cpu += seconds

        for i, element in enumerate(stream(Watched(num, compute), 16, 500)):
            assert element == i
            assert len(working()) <= num_cpus

    def test_threads_that_wait_for_a_cpu_end_and_come_back(self, clock, monkeypatch):
        monkeypatch.setattr(budget, "_cpus", lambda: 2)
        monkeypatch.setattr(readahead, "_LONG_SECONDS", 30.0)

        def compute(keys):
            clock.now += 0.01
            clock.now_cpu += 0.02 if keys[0] < 1000 else 0.0

        source = Watched(2000, compute)
        source.gate.open.clear()
        it = stream(source, 16, 100)
        it.start_prefetch()
        wait_until(lambda: source.gate.num_busy == 16)
        monkeypatch.setattr(budget, "_NUM_CPUS", 2)
        source.gate.open.set()
        assert it._gm_take(900) == [*range(900)]
        wait_until(lambda: len(working()) == 3)
        assert it._gm_take(600) == [*range(900, 1500)]
        wait_until(lambda: len(working()) == 16)
        assert list(it) == [*range(1500, 2000)]

    @pytest.mark.parametrize(
        ("failing", "buffer_size", "taken"), [(None, 100, 8), (5, 100, 5), (None, 8, 4)]
    )
    def test_a_consumer_that_wants_many_waits_once(
        self, failing, buffer_size, taken, clock, monkeypatch
    ):
        monkeypatch.setattr(readahead, "_LATE_SECONDS", PATIENCE_SECONDS)
        gate = Gate(taken - 1 if failing is None else taken + 1)

        def compute(i):
            clock.now += 0.001  # blocks do not grow
            if i == failing:
                raise ValueError(i)
            return gate(i)

        ahead = enrolled(lambda r: map(compute, r), 0, 100, 3, buffer_size, Budget())
        ahead.budget.start()
        with ThreadPoolExecutor(1) as pool:
            elements = pool.submit(ahead.take, 8)
            if failing is None:
                wait_until(lambda: len(gate.seen) >= min(buffer_size, 20))
                assert not elements.done()
                gate.open.set()
            assert elements.result() == [*range(taken)]
            gate.open.set()
        ahead.close()

    def test_fewer_threads_than_asked_for_do(self, monkeypatch):
        computing_ahead.scarce_threads(monkeypatch, 2)
        it = stream(Watched(100), 16, 32)
        it.start_prefetch()
        assert list(it) == list(range(100))
        # not one thread: an error, not a wait
        fails(stream(Watched(100)), RuntimeError, match="can't start new thread")

    def test_blocks_grow_while_the_source_is_quick(self, clock):
        source = Watched(300)
        assert list(stream(source, 1, 64)) == list(range(300))
        assert source.sizes[:5] == [1, 2, 4, 8, 16]
        assert max(source.sizes) == 32
        assert sum(source.sizes) == 300
        seconds = [0.01]
        source = Watched(600, lambda keys: setattr(clock, "now", clock.now + seconds[0]))
        it = stream(source, 1, 16)
        assert [next(it) for _ in range(60)] == list(range(60))
        assert source.sizes == [1] * len(source.sizes)
        seconds[0] = 0.0
        assert [next(it) for _ in range(240)] == list(range(60, 300))
        seconds[0] = 0.01
        num = len(source.blocks) + 1  # one may be under way
        assert list(it) == list(range(300, 600))
        assert max(source.sizes) == 8
        assert set(source.sizes[num + 4 :]) == {1}

    @pytest.mark.parametrize(("seconds", "largest", "most"), [(0.0, 32, 64), (0.01, 1, 4)])
    def test_blocks_of_lanes_grow_as_those_of_one_reader_do(self, clock, seconds, largest, most):
        def compute(indices):
            sizes.append(len(indices))
            clock.now += seconds
            return iter(indices)

        sizes = []
        ahead = ReadAhead(compute, 0, 2000, 1, 4, Budget())
        ahead.common_size = 64
        ahead.budget.enroll(ahead)
        for i in range(2000):
            assert ahead.take(1) == [i]
            assert ahead.num_ahead <= most
        assert max(sizes) == largest


class TestErrorsStatesAndEnds:
    def test_states_read_nothing_and_set_state_discards(self):
        source = Watched(100)
        iter(
            MapDataset.source(source).map(str).shuffle(seed=1).to_iter_dataset().batch(10)
        ).get_state()
        it = stream(source, 2, 8)
        it.set_state({"next_index": 40})
        assert it.get_state() == {"next_index": 40}
        assert (source.blocks, working()) == ([], [])
        assert next(it) == 40
        source.gate.open.clear()
        wait_until(lambda: source.gate.num_busy or sum(source.sizes) >= 8)
        assert it.get_state() == {"next_index": 41}
        source.gate.open.set()
        for index in (50, 3, 3, 99, 100, 0):
            it.set_state({"next_index": index})
            assert it.get_state() == {"next_index": index}
            assert next(it, "end") == (index if index < 100 else "end")
        it.close()
        it = iter(MapDataset.range(99).map(Failing(0)).to_iter_dataset(ReadOptions(4, 8)))
        fails(it, Exception, match="0", times=3)
        wait_for_no_threads()

    @pytest.mark.usefixtures("without_collector")
    def test_an_interrupt_of_the_start_leaves_no_thread(self):
        was_interrupted, number = True, 0
        while was_interrupted:
            it = iter(numbers(60, options=ReadOptions(1, 4)))
            was_interrupted = interrupted_where_handlers_run(it.start_prefetch, number)
            it.start_prefetch()
            it.close()
            wait_for_no_threads()
            number += 1
        assert number > 40

    def test_no_lock_is_held_while_a_thread_starts(self, monkeypatch):
        """A new thread may collect garbage, and close, before ``start`` returns to the thread that
        waits for it.
        """
        plain = threading.Thread
        closed = []

        class Closing(plain):
            def start(self):
                super().start()
                closer = plain(target=ahead.close)
                closer.start()
                closer.join(PATIENCE_SECONDS)
                closed.append(not closer.is_alive())

        ahead = enrolled(list, 0, 100, 4, 8, Budget())
        monkeypatch.setattr(threading, "Thread", Closing)
        ahead.budget.start()
        assert closed == [True] * 4

    @pytest.mark.parametrize("waits", ["thread", "consumer"])
    def test_close_in_the_very_moment_before_waiting(self, monkeypatch, waits):
        """As if the garbage collector, or a signal handler, had come between the look at the flag
        and the wait.
        """
        gate = threading.Event()
        ahead = enrolled(
            lambda r: [gate.wait(PATIENCE_SECONDS), list(r)][1], 0, 100, 1, 1, Budget()
        )
        wait, calls = Signal.wait, []

        def close_and_wait(signal, seconds):
            if (signal is ahead._filled) == (waits == "consumer"):
                calls.append(seconds)
                ahead.close()
            return wait(signal, seconds)

        monkeypatch.setattr(Signal, "wait", close_and_wait)
        if waits == "thread":
            gate.set()
            ahead.budget.start()
            wait_until(lambda: calls)
        else:
            assert_raises(ValueError, "closed", ahead.take, 1)
            gate.set()
        wait_for_no_threads()


def test_slow_elements_do_not_wait_for_each_other(monkeypatch):
    """Quick ones are handed over in large blocks, a slow one as soon as it is computed."""
    clock = computing_ahead.Clock()
    monkeypatch.setattr(stream_blocks, "time", clock)

    def slow(x):
        clock.now += 0.002 if x >= 3990 else 0.0
        return x

    blocks = StreamBlocks(iter(numbers(9000, fn=slow)))
    for first, n, num in ((0, 3990, 3990), (3990, 2048, 1), (3991, 2048, 1)):
        elements, states, stop = blocks.take(n)
        assert elements == [*range(first, first + num)] and stop is None
        assert states[num - 1] == {"next_index": first + num}
    of_user = StreamBlocks(shard_iterator(BareIterator(9), records=False))
    assert of_user.take(4) == ([0, 1, 2, 3], [{"position": i} for i in range(1, 5)], None)
    monkeypatch.setattr(stream_blocks, "_BLOCK_SECONDS", -1.0)
    assert of_user.take(4) == ([4], [{"position": 5}], None)


@pytest.mark.usefixtures("quick_switches")
def test_elements_taken_during_an_append_come_once():
    expected = [*range(1000)]
    for _ in range(200):
        block, taken = _Block(0, len(expected), 0.0, 0), []
        computing = threading.Thread(
            target=block.compute, args=(lambda indices: map(int, indices),)
        )
        computing.start()
        while computing.is_alive():
            taken += block.take_finished()
        taken += block.take_finished()
        assert taken == expected


@pytest.mark.parametrize("reads", [DIRECT, ReadOptions(1, 1)], ids=["direct", "thread"])
@pytest.mark.parametrize(
    ("make", "per_output", "more"),
    [
        (lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=1)), 1, 0),
        (lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=3)), 1, 0),
        (
            lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=3)).batch(6),
            6,
            0,
        ),
        # one does not fit
        (lambda ds: ConcatThenSplitIterDataset(ds, length_struct={"x": 8}), 4, 1),
    ],
    ids=["lane", "lanes", "batches of lanes", "packing"],
)
def test_no_output_waits_for_elements_that_it_does_not_need(make, per_output, more, reads):
    passed = []

    def note(x):
        passed.append(x)
        return {"x": np.full(2, x)}

    it = iter(make(MapDataset.range(500).to_iter_dataset(reads).map(note)))
    for i in range(1, 70):
        next(it)
        assert len(passed) == per_output * i + more
