"""Arguments that ``DataLoader`` and ``load`` accept, refuse and show; hints for users of PyTorch;
lengths.
"""

import abc
import inspect
import itertools
import operator
import os
import pickle
import pydoc
import types
import typing
from itertools import islice

import cloudpickle
import numpy as np
import pytest
from loaders import DRAW, TO_TUPLE, DrawOld, Kept, Mapped, Source, make, plain
from operations import operation
from refusing import assert_raises

import gristmill
from gristmill import (
    Batch,
    DataLoader,
    IndexSampler,
    ReadOptions,
    RecordMetadata,
    SequentialSampler,
    ShardOptions,
    load,
)
from gristmill.samplers import IterableSampler, Sampler
from gristmill.sources import ArrayRecordDataSource, RangeDataSource, SharedMemoryDataSource
from gristmill.sources import RandomAccessDataSource as DataSource
from gristmill.transforms import FlatMap

PLUS_ONE = Mapped(lambda x: x + 1)
NO_SEED = "is random and needs a sampler with a seed"


def test_wrong_arguments_are_refused_in_grain_s_order():
    def check(error, match, **changes):
        assert_raises(error, match, make, 6, **changes)

    of_operations = "operations must be a sequence of transformations, got "
    of_batches = "batch_size must be "
    check(ValueError, "worker_count must be a non-negative integer, got -1", worker_count=-1)
    check(ValueError, "size must be a non-negative integer, got -2", worker_buffer_size=-2)
    check(
        TypeError,
        "worker_count must be an integer or .auto., got 1.7 of type float",
        worker_count=1.7,
    )
    check(TypeError, "worker_buffer_size must be an integer, got '1'", worker_buffer_size="1")
    check(
        ValueError, "size must be a positive integer, got 0", worker_count=1, worker_buffer_size=0
    )
    check(TypeError, f"{of_operations}None of type NoneType", operations=None)
    check(TypeError, rf"{of_operations}Batch\(batch_size=2", operations=Batch(2))
    check(TypeError, r"operations\[1\] must be a tr.* got 5 of type int", operations=[PLUS_ONE, 5])
    check(
        TypeError, r"\[0\] must be .*an instance of .* got <class '.*Mapped'>", operations=[Mapped]
    )
    check(ValueError, f"{of_batches}a positive integer, got 0", operations=[Batch(0)])
    check(TypeError, f"{of_batches}an integer, got 2.5 of type float", operations=[Batch(2.5)])
    check(TypeError, "batch_fn must be a callable of a list", operations=[Batch(2, batch_fn=3)])
    random, old = [PLUS_ONE, DRAW], [DrawOld()]
    check(
        ValueError, rf"\[1\], RandomMapped, {NO_SEED}", operations=random, sampler=IndexSampler(3)
    )
    check(ValueError, rf"\[0\], DrawOld, {NO_SEED}", operations=old, sampler=SequentialSampler(3))
    check(TypeError, r"shard_options must be a ShardOptions, got \(0, 1\)", shard_options=(0, 1))
    check(TypeError, "read_options must be a ReadOptions, got 16", read_options=16)
    check(TypeError, "sampler must have __getitem__, got 6 of type int", sampler=6)
    check(TypeError, "data_source must have __getitem__ and __len__ .*, got 6", data_source=6)
    check(ValueError, "must be passed to the DataLoader: the sampler list has no shard", sampler=[])
    given = {"data_source": [1, 2], "sampler": SequentialSampler(2)}
    assert list(DataLoader(**given)) == [1, 2]
    assert_raises(TypeError, "by keyword", DataLoader, *given.values())
    everything_wrong = {
        "worker_count": -1,
        "worker_buffer_size": -1,
        "operations": [Batch(0)],
        "sampler": [0],
    }
    for name in ("worker_count", "worker_buffer_size", "batch_size", "shard_options"):
        assert_raises(ValueError, name, make, 6, **everything_wrong)
        del everything_wrong[
            {"batch_size": "operations", "shard_options": "sampler"}.get(name, name)
        ]


