"""Memory of a stream from worker processes, at its highest and in the end.

Read from ``/proc``: Linux only. Counted is the proportional size (PSS) of the consumer and all
processes below it, in which memory that they share counts once, less what it was after the first
element; less than 1 MB is shown as 1 MB. One worker makes the elements, arrays of bytes that cost
next to nothing, and reads one ahead where that can be said. The consumer reads a number of every
page: what it has not looked at does not count as its memory. A stream is drawn once, for any number
of rounds: the sizes decide, not the time.
"""

import contextlib
import functools
import random
import threading
from pathlib import Path

import numpy as np
from questions.worker_batches import parse_flags
from workload import Measured, Workload

LARGE = 2_000_000_000  # bytes
MEGABYTE = 1_000_000
PAGE = 4096
LOOK_SECONDS = 0.02
KEPT = 100
TENTH = 10


class Arrays:
    """As many arrays of bytes as there are sizes."""

    def __init__(self, sizes):
        self._sizes = sizes

    def __len__(self):
        return len(self._sizes)

    def __getitem__(self, i):
        return np.full(self._sizes[i], i % 251, np.uint8)


def touched(array):
    return int(np.asarray(array)[::PAGE].sum())


def stream(module, sizes):
    if module.__name__ == "torch":
        from torch.utils.data import DataLoader

        return iter(DataLoader(Arrays(sizes), batch_size=None, num_workers=1, prefetch_factor=1))
    parse_flags(module)
    ds = module.MapDataset.source(Arrays(sizes)).to_iter_dataset(
        module.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    )
    return iter(ds.mp_prefetch(module.multiprocessing.MultiprocessingOptions(num_workers=1)))


def processes(process="self"):
    """The ids of a process and of all below it."""
    yield process
    for task in Path("/proc", process, "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from processes(child)


def megabytes():
    total = 0
    for process in processes():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            lines = Path("/proc", process, "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class Peak:
    """Looks at the memory from time to time, in a thread, as long as a ``with`` block runs."""

    def __enter__(self):
        self.highest = self.least = megabytes()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while not self._is_over.wait(LOOK_SECONDS):
            self.highest = max(self.highest, megabytes())

    def __exit__(self, *exception):
        self._is_over.set()
        self._thread.join()


def measured(sizes, keep, figure):
    """The candidate that draws the stream; ``keep(kept, i, array)`` decides which arrays the
    consumer holds.
    """

    def candidate(module):
        @functools.cache
        def run():
            iterator, kept = stream(module, sizes), []
            seen = [touched(next(iterator))]
            with Peak() as peak:
                for i, array in enumerate(iterator, 1):
                    seen.append(touched(array))
                    keep(kept, i, array)
                    del array
                    if i == len(sizes) - 2:
                        break  # at its end, a stream may have let go of its workers
            return Measured(figure(peak), seen)

        return run

    return dict.fromkeys(("gristmill", "grain", "torch"), candidate)


def nothing(kept, i, array):
    pass


def every_tenth(kept, i, array):
    if i % TENTH == 0:
        kept.append(array)
        if len(kept) > KEPT:
            del kept[random.Random(i).randrange(KEPT)]


def highest(unit):
    return lambda peak: (peak.highest - peak.least) / unit


def in_the_end(peak):
    return max(1, megabytes() - peak.least)


def wild_sizes(number):
    """From 100 bytes to 100 megabytes, as many of each power of ten."""
    return [int(10 ** random.Random(i).uniform(2, 8)) for i in range(number)]


def question(name, unit, candidates, goals):
    return Workload(name=name, unit=unit, scale=1, count=1, candidates=candidates, goals=goals)


AMONG_SMALL = [1000] * 3 + [LARGE] + [40_000] * 200

WORKLOADS = [
    question(
        "an array of 2 GB among small ones: memory at its highest",
        "× 2 GB",
        measured(AMONG_SMALL, nothing, highest(LARGE / 1e6)),
        {"≤ 2.1 × 2 GB": lambda m: m["gristmill"] <= 2.1},
    ),
    question(
        "an array of 2 GB among small ones: memory afterwards",
        "MB",
        measured(AMONG_SMALL, nothing, in_the_end),
        {"≤ 150 MB": lambda m: m["gristmill"] <= 150},
    ),
    question(
        "every tenth of 2000 arrays of 1 MB kept, 100 at a time: memory at its highest",
        "× what is kept",
        measured([MEGABYTE] * 2000, every_tenth, highest(KEPT)),
        {"≤ 1.3 × what is kept": lambda m: m["gristmill"] <= 1.3},
    ),
    question(
        "200 arrays of 100 B to 100 MB: memory at its highest",
        "MB",
        measured(wild_sizes(200), nothing, highest(1)),
        {"≤ 500 MB": lambda m: m["gristmill"] <= 500},
    ),
]
