"""Iterators in Orbax checkpoints: every way to save, every position, all names, the files on disk,
and other processes.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from golden_states import GOLDEN, GRAINS_PIPELINES, made, plain
from operations import operation
from programs import output
from refusing import assert_raises
from waiting import running, wait_until

from gristmill import DataLoader, IndexSampler, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from gristmill.transforms import Batch, FlatMap, RandomMap

v1, Composite = ocp.v1, ocp.args.Composite
FILE, PIPELINE_FILE = "process_0-of-1.json", "pipeline_0-of-1.json"
MODEL = {"w": jnp.arange(6.0).reshape(2, 3), "step": jnp.int32(5)}
# which workers would import, and JAX with it
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Source:  # numbers; makes a file, in any process, when one is read
    def __init__(self, told=None):
        self.told = told

    def __len__(self):
        return 23

    def __getitem__(self, index):
        if self.told is not None:
            self.told.touch()
        return index

    def __repr__(self):
        return "Source()"


TWICE = operation(FlatMap, "flat_map", lambda x: [x] * (x % 3), max_fan_out=2)
DRAW = operation(RandomMap, "random_map", lambda x, rng: x * 1000 + int(rng.integers(1000)))


def loader(source, *operations, num_workers=0):
    sampler = IndexSampler(len(source), shuffle=True, seed=3, num_epochs=1)
    operations, options = [*operations, DRAW, Batch(3)], ReadOptions(2, 10)
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=num_workers,
        read_options=options,
    )


def dataset(source):
    ds = (
        MapDataset.source(source)
        .shuffle(seed=3)
        .filter(lambda x: x % 5)
        .to_iter_dataset(ReadOptions(2, 10))
    )
    return ds.map_with_index(lambda i, x: 100 * i + x).random_map(DRAW, seed=1).batch(3)


MAKE = {
    "loader": loader,
    "flat_map": lambda source: loader(source, TWICE),
    "dataset": dataset,
    "loader_with_workers": lambda source: loader(source, num_workers=2),
    "dataset_with_workers": lambda source: dataset(source).mp_prefetch(MultiprocessingOptions(2)),
}


def values(it, n=None):
    return [element.tolist() for element in itertools.islice(it, n)]


def text_of(it):
    state = it.get_state()
    return state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)


# how ``CheckpointManager`` saves and restores a step: alone, as ``data``, or so with a model
class Manager:
    def __init__(self, items=(), *, is_async=True):
        self.items, self.is_async = items, is_async

    def open(self, folder):
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=self.is_async)
        return ocp.CheckpointManager(folder, options=options)

    def arguments(self, arguments, of_model):
        items = {"data": arguments, "model": of_model(MODEL)}
        return Composite(**{name: items[name] for name in self.items}) if self.items else arguments

    def save(self, manager, step, it):
        assert manager.save(step, args=self.arguments(CheckpointSave(it), ocp.args.StandardSave))
        return manager.wait_until_finished

    def restore(self, manager, step, it):
        found = manager.restore(
            step, args=self.arguments(CheckpointRestore(it), ocp.args.StandardRestore)
        )
        if "model" in self.items:
            np.testing.assert_array_equal(found.model["w"], MODEL["w"])
        assert (found.data if self.items else found) is it


class New:  # how the newer interface saves, which calls ``save`` and ``load`` of the iterator
    open = v1.training.Checkpointer

    def save(self, checkpointer, step, it):
        return checkpointer.save_checkpointables_async(
            step, {"data": it, "state": {"w": jnp.ones(3)}}
        ).result

    def restore(self, checkpointer, step, it):
        checkpointer.load_checkpointables(step, {"data": it})


WITH_MODEL = "data", "model"
WAYS = {
    "manager": Manager(is_async=False),
    "asynchronous manager": Manager(),
    "manager, with a model": Manager(WITH_MODEL, is_async=False),
    "asynchronous manager, with a model": Manager(WITH_MODEL),
    "new": New(),
}
SAVED_AND_RESTORED = [
    *WAYS.items(),
    ("new", Manager(["data"])),
    ("asynchronous manager, with a model", New()),
]


@pytest.mark.parametrize(
    ("name", "restorer", "made"),
    [(*ways, [*MAKE][i % 5]) for i, ways in enumerate(SAVED_AND_RESTORED)],
)
def test_every_way(name, restorer, made, tmp_path):
    pipeline, way = MAKE[made](Source()), WAYS[name]
    with iter(pipeline) as it, iter(pipeline) as other:
        values(it, 2)
        state = text_of(it)
        with way.open(tmp_path) as saver:
            finish = way.save(saver, 3, it)
            expected = values(it)  # at once: what is saved is the position before them
            finish()
        (file,) = tmp_path.glob(f"3/**/{FILE}")
        assert file.read_text() == state and len(expected) > 3
        assert sorted(path.name for path in file.parent.glob("p*")) == [PIPELINE_FILE, FILE]
        with restorer.open(tmp_path) as saver:
            for iterator in (other, it):
                restorer.restore(saver, 3, iterator)
                assert text_of(iterator) == state and values(iterator) == expected


@pytest.mark.parametrize("kind", [str, Path, ocp.path.atomicity.epath.Path])
def test_the_handler_alone(kind, tmp_path):
    it, handler = iter(dataset(Source())), CheckpointHandler()
    for is_async, arguments in itertools.product(
        (False, True), ({"item": it}, {"args": CheckpointSave(it)})
    ):
        if is_async:
            (pending,) = asyncio.run(handler.async_save(kind(tmp_path), **arguments))
        else:
            handler.save(kind(tmp_path), **arguments)
        state, expected = text_of(it), values(it, 1)
        if is_async:
            assert (tmp_path / FILE).read_text() != state
            pending.result()
        assert (tmp_path / FILE).read_text() == state
        assert handler.restore(kind(tmp_path), **arguments) is it
        assert values(it, 1) == expected


def children():
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        # a thread that has ended meanwhile
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(path.read_text().split())
    return found


@pytest.mark.parametrize("name", MAKE)
def test_loading_does_not_start_to_read_and_the_handler_does(name, tmp_path):
    make, told = MAKE[name], tmp_path / "told"
    v1.save_checkpointables(tmp_path / "c", {"data": iter(make(Source()))})
    threads, processes = running("gristmill-read"), children()
    with iter(make(Source(told))) as it:
        v1.load_checkpointables(tmp_path / "c", {"data": it})
        assert {*running("gristmill-read")} <= {*threads}
        assert children() <= processes
        assert not told.exists()
        CheckpointHandler().restore(tmp_path / "c" / "data", it)
        wait_until(told.exists)
        assert len(values(it)) > 3


def test_errors_of_restoring_come_through_and_change_nothing(tmp_path):
    it, other = iter(loader(Source())), iter(dataset(Source()))
    file = tmp_path / "0" / "default" / FILE
    with ocp.CheckpointManager(tmp_path) as manager:

        def check_refused(iterator, error, match):
            assert_raises(error, match, manager.restore, 0, args=CheckpointRestore(iterator))

        manager.save(0, args=CheckpointSave(it))
        manager.wait_until_finished()
        values(it, 1), values(other, 1)
        before = it.get_state(), other.get_state()
        check_refused(
            other,
            ValueError,
            "another pipeline: the last stage was 'Batch' .* and is 'BatchDatasetIterator' here",
        )
        file.with_name(PIPELINE_FILE).unlink()  # as Grain writes it
        file.write_text(file.read_text().replace("num_records=23", "num_records=24"))
        check_refused(it, ValueError, "sampler")
        file.write_text(file.read_text()[:40])
        check_refused(it, json.JSONDecodeError, None)
        file.rename(file.with_name("process_0-of-2.json"))  # another number of processes
        for iterator in (it, other):
            missing = f"File .*{FILE} does not exist"
            check_refused(iterator, ValueError, missing)
            with pytest.raises(ValueError, match=missing):
                CheckpointHandler().restore(tmp_path / "nowhere", item=iterator)
    assert (it.get_state(), other.get_state()) == before


def test_other_methods_and_iterators_with_the_three_methods(tmp_path):
    handler = CheckpointHandler()
    assert handler.structure(tmp_path) is handler.metadata(tmp_path) is None
    handler.finalize(tmp_path)
    handler.close()
    handler.close()
    assert not issubclass(CheckpointHandler, ocp.CheckpointHandler)
    for call in (handler.save, handler.restore):
        assert_raises(ValueError, "there is no iterator to save or restore", call, tmp_path)
    if hasattr(v1.handlers, "StatefulCheckpointable"):  # an older Orbax has no public name for it
        assert all(
            isinstance(iter(make(Source())), v1.handlers.StatefulCheckpointable)
            for make in (loader, dataset)
        )
    calls, state = [], "ü 3".encode()
    item = SimpleNamespace(
        get_state=lambda: state,
        set_state=calls.append,
        start_prefetch=lambda: calls.append("start"),
    )
    handler.save(tmp_path, item)
    assert (tmp_path / FILE).read_bytes() == state
    assert handler.restore(tmp_path, item) is item
    assert calls == [state, "start"]


# Checkpoints that Grain saved with Orbax restore here, and continue as they did there.
SAVED = json.loads((GOLDEN / "orbax" / "expected.json").read_text())


def restore(way, directory, it):
    if way == "directly":
        assert ocp.Checkpointer(CheckpointHandler()).restore(directory / "4", item=it) is it
    elif way == "composite":
        with ocp.CheckpointManager(directory) as manager:
            assert manager.latest_step() == 4
            found = manager.restore(
                4, args=Composite(model=ocp.args.JsonRestore(), data=CheckpointRestore(it))
            )
        assert (found["model"], found["data"]) == ({"step": 4, "weights": [0.25, -1.5]}, it)
    else:
        restorer = {"single": Manager(), "checkpointables": New()}[way]
        with restorer.open(directory) as saver:
            restorer.restore(saver, 4, it)


@pytest.mark.parametrize("saved", SAVED)
def test_what_grain_saved_with_orbax_restores(saved, tmp_path):
    way, name = saved.split("-")
    shutil.copytree(GOLDEN / "orbax" / saved, tmp_path / "saved")  # Orbax may write there
    with made(name) as pipeline, iter(pipeline) as it:
        restore(way, tmp_path / "saved", it)
        assert [plain(element) for element in it] == SAVED[saved]


def test_training_continues_in_a_directory_of_grain(tmp_path):
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


# The protocol of saving and loading, in a process that has neither JAX nor Orbax.
WITHOUT_JAX = """
    import asyncio, pathlib, sys
    sys.modules["jax"] = sys.modules["orbax"] = None  # importing them raises ImportError
    import gristmill
    import gristmill.python
    handler = gristmill.checkpoint.CheckpointHandler()

    async def run(pipeline, folder):
        class Directory:
            async def await_creation(self):
                folder.mkdir(parents=True)
                return folder

        it, other = iter(pipeline), iter(pipeline)
        start = other.get_state()
        next(it), next(it)
        write, state = await it.save(Directory()), it.get_state()
        assert next(it) == 2  # between taking the state and writing it
        assert not folder.exists()
        await write
        print([path.name for path in folder.glob("process*")])
        read = await other.load(folder)
        assert other.get_state() == start
        await read
        assert other.get_state() == state and list(other) == [2, 3, 4, 5, 6, 7, 8]
        read = await other.load(folder / "nowhere")
        try:
            await read
        except ValueError as error:
            print(error)
        handler.save(folder, it)
        assert list(handler.restore(folder, other)) == list(it) == [3, 4, 5, 6, 7, 8]

    asyncio.run(
        run(
            gristmill.load(gristmill.sources.RangeDataSource(0, 9, 1), num_epochs=1),
            pathlib.Path(sys.argv[1], "a"),
        )
    )
    asyncio.run(
        run(gristmill.MapDataset.range(9).to_iter_dataset(), pathlib.Path(sys.argv[1], "b"))
    )
    names = {gristmill.checkpoint: "", gristmill.python: "PyGrain", gristmill: "Grain"}
    for name, (place, prefix) in [
        (name, row) for name in ("CheckpointSave", "CheckpointRestore") for row in names.items()
    ]:
        try:
            getattr(place, prefix + name)
        except ImportError as error:
            print(error)
"""


def test_states_and_the_protocol_do_not_need_jax(tmp_path):
    lines = output(tmp_path, WITHOUT_JAX, tmp_path)
    for files, error, folder in zip(lines[:4:2], lines[1:4:2], "ab", strict=True):
        assert files == f"['{FILE}']"
        assert f"File {tmp_path}/{folder}/nowhere/{FILE} does not exist" in error
    reason = (
        "needs the package orbax-checkpoint, which is not installed; run: pip install"
        " 'gristmill[orbax]'"
    )
    assert lines[4:] == [
        f"gristmill.checkpoint.Checkpoint{name} {reason}" for name in ["Save"] * 3 + ["Restore"] * 3
    ]
