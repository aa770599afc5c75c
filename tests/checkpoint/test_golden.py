"""States that Grain wrote, old forms too, restore and continue as they did there, ours forever; and
what this version writes.
"""

import copy
import json

import pytest
from computing_ahead import Boom, Failing
from golden_states import (
    GRAINS_PIPELINES,
    OWN_PIPELINES,
    PIPELINE,
    PIPELINES,
    PROCESS,
    following,
    made,
    plain,
    written_by,
)
from refusing import assert_raises, assert_refused

import gristmill
from gristmill import MapDataset, MultiprocessingOptions
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateIndexError, StateKeyError, StateMismatchError
from gristmill.experimental import (
    ThreadPrefetchIterDataset,
    get_next_index,
    multithread_prefetch,
    set_next_index,
)

GRAINS, OURS = written_by("grain"), written_by("gristmill")
WRITTEN = GRAINS | OURS
GRAIN, NEWEST = GRAINS["grain_0.2.18"], list(OURS.values())[-1]
HANDLER = CheckpointHandler()
# as one did before
pytestmark = pytest.mark.filterwarnings("ignore:SliceMapDataset.* takes a part of shuffled")

# Interleaved datasets came in another order before Grain 0.2.16; some stages that have no state
# today had one in Grain 0.2.8.
INTERLEAVED = {
    "interleave",
    "interleave_by_name",
    "interleave_all",
    "threads_2",
    "threads_of_files",
    "workers_files",
}
REFUSED = {
    **dict.fromkeys(["grain_0.2.12", "grain_0.2.15"], INTERLEAVED),
    "grain_0.2.8": {*INTERLEAVED, "mix", "workers_noted"},
}


def written(name):
    """The states of a pipeline that each release has written, with the name of the library; those
    of Grain, which have no text, come first.
    """
    return {
        release: (found[name], found["written_by"])
        for release, found in WRITTEN.items()
        if name in found
    }


def file_content(state):
    return json.dumps(state, indent=4).encode()


def set_state(it, state):
    it.set_state(state if isinstance(it, gristmill.DatasetIterator) else file_content(state))


def pipeline_file(library, golden, crc32):
    return file_content({"library": library, "state_crc32": crc32, "pipeline": golden["pipeline"]})


def is_same(name, state, elements, expected):
    if name == "interleave_repeated" and state["epoch"] == 1:
        # Grain says there that datasets had ended that had not, so that the next ones take their
        # turns.
        return sorted(elements) == sorted(expected)
    return elements == expected


def test_all_is_there():
    assert list(GRAIN) == ["written_by", *GRAINS_PIPELINES]
    assert list(GRAINS) == [
        "grain_0.2.8",
        "grain_0.2.12",
        "grain_0.2.15",
        "grain_0.2.16",
        "grain_0.2.18",
    ]
    assert set(NEWEST) == {"written_by", *OWN_PIPELINES}
    for name in {*OWN_PIPELINES} & {*GRAINS_PIPELINES}:
        assert NEWEST[name]["elements"] == GRAIN[name]["elements"]
    assert sum(len(written(name)) for name in PIPELINES) == sum(
        len(found) - 1 for found in WRITTEN.values()
    )
    states = [state for name in OWN_PIPELINES for _, state, _ in NEWEST[name]["states"]]
    assert max(len(json.dumps(state)) for state in states) < 1024


