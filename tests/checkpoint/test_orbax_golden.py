"""Checkpoints that Grain saved with Orbax restore here, and continue as they did there."""

import json
import shutil

import orbax.checkpoint as ocp
import pytest
from golden_states import GOLDEN, GRAINS_PIPELINES, made, plain

from gristmill.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave

SAVED = json.loads((GOLDEN / "orbax" / "expected.json").read_text())


def restore(way, directory, it):
    if way == "checkpointables":
        ocp.v1.load_checkpointables(directory / "4", {"data": it})
    elif way == "directly":
        assert ocp.Checkpointer(CheckpointHandler()).restore(directory / "4", item=it) is it
    else:
        with ocp.CheckpointManager(directory) as manager:
            assert manager.latest_step() == 4
            if way == "single":
                assert manager.restore(4, args=CheckpointRestore(it)) is it
            else:
                found = manager.restore(4, args=ocp.args.Composite(model=ocp.args.JsonRestore(), data=CheckpointRestore(it)))
                assert (found["model"], found["data"]) == ({"step": 4, "weights": [0.25, -1.5]}, it)


@pytest.mark.parametrize("saved", SAVED)
def test_what_grain_saved_with_orbax_restores(saved, tmp_path):
    way, name = saved.split("-")
    shutil.copytree(GOLDEN / "orbax" / saved, tmp_path / "saved")  # Orbax may write there
    with made(name) as pipeline, iter(pipeline) as it:
        restore(way, tmp_path / "saved", it)
        assert [plain(element) for element in it] == SAVED[saved]


def test_training_goes_on_in_a_directory_of_grain(tmp_path):
    directory = tmp_path / "saved"
    shutil.copytree(GOLDEN / "orbax" / "single-loader_operations", directory)
    make = GRAINS_PIPELINES["loader_operations"]
    with ocp.CheckpointManager(directory) as manager:
        it = manager.restore(4, args=CheckpointRestore(iter(make())))
        next(it)
        manager.save(5, args=CheckpointSave(it))
        manager.wait_until_finished()
        restored = manager.restore(5, args=CheckpointRestore(iter(make())))
    assert [plain(x) for x in restored] == SAVED["single-loader_operations"][1:]
