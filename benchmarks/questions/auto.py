"""``"auto"`` beside the best fixed number of workers, and beside what peers do by themselves.

The best fixed setting is found by a sweep of 0 to twice the CPUs, processes and threads, where
elements wait for reads also with 64 reading threads. ``"auto"`` is measured from the tenth second
on. ``tf.data`` has ``AUTOTUNE``, and PyTorch its defaults. The stream is that of 16 lanes in every
setting, also without workers. The training step of the consumer waits, as for a device.
"""

import functools
import hashlib
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from questions.worker_batches import ENDLESS, Images
from workload import Measured, Workload

NUM_LANES = 16
AUTO_SECONDS = 10  # after which the number must be found
SECONDS = 4
# A consumer that is the bottleneck takes seconds for what was computed ahead before a change.
STEADY_SECONDS = 30
CPU_SECONDS = 10
SWEEP_SECONDS = 1.5
WARM_UP_SECONDS = 0.7
STEP_SECONDS = 0.004
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
BLOB = bytes(1 << 18)
WINDOW_SECONDS = 0.5


def count(i):
    """About half a millisecond in the interpreter."""
    total = 0
    for k in range(10_000):
        total += k & int(i)
    return total


def checksum(i):
    """Half a millisecond in C code that releases the GIL."""
    return hashlib.sha256(BLOB).digest()[int(i) % 32]


def tokens(i):
    """Tokenizes a text in Python."""
    return {"tokens": np.full(100 + count(i) % 300, i % 1000, np.int32)}


