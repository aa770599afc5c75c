"""Wrong and damaged states: refused with one typed error, the iterator as it was; or they are states, and continue as such."""

import copy
import functools
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from state_damage import HOSTILE, as_json, damaged, damaged_text, is_harmless, part, places

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from entry import IterEntry, plain
from stage_table import ITER_ENTRIES, MAP_ENTRIES

import gristmill
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.experimental import FlatMapTransform
from gristmill.sources.crc32c import masked_crc32c

PIPELINES = {
    **{entry.name: entry.make for entry in ITER_ENTRIES},
    **{f"map_{entry.name}": lambda entry=entry: entry.make().to_iter_dataset() for entry in MAP_ENTRIES},
}
VARYING = {entry.name for entry in ITER_ENTRIES if isinstance(entry, IterEntry) and entry.states_vary}
MANY = 60  # more elements than any of them has
NUM_DAMAGED = 8  # states for each pipeline
SLOW = ("mp_prefetch", "parquet_workers", "map_mix_without_table")  # processes, or long tables
each_pipeline = pytest.mark.parametrize("name", PIPELINES)


@functools.cache
def states_of(name):
    """The states before, between and after all elements."""
    it = iter(PIPELINES[name]())
    return [as_json(it.get_state()), *[as_json(it.get_state()) for _ in it]]


