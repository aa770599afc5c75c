"""A later epoch of a pipeline: what is shuffled by index is shuffled again, as ``repeat`` does
it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gristmill.core.indices import Indices
from gristmill.dataset.bases.map import MapDataset, ReindexMapDataset
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.slicing import PipelineEditor

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")


def in_epoch(ds: DatasetNode, epoch: int) -> Any:
    """Returns ``ds`` with the elements of a later epoch of every map dataset in it."""
    return ds if epoch == 0 else _InEpoch(epoch).replaced(ds)


class _InEpoch(PipelineEditor):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch

    def _replace(self, ds: DatasetNode) -> Any:
        if isinstance(ds, MapDataset):
            return ds if len(ds) in (0, sys.maxsize) else EpochMapDataset(ds, self._epoch)
        return self._over_replaced(ds) if ds._gm_parents else ds


class EpochParameters(Parameters):
    epoch: int


class EpochMapDataset(ReindexMapDataset[T]):
    """The elements of one epoch of the parent.

    Order: the parent's in that epoch. Cost: none to speak of.
    """

    _gm_adds_step = False
    # States say the epoch, and are restored where it is another one.
    _gm_stage_name: ClassVar = None
    _gm_parameters: EpochParameters

    def __init__(self, parent: MapDataset[T], epoch: int) -> None:
        super().__init__(parent)
        self._gm_parameters = EpochParameters(epoch)
        self._offset = epoch * len(parent)

    def __len__(self) -> int:
        return len(self._gm_parents[0])

    def _reindex(self, index: Any) -> Any:
        return index + self._offset

    def _reindex_range(self, indices: range) -> Indices | None:
        return range(indices.start + self._offset, indices.stop + self._offset, indices.step)

    @property
    def _limit(self) -> int:
        return 2**62 - self._offset
