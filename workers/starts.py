"""Starting a fresh interpreter that runs ``boot.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from gristmill.workers.exits import ChildProcess
from gristmill.workers.setup import BOOT


def interpreter() -> list[str]:
    """Returns which interpreter, with the flags of this one.

    Raises:
        RuntimeError: there is no interpreter to run.
    """
    # Programs that embed Python name an interpreter to multiprocessing.
    spawn = sys.modules.get("multiprocessing.spawn")
    python = spawn.get_executable() if spawn is not None else sys.executable
    if not python or (getattr(sys, "frozen", False) and python == sys.executable):
        raise RuntimeError(
            "worker processes need a Python interpreter to run, and sys.executable is not one: "
            "name one with multiprocessing.set_executable(...), or use 0 workers"
        )
    # The function is not in the type checkers' stubs.
    return [
        os.fsdecode(python),
        *getattr(subprocess, "_args_from_interpreter_flags")(),  # noqa: B009
    ]


def start_boot(
    fds: Sequence[int], arguments: Sequence[int], environment: Mapping[str, str]
) -> ChildProcess:
    """Starts the process.

    Args:
        fds: what it inherits besides its standard streams, of which it cannot read; their numbers
            are its first arguments.
        arguments: the other ones.
        environment: its environment variables.
    """
    process = subprocess.Popen(
        [*interpreter(), BOOT, *map(str, [*fds, *arguments])],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env=environment,
        process_group=0,  # an interrupt from the keyboard goes to the group of the consumer
    )
    return ChildProcess(process)
