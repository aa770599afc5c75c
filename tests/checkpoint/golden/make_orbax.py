"""Writes the directory ``orbax``: checkpoints that Grain 0.2.18 saved with Orbax. They restore for ever.

Run as ``python make_orbax.py`` in an environment with Grain 0.2.18, JAX and orbax-checkpoint.
"""

import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path

import grain
import orbax.checkpoint as ocp
from absl import flags
from golden_pipelines import pipelines, plain

HERE = Path(__file__).parent
ORBAX = HERE / "orbax"
MODEL = {"step": 4, "weights": [0.25, -1.5]}


def advanced(make, num):
    it = iter(make())
    for _ in itertools.islice(it, num):
        pass
    return it


def save_single(root, it):
    with ocp.CheckpointManager(root) as manager:
        manager.save(4, args=grain.checkpoint.CheckpointSave(it))


def save_composite(root, it):
    with ocp.CheckpointManager(root) as manager:
        args = ocp.args.Composite(model=ocp.args.JsonSave(MODEL), data=grain.checkpoint.CheckpointSave(it))
        manager.save(4, args=args)


def save_checkpointables(root, it):
    with ocp.v1.training.Checkpointer(root) as checkpointer:
        checkpointer.save_checkpointables(4, {"data": it})


def save_directly(root, it):
    ocp.Checkpointer(grain.checkpoint.CheckpointHandler()).save(root / "4", it)


SAVED = [
    ("single", save_single, {"loader_operations": 2, "loader_workers_2": 3, "interleave": 5, "workers_2": 5}),
    ("composite", save_composite, {"loader_workers_3": 4, "nested": 1}),
    ("checkpointables", save_checkpointables, {"loader_operations": 2, "workers_3": 5}),
    ("directly", save_directly, {"loader_flat_map": 5, "mix": 3}),
]


def main():
    flags.FLAGS(["make_orbax.py"])
    os.chdir(HERE)
    shutil.rmtree(ORBAX, ignore_errors=True)
    made = pipelines(grain)
    expected = {}
    with tempfile.TemporaryDirectory() as temporary:
        for way, save, names in SAVED:
            for name, num in names.items():
                save(Path(temporary) / f"{way}-{name}", advanced(made[name], num))
                expected[f"{way}-{name}"] = [plain(element) for element in itertools.islice(made[name](), num, None)]
        # Nobody needs those markers, and they have names of directories.
        shutil.copytree(temporary, ORBAX, ignore=shutil.ignore_patterns("commit_success.txt"))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(elements)}" for name, elements in expected.items())
    (ORBAX / "expected.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
