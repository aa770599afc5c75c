"""Runs pytest with the given arguments, and then once more the tests that failed, if these are few.

Tests that failed run again in one process, one after the other. If they all pass then, the run
passes, and a line in ``out/unsteady.txt`` names them. A run in which more than ``MOST`` tests fail,
or which ends early, is not repeated.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
UNSTEADY = Path("out/unsteady.txt")
TESTS_FAILED = 1  # pytest's exit status; it is 2 if the session timed out


def run(arguments: list[str]) -> int:
    """Returns the exit status of pytest, which is that of the second run if there is one."""
    command = [sys.executable, "-m", "pytest", *arguments]
    LAST_FAILED.unlink(missing_ok=True)
    status = subprocess.call(command)
    failed = [*json.loads(LAST_FAILED.read_text())] if LAST_FAILED.exists() else []
    if status != TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"rerun: these run again, alone: {', '.join(failed)}", flush=True)
    status = subprocess.call([*command, "--last-failed", "--numprocesses=0"])
    if status == 0:
        line = f"unsteady: failed, then passed: {', '.join(failed)}"
        print(line, flush=True)
        UNSTEADY.parent.mkdir(exist_ok=True)
        with UNSTEADY.open("a") as file:
            file.write(f"{line}\n")
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
