"""Examples, run as a reader runs them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(
    name: str | Path, *args: object, status: int = 0, python: tuple[object, ...] = (sys.executable,)
) -> str:
    """Runs the example and returns what it prints, after checking its exit status."""
    command = [*map(str, python), str(EXAMPLES / name), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout
