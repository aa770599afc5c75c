"""Cost of lanes, which make the stream independent of the number of workers."""

import functools
import time

import numpy as np
from questions.worker_batches import BATCH, BATCHES, ENDLESS, WARM_UP, Images, touched
from questions.worker_elements import stream_of_integers
from workload import Measured, Workload, double

IN_PROCESS = 16
ELEMENTS = 40_000
MEGABYTE = 1 << 18  # float32
LARGE = 300
HOSTS = 8
MANY_LANES = 64
RESTORES = 20


def lanes_of_range(num_lanes):
    """A chain in this process, as it is or in lanes."""

    def candidate(_):
        import gristmill

        ds = gristmill.MapDataset.range(ENDLESS).to_iter_dataset().map(double)
        if num_lanes:
            ds = ds.mp_prefetch(
                gristmill.MultiprocessingOptions(num_workers=0, num_lanes=num_lanes)
            )
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


WAYS = {  # to make batches of images with two workers
    "in turn": lambda ds, workers: ds.batch(BATCH).mp_prefetch(workers),
    "global": lambda ds, workers: ds.global_batch(BATCH, num_lanes=8, workers=workers),
    "stream": lambda ds, workers: ds.batch(BATCH).mp_prefetch(workers, order="stream"),
}


def image_batches(way):
    def candidate(_):
        import gristmill

        ds = gristmill.MapDataset.source(Images(ENDLESS)).to_iter_dataset()
        iterator = iter(WAYS[way](ds, gristmill.MultiprocessingOptions(num_workers=2)))
        for _ in range(WARM_UP):
            next(iterator)

        def run():
            start = time.perf_counter()
            for _ in range(BATCHES):
                touched(next(iterator))
            return Measured(time.perf_counter() - start, [])

        return run

    return candidate


def merged_restore(_):
    """The states of eight hosts become one, and that of a host that has all lanes."""
    import gristmill

    def batches(host, num_hosts):
        ds = (
            gristmill.MapDataset.range(ENDLESS)
            .seed(0)
            .shuffle()
            .to_iter_dataset()
            .map(double)
            .window_shuffle(8, seed=1)
        )
        shard = gristmill.ShardOptions(host, num_hosts)
        return iter(
            ds.global_batch(MANY_LANES, num_lanes=MANY_LANES, shard_options=shard, end="repeat")
        )

    hosts = [batches(host, HOSTS) for host in range(HOSTS)]
    for iterator in hosts:
        next(iterator)
    alone = batches(0, 1)

    def run():
        start = time.perf_counter()
        for _ in range(RESTORES):
            alone.set_state(
                gristmill.checkpoint.merge_states([iterator.get_state() for iterator in hosts])
            )
        return Measured(time.perf_counter() - start, [])

    return run


def plain_restore(_):
    import gristmill

    ds = (
        gristmill.MapDataset.range(ENDLESS)
        .seed(0)
        .shuffle()
        .to_iter_dataset()
        .map(double)
        .window_shuffle(8, seed=1)
    )
    iterator = iter(ds.batch(MANY_LANES))
    next(iterator)

    def run():
        start = time.perf_counter()
        for _ in range(RESTORES):
            iterator.set_state(iterator.get_state())
        return Measured(time.perf_counter() - start, [])

    return run


def at_most(factor):
    return {
        f"≤ {factor:.2f} × without lanes": lambda m: m["gristmill"] <= factor * m["without lanes"]
    }


def workload(name, unit, scale, count, with_lanes, without, goals):
    return Workload(
        name=name,
        unit=unit,
        scale=scale,
        count=count,
        candidates={"gristmill": with_lanes, "without lanes": without},
        goals=goals,
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
        at_most(1.3),
    ),
    workload(
        "1 MB batches, 2 workers, 8 lanes",
        "ms",
        1e3,
        LARGE,
        in_workers(large, 8),
        in_workers(large, None),
        at_most(1 / 0.9),
    ),
    workload(
        "19 MB image batches, 2 workers: global_batch, 8 lanes",
        "ms/batch",
        1e3,
        BATCHES,
        image_batches("global"),
        image_batches("in turn"),
        {},
    ),
    workload(
        '19 MB image batches, 2 workers: order="stream"',
        "ms/batch",
        1e3,
        BATCHES,
        image_batches("stream"),
        image_batches("in turn"),
        at_most(1 / 0.8),
    ),
    workload(
        f"states of {HOSTS} hosts merged and restored, {MANY_LANES} lanes",
        "ms",
        1e3,
        RESTORES,
        merged_restore,
        plain_restore,
        {"≤ 10 ms": lambda m: m["gristmill"] <= 10},
    ),
    workload(
        "integers, 2 workers, 8 lanes",
        "µs/element",
        1e6,
        50_000,
        in_workers(small, 8),
        in_workers(small, None),
        at_most(1 / 0.9),
    ),
]
