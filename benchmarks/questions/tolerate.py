"""Cost of an error budget while nothing fails."""

import statistics
import time

from workload import Measured, Workload

SLICE = 100
SLICES = 100
MICROSECONDS = 20


def work(x):
    """A transform of 20 µs."""
    until = time.perf_counter() + MICROSECONDS * 1e-6
    while time.perf_counter() < until:
        pass
    return x


def records(grain):
    return grain.MapDataset.range(10**9).shuffle(seed=1).map(work)


def direct(grain):
    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def of_a_map_dataset(grain, tolerate):
    return tolerate(records(grain)).to_iter_dataset(direct(grain))


def of_batches(grain, tolerate):
    return tolerate(records(grain), then="replace").batch(16).to_iter_dataset(direct(grain))


def of_a_stream(grain, tolerate):
    return tolerate(records(grain).to_iter_dataset(direct(grain))).batch(16)


def with_it(ds, **arguments):
    return ds.tolerate(**arguments)


def without_it(ds, **arguments):
    del arguments
    return ds


def cost_of(pipeline):
    """The candidate: by how many per cent an element takes longer with ``tolerate``."""

    def candidate(grain):
        def run():
            iterators = [iter(pipeline(grain, tolerate)) for tolerate in (without_it, with_it)]
            seconds = [[], []]
            for _ in range(SLICES):  # in turn, so that both have the same neighbours
                for it, times in zip(iterators, seconds, strict=True):
                    began = time.perf_counter()
                    results = [next(it) for _ in range(SLICE)]
                    times.append(time.perf_counter() - began)
            # little disturbed
            without, tolerant = [statistics.quantiles(times, n=5)[0] for times in seconds]
            return Measured(100 * (tolerant / without - 1) * SLICE * SLICES, results)

        return run

    return candidate


WORKLOADS = [
    Workload(
        name=f"{name}, {MICROSECONDS} µs per element",
        unit="% slower",
        scale=1,
        count=SLICE * SLICES,
        candidates={"gristmill": cost_of(pipeline)},
        goals={"≤ 1 %": lambda m: m["gristmill"] <= 1},
        compare=False,
    )
    for name, pipeline in {
        "elements of a map dataset": of_a_map_dataset,
        "batches of a map dataset": of_batches,
        "batches of a stream": of_a_stream,
    }.items()
]
