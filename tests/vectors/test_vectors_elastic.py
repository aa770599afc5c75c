"""Grain's batches of elastic shards, and the uneven ends that ours do not have."""

import numpy as np
import pytest
from vector_data import load

from gristmill import MapDataset
from gristmill.experimental import ElasticIterator, multithread_prefetch
from gristmill.sharding import ShardOptions

CASES = load("exp_misc")["elastic"]["cases"]
THREAD_CASES = load("exp_misc")["multithread_prefetch"]["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['length']} {case['global_batch_size']} {case['shard_count']}")
def test_elastic(case):
    ds, size, count = MapDataset.range(case["length"]), case["global_batch_size"], case["shard_count"]
    per_shard = [[x.tolist() for x in ElasticIterator(ds, size, ShardOptions(i, count))] for i in range(count)]
    # Grain's shards end at different steps; ours all with the last whole global batch.
    steps = case["length"] // size
    assert per_shard == [batches[:steps] for batches in case["per_shard"]]
    assert {len(batches) for batches in per_shard} == {steps}


def test_elastic_cases():
    assert [len({len(batches) for batches in case["per_shard"]}) for case in CASES] == [1, 1, 2, 1, 2]


@pytest.mark.parametrize("case", THREAD_CASES, ids=lambda case: f"{case['n']} {case['num_threads']}")
def test_multithread_prefetch(case):
    ds, num = MapDataset.range(case["n"]).to_iter_dataset(), case["num_threads"]
    assert list(multithread_prefetch(ds, num, 1)) == case["output"]
    assert list(multithread_prefetch(ds, num, 1, sequential_slice=True)) == case["sequential"]
    assert [x.tolist() for x in multithread_prefetch(ds.batch(2), num, 1)] == case["batched2"]
    assert all(isinstance(x, np.ndarray) for x in multithread_prefetch(ds.batch(2), num, 1))
