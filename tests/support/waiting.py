"""Waiting in tests for what other threads do."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 30.0  # a test that has to wait this long has failed


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        pause.wait(0.002)


def running(name: str) -> list[threading.Thread]:
    # Python continues to list a thread whose start was interrupted, and that does not exist.
    return [x for x in threading.enumerate() if x.name.startswith(name) and x.is_alive()]


def is_running(process_id: int) -> bool:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        )
    return False


def worker_processes() -> set[int]:
    """The worker processes of this process, which have started directly or were forked from a
    fork server.
    """
    found = fork_servers(6)
    for process_id in fork_servers():
        found |= _children_of(process_id)
    return found


def fork_servers(num_arguments: int = 3) -> set[int]:
    """The processes that this one has started to fork workers from."""
    found = set()
    for child in _children_of(os.getpid()):
        with contextlib.suppress(OSError):
            _, *arguments = Path(f"/proc/{child}/cmdline").read_text().partition("boot.py")[
                2
            ].split("\0")[:-1] or [""]
            if len(arguments) == num_arguments:
                found.add(child)
    return found


def _children_of(process_id: int) -> set[int]:
    found = set()
    for path in Path(f"/proc/{process_id}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            found.update(map(int, path.read_text().split()))
    return found
