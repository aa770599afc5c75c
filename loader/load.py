"""``load``: a ``DataLoader`` in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gristmill.core.options import ReadOptions
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.core.state import shown
from gristmill.loader.data_loader import DataLoader
from gristmill.samplers import IndexSampler
from gristmill.sources.base import check_source
from gristmill.transforms import Batch, Transformations


def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions = NoSharding(),
    transformations: Transformations = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """Returns a ``DataLoader`` with an ``IndexSampler`` over all records of ``source``.

    Args:
        source: the data source, with ``__len__``.
        num_epochs: how many epochs; ``None`` never ends.
        shuffle: whether to shuffle each epoch globally; needs ``seed``.
        seed: seed of the shuffle and of the records' generators, an unsigned 32-bit integer.
        shard_options: which part of the records to read.
        transformations: applied in order.
        batch_size: if given, a ``Batch`` is added at the end.
        drop_remainder: whether that drops the last batch if it is smaller.
        worker_count: number of workers.
        read_options: how records are read ahead.

    Raises:
        TypeError, ValueError: as ``IndexSampler`` and ``DataLoader`` raise them.

    Example:
        >>> list(load([5, 6, 7], num_epochs=1, batch_size=2))
        [array([5, 6]), array([7])]
    """
    check_source("source", source)
    if not hasattr(source, "__len__"):
        raise TypeError(
            f"source must have __len__ and __getitem__, got {shown(source):.100} of type"
            f" {type(source).__name__}"
        )
    if not isinstance(transformations, Iterable):
        raise TypeError(
            f"transformations must be a sequence of transformations, got {shown(transformations)}"
        )
    operations = list(transformations)
    if batch_size is not None:
        operations.append(Batch(batch_size, drop_remainder))
    sampler = IndexSampler(len(source), shard_options, shuffle, num_epochs, seed)
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=worker_count,
        read_options=read_options,
    )
