"""Workers that are threads. That elements and states are those of processes is a law
(``test_iterator_laws``).
"""

import gc
import os
import sys
import threading
import traceback
import weakref
from typing import ClassVar

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset, through_pickle
from programs import output
from refusing import assert_raises, assert_stays
from waiting import running, wait_until

from gristmill.core.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.workers.task import PipelineTask
from gristmill.diagnostics import observe
from gristmill.experimental import InterleaveIterDataset
from gristmill.loader.data_loader import DataLoader
from gristmill.samplers import SequentialSampler
from gristmill.transforms import Map

DIRECT = ReadOptions(num_threads=0)


def numbers(n, fn=None):
    ds = MapDataset.range(n).to_iter_dataset(DIRECT)
    return ds if fn is None else ds.map(fn)


def threads(num_workers=2, **options):
    return MultiprocessingOptions(num_workers, executor="threads", **options)


def worker_name(x):
    return threading.current_thread().name


class ProcessId(Map):
    def map(self, element):
        return os.getpid()


def wait_for_the_end():
    gc.collect()
    wait_until(lambda: not running("gristmill-worker-"))


NAMES = ["gristmill-worker-0", "gristmill-worker-1"]


class TestChoice:
    @pytest.fixture
    def gil(self, monkeypatch):
        """Sets whether there is a GIL, as an import may do."""

        def set_gil(is_enabled):
            monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_enabled, raising=False)

        return set_gil

    def test_is_made_when_iteration_begins(self, gil):
        gil(True)
        ds = numbers(4, lambda x: os.getpid()).mp_prefetch(MultiprocessingOptions(2))
        batches = numbers(4, worker_name).global_batch(
            2, workers=MultiprocessingOptions(2), batch_fn=list
        )
        loader = DataLoader(
            data_source=range(4),
            sampler=SequentialSampler(4),
            worker_count=2,
            operations=[ProcessId()],
        )
        its = iter(ds), iter(batches), iter(loader)
        gil(False)
        assert set(its[0]) == {os.getpid()}
        assert list(its[1]) == [NAMES, NAMES] and set(its[2]) == {os.getpid()}
        it = iter(ds)
        gil(True)
        assert os.getpid() not in set(it)

    def test_can_be_asked_for(self, gil):
        gil(False)
        ds = numbers(4, lambda x: os.getpid())
        assert os.getpid() not in set(
            ds.mp_prefetch(MultiprocessingOptions(2, executor="processes"))
        )
        gil(True)
        assert set(ds.mp_prefetch(threads(num_lanes=3))) == {os.getpid()}
        assert set(ds.mp_prefetch(threads(), order="stream")) == {os.getpid()}
        assert repr(threads(1)).endswith("enable_profiling=False, executor='threads')")

    def test_environments_are_refused(self, gil):
        match = (
            r"worker_env must be None where workers are threads \({}\), got \{{'A': 'b'\}}:"
            r" .*executor='processes'"
        )
        with pytest.raises(ValueError, match=(match.format("by executor='threads'"))):
            threads(worker_env={"A": "b"})
        with pytest.raises(
            ValueError, match="executor must be 'processes', 'threads' or None, got 3"
        ):
            MultiprocessingOptions(executor=3)
        it = iter(numbers(4).mp_prefetch(MultiprocessingOptions(2, worker_env={"A": "b"})))
        gil(False)
        assert_stays(it, ValueError, match.format("since this Python runs without the GIL"))
        gil(True)
        assert list(it) == [0, 1, 2, 3]


class Last(Map):
    """Adds the element of the call before: a worker that has this object alone always gives the
    same.
    """

    def __init__(self):
        self.last = None

    def map(self, x):
        last, self.last = self.last, x
        return x, last


class LastMapDataset(MapDataset):
    def __init__(self, parent):
        super().__init__(parent)
        self.kept = Last()

    def __len__(self):
        return len(self.parents[0])

    def __getitem__(self, index):
        return self.kept.map(self.parents[0][index])


def after_the_last(ds):
    kept = [None]
    return ds.map(lambda x: (x, kept.pop(), kept.append(x)))


def counted_by_another_stage(ds):
    first = Last()
    return ds.map(first).map(lambda x: (x, first.last))


MAPS = MapDataset.range(8)
KEEPING = {
    "object": lambda: numbers(8).map(Last()),
    "closure": lambda: after_the_last(numbers(8)),
    "method": lambda: numbers(8).map(Last().map),
    "two stages": lambda: counted_by_another_stage(numbers(8)),
    "batch function": lambda: numbers(8).batch(2, batch_fn=Last().map),
    "map dataset": lambda: MAPS.map(Last()).to_iter_dataset(DIRECT),
    "user's dataset": lambda: LastMapDataset(MAPS).to_iter_dataset(DIRECT),
    "dataset as a source": lambda: MapDataset.source(MAPS.map(Last())).to_iter_dataset(DIRECT),
    "interleaved": lambda: InterleaveIterDataset([numbers(8, Last()), numbers(4)], cycle_length=2),
}
two_in_map = threading.Barrier(2)


