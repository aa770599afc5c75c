"""Time until the first batch of worker processes: in a fresh program, at the next epoch, of another
loader.

Imports, and making the loader, are not counted. In the next epoch the loader is the same, and all
batches of the epoch before have been taken. Another loader is one that the program makes while it
has the first one.
"""

import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from questions.worker_batches import BATCH, IMAGES, Images, data_loader, image
from workload import Measured, Workload

SCRIPT = Path(__file__).parent.parent / "first_batch.py"
BATCHES = 8  # of an epoch


def loader(module, **torch_options):
    return data_loader(
        module, Images(BATCHES * BATCH), workers=2, batch_size=BATCH, **torch_options
    )


def integers(module, workers):
    return data_loader(module, range(32 * BATCH), workers=workers, batch_size=BATCH)


def total(batch):
    """The sum of all numbers in a batch."""
    return float(np.asarray(batch).sum(dtype=np.float64))


def in_a_fresh_program(module, *arguments):
    command = [sys.executable, SCRIPT, module.__name__, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def fresh(module):
    def run():
        printed = in_a_fresh_program(module)
        return Measured(printed["seconds"], printed["sums"])

    return run


def sixteen_over_two(module):
    def run():
        two, sixteen = (in_a_fresh_program(module, workers) for workers in (2, 16))
        return Measured(sixteen["seconds"] / two["seconds"], [*two["sums"], *sixteen["sums"]])

    return run


def later(module):
    first = iter(integers(module, 2))
    next(first)

    def run():
        assert first is not None
        data = integers(module, 2)
        start = time.perf_counter()
        iterator = iter(data)
        batch = next(iterator)
        return Measured(time.perf_counter() - start, [total(batch), *map(total, iterator)])

    return run


def fresh_interpreter(np):
    """The bound: an interpreter that starts and imports NumPy."""

    def run():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        return Measured(time.perf_counter() - start, [])

    return run


def next_epoch(module, **torch_options):
    data = loader(module, **torch_options)

    def run():
        for batch in data:
            del batch
        start = time.perf_counter()
        iterator = iter(data)
        batch = next(iterator)
        seconds = time.perf_counter() - start
        return Measured(seconds, [total(batch), *map(total, iterator)])

    return run


def stacked(np):
    """The bound: making the batch in this process."""

    def run():
        start = time.perf_counter()
        batch = np.stack([image(i % IMAGES) for i in range(BATCH)])
        return Measured(time.perf_counter() - start, [total(batch)])

    return run


def next_epochs(name, torch_candidate):
    return Workload(
        name=f"first 19 MB batch of the next epoch, 2 workers{name}",
        unit="ms",
        scale=1e3,
        count=1,
        candidates={"gristmill": next_epoch, "grain": next_epoch, "torch": torch_candidate},
        goals={"≤ 30 ms": lambda m: m["gristmill"] <= 30},
    )


WORKLOADS = [
    Workload(
        name="first 19 MB batch in a fresh program, 2 workers",
        unit="ms",
        scale=1e3,
        count=1,
        candidates={
            **dict.fromkeys(("gristmill", "grain", "torch"), fresh),
            "import numpy": fresh_interpreter,
        },
        goals={"≤ 150 ms": lambda m: m["gristmill"] <= 150},
    ),
    Workload(
        name="first batch of integers of a later loader of a program, 2 workers",
        unit="ms",
        scale=1e3,
        count=1,
        candidates=dict.fromkeys(("gristmill", "grain", "torch"), later),
        goals={"≤ 30 ms": lambda m: m["gristmill"] <= 30},
    ),
    Workload(
        name="first batch of integers in a fresh program, 16 workers, in times that of 2",
        unit="×",
        scale=1,
        count=1,
        candidates=dict.fromkeys(("gristmill", "grain", "torch"), sixteen_over_two),
        goals={"≤ 1.5 × (16 idle CPUs)": lambda m: m["gristmill"] <= 1.5},
    ),
    next_epochs("", next_epoch),
    next_epochs(
        " (torch: persistent_workers)", functools.partial(next_epoch, persistent_workers=True)
    ),
]
