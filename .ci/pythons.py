"""Lists the versions of CPython that gristmill supports and that are installed here.

Run as a program it prints a line for each, oldest first: the version, which ends with ``t`` if the
build is free-threaded, and the path of the interpreter.
"""

import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
PROBE = """
import platform, sys, sysconfig, ensurepip, venv
if platform.python_implementation() == "CPython":
    print(*sys.version_info[:2], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
"""


def find_pythons() -> dict[str, str]:
    """Returns the path of one interpreter for each version, such as 3.13 and 3.13t, oldest first.

    The running interpreter is the one of its version. The others are those on the PATH and those
    that pyenv has built.
    """
    names = [f"python3.{minor}{suffix}" for minor in range(OLDEST[1], 30) for suffix in ("", "t")]
    on_path = filter(None, map(shutil.which, names))
    built = sorted(map(str, Path.home().glob(".pyenv/versions/*/bin/python")))
    found: dict[tuple[int, int, str], str] = {}
    for python in [sys.executable, *on_path, *built]:
        probe = subprocess.run([python, "-c", PROBE], capture_output=True, text=True)
        if probe.returncode == 0 and probe.stdout:
            major, minor, *suffix = probe.stdout.split()
            if (int(major), int(minor)) >= OLDEST:
                found.setdefault((int(major), int(minor), "".join(suffix)), python)
    return {f"{major}.{minor}{t}": path for (major, minor, t), path in sorted(found.items())}


if __name__ == "__main__":
    for version, path in find_pythons().items():
        print(version, path)
