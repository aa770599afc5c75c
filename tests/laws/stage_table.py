"""One small instance of every stage, and what the specification's formulas say it holds."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill import loader
from gristmill.core.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from gristmill.core.permutation import index_shuffle
from gristmill.core.record import Record, RecordMetadata
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset, stages
from gristmill.dataset.iterator import BlockIterator
from gristmill.dataset.map_dataset import BlockMapDataset
from gristmill.dataset.stages.map import MapIterDataset
from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset
from gristmill.loader.records import DataIterDataset, LegacyOperationIterDataset, SampledMapDataset
from gristmill.samplers import IndexSampler

DIRECT = ReadOptions(num_threads=0)
THREADED = ReadOptions(num_threads=3, prefetch_buffer_size=5)


@dataclass(frozen=True)
class MapEntry:
    name: str
    make: Callable[[], MapDataset[Any]]
    model: Callable[[int], Any]
    length: int
    endless: bool = True  # whether negative and later indices have a meaning


@dataclass(frozen=True)
class IterEntry:
    name: str
    make: Callable[[], IterDataset[Any]]
    expected: list[Any]


# The functions of the table have names in a module, so that plain ``pickle`` finds them.
def add_ten(x: Any) -> Any:
    return x + 10


def drop_threes(x: int) -> int | None:
    return None if x % 3 == 0 else x


def not_multiple_of_three(x: Any) -> bool:
    return x % 3 != 0


def pair(i: int, x: Any) -> Any:
    assert type(i) is int
    return (i, x)


def draw(x: Any, rng: np.random.Generator) -> Any:
    return (x, int(rng.integers(1000)), float(rng.normal()))


def is_big(x: Any) -> bool:
    return x is None or x > 4


def unless_none(x: Any) -> Any:
    return "none" if x is None else x


def stream(seed: int, index: int) -> np.random.Generator:
    """The generator of an element, straight from its definition."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(counter=np.array([0, 0, 0, index % 2**64], np.uint64), key=key))


