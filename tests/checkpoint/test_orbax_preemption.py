"""A process that is killed in the middle of a save leaves the checkpoint before it as the last one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import orbax_preempted
import pytest
from orbax_preempted import FILE, MODEL, following, make_iterators

from gristmill.checkpoint import CheckpointRestore, CheckpointSave

PROGRAM = Path(orbax_preempted.__file__)
CASES = [(how, number) for how in ("sync", "async", "v1") for number in (signal.SIGKILL, signal.SIGTERM)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program once for every case, all started at the same time: starting is what takes them long."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = {}
    for how, number in CASES:
        folder = tmp_path_factory.mktemp(how)
        command = [sys.executable, str(PROGRAM), str(folder), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started[how, number] = process, folder
    yield started
    for process, _ in started.values():
        process.kill()
        process.communicate()


@pytest.fixture(params=CASES, ids=[f"{how}-{number.name}" for how, number in CASES])
def preempted(request, programs):
    """The folder in which a process was ended while it saved step 2, and what comes after step 1."""
    how, number = request.param
    process, folder = programs[how, number]
    expected = process.stdout.readline()
    stuck = process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert stuck == "stuck\n", errors
    if (how, number) == ("sync", signal.SIGTERM):  # caught: the process ends in good order
        assert process.returncode == 1
        assert "told to end" in errors
    else:
        assert process.returncode == -number
    return folder, json.loads(expected)


def restore(manager, step, iterators):
    args = {name: CheckpointRestore(it) for name, it in iterators.items()}
    return manager.restore(step, args=ocp.args.Composite(**args, model=ocp.args.StandardRestore(MODEL)))


def test_the_last_complete_checkpoint_is_restored(preempted):
    folder, expected = preempted
    half_written = sorted(folder.glob(f"2*/*/{FILE}"))
    assert len(half_written) == 2
    with ocp.v1.training.Checkpointer(folder) as checkpointer:
        assert checkpointer.latest.step == 1
        iterators = make_iterators()
        checkpointer.load_checkpointables(None, iterators)
        assert following(iterators) == expected

    iterators = make_iterators()
    before = [it.get_state() for it in iterators.values()]
    with ocp.CheckpointManager(folder) as manager:
        assert manager.all_steps() == [1]
        assert manager.latest_step() == 1
        with pytest.raises(FileNotFoundError):
            restore(manager, 2, iterators)
        assert [it.get_state() for it in iterators.values()] == before

        found = restore(manager, None, iterators)
        np.testing.assert_array_equal(found["model"]["w"], MODEL["w"])
        assert following(iterators) == expected

        # Step 2 once more, in the place where half of it is.
        args = {name: CheckpointSave(it) for name, it in iterators.items()}
        manager.save(2, args=ocp.args.Composite(**args, model=ocp.args.StandardSave(MODEL)))
        expected = following(iterators)
        manager.wait_until_finished()
        assert manager.latest_step() == 2
    others = make_iterators()
    with ocp.CheckpointManager(folder) as manager:
        restore(manager, manager.latest_step(), others)
    assert following(others) == expected
