"""Time of `import` in a fresh interpreter, and until the classes that every program needs are
loaded.
"""

import subprocess
import sys

from workload import Measured, Workload


def fresh(attributes):
    """Candidates that import themselves in a new process and look up the attributes."""

    def candidate(module):
        statement = f"import {module.__name__}"
        if module.__name__ in ("gristmill", "grain"):
            statement = "; ".join(
                [statement, *(f"{module.__name__}.{name}" for name in attributes)]
            )
        elif module.__name__ == "torch":
            statement = "import torch.utils.data"
        script = (
            f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() -"
            " start)"
        )

        def run():
            command = [sys.executable, "-c", script]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return Measured(float(printed), [])

        return run

    return candidate


WORKLOADS = [
    Workload(
        name=name,
        unit="ms",
        scale=1e3,
        count=1,
        candidates=dict.fromkeys(("gristmill", "grain", "torch", "numpy"), fresh(attributes)),
        goals={"≤ numpy + 40 ms": lambda m: m["gristmill"] <= m["numpy"] + 40},
        compare=False,
    )
    for name, attributes in {
        "import": (),
        "import, MapDataset and DataLoader loaded": ("MapDataset", "DataLoader"),
    }.items()
]
