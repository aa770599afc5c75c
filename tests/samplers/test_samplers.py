"""Laws of all samplers, of sequential ones, the formulas of ``IndexSampler``, and orders from
elsewhere.
"""

import dataclasses
import random
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from formulas import index_shuffle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill import (
    DataLoader,
    IndexSampler,
    IterableSampler,
    RecordMetadata,
    Sampler,
    SequentialSampler,
)
from gristmill.core.errors import StateMismatchError
from gristmill.samplers.base import epoch_of
from gristmill.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split
from gristmill.testing import assert_sampler_conforms

# where the generator, or its replacement, is kept
rng_slot = RecordMetadata.__dict__["rng"].fset.__self__

SAMPLERS = [
    *(
        IndexSampler(7),
        IndexSampler(7, seed=3, num_epochs=2),
        IndexSampler(7, shuffle=True, seed=3),
    ),
    IndexSampler(8, ShardOptions(1, 3), shuffle=True, num_epochs=2, seed=32),
    *(
        IndexSampler(70_000, ShardOptions(2, 3, True), shuffle=True, num_epochs=3, seed=2**32 - 1),
        SequentialSampler(7),
    ),
    *(
        SequentialSampler(8, seed=2**128 - 8),
        SequentialSampler(11, ShardOptions(1, 3, drop_remainder=True), seed=6),
    ),
]


def fields(metadata):
    rng = metadata.rng
    return metadata.index, metadata.record_key, None if rng is None else rng.random()


def keys(sampler):
    return [metadata.record_key for metadata in sampler]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_indices_and_iteration(sampler):
    assert isinstance(sampler, Sampler) and isinstance(sampler._shard_options, ShardOptions)
    assert not hasattr(sampler, "__next__")
    for index in (np.int64(1), np.uint8(1), True):
        assert type(sampler[index].index) is type(sampler[index].record_key) is int
        assert fields(sampler[index]) == fields(sampler[1])
    for index in (1.0, np.float32(1), "1", None, [1], (1,), slice(0, 2)):
        assert_raises(TypeError, "index must be an integer, got", sampler.__getitem__, index)
    bound = len(sampler) if len(sampler) < 2**40 else None
    for index in (-1, -(2**70), *((bound, bound + 1, 2**70) if bound is not None else ())):
        match = rf"{'inf' if bound is None else bound}.*{index}"
        assert_raises(IndexError, match, sampler.__getitem__, index)
    assert bound is not None or sampler[2**70].index == 2**70
    count = min(len(sampler), 300)
    expected = [fields(sampler[i]) for i in range(count)]
    assert [fields(m) for m in islice(sampler, count)] == expected
    assert [index for index, _, _ in expected] == list(range(count))
    assert len(sampler) > 300 or len(list(sampler)) == len(sampler)
    for wrong in (1, (0, 1), "NoSharding"):
        assert_raises(
            TypeError, "shard_options must be a ShardOptions, got", type(sampler), 5, wrong
        )


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_generators_and_blocks(sampler):
    for index in (0, 3):  # every look-up has a generator at its start
        first, second = sampler[index], sampler[index]
        if sampler._seed is None:
            assert first.rng is None
            continue
        assert first.rng is not second.rng
        draws = np.random.Generator(np.random.Philox(key=sampler._seed + index)).random(2).tolist()
        assert [first.rng.random(), first.rng.random()] == draws
        assert second.rng.random() == draws[0]
    # and makes none before it is asked for
    for metadata in (*sampler._block(range(4)), sampler[2]):
        kept = rng_slot.__get__(metadata)
        assert not isinstance(kept, np.random.Generator)
        rng = metadata.rng
        assert rng_slot.__get__(metadata) is rng
        if sampler._seed is None:
            assert kept is rng is None
        else:
            assert isinstance(rng, np.random.Generator) and metadata.rng is rng
    expected = [fields(sampler[i]) for i in (1, 3, 5)]
    for indices in (range(1, 7, 2), [1, 3, 5], np.array([1, 3, 5]), np.array([1, 3, 5], object)):
        block = sampler._block(indices)
        assert [fields(m) for m in block] == expected
        assert {type(m.index) for m in block} == {type(m.record_key) for m in block} == {int}


