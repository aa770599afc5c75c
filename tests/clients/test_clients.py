"""The tests of libraries that use Grain, unmodified, with gristmill in its place: as many pass as
with Grain 0.2.18.

``make clients`` makes their environment, in which Grain is not installed, in ``.peers/clients``,
and unpacks their source archives there; ``GRISTMILL_PEER_CLIENTS`` names another.
docs/guides/migrating_from_grain.md lists those that run by hand.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

PEER = Path(os.environ.get("GRISTMILL_PEER_CLIENTS", Path(__file__).parents[2] / ".peers/clients"))
# Their tests in the folder of the archive, and how many pass.
CLIENTS = {"flax": ("examples/gemma", ["input_pipeline_test.py", "-k", "ds0"], 2)}


@pytest.mark.skipif(
    not (PEER / ".installed").exists(),
    reason=f"there are no clients at {PEER} (run `make clients`)",
)
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_own_tests_pass(client):
    folder, tests, num_passed = CLIENTS[client]
    (sources,) = PEER.glob(f"sources/{client}-*")
    options = ["-q", "-p", "no:cacheprovider"]
    command = [
        PEER / "bin/python",
        "-m",
        "gristmill",
        "run-as-grain",
        "-m",
        "pytest",
        *options,
        *tests,
    ]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    settings = {"cwd": sources / folder, "env": environment, "timeout": 280}
    process = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    found = re.findall(r"(\d+) (passed|failed|errors?)", process.stdout.splitlines()[-1])
    assert found == [(str(num_passed), "passed")], process.stdout[-10000:] + process.stderr[-1000:]
