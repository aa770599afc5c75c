"""Waiting in tests for what other threads do."""

from __future__ import annotations

import contextlib
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
    # Python goes on to list a thread whose start was interrupted, and that does not exist.
    return [x for x in threading.enumerate() if x.name.startswith(name) and x.is_alive()]


def is_running(process_id: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
