"""Cost of saving and restoring the position of an iterator."""

import json
import time

from questions.data_loader import one_epoch
from workload import Measured, Workload, double

ELEMENTS = 10_000_000
POSITION = 5_000_000
STATES = 1_000


def dataset(grain):
    return grain.MapDataset.range(ELEMENTS).shuffle(seed=42).map(double).to_iter_dataset()


def data_loader(grain):
    return one_epoch(grain, grain.sources.RangeDataSource(0, ELEMENTS, 1))


def dataset_state(it):
    return {**it.get_state(), "next_index": POSITION}


def data_loader_state(it):
    return json.dumps(
        {**json.loads(it.get_state()), "last_seen_indices": {"0": POSITION - 1}}, indent=4
    ).encode()


def get_state(pipeline):
    def candidate(grain):
        it = iter(pipeline(grain))
        next(it)
        return lambda: [it.get_state() for _ in range(STATES)]

    return candidate


def restore(pipeline, make_state):
    def candidate(grain):
        ds = pipeline(grain)
        state = make_state(iter(ds))

        def run():
            start = time.perf_counter()
            it = iter(ds)
            it.set_state(state)
            element = next(it)
            seconds = time.perf_counter() - start
            if hasattr(it, "close"):
                it.close()
            return Measured(seconds, [element])

        return run

    return candidate


def saving(name, candidate):
    return Workload(
        name=f"get_state: {name}",
        unit="µs",
        scale=1e6,
        count=STATES,
        candidates={"gristmill": candidate, "grain": candidate},
        goals={"≤ 5 µs": lambda m: m["gristmill"] <= 5},
        compare=False,
    )


def restoring(name, candidate):
    return Workload(
        name=f"restore 5 000 000 elements in, first element: {name}",
        unit="ms",
        scale=1e3,
        count=1,
        candidates={"gristmill": candidate, "grain": candidate},
        goals={"≤ 2 ms": lambda m: m["gristmill"] <= 2},
    )


WORKLOADS = [
    saving("MapDataset", get_state(dataset)),
    saving("DataLoader", get_state(data_loader)),
    restoring("MapDataset", restore(dataset, dataset_state)),
    restoring("DataLoader", restore(data_loader, data_loader_state)),
]
