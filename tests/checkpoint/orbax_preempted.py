"""A program that saves a checkpoint, and then one that is never finished: ``orbax_preempted.py FOLDER sync|async|v1``.

It prints what the iterators deliver after the first one; and a line ``stuck`` when the second one waits for an item that
never comes, while the files of the iterators are there. It is meant to be ended by a signal then.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from gristmill import DataLoader, MapDataset
from gristmill.checkpoint import CheckpointSave
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

    def restore(self, *args, **kwargs):
        raise NotImplementedError


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


def save_classically(folder, iterators, enable_async):
    def save(step, **more):
        items = {name: CheckpointSave(it) for name, it in iterators.items()}
        manager.save(step, args=ocp.args.Composite(**items, model=ocp.args.StandardSave(MODEL), **more))

    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=enable_async)
    with ocp.CheckpointManager(folder, options=options) as manager:
        save(1)
        manager.wait_until_finished()
        print(json.dumps(following(iterators)), flush=True)
        save(2, stuck=StuckSave())
        following(iterators)  # with enable_async this goes on
        manager.wait_until_finished()


def save_newly(folder, iterators):
    with ocp.v1.training.Checkpointer(folder) as checkpointer:
        checkpointer.save_checkpointables(1, {**iterators, "model": MODEL})
        print(json.dumps(following(iterators)), flush=True)
        checkpointer.save_checkpointables(2, {**iterators, "model": MODEL, "stuck": Stuck()})


if __name__ == "__main__":
    _, folder, how = sys.argv
    if how == "sync":  # a program that ends itself when it is told to
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    iterators = make_iterators()
    following(iterators, 3)
    if how == "v1":
        save_newly(folder, iterators)
    else:
        save_classically(folder, iterators, how == "async")
