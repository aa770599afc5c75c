"""Prefetching by several threads: the same elements, order, states and errors as worker processes have."""

import copy
import itertools
import sys

import pytest
from computing_ahead import (
    DIRECT,
    Boom,
    ClosingDataset,
    Failing,
    Gate,
    Plain,
    fails,
    no_threads_left,  # noqa: F401
    numbers,
    wait_for_no_threads,
    working,
)
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises
from waiting import wait_until

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.telling.description import describe
from gristmill.experimental import DatasetOptions, ThreadPrefetchIterDataset, WithOptionsIterDataset, multithread_prefetch


class TestElementsAndStates:
    @pytest.mark.parametrize("buffer_size", [0, 1, 2, 50])
    def test_one_element_of_each_share_in_turn(self, buffer_size):
        stages = [
            lambda ds: ds.shuffle(seed=4).to_iter_dataset(DIRECT).map(str),
            lambda ds: ds.to_iter_dataset(DIRECT).filter(lambda x: x % 3 != 1 or x > 8),
            lambda ds: ds.map(str).to_iter_dataset(ReadOptions(2, 4)).batch(2, batch_fn=list),
        ]
        for count, length in ((1, 5), (2, 14), (3, 13), (5, 14), (4, 2), (2, 0)):
            ds = stages[(count + buffer_size) % 3](MapDataset.range(length))
            turns = itertools.zip_longest(*[slice_pipeline(ds, i, count) for i in range(count)])
            expected = [x for turn in turns for x in turn if x is not None]
            it, workers = iter(multithread_prefetch(ds, count, buffer_size)), iter(LocalWorkersIterDataset(ds, count))
            states = []
            for element in expected:
                states.append(it.get_state())
                assert states[-1] == workers.get_state()
                assert next(it) == next(workers) == element
            for _ in range(2):
                assert next(it, "end") == next(workers, "end") == "end"
            assert it.get_state() == workers.get_state()
            assert it.get_state()["exhausted"] == [1] * count
            for k, state in enumerate(states):
                it.set_state(state)
                for wrong in ({"next_index_in_cycle": count}, {"iterators_in_use_states": [{"next_index": 99}] * count}):
                    assert_raises(ValueError, None, it.set_state, {**states[0], **wrong})
                assert it.get_state() == state
                assert list(it) == expected[k:]

    def test_threads_and_processes_are_interchangeable(self):
        ds = MapDataset.range(30).to_iter_dataset().filter(lambda x: x % 3 != 1 or x > 8).batch(2, batch_fn=list)
        one = iter(multithread_prefetch(ds, 3, 2, sequential_slice=True))
        other = iter(ds.mp_prefetch(MultiprocessingOptions(3), sequential_slice=True))
        assert describe(one) == describe(other)  # each takes the other's checkpoints
        assert one._take(4) == [next(other) for _ in range(4)]
        state = one.get_state()
        assert other.get_state() == state
        rest = list(one)
        assert list(other) == rest
        assert other.get_state() == one.get_state() != state
        for it in (one, other):
            it.set_state(state)
            assert list(it) == rest

    def test_seeds_options_and_sources_are_those_without_threads(self):
        ds = numbers(10).seed(5).map(lambda x: x)
        assert multithread_prefetch(ds, 2, 1)._default_seed == ds._default_seed
        dropping = multithread_prefetch(numbers(2000).filter(lambda x: False), 2, 1)
        strict = WithOptionsIterDataset(dropping, DatasetOptions(filter_raise_threshold_ratio=0.5))
        assert_raises(ValueError, "filter", list, strict)

        class Source(list):
            def __deepcopy__(self, memo):
                raise AssertionError("copied")

            __copy__ = __deepcopy__

        ds = MapDataset.source(Source(range(9))).to_iter_dataset()
        before = copy.copy(vars(ds))
        assert list(multithread_prefetch(ds, 3, 1)) == list(range(9))
        assert vars(ds) == before


def test_arguments():
    ds = numbers(20)
    assert multithread_prefetch(ds, 0, 1) is ds
    assert multithread_prefetch(ds=ds, num_threads=0, buffer_size=0, sequential_slice=True) is ds
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError)):
        assert_raises(error, "num_threads", multithread_prefetch, ds, wrong, 1)
        assert_raises(error, "buffer_size", multithread_prefetch, ds, 1, wrong)
    assert_raises(TypeError, None, multithread_prefetch, [1, 2], 2, 1)
    threads = multithread_prefetch(ds, 2, 3)
    assert str(threads) == "MultithreadPrefetchIterDataset(num_threads=2, buffer_size=3)"
    assert str(iter(threads)) == "MultithreadPrefetchIterator(num_threads=2, buffer_size=3)"
    assert threads.parents == (ds,)
    assert list(multithread_prefetch(Plain(range(5)), 1, 1)) == list(range(5))  # nothing to slice
    assert_raises(ValueError, "Plain cannot be sliced among 2", multithread_prefetch, Plain(range(5)), 2, 1)


