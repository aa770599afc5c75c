"""What earlier versions of ours saved restores for ever, and what this one saves is noticed when it changes."""

import json

import pytest
from golden_states import (
    GRAINS_PIPELINES,
    OWN_PIPELINES,
    PIPELINE_FILE,
    PROCESS_FILE,
    file_content,
    following,
    has_workers,
    made,
    names,
    plain,
    written_by,
)

import gristmill
from gristmill.checkpoint import CheckpointHandler

WRITTEN = written_by("gristmill")
NEWEST = list(WRITTEN)[-1]
CASES = [(name, version) for version, found in WRITTEN.items() for name in names(found)]


@pytest.fixture
def pipeline(request, monkeypatch):
    yield from made(request.param, monkeypatch)


def pipeline_file(library, description, crc32):
    return {"library": library, "state_crc32": crc32, "pipeline": description}


def test_all_pipelines_are_there():
    assert set(names(WRITTEN[NEWEST])) == set(OWN_PIPELINES)


@pytest.mark.parametrize(
    ("pipeline", "version"), CASES, indirect=["pipeline"], ids=[f"{version}-{name}" for name, version in CASES]
)
def test_checkpoints_restore(pipeline, version, request, tmp_path):
    name = request.node.callspec.params["pipeline"]
    golden, library = WRITTEN[version][name], WRITTEN[version]["written_by"]
    used = iter(pipeline)
    for position, state, crc32 in reversed(golden["states"]):
        (tmp_path / PROCESS_FILE).write_bytes(file_content(state))
        (tmp_path / PIPELINE_FILE).write_bytes(file_content(pipeline_file(library, golden["pipeline"], crc32)))
        expected = golden["elements"][position:]
        for it in [used] if has_workers(name) else [used, iter(OWN_PIPELINES[name]())]:
            assert CheckpointHandler().restore(tmp_path, item=it) is it
            elements = following(it, name, expected)
            assert elements == expected, f"{elements} follow state {position}, not {expected}"
    used.close()


@pytest.mark.parametrize("pipeline", OWN_PIPELINES, indirect=True)
def test_what_we_write_is_the_same(pipeline, request, tmp_path):
    """Another layout needs golden states of its own (``make_own_golden.py``), beside these, which must still restore."""
    name = request.node.callspec.params["pipeline"]
    golden, library = WRITTEN[NEWEST][name], f"gristmill {gristmill.__version__}"
    it = iter(pipeline)
    num_taken = 0
    for i, (position, state, crc32) in enumerate(golden["states"]):
        while num_taken < position:
            assert plain(next(it)) == golden["elements"][num_taken]
            num_taken += 1
        if i == len(golden["states"]) - 1 and "endless" not in name:
            assert next(it, "the end") == "the end"
        CheckpointHandler().save(tmp_path, item=it)
        assert (tmp_path / PROCESS_FILE).read_bytes() == file_content(state)
        expected = pipeline_file(library, golden["pipeline"], crc32)
        assert (tmp_path / PIPELINE_FILE).read_bytes() == file_content(expected)
    it.close()


@pytest.mark.parametrize("name", [name for name in OWN_PIPELINES if name in GRAINS_PIPELINES])
def test_elements_are_those_of_grain(name):
    (grains,) = [found for release, found in written_by("grain").items() if release == "grain_0.2.18"]
    assert WRITTEN[NEWEST][name]["elements"] == grains[name]["elements"]


def test_checkpoints_are_small():
    for name in names(WRITTEN[NEWEST]):
        for _, state, _ in WRITTEN[NEWEST][name]["states"]:
            assert len(json.dumps(state)) < 1024
