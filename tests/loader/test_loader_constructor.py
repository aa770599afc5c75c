"""What the constructors of ``DataLoader`` and ``load`` accept, refuse and show."""

import dataclasses
import os

import cloudpickle
import numpy as np
import pytest

import gristmill
from gristmill import DataLoader, ReadOptions, load
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions
from gristmill.sources import RangeDataSource
from gristmill.transforms import Batch, Filter, Map, RandomMap, TfRandomMap


class PlusOne(Map):
    def map(self, element):
        return element + 1


class Random(RandomMap):
    def random_map(self, element, rng):
        return element + int(rng.integers(10))


class OldRandom(TfRandomMap):
    def np_random_map(self, element, rng):
        return element + int(rng.integers(10))


def make(**changes):
    arguments = {"data_source": RangeDataSource(0, 6, 1), "sampler": IndexSampler(6, num_epochs=1, seed=0)}
    return DataLoader(**{**arguments, **changes})


def test_all_arguments_are_keywords_and_two_are_required():
    source, sampler = [1, 2], SequentialSampler(2)
    assert list(DataLoader(data_source=source, sampler=sampler)) == [1, 2]
    for arguments in ({"data_source": source}, {"sampler": sampler}, {"data_source": source, "sampler": sampler, "batch": 1}):
        with pytest.raises(TypeError):
            DataLoader(**arguments)
    with pytest.raises(TypeError):
        DataLoader(source, sampler)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"worker_count": -1}, ValueError, "worker_count must be a non-negative integer, got -1"),
        ({"worker_buffer_size": -2}, ValueError, "worker_buffer_size must be a non-negative integer, got -2"),
        ({"worker_count": 1.7}, TypeError, "worker_count must be an integer, got 1.7 of type float"),
        ({"worker_count": "2"}, TypeError, "worker_count must be an integer, got '2' of type str"),
        ({"worker_buffer_size": 1.0}, TypeError, "worker_buffer_size must be an integer, got 1.0 of type float"),
        ({"worker_count": 1, "worker_buffer_size": 0}, ValueError, "worker_buffer_size must be a positive integer, got 0"),
        ({"operations": None}, TypeError, "operations must be a sequence of transformations, got None of type NoneType"),
        ({"operations": PlusOne()}, TypeError, "operations must be a sequence of transformations"),
        ({"operations": Batch(2)}, TypeError, r"operations must be a sequence of transformations, got Batch\(batch_size=2"),
        ({"operations": [PlusOne(), 5]}, TypeError, r"operations\[1\] must be a transformation .* got 5 of type int"),
        ({"operations": [None]}, TypeError, r"operations\[0\] must be a transformation .* got None of type NoneType"),
        ({"operations": [PlusOne]}, TypeError, r"operations\[0\] must be .* \(an instance of .* got <class '.*PlusOne'>"),
        ({"operations": [Batch]}, TypeError, r"operations\[0\] must be .* \(an instance of .* got <class '.*Batch'>"),
        ({"operations": [Batch(0)]}, ValueError, "batch_size must be a positive integer, got 0"),
        ({"operations": [Batch(2.5)]}, TypeError, "batch_size must be an integer, got 2.5 of type float"),
        ({"operations": [Batch(2, batch_fn=3)]}, TypeError, "batch_fn must be a callable of a list of elements, got 3"),
        ({"shard_options": (0, 1)}, TypeError, r"shard_options must be a ShardOptions, got \(0, 1\)"),
        ({"read_options": 16}, TypeError, "read_options must be a ReadOptions, got 16"),
        ({"sampler": 6}, TypeError, "sampler must have __getitem__, got 6 of type int"),
        ({"data_source": 6}, TypeError, "data_source must have __getitem__, got 6 of type int"),
    ],
)
def test_refused_arguments(changes, kind, message):
    with pytest.raises(kind, match=message):
        make(**changes)


def test_checks_come_in_grain_s_order():
    everything_wrong = {"worker_count": -1, "worker_buffer_size": -1, "operations": [Batch(0)], "sampler": [0]}
    for name in ("worker_count", "worker_buffer_size", "batch_size", "shard_options"):
        with pytest.raises(ValueError, match=name):
            make(**everything_wrong)
        del everything_wrong[{"batch_size": "operations", "shard_options": "sampler"}.get(name, name)]


@pytest.mark.parametrize("worker_count", [1, 2, True, np.int64(3), None])
def test_number_of_workers(worker_count):
    options = make(worker_count=worker_count).multiprocessing_options
    assert options.num_workers == int(worker_count or os.cpu_count())
    assert type(options.num_workers) is int


@pytest.mark.parametrize("worker_count", [0, False, np.int8(0)])
def test_no_workers(worker_count):
    loader = make(worker_count=worker_count, worker_buffer_size=0, enable_profiling=True)
    options = loader.multiprocessing_options
    assert options == gristmill.MultiprocessingOptions(0, 0, True)
    assert type(options.num_workers) is int
    with pytest.raises(AttributeError):
        loader.multiprocessing_options = options


def test_a_sampler_without_sharding_needs_shard_options():
    with pytest.raises(ValueError, match="shard_options must be passed to the DataLoader: the sampler list has no sharding"):
        make(sampler=[gristmill.RecordMetadata(0, 0)])


