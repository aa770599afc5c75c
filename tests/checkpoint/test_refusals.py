"""Wrong and damaged states, and those of others: refused with one typed error, the iterator as it
was; or continued as such.
"""

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
from entry import IterEntry, plain
from operations import operation
from refusing import assert_raises, assert_refused, assert_stays
from stage_table import STREAMS
from state_damage import (
    HOSTILE,
    as_json,
    damaged,
    damaged_text,
    is_harmless,
    part,
    places,
    with_part,
)
from tfrecords import framed

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.experimental import FlatMapTransform, TFRecordIterDataset

# which workers would import, and the laws with it
cloudpickle.register_pickle_by_value(sys.modules[__name__])
PIPELINES = {entry.name: entry.make for entry in STREAMS}
VARYING = {entry.name for entry in STREAMS if isinstance(entry, IterEntry) and entry.states_vary}
SLOW = ("mp_prefetch", "parquet_workers", "map_mix_without_table")  # processes, or long tables
MANY = 60  # more elements than any of them has
each_pipeline = pytest.mark.parametrize("name", PIPELINES)


@functools.cache
def states_of(name):
    it = iter(PIPELINES[name]())
    return [as_json(it.get_state()), *[as_json(it.get_state()) for _ in it]]


@functools.cache
def states_of_others():
    return [states_of(name)[len(states_of(name)) // 2] for name in PIPELINES]


def continued(it, num=MANY):
    """The next elements, and what came then: the end, or that it continues, or the refusal of a
    state that came to light.
    """
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
        notes = "".join(getattr(error, "__notes__", []))
        assert "ZipIterDataset" in str(error) or "did not fail when the state was taken" in notes
        return elements, str(error)
    return elements, "more"


def refuses(it, state):
    """Asserts that ``it`` refuses ``state``, names the problem and the stage, and stays
    unchanged.
    """
    before = it.get_state()
    try:
        it.set_state(copy.deepcopy(state))
    except StateMismatchError as refusal:
        assert type(refusal).__module__ == "gristmill.core.errors"
        names = "Iterator", "DataLoader", "global_batch"
        assert any([name in str(refusal) for name in names])
        assert is_harmless(str(refusal)), str(refusal)[:3000]
        assert it.get_state() == before
        return True
    return False


def check_refused_or_a_state(make, it, before, wrong, *, is_quick=True):
    """``it`` at ``before`` refuses ``wrong`` and continues, or continues as a new iterator from the
    state that it says it is at.
    """
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


@each_pipeline
def test_a_damaged_state_is_refused_or_one_to_continue_from(name):
    make, states, rng = PIPELINES[name], states_of(name), random.Random(f"{name} 0")
    it = iter(make())
    for _ in range(2 if name in SLOW else 8):
        if name in VARYING:  # what it has in memory decides the result for a state that cannot be
            it = iter(make())
        state = rng.choice(states)
        check_refused_or_a_state(make, it, state, damaged(state, rng, states_of_others()))


@each_pipeline
def test_hostile_parts_of_a_state_are_in_no_message(name):
    state = states_of(name)[len(states_of(name)) // 2]
    it, rng = iter(PIPELINES[name]()), random.Random(name)
    for path in places(state):
        for hostile in rng.sample(HOSTILE, 1 if name in SLOW else 2):
            if not refuses(it, with_part(state, path, hostile)):
                continued(it, 1)
                it = iter(PIPELINES[name]())


CYCLE = {"next_index_in_datasets": 2, "next_index_in_cycle": 0, "iterators_in_use_indices": [0, 1]}
OLD = [
    {
        "workers_state": {"0": {"next_index": 4}, "1": None},
        "iterations_to_skip": {"0": 1, "1": 2},
        "last_worker_index": 0,
    },
    {"prefetch_ds_iter_states": [{"next_index": 4}, None], **CYCLE},
]


@pytest.mark.parametrize(
    "name", ["multithread_prefetch", "multithread_prefetch_0", "interleave", "repeat_shares"]
)
def test_a_damaged_state_of_an_old_form(name):
    rng, it = random.Random(name), iter(PIPELINES[name]())
    for _ in range(40):
        wrong = damaged(rng.choice(OLD), rng, states_of_others())
        check_refused_or_a_state(PIPELINES[name], it, states_of(name)[1], wrong)


def with_numpy(state):
    if isinstance(state, dict):
        return dict(zip(state, map(with_numpy, state.values()), strict=True))
    return {int: np.int64, bool: np.bool_, list: lambda x: [*map(with_numpy, x)]}.get(
        type(state), lambda x: x
    )(state)


def is_used(state, path):
    """True if that part of ``state`` is used: it is not if it belongs to a dataset that has
    ended.
    """
    at = [i for i, key in enumerate(path[:-1]) if key == "iterators_in_use_states"]
    return not any(part(state, path[:i])["exhausted"][path[i + 1]] for i in at)


@each_pipeline
def test_numbers_of_numpy_are_taken_and_other_kinds_refused(name):
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
    for name in (
        "direct",
        "cache",
        "rebatch",
        "iter_mix",
        "interleave",
        "repeat_shares",
        "concat_then_split",
        "zip",
    ):
        it = iter(PIPELINES[name]())
        state = as_json(it.get_state())
        for wrong in (deep, *[{**state, key: deep} for key in state]):
            assert_refused(it, StateMismatchError, None, wrong, state)


OF_FILES = [(True, True, None), (True, False, "gzip"), (False, False, None)]


@pytest.mark.parametrize(("with_checksums", "check_crc", "compression"), OF_FILES)
def test_a_state_between_two_records_of_a_file_is_refused(
    tmp_path, with_checksums, check_crc, compression
):
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
        assert_stays(
            it, StateIndexError, f"reader_offset must be .*got {offset}", {"reader_offset": offset}
        )
        assert_raises(StateIndexError, None, it.skip_failed)
        it.set_state({"reader_offset": begins[2]})
        assert list(it) == records[2:]
        assert refuses(it, {"reader_offset": sys.maxsize + 1})


def fan(n=3):
    return operation(FlatMapTransform, "flat_map", lambda x: [x] * (x % n), max_fan_out=n)


def of(*operations, sampler=None, source=range(17), workers=0, shard=None, n=17, **changes):
    """A function that makes a loader; ``changes`` are of its sampler."""
    sampler = sampler or gristmill.samplers.IndexSampler(
        n, **{"shuffle": True, "seed": 1, "num_epochs": 2, **changes}
    )
    arguments = {
        "data_source": source,
        "sampler": sampler,
        "operations": operations,
        "shard_options": shard,
    }
    return lambda: gristmill.DataLoader(**arguments, worker_count=workers)


Batch = gristmill.transforms.Batch
Shard = gristmill.sharding.ShardOptions
Range = gristmill.sources.RangeDataSource
Sequential = gristmill.samplers.SequentialSampler
ADD_ONE = operation(gristmill.transforms.Map, "map", lambda x: x + 1)
DRAW = operation(
    gristmill.transforms.RandomMap, "random_map", lambda x, rng: (x, int(rng.integers(1000)))
)
ODD = operation(gristmill.transforms.Filter, "filter", lambda x: x % 2)
STEPS = {
    "map": ADD_ONE,
    "random": DRAW,
    "filter": ODD,
    "batch": Batch(2),
    "batch3": Batch(3),
    "fan": fan(),
    "fan4": fan(4),
}
STEPS["drop"] = Batch(2, drop_remainder=True)
CHAINS = [
    "map",
    "map_map",
    "random",
    "filter",
    "filter_map",
    "batch",
    "batch3",
    "drop",
    "map_batch",
    "batch_map",
    "fan",
    "fan4",
]
SOURCES = [range(20), Range(0, 17, 1), Range(0, 34, 2), [*range(17)], (*range(17),), np.arange(17)]
CHANGES = [{"shuffle": False}, {"seed": 2}, {"num_epochs": 3}, {"num_epochs": None}, {"n": 16}]
LOADERS = {
    "loader": of(),
    "loader_fan_seed": of(fan(), seed=2),
    "loader_fan_map": of(fan(), ADD_ONE),
    **{f"loader_{chain}": of(*[STEPS[step] for step in chain.split("_")]) for chain in CHAINS},
    **{f"loader, {changes}": of(**changes) for changes in CHANGES},
    **{f"loader_source_{i}": of(source=source) for i, source in enumerate(SOURCES)},
    "loader_sequential": of(sampler=Sequential(17)),
    **{f"loader_sequential_seed_{i}": of(DRAW, sampler=Sequential(17, seed=i)) for i in (5, 6)},
    **{
        f"loader, sampler {shard}": of(shard_options=Shard(*shard))
        for shard in ((0, 2), (1, 2), (0, 2, True))
    },
    **{f"loader_shard_{i}_of_{n}": of(shard=Shard(i, n)) for i, n in ((0, 2), (1, 2), (0, 3))},
    "loader_shard_drop": of(shard=Shard(0, 2, True)),
}
FEW = {"n": 9, "source": range(9)}
OF_EACH_KIND = {
    "direct": of(ADD_ONE, Batch(2), **FEW),
    "fan": of(fan(4), **FEW),
    "sharded": of(ADD_ONE, Batch(2), shard=Shard(1, 2), **FEW),
    "workers": of(ADD_ONE, Batch(2), workers=2, **FEW),
    "fan, workers": of(fan(4), workers=2, **FEW),
}
IN_PROCESS = [*OF_EACH_KIND][:3]


@functools.cache
def loader_states(name):
    with iter(OF_EACH_KIND[name]()) as it:
        return [it.get_state(), *[it.get_state() for _ in itertools.islice(it, 2)]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [*IN_PROCESS, *[pytest.param(name, marks=pytest.mark.slow) for name in [*OF_EACH_KIND][3:]]],
)
def test_a_damaged_state_of_a_loader(name):
    make, states, rng = OF_EACH_KIND[name], loader_states(name), random.Random(name)
    others = [
        json.loads(state) for other in IN_PROCESS for state in loader_states(other)
    ] + states_of_others()[:20]
    with iter(make()) as it:
        for i in range(300 if name in IN_PROCESS else 20):
            state = rng.choice(states)
            wrong = damaged_text(state, rng) if i % 2 else damaged(json.loads(state), rng, others)
            check_refused_or_a_state(make, it, state, wrong, is_quick=name in IN_PROCESS)


NO_JSON = [
    b"",
    b"{",
    b"\xff\xfe\xfa",
    b"\x80",
    b"{\0",
    b"nul",
    b"[" * 10**5,
    b"1" * 5000,
    "",
    "{",
    "\ufeff{}",
]


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_states_of_loaders(name):
    with iter(OF_EACH_KIND[name]()) as it:
        before = it.get_state()
        for text in NO_JSON:
            with pytest.raises(
                StateMismatchError, match="the state of a DataLoader must be JSON text"
            ):
                it.set_state(text)
            assert_refused(it, json.JSONDecodeError, None, text, before)
        for value in (None, 3, 1.5, "x", [], [1], {}, True, float("nan")):
            assert refuses(it, value) and refuses(it, json.dumps(value).encode())
        state = loader_states(name)[1] if name in IN_PROCESS else before
        it.set_state(with_numpy(json.loads(state)))
        assert it.get_state() == state
        if name in IN_PROCESS:
            with iter(OF_EACH_KIND[name]()) as other:
                other.set_state(state)
                assert continued(it) == continued(other)


def test_a_refused_state_leaves_an_error_to_be_skipped():
    ds = gristmill.MapDataset.range(5).to_iter_dataset().map(Failing(2))
    others = gristmill.MapDataset.range(10, 15).to_iter_dataset()
    for pipeline, after in (
        (ds, 3),
        (ds.batch(1, batch_fn=list), [3]),
        (gristmill.IterDataset.mix([ds, others]), 12),
    ):
        it = iter(pipeline)
        assert_raises(Boom, "2", list, it)
        assert refuses(it, {"next_index": 1.5})
        it.skip_failed()
        assert next(it) == after


# A zoo of pipelines: every checkpoint of one is restored in other ones, which refuse it, or
# continue as the one saved.
HANDLER = CheckpointHandler()
NUM_COMPARED = 4  # elements
NUM_OTHERS = 8  # pipelines whose checkpoint is restored
PROCESSES = ("mp_prefetch", "parquet_workers")
TEXT_NAME, PIPELINE_NAME = "process_0-of-1.json", "pipeline_0-of-1.json"
# of users
SAME_BUT_FOR_FUNCTIONS = {
    "default_options",
    "map_with_nones",
    "flat_map_with_nones",
    "flat_map_to_nothing",
}
ALL = {
    name: make
    for name, make in {**PIPELINES, **LOADERS}.items()
    if name not in SAME_BUT_FOR_FUNCTIONS
}


@pytest.fixture
def opened():
    """New iterators of a pipeline, after some elements; closed at the end."""
    with contextlib.ExitStack() as stack:

        def opened(make, position=0):
            it = stack.enter_context(contextlib.closing(iter(make())))
            following(it, position)
            return it

        yield opened


def following(it, n=NUM_COMPARED):
    return [plain(x) for x in itertools.islice(it, n)]


def save_all(zoo, root):
    """Saves every pipeline in a folder of its name; returns what each would have delivered next."""
    expected = {}
    for name, make in zoo.items():
        with contextlib.closing(iter(make())) as it:
            following(it, 3)
            (root / name).mkdir()
            HANDLER.save(root / name, it)
            expected[name] = following(it)
    return expected


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    return root, save_all(ALL, root)


def has_the_layout_of(state, own):
    """True if ``state`` has all entries of ``own``."""
    if isinstance(own, dict):
        return isinstance(state, dict) and all(
            has_the_layout_of(state.get(key), value) for key, value in own.items()
        )
    if isinstance(own, list):
        return isinstance(state, list) and len(state) == len(own)
    return own is None or type(state) is type(own)


# in states with items of a record, where Grain has them not
OF_LOADERS = {"worker_count", "sampler", "data_source"}


@pytest.mark.filterwarnings("ignore:.*examples are dropped")
@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_of_another_pipeline(name, saved, opened, tmp_path):
    """Without description, whose a state is cannot be seen (decision 17), but it is refused, or has
    the same layout.
    """
    root, expected = saved
    descriptions = {
        other: json.loads((root / other / PIPELINE_NAME).read_text())["pipeline"] for other in ALL
    }
    same = [other for other in ALL if descriptions[other] == descriptions[name]]
    num = 4 if name in PROCESSES else NUM_OTHERS  # it takes long to start them
    different = random.Random(name).sample([other for other in ALL if other not in same], 2 * num)
    it = opened(ALL[name], 1)
    before = it.get_state()
    own = json.loads(before) if isinstance(before, bytes) else before
    for other in different[:num]:
        with pytest.raises(StateMismatchError, match="belongs to another pipeline"):
            HANDLER.restore(root / other, it)
        assert it.get_state() == before
    for other in (name, *different):
        (tmp_path / TEXT_NAME).write_bytes((root / other / TEXT_NAME).read_bytes())
        try:
            HANDLER.restore(tmp_path, it)
        except StateMismatchError:
            assert it.get_state() == before
            continue
        state = json.loads((root / other / TEXT_NAME).read_text())
        assert has_the_layout_of(
            state, {key: value for key, value in own.items() if key not in OF_LOADERS}
        ), other
        if name in PROCESSES and other != name:
            it.set_state(before)
            continue
        try:
            following(it)
        except StateMismatchError:
            assert other != name
        it = opened(ALL[name], 1)
    assert following(it) == following(opened(ALL[name], 1))
    for other in same:
        it = opened(ALL[name], 1)
        assert HANDLER.restore(root / other, it) is it
        assert following(it) == expected[other], other
