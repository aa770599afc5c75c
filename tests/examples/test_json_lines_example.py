"""``examples/json_lines.py``, run as a reader runs it."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "json_lines.py"


def test_json_lines_are_shuffled_and_resumed(tmp_path):
    outputs = []
    # the second time with the indices of the first, or with such that do not fit
    for _ in range(2):
        command = [sys.executable, str(EXAMPLE), "--folder", str(tmp_path / "reviews")]
        outputs.append(
            subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
        )
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert lines[0].endswith("has 1200 records; the longest line has 92 bytes")
    assert lines[2].startswith(
        "reviews-1.jsonl.gz is damaged at byte 0: record 7 of the file, from byte 351 on"
    )
    assert lines[3].startswith("20 batches have 1199 different records")
    assert lines[4] == "resumed in the middle: the same records"
