"""The share of the machine that this process may use, as limited by its control groups (which
containers set) and its affinity.

Source: the kernel's documentation of cgroup v2 (cpu.max, memory.max) and v1 (cpu.cfs_quota_us,
memory.limit_in_bytes).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def usable_cpus(root: Path = _ROOT) -> int:
    """Returns the number of CPUs that this process may keep busy, at least 1.

    Args:
        root: the folder that has ``proc`` and ``sys``.
    """
    if sys.version_info >= (3, 13):
        num = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        num = len(os.sched_getaffinity(0))
    else:
        num = os.cpu_count() or 1
    for group in _groups(root, "cpu"):
        for quota, period in (
            (_number(group / "cpu.max"), _number(group / "cpu.max", 1)),
            (_number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")),
        ):
            # microseconds of CPU time in each period; -1 is no limit
            if quota and period and quota > 0:
                num = min(num, quota // period)
    return max(1, num)


def available_memory(root: Path = _ROOT) -> float:
    """Returns the bytes that this process's control group may still take; infinite without a limit.

    Files that the kernel keeps in memory and can drop count as free.

    Args:
        root: the folder that has ``proc`` and ``sys``.
    """
    available = math.inf
    for group in _groups(root, "memory"):
        for limit_name, usage_name, droppable_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(group / limit_name)
            if limit is not None:
                used = (_number(group / usage_name) or 0) - _statistics(group).get(
                    droppable_name, 0
                )
                available = min(available, max(0, limit - used))
    return available


def usable_memory(root: Path = _ROOT) -> int:
    """Returns the bytes of memory that this process may use at most, by its control groups and by
    what the machine has.

    Args:
        root: the folder that has ``proc`` and ``sys``.
    """
    limits = [
        _number(group / name)
        for group in _groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # it does not say
        limits.append(1 << 33)
    return min([limit for limit in limits if limit is not None])


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's control group and of those that it is in that are
    visible.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controller]
        else:
            continue
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for mount in mounts:
            yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))


def _statistics(group: Path) -> dict[str, int]:
    pairs = [line.split() for line in _text(group / "memory.stat").splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _number(path: Path, place: int = 0) -> int | None:
    """Returns the number at one place in a file; ``None`` if there is something else ("max") or
    nothing."""
    words = _text(path).split()
    return (
        int(words[place]) if place < len(words) and words[place].lstrip("-").isdecimal() else None
    )


def _text(path: Path) -> str:
    """Returns the contents of a file; empty if there is none, or it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes())  # there are names of folders in it
    except OSError:
        return ""
