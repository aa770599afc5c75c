"""What the operations of a ``DataLoader`` do to its records."""

import copy
import threading
from collections import Counter

import numpy as np
import pytest

from gristmill import DataLoader, DataLoaderIterator, ReadOptions, Record, RecordMetadata, load
from gristmill.python import BatchOperation, FilterOperation, MapOperation, RandomMapOperation
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap, TfRandomMap

READ = [ReadOptions(0, 0), ReadOptions(3, 4), ReadOptions()]


class Mapped(Map):
    def __init__(self, fn):
        self.fn = fn

    def map(self, element):
        return self.fn(element)


class Kept(Filter):
    def __init__(self, fn):
        self.fn = fn

    def filter(self, element):
        return self.fn(element)


class Draw(RandomMap):
    def random_map(self, element, rng):
        return (*element, int(rng.integers(1000)))


class DrawOld(TfRandomMap):
    def np_random_map(self, element, rng):
        return (*element, int(rng.integers(1000)))


class DrawAfterBatch(RandomMap):
    def random_map(self, element, rng):
        return [*element, int(rng.integers(1000))]


class WithIndex(MapWithIndex):
    def map_with_index(self, index, element):
        return (index, element)


TO_TUPLE = Mapped(lambda x: ())


def run(operations, source=(0, 1, 2, 3, 4, 5), n=None, seed=3, read_options=READ[0], **arguments):
    sampler = IndexSampler(n or len(source), num_epochs=1, seed=seed)
    loader = DataLoader(data_source=source, sampler=sampler, operations=operations, read_options=read_options, **arguments)
    return [x.tolist() if isinstance(x, np.ndarray) else x for x in loader]


class TestGenerators:
    @pytest.mark.parametrize("first", [Draw(), DrawOld()], ids=["random_map", "np_random_map"])
    def test_one_record_has_one_stream(self, first):
        assert run([TO_TUPLE, first, Draw()], n=3, source=range(3)) == [(862, 934), (317, 0), (206, 733)]

    def test_a_batch_continues_the_stream_of_its_last_record(self):
        first = Mapped(lambda batch: [])
        assert run([TO_TUPLE, Batch(2, batch_fn=list), first, DrawAfterBatch()], n=4, source=range(4)) == [[317], [208]]
        batches = run([TO_TUPLE, Draw(), Batch(2, batch_fn=list), first, DrawAfterBatch()], n=4, source=range(4))
        rngs = [np.random.Generator(np.random.Philox(key=3 + i)) for i in (1, 3)]
        assert batches == [[int(rng.integers(1000, size=2)[1])] for rng in rngs]
        assert batches[0] == [0]

    def test_streams_do_not_depend_on_what_is_filtered_before(self):
        everything = run([Mapped(lambda x: (x,)), Draw()])
        some = run([Mapped(lambda x: (x,)), Kept(lambda x: x[0] % 2), Draw()])
        assert some == [x for x in everything if x[0] % 2]

    def test_streams_go_by_the_global_index(self):
        arguments = {"data_source": range(6), "operations": [TO_TUPLE, Draw()]}
        whole = list(DataLoader(sampler=SequentialSampler(6, seed=5), **arguments))
        for i in range(3):
            own = DataLoader(sampler=SequentialSampler(6, ShardOptions(i, 3), seed=5), **arguments)
            assert list(own) == whole[i::3]

    def test_two_iterations_draw_the_same(self):
        loader = DataLoader(data_source=range(6), sampler=IndexSampler(6, num_epochs=2, seed=1), operations=[TO_TUPLE, Draw()])
        first = list(loader)
        assert list(loader) == first
        assert len(set(first)) == 12  # an epoch has other streams than the one before

    def test_a_user_s_sampler_without_generators(self):
        sampler = [RecordMetadata(0, 0)]
        loader = DataLoader(data_source=[()], sampler=sampler, shard_options=NoSharding(), operations=[Draw()])
        with pytest.raises(ValueError, match="needs a sampler with a seed"):
            next(iter(loader))