def test_number_of_workers_and_what_the_repr_shows():
    for worker_count in (1, 2, True, np.int64(3), None):
        num_workers = make(6, worker_count=worker_count).multiprocessing_options.num_workers
        assert num_workers == int(worker_count or os.cpu_count()) and type(num_workers) is int
    for worker_count in (0, False, np.int8(0)):
        loader = make(6, worker_count=worker_count, worker_buffer_size=0, enable_profiling=True)
        options = loader.multiprocessing_options
        assert options == gristmill.MultiprocessingOptions(0, 0, True)
        assert type(options.num_workers) is int
    assert_raises(AttributeError, None, setattr, loader, "multiprocessing_options", options)
    loader = make(
        6,
        PLUS_ONE,
        Batch(2),
        sampler=IndexSampler(6, num_epochs=1, seed=0),
        read_options=ReadOptions(1, 2),
    )
    shard = "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"
    assert (
        repr(loader) == "DataLoader(data_source=RangeDataSource(start=0, stop=6, step=1),"
        f" sampler=IndexSampler(num_records=6, shard_options={shard}, shuffle=False,"
        " num_epochs=1, seed=0), operations=[Mapped, Batch(batch_size=2, drop_remainder=False,"
        f" batch_fn=None)], shard_options={shard}, worker_count=0,"
        " read_options=ReadOptions(num_threads=1, prefetch_buffer_size=2))"
    )
    assert len(repr(make(6, data_source=list(range(100_000))))) < 1000


def test_nothing_happens_at_construction_and_loaders_travel():
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
        (
            [1],
            {"worker_count": -2},
            ValueError,
            "worker_count must be a non-negative integer, got -2",
        ),
        ([1], {"transformations": [DRAW]}, ValueError, "needs a sampler with a seed"),
        ([1], {"transformations": None}, TypeError, "transformations must be a sequence"),
        (iter([1]), {}, TypeError, "source must have __getitem__ and __len__"),
        ([1], {"worker_buffer_size": 2}, TypeError, "worker_buffer_size"),
    ]:
        assert_raises(kind, message, load, source, **arguments)
    assert list(islice(load([1, 2]), 7)) == [1, 2, 1, 2, 1, 2, 1]  # endless by default
    assert list(load([1, 2, 3], num_epochs=1, drop_remainder=True)) == [1, 2, 3]
    shard = ShardOptions(1, 2, drop_remainder=True)
    operations, options = [TO_TUPLE, DRAW], ReadOptions(0, 0)
    given = {
        "transformations": operations,
        "batch_size": 3,
        "drop_remainder": True,
        "read_options": options,
        "worker_count": 0,
    }
    loader = load(range(9), num_epochs=2, shuffle=True, seed=3, shard_options=shard, **given)
    same = make(
        9,
        *operations,
        Batch(3, True),
        data_source=range(9),
        sampler=IndexSampler(9, shard, True, 2, 3),
    )
    np.testing.assert_equal(list(loader), list(same))
    assert repr(loader) == repr(same) and options == ReadOptions(0, 0)


T_co = typing.TypeVar("T_co", covariant=True)
DATA = range(10)
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
OURS = IndexSampler(10, num_epochs=1)
TWICE = operation(FlatMap, "flat_map", lambda x: [x, x], max_fan_out=2)


