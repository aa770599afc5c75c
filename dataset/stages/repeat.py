"""``repeat``: several epochs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices
from gristmill.dataset.map_dataset import ReindexMapDataset

T = TypeVar("T")


class RepeatMapDataset(ReindexMapDataset[T]):
    """The parent with another length; with ``reseed_each_epoch=False`` its first epoch again and again.

    Order: the parent's. Cost: none to speak of.
    """

    _parameters: ClassVar = {"num_epochs": "_num_epochs", "reseed_each_epoch": "_reseed"}

    def __init__(self, parent: Any, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> None:
        super().__init__(parent)
        self._num_epochs = None if num_epochs is None else as_int("num_epochs", num_epochs, minimum=1)
        self._reseed = bool(reseed_each_epoch)
        self._parent_length = len(parent)
        if self._parent_length >= sys.maxsize:
            raise ValueError(f"cannot repeat {parent}: it is endless already")
        if self._num_epochs is None:
            self._length = sys.maxsize if self._parent_length else 0
        else:
            self._length = min(self._parent_length * self._num_epochs, sys.maxsize)

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return f"RepeatMapDataset(num_epochs={self._num_epochs})"

    def _over(self, replaced: Callable[[Any], Any]) -> RepeatMapDataset[T]:
        return RepeatMapDataset(replaced(self._parent), self._num_epochs, reseed_each_epoch=self._reseed)

    def _reindex_range(self, indices: range) -> Indices | None:
        return indices if self._reseed else None

    @property
    def _limit(self) -> int:
        return 2**63 - 1

    def _reindex(self, index: Any) -> Any:
        if self._reseed:
            return index
        self._check_not_empty(self._parent_length)
        return index % self._parent_length
