"""``RunsMapDataset``: runs of consecutive elements, which workers have in turn."""

from __future__ import annotations

from typing import Any, TypeVar

from gristmill.core.indices import Indices
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.map import ReindexMapDataset
from gristmill.dataset.bases.parameters import Parameters

T = TypeVar("T")


class RunsParameters(Parameters):
    numbers: Numbers


class RunsMapDataset(ReindexMapDataset[T]):
    """The elements ``numbers`` of an epoch of the parent. Workers that share it out have whole runs
    of it in turn.

    Order: the parent's. Cost: a few array operations per block.
    """

    _gm_adds_step = False  # seeds are those of the parent
    _gm_needs_whole = "selects elements by their position"

    def __init__(self, parent: object, numbers: Numbers) -> None:
        super().__init__(parent)
        self._gm_parameters = RunsParameters(numbers)
        self.numbers = numbers
        self._length = numbers.num_before(len(self._gm_parent))
        self._gm_is_share = numbers.count > 1

    def __len__(self) -> int:
        return self._length

    def _gm_divided(self, division: Division) -> RunsMapDataset[T]:
        numbers = self.numbers
        return RunsMapDataset(
            self._gm_parent, numbers.replaced(index=division.index, count=division.num_workers)
        )

    @property
    def _limit(self) -> int:
        return 2**62 // self.numbers.count - self.numbers.origin

    def _reindex(self, index: object) -> Any:
        return self.numbers(index)

    def _reindex_range(self, indices: range) -> Indices | None:
        first, last = self.numbers(indices[0]), self.numbers(indices[-1])
        if last - first == len(indices) - 1 and indices.step == 1:
            return range(first, last + 1)
        return None
