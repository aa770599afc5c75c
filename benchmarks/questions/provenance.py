"""Cost of explaining an output, of writing a ledger, and of doing neither."""

import itertools
import tempfile
from pathlib import Path

from workload import Workload, double

STEPS = 2_000
ROWS = 32
OUTPUTS = 20


def batches(grain):
    source = grain.MapDataset.source(range(10_000_000)).shuffle(seed=42).map(double)
    return source.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(ROWS)


def filtered(grain):
    source = (
        grain.MapDataset.range(10_000_000)
        .shuffle(seed=42)
        .to_iter_dataset(grain.ReadOptions(num_threads=0))
    )
    return source.filter(lambda x: x % 2 == 0).batch(ROWS)


def not_asked(grain):
    ds = batches(grain)
    return lambda: itertools.islice(iter(ds), STEPS)


def ledger(grain):
    ds = batches(grain)

    def run():
        with (
            tempfile.TemporaryDirectory() as folder,
            grain.Ledger(Path(folder) / "ledger") as ledger,
        ):
            return list(itertools.islice(ledger.follow(iter(ds)), STEPS))

    return run


def explained_step(grain):
    ds = batches(grain)
    return lambda: [len(grain.explain(ds, step=1000 * k).rows) for k in range(OUTPUTS)]


def explained_output(grain):
    it = iter(filtered(grain))
    return lambda: [len(grain.explain(it).rows) for _ in range(OUTPUTS) if next(it) is not None]


WORKLOADS = [
    Workload(
        name=f"batches of {ROWS}, without explain",
        unit="µs",
        scale=1e6,
        count=STEPS,
        candidates={"gristmill": not_asked, "grain": not_asked},
        goals={},
    ),
    Workload(
        name=f"batches of {ROWS}, every step in a ledger",
        unit="µs",
        scale=1e6,
        count=STEPS,
        candidates={"gristmill": ledger},
        goals={},
        compare=False,
    ),
    Workload(
        name=f"explain(ds, step=...), batches of {ROWS}",
        unit="ms",
        scale=1e3,
        count=OUTPUTS,
        candidates={"gristmill": explained_step},
        goals={"≤ 10 ms": lambda m: m["gristmill"] <= 10},
        compare=False,
    ),
    Workload(
        name=f"explain(it) behind a filter, batches of {ROWS}",
        unit="ms",
        scale=1e3,
        count=OUTPUTS,
        candidates={"gristmill": explained_output},
        goals={"≤ 20 ms": lambda m: m["gristmill"] <= 20},
        compare=False,
    ),
]
