"""The checks of sources, samplers, map datasets and transformations accept what is right, and name
the law that a mistake breaks.

What all of them have in common is broken by sources here, and by the others only to show that they
check it.
"""

import os
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from mistakes import MAIN_THREAD, assert_found, variant
from refusing import assert_raises

from gristmill import IndexSampler, MapDataset, RecordMetadata, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions
from gristmill.testing import (
    assert_map_dataset_conforms,
    assert_sampler_conforms,
    assert_source_conforms,
    assert_transform_conforms,
)
from gristmill.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap, TfRandomMap

MAIN_PROCESS = os.getpid()
NUMBERS = [np.arange(i, i + 3.0) for i in range(10)]


class Source:  # without any mistake, to derive mistakes from
    def __init__(self, **attributes):
        self.records = [np.arange(i, i + 3) for i in range(20)]
        vars(self).update(attributes)

    def __len__(self):
        return 20

    def __getitem__(self, key):
        return self.records[key]

    def __repr__(self):
        return "Numbers(20)"


class Sampler:
    def __init__(self, shard_options=NoSharding()):  # noqa: B008
        self.shard_options = shard_options

    def __getitem__(self, index):
        if not 0 <= index < 20:
            raise IndexError(index)
        return self.metadata(index)

    def metadata(self, index):
        return RecordMetadata(
            index=index,
            record_key=self.key(index),
            rng=np.random.Generator(np.random.Philox(key=index)),
        )

    def key(self, index):
        return 19 - index

    def __repr__(self):
        return f"{type(self).__name__}(20)"


class OfItsShard(Sampler):  # answers only for the indices that a DataLoader asks for
    _shard_options = property(lambda self: self.shard_options)

    def __len__(self):
        return 20

    def key(self, index):
        assert index % self.shard_options.shard_count == self.shard_options.shard_index
        return index


class Dataset(MapDataset):
    def __init__(self):
        super().__init__()
        self.arrays = [np.arange(i, i + 3) for i in range(20)]

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.slice(index) if isinstance(index, slice) else self.element(index)

    def element(self, index):
        return self.arrays[index % 20] + index // 20


def notes_that_it_was_read(self, key):
    vars(self).setdefault("lock", threading.Lock())
    return self.records[key]


def made(base, **overrides):
    return variant(base, **overrides)()