class Scratch(Map):
    """Uses one buffer for all elements; worker threads have two elements in it at a time if they
    share it.
    """

    def __init__(self):
        self.buffer = np.zeros(4)

    def map(self, x):
        self.buffer[:] = x
        if threading.current_thread().name in NAMES:
            two_in_map.wait(10)
        return self.buffer.tolist()


class TestCopies:
    @pytest.mark.parametrize("name", KEEPING)
    def test_functions_keep_what_they_keep_in_processes(self, name):
        ds = KEEPING[name]()
        by_processes = LocalWorkersIterDataset(ds, 2, through=through_pickle)
        assert list(map(str, ds.mp_prefetch(threads()))) == list(map(str, by_processes))

    def test_a_scratch_buffer_is_not_observable(self):
        ds = numbers(16).map(Scratch())
        expected = [[x] * 4 for x in range(16)]
        assert list(ds) == expected
        for options in ({"executor": "processes"}, {"executor": "threads"}):
            workers = MultiprocessingOptions(2, **options)
            loader = DataLoader(
                data_source=range(16),
                sampler=SequentialSampler(16),
                operations=[Scratch()],
                workers=workers,
                read_options=DIRECT,
            )
            for tried in (ds.mp_prefetch(workers), ds.mp_prefetch(workers, order="stream"), loader):
                assert list(tried) == expected

    def test_an_init_function_sets_up_the_copies_of_its_own_worker(self):
        kept = {}
        ds = numbers(6, lambda x: (x, kept["worker"])).mp_prefetch(
            threads(), lambda index, count: kept.update(worker=index)
        )
        assert list(ds) == [(x, x % 2) for x in range(6)] and not kept

    def test_a_thread_that_replaces_another_has_its_own_copy(self):
        it = iter(numbers(8, after(sys.exit, at=4)).mp_prefetch(threads(1)))
        assert [next(it) for _ in range(4)] == [0, 1, 2, 3]
        assert_raises(RuntimeError, "has raised SystemExit", next, it)
        it.set_state(it.get_state())
        assert list(it) == [4, 5, 6, 7]

    @pytest.mark.parametrize("order", ["workers", "stream"])
    def test_what_cannot_be_pickled_stays_shared(self, order):
        lock, seen = threading.Lock(), []

        def see(x):
            with lock:
                seen.append(x)
            return True

        class Locked(LastMapDataset):
            lock = None

        maps = Locked(MAPS)
        maps.lock = lock
        ds = maps.to_iter_dataset(DIRECT).filter(see).map(Last()).filter(see).map(Last())
        last = dict(zip(range(8), [None, None, *range(6)], strict=True))
        pairs = [(x, last[x]) for x in range(8)]
        for _ in range(2):  # of the three that keep the last element
            pairs = [
                (x, None if x_2 is None else x_2)
                for x, x_2 in zip(pairs, [None, None, *pairs], strict=False)
            ]
        assert list(ds.mp_prefetch(threads(), order=order)) == pairs
        assert len(seen) == 16

    def test_sources_classes_and_what_cannot_change_are_shared(self):
        class OfTheProgram:
            pass

        records = [threading.Lock() for _ in range(6)]
        table, missing, cells = np.arange(3), object(), np.arange(3)
        table.flags.writeable = False
        shared = [OfTheProgram, missing, table, os.getpid, records]
        source = MapDataset.source(records)
        with_records = source.to_iter_dataset(DIRECT).map(
            lambda lock: (lock, shared, cells, source)
        )
        for i, (lock, others, copied, _) in enumerate(with_records.mp_prefetch(threads())):
            assert lock is records[i] and copied is not cells
            assert others is not shared
            assert all([x is y for x, y in zip(others, shared, strict=True)])

    def test_copies_end_with_their_threads(self):
        """Python 3.13 without the GIL keeps all functions that are not nested in others."""
        fn = eval("lambda x: (kept, x)[1]", {"kept": Counted()})
        for _ in range(3):
            with iter(numbers(4, fn).mp_prefetch(threads())) as it:
                assert list(it) == [0, 1, 2, 3]
        wait_for_the_end()
        gc.collect()
        assert len(Counted.objects) == 1


class Counted:
    objects: ClassVar = weakref.WeakSet()

    def __init__(self):
        self.objects.add(self)

    def __setstate__(self, state):
        self.objects.add(self)

    def __getstate__(self):
        return (0,)


def after(function, at):
    """Calls ``function`` at the element ``at``, if there was one before."""
    kept = []

    def call(x):
        kept.append(x)
        if x == at and len(kept) > 1:
            function()
        return x

    return call


started = []


def note_start(index, count):
    started.append((index, count, worker_name(0)))


def test_nothing_is_finished_before_the_first_take():
    """Another thread asks for it if the worker's thread has to wait for a CPU."""
    producer = PipelineTask(numbers(4), DatasetOptions(), None, False, 1)(0, 1, None)
    producer.start({0: None}, skip=False)
    producer.begin(2)
    assert producer.finished() == ([], [])
    assert producer.take(0, 2)[0] == [0, 1]


