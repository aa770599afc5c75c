"""Memory of an idle worker process, read from ``/proc``: Linux only.

Resident memory (RSS) counts what processes share in each of them; the proportional size (PSS)
divides it among them; the unique size (USS) omits it. Forked workers share all that the process
that they were forked from has imported.
"""

import subprocess
import sys
import time
from pathlib import Path

from questions.worker_batches import ENDLESS, data_loader
from workload import Measured, Workload

SETTLE_SECONDS = 0.5


FIELDS = {"RSS": ("Rss:",), "PSS": ("Pss:",), "USS": ("Private_Clean:", "Private_Dirty:")}


def workers(process="self"):
    """The process ids of the descendants without children, but for the one in which multiprocessing
    keeps its books.
    """
    children = [
        child
        for task in Path("/proc", process, "task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    children = [
        child
        for child in children
        if b"resource_tracker" not in Path("/proc", child, "cmdline").read_bytes()
    ]
    return [worker for child in children for worker in workers(child) or [child]]


def mean_megabytes(field):
    """The mean over the workers."""
    texts = [Path("/proc", worker, "smaps_rollup").read_text().splitlines() for worker in workers()]
    kilobytes = [
        int(line.split()[1]) for lines in texts for line in lines if line.startswith(FIELDS[field])
    ]
    return sum(kilobytes) * 1024 / 1e6 / len(texts)


def idle_workers(field):
    def candidate(module):
        iterator = iter(data_loader(module, range(ENDLESS), workers=2))
        first = next(iterator)
        time.sleep(SETTLE_SECONDS)
        assert len(workers()) == 2

        def run():
            assert iterator is not None
            return Measured(mean_megabytes(field), [first])

        return run

    return candidate


def idle_interpreter(field):
    def candidate(np):
        script = "import numpy, sys; print(flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.stdout.readline()

        def run():
            return Measured(mean_megabytes(field), [0])

        return run

    return candidate


WORKLOADS = [
    Workload(
        name=f"memory of an idle worker ({field}), integers, 2 workers",
        unit="MB",
        scale=1,
        count=1,
        candidates={
            **dict.fromkeys(("gristmill", "grain", "torch"), idle_workers(field)),
            "Python with NumPy": idle_interpreter(field),
        },
        goals={f"≤ {limit} MB": lambda m, limit=limit: m["gristmill"] <= limit} if limit else {},
    )
    for field, limit in (("RSS", 60), ("PSS", None), ("USS", 15))
]
