"""What may be used of the machine, read from trees of files such as the kernel shows them."""

import math
import os
from pathlib import Path

import pytest

from gristmill.core.cgroup import available_memory, usable_cpus

MIB = 2**20


@pytest.fixture
def machine(tmp_path):
    """Writes files below a root: ``machine({path: text})``."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.fixture
def all_cpus():
    return usable_cpus(Path("/nonexistent"))


def test_without_control_groups_the_affinity_decides(tmp_path, all_cpus):
    assert all_cpus == (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    assert available_memory(tmp_path) == math.inf


def test_names_of_groups_are_any_bytes(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/pod \xff\n")
    assert available_memory(tmp_path) == math.inf


@pytest.mark.parametrize(
    ("cpu_max", "expected"), [("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_cpus_of_version_2(machine, all_cpus, cpu_max, expected):
    root = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": cpu_max + "\n"})
    assert usable_cpus(root) == (expected or all_cpus)


def test_a_quota_above_the_affinity_changes_nothing(machine, all_cpus):
    root = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{all_cpus}00000 1000\n"})
    assert usable_cpus(root) == all_cpus


def test_limits_of_groups_further_up_hold(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/memory.max": f"{100 * MIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{40 * MIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {10 * MIB}\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/other/memory.max": "1\n",
        }
    )
    assert usable_cpus(root) == 1
    assert available_memory(root) == 70 * MIB


def test_version_1(machine, all_cpus):
    root = machine(
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n2:cpuset:/\n0::/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{80 * MIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {20 * MIB}\n",
        }
    )
    assert usable_cpus(root) == 1
    assert available_memory(root) == 4 * MIB
    machine({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{100 * MIB}\n"})
    assert usable_cpus(root) == all_cpus
    assert available_memory(root) == 0


def test_of_this_machine():
    assert usable_cpus() >= 1
    assert available_memory() > 0
