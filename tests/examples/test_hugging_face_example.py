"""The example ``hugging_face_stream``, as a program of its own: two runs print the same."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("datasets")
EXAMPLE = Path(__file__).parents[2] / "examples/hugging_face_stream.py"


@pytest.mark.timeout(100)
def test_the_stream_of_hugging_face_is_resumed_in_the_middle():
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=90)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "12 batches of 90 rows, the first: [59, 15, 2, 10, 61, 55, 6, 52]",
        "stopped after 4 batches",
        "resumed: 8 batches, the first: [56, 16, 62, 5, 64, 58, 65, 0]",
        "the same batches as without the stop; every row once",
    ]