SHARDS = st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()).filter(
    lambda shard: shard[0] < shard[1]
)
LENGTHS = (
    st.integers(1, 30)
    | st.integers(65_530, 65_545)
    | st.integers(2**53 - 2, 2**53 + 2)
    | st.integers(2**63, 2**66)
)


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.none() | SHARDS, st.none() | st.integers(1, 4), st.booleans(), st.data())
def test_blocks_of_an_index_sampler_equal_single_indices(n, shard, epochs, shuffle, data):
    shuffle = shuffle and n <= 2**63
    shard = NoSharding() if shard is None else ShardOptions(*shard)
    if epochs is None and n < shard.shard_count:
        epochs = 1
    sampler = IndexSampler(n, shard, shuffle, epochs, seed=data.draw(st.integers(0, 2**32 - 1)))
    bound = sampler._bound if sampler._bound is not None else 2**70
    if not bound:
        return
    near = (
        st.integers(0, bound - 1)
        | st.integers(0, min(10, bound - 1))
        | st.integers(max(0, bound - 10), bound - 1)
    )
    indices = data.draw(st.lists(near, min_size=1, max_size=12))
    assert [fields(m) for m in sampler._block(indices)] == [fields(sampler[i]) for i in indices]
    start = min(indices)
    consecutive = range(start, min(start + 20, bound))
    assert [fields(m) for m in sampler._block(consecutive)] == [
        fields(sampler[i]) for i in consecutive
    ]


def test_anything_with_getitem_is_a_sampler():
    class Own:
        def __getitem__(self, index):
            return RecordMetadata(index, index)

    assert isinstance(Own(), Sampler) and not isinstance(object(), Sampler)
    for n, count, length in ((8, 3, 6), (9, 3, 9), (2, 3, 0)):
        sampler = SequentialSampler(n, ShardOptions(0, count, drop_remainder=True))
        assert len(sampler) == len(list(sampler)) == length
        assert_raises(IndexError, rf"\[0, {length}\), got {length}", sampler.__getitem__, length)
    for kwargs, error, message in [
        ({"num_records": 0}, ValueError, "num_records must be a positive integer, got 0"),
        ({"num_records": 1.0}, TypeError, "num_records must be an integer"),
        ({"num_records": 8, "seed": -1}, ValueError, "seed must be .*, got -1"),
        ({"num_records": 8, "seed": 2**128 - 7}, ValueError, "seed must be"),
        ({"num_records": 8, "seed": 1.0}, TypeError, "seed must be an integer"),
    ]:
        assert_raises(error, message, SequentialSampler, **kwargs)


# In this order: each row also breaks all rules below it that it can.
WRONG = [
    (
        {"num_records": 0, "num_epochs": 0, "shuffle": True},
        ValueError,
        r"num_records must be .*positive.*, got 0",
    ),
    (
        {"num_records": 5, "num_epochs": 0, "shuffle": True},
        ValueError,
        r"num_epochs must be .*positive.*, got 0",
    ),
    (
        {"num_records": 5, "num_epochs": -1, "shuffle": True, "seed": "x"},
        ValueError,
        "num_epochs must be .*, got -1",
    ),
    ({"num_records": 5, "shuffle": True}, ValueError, "shuffle=True needs a seed"),
    (
        {"num_records": 5, "shuffle": True, "seed": 1.0},
        TypeError,
        "seed must be an integer, got 1.0 of type float",
    ),
    ({"num_records": 5, "shuffle": False, "seed": 1.0}, TypeError, "seed must be an integer"),
    (
        {"num_records": 5, "shuffle": True, "seed": -1},
        ValueError,
        r"seed must be .*\[0, 4294967295\], got -1",
    ),
    (
        {"num_records": 5, "shuffle": True, "seed": 2**32},
        ValueError,
        "seed must be .*, got 4294967296",
    ),
    ({"num_records": 5, "seed": 2**32}, ValueError, "seed must be .*, got 4294967296"),
    (
        {"num_records": 2**63 + 1, "shuffle": True, "seed": 1},
        ValueError,
        "num_records must be at most .* to be shuffled",
    ),
    ({"num_records": 5.0}, TypeError, "num_records must be an integer"),
    ({"num_records": None}, TypeError, "num_records must be an integer"),
    ({"num_records": 5, "num_epochs": 1.5}, TypeError, "num_epochs must be an integer"),
    (
        {"num_records": 2, "shard_options": ShardOptions(2, 3)},
        ValueError,
        "shard 2 of 3 has no records",
    ),
    (
        {"num_records": 2, "shard_options": ShardOptions(0, 3, True)},
        ValueError,
        "shard 0 of 3 has no records",
    ),
]


