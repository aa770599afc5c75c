"""Prefetching by a thread, and by several: states, the bound, errors, and threads that go when they
are not needed.
"""

import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import computing_ahead
import pytest
from computing_ahead import (
    Boom,
    Failing,
    Gate,
    Plain,
    fails,
    no_threads_left,  # noqa: F401
    numbers,
    wait_for_no_threads,
    working,
)
from refusing import assert_raises
from waiting import PATIENCE_SECONDS, wait_until

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.ahead import pullahead
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.dataset.stages import thread_prefetch
from gristmill.experimental import (
    ThreadPrefetchDatasetIterator,
    ThreadPrefetchIterDataset,
    multithread_prefetch,
)


def ahead(ds, size=2):
    return iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=size))


class TestElementsAndStates:
    def test_blocks_of_small_elements_grow_and_shrink(self, monkeypatch):
        clock = computing_ahead.Clock()
        monkeypatch.setattr(pullahead, "time", clock)
        seconds = [0.0]
        source = computing_ahead.Watched(
            2000, lambda keys: setattr(clock, "now", clock.now + seconds[0])
        )
        it = ahead(MapDataset.source(source).to_iter_dataset(computing_ahead.DIRECT), 64)
        assert [next(it) for _ in range(1000)] == list(range(1000))
        assert source.sizes[:6] == [1, 2, 4, 8, 16, 32]
        assert max(source.sizes) == 32
        seconds[0] = 0.01
        num = len(source.sizes) + 1  # one may be under way
        assert list(it) == list(range(1000, 2000))
        assert set(source.sizes[num + 6 :]) == {1}

    def test_states_compute_nothing_and_set_state_waits(self):
        gate = Gate(is_open=True)
        # which is used by one thread at a time
        it = ahead(computing_ahead.ClosingDataset(numbers(20), gate))
        it.set_state({"next_index": 4})
        assert it.get_state() == {"next_index": 4}
        assert (gate.seen, working()) == ([], [])
        assert next(it) == 4
        wait_until(lambda: len(gate.seen) == 3)
        gate.open.clear()
        assert next(it) == 5
        wait_until(lambda: gate.num_busy)
        assert it.get_state() == {"next_index": 6}
        before = weakref.ref(it._ahead)
        with ThreadPoolExecutor(1) as pool:
            setting = pool.submit(it.set_state, {"next_index": 10})
            assert not setting.done()
            gate.open.set()
            setting.result(PATIENCE_SECONDS)
        wait_until(lambda: before() is None)  # what was computed is not kept
        assert list(it) == list(range(10, 20))

    def test_an_interrupted_set_state_changes_nothing(self):
        gate = Gate()
        it = ahead(numbers(9, fn=gate), 3)
        it.start_prefetch()
        wait_until(lambda: gate.num_busy)
        with computing_ahead.interrupted(lambda: it._ahead.is_stopped):
            it.set_state({"next_index": 5})
        assert it.get_state() == {"next_index": 0}
        gate.open.set()
        assert list(it) == list(range(9))

    @pytest.mark.parametrize("size", [0, 1, 4])
    def test_any_object_with_three_methods_can_be_prefetched_from(self, size):
        it = ThreadPrefetchDatasetIterator(computing_ahead.Count(9), size)
        assert str(it) == f"ThreadPrefetchDatasetIterator(prefetch_buffer_size={size})"
        assert [(it.get_state(), next(it)) for _ in range(9)] == [({"i": [k]}, k) for k in range(9)]
        assert next(it, "end") == "end" and it.get_state() == {"i": [9]}
        for k in (3, 9, 0, 3):
            it.set_state({"i": [k]})
            assert it.get_state() == {"i": [k]}
            assert list(it) == list(range(k, 9))
        it.start_prefetch()
        it.close()
        fails(it, ValueError, match="closed")


def test_the_dataset_and_its_arguments():
    seeded = numbers(4).seed(1)
    ds = ThreadPrefetchIterDataset(seeded, prefetch_buffer_size=2)
    assert str(ds) == "ThreadPrefetchIterDataset(prefetch_buffer_size=2)"
    # it is a stage for seeds
    assert ds._default_seed == seeded.map(str)._default_seed != seeded._default_seed
    assert list(ThreadPrefetchIterDataset(MapDataset.range(4), prefetch_buffer_size=2)) == [
        0,
        1,
        2,
        3,
    ]
    for same in (ds.batch(2), ThreadPrefetchIterDataset(seeded.batch(2), prefetch_buffer_size=0)):
        it = iter(same)
        next(it)  # checkpoints fit with and without it, and so do not say whether it is there
        assert it.get_state() == {"next_index": 2}
        assert describe(it) == describe(iter(seeded.batch(2)))
    assert_raises(TypeError, None, ThreadPrefetchIterDataset, seeded, 2)
    assert_raises(TypeError, None, ThreadPrefetchIterDataset, [1, 2], prefetch_buffer_size=2)
    for parent in (object(), iter([1]), [1], None, MapDataset.range(3)):
        match = "parent must be an iterator with get_state and set_state"
        assert_raises(TypeError, match, ThreadPrefetchDatasetIterator, parent, 2)
    for size, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError), ("3", TypeError)):
        match = f"prefetch_buffer_size must be .* got {size!r}"
        assert_raises(error, match, ThreadPrefetchIterDataset, seeded, prefetch_buffer_size=size)
        assert_raises(error, match, ThreadPrefetchDatasetIterator, iter(seeded), size)


