"""A process that is killed in the middle of a save leaves the checkpoint before it as the last one.

As a program, ``test_orbax_preemption.py FOLDER sync|async|v1``, this file saves a checkpoint and then one that is never finished.
It prints what the iterators deliver after the first one; and a line ``stuck`` when the second one waits for an item that
never comes, while the files of the iterators are there. It is meant to be ended by a signal then.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from gristmill import DataLoader, MapDataset
from gristmill.checkpoint import CheckpointRestore, CheckpointSave
from gristmill.samplers import IndexSampler
from gristmill.sources import RangeDataSource
from gristmill.transforms import Batch

FILE = "process_0-of-1.json"
MODEL = {"w": np.arange(6.0)}
PATIENCE = 100  # seconds, after which the program ends by itself


def make_iterators():
    sampler = IndexSampler(50, shuffle=True, seed=3, num_epochs=1)
    loader = DataLoader(data_source=RangeDataSource(0, 50, 1), sampler=sampler, operations=[Batch(2)])
    ds = MapDataset.range(50).shuffle(seed=3).to_iter_dataset().batch(2)
    return {"loader": iter(loader), "ds": iter(ds)}


def following(iterators, n=5):
    return [[next(it).tolist() for _ in range(n)] for it in iterators.values()]


def is_written(checkpoint):
    return len(list(checkpoint.glob(f"*/{FILE}"))) == 2


class StuckHandler(ocp.AsyncCheckpointHandler):
    """Its save is over once ``result`` returns: as when the arrays of a model take long."""

    async def async_save(self, directory, args):
        self.checkpoint = Path(directory).parent
        return [self]

    def result(self, timeout=None):
        while not is_written(self.checkpoint):
            time.sleep(0.01)
        print("stuck", flush=True)
        threading.Event().wait(PATIENCE)
        os._exit(1)

    def save(self, *args, **kwargs):
        raise NotImplementedError

    restore = save


@ocp.args.register_with_handler(StuckHandler, for_save=True, for_restore=True)
class StuckSave(ocp.args.CheckpointArgs):
    pass


class Stuck:
    """The same for Orbax's newer protocol."""

    async def save(self, directory):
        async def write():
            checkpoint = Path(await directory.await_creation()).parent
            while not is_written(checkpoint):
                await asyncio.sleep(0.01)
            print("stuck", flush=True)
            await asyncio.sleep(PATIENCE)
            os._exit(1)

        return write()

    async def load(self, directory):
        raise NotImplementedError


def save(manager, step, iterators, **more):
    items = {name: CheckpointSave(it) for name, it in iterators.items()}
    manager.save(step, args=ocp.args.Composite(**items, model=ocp.args.StandardSave(MODEL), **more))


def main(folder, how):
    if how == "sync":  # a program that ends itself when it is told to
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    iterators = make_iterators()
    following(iterators, 3)
    if how == "v1":
        with ocp.v1.training.Checkpointer(folder) as checkpointer:
            checkpointer.save_checkpointables(1, {**iterators, "model": MODEL})
            print(json.dumps(following(iterators)), flush=True)
            checkpointer.save_checkpointables(2, {**iterators, "model": MODEL, "stuck": Stuck()})
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=how == "async")
    with ocp.CheckpointManager(folder, options=options) as manager:
        save(manager, 1, iterators)
        manager.wait_until_finished()
        print(json.dumps(following(iterators)), flush=True)
        save(manager, 2, iterators, stuck=StuckSave())
        following(iterators)  # with enable_async this goes on
        manager.wait_until_finished()


CASES = [("sync", signal.SIGKILL), ("sync", signal.SIGTERM), ("async", signal.SIGTERM), ("v1", signal.SIGKILL)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program once for every case, all started at the same time: starting is what takes them long."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = {}
    for how, number in CASES:
        folder = tmp_path_factory.mktemp(how)
        command = [sys.executable, __file__, str(folder), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started[how, number] = process, folder
    yield started
    for process, _ in started.values():
        process.kill()
        process.communicate()


def restore(manager, step, iterators):
    args = {name: CheckpointRestore(it) for name, it in iterators.items()}
    return manager.restore(step, args=ocp.args.Composite(**args, model=ocp.args.StandardRestore(MODEL)))


@pytest.mark.parametrize(("how", "number"), CASES)
def test_the_last_complete_checkpoint_is_restored(how, number, programs):
    """It was ended while it saved step 2."""
    process, folder = programs[how, number]
    expected, stuck = process.stdout.readline(), process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert stuck == "stuck\n", errors
    is_caught = (how, number) == ("sync", signal.SIGTERM)  # the process ends in good order
    assert process.returncode == (1 if is_caught else -number)
    assert ("told to end" in errors) == is_caught
    expected = json.loads(expected)
    assert len(list(folder.glob(f"2*/*/{FILE}"))) == 2  # half written
    iterators = make_iterators()
    with ocp.v1.training.Checkpointer(folder) as checkpointer:
        assert checkpointer.latest.step == 1
        checkpointer.load_checkpointables(None, iterators)
        assert following(iterators) == expected

    iterators = make_iterators()
    before = [it.get_state() for it in iterators.values()]
    with ocp.CheckpointManager(folder) as manager:
        assert manager.all_steps() == [1] and manager.latest_step() == 1
        with pytest.raises(FileNotFoundError):
            restore(manager, 2, iterators)
        assert [it.get_state() for it in iterators.values()] == before
        found = restore(manager, None, iterators)
        np.testing.assert_array_equal(found["model"]["w"], MODEL["w"])
        assert following(iterators) == expected

        save(manager, 2, iterators)  # once more, in the place where half of it is
        expected = following(iterators)
        manager.wait_until_finished()
        assert manager.latest_step() == 2
    with ocp.CheckpointManager(folder) as manager:
        others = make_iterators()
        restore(manager, manager.latest_step(), others)
    assert following(others) == expected


if __name__ == "__main__":
    main(*sys.argv[1:])