@pytest.mark.parametrize("name", PIPELINES)
def test_states_restore(name, tmp_path):
    """Of all releases, by the handler in an iterator that was used, and in new ones, except that
    worker processes are kept.
    """
    with made(name) as pipeline, iter(pipeline) as used:
        for release, (golden, library) in written(name).items():
            for position, state, *crc32 in reversed(golden["states"]):
                if name in REFUSED.get(release, ()):  # they cannot be continued
                    words = (
                        r"written by Grain before 0\.2\.16"
                        if "worker" not in name and release != "grain_0.2.8"
                        else None
                    )
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
    """Apart from the source in shared memory, that in Grain shows all its data, and from what
    distinguishes flat maps.
    """
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
    """Another layout needs golden states of its own (``make_golden.py own``), beside these, which
    must still restore.
    """
    golden, found = NEWEST[name], []
    with made(name) as pipeline, iter(pipeline) as it:
        for i, (position, state, crc32) in enumerate(golden["states"], 1):
            found += [plain(next(it)) for _ in range(position - len(found))]
            assert found == golden["elements"][:position]
            if i == len(golden["states"]) and "endless" not in name:
                assert next(it, "the end") == "the end"
            HANDLER.save(tmp_path, item=it)
            assert (tmp_path / PROCESS).read_bytes() == file_content(state)
            assert (tmp_path / PIPELINE).read_bytes() == pipeline_file(
                f"gristmill {gristmill.__version__}", golden, crc32
            )


EVERYTHING = [0, 10, 2, 3, 5, 6, 8, 9, 11]  # of three workers


def filtered():
    return MapDataset.range(12).to_iter_dataset().filter(lambda v: v % 3 != 1 or v > 8)


MAKE = {
    "processes": lambda ds, count: ds.mp_prefetch(
        MultiprocessingOptions(count, executor="processes")
    ),
    "threads": lambda ds, count: multithread_prefetch(ds, count, 1),
    "no_threads": lambda ds, count: multithread_prefetch(ds, count, 0),
}
each_way = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def old(states, nums, last):
    return {
        "workers_state": {
            str(i): None if state is None else {"next_index": state}
            for i, state in enumerate(states)
        },
        "iterations_to_skip": {str(i): num for i, num in enumerate(nums)},
        "last_worker_index": last,
    }


def new(states, turn):
    cycle = {
        "next_index_in_cycle": turn,
        "next_index_in_datasets": 3,
        "iterators_in_use_indices": [0, 1, 2],
    }
    in_use = [{"next_index": state} for state in states]
    return {**cycle, "iterators_in_use_states": in_use, "exhausted": [0, 0, 0], "future_states": {}}


# State, the same as it is written today, and how many elements came before.
STATES = [
    (old([0, 0, 0], [0, 0, 0], -1), new([0, 0, 0], 0), 0),
    (old([None, None, None], [0, 0, 0], -1), new([0, 0, 0], 0), 0),
    (old([0, 0, 0], [1, 0, 0], 0), new([1, 0, 0], 1), 1),
    (old([0, None, 0], [1, 1, 1], 2), new([1, 4, 1], 0), 3),
    (old([1, 4, 0], [1, 0, 1], 0), new([2, 4, 1], 1), 4),
    (old([0, 0, 0], [4, 1, 4], 2), new([4, 4, 4], 0), 9),
]


@each_way
def test_states_continue_and_become_those_of_today(make):
    with iter(make(filtered(), 3)) as it:
        for state, today, position in STATES:
            given = copy.deepcopy(state)
            for form in (state, state, today):
                it.set_state(form)
                assert list(it) == EVERYTHING[position:]
            it.set_state(state)
            assert it.get_state() == it.get_state() == today
            assert list(it) == EVERYTHING[position:] and state == given
    ds = make(filtered(), 3).map_with_index(lambda i, v: (i, v)).batch(2, batch_fn=list)
    # upstream of other stages
    with iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=1)) as it:
        it.set_state({"parent": old([0, None, 0], [1, 1, 1], 2), "counter": 3})
        assert list(it) == [[(3, 3), (4, 5)], [(5, 6), (6, 8)], [(7, 9), (8, 11)]]
    with iter(make(MapDataset.range(9).to_iter_dataset(), 2)) as it:
        it.set_state(old([0, 1], [2, 0], 0))
        assert get_next_index(it) == 3
        it.set_state(old([0, 1], [2, 0], 0))
        set_next_index(it, 7)
        assert list(it) == [7, 8]


