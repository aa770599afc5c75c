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

import gristmill

EXAMPLE = Path(__file__).parents[2] / "examples/train_many_processes.py"


@contextlib.contextmanager
def started(*args):
    """The example in a session of its own, all of whose processes are gone at the end."""
    command = [sys.executable, str(EXAMPLE), *map(str, args)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def is_gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def run_example(*args, status=0, timeout=100):
    with started(*args) as process:
        output, _ = process.communicate(timeout=timeout)
        assert process.returncode == status, output
        assert is_gone(process.pid)
    return output


def wait_for(process, text):
    """Reads what the process prints up to a line with this text."""
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"the example ended without printing {text!r}")


def check_story(folder, output, count):
    assert f"{count} processes trained 40 steps, and again, killed after step 20" in output
    # 20 may still have been on its way to the disk. All agree on where they go on.
    assert len(set(re.findall(r"resuming after step (\d+)", output))) == 1
    assert re.search("resuming after step (10|20)", output)
    assert "batches, losses and parameters: bit-identical" in output
    (parameters,) = re.findall("final parameters (.*)", output)
    assert len(parameters.split()) == 2 * count
    assert len(set(parameters.split())) == 1

    names = {f"process_{i}-of-{count}.json" for i in range(count)}
    for step in (30, 40):
        data = folder / "resumed/checkpoints" / str(step) / "data"
        assert {path.name for path in data.glob("process_*")} == names
    rows = []
    for i in range(count):
        undisturbed, resumed = (
            [line.split() for line in (folder / run / f"log-{i}.txt").read_text().splitlines()]
            for run in ("undisturbed", "resumed")
        )
        assert [step for step, *_ in undisturbed] == [*map(str, range(1, 41)), "final"]
        assert len(resumed) in (41, 51)  # with some steps trained twice, if 20 was not complete
        rows += [digest for _, _, digest in undisturbed[:-1]]
    assert len(set(rows)) == 40 * count  # everybody has other rows, and other ones in every step


@pytest.mark.slow
def test_two_processes(tmp_path):
    output = run_example("--out", tmp_path, "--steps", 40)
    check_story(tmp_path / "loader-2", output, 2)

    checkpoints = tmp_path / "loader-2/resumed/checkpoints"
    for i in range(2):
        assert f"shard_index={i}, shard_count=2" in (checkpoints / f"40/data/process_{i}-of-2.json").read_text()

    # This test is one process, not two.
    it = iter(gristmill.load(gristmill.sources.RangeDataSource(0, 9, 1)))
    assert next(it) == 0
    args = ocp.args.Composite(data=gristmill.checkpoint.CheckpointRestore(it))
    message = r"process_0-of-1.json does not exist: .* written by another number of processes"
    with ocp.CheckpointManager(checkpoints) as manager, pytest.raises(ValueError, match=message):
        manager.restore(40, args=args)
    assert next(it) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_processes(tmp_path):
    args = ["--out", tmp_path, "--processes", 4, "--steps", 40]
    check_story(tmp_path / "loader-4", run_example(*args, timeout=250), 4)

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
    args = ["--out", tmp_path, "--dataset", "--steps", 40]
    check_story(tmp_path / "dataset-2", run_example(*args, timeout=250), 2)


def test_nothing_outlives_the_launcher(tmp_path):
    with started("--out", tmp_path, "--steps", 10**6) as launcher:
        wait_for(launcher, "beginning after step 0")
        launcher.kill()
        launcher.communicate(timeout=60)  # to the end of the output: all processes that hold its other end are gone


def test_when_one_process_dies_the_others_are_ended(tmp_path):
    with started("--out", tmp_path, "--steps", 10**6) as launcher:
        wait_for(launcher, "beginning after step 0")
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[1]), signal.SIGKILL)
        output, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 1
        assert "a process failed with exit status -9" in output
        assert is_gone(launcher.pid)
