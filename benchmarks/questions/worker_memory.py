"""How much memory does an idle worker process take? Read from ``/proc``: Linux only.

Resident memory (RSS) counts what processes share in each of them; the proportional size (PSS) divides it among them.
Forked workers share with the consumer whatever it has imported.
"""

import subprocess
import sys
import time
from pathlib import Path

from questions.worker_batches import ENDLESS, data_loader
from workload import Measured, Workload

SETTLE_SECONDS = 0.5


def children():
    """The process ids of this process's children, but for the one in which multiprocessing keeps its books."""
    found = [child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]
    return [child for child in found if b"resource_tracker" not in Path("/proc", child, "cmdline").read_bytes()]


def mean_megabytes(field):
    """The mean of RSS or PSS over the children."""
    texts = [Path("/proc", child, "smaps_rollup").read_text().splitlines() for child in children()]
    kilobytes = [int(line.split()[1]) for lines in texts for line in lines if line.startswith(f"{field}:")]
    return sum(kilobytes) * 1024 / 1e6 / len(kilobytes)


def idle_workers(field):
    def candidate(module):
        iterator = iter(data_loader(module, range(ENDLESS), workers=2))
        first = next(iterator)
        time.sleep(SETTLE_SECONDS)
        assert len(children()) == 2

        def run():
            assert iterator is not None
            return Measured(mean_megabytes(field), [first])

        return run

    return candidate


def idle_interpreter(field):
    def candidate(np):
        script = "import numpy, sys; print(flush=True); sys.stdin.read()"
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdout.readline()

        def run():
            return Measured(mean_megabytes(field), [0])

        return run

    return candidate


WORKLOADS = [
    Workload(
        name=f"memory of an idle worker ({field.upper()}), integers, 2 workers",
        unit="MB",
        scale=1,
        count=1,
        candidates={
            **dict.fromkeys(("gristmill", "grain", "torch"), idle_workers(field)),
            "Python with NumPy": idle_interpreter(field),
        },
        goals={"≤ 60 MB": lambda m: m["gristmill"] <= 60} if field == "Rss" else {},
    )
    for field in ("Rss", "Pss")
]
