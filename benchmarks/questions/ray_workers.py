"""Cost of workers on Ray beside processes of this machine and Ray Data, and the delay after the
loss of one.

All candidates that use Ray are connected to one cluster of one node, which is bound to the loopback
address and lasts as long as the question; where a node is removed, it is one of a cluster of its
own. Elements are arrays that two workers make. The consumer reads one number of every page and
drops an element before it asks for the next.
"""

import contextlib
import functools
import importlib.util
import os
import signal
import time

import numpy as np
from workload import Measured, Workload

ENDLESS = 10_000_000  # elements
SMALL, MEDIUM, LARGE = 1_000, 1_000_000, 20_000_000  # bytes
WORK_SECONDS = 0.003
WORKERS = 2
PAGE = 512  # numbers
# by the size of elements: bytes that may be ahead, elements taken out first (more than that),
# elements measured
STREAMS = {
    SMALL: (8 << 20, 12_000, 20_000),
    MEDIUM: (64 << 20, 80, 100),
    LARGE: (128 << 20, 12, 25),
}
# it plans all blocks before it begins; ones of a row were far slower
ROWS_OF_RAY_DATA, ROWS_IN_BLOCK = 40_000, 8
AFTER_LOSS = 200  # elements, more than are ahead
NODE = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
# By default Ray takes 15 s to give up a node that does not answer, and may want to start the next
# actor there until then. That makes rounds long; the wait that is measured ends before, since
# connections break, and was as long without this.
GIVE_UP_SOON = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
ENVIRONMENT = {
    # binds everything to the loopback address, on Linux too
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or else it warns
}


def cluster(**head):
    """A Ray cluster that ends with this process."""
    os.environ.update(ENVIRONMENT)  # read when Ray is imported
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args={**NODE, **head})


@contextlib.contextmanager
def surroundings():
    """Has the cluster of all candidates; gives them the environment in which they find it."""
    if importlib.util.find_spec("ray") is None:  # the candidates will say so
        yield {}
        return
    started = cluster(num_cpus=16, object_store_memory=1 << 29)
    try:
        yield {**ENVIRONMENT, "RAY_ADDRESS": started.address}
    finally:
        started.shutdown()


