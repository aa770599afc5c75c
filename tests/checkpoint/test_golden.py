"""Checkpoints that Grain 0.2.18 wrote restore here and continue as they did there."""

import importlib.util
import json
from pathlib import Path

import orbax.checkpoint as ocp
import pytest

import gristmill
from gristmill.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave

GOLDEN = Path(__file__).parent / "golden"

_spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
make_golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
PIPELINES = make_golden.pipelines(gristmill)


@pytest.fixture
def pipeline(request):
    built = PIPELINES[request.param]()
    yield built
    source = getattr(built, "_source", None)
    if isinstance(source, gristmill.sources.SharedMemoryDataSource):
        source.unlink()
        source.close()


def by_checkpoint(test):
    names = [(name.rsplit("-", 1)[0], name) for name in EXPECTED]
    return pytest.mark.parametrize(("pipeline", "name"), names, indirect=["pipeline"], ids=[name for _, name in names])(test)


def following(it):
    return [make_golden.plain(element) for _, element in zip(range(make_golden.NUM_FOLLOWING), it, strict=False)]


def test_every_pipeline_has_checkpoints():
    names = [f"{name}-{position}" for name in PIPELINES for position in make_golden.POSITIONS]
    assert list(EXPECTED) == names
    assert {path.parent.name for path in GOLDEN.glob("*/process_0-of-1.json")} == set(names)
    assert all(EXPECTED[name] for name in names if not name.endswith("-end"))


@by_checkpoint
def test_the_handler_restores(pipeline, name):
    it = iter(pipeline)
    assert CheckpointHandler().restore(GOLDEN / name, item=it) is it
    assert following(it) == EXPECTED[name]
    it.close()


@by_checkpoint
def test_what_we_write_is_the_same(pipeline, name, tmp_path):
    """Apart from the form of a shared source, which in Grain shows all data and a random name."""
    it = iter(pipeline)
    CheckpointHandler().restore(str(GOLDEN / name), item=it)
    CheckpointHandler().save(tmp_path, item=it)
    ours = json.loads((tmp_path / "process_0-of-1.json").read_text())
    golden = json.loads((GOLDEN / name / "process_0-of-1.json").read_text())
    if "SharedMemoryDataSource" in str(golden):
        assert ours.pop("data_source") != golden.pop("data_source")
        assert json.dumps(ours) == json.dumps(golden)
    else:
        assert (tmp_path / "process_0-of-1.json").read_bytes() == (GOLDEN / name / "process_0-of-1.json").read_bytes()
    it.close()


@pytest.mark.parametrize("pipeline", ["loader_operations", "nested"], indirect=True)
def test_an_orbax_manager_restores(pipeline, tmp_path, request):
    """The file lies where Orbax has it for Grain; there is no description of the pipeline beside it."""
    name = request.node.callspec.params["pipeline"] + "-middle"
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=CheckpointSave(iter(pipeline)))
        manager.wait_until_finished()
        (directory,) = (path.parent for path in tmp_path.glob("1/default/process_0-of-1.json"))
        for path in directory.glob("pi*.json"):
            path.unlink()
        (directory / "process_0-of-1.json").write_bytes((GOLDEN / name / "process_0-of-1.json").read_bytes())
        it = iter(pipeline)
        assert manager.restore(1, args=CheckpointRestore(it)) is it
    assert following(it) == EXPECTED[name]
    it.close()


@pytest.mark.parametrize("pipeline", ["map_dataset", "loader_list"], indirect=True)
def test_checkpoints_of_other_pipelines_do_not_restore(pipeline):
    it = iter(pipeline)
    before = it.get_state()
    for name in ("nested-middle", "loader-middle"):
        with pytest.raises(ValueError):
            CheckpointHandler().restore(GOLDEN / name, item=it)
        assert it.get_state() == before
    it.close()
