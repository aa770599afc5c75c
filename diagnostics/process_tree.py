"""CPU time and memory of this process and of all processes that it has started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def cpu_seconds() -> dict[int, float]:
    """Return the CPU time so far of each process that runs now, in seconds, by its id.

    Returns:
        Nothing if the system has no ``/proc``, as on macOS and Windows.
    """
    if not (_PROC / "self" / "stat").exists():
        return {}
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: (int(values[11]) + int(values[12])) / tick for pid, values in _processes()}


def memory_bytes() -> int | None:
    """Return the memory of the processes that run now. Shared pages count once.

    Returns:
        ``None`` if the system does not report it.
    """
    if not (_PROC / "self" / "smaps_rollup").exists():
        return None
    return sum([_shared_out(pid) for pid, _ in _processes()])


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the id of each process and the fields of its ``stat`` file from the state on."""
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


def _shared_out(pid: int) -> int:
    """Return the proportional set size of a process, in bytes."""
    with contextlib.suppress(OSError):  # the process has ended
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