class Reads:
    """Numbers from a storage that answers late."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __len__(self):
        return ENDLESS

    def __getitem__(self, key):
        time.sleep(self._seconds)
        return int(key)


def numbers(module):
    return module.MapDataset.range(ENDLESS)


def counted(module, reads):
    return numbers(module).map(count).to_iter_dataset(reads)


def checked(module, reads):
    return numbers(module).map(checksum).to_iter_dataset(reads)


def read(seconds):
    return lambda module, reads: module.MapDataset.source(Reads(seconds)).to_iter_dataset(reads)


def tiny(module, reads):
    return numbers(module).map(lambda x: 2 * x).to_iter_dataset(reads)


def images(module, reads):
    return module.MapDataset.source(Images(ENDLESS)).batch(32).to_iter_dataset(reads)


def mixture(module, reads):
    slow, quick = numbers(module).map(count), numbers(module)
    return module.MapDataset.mix([slow, quick], weights=[0.3, 0.7]).to_iter_dataset(reads)


def packed(module, reads):
    ds = numbers(module).map(tokens).to_iter_dataset(reads)
    return module.experimental.FirstFitPackIterDataset(
        ds, length_struct={"tokens": 1024}, num_packing_bins=16
    )


@dataclass(frozen=True)
class Run:
    """Work of a setting within a time.

    Args:
        rate: elements per second.
        cpu: CPU seconds per element, of the consumer and its workers.
    """

    rate: float
    cpu: float


def taken(it, seconds, step=0.0):
    """Takes elements for a time; returns their number and the time."""
    start, num = time.perf_counter(), 0
    while (now := time.perf_counter()) < start + seconds or not num:
        next(it)
        num += 1
        if step:
            time.sleep(step)
    return num, now - start


def measured(it, seconds, step=0.0):
    from gristmill.diagnostics.runtime.processes import cpu_seconds

    before = cpu_seconds()
    num, elapsed = taken(it, seconds, step)
    cpu = sum(total - before.get(pid, 0.0) for pid, total in cpu_seconds().items())
    return Run(num / elapsed, cpu / num)


def auto(module, make):
    workers = module.MultiprocessingOptions("auto")
    return make(module, module.ReadOptions("auto")).mp_prefetch(workers)


def settings(module, make, num_threads):
    """Yields each fixed setting as a dataset."""
    for threads in num_threads:
        ds = make(module, module.ReadOptions(threads))
        yield ds.mp_prefetch(module.MultiprocessingOptions(0, num_lanes=NUM_LANES))
        for executor, num in itertools.product(("processes", "threads"), range(1, 2 * CPUS + 1)):
            yield ds.mp_prefetch(
                module.MultiprocessingOptions(num, num_lanes=NUM_LANES, executor=executor)
            )


def best_fixed(module, make, num_threads, step, is_cpu):
    """Returns the best dataset of the sweep: the quickest, or of those as quick the one that takes
    the least CPU time.
    """
    runs = []
    for ds in settings(module, make, num_threads):
        with iter(ds) as it:
            taken(it, WARM_UP_SECONDS, step)
            runs.append((measured(it, SWEEP_SECONDS, step), ds))
    quickest = max(run.rate for run, _ in runs)
    if not is_cpu:
        return next(ds for run, ds in runs if run.rate == quickest)
    return min((x for x in runs if x[0].rate >= 0.95 * quickest), key=lambda x: x[0].cpu)[1]


def figure(run, is_cpu):
    return run.cpu if is_cpu else 1 / run.rate


def called_twice(measure):
    """A run whose first call, that of the check, measures nothing."""
    calls = itertools.count()
    return lambda: Measured(measure() if next(calls) else 0.0, [])


def with_auto(make, step, is_cpu, module):
    def run():
        with iter(auto(module, make)) as it:
            taken(it, STEADY_SECONDS if is_cpu else AUTO_SECONDS, step)
            return figure(measured(it, CPU_SECONDS if is_cpu else SECONDS, step), is_cpu)

    return called_twice(run)


def with_best(make, num_threads, step, is_cpu, _):
    import gristmill as module

    find = functools.cache(lambda: best_fixed(module, make, num_threads, step, is_cpu))

    def run():
        with iter(find()) as it:
            taken(it, STEADY_SECONDS if is_cpu else WARM_UP_SECONDS, step)
            return figure(measured(it, CPU_SECONDS if is_cpu else SECONDS, step), is_cpu)

    return called_twice(run)


def followed(module):
    """Seconds from the change of the load to 0.9 × the speed of the best fixed number."""

    def run():
        best = best_fixed(module, counted, (16,), 0.0, False)
        with iter(best) as it:
            taken(it, WARM_UP_SECONDS)
            goal = 0.9 * measured(it, SECONDS).rate
        with iter(auto(module, counted)) as it:
            taken(it, AUTO_SECONDS, STEP_SECONDS)
            start = time.perf_counter()
            while True:
                num, elapsed = taken(it, WINDOW_SECONDS)
                after = time.perf_counter() - start
                if num / elapsed >= goal or after > 30:
                    return after

    return called_twice(run)


@dataclass(frozen=True)
class PyTorchData:
    """A map-style data set.

    Args:
        function: an element by its index.
    """

    function: Callable

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        return self.function(i)


def with_torch(function, torch):
    from torch.utils.data import DataLoader

    def run():
        it = iter(DataLoader(PyTorchData(function), batch_size=None))
        taken(it, WARM_UP_SECONDS)
        num, elapsed = taken(it, SECONDS)
        return elapsed / num

    return called_twice(run)


def with_tensorflow(function, tf):
    tune = tf.data.AUTOTUNE

    def run():
        ds = tf.data.Dataset.range(ENDLESS)
        if function is None:
            ds = ds.map(lambda x: 2 * x, num_parallel_calls=tune)
        else:
            ds = ds.map(
                lambda i: tf.numpy_function(lambda i: np.int64(function(i)), [i], tf.int64),
                num_parallel_calls=tune,
            )
        it = ds.prefetch(tune).as_numpy_iterator()
        taken(it, AUTO_SECONDS)
        num, elapsed = taken(it, SECONDS)
        return elapsed / num

    return called_twice(run)


def question(name, make, *, peers=None, num_threads=(16,), step=0.0, is_cpu=False):
    """A workload.

    Args:
        make: returns the pipeline without workers.
        peers: the function of an index that PyTorch and tf.data map.
        num_threads: numbers of reading threads in the sweep.
        step: seconds that the consumer waits after each element.
        is_cpu: True if CPU time counts.
    """
    candidates = {
        "gristmill": functools.partial(with_auto, make, step, is_cpu),
        "best fixed": functools.partial(with_best, make, num_threads, step, is_cpu),
    }
    if peers is not None:
        candidates["torch"] = functools.partial(with_torch, peers)
        function = None if peers is twice else peers
        candidates["tf.data"] = functools.partial(with_tensorflow, function)
    goals = {"≥ 0.95 × the best fixed": lambda m: 0.95 * m["gristmill"] <= m["best fixed"]}
    if is_cpu:
        goals = {"≤ 1.1 × the best fixed": lambda m: m["gristmill"] <= 1.1 * m["best fixed"]}
    return Workload(
        name=f'"auto", {name}',
        unit="µs CPU/element" if is_cpu else "µs/element",
        scale=1e6,
        count=1,
        candidates=candidates,
        goals=goals,
        compare=False,
        max_rounds=1,
    )


def twice(i):
    return 2 * i


READERS = (16, 64)

WORKLOADS = [
    question("map in Python", counted, peers=count),
    question("map in C code that releases the GIL", checked, peers=checksum),
    question("reads of 5 ms", read(0.005), peers=Reads(0.005).__getitem__, num_threads=READERS),
    question("reads of 100 ms", read(0.1), peers=Reads(0.1).__getitem__, num_threads=READERS),
    question("integers", tiny, peers=twice),
    question("batches of 19 MB", images),
    question("mixture of slow and quick", mixture),
    question("packing", packed),
    question("consumer is the bottleneck, CPU time", counted, step=STEP_SECONDS, is_cpu=True),
    Workload(
        name='"auto", load that changes, time to follow',
        unit="s",
        scale=1,
        count=1,
        candidates={"gristmill": followed},
        goals={"≤ 10 s": lambda m: m["gristmill"] <= 10},
        compare=False,
        max_rounds=1,
    ),
]
