"""States that releases of Grain wrote restore here, and continue as they did there."""

import json

import pytest
from golden_states import (
    GRAINS_PIPELINES,
    PROCESS_FILE,
    file_content,
    following,
    has_workers,
    made,
    names,
    set_state,
    written_by,
)

from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError

WRITTEN = written_by("grain")
NEWEST = "grain_0.2.18"

# Interleaved datasets came in another order before Grain 0.2.16.
INTERLEAVED = {"interleave", "interleave_by_name", "interleave_all", "threads_2", "threads_of_files", "workers_files"}
# Some steps that have no state today had one in Grain 0.2.8.
REFUSED = {
    "grain_0.2.8": INTERLEAVED | {"mix", "workers_noted"},
    "grain_0.2.12": INTERLEAVED,
    "grain_0.2.15": INTERLEAVED,
}
CASES = [(release, name) for release, found in WRITTEN.items() for name in names(found)]


def cases(*, refused):
    chosen = [(name, release) for release, name in CASES if (name in REFUSED.get(release, ())) == refused]
    ids = [f"{release}-{name}" for name, release in chosen]
    return pytest.mark.parametrize(("pipeline", "release"), chosen, indirect=["pipeline"], ids=ids)


@pytest.fixture
def pipeline(request, monkeypatch):
    yield from made(request.param, monkeypatch)


def is_same(name, state, elements, expected):
    if name == "interleave_repeated" and state["epoch"] == 1:
        # Grain says there that datasets had ended that had not, so that the next ones take their turns.
        return sorted(elements) == sorted(expected)
    return elements == expected


def test_all_that_the_newest_release_writes_is_there():
    assert names(WRITTEN[NEWEST]) == list(GRAINS_PIPELINES)
    assert list(WRITTEN) == ["grain_0.2.8", "grain_0.2.12", "grain_0.2.15", "grain_0.2.16", NEWEST]


@cases(refused=False)
def test_states_restore(pipeline, release, request, tmp_path):
    """By the handler in an iterator that was used, and in new ones, except that worker processes are kept."""
    name = request.node.callspec.params["pipeline"]
    golden = WRITTEN[release][name]
    used = iter(pipeline)
    for position, state in reversed(golden["states"]):
        expected = golden["elements"][position:]
        (tmp_path / PROCESS_FILE).write_bytes(file_content(state))
        assert CheckpointHandler().restore(tmp_path, item=used) is used
        elements = following(used, name, expected)
        assert is_same(name, state, elements, expected), f"{elements} follow state {position}, not {expected}"
        if not has_workers(name):
            with iter(GRAINS_PIPELINES[name]() if name == "elastic" else pipeline) as it:
                set_state(it, state)
                assert is_same(name, state, following(it, name, expected), expected)
    used.close()


@cases(refused=True)
def test_states_that_cannot_be_continued_are_refused(pipeline, release, request):
    name = request.node.callspec.params["pipeline"]
    with iter(pipeline) as it:
        before = it.get_state()
        for _, state in WRITTEN[release][name]["states"]:
            with pytest.raises(StateMismatchError):
                it.set_state(state)
            assert it.get_state() == before


@pytest.mark.parametrize("pipeline", GRAINS_PIPELINES, indirect=True)
def test_what_we_write_is_the_same(pipeline, request, tmp_path):
    """Apart from the source in shared memory, that in Grain shows all its data, and from what tells flat maps apart."""
    name = request.node.callspec.params["pipeline"]
    with iter(pipeline) as it:
        for _, state in WRITTEN[NEWEST][name]["states"]:
            set_state(it, state)
            CheckpointHandler().save(tmp_path, item=it)
            content = (tmp_path / PROCESS_FILE).read_bytes()
            if name == "loader_shared_memory":
                ours = json.loads(content)
                assert ours.pop("data_source") != state["data_source"]
                content = file_content({**ours, "data_source": state["data_source"]})
            elif name.startswith("loader_flat_map"):
                ours = json.loads(content)
                assert set(ours) - set(state) == {"worker_count", "sampler", "data_source"}
                content = file_content({key: ours[key] for key in state})
            assert content == file_content(state)


@pytest.mark.parametrize("pipeline", ["map_dataset", "loader_list"], indirect=True)
def test_states_of_other_pipelines_do_not_restore(pipeline):
    with iter(pipeline) as it:
        before = it.get_state()
        for name in ("nested", "loader", "workers_2", "tfrecord"):
            for _, state in WRITTEN[NEWEST][name]["states"]:
                with pytest.raises(StateMismatchError):
                    set_state(it, state)
        assert it.get_state() == before
