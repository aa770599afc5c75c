"""What does it cost to get small elements out of worker processes one by one?"""

import itertools
import pickle

import numpy as np
from questions.worker_batches import ENDLESS, data_loader, steady
from workload import Workload

RECORDS = 2_000
RECORDS_AHEAD = 1_000  # more than any candidate keeps in buffers
INTEGERS = 50_000
INTEGERS_AHEAD = 20_000
NUMBERS = np.arange(2048, dtype=np.float32)


class Records:
    """Four arrays of a kilobyte each, which differ from those of the record before; they cost next to nothing to make."""

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        return {name: NUMBERS[i % 251 + k : i % 251 + k + 256] for k, name in enumerate("abcd")}


def joined(record):
    """All numbers of a record."""
    return np.concatenate([np.asarray(record[name]) for name in "abcd"])


def first_number(record):
    return float(record["a"][0])


def records(module):
    iterator = iter(data_loader(module, Records(), workers=1))
    return steady(iterator, whole=joined, kept=first_number, warm_up=RECORDS_AHEAD, count=RECORDS)


def pickled(np):
    """The bound: each record to bytes and back, one after the other, in one process."""
    source = Records()
    iterator = (pickle.loads(pickle.dumps(source[i], pickle.HIGHEST_PROTOCOL)) for i in itertools.count())
    return steady(iterator, whole=joined, kept=first_number, warm_up=RECORDS_AHEAD, count=RECORDS)


def integers(module):
    iterator = iter(data_loader(module, range(ENDLESS), workers=2))
    return steady(iterator, whole=int, kept=int, warm_up=INTEGERS_AHEAD, count=INTEGERS)


PEERS = ("gristmill", "grain", "torch")

WORKLOADS = [
    Workload(
        name="dict of four arrays of 1 kB, DataLoader, 1 worker, no batch",
        unit="µs/element",
        scale=1e6,
        count=RECORDS,
        candidates={**dict.fromkeys(PEERS, records), "pickle": pickled},
        goals={"≤ 25 µs": lambda m: m["gristmill"] <= 25},
    ),
    Workload(
        name="integers, DataLoader, 2 workers, no batch",
        unit="µs/element",
        scale=1e6,
        count=INTEGERS,
        candidates=dict.fromkeys(PEERS, integers),
        goals={"≤ 3 µs": lambda m: m["gristmill"] <= 3},
    ),
]
