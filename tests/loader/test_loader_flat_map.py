"""The items of a FlatMap in a ``DataLoader``; its states are in
``vectors/test_vectors_loaders.py``, too.
"""

import json

import numpy as np
import pytest
from loaders import AS_RECORDS, WITH_INDEX, Faults, Kept, Mapped, RandomMapped, make, plain
from operations import operation
from refusing import assert_raises, assert_refused, assert_stays

import gristmill as grain
from gristmill import IndexSampler, Record, RecordMetadata
from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.experimental import FlatMapTransform
from gristmill.transforms import Batch, Filter, Map


def split(max_fan_out, fn):
    return operation(FlatMapTransform, "flat_map", fn, max_fan_out=max_fan_out)


def fan(element):
    for j in range(element % 4):
        yield element * 10 + j


FAN = split(3, fan)
TWICE = split(5, lambda x: [x, x])
PLUS_ONE = Mapped(lambda x: x + 1)
ITEMS = [x * 10 + j for x in range(9) for j in range(x % 4)]
DRAW = RandomMapped(lambda x, rng: (x, int(rng.integers(10**6))))


def make_loader(*operations, n=9, **changes):
    changes.setdefault("data_source", range(n))
    changes.setdefault("sampler", IndexSampler(n, num_epochs=1, seed=7))
    return make(n, *operations, **changes)


def elements(*operations, **changes):
    return plain(make_loader(*operations, **changes))


def test_items_in_order_continue_the_index_and_have_no_key():
    assert elements(FAN) == ITEMS
    assert elements(FAN, Batch(4)) == [ITEMS[i : i + 4] for i in range(0, 12, 4)]
    assert elements(PLUS_ONE, FAN, PLUS_ONE, n=3) == [11, 21, 22, 31, 32, 33]
    assert elements(FAN, TWICE, n=3) == [10, 10, 20, 20, 21, 21]
    assert elements(Batch(2), TWICE, n=5) == [[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]]
    # None is an element like any other
    letters = split(2, lambda x: ["none", None] if x is None else [x])
    for operations in ([letters], [letters, *AS_RECORDS]):
        assert elements(*operations, n=3, data_source=["a", None, "b"]) == ["a", "none", None, "b"]
    seen = []

    def operation(records):
        for record in records:
            seen.append((record.metadata.index, record.metadata.record_key, record.data))
            yield record

    sampler = IndexSampler(4, shuffle=True, num_epochs=2, seed=7)
    assert len(elements(FAN, operation, n=4, sampler=sampler)) == 12
    keys = [sampler[i].record_key for i in range(8)]
    assert seen == [
        (i * 3 + j, None, key * 10 + j) for i, key in enumerate(keys) for j in range(key % 4)
    ]

    def keep(element):
        assert not isinstance(element, Record)
        return element != 21

    assert elements(FAN, Kept(keep), WITH_INDEX, n=3) == [(3, 10), (6, 20)]
    assert elements(FAN, TWICE, WITH_INDEX, n=2) == [(15, 10), (16, 10)]


def item_draw(seed, index, position):
    rng = np.random.Generator(np.random.Philox(key=seed + index, counter=[0, 0, 0, position + 1]))
    return int(rng.integers(10**6))


def test_every_item_has_a_random_stream_of_its_own():
    for workers in (0, 2):
        drawn = elements(FAN, DRAW, n=4, worker_count=workers)
        assert sorted(drawn) == [
            (x * 10 + j, item_draw(7, x, j)) for x in range(4) for j in range(x)
        ]
        assert len({draw for _, draw in drawn}) == len(drawn)
    # Of items of items, the "record" is the item.
    expected = [
        (x * 10 + j, item_draw(7, x * 3 + j, k))
        for x in range(3)
        for j in range(x)
        for k in range(2)
    ]
    assert elements(FAN, TWICE, DRAW, n=3) == expected
    # Streams of records are not touched by items.
    before = elements(DRAW, n=4)
    assert [x for x, _ in make_loader(DRAW, split(1, lambda x: [x]), DRAW, n=4)] == before
    # Random children of items are reproducible and differ.
    spawn = RandomMapped(lambda x, rng: (x, int(rng.spawn(1)[0].integers(10**9))))
    first = elements(TWICE, spawn, n=4)
    assert first == elements(TWICE, spawn, n=4)
    assert len({draw for _, draw in first}) == 8
    for rng in (None, np.random.default_rng(1)):  # other samplers give items no generator
        sampler = [RecordMetadata(i, i, rng) for i in range(3)]
        args = {"sampler": sampler, "shard_options": grain.sharding.NoSharding(), "n": 3}
        assert elements(FAN, WITH_INDEX, **args) == [(3, 10), (6, 20), (7, 21)]
        match = "what a FlatMap makes has one only if the sampler is an IndexSampler"
        assert_raises(ValueError, match, next, iter(make_loader(FAN, DRAW, **args)))
    without_seed = IndexSampler(2, num_epochs=1)
    assert_raises(ValueError, "seed", make_loader, FAN, DRAW, sampler=without_seed)
    assert elements(FAN, WITH_INDEX, n=2, sampler=without_seed) == [(3, 10)]


