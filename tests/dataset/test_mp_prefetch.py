"""``mp_prefetch`` on real processes: inputs, outputs, states, errors, and which processes do the
work.

Functions and classes that workers use are local to the tests: they travel by value, so that workers
need not import pytest.
"""

import csv
import dataclasses
import os
import sys
import threading
from itertools import islice

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing, Plain, fails, numbers
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises
from users_datasets import BareMap
from waiting import wait_until, worker_processes
from worker_pools import idle_for_long, is_shared

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset

patient = pytest.fixture(idle_for_long, name="patient")


def workers(n, **options):
    return MultiprocessingOptions(n, executor="processes", **options)


def failing(bad, error=lambda x: OSError(5, f"bad record {x}", "file")):
    def fail(x):
        if x == bad:
            raise error(x)
        return x

    return fail


def plain(n, fn):
    """A dataset without states; local, so that it travels by value."""

    class Stream(IterDataset):
        def __iter__(self):
            return map(fn, iter(self._parent))

    return Stream(numbers(n))


def picky(bad):
    """A function that makes of ``bad`` what cannot be unpickled."""

    class Picky:
        def __init__(self, x):
            self.x = x

        def __setstate__(self, state):
            raise ArithmeticError("not here")

    return lambda x: Picky(x) if x == bad else x


@pytest.fixture
def started():
    """The worker processes that were started since the test began; others may still wait for a
    moment.
    """
    before = worker_processes()
    return lambda: worker_processes() - before


class TestArguments:
    def test_texts_and_defaults(self):
        ds = numbers(5)
        assert ds.mp_prefetch(workers(0)) is ds
        assert (
            ds.mp_prefetch(
                workers(0, per_worker_buffer_size=0), worker_init_fn=3, sequential_slice=True
            )
            is ds
        )
        for given, num, size in (((), 10, 1), ((workers(2, per_worker_buffer_size=3),), 2, 3)):
            shown = f"num_workers={num}, per_worker_buffer_size={size}, enable_profiling=False"
            shown += ", executor='processes'" if given else ""
            for made, name in (
                (ds.mp_prefetch(*given), "Dataset"),
                (iter(ds.mp_prefetch(*given)), "ator"),
            ):
                options = f"multiprocessing_options=MultiprocessingOptions({shown})"
                assert str(made) == f"MultiprocessPrefetchIter{name}({options})"
        seeded = ds.seed(5).map(str)
        assert seeded.mp_prefetch(workers(2))._default_seed == seeded._default_seed

    def test_what_is_refused_at_construction(self):
        first, options, unsliced = numbers(5).mp_prefetch(workers(2)), workers(1), Plain(range(3))
        options.per_worker_buffer_size = 0
        assert list(LocalWorkersIterDataset(unsliced, 1)) == [0, 1, 2]
        assert first.mp_prefetch(workers(0)) is first
        for ds, given, error, match in [
            (numbers(5), (2,), TypeError, "options must be a MultiprocessingOptions.*, got 2"),
            (
                numbers(5),
                (workers(1), 3),
                TypeError,
                "init_fn must be a callable of worker index and worker count, got 3",
            ),
            (numbers(5), (options,), ValueError, r"per_worker_buffer_size must be .*, got 0"),
            (
                first.map(str).batch(2),
                (workers(1),),
                ValueError,
                r"to a pipeline that already has .*num_workers=2",
            ),
            (
                unsliced.map(str),
                (workers(2),),
                ValueError,
                "source of class Plain cannot be sliced among 2 workers",
            ),
            (
                BareMap(4).to_iter_dataset(),
                (workers(2), None, True),
                ValueError,
                "sequential_slice=True can cut only",
            ),
        ]:
            assert_raises(error, match, ds.mp_prefetch, *given)


class TestElements:
    def test_many_small_elements(self):
        """Far more than a message has, with filters and counts that states must follow."""
        ds = (
            numbers(9000, options=ReadOptions(4, 8))
            .filter(lambda x: x % 7 != 3)
            .random_map(lambda x, rng: x, seed=1)
        )
        it = iter(ds.mp_prefetch(workers(2)))
        taken = [[], []]
        for k, x in enumerate(it):
            taken[x % 2].append(x)
            if k % 1000 == 500:
                for w, state in enumerate(it.get_state()["iterators_in_use_states"]):
                    assert state == {
                        "parent": {"next_index": taken[w][-1] // 2 + 1},
                        "index_for_rng": len(taken[w]),
                    }
        assert taken == [[x for x in range(w, 9000, 2) if x % 7 != 3] for w in range(2)]
        few = numbers(10).mp_prefetch(workers(3, per_worker_buffer_size=7), sequential_slice=True)
        assert list(few) == [0, 4, 7, 1, 5, 8, 2, 6, 9, 3]

    def test_plain_iterators_and_interrupts(self):
        def interrupt_once(shard):
            def interrupted(num, receive=shard.receive):
                shard.receive = receive
                raise KeyboardInterrupt

            shard.receive = interrupted

        ds = plain(9000, int).mp_prefetch(workers(2))
        it = iter(ds)
        assert [next(it), next(it)] == [0, 1]
        assert_raises(NotImplementedError, "plain Python iterators", it.get_state)
        assert list(it) == [*range(2, 9000)]
        it = iter(ds)
        next(it)
        interrupt_once(it.executor.shards[0])
        assert_raises(KeyboardInterrupt, None, list, it)
        # the position is unknown: it is not the end of the data
        fails(it, NotImplementedError, match="no state")
        it = iter(numbers(20_000).mp_prefetch(workers(2)).batch(500))
        batches = [next(it) for _ in range(4)]
        # of worker 0, some have been taken and more are ready
        interrupt_once(it._parent.executor.shards[1])
        while len(batches) < 40:
            try:
                batches.append(next(it))
            except KeyboardInterrupt:
                batches.append(next(it))
        assert np.concatenate(batches).tolist() == [*range(20_000)]

    def test_the_init_function_is_called_once_in_each_process(self, patient):
        def init(index, count):
            os.environ["CALLS"] = (
                os.environ.get("CALLS", "") + f"{os.environ['GIVEN']}: {index} of {count}."
            )

        ds = (
            numbers(4)
            .map(lambda x: os.environ["CALLS"])
            .mp_prefetch(workers(2, worker_env={"GIVEN": "x"}), init)
        )
        for _ in range(2):  # processes with such a function are used for one epoch
            assert list(ds) == ["x: 0 of 2.", "x: 1 of 2."] * 2
        assert "CALLS" not in os.environ

    def test_options_given_after_it_reach_the_workers(self):
        ds = numbers(3).map(lambda x: np.full(20000, x)).mp_prefetch(workers(1))
        for options, expected in (
            (DatasetOptions(), True),
            (DatasetOptions(min_shm_size=10**6), False),
        ):
            assert [is_shared(x) for x in WithOptionsIterDataset(ds, options)] == [expected] * 3


class TestStates:
    def test_set_state_throws_away_what_was_computed_ahead(self):
        """Also large elements, whose memory must be used again."""
        it = iter(
            numbers(1000)
            .map(lambda x: np.full(30000, x))
            .mp_prefetch(workers(2, per_worker_buffer_size=5))
        )
        states = [(it.get_state(), next(it))[0] for _ in range(6)]
        for k in (4, 0, 5, 2) * 10:
            it.set_state(states[k])
            assert next(it)[-1] == k
        readers = [worker.transport._reader for worker in it.pool.workers]
        used = [os.fstat(reader._mapping._fd).st_blocks * 512 for reader in readers]
        # of which 0.24 MB are in use for each of at most 7 elements; 40 new starts would add 40
        assert max(used) < 12 * 2**20

    def test_nothing_starts_before_the_first_element(self, tmp_path, started):
        def init(index, count):
            (tmp_path / str(index)).touch()

        it = iter(numbers(4).mp_prefetch(workers(2), init))
        state = it.get_state()
        it.set_state(state)
        assert it.get_state() == state
        assert (started(), [*tmp_path.iterdir()]) == (set(), [])
        for _ in range(2):
            it.start_prefetch()
            wait_until(lambda: len(started()) == 2)
        # both are at work although no element was asked for
        wait_until(lambda: len([*tmp_path.iterdir()]) == 2)
        assert it.get_state() == state
        assert list(it) == [0, 1, 2, 3]
        it.set_state(state)
        it.start_prefetch()
        assert list(it) == [0, 1, 2, 3]
        it.close()
        it.start_prefetch()
        assert started() == set()


class TestErrors:
    def check(self, ds, before, error, match, after):
        """Elements up to an error, which stays; ``set_state`` tries again; ``skip_failed`` leaves
        out what failed.
        """
        it = iter(ds)
        assert [next(it) for _ in before] == [*before]
        assert_raises(ValueError, "nothing to skip", it.skip_failed)
        state = it.get_state()
        for trial in range(3):
            with pytest.raises(error, match=match) as caught:
                next(it)
            assert it.get_state() == state
            if trial == 1:
                it.set_state(state)
        it.skip_failed()
        assert list(it) == after
        return caught.value

    def test_come_in_their_turn_and_stay(self):
        ds = numbers(10).map(failing(5)).mp_prefetch(workers(2, per_worker_buffer_size=9))
        error = self.check(ds, range(5), OSError, "bad", [6, 7, 8, 9])
        assert (error.errno, error.filename) == (5, "file")
        parts = ("worker 1 of 2", "at element 5", "MapDatasetIterator")
        assert any(all(part in note for part in parts) for note in error.__notes__)
        fail = Failing(3)
        it = iter(LocalWorkersIterDataset(numbers(8, fn=fail), 2))
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        fails(it, Boom)
        fail.left.clear()  # it would heal, and is not tried again
        fails(it, Boom)
        it.set_state(it.get_state())
        assert list(it) == [3, 4, 5, 6, 7]
        # What had ended is still known to have ended, and so the state says, also when the error is
        # skipped.
        it = iter(
            LocalWorkersIterDataset(numbers(10).filter(lambda x: x % 2 or x < 4).map(failing(5)), 2)
        )
        assert [next(it) for _ in range(4)] == [0, 1, 2, 3]
        fails(it, OSError, match="bad")
        # nothing was read after the last delivered element
        assert it.get_state()["exhausted"] == [0, 0]
        it.skip_failed()
        assert it.get_state()["exhausted"] == [1, 0]
        assert list(it) == [7, 9]
        assert it.get_state()["exhausted"] == [1, 1]

    def test_of_the_init_function_that_refuse_changes_and_exits(self):
        def init(index, count):
            if index == 1:
                raise LookupError("no device", index)

        @dataclasses.dataclass(frozen=True)
        class Frozen(Exception):
            code: int

        it = iter(numbers(4).mp_prefetch(workers(2), init))
        assert next(it) == 0
        for _ in range(3):
            with pytest.raises(LookupError) as caught:
                next(it)
            assert caught.value.args == ("no device", 1)
            assert caught.value.__notes__[0] == "Raised in worker 1 of 2, when it was started."
            it.set_state(it.get_state())
        error = self.check(
            numbers(4).map(failing(2, Frozen)).mp_prefetch(workers(1)), [0, 1], Exception, "2", [3]
        )
        assert error.code == 2 and "Raised in worker 0 of 1" in error.__notes__[0]
        it = iter(numbers(6).map(failing(3, lambda x: sys.exit(0))).mp_prefetch(workers(1)))
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        fails(it, RuntimeError, match=r"Worker process 0 of 1 .* exited with code 0", times=2)

    def test_errors_name_the_way_to_settings_in_workers(self):
        def parsed(x):
            return [len(field) for field in next(csv.reader(["x" * 200_000 * x]))]

        def set_limit(*worker):
            return csv.field_size_limit(1 << 20)

        def settings_notes(ds, *init):
            with pytest.raises(Exception, match=r"large|shape|pickle|number") as caught:
                list(ds.mp_prefetch(workers(1), *init))
            return [note for note in caught.value.__notes__ if "worker_init_fn" in note]

        limit = set_limit()
        try:
            ds = numbers(3).map(parsed)
            assert (
                list(ds)
                == list(ds.mp_prefetch(workers(1), set_limit))
                == [[], [200_000], [400_000]]
            )
            text = (
                "Workers lack what the program has set or registered in libraries, unless"
                " worker_init_fn does so there, too."
            )
            assert settings_notes(ds) == [text]
            # Not where it was passed, and not at errors of the library.
            assert settings_notes(ds, print) == []
            assert settings_notes(numbers(2).map(np.zeros).batch(2)) == []
            assert settings_notes(numbers(1).map(lambda x: threading.Lock())) == []
        finally:
            csv.field_size_limit(limit)

    def test_elements_that_cannot_be_pickled(self):
        def lock(x):
            return (x, threading.Lock()) if x == 401 else (x,)

        ds, after = numbers(500).map(lock).mp_prefetch(workers(2)), [(x,) for x in range(402, 500)]
        error = self.check(ds, [(x,) for x in range(401)], TypeError, "cannot pickle", after)
        notes = "\n".join(error.__notes__)
        assert "An element of type tuple could not be sent from a worker process." in notes
        assert "worker 1 of 2" in notes and "at element 401" in notes

    def test_elements_that_can_be_unpickled_only_in_the_worker(self):
        ds = numbers(400).map(picky(300)).mp_prefetch(workers(2))
        error = self.check(ds, range(300), ArithmeticError, "not here", [*range(301, 400)])
        assert any(
            "worker 0 of 2" in note and "could not be unpickled" in note for note in error.__notes__
        )
        # Without a state to begin from again, what came before the element arrives, and only once.
        it = iter(plain(1000, picky(700)).mp_prefetch(workers(1)))
        assert [next(it) for _ in range(700)] == [*range(700)]
        fails(it, ArithmeticError, match="not here", times=2)

    def test_pipelines_that_cannot_be_pickled(self, started):
        lock = threading.Lock()
        ds = (
            MapDataset.range(3)
            .map(lambda x: (lock, x))
            .to_iter_dataset(DIRECT)
            .filter(lambda x: True)
            .mp_prefetch(workers(2))
        )
        it = iter(ds)
        for _ in range(2):
            with pytest.raises(TypeError, match="cannot pickle") as caught:
                next(it)
            # the last one is about frames that are omitted
            *of_pickle, note, _ = caught.value.__notes__
            assert len(of_pickle) <= 1  # Python 3.14 adds many
            assert "MapMapDataset" in note and "lambda" in note and "FilterIterDataset" not in note
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            next(iter(numbers(3).mp_prefetch(workers(1), lambda index, count: lock.acquire())))
        assert "worker_init_fn" in caught.value.__notes__[-2]
        assert started() == set()

    def test_open_text_files_are_refused(self, tmp_path):
        """cloudpickle would turn them into copies in memory, where ``seek`` finds other places."""
        path = tmp_path / "lines.txt"
        path.touch()
        with path.open() as file:
            it = iter(numbers(1).map(lambda x: file.readline()).mp_prefetch(workers(1)))
            fails(it, TypeError, match=r"cannot pickle an open text file.*lines\.txt")
        opened = (
            numbers(9)
            .map(lambda x: path.open() if x == 3 else (x, sys.stdout is None))
            .mp_prefetch(workers(1))
        )
        after = [(x, False) for x in range(4, 9)]
        self.check(
            opened,
            [(x, False) for x in range(3)],
            TypeError,
            "cannot pickle an open text file",
            after,
        )


class TestProcesses:
    @pytest.fixture
    def ds(self):
        return numbers(6).map(lambda x: (x, os.getpid())).mp_prefetch(workers(2))

    def pids(self, elements):
        elements = list(elements)
        assert {pid for x, pid in elements if x % 2 == 0}.isdisjoint(
            pid for x, pid in elements if x % 2
        )
        return {pid for _, pid in elements}

    def test_set_state_keeps_them_and_the_next_epoch_has_them(self, ds, patient):
        it = iter(ds)
        state = it.get_state()
        pids = self.pids(islice(it, 4))
        assert len(pids) == 2
        for num in (4, 6, 6):  # after the end, too
            it.set_state(state)
            assert self.pids(islice(it, num)) == pids
        del it
        for num in (6, 6, 3, 3):  # also when the last epoch was left in the middle
            assert self.pids(islice(ds, num)) == pids
        it = iter(ds)
        assert self.pids(it) == pids
        assert self.pids(iter(ds)) == pids  # `it` lives and has ended
        it.set_state(state)
        assert self.pids(it) == pids
        # at work at once, they do not share them
        pairs = list(zip(iter(ds), iter(ds), strict=True))
        assert [a[0] for a, _ in pairs] == [b[0] for _, b in pairs] == [*range(6)]
        assert not self.pids(a for a, _ in pairs) & self.pids(b for _, b in pairs)
        # Sources and transforms are as they were made, without changes by the last iterator.
        calls = []
        ds = (
            numbers(3)
            .map(lambda x: calls.append(x) or (len(calls), os.getpid()))
            .mp_prefetch(workers(1))
        )
        first = list(ds)
        assert [num for num, _ in first] == [1, 2, 3] and list(ds) == first

    def test_an_ended_one_can_start_others_and_a_closed_one_none(self, ds):
        ended, closed = iter(ds), iter(ds)
        of_ended = self.pids(ended)
        assert next(ended, "end") == "end" and len(self.pids(islice(closed, 2))) == 2
        closed.close()
        fails(closed, ValueError, match=r"MultiprocessPrefetchIterator.* is closed")
        wait_until(lambda: not worker_processes() & of_ended)
        ended.set_state(iter(ds).get_state())
        assert not self.pids(ended) & of_ended

    def test_closed_while_its_workers_are_acquired(self):
        class Closes:
            it = None

            def __reduce__(self):
                closing = threading.Thread(target=self.it.close)
                closing.start()
                closing.join()
                return abs, (0,)

        held = Closes()
        Closes.it = it = iter(numbers(6).map(lambda x: (x, held)).mp_prefetch(workers(1)))
        fails(it, ValueError, match="is closed")
        assert not [worker for worker in it._gm_engine.worker_processes() if worker.is_alive()]

    def test_a_stuck_worker_is_replaced(self, tmp_path):
        pid_file = tmp_path / "pid"

        def stuck_once(x):
            if x == 1 and not pid_file.exists():
                pid_file.write_text(str(os.getpid()))
                threading.Event().wait()
            return x

        ds = MapDataset.range(4).map(stuck_once).to_iter_dataset(DIRECT).mp_prefetch(workers(1))
        for ending in ("restore", "drop"):
            pid_file.unlink(missing_ok=True)
            it = iter(ds)
            assert next(it) == 0
            wait_until(lambda: pid_file.exists() and pid_file.read_text())
            stuck = int(pid_file.read_text())
            if ending == "restore":
                it.set_state(it.get_state())
                assert list(it) == [1, 2, 3]
            else:
                del it  # parks the worker, and the next iterator does not wait for it
                assert list(ds) == [0, 1, 2, 3]
            wait_until(lambda stuck=stuck: stuck not in worker_processes())