@pytest.mark.parametrize(
    ("args", "arguments", "expected"),
    [
        ([DATA], {}, [[i] for i in DATA]),
        ([DATA, 2], {}, PAIRS),
        ([DATA, OURS], {}, list(DATA)),
        ([DATA, 4, None, None, None, 0, None, False, True], {}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([DATA], {"batch_size": None}, list(DATA)),
        ([DATA, 10, True], {}, [plain(gristmill.load(DATA, shuffle=True, seed=0, num_epochs=1))]),
        ([DATA], {"batch_size": 5, "num_workers": 2}, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        ([], {"dataset": DATA, "batch_size": 2, "collate_fn": sum}, [1, 5, 9, 13, 17]),
        ([DATA], {"batch_size": 2, "sampler": iter([9, 3, 3])}, [[9, 3], [3]]),
        ([DATA], {"sampler": OURS}, list(DATA)),
        ([DATA], {"batch_sampler": [[0, 1], [9]], "collate_fn": tuple}, [(0, 1), (9,)]),
        (
            [],
            {"data_source": DATA, "sampler": OURS, "operations": [Mapped(abs)], "batch_size": 2},
            PAIRS,
        ),
        (
            [],
            {
                "data_source": DATA,
                "batch_size": 4,
                "drop_last": True,
                "shard_options": ShardOptions(1, 2),
            },
            [[5, 6, 7, 8]],
        ),
    ],
)
def test_arguments_of_pytorch_get_a_call_that_does_the_same(args, arguments, expected):
    with pytest.raises(TypeError) as caught:
        DataLoader(*args, **arguments)
    head, line, *_ = str(caught.value).splitlines()
    assert all(
        name in head
        for name in arguments.keys() - {"data_source", "sampler", "operations", "shard_options"}
    )
    names = {"dataset": DATA, "source": DATA, "gristmill": gristmill, "sampler": OURS, **arguments}
    assert plain(eval(line.replace("[...]", "[]"), names)) == expected


def test_what_has_no_counterpart_is_said_in_words():
    names = [
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "generator",
        "persistent_workers",
    ]
    arguments = dict.fromkeys(names, "given")
    in_words = {*names, "num_epochs", "worker_count", "in_order"}
    with pytest.raises(TypeError) as caught:
        DataLoader(DATA, 8, num_workers=2, prefetch_factor=4, in_order=False, **arguments)
    _, line, *words = str(caught.value).splitlines()
    settings = (
        "operations=[gristmill.transforms.Batch(8)], worker_count=2, worker_buffer_size=4,"
        " worker_init_fn=worker_init_fn)"
    )
    assert line.endswith(settings)
    assert {text.partition(":")[0] for text in words} == in_words
    given = {"data_source": DATA, "sampler": OURS}
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'batch'"):
        DataLoader(**given, batch=2)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'sampler'"):
        DataLoader(data_source=DATA)
    parameters = list(inspect.signature(DataLoader).parameters)
    assert parameters[:3] == ["data_source", "sampler", "operations"]
    assert parameters == [
        name for name in typing.get_type_hints(DataLoader.__init__) if name != "return"
    ]
    assert parameters == inspect.getfullargspec(DataLoader.__init__).kwonlyargs


class Pairs(DataSource[T_co], typing.Generic[T_co], abc.ABC):
    def __init__(self, first: T_co, source: DataSource | None):
        self.both = first, source

    __len__, __getitem__ = (lambda self: 2), (lambda self, key: self.both[key])


SAMPLER_BASES = [Sampler, IndexSampler, SequentialSampler, IterableSampler]
SOURCE_BASES = [
    DataSource,
    DataSource[int],
    RangeDataSource,
    ArrayRecordDataSource,
    SharedMemoryDataSource,
]


@pytest.mark.parametrize("base", [*SAMPLER_BASES, *SOURCE_BASES], ids=str)
def test_users_derive_from_sources_and_samplers(base):
    is_protocol = base in (Sampler, DataSource, DataSource[int])
    # Python combines metaclasses of which one derives from the other.
    meta = type("Meta", (type(Sampler) if is_protocol else type,), {})
    protocol = Sampler if base in SAMPLER_BASES else DataSource
    for bases in ((base, meta("Other", (), {})), (meta("Other", (), {}), base)):
        derived = types.new_class("Derived", bases)
        assert type(derived) is meta and issubclass(derived, protocol)
    assert abc.ABC in types.new_class("Derived", (base, abc.ABC)).__mro__


def test_sources_and_samplers_are_protocols():
    protocol = types.new_class("Protocol", (DataSource[T_co], typing.Protocol[T_co]))
    assert all(inspect.isclass(cls) for cls in (DataSource, Sampler, protocol))
    hints = typing.get_type_hints(Pairs.__init__)
    assert hints == {"first": T_co, "source": DataSource | None}
    pairs = Pairs(1, [2])
    either = DataSource | None
    assert all(isinstance(x, kind) for x in ([], pairs) for kind in (DataSource, either, Sampler))
    assert not isinstance(iter([]), either)
    assert_raises(TypeError, "instantiated", DataSource)
    for module in (pickle, cloudpickle):
        assert module.loads(module.dumps(pairs)).both == pairs.both
        for hint in (DataSource, DataSource[int], either, Sampler, Pairs):
            assert module.loads(module.dumps(hint)) == hint
    assert issubclass(module.loads(module.dumps(types.new_class("Local", (Sampler,)))), Sampler)
    assert "Squares()" in pydoc.render_doc(DataSource)


class WithoutLength:
    def __getitem__(self, index):
        if index >= 7:
            raise IndexError
        return RecordMetadata(index, index)


TooLong = type("TooLong", (WithoutLength,), {"__len__": lambda self: 20})
SHARDS = [ShardOptions(0, 1), ShardOptions(1, 3), ShardOptions(2, 3, True)]
SAMPLERS = {
    "sequential": SequentialSampler(11, seed=0),
    "epochs": IndexSampler(11, shuffle=True, num_epochs=3, seed=0),
    "shard": IndexSampler(11, ShardOptions(1, 3), num_epochs=2, seed=0),
    "iterable": IterableSampler([1, 2, 3, 0, 7], seed=0),
    "nothing": IterableSampler([], seed=0),
    "own": WithoutLength(),
    "own, too long": TooLong(),
}
OPERATIONS = {
    "none": [],
    "map": [Mapped(lambda x: None if x % 3 else x)],
    "random": [TO_TUPLE, DRAW],
    "batches": [Batch(3)],
}
OPERATIONS |= {"full batches": [Batch(3, True)], "batches of batches": [Batch(2, True), Batch(2)]}


@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.filterwarnings("ignore:the sharding of the DataLoader")
def test_the_length_is_the_number_of_elements(sampler, operations):
    if DRAW in operations and isinstance(sampler, WithoutLength):
        operations = operations[:1]  # it has no generators
    for shard in SHARDS:
        loader = make(11, *operations, sampler=sampler, shard_options=shard)
        assert len(loader) == sum(1 for _ in loader)
        assert operator.length_hint(loader) == len(loader) and loader  # true, even if it is empty


def test_the_length_counts_what_each_worker_makes():
    for batch, length in ((Batch(2), 4), (Batch(2, True), 2)):
        # workers have three records each
        loader = make(11, batch, worker_count=2, shard_options=ShardOptions(0, 2))
        assert len(loader) == len(list(loader)) == length


@pytest.mark.parametrize(
    ("sampler", "operations", "hint", "reason"),
    [
        (
            IndexSampler(10),
            [],
            None,
            r"it does not end\. Give num_epochs .*itertools\.islice\(loader, n\)",
        ),
        (IndexSampler(10), [Batch(2), Kept(bool)], None, "it does not end"),
        (
            OURS,
            [TO_TUPLE, Kept(bool), Batch(3)],
            4,
            r"how many elements operations\[1\], Kept, makes",
        ),
        (OURS, [TWICE], None, r"operations\[0\], FlatMap, makes"),
        (
            IndexSampler(10),
            [lambda records: itertools.islice(records, 4)],
            None,
            r"operations\[0\], .*lambda",
        ),
    ],
    ids=["endless", "endless filter", "filter", "flat_map", "function"],
)
def test_a_loader_without_length_says_why(sampler, operations, hint, reason):
    for settings in ({}, {"worker_count": 2}, {"shard_options": ShardOptions(0, 1)}):
        loader = make(10, *operations, sampler=sampler, data_source=DATA, **settings)
        assert_raises(TypeError, f"object of type 'DataLoader' has no len.*{reason}", len, loader)
        assert (operator.length_hint(loader, -1) == (-1 if hint is None else hint)) and loader
