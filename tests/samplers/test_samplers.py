"""What both samplers have in common, and what sequential ones have alone."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill import IndexSampler, NoSharding, RecordMetadata, Sampler, SequentialSampler, ShardOptions

rng_slot = RecordMetadata.__dict__["rng"].fset.__self__  # where the generator, or what stands for it, is kept

SAMPLERS = [
    *(IndexSampler(7), IndexSampler(7, seed=3, num_epochs=2), IndexSampler(7, shuffle=True, seed=3)),
    IndexSampler(8, ShardOptions(1, 3), shuffle=True, num_epochs=2, seed=32),
    *(IndexSampler(70_000, ShardOptions(2, 3, True), shuffle=True, num_epochs=3, seed=2**32 - 1), SequentialSampler(7)),
    *(SequentialSampler(8, seed=2**128 - 8), SequentialSampler(11, ShardOptions(1, 3, drop_remainder=True), seed=6)),
]


def fields(metadata):
    rng = metadata.rng
    return metadata.index, metadata.record_key, None if rng is None else rng.random()


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
        assert_raises(TypeError, "shard_options must be a ShardOptions, got", type(sampler), 5, wrong)


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
    for metadata in (*sampler._block(range(4)), sampler[2]):  # and makes none before it is asked for
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


SHARDS = st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()).filter(lambda shard: shard[0] < shard[1])
LENGTHS = st.integers(1, 30) | st.integers(65_530, 65_545) | st.integers(2**53 - 2, 2**53 + 2) | st.integers(2**63, 2**66)


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
    near = st.integers(0, bound - 1) | st.integers(0, min(10, bound - 1)) | st.integers(max(0, bound - 10), bound - 1)
    indices = data.draw(st.lists(near, min_size=1, max_size=12))
    assert [fields(m) for m in sampler._block(indices)] == [fields(sampler[i]) for i in indices]
    start = min(indices)
    consecutive = range(start, min(start + 20, bound))
    assert [fields(m) for m in sampler._block(consecutive)] == [fields(sampler[i]) for i in consecutive]


def test_anything_with_getitem_is_a_sampler_and_sequential_ones_have_their_own_rules():
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
        ({"num_records": -1}, ValueError, "num_records must be a positive integer, got -1"),
        ({"num_records": 1.0}, TypeError, "num_records must be an integer"),
        ({"num_records": 8, "seed": -1}, ValueError, "seed must be .*, got -1"),
        ({"num_records": 8, "seed": 2**128 - 7}, ValueError, "seed must be"),
        ({"num_records": 8, "seed": 1.0}, TypeError, "seed must be an integer"),
        ({"num_records": 8, "seed": "1"}, TypeError, "seed must be an integer"),
    ]:
        assert_raises(error, message, SequentialSampler, **kwargs)
