"""Runs one candidate of one workload in the environment this is started in: ``measure.py MODULE
WORKLOAD CANDIDATE``.

Prints one JSON line with a digest of the results, then, for each line on standard input, one with
the figure of a run.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import zlib
from typing import Any

import numpy as np
from workload import Measured, Run

MODULES = {"gristmill": "gristmill", "grain": "grain", "torch": "torch", "tf.data": "tensorflow"}
# others get NumPy
MODULES |= {"LitData": "litdata", "MDSWriter": "streaming", "datasets.map": "datasets"}
# for the read-ahead of the run before, which may be another process's, to die down
PAUSE_SECONDS = 0.1


def digest(run: Run) -> dict[str, Any]:
    """Number, sum and, as a checksum, order of the numbers (or bytes) in the results of a run."""
    results = run()
    if isinstance(results, Measured):
        results = results.results
    number, total, checksum = 0, 0.0, 0
    for element in results:
        if isinstance(element, list) and element and isinstance(element[0], bytes):
            element = b"".join(element)
        if isinstance(element, dict):  # a state
            element = json.dumps(element).encode()
        array = (
            np.frombuffer(element, np.uint8) if isinstance(element, bytes) else np.asarray(element)
        )
        number += array.size
        total += float(array.sum(dtype=np.float64))
        checksum = zlib.crc32(
            np.ascontiguousarray(array), zlib.crc32(str(array.dtype).encode(), checksum)
        )
    close(results)
    return {"number": number, "sum": total, "order": checksum}


def figure(run: Run) -> float:
    """The measurement of one run: seconds, unless it says otherwise."""
    start = time.perf_counter()
    results = run()
    if isinstance(results, Measured):
        return results.figure
    for _ in results:
        pass
    elapsed = time.perf_counter() - start
    close(results)
    return elapsed


def close(results: Any) -> None:
    """Stops the threads of iterators that have some, so that they cannot disturb what is measured
    next.
    """
    if hasattr(results, "close"):
        results.close()


def main() -> None:
    home, name, candidate = sys.argv[1:]
    workloads = importlib.import_module(home).WORKLOADS
    (workload,) = (w for w in workloads if w.name == name)
    module = importlib.import_module(MODULES.get(candidate, "numpy"))
    run = workload.candidates[candidate](module)
    version = getattr(module, "__version__", "")
    print(json.dumps({"version": str(version), **digest(run)}), flush=True)
    for _ in sys.stdin:
        time.sleep(PAUSE_SECONDS)
        print(json.dumps({"figure": figure(run)}), flush=True)


if __name__ == "__main__":
    main()