class TestErrors:
    def test_any_exception_of_user_code_arrives(self):
        for error in (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration):
            it = ahead(numbers(5, fn=Failing(3, error=error)))
            assert [next(it) for _ in range(3)] == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(RuntimeError if error is StopIteration else error) as caught:
                    next(it)
                frames = [entry.name for entry in caught.traceback]
                assert frames.count("__call__") or isinstance(caught.value.__cause__, error)
            it.set_state({"next_index": 4})
            assert list(it) == [4]

    def test_an_iterator_without_states_loses_nothing(self):
        """Neither by states that are refused, nor by errors: as without a thread, the parent is
        asked for its next element.
        """
        it = ahead(Plain(range(200), Failing(3)), 4)
        assert next(it) == 0
        assert_raises(NotImplementedError, None, it.get_state)
        assert_raises(NotImplementedError, None, it.set_state, {"next_index": 0})
        assert [next(it), next(it)] == [1, 2]
        fails(it, Boom)
        assert list(it) == list(range(4, 200))

    def test_an_error_of_the_parents_set_state_arrives(self):
        class Refusing(computing_ahead.Count):
            def set_state(self, state):
                raise Boom("refused")

        it = ThreadPrefetchDatasetIterator(Refusing(10), 2)
        assert_raises(Boom, None, it.set_state, {"i": [3]})
        assert next(it) == 0
        assert_raises(Boom, None, it.set_state, {"i": [3]})
        fails(it, Boom)  # it cannot go back to where it was either

    def test_threads_may_be_scarce(self, monkeypatch):
        scarce = computing_ahead.scarce_threads(monkeypatch, 0)
        it = ahead(numbers(5))
        fails(it, RuntimeError, match="can't start new thread", times=2)
        scarce.num_left = 1
        assert list(it) == list(range(5))


