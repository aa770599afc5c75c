"""``shuffle``: a global shuffle that needs no memory."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from gristmill.core.permutation import Permutation
from gristmill.core.seeds import check_seed
from gristmill.dataset.graph import random_seed
from gristmill.dataset.map_dataset import ReindexMapDataset

T = TypeVar("T")


class ShuffleMapDataset(ReindexMapDataset[T]):
    """The parent's elements in a pseudo-random order, another one in every epoch.

    Order: epoch ``e`` is permuted by ``index_shuffle`` with seed ``seed + e``. Cost: about 0.05 µs per element in blocks,
    1 µs for a single one.
    """

    _parameters: ClassVar = {"seed": "_seed"}

    def __init__(self, parent: Any, *, seed: int | None = None) -> None:
        super().__init__(parent)
        seed = None if seed is None else check_seed(seed, bits=32)
        self._seed = random_seed(self, seed, "shuffle")
        self._permutation = Permutation(0, self._seed)

    @property
    def _limit(self) -> int:
        length = len(self)
        return max(2**62 - length, length - 1)

    def _reindex(self, index: Any) -> Any:
        length = len(self._parents[0])
        permutation = self._permutation
        if (
            permutation.length != length or not length
        ):  # the parent's length may change as long as nothing downstream has fixed it
            self._check_not_empty(length)
            self._permutation = permutation = Permutation(length, self._seed)
        if type(index) is int:
            epoch, position = divmod(index, length)
            return permutation.one(epoch, position) + epoch * length
        epochs, positions = index // length, index % length  # divmod takes no object arrays
        return permutation.many(epochs, positions) + epochs * length
