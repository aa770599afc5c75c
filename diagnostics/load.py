"""The CPU time that processes request and get."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from gristmill.core.cgroup import available_memory

# A thread that computes waits for a CPU this many times as long as it runs, at most; one that wakes
# up to do next to nothing may wait much longer on a busy machine, without wanting a CPU.
_MAX_WAITED = 2


def cpu_demand_ns() -> int:
    """Returns the CPU time that this process has had or has waited for so far, with all threads
    that are still there.

    Only Linux reports the time that it waited because other processes had the CPUs.
    """
    times = os.times()
    return int((times.user + times.system) * 1e9) + _waited_ns()


def _waited_ns() -> int:
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                ran, waited = map(int, (task / "schedstat").read_text().split()[:2])
                total += min(waited, _MAX_WAITED * ran)
    return total


def thread_demand_ns() -> tuple[int, int]:
    """Returns the CPU time of this thread so far, and the time that it waited for a CPU.

    Both are 0 if the system does not report them.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        ran, waited = map(int, Path("/proc/thread-self/schedstat").read_text().split()[:2])
        return ran, waited
    return 0, 0


def free_memory() -> float:
    """Returns the bytes that this process may still take, by its control group and by what the
    machine has; infinite if unknown.
    """
    free = available_memory()
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(free, int(line.split()[1]) * 1024.0)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return min(free, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return free if free else math.inf
