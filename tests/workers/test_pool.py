"""The guarantees of ``workers/pool.py``: which processes run which task, and when they end.

Tasks are local to the tests: they travel by value, so that workers need not import pytest.
"""

import gc
import os
import select
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gristmill import config
from gristmill.workers import pool as pool_module
from gristmill.workers.messages import END, ERROR, OUTPUTS
from gristmill.workers.pool import Luggage, hire, park, unpark
from gristmill.workers.process import WorkerDied

OPTIONS = {"buffer_size": 1, "min_shared_bytes": 0}


@pytest.fixture
def patient(monkeypatch):
    """Processes wait for the next who needs them for as long as a busy machine may take."""
    monkeypatch.setattr(pool_module, "_PARKED_SECONDS", 60.0)
    yield
    for pool in [*pool_module._parked]:
        if unpark(pool):
            pool.close()


class Owner:
    """What a task is made of."""


def task_of(function):
    """A task that produces ``function(index, count)`` once."""

    class Once:
        def __init__(self, index, count):
            self.index, self.count, self.position = index, count, 0

        def start(self, state, *, skip):
            self.position = state or 0
            return self.position

        def take(self, n):
            if self.position:
                return [], [], StopIteration()
            self.position = 1
            return [function(self.index, self.count)], [1], StopIteration()

        def annotate(self, error, state):
            pass

    return lambda index, count, allocate: Once(index, count)


@pytest.fixture
def owner():
    return Owner()


def hired_at_once(*args):
    pool = hire(*args)
    assert unpark(pool)
    return pool


@pytest.fixture
def hired(owner):
    pools, tasks = [], {}

    def start(function, count=1, of=owner, environment=None):
        task = tasks.setdefault(function, task_of(function))
        pools.append(hired_at_once(Luggage(task, OPTIONS, environment or {}), count, of))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


def outputs(pool):
    """What each worker produces."""
    results = []
    for worker in pool.workers:
        worker.start(None)
    for worker in pool.workers:
        kind, content = worker.receive()
        assert kind == OUTPUTS
        (element,), (state,), failure = content
        assert (state, failure) == (1, None)
        assert worker.receive() == (END, b"")
        results.append(element)
    return results


def pids(pool):
    return [worker.process_id for worker in pool.workers]


