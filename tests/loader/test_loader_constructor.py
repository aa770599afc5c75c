"""What the constructors of ``DataLoader`` and ``load`` accept, refuse and show."""

import os
from itertools import islice

import cloudpickle
import numpy as np
from loaders import DRAW, TO_TUPLE, DrawOld, Kept, Mapped, Source, make
from refusing import assert_raises

import gristmill
from gristmill import Batch, DataLoader, IndexSampler, ReadOptions, SequentialSampler, ShardOptions, load

PLUS_ONE = Mapped(lambda x: x + 1)
NO_SEED = "is random and needs a sampler with a seed"


def test_arguments_are_keywords_and_wrong_ones_are_refused_in_grain_s_order():
    for changes, kind, message in [
        ({"worker_count": -1}, ValueError, "worker_count must be a non-negative integer, got -1"),
        ({"worker_buffer_size": -2}, ValueError, "worker_buffer_size must be a non-negative integer, got -2"),
        ({"worker_count": 1.7}, TypeError, "worker_count must be an integer, got 1.7 of type float"),
        ({"worker_buffer_size": "1"}, TypeError, "worker_buffer_size must be an integer, got '1' of type str"),
        ({"worker_count": 1, "worker_buffer_size": 0}, ValueError, "worker_buffer_size must be a positive integer, got 0"),
        ({"operations": None}, TypeError, "operations must be a sequence of transformations, got None of type NoneType"),
        ({"operations": Batch(2)}, TypeError, r"operations must be a sequence of transformations, got Batch\(batch_size=2"),
        ({"operations": [PLUS_ONE, 5]}, TypeError, r"operations\[1\] must be a transformation .* got 5 of type int"),
        ({"operations": [None]}, TypeError, r"operations\[0\] must be a transformation .* got None of type NoneType"),
        ({"operations": [Mapped]}, TypeError, r"operations\[0\] must be .* \(an instance of .* got <class '.*Mapped'>"),
        ({"operations": [Batch]}, TypeError, r"operations\[0\] must be .* \(an instance of .* got <class '.*Batch'>"),
        ({"operations": [Batch(0)]}, ValueError, "batch_size must be a positive integer, got 0"),
        ({"operations": [Batch(2.5)]}, TypeError, "batch_size must be an integer, got 2.5 of type float"),
        ({"operations": [Batch(2, batch_fn=3)]}, TypeError, "batch_fn must be a callable of a list of elements, got 3"),
        ({"operations": [PLUS_ONE, DRAW], "sampler": IndexSampler(3)}, ValueError, rf"operations\[1\], RandomMapped, {NO_SEED}"),
        ({"operations": [DrawOld()], "sampler": SequentialSampler(3)}, ValueError, rf"operations\[0\], DrawOld, {NO_SEED}"),
        ({"shard_options": (0, 1)}, TypeError, r"shard_options must be a ShardOptions, got \(0, 1\)"),
        ({"read_options": 16}, TypeError, "read_options must be a ReadOptions, got 16"),
        ({"sampler": 6}, TypeError, "sampler must have __getitem__, got 6 of type int"),
        ({"data_source": 6}, TypeError, "data_source must have __getitem__ and __len__ .*, got 6 of type int"),
        ({"sampler": []}, ValueError, "shard_options must be passed to the DataLoader: the sampler list has no sharding"),
    ]:
        assert_raises(kind, message, make, 6, **changes)
    given = {"data_source": [1, 2], "sampler": SequentialSampler(2)}
    assert list(DataLoader(**given)) == [1, 2]
    assert_raises(TypeError, "by keyword", DataLoader, *given.values())
    everything_wrong = {"worker_count": -1, "worker_buffer_size": -1, "operations": [Batch(0)], "sampler": [0]}
    for name in ("worker_count", "worker_buffer_size", "batch_size", "shard_options"):
        assert_raises(ValueError, name, make, 6, **everything_wrong)
        del everything_wrong[{"batch_size": "operations", "shard_options": "sampler"}.get(name, name)]


