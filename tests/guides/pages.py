"""Runs the code of a page of the documentation: ``python tests/guides/pages.py
docs/guides/datasets.md``.

All ``python`` blocks of a page run in one namespace, from top to bottom, and all ``sh`` blocks with
bash, in an empty folder. A comment of a ``python`` block that begins its line, or that follows two
spaces, is a line that the block prints. A block after ``<!-- not run: why -->`` is skipped, and a
page that begins with ``<!-- environment: NAME -->`` runs in ``.peers/NAME``, ``own`` in a process
of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from notebooks import blocks_of, environment_of

_REMARK = re.compile(r"(?:^|  )# (.*)$")


def expected_output(code: str) -> list[str]:
    """The lines that a block says it prints."""
    return [match[1] for match in map(_REMARK.search, code.splitlines()) if match]


class Printed(io.StringIO):
    """The output of a page. Reports of Ray, which a thread of its own prints, are ignored."""

    def write(self, text: str) -> int:
        is_report = threading.current_thread().name.startswith("ray_")
        return sys.stderr.write(text) if is_report else super().write(text)


def run_shell(code: str) -> None:
    """Runs a block with bash, which finds the programs of this environment first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euc", code]
    result = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, f"{code}{result.stdout}{result.stderr}"


def run_page(page: Path) -> int:
    """Runs the blocks of a page in the current folder; returns how many lines of output were
    compared.

    Raises:
        AssertionError: A block prints something else than it says.
    """
    namespace: dict[str, Any] = {"__name__": page.stem}
    num_checked = 0
    for block in blocks_of(page):
        if not block.runs:
            continue
        if block.language == "sh":
            run_shell(block.code)
            continue
        printed = Printed()
        first_line = block.code.splitlines()[0]
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, f"{page.name}: {first_line}", "exec"), namespace)
        expected, got = expected_output(block.code), printed.getvalue().splitlines()
        assert got == expected, (
            f"{page.name} says\n  " + "\n  ".join(expected) + "\nand prints\n  " + "\n  ".join(got)
        )
        num_checked += len(expected)
    # threads that read ahead refer to it, by the functions that they call: its iterators end here
    namespace.clear()
    return num_checked


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    environment = environment_of(page)
    if environment is not None and Path(sys.prefix) != environment:
        flags = [f"-W{option}" for option in sys.warnoptions]
        sys.exit(subprocess.run([environment / "bin/python", *flags, __file__, page]).returncode)
    # else the main thread prints some of its reports at the end
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        print(f"{page.name}: {run_page(page)} lines of output as expected")


if __name__ == "__main__":
    main()
