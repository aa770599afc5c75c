"""The lineage of an element of a map dataset: the records of the sources that it was made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill.dataset.bases.node import is_of_library
from gristmill.dataset.bases.origins import UpstreamElement

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_MAX_ELEMENTS = 10_000  # to look at, of all stages together


@dataclass
class SourceRecords:
    """Records of one source in one epoch.

    Args:
        source: the dataset that reads them.
        epoch: the epoch, counted from 0; ``None`` if that is not known.
        keys: which records, in the order of use.
        sampled: where a sampler chooses them, the indices at which it was asked; else nothing.
    """

    source: Any
    epoch: int | None
    keys: list[Any] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


def origin(ds: DatasetNode, indices: Iterable[int]) -> list[SourceRecords]:
    """Returns the records that the elements of ``ds`` at ``indices`` are made of.

    Nothing is read, and no error comes out. What cannot be known is missing: what users' own
    datasets do, what their sources, samplers and selections raise when they are asked; and what is
    made of thousands of records.

    Args:
        ds: the dataset.
        indices: any integers.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.source(list("abcdef")).shuffle(seed=1).repeat().batch(2)
        >>> [(records.epoch, records.keys) for records in origin(ds, [1, 4])]
        [(0, [3, 0]), (1, [1, 2])]
    """
    search = _Search()
    for index in indices:
        search.follow(ds, index, 0)
    return [] if search.num_left < 0 else list(search.found.values())


class _Search:
    def __init__(self) -> None:
        self.found: dict[tuple[int, int | None], SourceRecords] = {}
        self.num_left = _MAX_ELEMENTS

    def follow(self, ds: Any, index: int, epoch: int) -> None:
        """Adds the records of one element; ``epoch`` counts those that ``index`` does not."""
        self.num_left -= 1
        if self.num_left < 0 or not is_of_library(ds):
            return
        with contextlib.suppress(Exception):
            for one in ds._gm_origins(index):
                if self.num_left < 0:
                    return
                if isinstance(one, UpstreamElement):
                    self.follow(one.ds, one.index, epoch + one.epoch)
                    continue
                own_epoch = None if one.epoch is None else epoch + one.epoch
                records = self.found.setdefault((id(ds), own_epoch), SourceRecords(ds, own_epoch))
                records.keys.append(one.key)
                if one.sampled is not None:
                    records.sampled.append(one.sampled)