without_lock = {
    "__getitem__": notes_that_it_was_read,
    "__getstate__": lambda self: {"records": self.records},
}
not_comparable = variant(SimpleNamespace, __eq__=object.__eq__)
vectored = made(Source, __getitems__=lambda self, keys: [self[key] for key in keys])
opened = made(Source, **without_lock)
not_equal = made(Source, __getitem__=lambda self, key: not_comparable(value=self.records[key]))
huge = made(
    Source, __len__=lambda self: 10**15, __getitem__=lambda self, key: range(10**15)[key] * 2
)
structured = np.array([(1, np.nan), (2, 3.0)], [("a", int), ("b", float)])
SOURCES = {
    "list": list("abc"),
    "text": "some text",
    "structured": structured,
    "empty": [],
    "plain": Source(),
}
SOURCES |= {
    "vectored": vectored,
    "opened_when_it_is_read": opened,
    "not_comparable": not_equal,
    "huge": huge,
}
endless = variant(Sampler, __getitem__=lambda self, index: RecordMetadata(index, index % 20))
SAMPLERS = {
    "without_length": Sampler(),
    "endless": endless(),
    "of_its_shard": OfItsShard(ShardOptions(1, 4)),
}
SAMPLERS |= {
    "sequential_shard": SequentialSampler(20, ShardOptions(1, 3, drop_remainder=True), seed=2**100)
}
SAMPLERS |= {
    f"index_{n}_epochs": IndexSampler(20, shuffle=True, seed=5, num_epochs=n)
    for n in (None, 3, 10**15)
}
Filtering = variant(Dataset, element=lambda self, i: Dataset.element(self, i) if i % 3 else None)
two_parents = MapDataset.range(20).shuffle(seed=1).zip(Filtering())
DATASETS = {"right": Dataset(), "filtering": Filtering(), "parents": two_parents}
DATASETS |= {"endless": Dataset().repeat(), "empty": Dataset()[:0], "one": Dataset()[:1]}
DATASETS |= {
    "under_stages": Dataset().shuffle(seed=3).repeat(2).batch(3),
    "huge": MapDataset.range(10**18).shuffle(seed=3),
}
jitter = made(RandomMap, random_map=lambda self, x, rng: x + rng.normal())
TRANSFORMS = {
    "map": (made(Map, map=lambda self, x: x * 2), None),
    "random_map": (jitter, None),
    "tf_random_map": (made(TfRandomMap, np_random_map=lambda self, x, rng: x + rng.normal()), None),
    "map_with_index": (
        made(MapWithIndex, map_with_index=lambda self, i, x: {"index": i, "element": x}),
        None,
    ),
    "filter": (made(Filter, filter=lambda self, x: x.sum() > 10), None),
    "flat_map": (made(FlatMap, max_fan_out=3, flat_map=lambda self, x: iter(x)), None),
}
TRANSFORMS |= {
    "function": (lambda x: x + 1, None),
    "same_object": (lambda x: x, None),
    "predicate": (lambda x: x[0] > 3, Filter),
}
TRANSFORMS |= {
    "dropping": (lambda x: None if x[0] == 3 else x, Map),
    "function_with_index": (lambda i, x: (i, x), MapWithIndex),
}
TRANSFORMS |= {
    "random_function": (lambda x, rng: rng.permutation(x), RandomMap),
    "flat_function": (lambda x: [*x, *x], FlatMap),
}
RIGHT = [
    *[(assert_source_conforms, x, {"max_records": 1}) for x in SOURCES.values()],
    *[
        (partial(assert_sampler_conforms, num_records=20), x, {"max_indices": 3})
        for x in SAMPLERS.values()
    ],
    *[(assert_map_dataset_conforms, x, {"max_elements": 1}) for x in DATASETS.values()],
    *[
        (partial(assert_transform_conforms, elements=NUMBERS, kind=kind), x, {})
        for x, kind in TRANSFORMS.values()
    ],
]


@pytest.mark.parametrize(
    ("check", "right", "options"), RIGHT, ids=[*SOURCES, *SAMPLERS, *DATASETS, *TRANSFORMS]
)
def test_what_is_right_is_accepted(check, right, options):
    check(right)
    check(right, **options)


def test_worker_processes():
    of_one_process = made(
        Source,
        __getitem__=lambda self, key: self.records[key] if os.getpid() == MAIN_PROCESS else None,
    )
    assert_source_conforms(of_one_process)
    for check, right in (
        (assert_source_conforms, vectored),
        (assert_sampler_conforms, SAMPLERS["index_3_epochs"]),
        (assert_map_dataset_conforms, two_parents),
        (partial(assert_transform_conforms, elements=NUMBERS), jitter),
    ):
        check(right, in_worker=True)
    message = "in a worker process everything is the same...{} in a worker process must be "
    assert_found(
        message.format("source[0]"), assert_source_conforms, of_one_process, in_worker=True
    )
    changing = partial(
        assert_transform_conforms, lambda x: x + (os.getpid() == MAIN_PROCESS), NUMBERS
    )
    assert_found(message.format("element 0"), changing, in_worker=True)


def test_options_and_inputs_that_are_changed():
    squares = made(Source, __getitem__=lambda self, key: key**2)
    assert_source_conforms(squares, with_range=False)
    assert_found(
        "beyond the end...source[20], with len(source) = 20, gave 400...with_range",
        assert_source_conforms,
        squares,
    )
    # it matters to a DataLoader alone
    assert_source_conforms(made(Source, __repr__=object.__repr__), with_repr=False)
    # no number of records is given
    assert_sampler_conforms(made(Sampler, key=lambda self, index: f"record {index}"))
    one_epoch = made(Dataset, element=lambda self, i: self.arrays[range(20)[i]])
    assert_map_dataset_conforms(one_epoch, endless=False)
    assert_found(
        "is there. Found: ds[20] raised IndexError", assert_map_dataset_conforms, one_epoch
    )

    def scale(element):
        element *= 2
        return element

    law = "leaves its input as it is...element 0 was"
    assert_transform_conforms(scale, NUMBERS, may_change_input=True)
    assert_found(
        f"{law} array... before and ...may_change_input", assert_transform_conforms, scale, NUMBERS
    )
    assert NUMBERS[1].tolist() == [1, 2, 3]  # only copies were
    keyed = [{"x": x} for x in NUMBERS]
    message = f"{law} {{'x': ...}} before and {{...'sum'...}} after"
    assert_found(
        message,
        assert_transform_conforms,
        lambda element: element.setdefault("sum", 0) or element,
        keyed,
    )


