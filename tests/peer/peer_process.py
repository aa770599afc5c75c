"""Runs the driver in Grain's environment and in ours.

Grain 0.2.18 runs in an environment of its own: ``make peers`` makes it in ``.peers/grain``; ``GRISTMILL_PEER_GRAIN`` names
another.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PEER = Path(os.environ.get("GRISTMILL_PEER_GRAIN", _HERE.parents[1] / ".peers/grain")) / "bin/python"

needs_grain = pytest.mark.skipif(
    not _PEER.exists(), reason=f"Grain 0.2.18 is not installed at {_PEER} (run `make peers`), so there is nothing to compare with"
)


def run(module, specs):
    """What the driver prints for ``specs``."""
    python = sys.executable if module == "gristmill" else str(_PEER)
    results = []
    while len(results) < len(specs):
        left = specs[len(results) :]
        done = subprocess.run(
            [python, str(_HERE / "peer_driver.py"), module],
            input=json.dumps(left),
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        results += map(json.loads, lines)
        # Threads that Grain leaves behind can slow what comes after them until it is given up: that is tried anew.
        is_stuck = module == "grain" and lines and "Timeout" in done.stderr
        assert done.returncode == 0 or is_stuck, f"{module} failed at {left[len(lines)]}:\n{done.stderr[-3000:]}"
    return results
