"""The elements of a DataLoader, and its operations."""

import copy
import itertools
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from loaders import (
    AS_RECORDS,
    DIRECT,
    DRAW,
    TO_TUPLE,
    WITH_INDEX,
    DrawOld,
    Kept,
    Mapped,
    Source,
    make,
    run,
)
from refusing import assert_raises

from gristmill import (
    DataLoader,
    DataLoaderIterator,
    IndexSampler,
    ReadOptions,
    Record,
    RecordMetadata,
    SequentialSampler,
)
from gristmill.python import BatchOperation, FilterOperation, MapOperation, RandomMapOperation
from gristmill.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from gristmill.testing import assert_equal_output_after_checkpoint
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap


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


def test_the_loader_s_sharding_overrides_the_sampler_s():
    assert elements(
        IndexSampler(8, NoSharding(), num_epochs=1), shard_options=ShardOptions(1, 2)
    ) == [1, 3, 5, 7]
    sampler = IndexSampler(8, ShardOptions(0, 2), num_epochs=1)
    with pytest.warns(UserWarning, match="replaces that of the sampler") as caught:
        assert elements(sampler, shard_options=ShardOptions(0, 4)) == [0, 2]
    assert all(
        f"ShardOptions(shard_index=0, shard_count={count}" in str(caught[0].message)
        for count in (4, 2)
    )
    with pytest.warns(UserWarning, match="replaces that of the sampler"):
        elements(sampler, shard_options=ShardOptions(1, 2))
    sampler = IndexSampler(6, ShardOptions(1, 3), num_epochs=1)
    assert elements(sampler) == elements(sampler, shard_options=None) == [2, 3]
    none, whole, half = NoSharding(), ShardOptions(0, 1), ShardOptions(1, 2)
    for own, given in (
        (half, half),
        (none, half),
        (none, none),
        (whole, none),
        (ShardByJaxProcess(), whole),
    ):
        # pytest makes an error of a warning
        elements(SequentialSampler(8, own), shard_options=given)
    mine = type("Mine", (ShardOptions,), {})  # counts as the sampler's
    assert elements(
        IndexSampler(8, ShardOptions(2, 3), num_epochs=2), shard_options=mine(2, 3)
    ) == [6, 7, 6, 7]


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
            assert elements(sampler, shard_options=shard) == [
                i * i % 10 for i in range(index, 8, 3)
            ]
            kept = elements(sampler, shard_options=ShardOptions(index, 3, drop_remainder=True))
            assert kept == [i * i % 10 for i in range(index, 6, 3)]
            assert {type(index) for index in sampler.asked} == {int}
        endless = make(10, sampler=Squares(sys.maxsize * 4), shard_options=ShardOptions(1, 2))
        assert list(itertools.islice(endless, 4)) == [1, 9, 5, 9]

    def test_lengths_that_are_not_true(self):
        for options in (DIRECT, ReadOptions(2, 8)):
            it = iter(
                make(
                    10,
                    sampler=with_length(100, 3),
                    shard_options=NoSharding(),
                    read_options=options,
                )
            )
            assert list(it) == [0, 1, 4] and next(it, "the end") == "the end"
        assert elements(with_length(2, 9), shard_options=NoSharding()) == [0, 1]
        sampler = [RecordMetadata(i, key) for i, key in enumerate("bca")]
        source = {"a": 1, "b": 2, "c": 3}
        assert list(
            DataLoader(data_source=source, sampler=sampler, shard_options=NoSharding())
        ) == [2, 3, 1]


def test_keys_past_the_end_start_again_with_a_warning():
    for sampler in (SequentialSampler(7), IndexSampler(7, num_epochs=1)):
        with pytest.warns(UserWarning, match="num_records=7, but the source only 3 records"):
            loader = DataLoader(data_source=[10, 11, 12], sampler=sampler)
        assert list(loader) == [10, 11, 12, 10, 11, 12, 10]
    assert elements(SequentialSampler(3)) == [0, 1, 2]  # a shorter sampler is no mistake
    negative = [RecordMetadata(0, -1), RecordMetadata(1, -11)]
    assert elements(negative, shard_options=NoSharding()) == [9, 9]
    sampler = IndexSampler(50, shuffle=True, seed=1, num_epochs=2)
    assert set(elements(sampler, data_source=Source(50, type))) == {int}
    for source in (
        type("Squaring", (), {"__getitem__": lambda self, key: key * key})(),
        Source(None, lambda key: key * key),
    ):
        assert elements(SequentialSampler(4), data_source=source) == [0, 1, 4, 9]
    it = iter(DataLoader(data_source=[], sampler=SequentialSampler(4)))
    assert_raises(IndexError, "the source list is empty", next, it)


