"""The reads of a ``DataLoader``, for its iterators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.core.sharding import ShardOptions
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.descriptions.pipeline import complete_repr


@dataclass(frozen=True)
class LoaderPlan:
    """Which records in which order, and the pipeline that computes the elements.

    Args:
        source: gives records by key.
        sampler: gives keys by index.
        shard: which of the indices.
        length: how many of them.
        num_lanes: lanes, 0 if the stream is not divided.
        keeps_whole_states: where it is does not follow from the indices of records alone.
        dataset: the pipeline.
    """

    source: Any
    sampler: Any
    shard: ShardOptions
    length: int
    num_lanes: int
    keeps_whole_states: bool
    dataset: IterDataset[Any]

    @property
    def source_text(self) -> str:
        """The text of the source in a state."""
        source = self.source
        return (
            str(type(source))
            if isinstance(source, list | tuple | np.ndarray)
            else complete_repr(source)
        )
