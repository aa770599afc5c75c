"""Which elements a ``DataLoader`` reads: sharding, lengths of samplers, keys past the end of the source."""

import itertools
import sys
import warnings

import pytest

from gristmill import DataLoader, ReadOptions, RecordMetadata
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from gristmill.sources import RangeDataSource

DIRECT = ReadOptions(0, 0)


def elements(sampler, n=10, **arguments):
    return list(DataLoader(data_source=RangeDataSource(0, n, 1), sampler=sampler, read_options=DIRECT, **arguments))


class Squares:
    """A sampler without a length that is no class of ours; counts how often it is asked."""

    def __init__(self, length):
        self.length = length
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        if index < 0 or index >= self.length:
            raise IndexError(index)
        return RecordMetadata(index=index, record_key=index * index % 10)


class TestWhichSharding:
    def test_the_loader_s_overrides_the_sampler_s(self):
        assert elements(IndexSampler(8, NoSharding(), num_epochs=1), shard_options=ShardOptions(1, 2)) == [1, 3, 5, 7]

    def test_two_different_ones_warn(self):
        sampler = IndexSampler(8, ShardOptions(0, 2), num_epochs=1)
        with pytest.warns(UserWarning, match="replaces that of the sampler") as caught:
            assert elements(sampler, shard_options=ShardOptions(0, 4)) == [0, 2]
        assert "ShardOptions(shard_index=0, shard_count=4" in str(caught[0].message)
        assert "ShardOptions(shard_index=0, shard_count=2" in str(caught[0].message)

    @pytest.mark.parametrize(
        ("own", "given"),
        [
            (ShardOptions(1, 2), ShardOptions(1, 2)),
            (NoSharding(), ShardOptions(1, 2)),
            (NoSharding(), NoSharding()),
            (ShardOptions(0, 1), NoSharding()),
            (NoSharding(), ShardOptions(0, 1)),
            (ShardByJaxProcess(), ShardOptions(0, 1)),
        ],
        ids=str,
    )
    def test_sharding_that_agrees_does_not_warn(self, own, given):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            elements(SequentialSampler(8, own), shard_options=given)

    def test_attributes_of_that_name_which_are_no_sharding_do_not_count(self):
        sampler = Squares(4)
        sampler._shard_options = (0, 1)
        with pytest.raises(ValueError, match="has no sharding of its own"):
            elements(sampler)

    def test_a_user_s_sampler_may_carry_sharding(self):
        sampler = Squares(4)
        sampler._shard_options = ShardOptions(1, 2)
        assert elements(sampler) == [1, 9]


class TestRemainder:
    @pytest.mark.parametrize("num_records", [1, 2, 7, 8])
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_every_shard_has_its_piece_in_every_epoch(self, num_records, count):
        num_epochs, shuffle = 1 + (num_records + count) % 3, (num_records + count // 2) % 2 == 0
        everything = []
        for i in range(count):
            sampler = IndexSampler(num_records, ShardOptions(i, count), shuffle, num_epochs, seed=1)
            own = elements(sampler, num_records)
            size = len(own) // num_epochs
            epochs = [sorted(own[e * size : (e + 1) * size]) for e in range(num_epochs)]
            assert all(epoch == epochs[0] for epoch in epochs)
            everything += own
        assert sorted(everything) == sorted([*range(num_records)] * num_epochs)

    def test_same_sharding_by_another_class_counts_as_the_sampler_s(self):
        class Mine(ShardOptions):
            pass

        sampler = IndexSampler(8, ShardOptions(2, 3), num_epochs=2)
        assert elements(sampler, shard_options=Mine(2, 3)) == [6, 7, 6, 7]

    def test_drop_remainder(self):
        shards = [IndexSampler(8, ShardOptions(i, 3, drop_remainder=True), num_epochs=2) for i in range(3)]
        assert [elements(sampler) for sampler in shards] == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 4, 5]]

    def test_sequential(self):
        assert [elements(SequentialSampler(8, ShardOptions(i, 3))) for i in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]
        assert [elements(SequentialSampler(8, ShardOptions(i, 3, True))) for i in range(3)] == [[0, 3], [1, 4], [2, 5]]

    def test_fewer_records_than_shards(self):
        for i, expected in enumerate([[0, 0], [1, 1], []]):
            assert elements(IndexSampler(2, ShardOptions(i, 3), num_epochs=2)) == expected
            assert elements(IndexSampler(2, ShardOptions(i, 3, True), num_epochs=2)) == []


