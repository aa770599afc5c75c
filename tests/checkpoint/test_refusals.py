"""Wrong and damaged states: refused with one typed error, the iterator as it was; or they are states, and continue as such."""

import contextlib
import copy
import functools
import gzip
import itertools
import json
import random
import sys

import cloudpickle
import numpy as np
import pytest
from computing_ahead import Boom, Failing
from law_pipelines import PIPELINES, SLOW, VARYING, plain, states_of, states_of_others
from operations import operation
from refusing import assert_raises, assert_refused, assert_stays
from state_damage import HOSTILE, as_json, damaged, damaged_text, is_harmless, part, places, with_part
from tfrecords import framed

import gristmill
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.experimental import FlatMapTransform, TFRecordIterDataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers would import, and the laws with it
MANY = 60  # more elements than any of them has
each_pipeline = pytest.mark.parametrize("name", PIPELINES)


def continued(it, num=MANY):
    """The next elements, and what came then: the end, or that it goes on, or the refusal of a state that came to light."""
    elements = []
    try:
        while len(elements) < num:
            state = it.get_state()
            json.dumps(json.loads(state) if isinstance(state, bytes) else state, allow_nan=False)
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


def check_refused_or_a_state(make, it, before, wrong, *, is_quick=True):
    """``it`` at ``before`` refuses ``wrong`` and goes on, or continues as a new iterator from the state that it says it is at."""
    it.set_state(before)
    is_refused = refuses(it, wrong)
    given = it.get_state()
    assert given == before or not is_refused
    if is_refused and not is_quick:
        return
    with contextlib.closing(iter(make())) as other:
        other.set_state(json.loads(json.dumps(given)) if isinstance(given, dict) else given)
        got, expected = continued(it), continued(other)
        assert got == expected if is_refused else got[0] == expected[0]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
@each_pipeline
def test_a_damaged_state_is_refused_or_one_to_continue_from(name, seed):
    make, states, rng = PIPELINES[name], states_of(name), random.Random(f"{name} {seed}")
    it = iter(make())
    for _ in range(2 if name in SLOW else 8 + 20 * seed):
        if name in VARYING:  # what it has in memory decides what becomes of a state that cannot be
            it = iter(make())
        state = rng.choice(states)
        check_refused_or_a_state(make, it, state, damaged(state, rng, states_of_others()))


