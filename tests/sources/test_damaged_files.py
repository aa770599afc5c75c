"""Damaged files: an error that names them or what was written, never the end of the interpreter, never other data."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the system does not limit the memory of a process")
PROGRAM = Path(__file__).with_name("damage_program.py")
PACKAGES = {"parquet": "pyarrow", "tfrecord": "numpy", "array_record": "array_record"}
MANY = pytest.param(100, 900, marks=[pytest.mark.slow, pytest.mark.timeout(300)], id="many")


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(("first", "last"), [pytest.param(0, 100, id="some"), MANY])
def test_damages(name, first, last, tmp_path):
    pytest.importorskip(PACKAGES[name])
    wrong = []
    while first < last:
        command = [sys.executable, str(PROGRAM), name, str(tmp_path), str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)  # for a program that hangs
        lines = done.stdout.splitlines()
        wrong += [line for line in lines if line.startswith("wrong")]
        numbers = [int(line) for line in lines if line.isdigit()]
        assert numbers, done.stderr  # it did not come to the first file
        first = numbers[-1] + 1
        if done.returncode:
            end = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
            wrong.append(f"wrong: damage {numbers[-1]}: ended by {end}: {done.stderr[-300:]}")
    assert "\n".join(wrong) == ""