EMPTY = Mapped(lambda x: ())
LISTS = {"batch_fn": list}


class TestGenerators:
    @pytest.mark.parametrize("first", [DRAW, DrawOld()], ids=["random_map", "np_random_map"])
    def test_a_batch_continues_the_rng_of_its_last_record(self, first):
        assert run(3, EMPTY, first, DRAW) == [(862, 934), (317, 0), (206, 733)]
        assert run(4, EMPTY, Batch(2, **LISTS), EMPTY, DRAW) == [(317,), (208,)]
        batches = run(4, EMPTY, first, Batch(2, **LISTS), EMPTY, DRAW)
        rngs = [np.random.Generator(np.random.Philox(key=3 + i)) for i in (1, 3)]
        assert batches == [(int(rng.integers(1000, size=2)[1]),) for rng in rngs]

    def test_streams_go_by_the_global_index(self):
        whole = run(6, TO_TUPLE, DRAW)
        # regardless of earlier filters
        assert run(6, TO_TUPLE, Kept(lambda x: x[0] % 2), DRAW) == whole[1::2]
        for i in range(3):
            found = run(6, TO_TUPLE, DRAW, sampler=SequentialSampler(6, ShardOptions(i, 3), seed=3))
            assert found == whole[i::3]
        loader = make(6, EMPTY, DRAW, sampler=IndexSampler(6, num_epochs=2, seed=1))
        first = list(loader)
        # an epoch has other streams than the one before
        assert list(loader) == first and len(set(first)) == 12
        it = iter(make(1, DRAW, sampler=[RecordMetadata(0, 0)], shard_options=NoSharding()))
        assert_raises(ValueError, "needs a sampler with a seed", next, it)


class TestDispatch:
    def test_with_the_index_of_the_last_record_of_a_batch(self):
        def refuse(*args):
            raise AssertionError

        methods = dict.fromkeys(["filter", "map_with_index", "__call__"], refuse)
        methods["map"] = lambda self, element: element * 10
        methods["random_map"] = lambda self, element, rng: element * 10
        for bases in (
            (Map, Filter),
            (Filter, Map),
            (Filter, RandomMap),
            (Map,),
            (MapWithIndex, Map),
        ):
            assert run(3, type("Of several", bases, methods)()) == [0, 10, 20]
        sampler = SequentialSampler(6, ShardOptions(1, 2))  # it needs no seed
        assert run(6, WITH_INDEX, data_source=list("abcdef"), sampler=sampler) == [
            (1, "b"),
            (3, "d"),
            (5, "f"),
        ]
        expected = [(2, [0, 2]), (4, [3, 4]), (5, [5])]
        assert run(6, Kept(lambda x: x != 1), Batch(2, **LISTS), WITH_INDEX) == expected

    @pytest.mark.parametrize("before", [[], AS_RECORDS], ids=["data", "records"])
    def test_data_or_records_are_the_same(self, before):
        halved = Mapped(lambda x: None if x is None or x % 2 else x)
        assert run(4, *before, halved, data_source=[0, 1, None, 2]) == [0, None, None, 2]
        assert run(3, *before, Kept(lambda x: x is None), data_source=[0, None, 2]) == [None]
        answers = {0: [], 1: "yes", 2: 0.0, 3: np.array([True]), 4: None, 5: {"a"}}
        assert run(6, *before, Kept(answers.get)) == [1, 3, 5]
        with pytest.raises(ValueError, match="ambiguous"):
            run(6, *before, Kept(lambda x: np.array([True, False])))
        plus_one, double = Mapped(lambda x: x + 1), Mapped(lambda x: x * 2)
        assert run(3, *before, plus_one, double) == [2, 4, 6]
        assert run(3, double, *before, plus_one) == [1, 3, 5]
        batches = [Batch(2), Batch(2, drop_remainder=True), Mapped(np.ndarray.tolist)]
        assert run(6, *before, *batches) == [[[0, 1], [2, 3]]]
        assert run(6, *before, Batch(4, batch_fn=lambda xs: (type(xs), len(xs)))) == [
            (list, 4),
            (list, 2),
        ]
        (batch,) = run(
            2, Mapped(lambda x: {"b": x, "a": (np.float32(x), [None])}), *before, Batch(9)
        )
        assert type(batch["a"]) is tuple and batch["a"][1] == [None]
        assert batch["a"][0].dtype == np.float32 and batch["b"].tolist() == [0, 1]
        with pytest.raises(ValueError, match="same structure"):
            run(2, Mapped(lambda x: [x] * (1 + x)), *before, Batch(2))
        seen = []
        it = iter(make(9, *before, Mapped(lambda x: seen.append(x) or x), Batch(2), plus_one))
        assert seen == [] and next(it).tolist() == [1, 2] and seen == [0, 1]


class TestReading:
    def test_threads_change_nothing_and_read_each_record_once(self):
        random = [TO_TUPLE, DRAW, Kept(lambda x: x[1] % 2), Batch(3, **LISTS)]
        assert run(500, *random, read_options=ReadOptions()) == run(500, *random)
        here, read = threading.current_thread(), Counter()

        def reader(key):
            read[key] += 1
            return threading.current_thread()

        source = Source(300, reader)
        operations = [Mapped(lambda reader: (reader, threading.current_thread()))]
        pairs = run(300, *operations, data_source=source, read_options=ReadOptions(4, 50))
        assert read == Counter(range(300))
        assert {user for _, user in pairs} == {here} and here not in {reader for reader, _ in pairs}
        for options in (ReadOptions(4, 0), ReadOptions(0, 8)):
            assert set(run(9, data_source=source, read_options=options)) == {here}

    def test_vectored_reads(self):
        calls = []

        class Vectored(Source):
            def __getitems__(self, keys):
                calls.append(list(keys))
                return list(keys)

        expected = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
        assert run(12, Batch(5), data_source=Vectored(12)) == expected == calls


def legacy(*arguments, **keywords):
    with pytest.warns(DeprecationWarning, match="is deprecated; use gristmill.transforms"):
        return run(*arguments, **keywords)


class TestLegacyOperations:
    def test_the_four_and_any_callable_on_records_but_no_map(self):
        assert legacy(6, MapOperation(lambda x: x + 1), FilterOperation(lambda x: x % 2)) == [
            1,
            3,
            5,
        ]
        draw = RandomMapOperation(lambda x, rng: (*x, int(rng.integers(1000))))
        for operations in ([DRAW, draw], [draw, DRAW]):
            assert legacy(3, EMPTY, *operations) == [(862, 934), (317, 0), (206, 733)]
        assert run(6, BatchOperation(4)) == [[0, 1, 2, 3], [4, 5]]
        assert run(6, BatchOperation(4, drop_remainder=True, batch_fn=len)) == [4]
        Mine = type("Mine", (BatchOperation,), {})
        unlike = Mapped(lambda x: [x] * (1 + x))
        # no warning: the first runs as a Batch
        for call, kind in ((run, BatchOperation), (legacy, Mine)):
            assert_raises(TypeError, "Record structures do not match", call, 6, unlike, kind(2))
        assert legacy(6, Mine(4)) == [[0, 1, 2, 3], [4, 5]]

        def twice(records):
            for record in records:
                assert type(record) is Record
                yield record
                yield Record(RecordMetadata(record.metadata.index), record.data + 100)

        assert run(2, twice) == [0, 100, 1, 101]
        assert run(6, lambda records: (record for record in records if record.data % 2)) == [
            1,
            3,
            5,
        ]
        for operation in (lambda x: x + 1, lambda x: 5, lambda records: None):
            with pytest.raises(TypeError) as caught:
                run(6, operation)
            assert "derive a class from gristmill.transforms.Map" in caught.value.__notes__[0]

    def test_states_of_a_live_iterator_and_of_the_end(self):
        def pairs(records):
            for record in records:
                second = next(records, record)
                yield Record(second.metadata, (record.data, second.data))

        loader = make(5, pairs)
        assert_equal_output_after_checkpoint(loader, at_end=True, in_place=True)
        it, other = iter(loader), iter(loader)
        # they share nothing of it
        assert [next(it), next(it), next(other), next(it)] == [(0, 1), (2, 3), (0, 1), (4, 4)]


def test_samplers_and_iterators_that_are_not_quite_ours():
    def derived(kind, **methods):
        return type("Derived", (kind,), {f"__{name}__": method for name, method in methods.items()})

    backwards = derived(IndexSampler, getitem=lambda self, index: RecordMetadata(index, 9 - index))
    assert run(10, sampler=backwards(10, num_epochs=1)) == list(range(9, -1, -1))
    assert run(10, sampler=derived(IndexSampler, len=lambda self: 4)(10, num_epochs=1)) == [
        0,
        1,
        2,
        3,
    ]
    assert run(10, sampler=derived(SequentialSampler, len=lambda self: 100)(10)) == list(range(10))
    wrong = {"sampler": range(3), "shard_options": NoSharding()}
    with pytest.raises(TypeError, match=r"must return RecordMetadata, got 0 from sampler\[0\]"):
        run(3, **wrong)
    assert_raises(TypeError, "cannot be copied", copy.copy, iter(make(3, read_options=DIRECT)))
    assert_raises(TypeError, "data_loader must be a DataLoader, got 5", DataLoaderIterator, 5, None)