def ends(pid, seconds):
    """Whether a process ends within that time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


class TestTasks:
    def test_run_in_processes_of_their_own_and_start_again(self, hired):
        pool = hired(lambda index, count: (index, count, os.getpid(), os.getppid()), 3)
        expected = [(i, 3, pid, os.getpid()) for i, pid in enumerate(pids(pool))]
        assert [outputs(pool) for _ in range(3)] == [expected] * 3

    def test_find_the_surroundings_and_configuration_of_this_process(self, hired, monkeypatch, tmp_path):
        (tmp_path / "module_beside_the_script.py").write_text("value = 5")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["script", "--flag"])
        monkeypatch.setenv("SOME_VARIABLE", "value")

        def look(index, count):
            import module_beside_the_script

            from gristmill import config

            variables = os.environ["SOME_VARIABLE"], os.environ["OTHER"]
            settings = config.num_threads_fetching_records, config.py_traceback_filtering
            return module_beside_the_script.value, str(Path.cwd()), sys.argv, variables, settings

        with config.override(num_threads_fetching_records=3):
            pool = hired(look, environment={"OTHER": "x"})
            assert outputs(pool) == [(5, str(tmp_path), ["script", "--flag"], ("value", "x"), (3, "auto"))]

    def test_have_no_accelerator_unless_told_otherwise(self, hired, monkeypatch):
        names = ["JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

        def look(index, count):
            return [os.environ.get(name) for name in names]

        assert outputs(hired(look)) == [["cpu", "", "", ""]]
        given = {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": None}
        assert outputs(hired(look, environment=given)) == [["cuda", None, "", ""]]

    def test_have_the_settings_of_jax_that_change_results(self, hired, monkeypatch):
        config = pytest.importorskip("jax", reason="needs the extra jax").config
        monkeypatch.setenv("JAX_ENABLE_X64", "0")  # JAX has read it long ago

        def look(index, count):
            import jax.numpy as jnp

            return str(jnp.arange(3.0).dtype)

        def look_again(index, count):
            return look(index, count)

        before = config.jax_enable_x64
        try:
            config.update("jax_enable_x64", True)
            assert outputs(hired(look)) == ["float64"]
            assert outputs(hired(look_again, environment={"JAX_ENABLE_X64": "0"})) == ["float32"]
        finally:
            config.update("jax_enable_x64", before)

    def test_share_large_arrays_and_write_to_their_own(self, hired):
        """One copy in memory for all workers; who writes gets pages of his own."""
        array, small = np.zeros(10**6), np.zeros(10)

        def write(index, count):
            def place(a):
                address = a.__array_interface__["data"][0]
                for line in Path("/proc/self/maps").read_text().splitlines():
                    start, end = (int(x, 16) for x in line.split()[0].split("-"))
                    if start <= address < end:
                        return line.split(maxsplit=5)[1::4]
                return None

            before = array.sum(), small.sum()
            array[:], small[:] = index + 1, index + 1
            return before, place(array), "gristmill" in str(place(small)), float(array.mean())

        shared = ["rw-p", "/memfd:gristmill-task (deleted)"]
        pool = hired(write, 2)
        assert outputs(pool) == [((0, 0), shared, False, 1.0), ((0, 0), shared, False, 2.0)]
        assert array.sum() == small.sum() == 0
        fresh = hired(write, 1)
        assert outputs(fresh)[0][0] == (0, 0)

    def test_that_cannot_be_pickled(self):
        lock = threading.Lock()
        with pytest.raises(TypeError, match="cannot pickle"):
            Luggage(task_of(lambda index, count: lock), OPTIONS, {})

    def test_that_cannot_be_loaded(self, owner):
        class Picky:
            def __call__(self, index, count, allocate):
                pass

            def __setstate__(self, state):
                raise ArithmeticError("not there")

        picky = Picky()
        picky.x = 1
        pool = hired_at_once(Luggage(picky, OPTIONS, {}), 1, owner)
        try:
            for _ in range(2):  # a new start finds the same
                pool.worker(0).start(None)
                kind, content = pool.workers[0].receive()
                assert kind == ERROR and b"not there" in content
        finally:
            pool.close()


class TestReuse:
    def test_of_a_parked_pool(self, hired, patient):
        def task(index, count):
            return os.getpid()

        first = hired(task, 2)
        expected = outputs(first)
        park(first)
        assert hired(task, 2) is first
        assert outputs(first) == expected

    def test_not_of_one_in_use_or_closed(self, hired):
        def task(index, count):
            return os.getpid()

        first = hired(task)
        second = hired(task)
        assert second is not first
        park(first)
        first.close()
        assert hired(task) not in (first, second)

    def test_not_for_another_number_of_workers_or_another_owner(self, hired, patient):
        def task(index, count):
            return count

        first = hired(task)
        park(first)
        assert outputs(hired(task, 2)) == [2, 2]
        assert first.workers
        assert hired(task, of=Owner()) is not first

    def test_not_for_an_owner_in_the_place_of_one_that_is_gone(self, hired, patient):
        def task(index, count):
            return count

        owner = Owner()
        first, address = hired(task, of=owner), id(owner)
        park(first)
        del owner
        others = [Owner() for _ in range(100)]  # one of them is likely to have its address
        assert hired(task, of=next((other for other in others if id(other) == address), others[0])) is not first

    def test_not_after_a_change(self, hired, patient, monkeypatch, tmp_path):
        captured, items, array, options = 1, [1, 2], np.zeros(10**5), dict(OPTIONS)
        owner = Owner()

        def task(index, count):
            return captured, items, float(array.sum()), os.environ.get("CHANGED"), sys.argv[-1], str(Path.cwd())

        def capture():
            nonlocal captured
            captured = 2

        changes = [
            (capture, True),  # and whether the task sees it
            (lambda: items.append(3), True),
            (lambda: array.__setitem__(77777, 1), True),
            (lambda: monkeypatch.setenv("CHANGED", "yes"), True),
            (lambda: monkeypatch.syspath_prepend(str(tmp_path)), False),
            (lambda: monkeypatch.setattr(sys, "argv", ["other"]), True),
            (lambda: monkeypatch.chdir(tmp_path), True),
            (lambda: options.update(buffer_size=2), False),
        ]
        made, pools = task_of(task), []

        def pool():
            pools.append(hired_at_once(Luggage(made, options, {}), 1, owner))
            return pools[-1]

        try:
            last = pool()
            before = outputs(last)
            for change, is_seen in changes:
                park(last)
                assert pool() is last  # as nothing has changed
                park(last)
                change()
                assert pool() is not last
                last, after = pools[-1], outputs(pools[-1])
                assert (after != before) == is_seen
                before = after
        finally:
            for each in pools:
                each.close()

    def test_a_dead_worker_is_replaced(self, hired):
        pool = hired(lambda index, count: os.getpid(), 2)
        old = outputs(pool)
        os.kill(old[1], 9)
        assert ends(old[1], 5)
        with pytest.raises(WorkerDied, match="killed by signal 9"):
            pool.workers[1].receive()
        pool.worker(1)
        new = outputs(pool)
        assert new[0] == old[0] and new[1] != old[1]


class TestEnd:
    def test_closed(self, hired):
        pool = hired(lambda index, count: None, 1)
        running = pids(pool)
        pool.close()
        pool.close()
        assert all(ends(pid, 0) for pid in running)
        assert pool.is_closed

    def test_parked_pools_end_by_themselves(self, hired):
        pool = hired(lambda index, count: None, 2)
        outputs(pool)
        running = pids(pool)
        park(pool)
        assert all(ends(pid, 6) for pid in running)  # soon; it is a busy machine that takes more than two seconds
        assert not unpark(pool)

    def test_the_thread_ends_with_the_last_pool(self, hired):
        gc.collect()
        park(hired(lambda index, count: None))
        keeper = pool_module._keeper
        for other in [*pool_module._parked]:  # those of other tests, too
            if unpark(other):
                other.close()
        keeper.join(5)
        assert not keeper.is_alive()
        again = hired(lambda index, count: index)  # and begins again
        assert outputs(again) == [0]
        assert pool_module._keeper.is_alive()

    def test_closed_while_a_worker_is_stuck(self, hired):
        def stuck(index, count):
            threading.Event().wait()

        pool = hired(stuck, 2)
        for worker in pool.workers:
            worker.start(None)
        pool.close()
        assert all(ends(pid, 0) for pid in pids(pool))

    def test_descriptors_are_closed(self, hired):
        def count():
            return len(list(Path("/proc/self/fd").iterdir()))

        hired(lambda index, count: None).close()
        for pool in [*pool_module._parked]:  # of other tests
            if unpark(pool):
                pool.close()
        before = count()
        for _ in range(2):
            pool = hired(lambda index, count: np.zeros(10**5), 2)
            outputs(pool)
            pool.close()
        assert count() == before

    def test_arrays_outlive_their_worker(self, hired):
        pool = hired(lambda index, count: np.full(10**5, index))
        (array,) = outputs(pool)
        pool.close()
        array += 1
        assert array.min() == array.max() == 1

    def test_what_could_not_start_leaves_nothing(self, hired, monkeypatch):
        monkeypatch.setattr(sys, "executable", "/there/is/no/python")
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        if "multiprocessing.spawn" in sys.modules:
            monkeypatch.delitem(sys.modules, "multiprocessing.spawn")
        with pytest.raises(FileNotFoundError):
            hired(lambda index, count: None, 3)
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