class TestClose:
    def test_waits_for_a_busy_thread_for_a_moment(self, monkeypatch):
        monkeypatch.setattr(thread_prefetch, "_CLOSE_SECONDS", PATIENCE_SECONDS)
        busy = threading.Event()
        ds = computing_ahead.ClosingDataset(
            numbers(9), lambda x: busy.set() or wait_until(lambda: it._ahead.is_stopped)
        )
        it = ahead(ds)
        it.start_prefetch()
        assert busy.wait(PATIENCE_SECONDS)
        it.close()
        assert len(ds.closed) == 1

    def test_closing_at_the_start_with_a_full_buffer_and_at_the_end(self):
        for num, size in ((0, 1), (0, 9), (1, 1), (1, 2), (1, 9), (100, 1), (100, 2)):
            gate = Gate(is_open=True)
            ds = computing_ahead.ClosingDataset(numbers(100), gate)
            it = ahead(ds, size)
            assert it._gm_take(num) == list(range(num))
            if num == 1:
                wait_until(lambda gate=gate, size=size: len(gate.seen) >= 1 + size // 2)
            for num_closed in (1, 2):
                it.close()
                assert len(ds.closed) == num_closed
                fails(it, ValueError, match=r"ThreadPrefetchDatasetIterator.*closed")
                assert_raises(ValueError, "closed", it.start_prefetch)

    def test_a_thread_that_is_stuck_closes_the_parent_later(self):
        gate = Gate()
        ds = computing_ahead.ClosingDataset(numbers(100), gate)
        it = ahead(ds)
        it.start_prefetch()
        wait_until(lambda: gate.num_busy)
        it.close()
        it.close()
        assert (gate.num_busy, ds.closed) == (1, [])  # the thread is in it
        fails(it, ValueError, match="closed")
        gate.open.set()
        wait_for_no_threads()
        assert len(ds.closed) == 1
        assert gate.seen == [0]
        it.close()
        assert len(ds.closed) == 2

    @pytest.mark.parametrize(
        "stage",
        [
            lambda fn: MapDataset.range(9).map(fn).to_iter_dataset(ReadOptions(2, 4)).map(str),
            lambda fn: ThreadPrefetchIterDataset(numbers(9, fn=fn), prefetch_buffer_size=1).batch(
                2
            ),
            lambda fn: multithread_prefetch(numbers(9, fn=fn), 2, 2),
        ],
    )
    def test_ends_a_wait_upstream(self, stage):
        """The thread waits for read-ahead or for other threads, and these for user code that does
        not end.
        """
        gate = Gate()
        it = ahead(stage(gate))
        it.start_prefetch()
        wait_until(lambda: gate.num_busy)
        thread = it._ahead._thread
        it.close()
        wait_until(lambda: not thread.is_alive())
        assert gate.num_busy  # no thread has waited for user code
        gate.open.set()

    def test_ends_worker_processes_that_are_stuck(self):
        stuck = numbers(9, fn=lambda x: time.sleep(1000))
        it = ahead(stuck.mp_prefetch(MultiprocessingOptions(2, executor="processes")))
        it.start_prefetch()
        wait_until(lambda: it._parent.pool is not None)
        workers = [worker.process_id for worker in it._parent.pool.workers]
        it.close()
        for process_id in workers:
            assert_raises(ProcessLookupError, None, os.kill, process_id, 0)

    def test_by_user_code_in_the_thread(self):
        ds = computing_ahead.ClosingDataset(numbers(100), lambda x: it.close() if x == 3 else x)
        it = ahead(ds)
        assert_raises(ValueError, "closed", list, it)
        wait_for_no_threads()
        assert len(ds.closed) == 1

    def test_and_start_prefetch_reach_objects_that_are_not_ours(self):
        class Full(computing_ahead.Count):
            num_started = num_closed = 0

            def start_prefetch(self):
                self.num_started += 1

            def close(self):
                self.num_closed += 1

        parent = Full(5)
        it = ThreadPrefetchDatasetIterator(parent, 0)
        it.start_prefetch()
        it.close()
        assert (parent.num_started, parent.num_closed) == (1, 1)
        parent = Full(5)
        it = ThreadPrefetchDatasetIterator(parent, 1)
        next(it)
        del it
        wait_for_no_threads()
        assert parent.num_closed == 0  # another object owns it


def test_arguments_of_several():
    ds = numbers(20).seed(5).map(lambda x: x)
    assert multithread_prefetch(ds, 2, 1)._default_seed == ds._default_seed
    assert multithread_prefetch(ds, 0, 1) is ds
    assert multithread_prefetch(ds=ds, num_threads=0, buffer_size=0, sequential_slice=True) is ds
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError)):
        assert_raises(error, "num_threads", multithread_prefetch, ds, wrong, 1)
        assert_raises(error, "buffer_size", multithread_prefetch, ds, 1, wrong)
    assert_raises(TypeError, None, multithread_prefetch, [1, 2], 2, 1)
    threads = multithread_prefetch(ds, 2, 3)
    # for checkpoints
    assert describe(iter(threads)) == describe(iter(ds.mp_prefetch(MultiprocessingOptions(2))))
    assert str(threads) == "MultithreadPrefetchIterDataset(num_threads=2, buffer_size=3)"
    assert str(iter(threads)) == "MultithreadPrefetchIterator(num_threads=2, buffer_size=3)"
    assert threads.parents == (ds,)
    assert list(multithread_prefetch(Plain(range(5)), 1, 1)) == list(range(5))  # nothing to slice
    with pytest.raises(ValueError, match="Plain cannot be sliced among 2"):
        multithread_prefetch(Plain(range(5)), 2, 1)


SHARED = [
    lambda ds: multithread_prefetch(ds, 2, 1),
    lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_lanes=2)),
]


class TestErrorsOfSeveral:
    @pytest.mark.parametrize("shared", SHARED, ids=["threads", "lanes"])
    def test_errors_keep_what_they_carry_and_can_be_skipped(self, shared):
        class Peculiar(Exception):
            """Cannot be made again from its ``args``."""

            def __init__(self, first, second):
                super().__init__(f"{first} and {second}")

        peculiar = Peculiar(1, 2)
        error = OSError(2, "no such file", "name")
        cause = KeyError("cause")
        error.add_note("a note")
        error.__cause__, error.extra, peculiar.lock = cause, [cause], 1

        def fail(x):
            if 2 <= x <= 4:
                raise (error, peculiar, StopIteration)[x - 2]
            return x

        it = iter(shared(numbers(9, fn=fail)))
        assert it._gm_take(2) == [0, 1]
        for _ in range(2):
            with pytest.raises(FileNotFoundError) as caught:
                next(it)
            assert (caught.value.errno, caught.value.filename, caught.value.__cause__) == (
                2,
                "name",
                cause,
            )
            assert caught.value.extra == [cause]
            assert [note[:9] for note in caught.value.__notes__] == [
                "a note",
                "Raised by",
                "Frames of",
            ]
        it.skip_failed()
        for _ in range(2):
            with pytest.raises(Peculiar, match="1 and 2") as caught:
                next(it)
            assert caught.value.lock == 1
        it.skip_failed()
        assert_raises(ValueError, "nothing to skip", it.skip_failed)
        fails(it, RuntimeError, match="StopIteration", times=2)
        it.skip_failed()
        assert list(it) == [5, 6, 7, 8]


def test_set_state_of_several_waits_for_no_user_code():
    gate = Gate(2, 3)
    it = iter(multithread_prefetch(numbers(20, fn=gate), 2, 2))
    state = it.get_state()
    assert next(it) == 0
    wait_until(lambda: gate.num_busy == 2)
    gate.stuck = (-1,)
    it.set_state(state)
    assert list(it) == list(range(20))
    assert gate.num_busy == 2
    gate.open.set()