def doubled_pairs(records: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
    """A legacy operation: a plain function of iterators, here one that drops and changes."""
    for record in records:
        if record % 2:
            yield record * 2


class Vectored:
    """A source that prefers to be asked for many records at once."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int) -> Any:
        assert type(key) is int and 0 <= key < len(self.records)
        return self.records[key]

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


def shuffled(i: int, length: int, seed: int) -> int:
    epoch, position = divmod(i, length)
    return index_shuffle(position, length - 1, (seed + epoch) % 2**32, 4) + epoch * length


def sliced(i: int, length: int, sl: slice) -> int:
    start, _, step = sl.indices(length)
    epoch, position = divmod(i, len(range(*sl.indices(length))))
    return start + position * step + epoch * length


def batched(i: int, length: int, size: int, drop: bool) -> list[int]:
    epoch, b = divmod(i, length // size if drop else -(-length // size))
    return list(range(epoch * length + b * size, epoch * length + min(length, (b + 1) * size)))


def ten(i: int) -> int:
    return i % 10


SAMPLER = IndexSampler(num_records=7, shuffle=True, num_epochs=3, seed=5)
LETTERS = list("abcdefg")


def sampled(k: int, shard: ShardOptions) -> Any:
    return SAMPLER[k * shard.shard_count + shard.shard_index]


MAP_ENTRIES = [
    MapEntry("range", lambda: MapDataset.range(2, 20, 3), lambda i: 2 + (i % 6) * 3, 6),
    MapEntry("range_down", lambda: MapDataset.range(5, -6, -2), lambda i: 5 - (i % 6) * 2, 6),
    MapEntry("range_huge", lambda: MapDataset.range(-(2**70), 2**70, 2**69), lambda i: -(2**70) + (i % 4) * 2**69, 4),
    MapEntry("source", lambda: MapDataset.source(LETTERS), lambda i: LETTERS[i % 7], 7),
    MapEntry("source_vectored", lambda: MapDataset.source(Vectored(LETTERS)), lambda i: LETTERS[i % 7], 7),
    MapEntry("map", lambda: MapDataset.range(10).map(add_ten), lambda i: ten(i) + 10, 10),
    MapEntry(
        "map_none",
        lambda: MapDataset.range(10).map(drop_threes).map(add_ten),
        lambda i: None if ten(i) % 3 == 0 else ten(i) + 10,
        10,
    ),
    MapEntry(
        "map_with_index",
        lambda: MapDataset.range(10).map(drop_threes).map_with_index(pair),
        lambda i: None if ten(i) % 3 == 0 else (i, ten(i)),
        10,
    ),
    MapEntry(
        "random_map",
        lambda: MapDataset.range(10).map(drop_threes).random_map(draw, seed=7),
        lambda i: None if ten(i) % 3 == 0 else draw(ten(i), stream(7, i)),
        10,
    ),
    MapEntry("filter", lambda: MapDataset.range(10).filter(not_multiple_of_three), lambda i: ten(i) if ten(i) % 3 else None, 10),
    MapEntry("seed", lambda: MapDataset.range(10).seed(4), ten, 10),
    MapEntry("shuffle", lambda: MapDataset.range(10).shuffle(seed=3), lambda i: shuffled(i, 10, 3) % 10, 10),
    MapEntry("shuffle_one", lambda: MapDataset.range(1).shuffle(seed=3), lambda i: 0, 1),
    MapEntry(
        "shuffle_index",
        lambda: MapDataset.range(10).map_with_index(pair).shuffle(seed=3),
        lambda i: (shuffled(i, 10, 3), shuffled(i, 10, 3) % 10),
        10,
    ),
    MapEntry(
        "slice",
        lambda: MapDataset.range(10).map_with_index(pair)[1:9:3],
        lambda i: (sliced(i, 10, slice(1, 9, 3)), ten(sliced(i, 10, slice(1, 9, 3)))),
        3,
    ),
    MapEntry(
        "slice_back",
        lambda: MapDataset.range(10).map_with_index(pair)[::-2],
        lambda i: (sliced(i, 10, slice(None, None, -2)), ten(sliced(i, 10, slice(None, None, -2)))),
        5,
    ),
    MapEntry(
        "reindex",
        lambda: MapDataset.range(10).map_with_index(pair).slice([3, -1, 12, 3]),
        lambda i: (k := [3, -1, 12, 3][i % 4] + i // 4 * 10) and (k, ten(k)),
        4,
    ),
    MapEntry("repeat", lambda: MapDataset.range(10).map_with_index(pair).repeat(2), lambda i: (i, ten(i)), 20),
    MapEntry(
        "repeat_same",
        lambda: MapDataset.range(10).map_with_index(pair).repeat(2, reseed_each_epoch=False),
        lambda i: (ten(i), ten(i)),
        20,
    ),
    MapEntry(
        "batch",
        lambda: MapDataset.range(10).map_with_index(pair).batch(4, batch_fn=list),
        lambda i: [(k, ten(k)) for k in batched(i, 10, 4, False)],
        3,
    ),
    MapEntry(
        "batch_drop",
        lambda: MapDataset.range(10).batch(4, drop_remainder=True),
        lambda i: np.array([ten(k) for k in batched(i, 10, 4, True)]),
        2,
    ),
    MapEntry(
        "chain",
        lambda: MapDataset.range(10).shuffle(seed=1)[1:].map_with_index(pair).repeat(3),
        lambda i: (i, shuffled(sliced(i, 10, slice(1, None)), 10, 1) % 10),
        27,
    ),
    MapEntry(
        "sampled",
        lambda: SampledMapDataset(LETTERS, SAMPLER, NoSharding(), 21, as_records=False),
        lambda k: LETTERS[sampled(k, NoSharding()).record_key],
        21,
        endless=False,
    ),
    MapEntry(
        "sampled_records",
        lambda: SampledMapDataset(LETTERS, SAMPLER, ShardOptions(1, 2), 10, as_records=True),
        lambda k: Record(m := sampled(k, ShardOptions(1, 2)), LETTERS[m.record_key]),
        10,
        endless=False,
    ),
]


def numbers(options: ReadOptions = DIRECT, n: int = 11) -> IterDataset[int]:
    return MapDataset.range(n).to_iter_dataset(options)


def sparse(options: ReadOptions = DIRECT) -> IterDataset[int | None]:
    return MapDataset.range(11).map(drop_threes).to_iter_dataset(options, allow_nones=True)


_PRESENT = [x for x in range(11) if x % 3]
_SPARSE = [drop_threes(x) for x in range(11)]

_RECORDS = [Record(RecordMetadata(i, i), data) for i, data in enumerate(["a", None, [3]])]

ITER_ENTRIES = [
    IterEntry("direct", numbers, list(range(11))),
    IterEntry("threaded", lambda: numbers(THREADED), list(range(11))),
    IterEntry("one_thread_one_ahead", lambda: numbers(ReadOptions(1, 1)), list(range(11))),
    IterEntry("default_options", lambda: MapDataset.range(11).map(add_ten).to_iter_dataset(), list(range(10, 21))),
    IterEntry("empty", lambda: numbers(n=0), []),
    IterEntry("dropping", lambda: MapDataset.range(11).map(drop_threes).to_iter_dataset(DIRECT), _PRESENT),
    IterEntry("dropping_threaded", lambda: MapDataset.range(11).map(drop_threes).to_iter_dataset(THREADED), _PRESENT),
    IterEntry("nones", lambda: sparse(THREADED), _SPARSE),
    IterEntry("map", lambda: numbers(THREADED).map(add_ten), list(range(10, 21))),
    IterEntry("map_nones", lambda: sparse().map(add_ten), [None if x is None else x + 10 for x in _SPARSE]),
    IterEntry(
        "map_with_nones",
        lambda: MapIterDataset(sparse(), unless_none, with_nones=True),
        ["none" if x is None else x for x in _SPARSE],
    ),
    IterEntry(
        "map_with_index", lambda: sparse().map_with_index(pair), [None if x is None else (i, x) for i, x in enumerate(_SPARSE)]
    ),
    IterEntry(
        "random_map",
        lambda: sparse(THREADED).random_map(draw, seed=2),
        [None if x is None else draw(x, stream(2, i)) for i, x in enumerate(_SPARSE)],
    ),
    IterEntry("filter", lambda: numbers().filter(not_multiple_of_three), _PRESENT),
    IterEntry("filter_nones", lambda: sparse(THREADED).filter(is_big), [x for x in _SPARSE if is_big(x)]),
    IterEntry("batch", lambda: numbers(THREADED).batch(4), [np.array(range(4)), np.array(range(4, 8)), np.array(range(8, 11))]),
    IterEntry(
        "batch_drop",
        lambda: numbers().filter(not_multiple_of_three).batch(3, drop_remainder=True),
        [np.array([1, 2, 4]), np.array([5, 7, 8])],
    ),
    IterEntry(
        "batch_of_batches",
        lambda: numbers(THREADED).batch(2, batch_fn=list).batch(2, batch_fn=list),
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10]]],
    ),
    IterEntry("seed", lambda: numbers().seed(3), list(range(11))),
    IterEntry("options", lambda: WithOptionsIterDataset(numbers(), DatasetOptions(min_shm_size=1)), list(range(11))),
    IterEntry("legacy_operation", lambda: LegacyOperationIterDataset(numbers(), doubled_pairs), [2, 6, 10, 14, 18]),
    IterEntry(
        "record_data",
        lambda: DataIterDataset(MapDataset.source(_RECORDS).to_iter_dataset(DIRECT)),
        ["a", None, [3]],
    ),
    IterEntry(
        "mp_prefetch",
        lambda: numbers(THREADED).filter(not_multiple_of_three).mp_prefetch(MultiprocessingOptions(num_workers=2)),
        [2, 1, 4, 5, 8, 7, 10],
    ),
    IterEntry(
        "thread_prefetch",
        lambda: ThreadPrefetchIterDataset(numbers(THREADED).filter(not_multiple_of_three), prefetch_buffer_size=3),
        _PRESENT,
    ),
    IterEntry("thread_prefetch_0", lambda: ThreadPrefetchIterDataset(sparse(), prefetch_buffer_size=0), _SPARSE),
    IterEntry(
        "multithread_prefetch",
        lambda: multithread_prefetch(numbers(THREADED).filter(not_multiple_of_three), num_threads=2, buffer_size=2),
        [2, 1, 4, 5, 8, 7, 10],
    ),
    IterEntry("multithread_prefetch_0", lambda: multithread_prefetch(sparse(), num_threads=3, buffer_size=0), _SPARSE),
    IterEntry(
        "chain",
        lambda: (
            numbers(THREADED).filter(not_multiple_of_three).map_with_index(pair).random_map(draw, seed=1).batch(2, batch_fn=list)
        ),
        [[draw((i, x), stream(1, i)) for i, x in list(enumerate(_PRESENT))[k : k + 2]] for k in (0, 2, 4, 6)],
    ),
]


def stage_classes() -> set[type]:
    """Every concrete stage: data sets and iterators defined in ``dataset/stages`` and ``loader``."""
    found = set()
    for package in (stages, loader):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(info.name)).values():
                is_stage = inspect.isclass(value) and issubclass(value, BlockMapDataset | IterDataset | BlockIterator)
                if is_stage and value.__module__ == info.name and not inspect.isabstract(value):
                    found.add(value)
    return found


def plain(x: Any) -> Any:
    """``x`` in a form that ``==`` compares exactly: types, dtypes and the state of generators included."""
    if isinstance(x, np.ndarray):
        return ("array", str(x.dtype), x.shape, x.tolist())
    if isinstance(x, list | tuple):
        return (type(x), [plain(v) for v in x])
    if isinstance(x, Record):
        metadata = x.metadata
        rng = None if metadata.rng is None else str(metadata.rng.bit_generator.state)
        return ("record", metadata.index, metadata.record_key, rng, plain(x.data))
    return (type(x), x)


def nodes(it: DatasetIterator[Any]) -> Iterator[DatasetIterator[Any]]:
    """``it`` and all the iterators that it draws from."""
    yield it
    for parent in it._parents:
        yield from nodes(parent)
