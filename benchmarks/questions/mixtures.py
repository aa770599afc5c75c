"""Throughput, threads and memory of a mixture of many components from slow storage.

``IterDataset.mix`` of 35 and of 500 components. Each reads records of 2 kB or 1 MB, one in 5 ms, in
threads of its own default number, and half of the components are drawn up to 1000 times as often as
the others. The whole mixture may use ``THREADS`` threads, and memory for ``RECORDS_AHEAD`` records.
The bound reads the same records in the same order with a ``ThreadPoolExecutor`` of as many threads,
which is ``IN_FLIGHT`` records ahead. What may be there already is taken out before a round is
timed. How many threads there are and how much memory they take is measured once, for any number of
rounds.
"""

import functools
import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from workload import Measured, Workload

WAIT_SECONDS = 0.005
THREADS = max(16, 2 * (os.cpu_count() or 1))
IN_FLIGHT = 4 * THREADS
RECORDS = 1_000_000  # of each component
KILOBYTES = 2_048
MEGABYTE = 1 << 20
# of all components, or two of each: a few times what the allocator keeps for threads
RECORDS_AHEAD = 400
AHEAD_SECONDS = 1.0  # in which everything that may be read ahead is read
COUNT = 1000
PAGE = os.sysconf("SC_PAGE_SIZE")


def read(component, size, index):
    time.sleep(WAIT_SECONDS)
    return np.full(size, (31 * component + index) % 251, np.uint8)


def weights(num):
    """1 for half of the components, up to 1000 for the others."""
    return [1 if k % 2 == 0 else 1000 ** (k / num) for k in range(num)]


def records_ahead(num):
    return max(RECORDS_AHEAD, 2 * num)


def places(grain, num):
    """Component and index of each record of the mixture, without reading any."""
    kept = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    parts = [
        grain.MapDataset.range(RECORDS).map(lambda i, k=k: (k, i)).to_iter_dataset(kept)
        for k in range(num)
    ]
    return iter(grain.IterDataset.mix(parts, weights(num)))


def mixture(grain, num, size):
    sources = [grain.MapDataset.source(range(RECORDS)) for _ in range(num)]
    parts = [
        source.map(functools.partial(read, k, size)).to_iter_dataset()
        for k, source in enumerate(sources)
    ]
    return within_budget(grain, grain.IterDataset.mix(parts, weights(num)), num, size)


def within_budget(grain, ds, num, size):
    budget = grain.experimental.DatasetOptions(
        max_threads=THREADS, max_bytes_ahead=records_ahead(num) * size
    )
    return grain.experimental.WithOptionsIterDataset(ds, budget)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def once(look):
    """The candidate that draws ``COUNT`` records; its figure is the highest that ``look(grain,
    before)`` sees on the way.
    """

    def candidate(num, size):
        def prepare(_):
            import gristmill

            ds = mixture(gristmill, num, size)

            @functools.cache
            def run():
                before, iterator = resident_bytes(), iter(ds)
                seen, highest = [int(next(iterator)[0])], 0.0
                time.sleep(AHEAD_SECONDS)
                for _ in range(COUNT):
                    highest = max(highest, look(before, num))
                    seen.append(int(next(iterator)[0]))
                iterator.close()
                return Measured(highest, seen)

            return run

        return {"gristmill": prepare}

    return candidate


def draw(iterator, num):
    """A run that draws ``COUNT`` records in the middle of a stream."""

    def run():
        seen = [int(next(iterator)[0]) for _ in range(2 * records_ahead(num))]
        start = time.perf_counter()
        seen += [int(next(iterator)[0]) for _ in range(COUNT)]
        return Measured(time.perf_counter() - start, seen)

    return run


def pooled(num, size):
    """The bound."""

    def records():
        import gristmill

        with ThreadPoolExecutor(THREADS) as pool:
            futures = deque()
            for component, index in places(gristmill, num):
                futures.append(pool.submit(read, component, size, index))
                if len(futures) == IN_FLIGHT:
                    yield futures.popleft().result()

    return lambda _: draw(records(), num)


def throughput(num, size):
    return {
        "gristmill": lambda grain: draw(iter(mixture(grain, num, size)), num),
        "plain pool": pooled(num, size),
    }


def first_of(make):
    def run():
        ds = make()
        start = time.perf_counter()
        iterator = iter(ds)
        first = int(next(iterator)[0])
        seconds = time.perf_counter() - start
        iterator.close()
        return Measured(seconds, [first])

    return run


def first(num, size):
    def alone(_):
        import gristmill

        return first_of(lambda: mixture(gristmill, 1, size))

    return {
        "gristmill": lambda grain: first_of(lambda: mixture(grain, num, size)),
        "one component": alone,
    }


def question(name, num, size, unit, candidates, goals, *, scale=1, count=1):
    text = f"mixture of {num} components, {'1 MB' if size == MEGABYTE else '2 kB'}: {name}"
    return Workload(
        name=text,
        unit=unit,
        scale=scale,
        count=count,
        candidates=candidates(num, size),
        goals=goals,
    )


SIZES = (KILOBYTES, MEGABYTE)
WORKLOADS = [
    workload
    for num in (35, 500)
    for workload in (
        question(
            "threads",
            num,
            KILOBYTES,
            "threads",
            once(lambda before, num: threading.active_count()),
            {"≤ 20": lambda m: m["gristmill"] <= 20},
        ),
        question(
            "memory",
            num,
            MEGABYTE,
            "× the budget",
            once(lambda before, num: (resident_bytes() - before) / (records_ahead(num) * MEGABYTE)),
            {"≤ 1.1 × the budget": lambda m: m["gristmill"] <= 1.1},
        ),
        *[
            question(
                "time",
                num,
                size,
                "ms/record",
                throughput,
                {
                    "≥ 0.95 × as quick as the pool": lambda m: (
                        m["plain pool"] >= 0.95 * m["gristmill"]
                    )
                },
                scale=1e3,
                count=COUNT,
            )
            for size in SIZES
        ],
        question(
            "first record",
            num,
            KILOBYTES,
            "ms",
            first,
            {"≤ 1.2 × that of one": lambda m: m["gristmill"] <= 1.2 * m["one component"]},
            scale=1e3,
        ),
    )
]
