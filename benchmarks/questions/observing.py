"""Cost of observing a pipeline while it is in use."""

import contextlib
import statistics
import time

from workload import Measured, Workload

SLICE = 50
SLICES = 60
MICROSECONDS = 20


def work(x):
    """A transform of 20 µs."""
    until = time.perf_counter() + MICROSECONDS * 1e-6
    while time.perf_counter() < until:
        pass
    return x


def one_by_one(grain):
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(10**9).shuffle(seed=1).map(work).to_iter_dataset(options)


def of_an_iterator(grain):
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(10**9).to_iter_dataset(options).map(work)


def batched(grain):
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(10**9).to_iter_dataset(options).map(work).batch(16)


def tracked(grain, ds):
    options = grain.experimental.DatasetOptions(
        execution_tracking_mode=grain.experimental.ExecutionTrackingMode.STAGE_TIMING
    )
    return iter(grain.experimental.WithOptionsIterDataset(ds, options))


def observed(grain, ds, stack):
    if not hasattr(grain, "observe"):
        return tracked(grain, ds)
    it = iter(ds)
    stack.enter_context(grain.observe(it))
    return it


def cost_of(pipeline):
    """The candidate: by how many per cent an element takes longer when the pipeline is observed."""

    def candidate(grain):
        ds = pipeline(grain)

        def run():
            with contextlib.ExitStack() as stack:
                iterators = [iter(ds), observed(grain, ds, stack)]
                seconds = [[], []]
                for _ in range(SLICES):  # in turn, so that both have the same neighbours
                    for it, times in zip(iterators, seconds, strict=True):
                        began = time.perf_counter()
                        results = [next(it) for _ in range(SLICE)]
                        times.append(time.perf_counter() - began)
                # little disturbed
                plain, looked_at = [statistics.quantiles(times, n=5)[0] for times in seconds]
                for it in iterators:
                    it.close()
            return Measured(100 * (looked_at / plain - 1) * SLICE * SLICES, results)

        return run

    return candidate


def workload(name, pipeline):
    return Workload(
        name=f"{name}, {MICROSECONDS} µs per element",
        unit="% slower",
        scale=1,
        count=SLICE * SLICES,
        candidates={"gristmill": cost_of(pipeline), "grain": cost_of(pipeline)},
        goals={"≤ 5 %": lambda m: m["gristmill"] <= 5},
        compare=False,
    )


WORKLOADS = [
    workload("map, one by one in the consumer's thread", one_by_one),
    workload("map of an iterator", of_an_iterator),
    workload("map and batch(16)", batched),
]
