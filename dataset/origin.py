"""Where an element of a map dataset comes from: the records of the sources that it is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gristmill.core.errors import as_int
from gristmill.dataset.map_dataset import MapDataset, ReindexMapDataset
from gristmill.dataset.selection import selected
from gristmill.dataset.stages.batch import BatchMapDataset
from gristmill.dataset.stages.filter import FilterMapDataset
from gristmill.dataset.stages.flat_map import FlatMapMapDataset
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset
from gristmill.dataset.stages.mix import MixedMapDataset
from gristmill.dataset.stages.random_map import RandomMapMapDataset
from gristmill.dataset.stages.range import RangeMapDataset
from gristmill.dataset.stages.repeat import RepeatMapDataset
from gristmill.dataset.stages.seed import SeedMapDataset
from gristmill.dataset.stages.slice import ReindexedMapDataset
from gristmill.dataset.stages.source import SourceMapDataset
from gristmill.dataset.stages.zip import ZipMapDataset
from gristmill.samplers.base import answers_blocks
from gristmill.samplers.index import IndexSampler
from gristmill.samplers.sequential import SequentialSampler

_PASSING_ON = (MapMapDataset, FilterMapDataset, MapWithIndexMapDataset, RandomMapMapDataset, SeedMapDataset)
_MAX_ELEMENTS = 10_000  # to look at, of all stages together


@dataclass
class Records:
    """Records of one source in one epoch.

    Args:
        source: the dataset that reads them.
        epoch: the epoch, counted from 0; ``None`` if that is not known.
        keys: which records, in the order of use.
        sampled: where a sampler chooses them, the indices at which it was asked; else nothing.
    """

    source: MapDataset[Any]
    epoch: int | None
    keys: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


def origin(ds: MapDataset[Any], indices: Iterable[int]) -> list[Records]:
    """The records that the elements of ``ds`` at ``indices`` are made of.

    Nothing is read, and no error comes out. What cannot be known is left out: what users' own datasets do, what their sources,
    samplers and selections raise when they are asked; and what is made of thousands of records.

    Args:
        ds: the dataset.
        indices: any integers.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.source("abcdef").shuffle(seed=1).repeat().batch(2)
        >>> [(records.epoch, records.keys) for records in origin(ds, [1, 4])]
        [(0, [3, 0]), (1, [1, 2])]
    """
    search = _Search()
    for index in indices:
        search.follow(ds, index, 0)
    return [] if search.num_left < 0 else list(search.found.values())


class _Search:
    def __init__(self) -> None:
        self.found: dict[tuple[int, int | None], Records] = {}
        self.num_left = _MAX_ELEMENTS

    def follow(self, ds: Any, index: int, epoch: int) -> None:
        """Adds the records of one element; ``epoch`` counts those that ``index`` does not."""
        self.num_left -= 1
        if self.num_left >= 0 and is_ours(ds):
            with contextlib.suppress(Exception):
                for part in self._parts(ds, index, epoch):
                    self.follow(*part)

    def _parts(self, ds: Any, index: int, epoch: int) -> Iterable[tuple[Any, int, int]]:
        """What the element is made of: datasets, indices and epochs; nothing of records, which are added."""
        if isinstance(ds, SourceMapDataset | RangeMapDataset):
            own_epoch, key = divmod(index, len(ds))
            source = getattr(ds, "_source", None)
            if isinstance(source, MapDataset):
                return [(source, key, epoch + own_epoch)]
            self._records(ds, epoch + own_epoch).keys.append(key)
            return []
        if hasattr(ds, "_sampler"):  # of a DataLoader
            sampled = ds._shard.shard_index + index * ds._shard.shard_count
            key = ds._sampler[sampled].record_key
            records = self._records(ds, _sampler_epoch(ds._sampler, sampled))
            records.sampled.append(sampled)
            records.keys.append(key)
            return []
        if isinstance(ds, MixedMapDataset):
            component, inner = selected(ds._selection_map, index)
            return [(ds._parents[component], inner, epoch)]
        if isinstance(ds, ZipMapDataset):
            return [(parent, index, epoch) for parent in ds._parents]
        parent = ds._parent
        if isinstance(ds, _PASSING_ON):
            return [(parent, index, epoch)]
        if isinstance(ds, RepeatMapDataset):
            return [(parent, ds._reindex(index), epoch if ds._reseed else epoch + index // ds._parent_length)]
        if isinstance(ds, ReindexMapDataset):
            return [(parent, ds._reindex(index), epoch)]
        if isinstance(ds, ReindexedMapDataset):
            own_epoch, position = divmod(index, len(ds))
            return [(parent, as_int("index", ds._indices[position]) + own_epoch * ds._parent_length, epoch)]
        if isinstance(ds, FlatMapMapDataset):
            return [(parent, index // ds._max_fan_out, epoch)]
        if isinstance(ds, BatchMapDataset):
            own_epoch, position = divmod(index, len(ds))
            first, offset = position * ds._batch_size, own_epoch * ds._parent_length
            stop = min(first + ds._batch_size, ds._parent_length, first + _MAX_ELEMENTS)
            return [(parent, offset + i, epoch) for i in range(first, stop)]
        return []

    def _records(self, ds: Any, epoch: int | None) -> Records:
        return self.found.setdefault((id(ds), epoch), Records(ds, epoch))


def _sampler_epoch(sampler: Any, index: int) -> int | None:
    if not answers_blocks(sampler):
        return None
    if isinstance(sampler, IndexSampler):
        return index // sampler._shard_options.shard_count // sampler._size
    return 0 if isinstance(sampler, SequentialSampler) else None


def is_ours(stage: Any) -> bool:
    """Whether ``stage`` is of a class of this library: of a subclass, nobody knows what it does."""
    return type(stage).__module__.partition(".")[0] == "gristmill"
