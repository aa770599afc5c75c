"""Lists the versions of CPython that gristmill supports and that are installed here, oldest first.

Run as a program it prints a line for each: the version and the path of the interpreter.
"""

import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
PROBE = """
import platform, sys, sysconfig, ensurepip, venv
is_free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
if platform.python_implementation() == "CPython" and not is_free_threaded:
    print(sys.version_info.major, sys.version_info.minor)
"""


def find_pythons() -> dict[tuple[int, ...], str]:
    """Returns the path of one interpreter for each version, oldest first.

    The running interpreter is the one of its version. The others are those on the PATH and those
    that pyenv has built.
    """
    on_path = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 30)]
    built = sorted(map(str, Path.home().glob(".pyenv/versions/*/bin/python")))
    found: dict[tuple[int, ...], str] = {}
    for python in [sys.executable, *filter(None, on_path), *built]:
        probe = subprocess.run([python, "-c", PROBE], capture_output=True, text=True)
        version = tuple(map(int, probe.stdout.split()))
        if probe.returncode == 0 and version >= OLDEST:
            found.setdefault(version, python)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    for (major, minor), path in find_pythons().items():
        print(f"{major}.{minor}", path)
