"""Training a PyTorch model: it is killed, started again, and goes on with the same bits."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".peers/torch/bin/python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"PyTorch is not installed at {PYTHON} (run `make peers`)")


def run_example(*args: object, status: int = 0) -> str:
    """Runs the example in PyTorch's environment and returns what it prints, after checking its exit status."""
    command = [str(PYTHON), "-W", "error", str(ROOT / "examples/train_pytorch.py"), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


def steps_in(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, workers: int) -> None:
    output = run_example("--out", tmp_path, "--workers", workers, "--steps", 180, "--save-every", 50)
    assert "trained again: ended by signal 9 after step 105" in output
    assert "resuming after step 100" in output
    assert "batches, losses and parameters: bit-identical" in output
    assert int(re.findall(r"(\d+)% of the points", output)[0]) > 55  # a third by guessing
    assert steps_in(tmp_path / "straight/log.txt") == [*map(str, range(1, 181)), "final"]
    assert steps_in(tmp_path / "killed/log.txt") == [*map(str, range(1, 106)), *map(str, range(101, 181)), "final"]
    batches = [line.split()[2] for line in (tmp_path / "straight/log.txt").read_text().splitlines()[:-1]]
    assert len(set(batches)) == 180  # also in the second epoch and after it: 47 batches are one
