"""What a loader says to whoever comes from PyTorch: arguments, and lengths."""

import abc
import copy
import inspect
import itertools
import operator
import pickle
import pydoc
import types
import typing

import cloudpickle
import pytest
from loaders import DRAW, TO_TUPLE, Kept, Mapped, make, plain
from operations import operation
from refusing import assert_raises

import gristmill
from gristmill import DataLoader, IndexSampler, IterableSampler, RecordMetadata, SequentialSampler, ShardOptions
from gristmill.samplers import Sampler
from gristmill.sources import ArrayRecordDataSource, RangeDataSource
from gristmill.sources import RandomAccessDataSource as Source
from gristmill.transforms import Batch, FlatMap

T_co = typing.TypeVar("T_co", covariant=True)
DATA = range(10)
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
OURS = IndexSampler(10, num_epochs=1)
TWICE = operation(FlatMap, "flat_map", lambda x: [x, x], max_fan_out=2)


@pytest.mark.parametrize(
    ("args", "arguments", "expected"),
    [
        *(([DATA], {}, [[i] for i in DATA]), ([DATA, 2], {}, PAIRS), ([DATA, OURS], {}, list(DATA))),
        ([DATA, 4, None, None, None, 0, None, False, True], {}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([DATA], {"batch_size": None}, list(DATA)),
        ([DATA, 10, True], {}, [plain(gristmill.load(DATA, shuffle=True, seed=0, num_epochs=1))]),
        ([DATA], {"batch_size": 5, "num_workers": 2}, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        ([], {"dataset": DATA, "batch_size": 2, "collate_fn": sum}, [1, 5, 9, 13, 17]),
        *(([DATA], {"batch_size": 2, "sampler": iter([9, 3, 3])}, [[9, 3], [3]]), ([DATA], {"sampler": OURS}, list(DATA))),
        ([DATA], {"batch_sampler": [[0, 1], [9]], "collate_fn": tuple}, [(0, 1), (9,)]),
        ([], {"data_source": DATA, "sampler": OURS, "operations": [Mapped(abs)], "batch_size": 2}, PAIRS),
        ([], {"data_source": DATA, "batch_size": 4, "drop_last": True, "shard_options": ShardOptions(1, 2)}, [[5, 6, 7, 8]]),
    ],
)
def test_for_arguments_of_pytorch_a_call_is_given_that_does_the_same(args, arguments, expected):
    with pytest.raises(TypeError) as caught:
        DataLoader(*args, **arguments)
    head, line, *_ = str(caught.value).splitlines()
    assert all(name in head for name in arguments.keys() - {"data_source", "sampler", "operations", "shard_options"})
    names = {"dataset": DATA, "source": DATA, "gristmill": gristmill, "sampler": OURS, **arguments}
    assert plain(eval(line.replace("[...]", "[]"), names)) == expected


def test_what_has_no_counterpart_is_said_in_words_and_other_names_are_python_s_own_errors():
    names = ["pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator", "persistent_workers"]
    arguments, in_words = dict.fromkeys(names, "given"), {*names, "num_epochs", "worker_count", "in_order"}
    with pytest.raises(TypeError) as caught:
        DataLoader(DATA, 8, num_workers=2, prefetch_factor=4, in_order=False, **arguments)
    _, line, *words = str(caught.value).splitlines()
    settings = "operations=[gristmill.transforms.Batch(8)], worker_count=2, worker_buffer_size=4, worker_init_fn=worker_init_fn)"
    assert line.endswith(settings)
    assert {text.partition(":")[0] for text in words} == in_words
    given = {"data_source": DATA, "sampler": OURS}
    assert_raises(TypeError, r"__init__\(\) got an unexpected keyword argument 'batch'", DataLoader, **given, batch=2)
    assert_raises(TypeError, "missing 1 required keyword-only argument: 'sampler'", DataLoader, data_source=DATA)
    parameters = list(inspect.signature(DataLoader).parameters)
    assert parameters[:3] == ["data_source", "sampler", "operations"]
    assert parameters == [name for name in typing.get_type_hints(DataLoader.__init__) if name != "return"]
    assert parameters == inspect.getfullargspec(DataLoader.__init__).kwonlyargs


def test_users_may_derive_from_sources_and_samplers_and_a_class_with_a_metaclass():
    meta = type("Meta", (type,), {})
    other = meta("Other", (), {})
    samplers = (Sampler, IndexSampler, SequentialSampler, IterableSampler)
    for base in (*samplers, Source, Source[int], RangeDataSource, ArrayRecordDataSource):
        assert type(types.new_class("Derived", (base,), {"metaclass": meta})) is meta
        for bases in ((base, other), (other, base)):
            derived = types.new_class("Derived", bases)
            assert type(derived) is meta and issubclass(derived, Sampler if base in samplers else Source)


class Pairs(Source[T_co], typing.Generic[T_co], abc.ABC):
    def __init__(self, first: T_co, source: Source | None):
        self.both = first, source

    __len__, __getitem__ = (lambda self: 2), (lambda self, key: self.both[key])


def test_protocols_are_as_others_but_for_their_metaclass():
    of_int, either = Source[int], Source | None
    protocol = types.new_class("Protocol", (Source[T_co], typing.Protocol[T_co]))
    assert [alias.__args__ for alias in (Pairs[int], protocol[int], of_int)] == [(int,)] * 3 and Source[T_co][int] == of_int
    assert typing.get_type_hints(Pairs.__init__) == {"first": T_co, "source": either} and None | Source == either
    pairs = Pairs(1, [2])
    assert all(isinstance(x, kind) for x in ([], pairs) for kind in (Source, either, Sampler))
    assert not isinstance(iter([]), either) and issubclass(Source, Source)
    assert_raises(TypeError, "parameterized", isinstance, [], of_int)
    assert_raises(TypeError, "instantiated", Source)
    assert_raises(TypeError, "Too many arguments", lambda: Source[int, int])
    assert_raises(TypeError, "not a generic class", lambda: Sampler[int])
    for module in (pickle, cloudpickle):
        assert module.loads(module.dumps(pairs)).both == pairs.both
        assert module.loads(module.dumps(Source)) is copy.copy(Source) is Source
        for hint in (of_int, either, Sampler, Pairs, list[of_int]):
            assert module.loads(module.dumps(hint)) == hint
    assert issubclass(module.loads(module.dumps(types.new_class("Local", (Sampler,)))), Sampler)
    assert inspect.getdoc(Pairs) == inspect.getdoc(Source) and "Squares()" in pydoc.render_doc(Source)


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
OPERATIONS = {"none": [], "map": [Mapped(lambda x: None if x % 3 else x)], "random": [TO_TUPLE, DRAW], "batches": [Batch(3)]}
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
        loader = make(11, batch, worker_count=2, shard_options=ShardOptions(0, 2))  # workers have three records each
        assert len(loader) == len(list(loader)) == length


@pytest.mark.parametrize(
    ("sampler", "operations", "hint", "reason"),
    [
        (IndexSampler(10), [], None, r"it does not end\. Give num_epochs .*itertools\.islice\(loader, n\)"),
        (IndexSampler(10), [Batch(2), Kept(bool)], None, "it does not end"),
        (OURS, [TO_TUPLE, Kept(bool), Batch(3)], 4, r"how many elements operations\[1\], Kept, makes"),
        (OURS, [TWICE], None, r"operations\[0\], FlatMap, makes"),
        (IndexSampler(10), [lambda records: itertools.islice(records, 4)], None, r"operations\[0\], .*lambda"),
    ],
    ids=["endless", "endless filter", "filter", "flat_map", "function"],
)
def test_a_loader_without_length_says_why(sampler, operations, hint, reason):
    for settings in ({}, {"worker_count": 2}, {"shard_options": ShardOptions(0, 1)}):
        loader = make(10, *operations, sampler=sampler, data_source=DATA, **settings)
        assert_raises(TypeError, f"object of type 'DataLoader' has no len.*{reason}", len, loader)
        assert (operator.length_hint(loader, -1) == (-1 if hint is None else hint)) and loader
