"""Lanes of mixtures: a lane of a mixture is the mixture of the lanes of its components.

Every ``n``-th element of a mixture would not do: the pattern of its weights has a short period, so
that such a lane may have elements of one component only.

Stages downstream of a mixture that look at elements one by one, and those that group or repeat
them, are applied to the lane. A function that gets the index of an element gets its number in the
whole stream, in which the lanes' elements come in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gristmill.core.indices import Indices
from gristmill.dataset.bases.map import MapDataset, ReindexMapDataset
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.mixtures.map_dataset import MixedMapDataset

T = TypeVar("T")
Share = Callable[[MapDataset[Any]], MapDataset[Any]]  # of a map dataset: every n-th element


def lane_of(ds: MapDataset[Any], index: int, num_lanes: int, share: Share) -> MapDataset[Any]:
    """Return lane ``index`` of ``num_lanes`` of a map dataset.

    Args:
        ds: the dataset.
        index: the number of the lane.
        num_lanes: how many lanes there are.
        share: returns every ``num_lanes``-th element of a dataset, which is its lane if it has no
            mixture that can be divided.
    """
    if not ds._gm_is_mixed_in_lanes:
        return share(ds)
    if isinstance(ds, MixedMapDataset):
        return ds.over_lanes(
            [lane_of(parent, index, num_lanes, share) for parent in ds._gm_parents], num_lanes
        )
    stages, below = _stages_of_elements(ds)
    if not stages:
        return _over(ds, lane_of(ds._gm_parents[0], index, num_lanes, share))
    lane = lane_of(below, index, num_lanes, share)
    if not any([stage._gm_gets_index for stage in stages]):
        return _all_over(stages, lane)
    return share(_all_over(stages, NumberedLaneMapDataset(lane, index, num_lanes)))


def _stages_of_elements(ds: MapDataset[Any]) -> tuple[list[MapDataset[Any]], MapDataset[Any]]:
    """Return the stages from ``ds`` on that keep indices, and the dataset upstream."""
    stages = []
    while not isinstance(ds, MixedMapDataset) and ds._gm_keeps_indices:
        stages.append(ds)
        ds = ds._gm_parents[0]
    return stages, ds


def _all_over(stages: Iterable[MapDataset[Any]], ds: MapDataset[Any]) -> MapDataset[Any]:
    for stage in reversed([*stages]):
        ds = _over(stage, ds)
    return ds


def _over(stage: MapDataset[Any], parent: MapDataset[Any]) -> MapDataset[Any]:
    old = stage._gm_parents[0]

    def replaced(value: object) -> Any:
        if value is old:
            return parent
        if isinstance(value, tuple) and value == (old,):
            return (parent,)
        return value

    # A stage that keeps indices keeps nothing that depends on the length of its parent.
    new: MapDataset[Any] = (
        DatasetNode._gm_over(stage, replaced)
        if stage._gm_keeps_indices
        else stage._gm_over(replaced)
    )
    return new


class LaneParameters(Parameters):
    index: int
    num_lanes: int


class NumberedLaneMapDataset(ReindexMapDataset[T]):
    """The elements of lane ``index`` of ``num_lanes`` at their numbers in the whole stream; no
    elements at other numbers.
    """

    _gm_adds_step = False  # seeds are those of the whole
    _gm_is_share = True

    def __init__(self, parent: MapDataset[T], index: int, num_lanes: int) -> None:
        super().__init__(parent)
        self._gm_parameters = LaneParameters(index, num_lanes)
        self._index, self._num_lanes = index, num_lanes
        self._length = min(len(parent), 2**62 // num_lanes) * num_lanes

    def __len__(self) -> int:
        return self._length

    def _reindex(self, index: Any) -> Any:
        return (index - self._index) // self._num_lanes

    def _reindex_range(self, indices: range) -> Indices | None:
        if indices.step != self._num_lanes:
            return None
        first: int = self._reindex(indices[0])
        return range(first, first + len(indices))

    def _gm_counts_before(self, num: int) -> dict[str, dict[str, int]] | None:
        return self._gm_parents[0]._gm_counts_before(-((self._index - num) // self._num_lanes))

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        return [UpstreamElement(self._gm_parent, self._reindex(index))]