class TestDispatch:
    def test_an_object_of_two_classes(self):
        def refuse(*args):
            raise AssertionError

        methods = dict.fromkeys(["filter", "map_with_index", "__call__"], refuse)
        methods["map"] = lambda self, element: element * 10
        methods["random_map"] = lambda self, element, rng: element * 10
        for bases in ((Map, Filter), (Filter, Map), (Filter, RandomMap), (Map,), (MapWithIndex, Map)):
            assert run([type("Of several", bases, methods)()]) == [0, 10, 20, 30, 40, 50]

    def test_map_with_index_gets_the_global_index(self):
        sampler = SequentialSampler(6, ShardOptions(1, 2))
        loader = DataLoader(data_source="abcdef", sampler=sampler, operations=[WithIndex()])
        assert list(loader) == [(1, "b"), (3, "d"), (5, "f")]

    def test_map_with_index_after_a_batch_gets_that_of_the_last_record(self):
        assert run([Kept(lambda x: x != 1), Batch(2, batch_fn=list), WithIndex()]) == [
            (2, [0, 2]),
            (4, [3, 4]),
            (5, [5]),
        ]

    def test_map_with_index_needs_no_seed(self):
        assert run([WithIndex()], seed=None)[2] == (2, 2)

    @pytest.mark.parametrize("with_metadata", [[], [WithIndex(), Mapped(lambda pair: pair[1])]], ids=["data", "records"])
    class TestData:
        """Pipelines carry bare data, or records as soon as an operation looks at their metadata: the same comes out."""

        def test_none_is_an_element(self, with_metadata):
            halved = Mapped(lambda x: None if x is None or x % 2 else x)
            assert run([*with_metadata, halved], [0, 1, None, 2]) == [0, None, None, 2]
            assert run([*with_metadata, Kept(lambda x: x is None)], [0, None, 2]) == [None]
            assert run(with_metadata, [None, None]) == [None, None]

        def test_filter_goes_by_truth(self, with_metadata):
            answers = {0: [], 1: "yes", 2: 0.0, 3: np.array([True]), 4: None, 5: {"a"}}
            assert run([*with_metadata, Kept(answers.get)]) == [1, 3, 5]

        def test_an_ambiguous_filter(self, with_metadata):
            with pytest.raises(ValueError, match="ambiguous"):
                run([*with_metadata, Kept(lambda x: np.array([True, False]))])

        def test_order_of_operations(self, with_metadata):
            plus_one, double = Mapped(lambda x: x + 1), Mapped(lambda x: x * 2)
            assert run([*with_metadata, plus_one, double]) == [2, 4, 6, 8, 10, 12]
            assert run([double, *with_metadata, plus_one]) == [1, 3, 5, 7, 9, 11]

        def test_batches_of_batches(self, with_metadata):
            operations = [*with_metadata, Batch(2), Batch(2, drop_remainder=True), Mapped(np.ndarray.tolist)]
            assert run(operations) == [[[0, 1], [2, 3]]]

        def test_operations_are_lazy(self, with_metadata):
            seen = []
            loader = DataLoader(
                data_source=range(9),
                sampler=SequentialSampler(9),
                operations=[*with_metadata, Mapped(lambda x: seen.append(x) or x), Batch(2), Mapped(lambda x: x + 1)],
            )
            it = iter(loader)
            assert seen == []
            next(it)
            assert seen == [0, 1]

        def test_structures(self, with_metadata):
            def element(x):
                return {"b": x, "a": (np.float32(x), [None])}

            (batch,) = run([Mapped(element), *with_metadata, Batch(9)], range(2))
            assert type(batch["a"]) is tuple
            assert batch["a"][1] == [None]
            assert batch["a"][0].dtype == np.float32
            assert batch["b"].tolist() == [0, 1]

        def test_unlike_elements(self, with_metadata):
            with pytest.raises(ValueError, match="same structure"):
                run([Mapped(lambda x: [x] * (1 + x)), *with_metadata, Batch(2)])

    def test_batch_fn_gets_a_list(self):
        assert run([Batch(4, batch_fn=lambda xs: (type(xs), len(xs)))]) == [(list, 4), (list, 2)]


