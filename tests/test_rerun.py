"""The script by which CI repeats the few tests that failed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/rerun.py"

TESTS = """
import os
from pathlib import Path

import pytest

def fails_at_first(name, fail=lambda: 1 // 0):
    path = Path(name)
    if not path.exists():
        path.touch()
        fail()

@pytest.mark.parametrize("i", range(NUM_UNSTEADY))
def test_unsteady(i):
    fails_at_first(f"unsteady {i}")

@pytest.mark.parametrize("i", range(NUM_CRASHES))
def test_crash(i):
    fails_at_first("crash", lambda: os._exit(1))

@pytest.mark.parametrize("i", range(NUM_FAILING))
def test_failing(i):
    assert False

def test_passing():
    with open("passed", "a") as file:
        file.write("x")
"""


@pytest.mark.parametrize(
    ("numbers", "options", "status", "unsteady"),
    [
        pytest.param((2, 1, 0), [], 0, ["crash[0]", "unsteady[0]", "unsteady[1]"], id="unsteady"),
        pytest.param((1, 0, 1), [], 1, [], id="one fails twice"),
        pytest.param((4, 0, 0), [], 1, [], id="too many"),
        pytest.param((1, 0, 0), ["--session-timeout=0.001"], 2, [], id="too late"),
    ],
)
def test_few_failed_tests_run_again(numbers, options, status, unsteady, tmp_path):
    text = TESTS
    for name, num in zip(("UNSTEADY", "CRASHES", "FAILING"), numbers, strict=True):
        text = text.replace(f"NUM_{name}", str(num))
    (tmp_path / "test_some.py").write_text(text)
    plugins = ["-p", "xdist.plugin", "-p", "pytest_timeout"]  # others take long to import
    command = [sys.executable, SCRIPT, *plugins, "--numprocesses=1", "--dist=worksteal", *options]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode == status, result.stdout + result.stderr
    path = tmp_path / "out/unsteady.txt"
    text = path.read_text() if path.exists() else ""
    assert sorted(re.findall(r"test_some\.py::test_([\w[\]]+)", text)) == unsteady
    assert text.startswith("unsteady: failed, then passed: ") == bool(unsteady)
    assert options or (tmp_path / "passed").read_text() == "x"  # it is not repeated
