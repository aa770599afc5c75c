import dataclasses
import sys
from collections import Counter

import numpy as np
from formulas import index_shuffle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill.samplers import IndexSampler
from gristmill.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split


def keys(sampler, indices=None):
    return [sampler[i].record_key for i in (range(len(sampler)) if indices is None else indices)]


# In this order: each row also breaks all rules below it that it can.
WRONG = [
    ({"num_records": 0, "num_epochs": 0, "shuffle": True}, ValueError, r"num_records must be .*positive.*, got 0"),
    ({"num_records": -3, "num_epochs": 0, "shuffle": True}, ValueError, "num_records must be .*, got -3"),
    ({"num_records": 5, "num_epochs": 0, "shuffle": True}, ValueError, r"num_epochs must be .*positive.*, got 0"),
    ({"num_records": 5, "num_epochs": -1, "shuffle": True, "seed": "x"}, ValueError, "num_epochs must be .*, got -1"),
    ({"num_records": 5, "shuffle": True}, ValueError, "shuffle=True needs a seed"),
    ({"num_records": 5, "shuffle": True, "seed": 1.0}, TypeError, "seed must be an integer, got 1.0 of type float"),
    ({"num_records": 5, "shuffle": True, "seed": (1, 2)}, TypeError, "seed must be an integer, got .* of type tuple"),
    ({"num_records": 5, "shuffle": False, "seed": 1.0}, TypeError, "seed must be an integer"),
    ({"num_records": 5, "shuffle": False, "seed": "1"}, TypeError, "seed must be an integer"),
    ({"num_records": 5, "shuffle": True, "seed": -1}, ValueError, r"seed must be .*\[0, 4294967295\], got -1"),
    ({"num_records": 5, "shuffle": True, "seed": 2**32}, ValueError, "seed must be .*, got 4294967296"),
    ({"num_records": 5, "seed": 2**32}, ValueError, "seed must be .*, got 4294967296"),
    ({"num_records": 2**63 + 1, "shuffle": True, "seed": 1}, ValueError, "num_records must be at most .* to be shuffled"),
    ({"num_records": 5.0}, TypeError, "num_records must be an integer"),
    ({"num_records": None}, TypeError, "num_records must be an integer"),
    ({"num_records": 5, "num_epochs": 1.5}, TypeError, "num_epochs must be an integer"),
    ({"num_records": 2, "shard_options": ShardOptions(2, 3)}, ValueError, "shard 2 of 3 has no records"),
    ({"num_records": 2, "shard_options": ShardOptions(0, 3, True)}, ValueError, "shard 0 of 3 has no records"),
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
@given(st.integers(1, 20), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_semantics_by_the_formulas(n, count, drop, shuffle, epochs, seed):
    for options in [ShardOptions(index, count, drop) for index in range(count)] if count > 1 or n % 2 else [NoSharding()]:
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
        assert seen == dict.fromkeys(range(start, end), epochs)  # each record of the shard once in each epoch


def test_endless_and_far_out():
    sampler = IndexSampler(5, shuffle=True, seed=1)
    assert len(sampler) == sys.maxsize
    for far in (sys.maxsize, 2**63, 2**70, 2**70 + 3):
        epoch, position = divmod(far, 5)
        assert sampler[far].record_key == index_shuffle(position, 4, (1 + epoch) % 2**32, 4)
        assert sampler[far].rng.random() == np.random.Generator(np.random.Philox(key=1 + far)).random()
        assert type(sampler[far].record_key) is int
    assert [m.record_key for m in sampler._block([2**70, 3])] == [sampler[2**70].record_key, sampler[3].record_key]
    sampler = IndexSampler(70_000, shuffle=True, seed=9)
    assert sampler[np.int64(2**62)].record_key == sampler[2**62].record_key
    assert sampler[np.uint64(2**63 + 1)].record_key == sampler[2**63 + 1].record_key
    sampler = IndexSampler(2**62, num_epochs=4)  # longer than len can say
    assert len(sampler) == sys.maxsize
    assert sampler[2**64 - 1].record_key == 2**62 - 1
    assert_raises(IndexError, None, sampler.__getitem__, 2**64)
