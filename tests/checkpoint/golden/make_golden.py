"""Writes what restores forever, and the elements that follow: states of Grain, also saved with
Orbax, and of this library.

    python make_golden.py states [pipeline ...]    grain_<release>.json, with that release of Grain,
    JAX and pyarrow python make_golden.py orbax                    the directory orbax, with Grain
    0.2.18, JAX and orbax-checkpoint python make_golden.py own [pipeline ...]
    gristmill_<version>.json, for a version that writes something else than before python
    make_golden.py data                     the files in data that pipelines read, with pyarrow and
    tests/support in PYTHONPATH

``GOLDEN_SECONDS=0.7`` lets a pipeline take longer than the 3 seconds after which Grain before
0.2.16 noted the states of workers again. What an older release cannot make is skipped. Files of
our versions that were released are never written again.
"""

import importlib.metadata
import itertools
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from golden_pipelines import own_pipelines, pipelines, plain

HERE = Path(__file__).parent
DATA, ORBAX = HERE / "data", HERE / "orbax"
NEWEST = "0.2.18"
NUM_OF_ENDLESS = 12
# What is kept of other releases: ``DataLoader`` and ``mp_prefetch``, and what looks like something
# else today.
OF_OTHERS = """
    loader loader_operations loader_shared_memory loader_endless loader_workers_3 loader_dry_worker
    loader_flat_map_workers workers_3 workers_files workers_repeated workers_noted nested mix
    interleave interleave_by_name interleave_all window_shuffle threads_2 threads_of_files
"""
SAVED = {
    "single": {"loader_operations": 2, "loader_workers_2": 3, "interleave": 5, "workers_2": 5},
    "composite": {"loader_workers_3": 4, "nested": 1},
    "checkpointables": {"loader_operations": 2, "workers_3": 5},
    "directly": {"loader_flat_map": 5, "mix": 3},
}


def positions(name, n, *, is_newest):
    """Those among ``n`` elements of which states are kept; restoring those with worker processes
    takes longest.
    """
    if not is_newest:
        return {0, 1, n // 2, n // 2 + 1, n}
    if "worker" in name:
        return {0, 1, 2, n // 2, n // 2 + 1, n - 1, n}
    if n <= 12:
        return set(range(n + 1))
    return {0, 1, 2, 3, 4, n // 3, n // 3 + 1, n // 2, n // 2 + 1, 2 * n // 3, n - 2, n - 1, n}


def follow(name, ds, state_of, *, is_newest):
    """All elements, and states by how many elements came before them; the last one is from after
    the end.
    """
    it, is_endless = iter(ds), "endless" in name
    elements, states = [], [state_of(it)]
    for element in itertools.islice(it, NUM_OF_ENDLESS) if is_endless else it:
        elements.append(plain(element))
        states.append(state_of(it))
    kept = [[i, *states[i]] for i in sorted(positions(name, len(elements), is_newest=is_newest))]
    if not is_endless:
        kept.append([len(elements), *state_of(it)])
    if hasattr(it, "close"):
        it.close()
    return {"elements": elements, "states": kept}


def write_file(path, found, header=()):
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(golden)}"
        for name, golden in {**dict(header), **found}.items()
    )
    path.write_text(f"{{\n{lines}\n}}\n")


def import_grain():
    try:
        import grain.python as old
        from absl import flags

        flags.FLAGS(sys.argv[:1])  # workers need them parsed
    except ImportError:
        old = None
    import grain

    names = {name: getattr(grain, name) for name in dir(grain)}
    if "MultiprocessingOptions" not in names and old is not None:
        names.update(MultiprocessingOptions=old.MultiprocessingOptions, ReadOptions=old.ReadOptions)
    return SimpleNamespace(**names)


def state_of_grain(it):
    state = it.get_state()
    text = state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)
    value = json.loads(text)
    assert json.dumps(value, indent=4) == text, text
    return [value]


def make_states(*names):
    release = importlib.metadata.version("grain")
    made, found, is_newest = pipelines(import_grain()), {}, release == NEWEST
    for name in names or (made if is_newest else OF_OTHERS.split()):
        try:
            found[name] = follow(name, made[name](), state_of_grain, is_newest=is_newest)
        except Exception as error:
            if is_newest:
                raise
            print(f"{name} is left out: {error!r:.100}", flush=True)
    write_file(HERE / f"grain_{release}.json", found, {"written_by": f"grain {release}"})


def save_with_orbax(way, root, it):
    import orbax.checkpoint as ocp
    from grain.checkpoint import CheckpointHandler, CheckpointSave

    if way == "directly":
        ocp.Checkpointer(CheckpointHandler()).save(root / "4", it)
    elif way == "checkpointables":
        with ocp.v1.training.Checkpointer(root) as checkpointer:
            checkpointer.save_checkpointables(4, {"data": it})
    else:
        model = ocp.args.JsonSave({"step": 4, "weights": [0.25, -1.5]})
        with ocp.CheckpointManager(root) as manager:
            args = (
                CheckpointSave(it)
                if way == "single"
                else ocp.args.Composite(model=model, data=CheckpointSave(it))
            )
            manager.save(4, args=args)


def make_orbax():
    made, expected = pipelines(import_grain()), {}
    shutil.rmtree(ORBAX, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        for way, name, num in [
            (way, name, num) for way, names in SAVED.items() for name, num in names.items()
        ]:
            it = iter(made[name]())
            for _ in range(num):
                next(it)
            save_with_orbax(way, Path(temporary) / f"{way}-{name}", it)
            expected[f"{way}-{name}"] = [
                plain(element) for element in itertools.islice(made[name](), num, None)
            ]
        # Those markers are not needed, and they have names of directories.
        shutil.copytree(temporary, ORBAX, ignore=shutil.ignore_patterns("commit_success.txt"))
    write_file(ORBAX / "expected.json", expected)


def make_own(*names):
    import gristmill

    path = HERE / f"gristmill_{gristmill.__version__}.json"
    descriptions, found = [], json.loads(path.read_text()) if names else {}

    def files(it):
        """The state and its checksum, as they are in the files of a checkpoint."""
        with tempfile.TemporaryDirectory() as directory:
            gristmill.checkpoint.CheckpointHandler().save(directory, item=it)
            paths = [Path(directory) / f"{kind}_0-of-1.json" for kind in ("process", "pipeline")]
            state, pipeline = [json.loads(path.read_text()) for path in paths]
        descriptions.append(pipeline["pipeline"])
        return [state, pipeline["state_crc32"]]

    for name, make in own_pipelines(gristmill).items():
        if names and name not in names:
            continue
        descriptions.clear()
        golden = follow(name, make(), files, is_newest=False)
        found[name] = {"pipeline": descriptions[0], **golden}
        assert all(description == descriptions[0] for description in descriptions)
    write_file(path, found, {"written_by": f"gristmill {gristmill.__version__}"})


def make_data():
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tfrecords import framed

    DATA.mkdir(exist_ok=True)
    for name, numbers in (("one", range(8)), ("two", range(20, 25))):
        table = pa.table(
            {"x": pa.array(numbers, pa.int64()), "name": pa.array([f"é{i}" for i in numbers])}
        )
        pq.write_table(table, DATA / f"{name}.parquet", row_group_size=3, compression="none")
    records = [b"one", b"", b"three\xff", b"4" * 40, b"five"]
    (DATA / "records.tfrecord").write_bytes(b"".join(map(framed, records)))


if __name__ == "__main__":
    os.chdir(HERE)
    {"states": make_states, "orbax": make_orbax, "own": make_own, "data": make_data}[sys.argv[1]](
        *sys.argv[2:]
    )
