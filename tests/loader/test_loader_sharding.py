"""Which elements a ``DataLoader`` reads: sharding, lengths of samplers, keys past the end (see also the vectors of loaders)."""

import itertools
import sys

import pytest
from loaders import DIRECT, Source, make, run
from refusing import assert_raises

from gristmill import DataLoader, IndexSampler, ReadOptions, RecordMetadata, SequentialSampler
from gristmill.sharding import NoSharding, ShardByJaxProcess, ShardOptions


def elements(sampler, n=10, **arguments):
    return run(n, sampler=sampler, **arguments)


class Squares:  # a sampler without a length that is no class of ours; counts how often it is asked
    def __init__(self, length):
        self.length = length
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        if index < 0 or index >= self.length:
            raise IndexError(index)
        return RecordMetadata(index=index, record_key=index * index % 10)


def with_length(n, real):
    return type("Squares", (Squares,), {"__len__": lambda self: n})(real)


def test_the_loader_s_sharding_overrides_the_sampler_s_and_warns_if_they_differ():
    assert elements(IndexSampler(8, NoSharding(), num_epochs=1), shard_options=ShardOptions(1, 2)) == [1, 3, 5, 7]
    sampler = IndexSampler(8, ShardOptions(0, 2), num_epochs=1)
    with pytest.warns(UserWarning, match="replaces that of the sampler") as caught:
        assert elements(sampler, shard_options=ShardOptions(0, 4)) == [0, 2]
    assert all(f"ShardOptions(shard_index=0, shard_count={count}" in str(caught[0].message) for count in (4, 2))
    with pytest.warns(UserWarning, match="replaces that of the sampler"):
        elements(sampler, shard_options=ShardOptions(1, 2))
    sampler = IndexSampler(6, ShardOptions(1, 3), num_epochs=1)
    assert elements(sampler) == elements(sampler, shard_options=None) == [2, 3]
    none, whole, half = NoSharding(), ShardOptions(0, 1), ShardOptions(1, 2)
    for own, given in ((half, half), (none, half), (none, none), (whole, none), (ShardByJaxProcess(), whole)):
        elements(SequentialSampler(8, own), shard_options=given)  # pytest makes an error of a warning
    mine = type("Mine", (ShardOptions,), {})  # counts as the sampler's
    assert elements(IndexSampler(8, ShardOptions(2, 3), num_epochs=2), shard_options=mine(2, 3)) == [6, 7, 6, 7]


class TestSamplersOfUsers:
    @pytest.mark.parametrize("length", [0, 1, 2, 7, 2**20, 2**40 + 3])
    def test_lengths_are_found_by_bisection(self, length):
        sampler = Squares(length)
        it = iter(make(10, sampler=sampler, shard_options=NoSharding()))
        assert len(sampler.asked) <= 100 and {type(index) for index in sampler.asked} <= {int}
        state = it.get_state().replace(b'"0": -1', f'"0": {length - 1}'.encode())
        it.set_state(state)
        assert list(it) == []
        with pytest.raises(IndexError, match=rf"\[0, {length}\]"):
            it.set_state(state.replace(f'"0": {length - 1}'.encode(), f'"0": {length}'.encode()))

    def test_shards(self):
        sampler = Squares(4)  # may carry one of its own
        sampler._shard_options = (0, 1)
        assert_raises(ValueError, "has no sharding of its own", elements, sampler)
        sampler._shard_options = ShardOptions(1, 2)
        assert elements(sampler) == [1, 9]
        for index in range(3):
            sampler, shard = Squares(8), ShardOptions(index, 3)
            assert elements(sampler, shard_options=shard) == [i * i % 10 for i in range(index, 8, 3)]
            kept = elements(sampler, shard_options=ShardOptions(index, 3, drop_remainder=True))
            assert kept == [i * i % 10 for i in range(index, 6, 3)]
            assert {type(index) for index in sampler.asked} == {int}
        endless = make(10, sampler=Squares(sys.maxsize * 4), shard_options=ShardOptions(1, 2))
        assert list(itertools.islice(endless, 4)) == [1, 9, 5, 9]

    def test_lengths_that_are_not_true(self):
        for options in (DIRECT, ReadOptions(2, 8)):
            it = iter(make(10, sampler=with_length(100, 3), shard_options=NoSharding(), read_options=options))
            assert list(it) == [0, 1, 4] and next(it, "the end") == "the end"
        assert elements(with_length(2, 9), shard_options=NoSharding()) == [0, 1]
        sampler = [RecordMetadata(i, key) for i, key in enumerate("bca")]
        source = {"a": 1, "b": 2, "c": 3}
        assert list(DataLoader(data_source=source, sampler=sampler, shard_options=NoSharding())) == [2, 3, 1]


class TestKeysPastTheEnd:
    def test_begin_anew_with_a_warning(self):
        for sampler in (SequentialSampler(7), IndexSampler(7, num_epochs=1)):
            with pytest.warns(UserWarning, match="num_records=7, but the source only 3 records"):
                loader = DataLoader(data_source=[10, 11, 12], sampler=sampler)
            assert list(loader) == [10, 11, 12, 10, 11, 12, 10]
        assert elements(SequentialSampler(3)) == [0, 1, 2]  # a shorter sampler is no mistake
        negative = [RecordMetadata(0, -1), RecordMetadata(1, -11)]
        assert elements(negative, shard_options=NoSharding()) == [9, 9]
        sampler = IndexSampler(50, shuffle=True, seed=1, num_epochs=2)
        assert set(elements(sampler, data_source=Source(50, type))) == {int}

    def test_sources_without_length_or_records(self):
        for source in (type("Squaring", (), {"__getitem__": lambda self, key: key * key})(), Source(None, lambda key: key * key)):
            assert elements(SequentialSampler(4), data_source=source) == [0, 1, 4, 9]
        it = iter(DataLoader(data_source=[], sampler=SequentialSampler(4)))
        assert_raises(IndexError, "the source list is empty", next, it)
