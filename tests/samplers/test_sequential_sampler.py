import numpy as np
import pytest

from gristmill.samplers import SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions


def test_every_index_is_its_own_key_and_drop_remainder_cuts_to_a_multiple_of_the_shards():
    for options in (NoSharding(), ShardOptions(2, 3)):
        sampler = SequentialSampler(8, options)
        assert len(sampler) == 8
        assert [(m.index, m.record_key, m.rng) for m in sampler] == [(i, i, None) for i in range(8)]
    for n, count, length in ((8, 3, 6), (9, 3, 9), (2, 3, 0)):
        sampler = SequentialSampler(n, ShardOptions(0, count, drop_remainder=True))
        assert len(sampler) == len(list(sampler)) == length
        with pytest.raises(IndexError, match=rf"\[0, {length}\), got {length}"):
            sampler[length]


def test_repr_and_generators():
    """The seed is not part of the text, as in states that Grain wrote."""
    assert repr(SequentialSampler(8, seed=5)) == (
        "SequentialSampler(num_records=8, shard_options=NoSharding(shard_index=0, shard_count=1, drop_remainder=False))"
    )
    for seed in (0, 5, 2**32, 2**100, 2**128 - 8, np.int64(3), True):
        sampler = SequentialSampler(num_records=8, seed=seed)
        for index in (0, 7):
            expected = np.random.Generator(np.random.Philox(key=int(seed) + index)).random()
            assert sampler[index].rng.random() == expected


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_records": 0}, ValueError, "num_records must be a positive integer, got 0"),
        ({"num_records": -1}, ValueError, "num_records must be a positive integer, got -1"),
        ({"num_records": 1.0}, TypeError, "num_records must be an integer"),
        ({"num_records": 8, "seed": -1}, ValueError, "seed must be .*, got -1"),
        ({"num_records": 8, "seed": 2**128 - 7}, ValueError, "seed must be"),
        ({"num_records": 8, "seed": 1.0}, TypeError, "seed must be an integer"),
        ({"num_records": 8, "seed": "1"}, TypeError, "seed must be an integer"),
    ],
)
def test_validation(kwargs, error, message):
    with pytest.raises(error, match=message):
        SequentialSampler(**kwargs)
