"""The CPU time and memory of this process, of its threads, and of all processes that it started."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from gristmill.core.cgroup import available_memory

_PROC = Path("/proc")
# A thread that computes waits for a CPU this many times as long as it runs, at most; one that wakes
# up to do next to nothing may wait much longer on a busy machine, without wanting a CPU.
_MAX_WAITED = 2


def cpu_demand_ns() -> int:
    """Returns the CPU time that this process has had or has waited for so far, with all threads
    that are still there.

    Only Linux reports the time that it waited because other processes had the CPUs.
    """
    times = os.times()
    waited = 0
    with contextlib.suppress(OSError):
        for task in (_PROC / "self" / "task").iterdir():
            thread_ran, thread_waited = _scheduled(task / "schedstat")
            waited += min(thread_waited, _MAX_WAITED * thread_ran)
    return int((times.user + times.system) * 1e9) + waited


def thread_demand_ns() -> tuple[int, int]:
    """Returns the CPU time of this thread so far, and the time that it waited for a CPU.

    Both are 0 if the system does not report them.
    """
    return _scheduled(_PROC / "thread-self" / "schedstat")


def _scheduled(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError):  # the thread has ended, or no such system
        ran, waited = map(int, path.read_text().split()[:2])
        return ran, waited
    return 0, 0


def free_memory() -> float:
    """Returns the bytes that this process may still take, by its control group and by what the
    machine has; infinite if unknown.
    """
    free = available_memory()
    if (kilobytes := _number_after("MemAvailable:", _PROC / "meminfo")) is not None:
        return min(free, 1024.0 * kilobytes)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return min(free, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return free if free else math.inf


def _number_after(title: str, path: Path) -> int | None:
    """Returns the number of a line of a file of the system."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith(title):
                return int(line.split()[1])
    return None


def cpu_seconds() -> dict[int, float]:
    """Returns the CPU time so far of each process that runs now, in seconds, by its id.

    It is empty if the system has no ``/proc``, as on macOS and Windows.
    """
    if not (_PROC / "self" / "stat").exists():
        return {}
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: (int(values[11]) + int(values[12])) / tick for pid, values in _processes()}


def memory_bytes() -> int | None:
    """Returns the memory of the processes that run now. Shared pages count once.

    It is ``None`` if the system does not report it.
    """
    if not (_PROC / "self" / "smaps_rollup").exists():
        return None
    # the proportional set sizes; a process that has ended has none
    files = [_PROC / str(pid) / "smaps_rollup" for pid, _ in _processes()]
    return 1024 * sum([_number_after("Pss:", file) or 0 for file in files])


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yields the id of each process and the fields of its ``stat`` file from the state on."""
    fields: dict[int, list[str]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # the process has ended
                # the name in parentheses may contain spaces
                fields[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    children: dict[int, list[int]] = {}
    for pid, values in fields.items():
        children.setdefault(int(values[1]), []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, []))
        if pid in fields:
            yield pid, fields[pid]
