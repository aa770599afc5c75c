"""Runs the driver in Grain's environment (``make peers`` makes it; ``GRISTMILL_PEER_GRAIN`` names
another) and in ours.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PEER = (
    Path(os.environ.get("GRISTMILL_PEER_GRAIN", _HERE.parents[1] / ".peers/grain")) / "bin/python"
)
needs_grain = pytest.mark.skipif(
    not _PEER.exists(),
    reason=(
        f"Grain 0.2.18 is not installed at {_PEER} (run `make peers`), so there is nothing to"
        " compare with"
    ),
)


def run(module, specs):
    """The output of the driver for ``specs``; ``{"hangs": True}`` for one at which Grain hangs."""
    python = sys.executable if module == "gristmill" else str(_PEER)
    results = []
    while len(results) < len(specs):
        left = specs[len(results) :]
        code, output, errors = _outputs(
            [python, str(_HERE / "peer_driver.py"), module], json.dumps(left)
        )
        lines = output.splitlines()
        results += map(json.loads, lines)
        # Threads that Grain leaves behind can slow later pipelines until they time out: these are
        # tried again.
        is_stuck = module == "grain" and "Timeout" in errors
        assert code == 0 or is_stuck, (
            f"{module} ended with {code} at {left[len(lines)]}:\n{errors[-3000:]}"
        )
        if not lines:
            results.append({"hangs": True})
    return results


def _outputs(command, text):
    """The exit status of a program, and what it prints. Worker processes that outlive it are
    killed.
    """
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
    ):
        stdin.write(text)
        stdin.seek(0)
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        ) as process:
            process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        stdout.seek(0)
        stderr.seek(0)
        return process.returncode, stdout.read(), stderr.read()
