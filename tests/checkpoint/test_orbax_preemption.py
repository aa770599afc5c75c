"""A process that is killed in the middle of a save leaves the checkpoint before it as the last one.

As a program, with FOLDER sync|async|v1, this file saves a checkpoint, prints what the iterators
deliver then, and kills itself in the next one, when the files of the iterators are there.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from gristmill import Batch, DataLoader, IndexSampler, MapDataset, RangeDataSource
from gristmill.checkpoint import CheckpointRestore, CheckpointSave

FILE = "process_0-of-1.json"
MODEL = {"w": np.arange(6.0)}


def make_iterators():
    sampler = IndexSampler(50, shuffle=True, seed=3, num_epochs=1)
    loader = DataLoader(
        data_source=RangeDataSource(0, 50, 1), sampler=sampler, operations=[Batch(2)]
    )
    ds = MapDataset.range(50).shuffle(seed=3).to_iter_dataset().batch(2)
    return {"loader": iter(loader), "ds": iter(ds)}


def following(iterators, n=5):
    return [[next(it).tolist() for _ in range(n)] for it in iterators.values()]


def die_when_written(checkpoint):
    while len(list(checkpoint.glob(f"*/{FILE}"))) < 2:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """Its save would be over once ``result`` returns, as when the arrays of a model take long; and
    so in the newer protocol.
    """

    async def async_save(self, directory, args):
        self.checkpoint = Path(directory).parent
        return [self]

    def result(self, timeout=None):
        die_when_written(self.checkpoint)

    async def save(self, directory):
        async def write():
            await asyncio.to_thread(die_when_written, Path(await directory.await_creation()).parent)

        return write()

    async def load(self, directory):  # Orbax asks for the method
        raise AssertionError("the process is killed while it saves, and never restores")


class DyingHandler(Dying, ocp.AsyncCheckpointHandler):
    def restore(self, directory, args):  # as ``load``
        raise AssertionError("the process is killed while it saves, and never restores")


@ocp.args.register_with_handler(DyingHandler, for_save=True, for_restore=True)
class DyingSave(ocp.args.CheckpointArgs):
    pass


def save(manager, step, iterators, **more):
    items = {name: CheckpointSave(it) for name, it in iterators.items()}
    manager.save(step, args=ocp.args.Composite(**items, model=ocp.args.StandardSave(MODEL), **more))


def main(folder, how):
    iterators = make_iterators()
    following(iterators, 3)
    if how == "v1":
        with ocp.v1.training.Checkpointer(folder) as checkpointer:
            checkpointer.save_checkpointables(1, {**iterators, "model": MODEL})
            print(json.dumps(following(iterators)), flush=True)
            checkpointer.save_checkpointables(2, {**iterators, "model": MODEL, "dying": Dying()})
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=how == "async")
    with ocp.CheckpointManager(folder, options=options) as manager:
        save(manager, 1, iterators)
        manager.wait_until_finished()
        print(json.dumps(following(iterators)), flush=True)
        save(manager, 2, iterators, dying=DyingSave())
        manager.wait_until_finished()


def restore(manager, step, iterators):
    args = {name: CheckpointRestore(it) for name, it in iterators.items()}
    return manager.restore(
        step, args=ocp.args.Composite(**args, model=ocp.args.StandardRestore(MODEL))
    )


@pytest.mark.slow
def test_the_last_complete_checkpoint_is_restored(tmp_path):
    """All are started at the same time: starting is what takes them long."""
    environment, programs = {**os.environ, "JAX_PLATFORMS": "cpu"}, {}
    for how in ("sync", "async", "v1"):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        programs[how] = subprocess.Popen(
            [sys.executable, __file__, tmp_path / how, how], env=environment, **streams
        )
    for how, process in programs.items():
        output, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, errors
        check_restored(tmp_path / how, json.loads(output))


def check_restored(folder, expected):
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