# What is in place of something in a state; without a value the key is missing.
WRONG = [
    ("last_worker_index", 3, StateMismatchError, "last_worker_index .*-1, 2., got 3"),
    ("last_worker_index", -2, StateMismatchError, "last_worker_index .*-1, 2., got -2"),
    ("last_worker_index", True, StateMismatchError, "last_worker_index .* got True"),
    ("last_worker_index", ..., StateKeyError, "last_worker_index"),
    (
        "workers_state",
        {"0": None, "1": None},
        StateMismatchError,
        "workers_state .*'0', '1', '2'.* got {'0': None, '1'",
    ),
    ("workers_state", [None] * 3, StateMismatchError, "workers_state .* got .None, None, None"),
    (
        "workers_state",
        {"0": None, "1": {"next_index": 5}, "2": None},
        StateIndexError,
        "next_index .*0, 4.* got 5",
    ),
    ("workers_state", {"0": None, "1": {"index": 0}, "2": None}, StateKeyError, "next_index"),
    (
        "iterations_to_skip",
        {"0": 0, "1": -1, "2": 0},
        StateMismatchError,
        "iterations_to_skip .* got .0, -1, 0",
    ),
    (
        "iterations_to_skip",
        {"0": 0, "1": 0, "2": 0, "3": 0},
        StateMismatchError,
        "iterations_to_skip .*'0', '1', '2'",
    ),
    ("iterations_to_skip", None, StateMismatchError, "iterations_to_skip .* got None"),
    ("iterations_to_skip", ..., StateKeyError, "iterations_to_skip"),
]


@each_way
def test_other_states_are_refused_at_once_or_later(make):
    with iter(make(filtered(), 3)) as it:
        it.set_state(old([1, 4, 0], [0, 0, 0], 0))
        for key, value, error, words in WRONG:
            state = {**old([0, 0, 0], [1, 0, 0], 0), key: value}
            if value is ...:
                del state[key]
            assert_refused(it, error, words, state)
        assert list(it) == [2, 3, 5, 6, 8, 9, 11]
        it.set_state(old([0, 0, 0], [2, 3, 1], 0))
        it.start_prefetch()
        for _ in range(2):
            state = it.get_state()
            assert state["iterations_to_skip"] == {"0": 0, "1": 2, "2": 0}
            assert_raises(
                StateMismatchError, "iterations_to_skip of worker 1 is larger by 2", next, it
            )
        for ask in (
            it.skip_failed,
            lambda: get_next_index(it),
            lambda: it.set_state(state) or next(it),
        ):
            assert_raises(StateMismatchError, "larger by 2", ask)
        it.set_state(old([0, 0, 0], [2, 1, 1], 1))
        assert list(it) == [5, 6, 8, 9, 11]
        state = old([0, 0, 0], [1, 1, 1], -1)
        it.set_state(state)
        it.close()
        assert it.get_state() == state
        assert_raises(ValueError, "closed", next, it)


def test_an_error_comes_with_next_and_not_before():
    computed = []
    it = iter(
        multithread_prefetch(
            MapDataset.range(10).to_iter_dataset().map(lambda v: computed.append(v) or v), 2, 0
        )
    )
    it.set_state(old([0, 1], [2, 0], 0))
    assert computed == [] and next(it) == 3
    assert sorted(computed) == [0, 2, 3] and get_next_index(it) == 4
    read = Failing(3)
    it = iter(
        multithread_prefetch(MapDataset.range(9).to_iter_dataset().map(read), 2, 1).map(lambda v: v)
    )
    it.set_state(old([0, 0], [2, 2], 1))
    for _ in range(2):
        assert_raises(Boom, "3", next, it)
    read.left.clear()
    it.set_state(it.get_state())
    assert list(it) == [4, 5, 6, 7, 8]