@each_pipeline
def test_what_is_hostile_anywhere_in_a_state_does_not_come_back_in_a_message(name):
    state = states_of(name)[len(states_of(name)) // 2]
    it, rng = iter(PIPELINES[name]()), random.Random(name)
    for path in places(state):
        for hostile in rng.sample(HOSTILE, 1 if name in SLOW else 3):
            if not refuses(it, with_part(state, path, hostile)):
                continued(it, 1)
                it = iter(PIPELINES[name]())


CYCLE = {"next_index_in_datasets": 2, "next_index_in_cycle": 0, "iterators_in_use_indices": [0, 1]}
OLD = [
    {"workers_state": {"0": {"next_index": 4}, "1": None}, "iterations_to_skip": {"0": 1, "1": 2}, "last_worker_index": 0},
    {"prefetch_ds_iter_states": [{"next_index": 4}, None], **CYCLE},
]


@pytest.mark.parametrize("name", ["multithread_prefetch", "multithread_prefetch_0", "interleave", "repeat_shares"])
def test_a_damaged_state_of_an_old_form(name):
    rng, it = random.Random(name), iter(PIPELINES[name]())
    for _ in range(40):
        wrong = damaged(rng.choice(OLD), rng, states_of_others())
        check_refused_or_a_state(PIPELINES[name], it, states_of(name)[1], wrong)


def with_numpy(state):
    if isinstance(state, dict):
        return dict(zip(state, map(with_numpy, state.values()), strict=True))
    return {int: np.int64, bool: np.bool_, list: lambda x: [*map(with_numpy, x)]}.get(type(state), lambda x: x)(state)


def is_used(state, path):
    """Whether that part of ``state`` says anything: not if it is about a dataset that has ended."""
    at = [i for i, key in enumerate(path[:-1]) if key == "iterators_in_use_states"]
    return not any(part(state, path[:i])["exhausted"][path[i + 1]] for i in at)


@each_pipeline
def test_numbers_of_numpy_are_taken_and_other_kinds_refused_by_name(name):
    states = states_of(name)
    for state in states[1 : 2 if name in SLOW else None : 2]:
        it, other = iter(PIPELINES[name]()), iter(PIPELINES[name]())
        it.set_state(with_numpy(state))
        assert json.loads(json.dumps(it.get_state())) == state
        other.set_state(state)
        assert continued(it) == continued(other)
    for state in {0: states[0], 1: states[len(states) // 2], 2: states[-1]}.values():
        it = iter(PIPELINES[name]())
        for path in places(state):
            value = part(state, path)
            if type(value) not in (int, bool) or not is_used(state, path):
                continue
            other_kind = int(value) if type(value) is bool else value == 1
            for wrong in (float(value), value + 0.5, str(value), [value], None, other_kind):
                if type(wrong) is bool and "exhausted" in path:  # as Grain has it in some releases
                    continue
                with pytest.raises(StateMismatchError, match="Iterator") as refusal:
                    it.set_state(with_part(state, path, wrong))
                assert repr(wrong) in str(refusal.value), path


def test_a_state_can_be_nested_too_deeply():
    deep = functools.reduce(lambda inner, _: [inner], range(3000), [])
    for name in ("direct", "cache", "rebatch", "iter_mix", "interleave", "repeat_shares", "concat_then_split", "zip"):
        it = iter(PIPELINES[name]())
        state = as_json(it.get_state())
        for wrong in (deep, *[{**state, key: deep} for key in state]):
            assert_refused(it, StateMismatchError, None, wrong, state)


OF_FILES = [(True, True, None), (True, False, "gzip"), (False, False, None)]


@pytest.mark.parametrize(("with_checksums", "check_crc", "compression"), OF_FILES)
def test_a_state_between_two_records_of_a_file_is_refused_when_it_is_read(tmp_path, with_checksums, check_crc, compression):
    records = [b"a" * 30, b"", b"b" * 7]
    parts = [framed(record, with_checksums=with_checksums) for record in records]
    data, begins = b"".join(parts), [*itertools.accumulate(map(len, parts), initial=0)]
    (tmp_path / "records").write_bytes(data if compression is None else gzip.compress(data))
    ds = TFRecordIterDataset(tmp_path / "records", check_crc=check_crc, compression=compression)
    for offset in [*range(begins[-1] + 40), 2**40, sys.maxsize]:
        it = iter(ds)
        it.set_state({"reader_offset": offset})
        if offset in begins:
            assert list(it) == records[begins.index(offset) :]
            continue
        assert_stays(it, StateIndexError, f"reader_offset must be .*got {offset}", {"reader_offset": offset})
        assert_raises(StateIndexError, None, it.skip_failed)
        it.set_state({"reader_offset": begins[2]})
        assert list(it) == records[2:]
        assert refuses(it, {"reader_offset": sys.maxsize + 1})


FAN = operation(FlatMapTransform, "flat_map", lambda x: [x] * (x % 4), max_fan_out=3)
DOUBLE = operation(gristmill.transforms.Map, "map", lambda x: 2 * x)


def loader(num_workers=0, *operations, **options):
    sampler = gristmill.samplers.IndexSampler(9, shuffle=True, num_epochs=2, seed=1)
    operations = operations or (DOUBLE, gristmill.transforms.Batch(2))
    return gristmill.DataLoader(data_source=range(9), sampler=sampler, operations=operations, worker_count=num_workers, **options)


LOADERS = {
    "direct": loader,
    "fan": lambda: loader(0, FAN),
    "sharded": lambda: loader(0, shard_options=gristmill.sharding.ShardOptions(1, 2)),
    "workers": lambda: loader(2),
    "fan, workers": lambda: loader(2, FAN),
}
IN_PROCESS = [*LOADERS][:3]


@functools.cache
def loader_states(name):
    with iter(LOADERS[name]()) as it:
        return [it.get_state(), *[it.get_state() for _ in itertools.islice(it, 2)]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*IN_PROCESS, *[pytest.param(name, marks=pytest.mark.slow) for name in [*LOADERS][3:]]])
def test_a_damaged_state_of_a_loader(name):
    make, states, rng = LOADERS[name], loader_states(name), random.Random(name)
    others = [json.loads(state) for other in IN_PROCESS for state in loader_states(other)] + states_of_others()[:20]
    with iter(make()) as it:
        for i in range(300 if name in IN_PROCESS else 20):
            state = rng.choice(states)
            wrong = damaged_text(state, rng) if i % 2 else damaged(json.loads(state), rng, others)
            check_refused_or_a_state(make, it, state, wrong, is_quick=name in IN_PROCESS)


NO_JSON = [b"", b"{", b"\xff\xfe\xfa", b"\x80", b"{\0", b"nul", b"[" * 10**5, b"1" * 5000, "", "{", "\ufeff{}"]


@pytest.mark.parametrize("name", LOADERS)
def test_states_of_loaders(name):
    with iter(LOADERS[name]()) as it:
        before = it.get_state()
        for text in NO_JSON:
            assert_raises(StateMismatchError, "the state of a DataLoader must be JSON text", it.set_state, text)
            assert_refused(it, json.JSONDecodeError, None, text, before)
        for value in (None, 3, 1.5, "x", [], [1], {}, True, float("nan")):
            assert refuses(it, value) and refuses(it, json.dumps(value).encode())
        state = loader_states(name)[1] if name in IN_PROCESS else before
        it.set_state(with_numpy(json.loads(state)))
        assert it.get_state() == state
        if name in IN_PROCESS:
            with iter(LOADERS[name]()) as other:
                other.set_state(state)
                assert continued(it) == continued(other)


def test_a_refused_state_leaves_an_error_to_be_skipped():
    ds = gristmill.MapDataset.range(5).to_iter_dataset().map(Failing(2))
    others = gristmill.MapDataset.range(10, 15).to_iter_dataset()
    for pipeline, after in ((ds, 3), (ds.batch(1, batch_fn=list), [3]), (gristmill.IterDataset.mix([ds, others]), 12)):
        it = iter(pipeline)
        assert_raises(Boom, "2", list, it)
        assert refuses(it, {"next_index": 1.5})
        it.skip_failed()
        assert next(it) == after
