"""Resources that a process may use, read from file trees such as the kernel shows."""

import math
import os
from pathlib import Path

import pytest

from gristmill.core.cgroup import available_memory, usable_cpus

MIB = 2**20
ALL = usable_cpus(Path("/nonexistent"))


@pytest.fixture
def measured(tmp_path):
    def measured(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("latin1"))
        return usable_cpus(tmp_path), available_memory(tmp_path)

    return measured


def test_the_affinity_or_the_smallest_limit_of_a_group_decides(measured):
    assert (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    ) == ALL
    assert measured({}) == (ALL, math.inf)
    # names of groups are any bytes
    assert measured({"proc/self/cgroup": "0::/pod \xff\n"}) == (ALL, math.inf)
    assert usable_cpus() >= 1 and available_memory() > 0
    cases = [
        ("100000 100000", 1),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", ALL),
        ("", ALL),
    ]
    # the last one is above the affinity
    for cpu_max, expected in [*cases, (f"{ALL}00000 1000", ALL)]:
        found = measured({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": cpu_max + "\n"})[0]
        assert found == expected
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/memory.max": f"{100 * MIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{40 * MIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {10 * MIB}\n",
        "sys/fs/cgroup/pod/container/memory.max": "max\n",
        "sys/fs/cgroup/other/memory.max": "1\n",
    }
    assert measured(files) == (1, 70 * MIB)
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n2:cpuset:/\n0::/x\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{80 * MIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {20 * MIB}\n",
    }
    assert measured(files) == (1, 4 * MIB)
    more = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{100 * MIB}\n",
    }
    assert measured(more) == (ALL, 0)