def piece(shard, index):
    """An index of contiguous pieces, all of the same size: the remainder is lost."""
    size = 20 // shard.shard_count
    return range(size * shard.shard_index, size * (shard.shard_index + 1))[
        index // shard.shard_count
    ]


def test_shards():
    for num_records in (1, 2, 3, 10, 17):
        shuffled, in_order = [
            partial(IndexSampler, shuffle=shuffle, num_epochs=1, seed=3)
            for shuffle in (True, False)
        ]
        for make in [
            partial(kind, num_records) for kind in (shuffled, in_order, SequentialSampler)
        ]:
            assert_sampler_conforms(make(NoSharding()), num_records, make_shard=make)
    assert_sampler_conforms(OfItsShard(ShardOptions(0, 1)), 20, make_shard=OfItsShard)
    ignores_the_shard = variant(Sampler, key=lambda self, i: i // self.shard_options.shard_count)
    loses_the_remainder = variant(Sampler, key=lambda self, i: piece(self.shard_options, i))
    for count, missing, again, make in (
        *(
            (2, "[10, 11, ...]", "[0, 1, ...]", ignores_the_shard),
            (1, "[]", "[0, 1, ...]", endless),
        ),
        (3, "[18, 19]", "[]", loses_the_remainder),
    ):
        message = (
            f"an epoch have every record once...20 records in {count} shards, {missing} are missing"
            f" and {again} there again"
        )
        assert_found(message, assert_sampler_conforms, Sampler(), 20, make_shard=make)


class SharesAPosition(Source):
    """Seeks, then reads: another thread may seek in between, and here, at the first read of each of
    eight, all do.
    """

    meeting = threading.Barrier(8)
    thread = threading.local()

    def __getitem__(self, key):
        self.position = key
        if threading.get_ident() != MAIN_THREAD and not hasattr(self.thread, "has_met"):
            self.thread.has_met = True
            self.meeting.wait(10)
        return super().__getitem__(self.position)


def source(message, read=Source.__getitem__, **overrides):
    return assert_source_conforms, message, made(Source, **{"__getitem__": read, **overrides})


def of_blocks(message, read):
    return source(message, __getitems__=read)


def sampler(message, metadata=Sampler.metadata, **overrides):
    return (
        partial(assert_sampler_conforms, num_records=20),
        message,
        made(Sampler, metadata=metadata, **overrides),
    )


def of_length_20(message, key):
    return sampler(
        message, __len__=lambda self: 20, __getitem__=lambda self, i: RecordMetadata(i, key(i))
    )


def dataset(message, element=Dataset.element, **overrides):
    return (
        assert_map_dataset_conforms,
        message,
        made(Dataset, seen=[], element=element, **overrides),
    )


def sliced(message, slice_):
    return dataset(f"ds[a:b:c] is...{message}", slice=slice_)


def transform(message, base, **overrides):
    return partial(assert_transform_conforms, elements=NUMBERS), message, made(base, **overrides)


def draw():
    return np.random.default_rng().normal()


BUFFER, RNG, COUNT = np.zeros(3, int), np.random.default_rng(0), iter(range(10**6))
WRONG = [
    source(
        "len(source) is the number ...len(source) after reads must be 20, got 25",
        **{**without_lock, "__len__": lambda self: 25 if "lock" in vars(self) else 20},
    ),
    source(
        "is there. Found: source[19] raised IndexError", lambda self, key: self.records[:19][key]
    ),
    source(
        "depends on what...source[7] must be",
        lambda self, key: draw() if key == 7 else self.records[key],
    ),
    source(
        "depends on what...source[19] must be ...memory",
        lambda self, key: np.add(self.records[key], 0, out=BUFFER),
    ),
    source(
        "depends on what...source[19] must be",
        lambda self, i: np.add(self.records[i], 1, out=self.records[i]).copy(),
    ),
    of_blocks(
        "read...source[19], read with 19 others must be",
        lambda self, keys: [self[key] for key in sorted(keys)],
    ),
    of_blocks(
        "__getitems__ must return one record per key",
        lambda self, keys: [self[i] for i in dict.fromkeys(keys)],
    ),
    of_blocks(
        "vectored...source.__getitems__([]) raised ValueError",
        lambda self, keys: list(np.stack([self[i] for i in keys])),
    ),
    (
        assert_source_conforms,
        "several threads...source[...] in one of 8 threads must be",
        SharesAPosition(),
    ),
    source(
        "several threads...source[...] in one of 8 threads raised IndexError",
        lambda self, i: (self.records if threading.get_ident() == MAIN_THREAD else [])[i],
    ),
    (
        assert_source_conforms,
        "by cloudpickle...copying Source raised TypeError...__getstate__",
        Source(lock=threading.Lock()),
    ),
    source(
        "by cloudpickle...made before the first read must be",
        __getstate__=lambda self: {"records": self.records[::-1]},
    ),
    source(
        "the repr is the same...Variant object at 0x...has a memory address...define __repr__",
        __repr__=object.__repr__,
    ),
    source(
        "the repr is the same...repr of a copy...Numbers(",
        __repr__=lambda self: f"Numbers({id(self)})",
    ),
    source(
        "the repr...repr after reads must be 'False'",
        **without_lock,
        __repr__=lambda self: str("lock" in vars(self)),
    ),
    source(
        "beyond the end...source[20]...raised KeyError: 20",
        lambda self, key: dict(enumerate(self.records))[key],
    ),
    sampler(
        "depends on what...sampler[0], after its rng was used, must be",
        lambda self, i: RecordMetadata(i, i, RNG),
    ),
    sampler("the repr is the same...has a memory address", __repr__=object.__repr__),
    sampler("is a RecordMetadata...sampler[0] is 19", lambda self, i: self.key(i)),
    sampler(
        "is a RecordMetadata...sampler[0].index is None", lambda self, i: RecordMetadata(None, i)
    ),
    sampler("is a RecordMetadata...sampler[0].rng is 17", lambda self, i: RecordMetadata(i, i, 17)),
    sampler(
        "index grows...sampler[9].index is 9, sampler[10].index is 0",
        lambda self, i: RecordMetadata(i % 10, i),
    ),
    sampler(
        "keys of the source...sampler[19].record_key is 20, and num_records 20",
        key=lambda self, i: i + 1,
    ),
    sampler("keys of the source...sampler[0].record_key is '0'", key=lambda self, i: str(i)),
    of_length_20(
        "raises IndexError...sampler[20], with 20 indices before its end, gave RecordMetadata",
        lambda i: i % 20,
    ),
    of_length_20("raises IndexError...sampler[20], with 20 ... raised ValueError", range(20).index),
    sampler(
        "is there...sampler[19] raised IndexError",
        __len__=lambda self: 20,
        key=lambda self, i: range(19)[i],
    ),
    # there is more after its end
    sampler("raises IndexError...sampler[11], with 10 ... gave", key=lambda self, i: [i][i == 10]),
    dataset(  # as soon as another thread has read
        "length of an epoch...len(ds) after reads must be 20, got 30",
        lambda self, i: self.seen.append(threading.get_ident()) or Dataset.element(self, i),
        __repr__=lambda self: "Grows",
        __len__=lambda self: 30 if len({*self.seen}) > 1 else 20,
    ),
    dataset("length of an epoch...len(ds) raised ValueError", __len__=lambda self: -1),
    dataset("depends on what...ds[-21] must be", lambda self, i: draw()),
    dataset(  # the second time that it is asked for a later epoch, that one is another one
        "depends on what...ds[150] must be",
        lambda self, i: (
            Dataset.element(self, i) if i < 20 else self.seen.append(i) or len(self.seen)
        ),
    ),
    dataset(
        "vectored...ds._gm_items(array... must be",
        _gm_items=lambda self, x: (self[i if isinstance(x, list) else 0] for i in x),
    ),
    dataset(
        "vectored...at once gave 10 instead of 26",
        _gm_items=lambda self, indices: map(self.__getitem__, indices[:10]),
    ),
    dataset("the repr is the same...has a memory address", __repr__=object.__repr__),
    dataset(
        "ds[a:b:c] is...ds[slice... raised TypeError...Begin __getitem__ with",
        __getitem__=lambda self, i: self.element(i),
    ),
    sliced("of type list", lambda self, sl: [self[i] for i in range(20)[sl]]),
    sliced(
        "len(ds[slice(1, None, 2)]) must be 10, got 19",
        lambda self, sl: MapDataset.slice(self, slice(sl.start, sl.stop)),
    ),
    sliced(
        "ds[slice(None, None, -1)][0] must be",
        lambda self, sl: MapDataset.slice(self, sorted(range(20)[sl])),
    ),
    dataset("iterating gives...the first elements must be", __iter__=lambda self: iter(self[::-1])),
    dataset(
        "iterating gives...what comes after an epoch must be [], got",
        __iter__=lambda self: iter(self.repeat()),
    ),
    dataset(
        "iterating gives...first elements",
        Filtering.element,
        __iter__=lambda ds: iter(ds.to_iter_dataset(allow_nones=True)),
    ),
    transform("depends on what...for element 9 must be", Map, map=lambda self, x: x + next(COUNT)),
    transform(
        "depends on what...for element 9 must be...Draw no random numbers but from a generator that"
        " is handed in",
        RandomMap,
        random_map=lambda self, x, rng: x + vars(self).setdefault("rng", rng).normal(),
    ),
    transform(
        "is there. Found: ... for element 0 raised ValueError: The truth value",
        Filter,
        filter=lambda self, x: x > 3,
    ),
    transform(
        "Variant made more items of one element than its max_fan_out",
        FlatMap,
        max_fan_out=2,
        flat_map=lambda _, x: iter(x),
    ),
    transform(
        "raised TypeError: Variant must have an attribute max_fan_out",
        FlatMap,
        flat_map=lambda self, x: x,
    ),
    transform(
        "raised TypeError: Variant must return", FlatMap, max_fan_out=3, flat_map=lambda self, x: 3
    ),
]


@pytest.mark.parametrize(("check", "message", "wrong"), WRONG)
def test_mistakes_are_found_and_named(check, message, wrong):
    assert_found(message, check, wrong)


POSITIVE = "must be a positive integer"
NO_SOURCE = "source must have __len__ and __getitem__"
STREAM = MapDataset.range(3).to_iter_dataset()
# The check, its arguments and options, the error and its text.
WRONG_ARGUMENTS = [
    (assert_source_conforms, [None], {}, TypeError, NO_SOURCE),
    (assert_source_conforms, [iter([1])], {}, TypeError, NO_SOURCE),
    (assert_source_conforms, [[1]], {"max_records": 0}, ValueError, f"max_records {POSITIVE}"),
    (assert_sampler_conforms, [iter([1])], {}, TypeError, "sampler must have __getitem__"),
    (assert_sampler_conforms, [Sampler()], {"make_shard": Sampler}, TypeError, "num_records must"),
    (assert_sampler_conforms, [Sampler()], {"max_indices": 0}, ValueError, POSITIVE),
    (assert_map_dataset_conforms, [STREAM], {}, TypeError, "ds must be a MapDataset, got"),
    (assert_map_dataset_conforms, [Dataset()], {"max_elements": 0}, ValueError, POSITIVE),
    (assert_transform_conforms, [5, [1]], {}, TypeError, "must be callable or .* of Map, got 5"),
    (assert_transform_conforms, [len, [1]], {"kind": Batch}, TypeError, "kind must be one of Map,"),
    (assert_transform_conforms, [len, []], {}, ValueError, "elements must be some elements"),
]


@pytest.mark.parametrize(("check", "arguments", "options", "error", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments(check, arguments, options, error, message):
    assert_raises(error, message, check, *arguments, **options)
