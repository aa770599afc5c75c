"""Iterators in Orbax checkpoints: all managers, all names, the files on disk, and other processes."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import gristmill
from gristmill import DataLoader, MapDataset, ReadOptions, checkpoint, python
from gristmill.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from gristmill.samplers import IndexSampler
from gristmill.sources import RangeDataSource
from gristmill.transforms import Batch, RandomMap

v1 = ocp.v1

FILE = "process_0-of-1.json"
LEGACY_NAMES = [
    (gristmill, "GrainCheckpointHandler", "GrainCheckpointSave", "GrainCheckpointRestore"),
    (gristmill, "PyGrainCheckpointHandler", "PyGrainCheckpointSave", "PyGrainCheckpointRestore"),
    (python, "GrainCheckpointHandler", "GrainCheckpointSave", "GrainCheckpointRestore"),
    (python, "PyGrainCheckpointHandler", "PyGrainCheckpointSave", "PyGrainCheckpointRestore"),
]


class Draw(RandomMap):
    def random_map(self, element, rng):
        return element * 1000 + int(rng.integers(1000))


def make_loader():
    return DataLoader(
        data_source=RangeDataSource(0, 50, 1),
        sampler=IndexSampler(50, shuffle=True, seed=3, num_epochs=2),
        operations=[Draw(), Batch(4)],
        read_options=ReadOptions(2, 10),
    )


def make_dataset():
    ds = MapDataset.range(50).seed(3).shuffle().random_map(Draw()).to_iter_dataset(ReadOptions(2, 10))
    return ds.map_with_index(lambda i, x: x + i).batch(4)


MAKERS = [make_loader, make_dataset]


@pytest.fixture(params=MAKERS, ids=["DataLoader", "IterDataset"])
def make(request):
    return request.param


def values(it, n):
    return [next(it).tolist() for _ in range(n)]


def text_of(it):
    state = it.get_state()
    return state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)


class TestManager:
    @pytest.mark.parametrize("enable_async", [False, True], ids=["sync", "async"])
    def test_save_and_restore(self, make, tmp_path, enable_async):
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=enable_async)
        it = iter(make())
        followed = {}
        with ocp.CheckpointManager(tmp_path, options=options) as manager:
            for step in range(4):
                state = text_of(it)
                assert manager.save(step, args=CheckpointSave(it), force=True)
                followed[step] = state, values(it, 2)  # at once: what is saved is the position before them
            manager.wait_until_finished()
            assert manager.all_steps() == [2, 3]
            for step in (3, 2):
                assert (tmp_path / str(step) / "default" / FILE).read_text() == followed[step][0]
                restored = iter(make())
                assert manager.restore(step, args=CheckpointRestore(restored)) is restored
                assert values(restored, 2) == followed[step][1]
                assert manager.restore(step, args=CheckpointRestore(it)) is it
                assert values(it, 2) == followed[step][1]

    @pytest.mark.parametrize("enable_async", [False, True], ids=["sync", "async"])
    def test_with_the_state_of_a_model(self, make, tmp_path, enable_async):
        model = {"w": jnp.arange(6.0).reshape(2, 3), "step": jnp.int32(5)}
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=enable_async)
        it = iter(make())
        values(it, 3)
        with ocp.CheckpointManager(tmp_path, options=options) as manager:
            manager.save(7, args=ocp.args.Composite(model=ocp.args.StandardSave(model), data=CheckpointSave(it)))
            expected = values(it, 3)
            manager.wait_until_finished()
            assert (tmp_path / "7" / "data" / FILE).exists()
            restored = iter(make())
            args = ocp.args.Composite(model=ocp.args.StandardRestore(model), data=CheckpointRestore(restored))
            found = manager.restore(7, args=args)
        assert found.data is restored
        np.testing.assert_array_equal(found.model["w"], model["w"])
        assert values(restored, 3) == expected

    def test_train_and_eval_iterators(self, tmp_path):
        train, test = iter(make_loader()), iter(make_dataset())
        values(train, 2)
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(0, args=ocp.args.Composite(train=CheckpointSave(train), test=CheckpointSave(test)))
            expected = values(train, 2), values(test, 2)
            manager.wait_until_finished()
            manager.restore(0, args=ocp.args.Composite(train=CheckpointRestore(train), test=CheckpointRestore(test)))
        assert (values(train, 2), values(test, 2)) == expected

    @pytest.mark.parametrize(("module", "handler", "save", "restore"), LEGACY_NAMES)
    def test_legacy_names(self, module, handler, save, restore, tmp_path):
        assert getattr(module, handler) is CheckpointHandler
        it = iter(make_loader())
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(0, args=getattr(module, save)(it))
            expected = values(it, 2)
            manager.wait_until_finished()
            manager.restore(0, args=getattr(module, restore)(item=it))
        assert values(it, 2) == expected

    def test_the_description_beside_it_tells_pipelines_apart(self, tmp_path):
        it = iter(make_dataset())
        values(it, 2)
        other = iter(MapDataset.range(50).seed(4).shuffle().random_map(Draw()).to_iter_dataset().map_with_index(max).batch(4))
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(0, args=CheckpointSave(it))
            manager.wait_until_finished()
            before = other.get_state()
            with pytest.raises(ValueError, match=r"belongs to another pipeline: .* of RandomMapMapDataset"):
                manager.restore(0, args=CheckpointRestore(other))
        assert other.get_state() == before

    @pytest.mark.parametrize("several", [False, True], ids=["one item", "several items"])
    def test_with_checkpointers_instead_of_arguments(self, make, tmp_path, several):
        it = iter(make())
        checkpointer = ocp.Checkpointer(CheckpointHandler())
        with ocp.CheckpointManager(tmp_path, {"data": checkpointer} if several else checkpointer) as manager:
            manager.save(0, {"data": it} if several else it)
            expected = values(it, 2)
            manager.wait_until_finished()
            manager.restore(0, {"data": it} if several else it)
        assert values(it, 2) == expected

    def test_named_handlers(self, make, tmp_path):
        it = iter(make())
        with ocp.CheckpointManager(tmp_path, item_handlers={"data": CheckpointHandler()}) as manager:
            manager.save(0, args=ocp.args.Composite(data=CheckpointSave(it)))
            expected = values(it, 2)
            manager.wait_until_finished()
            manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(it)))
        assert values(it, 2) == expected

    def test_only_some_steps_are_saved_and_kept(self, make, tmp_path):
        options = ocp.CheckpointManagerOptions(save_interval_steps=2, keep_period=4, max_to_keep=1)
        it = iter(make())
        expected = {}
        with ocp.CheckpointManager(tmp_path, options=options) as manager:
            for step in range(7):
                assert manager.save(step, args=CheckpointSave(it)) == (step % 2 == 0)
                expected[step] = values(it, 1)
            manager.wait_until_finished()
            assert manager.all_steps() == [0, 4, 6]
            for step in (4, 6, 0):
                manager.restore(step, args=CheckpointRestore(it))
                assert values(it, 1) == expected[step]

    def test_errors_of_set_state_come_through(self, tmp_path):
        it = iter(make_loader())
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(0, args=CheckpointSave(it))
            manager.wait_until_finished()
            path = tmp_path / "0" / "default" / FILE
            path.with_name("pipeline_0-of-1.json").unlink()  # as Grain writes it
            path.write_text(path.read_text().replace("num_records=50", "num_records=51"))
            values(it, 1)
            before = it.get_state()
            with pytest.raises(ValueError, match="sampler"):
                manager.restore(0, args=CheckpointRestore(it))
            path.write_text(path.read_text()[:40])
            with pytest.raises(json.JSONDecodeError):
                manager.restore(0, args=CheckpointRestore(it))
        assert it.get_state() == before

    def test_another_number_of_processes(self, make, tmp_path):
        it = iter(make())
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(0, args=CheckpointSave(it))
            manager.wait_until_finished()
            path = tmp_path / "0" / "default" / FILE
            path.rename(path.with_name("process_0-of-2.json"))
            with pytest.raises(ValueError, match=f"File .*{FILE} does not exist"):
                manager.restore(0, args=CheckpointRestore(it))

    def test_orbax_has_noted_the_handler(self, tmp_path):
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(0, args=ocp.args.Composite(data=CheckpointSave(iter(make_loader()))))
            manager.wait_until_finished()
        metadata = json.loads((tmp_path / "0" / "_CHECKPOINT_METADATA").read_text())
        assert metadata["item_handlers"] == {"data": CheckpointHandler.typestr()}


class TestCheckpointer:
    def test_positional_style(self, make, tmp_path):
        it = iter(make())
        values(it, 2)
        with ocp.Checkpointer(CheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / "c", it)
            assert (tmp_path / "c" / FILE).read_text() == text_of(it)
            expected = values(it, 2)
            restored = iter(make())
            assert checkpointer.restore(tmp_path / "c", item=restored) is restored
            assert values(restored, 2) == expected
            assert checkpointer.restore(tmp_path / "c", it) is it
            assert values(it, 2) == expected

    def test_asynchronous(self, make, tmp_path):
        it = iter(make())
        with ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(data=CheckpointHandler())) as checkpointer:
            checkpointer.save(tmp_path / "c", ocp.args.Composite(data=CheckpointSave(it)))
            expected = values(it, 2)
            checkpointer.wait_until_finished()
            checkpointer.restore(tmp_path / "c", ocp.args.Composite(data=CheckpointRestore(it)))
        assert values(it, 2) == expected

    @pytest.mark.parametrize("positional", [False, True])
    def test_asynchronous_without_a_composite(self, make, tmp_path, positional):
        it = iter(make())
        values(it, 1)
        with ocp.AsyncCheckpointer(CheckpointHandler()) as checkpointer:
            if positional:
                checkpointer.save(tmp_path / "c", it)
            else:
                checkpointer.save(tmp_path / "c", args=CheckpointSave(it))
            expected = values(it, 2)
            checkpointer.wait_until_finished()
            restored = iter(make())
            if positional:
                assert checkpointer.restore(tmp_path / "c", restored) is restored
            else:
                assert checkpointer.restore(tmp_path / "c", args=CheckpointRestore(restored)) is restored
        assert sorted(file.name for file in (tmp_path / "c").glob("p*")) == [FILE.replace("process", "pipeline"), FILE]
        assert values(restored, 2) == expected

    def test_overwriting(self, tmp_path):
        it = iter(make_loader())
        with ocp.Checkpointer(CheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / "c", it)
            values(it, 3)
            checkpointer.save(tmp_path / "c", it, force=True)
            assert (tmp_path / "c" / FILE).read_text() == text_of(it)


class TestHandler:
    @pytest.mark.parametrize("kind", [str, Path, ocp.path.atomicity.epath.Path], ids=["str", "pathlib", "epath"])
    def test_directories(self, make, tmp_path, kind):
        it = iter(make())
        values(it, 2)
        handler = CheckpointHandler()
        handler.save(kind(tmp_path), it)
        expected = values(it, 2)
        assert handler.restore(kind(tmp_path), args=CheckpointRestore(it)) is it
        assert values(it, 2) == expected
        assert (tmp_path / FILE).read_bytes() != text_of(it).encode()
        handler.save(kind(tmp_path), args=CheckpointSave(it))
        assert (tmp_path / FILE).read_bytes() == text_of(it).encode()

    def test_the_other_methods(self, tmp_path):
        handler = CheckpointHandler()
        assert handler.structure(tmp_path) is None
        assert handler.metadata(tmp_path) is None
        handler.finalize(tmp_path)
        handler.close()
        handler.close()
        assert CheckpointHandler.typestr().endswith(".CheckpointHandler")
        assert not issubclass(CheckpointHandler, ocp.CheckpointHandler)

    def test_nothing_to_save(self, tmp_path):
        for call in (CheckpointHandler().save, CheckpointHandler().restore):
            with pytest.raises(ValueError, match="there is no iterator to save or restore"):
                call(tmp_path)

    def test_missing_file(self, make, tmp_path):
        it = iter(make())
        before = it.get_state()
        with pytest.raises(ValueError, match=f"File .*{FILE} does not exist"):
            CheckpointHandler().restore(tmp_path, item=it)
        with pytest.raises(ValueError, match="does not exist"):
            CheckpointHandler().restore(tmp_path / "nowhere", item=it)
        assert it.get_state() == before

    def test_restoring_starts_to_read_ahead(self, make, tmp_path):
        CheckpointHandler().save(tmp_path, iter(make()))
        before = {thread for thread in threading.enumerate() if thread.name == "gristmill-read"}
        it = iter(make())
        CheckpointHandler().restore(tmp_path, it)
        started = {thread for thread in threading.enumerate() if thread.name == "gristmill-read"} - before
        assert started
        it.close()
        for thread in started:
            thread.join(10)
            assert not thread.is_alive()

    def test_anything_with_the_three_methods(self, tmp_path):
        class Counter:
            def __init__(self):
                self.calls = []

            def get_state(self):
                return "ü 3".encode()

            def set_state(self, state):
                self.calls.append(state)

            def start_prefetch(self):
                self.calls.append("start")

        item = Counter()
        CheckpointHandler().save(tmp_path, item)
        assert (tmp_path / FILE).read_bytes() == "ü 3".encode()
        assert CheckpointHandler().restore(tmp_path, item) is item
        assert item.calls == ["ü 3".encode(), "start"]

    def test_our_own_iterators_of_users(self, tmp_path):
        class Count(gristmill.DatasetIterator):
            def __init__(self):
                super().__init__()
                self.n = 0

            def __next__(self):
                self.n += 1
                return self.n

            def get_state(self):
                return {"n": self.n}

            def set_state(self, state):
                self.n = state["n"]

        it = Count()
        assert next(it) == 1
        CheckpointHandler().save(tmp_path, it)
        assert json.loads((tmp_path / FILE).read_text()) == {"n": 1}
        assert next(it) == 2
        CheckpointHandler().restore(tmp_path, it)
        assert next(it) == 2


class LaterDirectory:
    """What Orbax hands to ``save``: a directory that is there when awaited."""

    def __init__(self, path):
        self.path = path

    async def await_creation(self):
        self.path.mkdir()
        return self.path


class TestProtocol:
    def test_save_and_load(self, make, tmp_path):
        async def run():
            it = iter(make())
            values(it, 2)
            write = await it.save(LaterDirectory(tmp_path / "c"))
            saved = text_of(it)
            expected = values(it, 2)  # between taking the state and writing it
            assert not (tmp_path / "c").exists()
            await write
            assert (tmp_path / "c" / FILE).read_text() == saved
            restored = iter(make())
            read = await restored.load(tmp_path / "c")
            assert restored.get_state() == iter(make()).get_state()
            await read
            assert values(restored, 2) == expected

        asyncio.run(run())

    def test_missing_file(self, make, tmp_path):
        async def run():
            it = iter(make())
            read = await it.load(tmp_path)
            with pytest.raises(ValueError, match=f"File .*{FILE} does not exist"):
                await read

        asyncio.run(run())

    @pytest.mark.skipif(
        not hasattr(v1.handlers, "StatefulCheckpointable"), reason="this Orbax has no public name for the protocol"
    )
    def test_isinstance(self, make):
        assert isinstance(iter(make()), v1.handlers.StatefulCheckpointable)

    def test_v1_functions(self, make, tmp_path):
        it = iter(make())
        values(it, 2)
        v1.save_checkpointables(tmp_path / "c", {"data": it, "state": {"w": jnp.ones(3)}})
        assert (tmp_path / "c" / "data" / FILE).read_text() == text_of(it)
        expected = values(it, 2)
        restored = iter(make())
        v1.load_checkpointables(tmp_path / "c", {"data": restored, "state": {"w": np.zeros(3)}})
        assert values(restored, 2) == expected

    def test_v1_asynchronously(self, make, tmp_path):
        it = iter(make())
        response = v1.save_checkpointables_async(tmp_path / "c", {"data": it})
        expected = values(it, 2)
        response.result()
        v1.load_checkpointables(tmp_path / "c", {"data": it})
        assert values(it, 2) == expected

    def test_v1_checkpointer(self, make, tmp_path):
        it = iter(make())
        values(it, 1)
        with v1.training.Checkpointer(tmp_path) as checkpointer:
            checkpointer.save_checkpointables(3, {"it": it})
            expected = values(it, 2)
            checkpointer.load_checkpointables(3, {"it": it})
        assert (tmp_path / "3" / "it" / FILE).exists()
        assert values(it, 2) == expected

    def test_v1_keeps_the_latest(self, make, tmp_path):
        it = iter(make())
        policy = v1.training.preservation_policies.LatestN(2)
        with v1.training.Checkpointer(tmp_path, preservation_policy=policy) as checkpointer:
            expected = {}
            for step in range(4):
                checkpointer.save_checkpointables(step, {"it": it})
                expected[step] = values(it, 2)
            assert [found.step for found in checkpointer.checkpoints] == [2, 3]
            for step in (2, 3, 2):
                checkpointer.load_checkpointables(step, {"it": it})
                assert values(it, 2) == expected[step]

    def test_v0_reads_v1(self, make, tmp_path):
        it = iter(make())
        values(it, 1)
        with v1.training.Checkpointer(tmp_path) as checkpointer:
            checkpointer.save_checkpointables(3, {"it": it})
        expected = values(it, 2)
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.restore(3, args=ocp.args.Composite(it=CheckpointRestore(it)))
        assert values(it, 2) == expected

    @pytest.mark.parametrize("key", ["default", "data"])
    def test_v1_reads_v0(self, make, tmp_path, key):
        it = iter(make())
        values(it, 1)
        with ocp.CheckpointManager(tmp_path) as manager:
            args = CheckpointSave(it) if key == "default" else ocp.args.Composite(**{key: CheckpointSave(it)})
            manager.save(3, args=args)
            manager.wait_until_finished()
        expected = values(it, 2)
        v1.load_checkpointables(tmp_path / "3", {key: it})
        assert values(it, 2) == expected


def in_fresh_process(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_process_continues(tmp_path):
    code = """
        import sys
        import orbax.checkpoint as ocp
        import gristmill.python as grain
        class Draw(grain.RandomMapTransform):
            def random_map(self, element, rng):
                return element * 1000 + int(rng.integers(1000))
        loader = grain.DataLoader(
            data_source=grain.RangeDataSource(0, 50, 1),
            sampler=grain.IndexSampler(50, shuffle=True, seed=3, num_epochs=2),
            operations=[Draw(), grain.BatchTransform(4)],
        )
        ds = grain.MapDataset.range(50).seed(3).shuffle().random_map(Draw()).to_iter_dataset().batch(4)
        its = iter(loader), iter(ds)
        with ocp.CheckpointManager(sys.argv[1]) as manager:
            Args = grain.PyGrainCheckpointSave if sys.argv[2] == "save" else grain.PyGrainCheckpointRestore
            if sys.argv[2] == "save":
                for it in its:
                    next(it), next(it), next(it)
            act = manager.save if sys.argv[2] == "save" else manager.restore
            act(5, args=ocp.args.Composite(loader=Args(its[0]), ds=Args(its[1])))
            print([[x.tolist() for x in it] for it in its])
    """
    expected = in_fresh_process(code, tmp_path, "save")
    assert in_fresh_process(code, tmp_path, "restore") == expected
    assert "[[[" in expected


def test_states_do_not_need_jax(tmp_path):
    """The protocol of saving and loading, in a process that has neither JAX nor Orbax."""
    code = """
        import asyncio, pathlib, sys
        sys.modules["jax"] = sys.modules["orbax"] = None  # importing them raises ImportError
        import gristmill
        class Directory:
            async def await_creation(self):
                return pathlib.Path(sys.argv[1])
        loader = gristmill.load(gristmill.sources.RangeDataSource(0, 9, 1), num_epochs=1)
        ds = gristmill.MapDataset.range(9).to_iter_dataset()
        async def run():
            for pipeline in (loader, ds):
                it = iter(pipeline)
                next(it), next(it)
                await (await it.save(Directory()))
                print([path.name for path in sorted(pathlib.Path(sys.argv[1]).glob("pro*"))])
                other = iter(pipeline)
                await (await other.load(pathlib.Path(sys.argv[1])))
                assert list(other) == list(it) == [2, 3, 4, 5, 6, 7, 8]
                gristmill.checkpoint.CheckpointHandler().save(sys.argv[1], it)
                gristmill.checkpoint.CheckpointHandler().restore(sys.argv[1], other)
                assert list(other) == []
        asyncio.run(run())
        for name in ("CheckpointSave", "CheckpointRestore"):
            try:
                getattr(gristmill.checkpoint, name)
            except ImportError as error:
                print(error)
    """
    lines = in_fresh_process(code, tmp_path).splitlines()
    assert lines[:2] == [f"['{FILE}']"] * 2
    for line, name in zip(lines[2:], ("CheckpointSave", "CheckpointRestore"), strict=True):
        assert line == (
            f"gristmill.checkpoint.{name} needs the package orbax-checkpoint, which is not installed; "
            "run: pip install 'gristmill[orbax]'"
        )


def test_names_that_do_not_exist():
    with pytest.raises(AttributeError, match="CheckpointManager"):
        checkpoint.CheckpointManager  # noqa: B018


def test_a_checkpoint_can_be_moved(make, tmp_path):
    it = iter(make())
    values(it, 2)
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=CheckpointSave(it))
        manager.wait_until_finished()
    shutil.move(tmp_path / "a", tmp_path / "b")
    expected = values(it, 2)
    with ocp.CheckpointManager(tmp_path / "b") as manager:
        manager.restore(manager.latest_step(), args=CheckpointRestore(it))
    assert values(it, 2) == expected
