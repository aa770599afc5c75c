"""Code shared by the programs of these tests: pipelines whose workers get into a certain situation,
and their leftovers.

Situations: ``idle`` (everything is computed), ``busy`` (in the middle of an element, forever),
``stuck`` (the same in C code that holds the interpreter's lock) and ``full`` (the next element is
computed, and there is no room for it).
"""

# ruff: noqa: F401  (the programs import all of it)

import contextlib
import ctypes
import gc
import mmap
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from waiting import fork_servers, worker_processes

import gristmill as gm
from gristmill.transforms import Map
from gristmill.workers.fork_server import ForkServer

FOLDER = Path(os.environ["FAULT_FOLDER"])
# for things that must happen; a bound for broken code, not for slow machines
PATIENCE_SECONDS = 30.0
GONE_SECONDS = 6.0  # for what must be gone after two seconds; a noisy machine gets some more
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
ForkServer.idle_seconds = 0.1  # for what must be gone soon


def wait_for(condition, what, seconds=PATIENCE_SECONDS):
    """Returns the first true value of ``condition()``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(what() if callable(what) else what)
        time.sleep(0.005)
    return value


class Work(Map):
    """Computes an array from a number, and leaves a trace for each of them in a file of its
    process.
    """

    def __init__(self, situation, size=20_000, last=2):
        self.folder = tempfile.mkdtemp(dir=FOLDER)
        self.situation = situation
        self.size = size
        self.last = last

    def map(self, x):
        with (Path(self.folder) / str(os.getpid())).open("ab") as file:
            file.write(b".")
        if x >= self.last:
            if self.situation == "busy":
                time.sleep(1000)
            if self.situation == "stuck":
                re.match(r"(a+)+$", "a" * 60 + "b")
        return np.full(self.size, x)

    def process_ids(self):
        return [int(path.name) for path in Path(self.folder).iterdir()]

    def count(self):
        return sorted([path.stat().st_size for path in Path(self.folder).iterdir()])


def processes(num, **options):
    """The options of ``num`` worker processes, on all builds of Python."""
    return gm.MultiprocessingOptions(num, executor="processes", **options)


def threads(num, **options):
    """The options of ``num`` worker threads."""
    return gm.MultiprocessingOptions(num, executor="threads", **options)


def loader(work, num, workers):
    """A ``DataLoader``."""
    sampler = gm.samplers.IndexSampler(num, num_epochs=1)
    options = None if workers else gm.ReadOptions(2, 2)
    arguments = {
        "sampler": sampler,
        "operations": [work],
        "workers": processes(workers),
        "read_options": options,
    }
    return gm.DataLoader(data_source=range(num), **arguments)


def dataset(work, num, workers):
    """An ``IterDataset``."""
    if not workers:
        return gm.MapDataset.range(num).map(work).to_iter_dataset(gm.ReadOptions(2, 2))
    return gm.MapDataset.range(num).to_iter_dataset().map(work).mp_prefetch(processes(workers))


def inside(work, num, workers):
    """An ``IterDataset`` with other iterators downstream of the workers."""
    return dataset(work, num, workers).map(lambda x: x).batch(1).map(lambda x: x[0])


APIS = {"loader": loader, "dataset": dataset, "inside": inside}


def pipeline(api, workers, situation):
    """A pipeline that brings its workers into a situation, and the work that they do."""
    first = max(workers, 1)
    work = Work(situation, size=20_000 if situation == "full" else 5, last=first)
    return APIS[api](work, 1000 if situation == "full" else 4 * first, workers), work


def arrived(work, workers, situation):
    """Waits until all workers are in the situation."""
    num = {"idle": 4, "busy": 2, "stuck": 2, "full": 2}[situation]
    if workers:
        wait_for(
            lambda: len(work.count()) == workers and min(work.count()) >= num,
            lambda: f"{work.count()} of {situation}",
        )
        if situation != "stuck":  # they have sent everything
            wait_for(
                lambda: {run_state(process_id) for process_id in work.process_ids()} == {"S"},
                "the workers do not wait",
            )
    elif situation == "busy":  # a thread that reads ahead
        wait_for(lambda: sum(work.count()) >= 2, lambda: f"{work.count()} of {situation}")


def started(api, workers, situation):
    """An iterator that has delivered its first element and whose workers are in the situation."""
    ds, work = pipeline(api, workers, situation)
    it = iter(ds)
    it.start_prefetch()
    assert next(it)[0] == 0
    arrived(work, workers, situation)
    return it


def descriptors():
    links = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links[entry.name] = str(entry.readlink())
    # but the one that lists them
    return {fd: link for fd, link in links.items() if not link.startswith("/proc/")}


def children():
    """True if there are child processes, including dead ones that were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def run_state(process_id):
    """A letter: ``S`` for one that waits, ``Z`` for one that has ended."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def has_ended(process_id):
    """True if a worker has ended, with all its threads."""
    try:
        return os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return not Path(f"/proc/{process_id}").exists()  # the fork server has waited for it


def workers():
    """The ids of all worker processes that have not ended."""
    return [process_id for process_id in worker_processes() if run_state(process_id) != "Z"]


def surroundings():
    return {
        "threads": sorted([thread.name for thread in threading.enumerate()]),
        "descriptors": descriptors(),
        "children": children(),
    }


class Watch:
    """Remembers how things are, and later checks that they are like that again."""

    def __init__(self):
        gc.collect()
        self.before = surroundings()

    def check(self):
        wait_for(
            lambda: surroundings() == self.before,
            lambda: f"left: {surroundings()}, before: {self.before}",
            GONE_SECONDS,
        )


def ready():
    """Signals to the test that the situation is reached."""
    print(f"ready {time.monotonic()}", flush=True)


class Deadly(Map):
    """Dies at one number, the first time that it gets there."""

    def __init__(self, die, at, size=5):
        self.die = die
        self.at = at
        self.size = size
        self.mark = Path(tempfile.mkdtemp(dir=FOLDER)) / "died"

    def map(self, x):
        if x == self.at and not self.mark.exists():
            self.mark.touch()
            self.die()
        return np.full(self.size, x)


def bus_error():
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        memory[0]


def kill_self(number):
    os.kill(os.getpid(), number)
    time.sleep(1000)


def error_of(function, *args, kind=RuntimeError):
    """The error that is raised, as required."""
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")


def take_all(it, seen):
    """Appends the numbers of all elements, to the end or a worker's death, whose message it
    returns.
    """
    try:
        for x in it:
            seen.append(int(np.ravel(x)[0]))
            assert len(seen) < 10_000
    except RuntimeError as error:
        return str(error)


def kill_all(work, number=signal.SIGKILL):
    for process_id in work.process_ids():
        os.kill(process_id, number)
    wait_for(lambda: all(map(has_ended, work.process_ids())), "the workers do not die")


def by_threads(ds, workers, *args, **options):
    return ds.mp_prefetch(threads(workers, **options), *args)


def mp(ds, workers, *args, **options):
    return ds.mp_prefetch(processes(workers, **options), *args)