@functools.cache
def at_hand(num_bytes, i):
    return np.full(num_bytes // 8, i, np.int64)


def small(i):
    return at_hand(SMALL, i % 251)


def large(i):
    return at_hand(LARGE, i % 3)


def medium(i):
    """Takes 3 ms of a CPU. Its first two numbers are its own and that of the process that makes
    it.
    """
    end = time.thread_time() + WORK_SECONDS
    element = np.full(MEDIUM // 8, i, np.int64)
    element[1] = os.getpid()
    numbers = np.ones(MEDIUM // 8)
    while time.thread_time() < end:
        np.sqrt(numbers, out=numbers)
    return element


MAKERS = {SMALL: small, MEDIUM: medium, LARGE: large}


def stream(size, options):
    import gristmill

    return iter(
        gristmill.MapDataset.range(ENDLESS).to_iter_dataset().map(MAKERS[size]).mp_prefetch(options)
    )


def ray_stream(size, num_workers=WORKERS, **options):
    import gristmill

    return stream(
        size, gristmill.RayOptions(num_workers, max_bytes_ahead=STREAMS[size][0], **options)
    )


def process_stream(size):
    import gristmill

    return stream(size, gristmill.MultiprocessingOptions(num_workers=WORKERS))


class Rows:
    """``medium`` as Ray Data calls it."""

    def __call__(self, row):
        return {"element": medium(row["id"])}


def ray_data_stream(size):
    """With the same number of actors, and as many bytes ahead; it keeps the order, which it does
    not by default.
    """
    import ray
    import ray.data

    ray.init(log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources(
        object_store_memory=STREAMS[size][0]
    )
    rows = ray.data.range(ROWS_OF_RAY_DATA, override_num_blocks=ROWS_OF_RAY_DATA // ROWS_IN_BLOCK)
    return (
        row["element"]
        for row in rows.map(Rows, compute=ray.data.ActorPoolStrategy(size=WORKERS)).iter_rows()
    )


def elements(begin, size):
    """A candidate: measures elements in the middle of a stream; what may be made ahead is taken out
    first.
    """
    _, warm_up, count = STREAMS[size]

    def touched(element):
        return element[::PAGE].copy()

    def candidate(_):
        iterator = begin(size)

        def run():
            results = [touched(next(iterator)) for _ in range(warm_up)]
            start = time.perf_counter()
            for _ in range(count):
                results.append(touched(next(iterator)))
            return Measured(time.perf_counter() - start, results)

        return run

    return candidate


class Makers:
    """The processes that make the elements of a stream, one by one; checks that every element comes
    once, in order.
    """

    def __init__(self, iterator):
        self._iterator = iterator
        self._number = 0

    def __next__(self):
        element = next(self._iterator)
        if element[0] != self._number:
            raise RuntimeError(f"expected element {self._number}, got {element[0]}")
        self._number += 1
        return int(element[1])

    def until(self, num):
        """Continues until as many processes make elements in turn; returns them."""
        seen = []
        while len(seen) < WORKERS or len(set(seen[-WORKERS:])) != num:
            seen.append(next(self))
        return seen[-WORKERS:]

    def longest_wait(self):
        """Seconds, of those for the next elements."""
        longest, before = 0.0, time.perf_counter()
        for _ in range(AFTER_LOSS):
            next(self)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
        return longest


def actor_killed(_):
    makers = Makers(ray_stream(MEDIUM))

    def run():
        os.kill(makers.until(WORKERS)[0], signal.SIGKILL)
        return Measured(makers.longest_wait(), [])

    return run


def node_removed(_):
    own = cluster(num_cpus=0, _system_config=GIVE_UP_SOON)
    own.add_node(num_cpus=1, **NODE)
    import ray

    ray.init(address=own.address, log_to_driver=False)
    makers = Makers(ray_stream(MEDIUM))

    def run():
        node = own.add_node(num_cpus=1, **NODE)
        makers.until(WORKERS)
        own.remove_node(node, allow_graceful=False)
        return Measured(makers.longest_wait(), [])

    return run


def resized(_):
    iterator = ray_stream(MEDIUM, 1, num_lanes=WORKERS)
    makers = Makers(iterator)

    def run():
        makers.until(1)
        iterator.resize(WORKERS)
        start = time.perf_counter()
        makers.until(WORKERS)
        seconds = time.perf_counter() - start
        iterator.resize(1)
        return Measured(seconds, [])

    return run


def throughput(name, size, begin=ray_stream, *, unit="ms", others=None, goals=None):
    return Workload(
        name=name,
        unit=f"{unit}/element",
        scale={"ms": 1e3, "µs": 1e6}[unit],
        count=STREAMS[size][2],
        candidates={
            "gristmill": elements(begin, size),
            "mp_prefetch": elements(process_stream, size),
            **{other: elements(begin_other, size) for other, begin_other in (others or {}).items()},
        },
        goals=goals or {},
    )


def seconds(name, candidate):
    return Workload(
        name=name,
        unit="s",
        scale=1,
        count=1,
        candidates={"gristmill": candidate},
        goals={"≤ 10 s": lambda m: m["gristmill"] <= 10},
        compare=False,
    )


WORKLOADS = [
    throughput("1 kB at hand, RayOptions(2)", SMALL, unit="µs"),
    throughput(
        "1 MB made in 3 ms, RayOptions(2)",
        MEDIUM,
        others={"Ray Data": ray_data_stream},
        goals={
            "≥ 0.5 × mp_prefetch": lambda m: m["mp_prefetch"] >= 0.5 * m["gristmill"],
        },
    ),
    throughput("20 MB at hand, RayOptions(2)", LARGE),
    throughput(
        "20 MB at hand, RayOptions(2, writable=False)",
        LARGE,
        functools.partial(ray_stream, writable=False),
    ),
    seconds("longest wait after one of two actors is killed", actor_killed),
    seconds("longest wait after one of two nodes is removed", node_removed),
    seconds("from resize(2) until the second actor's first element", resized),
]
