"""CPU time of processes of this machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(process_ids: Iterable[int]) -> float | None:
    """Return the CPU time so far of these processes together, in seconds.

    Returns:
        ``None`` if there are others than this one and the system has no ``/proc``, as macOS and
        Windows.
    """
    seconds = 0.0
    for process_id in process_ids:
        if process_id == os.getpid():
            seconds += time.process_time()
        elif not Path("/proc/self/stat").exists():
            return None
        else:
            with contextlib.suppress(OSError):  # it has ended
                stat = Path(f"/proc/{process_id}/stat").read_text()
                # The name in parentheses may contain spaces.
                fields = stat.rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds
