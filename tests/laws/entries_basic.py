"""Stages that take one element to one element, or none, and those that only choose, batch or read ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
from entry import (
    DIRECT,
    THREADED,
    IterEntry,
    MapEntry,
    Vectored,
    add_ten,
    batched,
    doubled_pairs,
    draw,
    drop_threes,
    holey,
    indexed,
    is_big,
    not_multiple_of_three,
    numbers,
    pair,
    shuffled,
    sliced,
    sparse,
    stream,
    ten,
    tens,
    unless_none,
    unless_three,
)

from gristmill.core.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from gristmill.core.record import Record, RecordMetadata
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.stages.map import MapIterDataset
from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset
from gristmill.loader.records import DataIterDataset, LegacyOperationIterDataset, SampledMapDataset
from gristmill.samplers import IndexSampler

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
    MapEntry("map", lambda: tens().map(add_ten), lambda i: ten(i) + 10, 10),
    MapEntry("map_none", lambda: holey().map(add_ten), lambda i: unless_three(i, ten(i) + 10), 10),
    MapEntry("map_with_index", lambda: holey().map_with_index(pair), lambda i: unless_three(i, (i, ten(i))), 10),
    MapEntry("random_map", lambda: holey().random_map(draw, seed=7), lambda i: unless_three(i, draw(ten(i), stream(7, i))), 10),
    MapEntry("filter", lambda: tens().filter(not_multiple_of_three), lambda i: ten(i) if ten(i) % 3 else None, 10),
    MapEntry("seed", lambda: tens().seed(4), ten, 10),
    MapEntry("shuffle", lambda: tens().shuffle(seed=3), lambda i: shuffled(i, 10, 3) % 10, 10),
    MapEntry("shuffle_one", lambda: MapDataset.range(1).shuffle(seed=3), lambda i: 0, 1),
    MapEntry("shuffle_index", lambda: indexed().shuffle(seed=3), lambda i: (shuffled(i, 10, 3), shuffled(i, 10, 3) % 10), 10),
    MapEntry("slice", lambda: indexed()[1:9:3], lambda i: (sliced(i, 10, slice(1, 9, 3)), ten(sliced(i, 10, slice(1, 9, 3)))), 3),
    MapEntry(
        "slice_back",
        lambda: indexed()[::-2],
        lambda i: (sliced(i, 10, slice(None, None, -2)), ten(sliced(i, 10, slice(None, None, -2)))),
        5,
    ),
    MapEntry(
        "reindex",
        lambda: indexed().slice([3, -1, 12, 3]),
        lambda i: (k := [3, -1, 12, 3][i % 4] + i // 4 * 10) and (k, ten(k)),
        4,
    ),
    MapEntry("repeat", lambda: indexed().repeat(2), lambda i: (i, ten(i)), 20),
    MapEntry("repeat_same", lambda: indexed().repeat(2, reseed_each_epoch=False), lambda i: (ten(i), ten(i)), 20),
    MapEntry("batch", lambda: indexed().batch(4, batch_fn=list), lambda i: [(k, ten(k)) for k in batched(i, 10, 4, False)], 3),
    MapEntry(
        "batch_drop",
        lambda: tens().batch(4, drop_remainder=True),
        lambda i: np.array([ten(k) for k in batched(i, 10, 4, True)]),
        2,
    ),
    MapEntry(
        "chain",
        lambda: tens().shuffle(seed=1)[1:].map_with_index(pair).repeat(3),
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
    IterEntry("record_data", lambda: DataIterDataset(MapDataset.source(_RECORDS).to_iter_dataset(DIRECT)), ["a", None, [3]]),
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
