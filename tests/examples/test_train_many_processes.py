"""Training with several JAX processes: they are killed, started again, and go on with the same bits."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
from refusing import assert_raises
from test_examples import EXAMPLES, SAME, run_example, steps, steps_in

import gristmill


@contextlib.contextmanager
def started(*args):
    """The example in a session of its own, all of whose processes are gone at the end."""
    command = [sys.executable, str(EXAMPLES / "train_many_processes.py"), *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def check_is_gone(group):
    assert_raises(ProcessLookupError, None, os.killpg, group, 0)


def check_story(folder, count, *args):
    """Runs the example with this number of processes."""
    with started("--out", folder.parent, "--steps", 40, *args) as process:
        output, _ = process.communicate(timeout=250)
        assert process.returncode == 0, output
        check_is_gone(process.pid)
    assert f"{count} processes trained 40 steps, and again, killed after step 20" in output
    # 20 may still have been on its way to the disk. All agree on where they go on.
    assert {*re.findall(r"resuming after step (\d+)", output)} in ({"10"}, {"20"})
    assert SAME in output
    (parameters,) = re.findall("final parameters (.*)", output)
    assert len(parameters.split()) == 2 * count
    assert len(set(parameters.split())) == 1
    names = {f"process_{i}-of-{count}.json" for i in range(count)}
    for step in (30, 40):
        data = folder / "resumed/checkpoints" / str(step) / "data"
        assert {path.name for path in data.glob("process_*")} == names
    rows = []
    for log in (f"log-{i}.txt" for i in range(count)):
        assert steps_in(folder / "undisturbed" / log) == steps((1, 40))
        assert len(steps_in(folder / "resumed" / log)) in (41, 51)  # with some steps trained twice, if 20 was not complete
        rows += [line.split()[2] for line in (folder / "undisturbed" / log).read_text().splitlines()[:-1]]
    assert len(set(rows)) == 40 * count  # everybody has other rows, and other ones in every step


@pytest.mark.slow
def test_two_processes(tmp_path):
    check_story(tmp_path / "loader-2", 2)
    checkpoints = tmp_path / "loader-2/resumed/checkpoints"
    for i in range(2):
        assert f"shard_index={i}, shard_count=2" in (checkpoints / f"40/data/process_{i}-of-2.json").read_text()

    # This test is one process, not two.
    it = iter(gristmill.load(gristmill.sources.RangeDataSource(0, 9, 1)))
    assert next(it) == 0
    args = ocp.args.Composite(data=gristmill.checkpoint.CheckpointRestore(it))
    message = r"process_0-of-1.json does not exist: .* written by another number of processes"
    with ocp.CheckpointManager(checkpoints) as manager:
        assert_raises(ValueError, message, manager.restore, 40, args=args)
    assert next(it) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_processes(tmp_path):
    check_story(tmp_path / "loader-4", 4, "--processes", 4)

    # Two processes, started one by one as on a cluster, cannot go on with the checkpoint of four.
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    args = ["--processes", 2, "--coordinator", address, "--run", tmp_path / "loader-4/resumed", "--index"]
    with started(*args, 0) as first, started(*args, 1) as second:
        output = first.communicate(timeout=100)[0] + second.communicate(timeout=100)[0]
        assert first.returncode
        assert second.returncode
    assert re.search(r"StateMismatchError: File .*/process_[01]-of-2.json does not exist: .* another number of processes", output)
    assert "resuming" not in output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_dataset_pipeline(tmp_path):
    check_story(tmp_path / "dataset-2", 2, "--dataset")


@pytest.mark.parametrize("killed", [pytest.param("launcher", marks=pytest.mark.slow), "process"])
def test_when_one_is_killed_all_end(tmp_path, killed):
    with started("--out", tmp_path, "--steps", 10**6) as launcher:
        assert any("beginning after step 0" in line for line in launcher.stdout)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(launcher.pid if killed == "launcher" else int(children[1]), signal.SIGKILL)
        # To the end of the output: all processes that hold its other end are gone.
        output, _ = launcher.communicate(timeout=60)
        if killed == "process":
            assert launcher.returncode == 1
            assert "a process failed with exit status -9" in output
            check_is_gone(launcher.pid)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_number_of_hosts_changes(tmp_path):
    output = run_example("change_hosts.py", "--out", tmp_path, "--steps", 24)
    assert "24 steps on 4 hosts, and on 4 → 2 → 1 → 4, killed in between" in output and SAME in output
    assert [re.findall(rf"host \d of {count}: (\w+)", output) for count in (2, 1)] == [["resuming"] * 2, ["resuming"]]
    for name in ("undisturbed", "changing"):
        logs = {line for log in (tmp_path / name).glob("log-*.txt") for line in log.read_text().splitlines()}
        assert {line.split()[0] for line in logs} == {*steps((1, 24))} and len(logs) == 25  # all hosts, and runs, say the same