@functools.cache
def states_of_others():
    return [states_of(name)[len(states_of(name)) // 2] for name in PIPELINES]


def check_is_json(state):
    json.dumps(json.loads(state) if isinstance(state, bytes) else state, allow_nan=False)


def continued(it):
    """The next elements, and what came then: the end, or that it goes on, or the refusal of a state that came to light."""
    elements = []
    try:
        while len(elements) < MANY:
            check_is_json(it.get_state())
            try:
                elements.append(plain(next(it)))
            except StopIteration:
                return elements, "the end"
    except StateMismatchError as refusal:
        assert is_harmless(str(refusal)), str(refusal)[:3000]
        return elements, str(refusal)
    except ValueError as error:  # two streams of which each could be where it is, but not both
        assert "ZipIterDataset" in str(error)
        return elements, str(error)
    return elements, "more"


def continued_briefly(it):
    """That a state which was taken is refused later, if at all, in words that may be shown."""
    try:
        check_is_json(it.get_state())
        next(it, None)
    except StateMismatchError as refusal:
        assert is_harmless(str(refusal)), str(refusal)[:3000]
    except ValueError as error:
        assert "ZipIterDataset" in str(error)


def refuses(it, state):
    """Whether ``it`` refuses ``state``; then it says what is wrong and with whom, and nothing has changed."""
    before = it.get_state()
    try:
        it.set_state(copy.deepcopy(state))
    except StateMismatchError as refusal:
        assert type(refusal).__module__ == "gristmill.core.errors"
        assert "Iterator" in str(refusal) or "DataLoader" in str(refusal)
        assert is_harmless(str(refusal)), str(refusal)[:3000]
        assert it.get_state() == before
        return True
    return False


def check_refused_or_a_state(make, it, state):
    """``it`` either refuses ``state``, or continues from it as a new iterator does from the state that it says it is at."""
    if refuses(it, state):
        return True
    given = it.get_state()
    got = continued(it)
    again = iter(make())
    again.set_state(json.loads(json.dumps(given)) if isinstance(given, dict) else given)
    assert continued(again)[0] == got[0]
    return False


@each_pipeline
def test_a_damaged_state_is_refused_or_one_to_continue_from(name):
    make, states, others = PIPELINES[name], states_of(name), states_of_others()
    rng = random.Random(name)
    it = iter(make())
    for _ in range(2 if name in SLOW else NUM_DAMAGED):
        if name in VARYING:  # what it has in memory decides what becomes of a state that cannot be
            it = iter(make())
        state = rng.choice(states)
        it.set_state(state)
        if check_refused_or_a_state(make, it, damaged(state, rng, others)):
            undisturbed = iter(make())
            undisturbed.set_state(state)
            assert continued(it) == continued(undisturbed)


@each_pipeline
def test_what_is_hostile_anywhere_in_a_state_does_not_come_back_in_a_message(name):
    make, states = PIPELINES[name], states_of(name)
    state = states[len(states) // 2]
    it, rng = iter(make()), random.Random(name)
    for path in places(state):
        for hostile in rng.sample(HOSTILE, 1 if name in SLOW else 4):
            changed = copy.deepcopy(state)
            if path:
                part(changed, path[:-1])[path[-1]] = hostile
            if refuses(it, changed if path else hostile):
                continue
            continued_briefly(it)
            it = iter(make())


OLD = [
    {
        "workers_state": {"0": {"next_index": 4}, "1": None},
        "iterations_to_skip": {"0": 1, "1": 2},
        "last_worker_index": 0,
    },
    {
        "prefetch_ds_iter_states": [{"next_index": 4}, None],
        "next_index_in_datasets": 2,
        "next_index_in_cycle": 0,
        "iterators_in_use_indices": [0, 1],
    },
]


@pytest.mark.parametrize("name", ["multithread_prefetch", "multithread_prefetch_0", "interleave", "repeat_shares"])
def test_a_damaged_state_of_an_old_form(name):
    rng = random.Random(name)
    it = iter(PIPELINES[name]())
    for _ in range(60):
        it.set_state(states_of(name)[1])
        check_refused_or_a_state(PIPELINES[name], it, damaged(rng.choice(OLD), rng, states_of_others()))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
def test_many_damaged_states(seed):
    others = states_of_others()
    for name, make in PIPELINES.items():
        rng = random.Random(f"{name} {seed}")
        it = iter(make())
        for _ in range(25):
            if name in VARYING:
                it = iter(make())
            it.set_state(rng.choice(states_of(name)))
            check_refused_or_a_state(make, it, damaged(rng.choice(states_of(name)), rng, others))


def with_numpy(state):
    if isinstance(state, dict):
        return {key: with_numpy(value) for key, value in state.items()}
    if isinstance(state, list):
        return [with_numpy(value) for value in state]
    return {int: np.int64, bool: np.bool_}.get(type(state), lambda value: value)(state)


@each_pipeline
def test_numbers_of_numpy_are_taken_and_come_back_as_plain_ones(name):
    for state in states_of(name)[1 : 2 if name in SLOW else None : 2]:
        it, other = iter(PIPELINES[name]()), iter(PIPELINES[name]())
        it.set_state(with_numpy(state))
        assert json.loads(json.dumps(it.get_state())) == state
        other.set_state(state)
        assert continued(it) == continued(other)


def is_used(state, path):
    """Whether that part of ``state`` says anything: not if it is about a dataset that has ended."""
    for i, key in enumerate(path[:-1]):
        if key == "iterators_in_use_states" and part(state, path[:i])["exhausted"][path[i + 1]]:
            return False
    return True


@each_pipeline
def test_other_kinds_of_numbers_are_refused_by_name(name):
    states = states_of(name)
    for state in {0: states[0], 1: states[len(states) // 2], 2: states[-1]}.values():
        it = iter(PIPELINES[name]())
        for path in places(state):
            value = part(state, path)
            if type(value) not in (int, bool) or not is_used(state, path):
                continue
            for wrong in (float(value), value + 0.5, str(value), [value], None, value if type(value) is bool else value == 1):
                if type(wrong) is type(value):
                    wrong = int(value)
                if type(wrong) is bool and "exhausted" in path:  # as Grain has it in some releases
                    continue
                changed = copy.deepcopy(state)
                part(changed, path[:-1])[path[-1]] = wrong
                with pytest.raises(StateMismatchError) as refusal:
                    it.set_state(changed)
                assert repr(wrong) in str(refusal.value), path
                assert "Iterator" in str(refusal.value), path


def test_a_state_can_be_nested_too_deeply():
    deep = []
    for _ in range(3000):
        deep = [deep]
    for name in ("direct", "cache", "rebatch", "iter_mix", "interleave", "repeat_shares", "concat_then_split", "zip"):
        it = iter(PIPELINES[name]())
        state = as_json(it.get_state())
        for wrong in (deep, *[{**state, key: deep} for key in state]):
            with pytest.raises(StateMismatchError):
                it.set_state(wrong)
            assert it.get_state() == state


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("with_checksums", [True, False])
def test_a_state_between_two_records_of_a_file_is_refused_when_it_is_read(tmp_path, check_crc, compression, with_checksums):
    import gzip
    import struct

    records = [b"a" * 30, b"", b"b" * 7]
    data, begins = b"", [0]
    for record in records:
        header = struct.pack("<Q", len(record))
        checksums = [struct.pack("<I", int(crc) if with_checksums else 0) for crc in masked_crc32c([header, record])]
        data += header + checksums[0] + record + checksums[1]
        begins.append(len(data))
    if check_crc and not with_checksums:
        return
    path = tmp_path / "records"
    path.write_bytes(data if compression is None else gzip.compress(data))
    ds = TFRecordIterDataset(path, check_crc=check_crc, compression=compression)
    for offset in [*range(begins[-1] + 40), 2**40, sys.maxsize]:
        it = iter(ds)
        it.set_state({"reader_offset": offset})
        if offset in begins:
            assert list(it) == records[begins.index(offset) :]
            continue
        for _ in range(2):
            with pytest.raises(StateIndexError, match=f"reader_offset must be .*got {offset}"):
                next(it)
            assert it.get_state() == {"reader_offset": offset}
        with pytest.raises(StateIndexError):
            it.skip_failed()
        it.set_state({"reader_offset": begins[2]})
        assert list(it) == records[2:]
        assert refuses(it, {"reader_offset": sys.maxsize + 1})


class Fan(FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, element):
        return [element] * (element % 4)


class Double(gristmill.transforms.Map):
    def map(self, element):
        return 2 * element


def loader(num_workers=0, *operations, shuffle=True, **options):
    sampler = gristmill.samplers.IndexSampler(9, shuffle=shuffle, num_epochs=2, seed=1)
    operations = operations or (Double(), gristmill.transforms.Batch(2))
    return gristmill.DataLoader(data_source=range(9), sampler=sampler, operations=operations, worker_count=num_workers, **options)


LOADERS = {
    "direct": loader,
    "fan": lambda: loader(0, Fan()),
    "sharded": lambda: loader(0, shard_options=gristmill.sharding.ShardOptions(1, 2)),
    "workers": lambda: loader(2),
    "fan, workers": lambda: loader(2, Fan()),
}


@pytest.fixture
def opened():
    """``iter`` of loaders that are closed at the end."""
    iterators = []

    def opened(ds):
        iterators.append(iter(ds))
        return iterators[-1]

    yield opened
    for it in iterators:
        it.close()


@functools.cache
def loader_states(name):
    """Three states of a loader, one of them that before the first element."""
    with iter(LOADERS[name]()) as it:
        states = [it.get_state()]
        for _ in range(2):
            next(it)
            states.append(it.get_state())
    return states


@pytest.mark.parametrize("name", ["direct", "fan", "sharded"])
def test_a_damaged_state_of_a_loader(name, opened):
    make, states = LOADERS[name], loader_states(name)
    others = [json.loads(state) for other in ("direct", "fan", "sharded") for state in loader_states(other)] + states_of_others()[
        :20
    ]
    rng = random.Random(name)
    it = opened(make())
    for i in range(300):
        state = rng.choice(states)
        it.set_state(state)
        wrong = damaged_text(state, rng) if i % 2 else damaged(json.loads(state), rng, others)
        if check_refused_or_a_state(make, it, wrong):
            assert it.get_state() == state
            undisturbed = opened(make())
            undisturbed.set_state(state)
            assert continued(it) == continued(undisturbed)


NO_JSON = [b"", b"{", b"\xff\xfe\xfa", b"\x80", b"{\0", b"nul", b"[" * 10**5, b"1" * 5000, "", "{", "\ufeff{}"]


@pytest.mark.parametrize("name", LOADERS)
def test_text_that_is_no_state(name, opened):
    it = opened(LOADERS[name]())
    before = it.get_state()
    for text in NO_JSON:
        with pytest.raises(StateMismatchError, match="the state of a DataLoader must be JSON text") as refusal:
            it.set_state(text)
        assert isinstance(refusal.value, json.JSONDecodeError)
        assert it.get_state() == before
    for value in (None, 3, 1.5, "x", [], [1], {}, True, float("nan")):
        assert refuses(it, value)
        assert refuses(it, json.dumps(value).encode())


@pytest.mark.parametrize("name", ["workers", "fan, workers"])
def test_a_damaged_state_of_a_loader_with_workers_changes_nothing(name, opened):
    """No worker is started for it."""
    it = opened(LOADERS[name]())
    state, rng = it.get_state(), random.Random(name)
    refused = 0
    for i in range(100):
        it.set_state(state)
        wrong = damaged_text(state, rng) if i % 2 else damaged(json.loads(state), rng, states_of_others())
        refused += refuses(it, wrong)
    assert refused > 50


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["workers", "fan, workers"])
def test_a_damaged_state_of_a_loader_with_workers(name, opened):
    make, states, rng = LOADERS[name], loader_states(name), random.Random(name)
    it = opened(make())
    for i in range(30):
        state = rng.choice(states)
        it.set_state(state)
        wrong = damaged_text(state, rng) if i % 2 else damaged(json.loads(state), rng, states_of_others())
        if refuses(it, wrong):
            assert it.get_state() == state
        else:
            given, got = it.get_state(), continued(it)
            it.set_state(given)
            assert continued(it)[0] == got[0]


def test_numbers_of_numpy_in_the_state_of_a_loader(opened):
    for name in ("direct", "fan", "sharded"):
        state = loader_states(name)[1]
        it, other = opened(LOADERS[name]()), opened(LOADERS[name]())
        it.set_state(with_numpy(json.loads(state)))
        other.set_state(state)
        assert it.get_state() == state
        assert continued(it) == continued(other)
    for name in ("workers", "fan, workers"):
        it = opened(LOADERS[name]())
        state = it.get_state()
        it.set_state(with_numpy(json.loads(state)))
        assert it.get_state() == state


def test_a_refused_state_leaves_an_error_to_be_skipped(opened):
    def fail(x):
        if x == 2:
            raise OSError("gone")
        return x

    ds = gristmill.MapDataset.range(5).to_iter_dataset().map(fail)
    for pipeline in (ds, ds.batch(1, batch_fn=list), ds.mix([ds, ds]) if hasattr(ds, "mix") else ds):
        it = opened(pipeline)
        while True:
            try:
                next(it)
            except OSError:
                break
        assert refuses(it, {"next_index": 1.5})
        it.skip_failed()
        assert next(it) in (3, [3])