@pytest.mark.parametrize("has_init", [False, True])
def test_free_threaded_python_uses_threads_for_mp_prefetch(monkeypatch, recwarn, has_init):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    options, called = MultiprocessingOptions(2, per_worker_buffer_size=3), []
    if has_init:
        with pytest.warns(UserWarning, match="worker_init_fn is ignored") as caught:
            ds = numbers(20).mp_prefetch(options, lambda *args: called.append(args), sequential_slice=True)
        assert caught[0].filename == __file__
    else:
        ds = numbers(20).mp_prefetch(options)
    assert str(ds) == "MultithreadPrefetchIterDataset(num_threads=2, buffer_size=3)"
    assert list(ds) == ([x for i in range(10) for x in (i, i + 10)] if has_init else list(range(20)))
    assert called == []
    assert type(numbers(20).mp_prefetch(MultiprocessingOptions(0), str)) is type(numbers(20))
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True)
    assert str(numbers(20).mp_prefetch(options)).startswith("MultiprocessPrefetchIterDataset")


class TestErrors:
    @pytest.mark.parametrize("buffer_size", [0, 1, 3])
    def test_an_error_stays_until_the_state_is_set(self, buffer_size):
        fail = Failing(5, times=2)
        it = iter(multithread_prefetch(numbers(12, fn=fail), 3, buffer_size))
        assert it._take(5) == list(range(5))
        state = it.get_state()
        for trial in range(2):
            for _ in range(3):
                with pytest.raises(Boom) as caught:
                    next(it)
                assert caught.value.args == (5,)
                assert any(entry.name == "__call__" for entry in caught.traceback)
                assert it.get_state() == state
            assert fail.left[5] == 1 - trial  # it was not tried again
            it.set_state(state)
        assert list(it) == list(range(5, 12))

    def test_errors_keep_what_they_carry_and_can_be_skipped(self):
        class Peculiar(Exception):
            """Cannot be made again from its ``args``."""

            def __init__(self, first, second):
                super().__init__(f"{first} and {second}")

        peculiar, error, cause = Peculiar(1, 2), OSError(2, "no such file", "name"), KeyError("cause")
        error.add_note("a note")
        error.__cause__, error.extra, peculiar.lock = cause, [cause], 1

        def fail(x):
            if 2 <= x <= 4:
                raise (error, peculiar, StopIteration)[x - 2]
            return x

        it = iter(multithread_prefetch(numbers(9, fn=fail), 2, 1))
        assert it._take(2) == [0, 1]
        for _ in range(2):
            with pytest.raises(FileNotFoundError) as caught:
                next(it)
            assert (caught.value.errno, caught.value.filename, caught.value.__cause__) == (2, "name", cause)
            assert caught.value.extra == [cause]
            assert [note[:9] for note in caught.value.__notes__] == ["a note", "Raised by", "Frames of"]
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


class TestEnds:
    @pytest.mark.parametrize("buffer_size", [0, 1, 4])
    def test_close(self, buffer_size):
        for num in (0, 1, 7, 20):
            ds = ClosingDataset(numbers(20))
            it = iter(multithread_prefetch(ds, 3, buffer_size))
            assert it._take(num) == list(range(num))
            state = it.get_state()
            if num == 7:
                it.start_prefetch()
            ds.closed.clear()
            for _ in range(2):
                it.close()
                assert it.get_state() == state
                fails(it, ValueError, match=r"MultithreadPrefetchIterator.*closed")
            it.start_prefetch()
            assert len(set(ds.closed)) == (3 if num else 0)
            wait_for_no_threads()

    def test_close_behind_another_thread_ends_the_wait_for_stuck_threads(self):
        gate = Gate(0)
        it = iter(ThreadPrefetchIterDataset(multithread_prefetch(numbers(99, fn=gate), 2, 2), prefetch_buffer_size=1))
        it.start_prefetch()
        wait_until(lambda: gate.num_busy)
        it.close()
        wait_until(lambda: len(working()) == 1)
        gate.open.set()

    def test_set_state_does_not_wait_for_threads_in_user_code(self):
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
