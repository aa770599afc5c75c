"""What do lanes cost, which make the stream independent of the number of workers?"""

import functools
import time

import numpy as np
from questions.worker_batches import ENDLESS, touched
from questions.worker_elements import stream_of_integers
from workload import Measured, Workload, double

IN_PROCESS = 16
ELEMENTS = 40_000
MEGABYTE = 1 << 18  # float32
LARGE = 300
WARM_UP = 32


def lanes_of_range(num_lanes):
    """A chain in this process, as it is or in lanes."""

    def candidate(_):
        import gristmill

        ds = gristmill.MapDataset.range(ENDLESS).to_iter_dataset().map(double)
        if num_lanes:
            ds = ds.mp_prefetch(gristmill.MultiprocessingOptions(num_workers=0, num_lanes=num_lanes))
        iterator = iter(ds)
        for _ in range(ELEMENTS):
            next(iterator)

        def run():
            start = time.perf_counter()
            for _ in range(ELEMENTS):
                next(iterator)
            return Measured(time.perf_counter() - start, [])

        return run

    return candidate


@functools.cache
def row(i):
    return np.full(MEGABYTE // 8, i, np.float32)


def in_workers(make, num_lanes):
    def candidate(_):
        import gristmill

        options = gristmill.MultiprocessingOptions(num_workers=2, num_lanes=num_lanes)
        return make(gristmill.MapDataset.range(ENDLESS), lambda ds: ds.mp_prefetch(options))

    return candidate


def large(ds, prefetch):
    iterator = iter(prefetch(ds.map(lambda i: row(i % 9)).to_iter_dataset().batch(8)))
    for _ in range(WARM_UP):
        next(iterator)

    def run():
        start = time.perf_counter()
        for _ in range(LARGE):
            touched(next(iterator))
        return Measured(time.perf_counter() - start, [])

    return run


def small(ds, prefetch):
    return stream_of_integers(prefetch(ds.to_iter_dataset()))


def workload(name, unit, scale, count, with_lanes, without, factor):
    return Workload(
        name=name,
        unit=unit,
        scale=scale,
        count=count,
        candidates={"gristmill": with_lanes, "without lanes": without},
        goals={f"≤ {factor:.2f} × without": lambda m: m["gristmill"] <= factor * m["without lanes"]},
        compare=False,
    )


WORKLOADS = [
    workload(
        f"{IN_PROCESS} lanes in one process, one by one",
        "µs/element",
        1e6,
        ELEMENTS,
        lanes_of_range(IN_PROCESS),
        lanes_of_range(None),
        1.3,
    ),
    workload("1 MB batches, 2 workers, 8 lanes", "ms", 1e3, LARGE, in_workers(large, 8), in_workers(large, None), 1 / 0.9),
    workload("integers, 2 workers, 8 lanes", "µs/element", 1e6, 50_000, in_workers(small, 8), in_workers(small, None), 1 / 0.9),
]