def test_number_of_workers_and_what_the_repr_shows():
    for worker_count in (1, 2, True, np.int64(3), None):
        num_workers = make(6, worker_count=worker_count).multiprocessing_options.num_workers
        assert num_workers == int(worker_count or os.cpu_count()) and type(num_workers) is int
    for worker_count in (0, False, np.int8(0)):
        loader = make(6, worker_count=worker_count, worker_buffer_size=0, enable_profiling=True)
        options = loader.multiprocessing_options
        assert options == gristmill.MultiprocessingOptions(0, 0, True) and type(options.num_workers) is int
    assert_raises(AttributeError, None, setattr, loader, "multiprocessing_options", options)
    loader = make(6, PLUS_ONE, Batch(2), sampler=IndexSampler(6, num_epochs=1, seed=0), read_options=ReadOptions(1, 2))
    shard = "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"
    assert repr(loader) == (
        "DataLoader(data_source=RangeDataSource(start=0, stop=6, step=1), "
        f"sampler=IndexSampler(num_records=6, shard_options={shard}, shuffle=False, num_epochs=1, seed=0), "
        f"operations=[Mapped, Batch(batch_size=2, drop_remainder=False, batch_fn=None)], shard_options={shard}, "
        "worker_count=0, read_options=ReadOptions(num_threads=1, prefetch_buffer_size=2))"
    )
    assert len(repr(make(6, data_source=list(range(100_000))))) < 1000


def test_operations_are_copied_and_nothing_happens_at_construction_and_loaders_travel():
    operations = [PLUS_ONE]
    loader = make(3, operations=operations)
    operations.append(Batch(2))
    assert list(loader) == [1, 2, 3]
    assert list(make(3, operations=(operation for operation in (PLUS_ONE, PLUS_ONE)))) == [2, 3, 4]
    make(3, lambda records: 1 / 0, data_source=Source(3, lambda key: 1 / 0))
    loader = make(6, TO_TUPLE, Kept(lambda x: x != (3,)), lambda records: records, DRAW, Batch(2))
    next(it := iter(loader))
    copy = cloudpickle.loads(cloudpickle.dumps(loader))
    copied = iter(copy)
    copied.set_state(it.get_state())
    np.testing.assert_equal(list(copied), list(it))
    copy.close()


def test_load_is_the_loader_of_its_parts():
    for source, arguments, kind, message in [
        ([], {}, ValueError, "num_records must be a positive integer, got 0"),
        ([1], {"shuffle": True}, ValueError, "shuffle=True needs a seed"),
        ([1], {"worker_count": -2}, ValueError, "worker_count must be a non-negative integer, got -2"),
        ([1], {"transformations": [DRAW]}, ValueError, "needs a sampler with a seed"),
        ([1], {"transformations": None}, TypeError, "transformations must be a sequence"),
        (iter([1]), {}, TypeError, "source must have __getitem__ and __len__"),
        ([1], {"worker_buffer_size": 2}, TypeError, "worker_buffer_size"),
    ]:
        assert_raises(kind, message, load, source, **arguments)
    batches = list(load(range(7), shuffle=True, seed=1, num_epochs=1, batch_size=3))
    assert [batch.tolist() for batch in batches] == [[5, 2, 6], [0, 4, 1], [3]]
    assert list(islice(load([1, 2]), 7)) == [1, 2, 1, 2, 1, 2, 1]  # endless by default
    assert list(load([1, 2, 3], num_epochs=1, drop_remainder=True)) == [1, 2, 3]
    shard = ShardOptions(1, 2, drop_remainder=True)
    operations, options = [TO_TUPLE, DRAW], ReadOptions(0, 0)
    given = {"transformations": operations, "batch_size": 3, "drop_remainder": True, "read_options": options, "worker_count": 0}
    loader = load(range(9), num_epochs=2, shuffle=True, seed=3, shard_options=shard, **given)
    same = make(9, *operations, Batch(3, True), data_source=range(9), sampler=IndexSampler(9, shard, True, 2, 3))
    np.testing.assert_equal(list(loader), list(same))
    assert repr(loader) == repr(same) and options == ReadOptions(0, 0)