class TestSamplersOfUsers:
    def test_length_by_bisection(self):
        sampler = Squares(7)
        loader = DataLoader(data_source=range(10), sampler=sampler, shard_options=NoSharding())
        assert len(sampler.asked) <= 64
        assert list(loader) == [0, 1, 4, 9, 6, 5, 6]

    @pytest.mark.parametrize("length", [0, 1, 2, 2**20, 2**40 + 3])
    def test_lengths_of_all_sizes(self, length):
        loader = DataLoader(data_source=range(10), sampler=Squares(length), shard_options=NoSharding(), read_options=DIRECT)
        it = iter(loader)
        state = it.get_state().replace(b'"0": -1', f'"0": {length - 1}'.encode())
        it.set_state(state)
        assert list(it) == []
        with pytest.raises(IndexError, match=rf"\[0, {length}\]"):
            it.set_state(state.replace(f'"0": {length - 1}'.encode(), f'"0": {length}'.encode()))

    def test_shards(self):
        for index in range(3):
            sampler, shard = Squares(8), ShardOptions(index, 3)
            assert elements(sampler, shard_options=shard) == [i * i % 10 for i in range(index, 8, 3)]
            kept = elements(sampler, shard_options=ShardOptions(index, 3, drop_remainder=True))
            assert kept == [i * i % 10 for i in range(index, 6, 3)]

    def test_endless(self):
        loader = DataLoader(data_source=range(10), sampler=Squares(sys.maxsize * 4), shard_options=ShardOptions(1, 2))
        assert list(itertools.islice(loader, 4)) == [1, 9, 5, 9]

    def test_an_overstated_length_is_an_end(self):
        class Overstating(Squares):
            def __len__(self):
                return 100

        for options in (DIRECT, ReadOptions(2, 8)):
            it = iter(DataLoader(data_source=range(10), sampler=Overstating(3), shard_options=NoSharding(), read_options=options))
            assert list(it) == [0, 1, 4]
            with pytest.raises(StopIteration):
                next(it)

    def test_an_understated_length_is_respected(self):
        class Understating(Squares):
            def __len__(self):
                return 2

        assert elements(Understating(9), shard_options=NoSharding()) == [0, 1]

    def test_a_list_of_metadata_is_a_sampler(self):
        sampler = [RecordMetadata(i, key) for i, key in enumerate("bca")]
        source = {"a": 1, "b": 2, "c": 3}
        assert list(DataLoader(data_source=source, sampler=sampler, shard_options=NoSharding())) == [2, 3, 1]

    def test_indices_are_built_in_integers(self):
        sampler = Squares(5)
        sampler.asked.clear()
        elements(sampler, shard_options=ShardOptions(1, 2))
        assert {type(index) for index in sampler.asked} == {int}


class TestKeysPastTheEnd:
    @pytest.mark.parametrize("sampler", [SequentialSampler(7), IndexSampler(7, num_epochs=1)])
    def test_begin_anew_with_a_warning(self, sampler):
        with pytest.warns(UserWarning, match="num_records=7, but the source only 3 records"):
            loader = DataLoader(data_source=[10, 11, 12], sampler=sampler)
        assert list(loader) == [10, 11, 12, 10, 11, 12, 10]

    def test_a_shorter_sampler_is_no_mistake(self):
        assert elements(SequentialSampler(3)) == [0, 1, 2]

    def test_negative_keys_count_from_the_end(self):
        sampler = [RecordMetadata(0, -1), RecordMetadata(1, -11)]
        assert elements(sampler, shard_options=NoSharding()) == [9, 9]

    def test_a_source_without_length_gets_the_keys_as_they_are(self):
        class Squaring:
            def __getitem__(self, key):
                return key * key

        class WithNone(Squaring):
            def __len__(self):
                return None

        for source in (Squaring(), WithNone()):
            assert list(DataLoader(data_source=source, sampler=SequentialSampler(4))) == [0, 1, 4, 9]

    def test_an_empty_source(self):
        it = iter(DataLoader(data_source=[], sampler=SequentialSampler(4)))
        with pytest.raises(IndexError, match="the source list is empty"):
            next(it)

    def test_keys_are_built_in_integers(self):
        class Typed:
            def __len__(self):
                return 50

            def __getitem__(self, key):
                return type(key)

        sampler = IndexSampler(50, shuffle=True, seed=1, num_epochs=2)
        assert set(DataLoader(data_source=Typed(), sampler=sampler)) == {int}