@pytest.mark.parametrize(("random", "sampler"), [(Random(), IndexSampler(3)), (OldRandom(), SequentialSampler(3))])
def test_random_operations_need_a_seed(random, sampler):
    with pytest.raises(ValueError, match=rf"operations\[1\], {type(random).__name__}, is random and needs a sampler with a seed"):
        make(sampler=sampler, operations=[PlusOne(), random])


def test_nothing_happens_at_construction():
    class Untouched:
        def __len__(self):
            return 3

        def __getitem__(self, key):
            raise AssertionError

    make(data_source=Untouched(), sampler=SequentialSampler(3), operations=[lambda records: 1 / 0])


def test_operations_are_copied_from_any_iterable():
    operations = [PlusOne()]
    loader = make(operations=operations)
    operations.append(Batch(2))
    assert list(loader) == [1, 2, 3, 4, 5, 6]
    assert list(make(operations=(operation for operation in (PlusOne(), PlusOne())))) == [2, 3, 4, 5, 6, 7]


def test_no_length_but_a_repr_that_shows_what_the_loader_does():
    with pytest.raises(TypeError):
        len(make())
    loader = make(operations=[PlusOne(), Batch(2)], read_options=ReadOptions(1, 2))
    shard = "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"
    assert repr(loader) == (
        "DataLoader(data_source=RangeDataSource(start=0, stop=6, step=1), "
        f"sampler=IndexSampler(num_records=6, shard_options={shard}, shuffle=False, num_epochs=1, seed=0), "
        f"operations=[PlusOne, Batch(batch_size=2, drop_remainder=False, batch_fn=None)], shard_options={shard}, "
        "worker_count=0, read_options=ReadOptions(num_threads=1, prefetch_buffer_size=2))"
    )
    assert len(repr(make(data_source=list(range(100_000))))) < 1000


def test_cloudpickle():
    class Local(Map):
        def map(self, element):
            return element * 10

    class Keep(Filter):
        def filter(self, element):
            return element != 30

    loader = make(operations=[Local(), Keep(), lambda records: records, Random(), Batch(2)])
    it = iter(loader)
    next(it)
    copy = cloudpickle.loads(cloudpickle.dumps(loader))
    copied = iter(copy)
    copied.set_state(it.get_state())
    np.testing.assert_equal(list(copied), list(it))
    copy.close()


class TestLoad:
    def test_the_check_of_the_specification(self):
        batches = list(load(RangeDataSource(0, 7, 1), shuffle=True, seed=1, num_epochs=1, batch_size=3))
        assert [batch.tolist() for batch in batches] == [[5, 2, 6], [0, 4, 1], [3]]

    def test_endless_by_default(self):
        it = iter(load([1, 2]))
        assert [next(it) for _ in range(7)] == [1, 2, 1, 2, 1, 2, 1]

    def test_is_the_loader_of_its_parts(self):
        shard = ShardOptions(1, 2, drop_remainder=True)
        loader = load(
            range(9),
            num_epochs=2,
            shuffle=True,
            seed=3,
            shard_options=shard,
            transformations=[PlusOne(), Random()],
            batch_size=3,
            drop_remainder=True,
            read_options=ReadOptions(0, 0),
        )
        same = DataLoader(
            data_source=range(9),
            sampler=IndexSampler(9, shard, True, 2, 3),
            operations=[PlusOne(), Random(), Batch(3, True)],
            read_options=ReadOptions(0, 0),
        )
        np.testing.assert_equal(list(loader), list(same))
        assert repr(loader) == repr(same)

    @pytest.mark.parametrize(
        ("source", "arguments", "kind", "message"),
        [
            ([], {}, ValueError, "num_records must be a positive integer, got 0"),
            ([1], {"batch_size": 0}, ValueError, "batch_size must be a positive integer, got 0"),
            ([1], {"batch_size": "2"}, TypeError, "batch_size must be an integer"),
            ([1], {"shuffle": True}, ValueError, "shuffle=True needs a seed"),
            ([1], {"num_epochs": 0}, ValueError, "num_epochs must be a positive integer, got 0"),
            ([1], {"worker_count": -2}, ValueError, "worker_count must be a non-negative integer, got -2"),
            ([1], {"transformations": [Random()]}, ValueError, "needs a sampler with a seed"),
        ],
    )
    def test_errors_are_those_of_the_parts(self, source, arguments, kind, message):
        with pytest.raises(kind, match=message):
            load(source, **arguments)
        with pytest.raises(TypeError):
            load([1], worker_buffer_size=2)

    def test_drop_remainder_without_batch_size_does_nothing(self):
        assert list(load([1, 2, 3], num_epochs=1, drop_remainder=True)) == [1, 2, 3]


def test_options_are_not_shared_between_loaders():
    options = ReadOptions(2, 4)
    assert list(make(read_options=options)) == list(make(read_options=dataclasses.replace(options, num_threads=0)))
    assert options == ReadOptions(2, 4)


def test_default_sharding_is_the_sampler_s():
    sampler = IndexSampler(6, ShardOptions(1, 3), num_epochs=1)
    assert list(make(sampler=sampler)) == [2, 3]
    assert list(make(sampler=sampler, shard_options=None)) == [2, 3]
    assert list(make(sampler=SequentialSampler(6), shard_options=NoSharding())) == [0, 1, 2, 3, 4, 5]
