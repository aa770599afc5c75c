"""Orbax knows our handler and our arguments in any order: each way to save, first in a process
of its own.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("orbax.checkpoint")

PROGRAM = """
import os, sys, tempfile, traceback
from pathlib import Path
import jax, numpy as np, orbax.checkpoint as ocp

def grain():
    import gristmill.python
    return gristmill.python

def composite(args):
    return ocp.args.Composite(data=args)

def checkpointer(kind, handler, wrap=lambda args: args):
    made, g = kind(handler), grain()
    def save(it):
        made.save(folder / "1", args=wrap(g.PyGrainCheckpointSave(it)))
        getattr(made, "wait_until_finished", int)()
    return save, lambda it: made.restore(folder / "1", args=wrap(g.PyGrainCheckpointRestore(it)))

def manager(**options):
    made, g = ocp.CheckpointManager(folder, **options), grain()
    def save(it):
        made.save(1, args=composite(g.PyGrainCheckpointSave(it)))
        made.wait_until_finished()
    return save, lambda it: made.restore(1, args=composite(g.PyGrainCheckpointRestore(it)))

def old_manager(handler):
    made = ocp.CheckpointManager(folder, {"data": ocp.Checkpointer(handler)})
    return lambda it: made.save(1, {"data": it}), lambda it: made.restore(1, items={"data": it})

def registry():
    found, g = ocp.handlers.DefaultCheckpointHandlerRegistry(), grain()
    handler = g.GrainCheckpointHandler()
    for args in (g.PyGrainCheckpointSave, g.PyGrainCheckpointRestore):
        found.add("data", args, handler)
    return found

def subclass():
    return type("Own", (grain().PyGrainCheckpointHandler,), {})()

def in_emergencies(module, name, options):
    import gristmill
    gristmill.install_as_grain()
    from orbax.checkpoint.experimental.emergency.p2p import (
        args,
        local,
        options as kinds,
        persistent,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, -1), ("replica", "data"))
    options = kinds.CheckpointManagerOptions(
        **{module: getattr(kinds, options)(save_interval_steps=1)}
    )
    extra = {"replica_axis_index": 0} if module == "persistent" else {}
    made = getattr(dict(local=local, persistent=persistent)[module], name)(
        folder, mesh, options=options, **extra
    )
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shape = jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding)
    g = grain()
    def save(it):
        state = ocp.args.PyTreeSave({"w": jax.device_put(np.zeros(4, np.float32), sharding)})
        made.save(1, args=args.Composite(state=state, data_iter=g.PyGrainCheckpointSave(it)))
        made.close()
    def restore(it):
        state = ocp.args.PyTreeRestore({"w": shape})
        made.restore(1, args=args.Composite(state=state, data_iter=g.PyGrainCheckpointRestore(it)))
    return save, restore

ways = {
    "checkpointer": lambda: checkpointer(ocp.Checkpointer, grain().PyGrainCheckpointHandler()),
    "checkpointer, arguments first": lambda: (
        grain().PyGrainCheckpointSave
        and checkpointer(ocp.Checkpointer, grain().PyGrainCheckpointHandler())
    ),
    "asynchronous": lambda: checkpointer(ocp.AsyncCheckpointer, grain().GrainCheckpointHandler()),
    "composite": lambda: checkpointer(
        ocp.Checkpointer,
        ocp.CompositeCheckpointHandler(data=grain().PyGrainCheckpointHandler()),
        composite,
    ),
    "asynchronous composite": lambda: checkpointer(
        ocp.AsyncCheckpointer,
        ocp.CompositeCheckpointHandler(data=grain().PyGrainCheckpointHandler()),
        composite,
    ),
    "manager": manager,
    "manager, handlers": lambda: manager(
        item_handlers={
            "data": grain().PyGrainCheckpointHandler(),
            "text": ocp.JsonCheckpointHandler(),
        }
    ),
    "manager, registry": lambda: manager(handler_registry=registry()),
    "manager, checkpointers": lambda: old_manager(grain().PyGrainCheckpointHandler()),
    "subclass": lambda: old_manager(subclass()),
    "persistent": lambda: in_emergencies(
        "persistent", "PersistentCheckpointManager", "PersistentCheckpointOptions"
    ),
    "local": lambda: in_emergencies("local", "LocalCheckpointManager", "LocalCheckpointOptions"),
}
if not (Path(ocp.__file__).parent / "experimental/emergency/p2p").exists():  # in an older Orbax
    del ways["persistent"], ways["local"]
for name, way in ways.items():
    if os.fork() == 0:
        try:
            folder = Path(tempfile.mkdtemp())
            save, restore = way()
            it, again = [iter(grain().MapDataset.range(10).to_iter_dataset()) for _ in range(2)]
            next(it), next(it)
            save(it)
            next(it)
            restore(again)
            assert next(again) == 2
        except BaseException:
            print(name, "failed", flush=True)
            traceback.print_exc()
        os._exit(0)
    os.wait()
print("done")
"""


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_every_way_first_in_a_process(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert process.stdout == "done\n", process.stdout + process.stderr
