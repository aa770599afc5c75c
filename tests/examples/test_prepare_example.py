"""The example that is killed and continues."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "prepare_once.py"


def test_the_example_that_is_killed_and_continues(tmp_path):
    command = [sys.executable, EXAMPLE, "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.splitlines() == [
        "killed after some of 12 files",
        "continued: wrote the rest, 600 records in all",
        "without a kill, by two workers: the same bytes",
        "6 batches of shape (100, 64)",
    ]
