"""Damaged files: an error that names them or what was written, never the end of the interpreter, never other data.

Each format's files are damaged in many ways and read in a process of their own, which starts again behind a file that ended it.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the system does not limit the memory of a process")
PROGRAM = Path(__file__).with_name("damage_program.py")
PACKAGES = {"parquet": "pyarrow", "tfrecord": "numpy", "array_record": "array_record"}
SECONDS = 300  # for a program that hangs, not for a slow machine


def wrong_files(name, folder, first, last):
    """What was wrong with damages ``first`` to ``last - 1``, a line each."""
    wrong = []
    while first < last:
        command = [sys.executable, str(PROGRAM), name, str(folder), str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        lines = done.stdout.splitlines()
        wrong += [line for line in lines if line.startswith("wrong")]
        numbers = [int(line) for line in lines if line.isdigit()]
        assert numbers, done.stderr  # it did not come to the first file
        first = numbers[-1] + 1
        if done.returncode:
            end = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
            wrong.append(f"wrong: damage {numbers[-1]}: ended by {end}: {done.stderr[-300:]}")
    return wrong


def check(name, folder, first, last):
    pytest.importorskip(PACKAGES[name])
    assert "\n".join(wrong_files(name, folder, first, last)) == ""


@pytest.mark.parametrize("name", PACKAGES)
def test_some_damages(name, tmp_path):
    check(name, tmp_path, 0, 150)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", PACKAGES)
def test_many_damages(name, tmp_path):
    check(name, tmp_path, 150, 2150)