def test_validation_and_integers_of_all_kinds():
    for kwargs, error, message in WRONG:
        assert_raises(error, message, IndexSampler, **kwargs)
    assert "ShardByJaxProcess(" in repr(IndexSampler(5, ShardByJaxProcess()))
    for seed in (0, 2**32 - 1, True, np.int64(7), np.uint32(7)):
        for shuffle in (False, True):
            sampler = IndexSampler(np.int64(5), shuffle=shuffle, num_epochs=np.int32(2), seed=seed)
            same = IndexSampler(5, shuffle=shuffle, num_epochs=2, seed=int(seed))
            assert repr(sampler) == repr(same) and keys(sampler) == keys(same)
            assert sampler[3].rng.random() == same[3].rng.random()


@settings(deadline=None, max_examples=25)
@example(2, 3, False, False, 3, 0)  # the last shard is empty
@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_semantics_by_the_formulas(n, count, drop, shuffle, epochs, seed):
    for options in (
        [ShardOptions(index, count, drop) for index in range(count)]
        if count > 1 or n % 2
        else [NoSharding()]
    ):
        index, count, drop = dataclasses.astuple(options)
        start, end = even_split(n, options)
        size = end - start
        sampler = IndexSampler(n, options, shuffle, epochs, seed)
        if not size:
            assert len(sampler) == 0 and list(sampler) == []
            assert_raises(IndexError, None, sampler.__getitem__, index)
            continue
        assert len(sampler) == (size * count * epochs if drop else epochs * n)
        expected = []
        for i in range(len(sampler)):
            epoch, k = divmod(i // count, size)
            k = index_shuffle(k, size - 1, (seed + epoch) % 2**32, 4) if shuffle else k
            expected.append(start + k)
        assert keys(sampler) == expected
        own = range(index, size * count * epochs, count)
        seen = Counter(m.record_key for m in sampler._block(own))
        # each record of the shard once in each epoch
        assert seen == dict.fromkeys(range(start, end), epochs)


def test_endless_and_far_out():
    sampler = IndexSampler(5, shuffle=True, seed=1)
    assert len(sampler) == sys.maxsize
    for far in (sys.maxsize, 2**63, 2**70, 2**70 + 3):
        epoch, position = divmod(far, 5)
        assert sampler[far].record_key == index_shuffle(position, 4, (1 + epoch) % 2**32, 4)
        assert (
            sampler[far].rng.random() == np.random.Generator(np.random.Philox(key=1 + far)).random()
        )
        assert type(sampler[far].record_key) is int
    assert [m.record_key for m in sampler._block([2**70, 3])] == [
        sampler[2**70].record_key,
        sampler[3].record_key,
    ]
    sampler = IndexSampler(70_000, shuffle=True, seed=9)
    assert sampler[np.int64(2**62)].record_key == sampler[2**62].record_key
    assert sampler[np.uint64(2**63 + 1)].record_key == sampler[2**63 + 1].record_key
    sampler = IndexSampler(2**62, num_epochs=4)  # longer than len can say
    assert len(sampler) == sys.maxsize
    assert sampler[2**64 - 1].record_key == 2**62 - 1
    assert_raises(IndexError, None, sampler.__getitem__, 2**64)


class Drawn:  # an order whenever it is gone through, as samplers of PyTorch do
    def __init__(self, seed=None):
        self.rng = random.Random(seed)

    def __iter__(self):
        return iter(self.rng.sample(range(20), 8))


class Shared:  # another part of the indices in every epoch, as a ``DistributedSampler`` has
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from range(self.epoch, 6 + self.epoch, 2 + self.epoch)


def test_indices_are_those_of_the_iterable_in_every_epoch():
    given = [
        ([3, np.int64(1)], [3, 1]),
        (np.array([3, 1], np.uint8), [3, 1]),
        (range(2), [0, 1]),
        ([], []),
    ]
    for indices, expected in [*given, (islice(iter(int, 1), 3), [0, 0, 0]), (Shared(), [0, 2, 4])]:
        sampler = IterableSampler(indices)
        assert keys(sampler) == expected
        assert_sampler_conforms(sampler, 5)
    indices = np.arange(3)  # nothing depends on it later
    sampler = IterableSampler(indices, num_epochs=2)
    indices[:] = 9
    assert keys(sampler) == [0, 1, 2, 0, 1, 2]
    sampler = IterableSampler(Shared(), num_epochs=3)
    assert keys(sampler) == [0, 2, 4, 1, 4, 2, 6]
    assert [epoch_of(sampler, index) for index in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    drawn = keys(IterableSampler(Drawn(0), num_epochs=2))
    assert drawn[:8] != drawn[8:] and drawn == keys(IterableSampler(Drawn(0), num_epochs=2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_continues_with_the_same_indices_or_is_refused(num_workers):
    def start(indices):
        sampler = IterableSampler(indices, num_epochs=2)
        return iter(DataLoader(data_source=range(20), sampler=sampler, worker_count=num_workers))

    with start(Drawn(0)) as it, start(Drawn(0)) as same, start(Drawn()) as other:
        first = [next(it) for _ in range(5)]
        state = it.get_state()
        same.set_state(state)
        rest = list(it)
        assert list(same) == rest and first + rest == keys(IterableSampler(Drawn(0), num_epochs=2))
        assert_raises(
            StateMismatchError,
            r"content=\w+.* The indices must be the same: a random sampler",
            other.set_state,
            state,
        )


def test_shards_and_workers_share_the_indices_out():
    order = [7, 0, 3, 9, 9, 1, 4]
    for count, drop in ((2, False), (3, True)):
        shards = [ShardOptions(index, count, drop) for index in range(count)]
        loaders = [
            DataLoader(data_source=range(10), sampler=IterableSampler(order), shard_options=shard)
            for shard in shards
        ]
        stop = len(order) // count * count if drop else len(order)
        assert [list(loader) for loader in loaders] == [
            order[index:stop:count] for index in range(count)
        ]


def test_refused_arguments_and_indices():
    for arguments, kind, message in [
        ({"indices": 3}, TypeError, "indices must be an iterable of integers .* got 3 of type int"),
        (
            {"indices": [1, 2.0]},
            TypeError,
            r"indices must be integers, got 2.0 of type float from list",
        ),
        (
            {"indices": [[1, 2]]},
            TypeError,
            r"got \[1, 2\] of type list from list: batches are made by",
        ),
        (
            {"indices": np.zeros((2, 2), int)},
            TypeError,
            r"array of integers \[n\], got one of shape \(2, 2\)",
        ),
        ({"indices": np.array([True, False])}, TypeError, "array of integers .* type bool"),
        (
            {"indices": [2, -1]},
            ValueError,
            "indices must be positions of records, from 0 on, got -1",
        ),
        (
            {"indices": iter([2]), "num_epochs": 2},
            ValueError,
            "none in epoch 1: list_iterator can be gone through only once",
        ),
        (
            {"indices": [2], "num_epochs": None},
            TypeError,
            "num_epochs must be an integer, got None",
        ),
        ({"indices": [2], "seed": -1}, ValueError, "seed must be"),
    ]:
        assert_raises(kind, message, IterableSampler, **arguments)
    message = "the indices of the sampler must be below 3, the number of records, got 3"
    assert_raises(
        ValueError, message, DataLoader, data_source=[*"abc"], sampler=IterableSampler([0, 3])
    )
    for sampler in (Drawn(), [0], np.arange(2)):
        message = r"write gristmill\.samplers\.IterableSampler\(sampler\)$"
        assert_raises(
            (TypeError, ValueError), message, DataLoader, data_source=[*"abc"], sampler=sampler
        )
    loader = DataLoader(data_source=[*"abc"], sampler=[0], shard_options=ShardOptions(0, 1))
    assert_raises(
        TypeError, r"got 0 from sampler\[0\]; .*IterableSampler\(indices\)", next, iter(loader)
    )
