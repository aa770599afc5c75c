"""The guarantees of ``workers/registry.py``: which processes run which task, and when they end.
Tasks travel by value.
"""

import gc
import os
import queue
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises
from waiting import wait_until
from worker_pools import close_idle_pools, idle_for_long

from gristmill import config
from gristmill.workers.payload import Payload
from gristmill.workers.pool import acquire
from gristmill.workers.protocol import END, ERROR, OUTPUTS
from gristmill.workers.registry import registry

OPTIONS = {"buffer_size": 1, "min_shared_bytes": 0}


patient = pytest.fixture(idle_for_long, name="patient")


class Owner: ...  # what a task is made of


def task_of(function):
    """A task that produces ``function(index, count)`` once."""

    class Once:
        def __init__(self, *arguments):
            self.arguments, self.position = arguments, 0

        def start(self, states, *, skip):
            self.position = states[0] or 0
            return {0: self.position}

        def take(self, lane, n):
            if self.position:
                return [], [], StopIteration()
            self.position = 1
            return [function(*self.arguments)], [1], StopIteration()

        def annotate(self, error, lane, state):
            pass

    return lambda index, count, allocate: Once(index, count)


@pytest.fixture
def hired():
    pools, tasks, owner = [], {}, Owner()

    def start(function=None, count=1, *, of=owner, environment=None, task=None, options=OPTIONS):
        task = task or tasks.setdefault(function, task_of(function))
        pools.append(acquire(Payload(task, options, environment or {}), count, of))
        assert registry.use(pools[-1])
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


def outputs(pool):
    results = []
    for worker in pool.workers:
        worker.start({0: None})
    for worker in pool.workers:
        kind, _, ((element,), states, failure) = worker.receive()
        assert (kind, [*states], failure, worker.receive()) == (OUTPUTS, [1], None, (END, 0, None))
        results.append(element)
    return results


def pids(pool):
    return [worker.process_id for worker in pool.workers]


class CountedQueue(queue.SimpleQueue):
    num_gets = num_puts = 0

    def get(self, *args, **options):
        self.num_gets += 1
        return super().get(*args, **options)

    def put(self, *args):
        self.num_puts += 1
        super().put(*args)


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


class TestTasks:
    def test_run_in_processes_of_their_own_and_start_again(self, hired):
        pool = hired(lambda index, count: (index, count, os.getpid()), 3)
        assert [outputs(pool) for _ in range(3)] == [
            [(i, 3, pid) for i, pid in enumerate(pids(pool))]
        ] * 3

    def test_find_the_environment_but_no_accelerator(self, hired, monkeypatch, tmp_path):
        (tmp_path / "module_beside_the_script.py").write_text("value = 5")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["script", "--flag"])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        monkeypatch.setenv("SOME_VARIABLE", "value")
        names = [
            "SOME_VARIABLE",
            "OTHER",
            "JAX_PLATFORMS",
            "CUDA_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
        ]

        def look(index, count):
            import module_beside_the_script

            from gristmill import config

            settings = config.num_threads_fetching_records, config.py_traceback_filtering
            return (
                module_beside_the_script.value,
                str(Path.cwd()),
                sys.argv,
                list(map(os.environ.get, names)),
                settings,
            )

        given = {"OTHER": "x", "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": None}
        for environment, variables in (
            ({}, [None, "cpu", "", "", ""]),
            (given, ["x", "cuda", None, "", ""]),
        ):
            with config.override(num_threads_fetching_records=3):
                pool = hired(look, environment=environment)
            assert outputs(pool) == [
                (5, str(tmp_path), ["script", "--flag"], ["value", *variables], (3, "auto"))
            ]

    def test_have_the_settings_of_jax_that_change_results(self, hired, monkeypatch):
        config = pytest.importorskip("jax", reason="needs the extra jax").config
        monkeypatch.setenv("JAX_ENABLE_X64", "0")  # JAX has read it long ago

        def look(index, count):
            import jax.numpy as jnp

            return str(jnp.arange(3.0).dtype)

        before = config.jax_enable_x64
        try:
            config.update("jax_enable_x64", True)
            assert outputs(hired(look)) == ["float64"]
            assert outputs(hired(look, environment={"JAX_ENABLE_X64": "0"})) == ["float32"]
        finally:
            config.update("jax_enable_x64", before)

    def test_share_large_arrays_and_write_to_their_own(self, hired):
        """One copy in memory for all workers; a worker that writes gets its own pages."""
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
        assert outputs(hired(write, 2)) == [
            ((0, 0), shared, False, 1.0),
            ((0, 0), shared, False, 2.0),
        ]
        assert array.sum() == small.sum() == 0 and outputs(hired(write, 1))[0][0] == (0, 0)

    def test_that_cannot_be_loaded(self, hired):
        def refuse(*args):
            raise ArithmeticError("not there")

        picky = type(
            "Picky",
            (),
            {"__call__": refuse, "__getstate__": lambda self: 1, "__setstate__": refuse},
        )()
        pool = hired(task=picky)
        for _ in range(2):  # a new start finds the same
            pool.worker(0).start({0: None})
            kind, _, content = pool.workers[0].receive()
            assert kind == ERROR and "not there" in str(content())

    def test_whose_start_cannot_be_sent_are_left_to_another_worker(self, hired):
        """Messages of the worker would be dropped, and waited for forever."""
        pool = hired(lambda index, count: index)
        assert outputs(pool) == [0]
        former = pool.worker(0)
        assert_raises(TypeError, "cannot pickle", former.start, {0: threading.Lock()})
        assert pool.worker(0) is not former and outputs(pool) == [0]


