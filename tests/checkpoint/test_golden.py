"""States that Grain wrote restore and continue as they did there, those of ours for ever; and what this version writes."""

import json

import pytest
from golden_states import GRAINS_PIPELINES, OWN_PIPELINES, PIPELINE, PIPELINES, PROCESS, following, made, plain, written_by
from refusing import assert_refused

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError

GRAINS, OURS = written_by("grain"), written_by("gristmill")
WRITTEN = GRAINS | OURS
GRAIN, NEWEST = GRAINS["grain_0.2.18"], list(OURS.values())[-1]
HANDLER = CheckpointHandler()

# Interleaved datasets came in another order before Grain 0.2.16; some steps that have no state today had one in Grain 0.2.8.
INTERLEAVED = {"interleave", "interleave_by_name", "interleave_all", "threads_2", "threads_of_files", "workers_files"}
REFUSED = {**dict.fromkeys(["grain_0.2.12", "grain_0.2.15"], INTERLEAVED), "grain_0.2.8": {*INTERLEAVED, "mix", "workers_noted"}}


def written(name):
    """What each release has written of a pipeline, and which library that was; Grain's, which have no text of it, first."""
    return {release: (found[name], found["written_by"]) for release, found in WRITTEN.items() if name in found}


def file_content(state):
    return json.dumps(state, indent=4).encode()


def set_state(it, state):
    it.set_state(state if isinstance(it, gristmill.DatasetIterator) else file_content(state))


def pipeline_file(library, golden, crc32):
    return file_content({"library": library, "state_crc32": crc32, "pipeline": golden["pipeline"]})


def is_same(name, state, elements, expected):
    if name == "interleave_repeated" and state["epoch"] == 1:
        # Grain says there that datasets had ended that had not, so that the next ones take their turns.
        return sorted(elements) == sorted(expected)
    return elements == expected


def test_all_is_there():
    assert list(GRAIN) == ["written_by", *GRAINS_PIPELINES]
    assert list(GRAINS) == ["grain_0.2.8", "grain_0.2.12", "grain_0.2.15", "grain_0.2.16", "grain_0.2.18"]
    assert set(NEWEST) == {"written_by", *OWN_PIPELINES}
    for name in {*OWN_PIPELINES} & {*GRAINS_PIPELINES}:
        assert NEWEST[name]["elements"] == GRAIN[name]["elements"]
    assert sum(len(written(name)) for name in PIPELINES) == sum(len(found) - 1 for found in WRITTEN.values())
    states = [state for name in OWN_PIPELINES for _, state, _ in NEWEST[name]["states"]]
    assert max(len(json.dumps(state)) for state in states) < 1024


@pytest.mark.parametrize("name", PIPELINES)
def test_states_restore(name, tmp_path):
    """Of all releases, by the handler in an iterator that was used, and in new ones, except that worker processes are kept."""
    with made(name) as pipeline, iter(pipeline) as used:
        for release, (golden, library) in written(name).items():
            for position, state, *crc32 in reversed(golden["states"]):
                if name in REFUSED.get(release, ()):  # they cannot be continued
                    words = r"written by Grain before 0\.2\.16" if "worker" not in name and release != "grain_0.2.8" else None
                    assert_refused(used, StateMismatchError, words, state)
                    continue
                expected, case = golden["elements"][position:], (release, position)
                (tmp_path / PROCESS).write_bytes(file_content(state))
                if crc32:
                    (tmp_path / PIPELINE).write_bytes(pipeline_file(library, golden, *crc32))
                assert HANDLER.restore(tmp_path, item=used) is used
                assert is_same(name, state, following(used, name, expected), expected), case
                if "worker" not in name:
                    with iter(PIPELINES[name]() if name.startswith("elastic") else pipeline) as it:
                        HANDLER.restore(tmp_path, item=it) if crc32 else set_state(it, state)
                        assert is_same(name, state, following(it, name, expected), expected), case


@pytest.mark.parametrize("name", GRAINS_PIPELINES)
def test_what_we_write_is_what_grain_writes(name, tmp_path):
    """Apart from the source in shared memory, that in Grain shows all its data, and from what tells flat maps apart."""
    with made(name) as pipeline, iter(pipeline) as it:
        for _, state in GRAIN[name]["states"]:
            set_state(it, state)
            HANDLER.save(tmp_path, item=it)
            content = (tmp_path / PROCESS).read_bytes()
            if name == "loader_shared_memory":
                ours = json.loads(content)
                assert ours.pop("data_source") != state["data_source"]
                content = file_content({**ours, "data_source": state["data_source"]})
            elif name.startswith("loader_flat_map"):
                ours = json.loads(content)
                assert set(ours) - set(state) == {"worker_count", "sampler", "data_source"}
                content = file_content({key: ours[key] for key in state})
            assert content == file_content(state)


@pytest.mark.parametrize("name", OWN_PIPELINES)
def test_what_we_write_is_the_same(name, tmp_path):
    """Another layout needs golden states of its own (``make_golden.py own``), beside these, which must still restore."""
    golden, found = NEWEST[name], []
    with made(name) as pipeline, iter(pipeline) as it:
        for i, (position, state, crc32) in enumerate(golden["states"], 1):
            found += [plain(next(it)) for _ in range(position - len(found))]
            assert found == golden["elements"][:position]
            if i == len(golden["states"]) and "endless" not in name:
                assert next(it, "the end") == "the end"
            HANDLER.save(tmp_path, item=it)
            assert (tmp_path / PROCESS).read_bytes() == file_content(state)
            assert (tmp_path / PIPELINE).read_bytes() == pipeline_file(f"gristmill {gristmill.__version__}", golden, crc32)
