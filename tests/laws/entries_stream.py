"""Stages that count, repeat, keep or cut again what one stream gives them, and those for training on many devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from entry import (
    DIRECT,
    THREADED,
    IterEntry,
    MapEntry,
    add_ten,
    draw,
    drop_threes,
    is_big,
    not_multiple_of_three,
    numbers,
    pair,
    sparse,
    stream,
)

from gristmill.core.options import ReadOptions
from gristmill.core.sharding import ShardOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.stages.cache import CacheIterDataset
from gristmill.dataset.stages.elastic import ElasticIterator
from gristmill.dataset.stages.limit import LimitIterDataset
from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch
from gristmill.dataset.stages.rebatch import RebatchIterDataset
from gristmill.dataset.stages.repeat import RepeatIterDataset

MAP_ENTRIES: list[MapEntry] = []


def is_huge(x: int) -> bool:
    return x > 100


class Elastic(IterDataset[Any]):
    """An ``ElasticIterator`` is its own only iterator; this gives a new one every time."""

    def __init__(self, read_options: ReadOptions) -> None:
        super().__init__()
        self._read_options = read_options

    def __str__(self) -> str:
        return "Elastic"

    def __iter__(self) -> DatasetIterator[Any]:
        ds = MapDataset.range(23).map(add_ten)
        return ElasticIterator(ds, 4, ShardOptions(1, 2), read_options=self._read_options)


_BATCHES = [np.array([p + 11, p + 13]) for p in range(0, 20, 4)]
_SPARSE = [drop_threes(x) for x in range(11)]
_DRAWN = [draw(x, stream(2, i)) for i, x in enumerate(range(4))]

ITER_ENTRIES = [
    IterEntry("limit", lambda: LimitIterDataset(numbers(THREADED), 4), list(range(4))),
    IterEntry("limit_beyond", lambda: LimitIterDataset(numbers(), 20), list(range(11))),
    IterEntry("limit_nones", lambda: LimitIterDataset(sparse(), 6), _SPARSE[:6]),
    IterEntry(
        "limit_chain",
        lambda: LimitIterDataset(numbers(THREADED).filter(not_multiple_of_three), 5).map_with_index(pair),
        [(0, 1), (1, 2), (2, 4), (3, 5), (4, 7)],
    ),
    IterEntry("repeat", lambda: RepeatIterDataset(numbers(THREADED, n=4), 3), [*range(4)] * 3),
    IterEntry("repeat_endless", lambda: RepeatIterDataset(numbers(n=3)).limit(8), [0, 1, 2, 0, 1, 2, 0, 1]),
    IterEntry("repeat_random", lambda: RepeatIterDataset(numbers(n=4).random_map(draw, seed=2), 2), _DRAWN * 2),
    IterEntry("repeat_nothing", lambda: RepeatIterDataset(numbers().filter(is_huge), 5), []),
    IterEntry("repeat_nones", lambda: RepeatIterDataset(sparse().filter(is_big), 2), [x for x in _SPARSE if is_big(x)] * 2),
    IterEntry("repeat_batches", lambda: RepeatIterDataset(numbers(n=5).batch(3, batch_fn=list), 2), [[0, 1, 2], [3, 4]] * 2),
    IterEntry(
        "repeat_shares",
        lambda: RepeatIterDataset(multithread_prefetch(numbers(n=5), num_threads=2, buffer_size=2), 2),
        [*range(5)] * 2,
    ),
    IterEntry("repeat_repeat", lambda: RepeatIterDataset(RepeatIterDataset(numbers(n=2), 2).limit(3), 2), [0, 1, 0] * 2),
    IterEntry(
        "rebatch",
        lambda: RebatchIterDataset(numbers(THREADED).batch(4), 3),
        [np.arange(0, 3), np.arange(3, 6), np.arange(6, 9), np.arange(9, 11)],
    ),
    IterEntry(
        "rebatch_drop",
        lambda: RebatchIterDataset(numbers().batch(2), 5, drop_remainder=True),
        [np.arange(0, 5), np.arange(5, 10)],
    ),
    IterEntry(
        "rebatch_even", lambda: RebatchIterDataset(numbers(n=8).batch(4), 2), [np.arange(i, i + 2) for i in range(0, 8, 2)]
    ),
    IterEntry("rebatch_same", lambda: RebatchIterDataset(numbers(n=8).batch(4), 4), [np.arange(0, 4), np.arange(4, 8)]),
    IterEntry(
        "rebatch_pairs",
        lambda: RebatchIterDataset(numbers(n=5).map_with_index(pair).batch(3), 2),
        [(np.arange(i, j), np.arange(i, j)) for i, j in ((0, 2), (2, 4), (4, 5))],
    ),
    IterEntry(
        "rebatch_dropping",
        lambda: RebatchIterDataset(numbers().filter(not_multiple_of_three).batch(2), 4),
        [np.array([1, 2, 4, 5]), np.array([7, 8, 10])],
    ),
    IterEntry("cache", lambda: CacheIterDataset(numbers(THREADED)), list(range(11)), states_vary=True),
    IterEntry("cache_nones", lambda: CacheIterDataset(sparse()), _SPARSE, states_vary=True),
    IterEntry("cache_nothing", lambda: CacheIterDataset(numbers(n=0)), []),
    IterEntry(
        "cache_repeat",
        lambda: RepeatIterDataset(CacheIterDataset(numbers(n=4).random_map(draw, seed=2), copy_elements=True), 3),
        _DRAWN * 3,
        states_vary=True,
    ),
    IterEntry(
        "cache_chain",
        lambda: (
            CacheIterDataset(numbers(THREADED, n=7).filter(not_multiple_of_three))
            .repeat(2)
            .map_with_index(pair)
            .batch(3, batch_fn=list)
        ),
        [[(0, 1), (1, 2), (2, 4)], [(3, 5), (4, 1), (5, 2)], [(6, 4), (7, 5)]],
        states_vary=True,
    ),
    IterEntry("elastic", lambda: Elastic(DIRECT), _BATCHES),
    IterEntry("elastic_threaded", lambda: Elastic(THREADED), _BATCHES),
]
