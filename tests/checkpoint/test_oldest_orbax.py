"""The tests of Orbax once more, with the oldest release that setup.cfg admits.

It is installed in an environment of its own: ``make peers`` makes it in ``.peers/orbax-oldest``;
``GRISTMILL_PEER_ORBAX_OLDEST`` names another.
"""

import configparser
import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = (
    Path(os.environ.get("GRISTMILL_PEER_ORBAX_OLDEST", ROOT / ".peers/orbax-oldest")) / "bin/python"
)
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
OLDEST = re.search(r"orbax-checkpoint >= ([\d.]+)", SETUP["options.extras_require"]["orbax"])[1]


def test_make_installs_the_oldest_release_that_we_admit():
    assert f"\nORBAX_OLDEST := {OLDEST}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.skipif(
    not PYTHON.exists(), reason=f"the oldest Orbax is not installed at {PYTHON} (run `make peers`)"
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_the_oldest_orbax():
    version = "import importlib.metadata; print(importlib.metadata.version('orbax-checkpoint'))"
    found = subprocess.run(
        [PYTHON, "-c", version], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    assert found == OLDEST
    files = sorted(Path(__file__).parent.glob("test_orbax*.py"))
    assert len(files) >= 3
    # That Orbax leaves event loops and their sockets to the garbage collector.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore:unclosed:ResourceWarning"]
    options += ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [PYTHON, "-m", "pytest", *options, *files]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, **streams
    ) as process:
        try:
            output, _ = process.communicate(timeout=250)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
    assert process.returncode == 0, output[-10000:]
