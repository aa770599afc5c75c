"""What do workers on Ray cost beside processes of this machine, and how long does the loss of one take?

All Ray candidates are connected to one cluster, of one node, that is bound to the loopback address and lasts as long as the
question. Elements are arrays of NumPy; the consumer reads one number of every page and drops each before it asks for the next.
"""

import contextlib
import functools
import itertools
import os
import time

import numpy as np
from workload import Measured, Workload

ENDLESS = 10_000_000  # elements
SMALL, MEDIUM, LARGE = 1_000, 1_000_000, 20_000_000  # bytes
WORK_SECONDS = 0.003
WORKERS = 2
BYTES_AHEAD = 1 << 26
PAGE = 512  # numbers
LOOPBACK = "127.0.0.1"
ENVIRONMENT = {  # of whoever starts or uses Ray
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that it binds to the loopback address alone
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def cluster(**head):
    """A Ray cluster of this process."""
    os.environ.update(ENVIRONMENT)  # read when Ray is imported
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args={"node_ip_address": LOOPBACK, "include_dashboard": False, **head})


@contextlib.contextmanager
def surroundings():
    """The cluster, and the environment in which candidates find it."""
    started = cluster(num_cpus=16, object_store_memory=1 << 30)
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
    """Takes 3 ms of a CPU to make; its second number is that of the process."""
    end = time.thread_time() + WORK_SECONDS
    element = np.full(MEDIUM // 8, i, np.int64)
    scratch = np.ones(MEDIUM // 8)
    while time.thread_time() < end:
        np.sqrt(scratch, out=scratch)
    element[1] = os.getpid()
    return element


def touched(element):
    """One number of every page."""
    return element[::PAGE].copy()


def stream(make, options):
    import gristmill

    return gristmill.MapDataset.range(ENDLESS).map(make).to_iter_dataset().mp_prefetch(options)


def on_ray(num_workers=WORKERS, **options):
    import gristmill

    return gristmill.RayOptions(num_workers, max_bytes_ahead=BYTES_AHEAD, **options)


def in_processes():
    import gristmill

    return gristmill.MultiprocessingOptions(num_workers=WORKERS)


def steady(iterator, warm_up, count):
    def run():
        results = [touched(next(iterator)) for _ in range(warm_up)]
        start = time.perf_counter()
        for _ in range(count):
            results.append(touched(next(iterator)))
        return Measured(time.perf_counter() - start, results)

    return run