def test_refusals_at_construction_and_skipped_errors():
    no_maximum = type("NoMaximum", (FlatMapTransform,), {"flat_map": list})
    with pytest.raises(TypeError, match="NoMaximum must have an attribute max_fan_out"):
        make_loader(no_maximum())
    with pytest.raises(ValueError, match="max_fan_out must be a positive integer, got 0"):
        make_loader(split(0, list))
    assert_raises(TypeError, r"operations\[0\] must be a transformation", make_loader, no_maximum)

    def refuse(*args):
        raise AssertionError

    for base, answer, methods in (
        (Map, "map", {"map": lambda self, x: "map", "flat_map": refuse}),
        (Filter, "flat map", {"filter": refuse, "flat_map": lambda self, x: ["flat map"]}),
    ):
        assert elements(
            type("Both", (base, FlatMapTransform), {"max_fan_out": 1, **methods})(), n=1
        ) == [answer]
    faults = Faults(2)
    it = iter(make_loader(split(3, lambda x: [faults(x)] * 2), n=4))
    assert [next(it) for _ in range(4)] == [0, 0, 1, 1]
    for _ in range(2):
        assert_raises(OSError, "2", next, it)
        assert json.loads(it.get_state())["next_index_in_buffer"] == 2
    it.skip_failed()
    assert list(it) == [3, 3]
    too_many = split(2, lambda x: [x] * (x + 1))
    for operations in ([too_many], [too_many, WITH_INDEX]):
        it = iter(make_loader(*operations))
        next(it), next(it), next(it)
        assert_stays(
            it, ValueError, "FlatMap.* made more items of one element than its max_fan_out = 2"
        )
        it.skip_failed()
        assert_raises(ValueError, "max_fan_out", next, it)


ORIGIN = {
    "worker_count": 0,
    "sampler": repr(IndexSampler(9, num_epochs=1, seed=7)),
    "data_source": "range(0, 9)",
}


def without_origin(state):
    return {key: value for key, value in json.loads(state).items() if key not in ORIGIN}


def test_states_and_checkpoints_of_other_loaders_are_refused(tmp_path):
    next(it := iter(make_loader(FAN)))
    before = it.get_state()
    good = {"parent": {"next_index": 2}, "next_index_in_buffer": 1}
    for key, value in (
        ("worker_count", 2),
        ("sampler", "Other()"),
        ("data_source", "range(0, 10)"),
    ):
        with pytest.raises(
            StateMismatchError, match=f"{key}.*{value if key == 'worker_count' else ''}"
        ):
            it.set_state({**good, **ORIGIN, key: value})
        # each is checked if it is there
        assert_refused(it, StateMismatchError, key, {**good, key: value}, before)
    unchecked = grain.DataLoaderIterator(
        make_loader(FAN), {**good, **ORIGIN, "sampler": "Other()"}, validate_state=False
    )
    assert next(unchecked) == 21
    without = iter(make_loader(PLUS_ONE))
    assert_raises(StateKeyError, "last_seen_indices", without.set_state, before)
    assert_raises(StateKeyError, "next_index_in_buffer", it.set_state, without.get_state())
    two_workers = iter(make_loader(FAN, worker_count=2)).get_state()
    with pytest.raises(
        StateMismatchError, match="worker_count=2, the DataLoader has worker_count=0"
    ):
        it.set_state(two_workers)
    assert_raises(StateKeyError, None, it.set_state, without_origin(two_workers))
    three_workers = iter(make_loader(FAN, worker_count=3))
    with pytest.raises(StateMismatchError, match=r"2 workers, .* has 3"):
        three_workers.set_state(without_origin(two_workers))
    assert it.get_state() == before
    it, handler = iter(make_loader(FAN)), grain.checkpoint.CheckpointHandler()
    next(it)
    handler.save(tmp_path, it)
    assert list(handler.restore(tmp_path, iter(make_loader(FAN)))) == ITEMS[1:]
    match = r"max_fan_out of FlatMap .* was 3 .* is 4"
    with pytest.raises(StateMismatchError, match=match):
        handler.restore(tmp_path, iter(make_loader(split(4, fan))))