class TestThreads:
    def test_share_sources_and_module_functions_with_the_program(self):
        given = [threading.Lock() for _ in range(5)]
        ds = MapDataset.source(given).to_iter_dataset(DIRECT)
        found = list(ds.mp_prefetch(threads(), note_start))
        assert all(x is y for x, y in zip(found, given, strict=True))  # neither copied nor pickled
        assert sorted(started) == [(0, 2, NAMES[0]), (1, 2, NAMES[1])]

    def test_are_bounded(self):
        """An element of 1 MB waits to be taken, and one is made."""
        num_delivered, most, lock = 0, [], threading.Lock()

        def large(x):
            with lock:  # which has threads share the function
                most.append(x // 2 - num_delivered // 2)
            return np.full(1 << 20, x, np.uint8)

        for x in numbers(40, large).mp_prefetch(threads()):
            assert x[0] == num_delivered
            num_delivered += 1
        assert 1 <= max(most) <= 3

    @pytest.mark.parametrize("end", ["close", "drop", "exhaust"])
    def test_end_with_the_iterator(self, end):
        wait_for_the_end()  # of other tests' threads
        it = iter(numbers(10**6 if end != "exhaust" else 10).mp_prefetch(threads()))
        next(it)
        assert len(running("gristmill-worker-")) == 2
        if end == "close":
            it.close()
            assert not running("gristmill-worker-")
            assert_raises(ValueError, "is closed", next, it)
        elif end == "exhaust":
            assert len(list(it)) == 9
        else:
            del it
        wait_for_the_end()

    def test_stuck_ones_hold_up_neither_a_restart_nor_the_end(self):
        stuck, goes_on = threading.Event(), threading.Event()

        def wait_once(x):
            if x == 5 and not stuck.is_set():
                stuck.set()
                goes_on.wait()
            return x

        it = iter(numbers(100, wait_once).mp_prefetch(threads(1)))
        state = it.get_state()
        assert [next(it) for _ in range(5)] == [0, 1, 2, 3, 4]
        stuck.wait()
        it.set_state(state)
        assert list(it) == [*range(100)]  # by another thread
        stuck.clear()
        it.set_state(state)
        next(it)
        stuck.wait()
        waiting = threading.Thread(target=assert_raises, args=(ValueError, "closed", list, it))
        waiting.start()
        it.close()
        waiting.join()
        goes_on.set()
        wait_for_the_end()

    def test_errors_name_worker_and_element(self):
        lock = threading.Lock()

        def fail(x):
            if x == 3:
                raise LookupError("no", lock)  # which cannot be pickled
            if x == 5:
                sys.exit(7)
            return x

        it = iter(numbers(8, fail).mp_prefetch(threads()))
        assert [next(it), next(it), next(it)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(LookupError) as caught:
                next(it)
            assert caught.value.args == ("no", lock)
            assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fail"
            (note,) = [note for note in caught.value.__notes__ if "Raised in" in note]
            assert "worker 1 of 2" in note and "at element 3" in note
        it.skip_failed()
        assert next(it) == 4
        assert_stays(
            it,
            RuntimeError,
            r"Worker thread 1 of 2 was .*has raised SystemExit\(7\), at element 5.*with a new"
            r" thread",
        )
        failing = iter(numbers(8).mp_prefetch(threads(), lambda index, count: index and 1 // 0))
        assert next(failing) == 0
        with pytest.raises(ZeroDivisionError) as caught:
            next(failing)
        assert caught.value.__notes__[0] == "Raised in worker 1 of 2, when it was started."

    def test_are_observed_one_by_one(self):
        it = iter(
            MapDataset.range(200)
            .map(lambda x: x + 1)
            .to_iter_dataset(DIRECT)
            .batch(5)
            .mp_prefetch(threads())
        )
        with observe(it) as view:
            assert len(list(it)) == 40
        nodes = [*view.summary().values()]
        assert [node.num_produced_elements for node in nodes] == [40, 40, 200, 200, 200, 200]
        assert [node.place for node in nodes] == ["consumer", *["workers"] * 5]
        assert view.snapshot().workers[0].num_workers == 2

    def test_a_program_ends_in_silence_and_continues_after_a_fork(self, tmp_path):
        program = """
            import os, threading, warnings
            import gristmill as gm

            warnings.simplefilter("ignore", DeprecationWarning)  # of forks while there are threads
            options = gm.MultiprocessingOptions(2, executor="threads")
            it = iter(gm.MapDataset.range(100).to_iter_dataset().mp_prefetch(options))
            seen = [next(it), next(it), next(it)]
            process_id = os.fork()
            assert seen + [next(it) for _ in range(20)] == list(range(23))
            if process_id:
                assert os.waitpid(process_id, 0)[1] == 0
                waits = lambda x: threading.Event().wait() if x > 3 else x
                stuck = iter(
                    gm.MapDataset.range(100).to_iter_dataset().map(waits).mp_prefetch(options)
                )
                assert [next(stuck) for _ in range(4)] == [0, 1, 2, 3]
                print("ended")
        """
        assert output(tmp_path, program) == ["ended"]