class TestReuse:
    def test_of_a_parked_pool_and_of_no_other(self, hired, patient):
        def task(index, count):
            return count, os.getpid()

        first = hired(task, 2)
        expected = outputs(first)
        assert hired(task, 2) is not first  # it is in use
        registry.release(first)
        assert hired(task, 2) is first and outputs(first) == expected
        registry.release(first)
        assert outputs(hired(task, 1))[0][0] == 1
        owner = Owner()
        others = hired(task, 2, of=owner)
        assert others is not first and first.workers
        registry.release(others)
        address = id(owner)
        del owner
        more = [Owner() for _ in range(100)]  # one of them is likely to have its address
        assert (
            hired(task, 2, of=next((other for other in more if id(other) == address), more[0]))
            is not others
        )
        first.close()
        assert hired(task, 2) is not first

    def test_not_after_a_change(self, hired, patient, monkeypatch, tmp_path):
        captured, items, array, options = 1, [1, 2], np.zeros(10**5), dict(OPTIONS)

        def task(index, count):
            return (
                captured,
                items,
                float(array.sum()),
                os.environ.get("CHANGED"),
                sys.argv[-1],
                str(Path.cwd()),
            )

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
        last = hired(task, options=options)
        before = outputs(last)
        for change, is_seen in changes:
            registry.release(last)
            assert hired(task, options=options) is last  # as nothing has changed
            registry.release(last)
            change()
            other = hired(task, options=options)
            after = outputs(other)
            assert other is not last and (after != before) == is_seen
            last, before = other, after


class TestEnd:
    @pytest.mark.usefixtures("no_garbage")
    def test_closed_pools_leave_nothing_but_arrays(self, hired):
        hired(lambda index, count: None).close()
        close_idle_pools()
        before = descriptors()
        for _ in range(2):
            pool = hired(lambda index, count: np.full(10**5, index), 2)
            running, array = pids(pool), outputs(pool)[1]
            pool.close()
            pool.close()
            close_idle_pools()  # the fork server
            assert descriptors() == before
            array += 1
            assert pool.is_closed and all(map(is_gone, running)) and array.min() == array.max() == 2
            del array

    def test_idle_pools_end_by_themselves(self, hired):
        pool = hired(lambda index, count: index, 2)
        assert outputs(pool) == [0, 1]
        running = pids(pool)
        registry.release(pool)
        wait_until(lambda: all(map(is_gone, running)))
        assert not registry.use(pool)
        gc.collect()
        registry.release(hired(lambda index, count: None))
        reaper = registry._reaper
        close_idle_pools()
        reaper.join(5)
        assert not reaper.is_alive()
        assert outputs(hired(lambda index, count: index)) == [0]  # and restarts
        assert registry._reaper.is_alive()

    def test_the_reaper_only_waits(self, hired, monkeypatch):
        """It wakes up for each message, and when a pool has been idle for long enough."""
        close_idle_pools()
        wait_until(lambda: registry._reaper is None)
        wake = CountedQueue()
        monkeypatch.setattr(registry, "_wake", wake)
        pool = hired(lambda index, count: index, 2)
        outputs(pool)
        running, reaper = pids(pool), registry._reaper
        registry.release(pool)
        wait_until(lambda: all(map(is_gone, running)))  # a second later
        close_idle_pools()
        reaper.join(5)
        assert not reaper.is_alive() and wake.num_gets <= 2 * wake.num_puts + 10

    @pytest.mark.usefixtures("no_garbage")
    def test_what_could_not_start_leaves_nothing(self, hired, monkeypatch):
        monkeypatch.setattr(sys, "executable", "/there/is/no/python")
        before = descriptors()
        monkeypatch.delitem(sys.modules, "multiprocessing.spawn", raising=False)
        assert_raises(FileNotFoundError, None, hired, lambda index, count: None, 3)
        gc.collect()
        assert descriptors() <= before
