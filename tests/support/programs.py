"""Programs that tests run in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PATIENCE_SECONDS = 100.0


def outcome(
    folder: Path, code: str, *arguments: object, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """The return code and the output of a program, which may be indented."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(code))
    command = [python, path, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def output(folder: Path, code: str, *arguments: object) -> list[str]:
    """The lines of a program that ends well and says nothing of errors."""
    process = outcome(folder, code, *arguments)
    assert (process.returncode, process.stderr) == (0, ""), process.stderr
    return process.stdout.splitlines()