class TestReading:
    @pytest.mark.parametrize("read_options", READ[1:], ids=str)
    @pytest.mark.parametrize(
        "operations",
        [[], [Batch(4)], [Mapped(lambda x: (x,)), Draw(), Kept(lambda x: x[1] % 2), Batch(3, batch_fn=list)]],
        ids=["none", "batch", "random"],
    )
    def test_threads_change_nothing(self, operations, read_options):
        source = range(500)
        assert run(operations, source, read_options=read_options) == run(operations, source)

    def test_threads_only_read(self):
        class Source:
            def __len__(self):
                return 40

            def __getitem__(self, key):
                return threading.current_thread()

        here = threading.current_thread()
        operations = [Mapped(lambda reader: (reader, threading.current_thread()))]
        pairs = run(operations, Source(), read_options=ReadOptions(4, 8))
        assert {user for _, user in pairs} == {here}
        assert here not in {reader for reader, _ in pairs}
        assert set(run([], Source(), read_options=ReadOptions(4, 0))) == {here}
        assert set(run([], Source(), read_options=ReadOptions(0, 8))) == {here}

    def test_every_record_is_read_once(self):
        read = Counter()

        class Source:
            def __len__(self):
                return 300

            def __getitem__(self, key):
                read[key] += 1
                return key

        run([Batch(7)], Source(), read_options=ReadOptions(4, 50))
        assert read == Counter(range(300))

    def test_vectored_reads(self):
        calls = []

        class Source:
            def __len__(self):
                return 12

            def __getitem__(self, key):
                return key

            def __getitems__(self, keys):
                calls.append(list(keys))
                return list(keys)

        assert run([Batch(5)], Source()) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
        assert calls == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def legacy(make, *arguments, **keywords):
    """Runs a loader with an operation that warns of its age."""
    with pytest.warns(DeprecationWarning, match="is deprecated; use gristmill.transforms"):
        return make(*arguments, **keywords)


