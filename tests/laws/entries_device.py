"""Stages for training on many devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from entry import DIRECT, THREADED, IterEntry, add_ten

from gristmill.core.options import ReadOptions
from gristmill.core.sharding import ShardOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.stages.elastic import ElasticIterator


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


MAP_ENTRIES: list[Any] = []

_BATCHES = [np.array([p + 11, p + 13]) for p in range(0, 20, 4)]

ITER_ENTRIES = [
    IterEntry("elastic", lambda: Elastic(DIRECT), _BATCHES),
    IterEntry("elastic_threaded", lambda: Elastic(THREADED), _BATCHES),
]
