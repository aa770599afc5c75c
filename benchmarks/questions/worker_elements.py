"""Cost of small elements from worker processes, one by one."""

import itertools
import pickle

import numpy as np
from questions.worker_batches import ENDLESS, data_loader, parse_flags, steady
from workload import Workload

RECORDS = 2_000
RECORDS_AHEAD = 1_000  # more than any candidate keeps in buffers
INTEGERS = 50_000
INTEGERS_AHEAD = 20_000
NUMBERS = np.arange(2048, dtype=np.float32)


class Records:
    """Four arrays of a kilobyte each, which differ from those of the record before; they cost next
    to nothing to make.
    """

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        return {name: NUMBERS[i % 251 + k : i % 251 + k + 256] for k, name in enumerate("abcd")}


def joined(record):
    """All numbers of a record."""
    return np.concatenate([np.asarray(record[name]) for name in "abcd"])


def first_number(record):
    return float(record["a"][0])


def prefetched(module, ds, workers):
    parse_flags(module)
    return ds.to_iter_dataset().mp_prefetch(
        module.multiprocessing.MultiprocessingOptions(num_workers=workers)
    )


def stream_of_records(elements):
    return steady(
        iter(elements), whole=joined, kept=first_number, warm_up=RECORDS_AHEAD, count=RECORDS
    )


def stream_of_integers(elements):
    return steady(iter(elements), whole=int, kept=int, warm_up=INTEGERS_AHEAD, count=INTEGERS)


def records(module):
    return stream_of_records(data_loader(module, Records(), workers=1))


def prefetched_records(module):
    return stream_of_records(prefetched(module, module.MapDataset.source(Records()), 1))


def integers(module):
    return stream_of_integers(data_loader(module, range(ENDLESS), workers=2))


def prefetched_integers(module):
    return stream_of_integers(prefetched(module, module.MapDataset.range(ENDLESS), 2))


def pickled(np):
    """The bound: each record to bytes and back, one after the other, in one process."""
    source = Records()
    return stream_of_records(
        pickle.loads(pickle.dumps(source[i], pickle.HIGHEST_PROTOCOL)) for i in itertools.count()
    )


def question(name, count, candidates, goal_microseconds):
    return Workload(
        name=name,
        unit="µs/element",
        scale=1e6,
        count=count,
        candidates=candidates,
        goals={f"≤ {goal_microseconds} µs": lambda m: m["gristmill"] <= goal_microseconds},
    )


PEERS = ("gristmill", "grain", "torch")
WITH_DATASETS = ("gristmill", "grain")

WORKLOADS = [
    question(
        "dict of four arrays of 1 kB, DataLoader, 1 worker",
        RECORDS,
        {**dict.fromkeys(PEERS, records), "pickle": pickled},
        25,
    ),
    question(
        "dict of four arrays of 1 kB, mp_prefetch, 1 worker",
        RECORDS,
        {**dict.fromkeys(WITH_DATASETS, prefetched_records), "pickle": pickled},
        25,
    ),
    question("integers, DataLoader, 2 workers", INTEGERS, dict.fromkeys(PEERS, integers), 3),
    question(
        "integers, mp_prefetch, 2 workers",
        INTEGERS,
        dict.fromkeys(WITH_DATASETS, prefetched_integers),
        3,
    ),
]