class TestLegacyOperations:
    def test_the_four(self):
        assert legacy(run, [MapOperation(lambda x: x + 1)]) == [1, 2, 3, 4, 5, 6]
        assert legacy(run, [FilterOperation(lambda x: x % 2)]) == [1, 3, 5]
        operation = RandomMapOperation(lambda x, rng: int(rng.integers(1000)))
        assert legacy(run, [operation], source=range(3)) == [862, 317, 206]
        assert run([BatchOperation(4)]) == [[0, 1, 2, 3], [4, 5]]
        assert run([BatchOperation(4, drop_remainder=True, batch_fn=len)]) == [4]

    def test_exactly_batch_operation_is_a_batch(self):
        class Mine(BatchOperation):
            pass

        unlike = [Mapped(lambda x: [x] * (1 + x))]
        with pytest.raises(TypeError, match="Record structures do not match"):  # no warning: it runs as a Batch
            run([*unlike, BatchOperation(2)])
        with pytest.raises(TypeError, match="Record structures do not match"):
            legacy(run, [*unlike, Mine(2)])
        assert legacy(run, [Mine(4)]) == [[0, 1, 2, 3], [4, 5]]

    def test_any_callable_on_records(self):
        def twice(records):
            for record in records:
                assert type(record) is Record
                yield record
                yield Record(RecordMetadata(record.metadata.index), record.data + 100)

        assert run([twice], source=range(2)) == [0, 100, 1, 101]
        assert run([lambda records: (record for record in records if record.data % 2)]) == [1, 3, 5]

    @pytest.mark.parametrize("operation", [lambda x: x + 1, lambda x: 5, lambda records: None])
    def test_a_function_is_no_map(self, operation):
        with pytest.raises(TypeError) as caught:
            run([operation])
        assert "derive a class from gristmill.transforms.Map" in caught.value.__notes__[0]

    def test_errors_of_user_functions(self):
        for operation, what in (
            (MapOperation(lambda x: 1 / 0), "map function"),
            (RandomMapOperation(lambda x, rng: 1 / 0), "random map function"),
            (FilterOperation(lambda x: 1 / 0), "condition function"),
        ):
            with pytest.raises(ValueError, match=f"PyGrain encountered an error when calling {what}.") as caught:
                legacy(run, [operation])
            assert type(caught.value.__cause__) is ZeroDivisionError

    def test_generators_before_and_after(self):
        operation = RandomMapOperation(lambda x, rng: (*x, int(rng.integers(1000))))
        assert legacy(run, [TO_TUPLE, Draw(), operation], source=range(3)) == [(862, 934), (317, 0), (206, 733)]
        assert legacy(run, [TO_TUPLE, operation, Draw()], source=range(3)) == [(862, 934), (317, 0), (206, 733)]

    def loader(self):
        def pairs(records):
            for record in records:
                second = next(records, record)
                yield Record(second.metadata, (record.data, second.data))

        return DataLoader(data_source=range(5), sampler=SequentialSampler(5), operations=[pairs])

    def test_states_of_a_live_iterator_and_of_the_end(self):
        it = iter(self.loader())
        states = [it.get_state()]
        assert next(it) == (0, 1)
        states.append(it.get_state())
        assert next(it) == (2, 3)
        it.set_state(states[1])
        assert next(it) == (2, 3)
        it.set_state(states[0])
        for _ in range(2):
            assert list(it) == [(0, 1), (2, 3), (4, 4)]
            with pytest.raises(StopIteration):
                next(it)
            end = it.get_state()
            it.set_state(states[0])
        it.set_state(end)
        assert list(it) == []

    def test_two_iterators_do_not_share_an_operation_s_state(self):
        loader = self.loader()
        a, b = iter(loader), iter(loader)
        assert [next(a), next(b), next(a), next(b)] == [(0, 1), (0, 1), (2, 3), (2, 3)]


class Reversed(IndexSampler):
    """A subclass with a lookup of its own."""

    def __getitem__(self, index):
        metadata = super().__getitem__(index)
        metadata.record_key = 9 - metadata.record_key
        return metadata


class FirstFour(IndexSampler):
    def __len__(self):
        return 4


class Overstated(SequentialSampler):
    def __len__(self):
        return 100


def test_a_subclass_of_our_samplers_is_asked_what_it_overrides():
    assert list(DataLoader(data_source=range(10), sampler=Reversed(10, num_epochs=1))) == list(range(9, -1, -1))
    assert list(DataLoader(data_source=range(10), sampler=FirstFour(10, num_epochs=1))) == [0, 1, 2, 3]
    assert list(DataLoader(data_source=range(10), sampler=Overstated(10))) == list(range(10))


def test_a_sampler_that_returns_something_else_is_named():
    class Keys:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index >= 3:
                raise IndexError(index)
            return index

    loader = DataLoader(data_source=[1, 2, 3], sampler=Keys(), shard_options=NoSharding())
    with pytest.raises(TypeError, match=r"must return RecordMetadata, got 0 from sampler\[0\]"):
        next(iter(loader))


def test_iterators_are_neither_copied_nor_made_of_anything_else():
    loader = load([1, 2, 3], num_epochs=1)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(iter(loader))
    with pytest.raises(TypeError, match="data_loader must be a DataLoader, got 5"):
        DataLoaderIterator(5, None)
    for bad in ({"source": iter([1])}, {"source": [1], "transformations": None}):
        with pytest.raises(TypeError, match="must"):
            load(**bad)
