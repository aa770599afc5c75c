"""An order that comes from elsewhere is kept: a state goes on with the same indices, or is refused."""

import random
from itertools import islice

import numpy as np
import pytest
from refusing import assert_raises

from gristmill import DataLoader, IterableSampler, ShardOptions
from gristmill.core.errors import StateMismatchError
from gristmill.samplers.base import epoch_of
from gristmill.testing import assert_sampler_conforms


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


def keys(sampler):
    return [metadata.record_key for metadata in sampler]


def test_the_indices_are_those_of_the_iterable_and_every_epoch_asks_anew():
    given = [([3, np.int64(1)], [3, 1]), (np.array([3, 1], np.uint8), [3, 1]), (range(2), [0, 1]), ([], [])]
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
def test_a_state_goes_on_with_the_same_indices_or_is_refused(num_workers):
    def start(indices):
        sampler = IterableSampler(indices, num_epochs=2)
        return iter(DataLoader(data_source=range(20), sampler=sampler, worker_count=num_workers))

    with start(Drawn(0)) as it, start(Drawn(0)) as same, start(Drawn()) as other:
        first = [next(it) for _ in range(5)]
        state = it.get_state()
        same.set_state(state)
        rest = list(it)
        assert list(same) == rest and first + rest == keys(IterableSampler(Drawn(0), num_epochs=2))
        assert_raises(StateMismatchError, r"content=\w+.* The indices must be the same: a random sampler", other.set_state, state)


def test_shards_and_workers_share_the_indices_out():
    order = [7, 0, 3, 9, 9, 1, 4]
    for count, drop in ((2, False), (3, True)):
        shards = [ShardOptions(index, count, drop) for index in range(count)]
        loaders = [DataLoader(data_source=range(10), sampler=IterableSampler(order), shard_options=shard) for shard in shards]
        stop = len(order) // count * count if drop else len(order)
        assert [list(loader) for loader in loaders] == [order[index:stop:count] for index in range(count)]


def test_refused_arguments_indices_outside_the_source_and_samplers_that_give_indices():
    for arguments, kind, message in [
        ({"indices": 3}, TypeError, "indices must be an iterable of integers .* got 3 of type int"),
        ({"indices": [1, 2.0]}, TypeError, r"indices must be integers, got 2.0 of type float from list"),
        ({"indices": [[1, 2]]}, TypeError, r"got \[1, 2\] of type list from list: batches are made by"),
        ({"indices": np.zeros((2, 2), int)}, TypeError, r"array of integers \[n\], got one of shape \(2, 2\)"),
        ({"indices": np.array([True, False])}, TypeError, "array of integers .* type bool"),
        ({"indices": [2, -1]}, ValueError, "indices must be positions of records, from 0 on, got -1"),
        ({"indices": iter([2]), "num_epochs": 2}, ValueError, "none in epoch 1: list_iterator can be gone through only once"),
        ({"indices": [2], "num_epochs": None}, TypeError, "num_epochs must be an integer, got None"),
        ({"indices": [2], "seed": -1}, ValueError, "seed must be"),
    ]:
        assert_raises(kind, message, IterableSampler, **arguments)
    message = "the indices of the sampler must be below 3, the number of records, got 3"
    assert_raises(ValueError, message, DataLoader, data_source=[*"abc"], sampler=IterableSampler([0, 3]))
    for sampler in (Drawn(), [0], np.arange(2)):
        message = r"write gristmill\.samplers\.IterableSampler\(sampler\)$"
        assert_raises((TypeError, ValueError), message, DataLoader, data_source=[*"abc"], sampler=sampler)
    loader = DataLoader(data_source=[*"abc"], sampler=[0], shard_options=ShardOptions(0, 1))
    assert_raises(TypeError, r"got 0 from sampler\[0\]; .*IterableSampler\(indices\)", next, iter(loader))
