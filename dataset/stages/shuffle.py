"""``shuffle``: a global shuffle that needs no memory."""

from __future__ import annotations

from typing import Any, TypeVar

from gristmill.core.indices import Indices
from gristmill.core.permutation import Permutation
from gristmill.dataset.bases.map import ReindexMapDataset
from gristmill.dataset.bases.node import random_seed
from gristmill.dataset.bases.parameters import Parameters, field

T = TypeVar("T")


class ShuffleParameters(Parameters):
    seed: int = field(in_repr=False)


class ShuffleMapDataset(ReindexMapDataset[T]):
    """The parent's elements in a pseudo-random order, another one in every epoch.

    Order: epoch ``e`` is permuted by ``index_shuffle`` with seed ``seed + e``. Cost: about 0.05 µs
    per element in blocks, 1 µs for a single one.
    """

    _gm_parameters: ShuffleParameters
    _gm_moves_records = _gm_is_reshuffled = True

    def __init__(self, parent: object, *, seed: int | None = None) -> None:
        super().__init__(parent)
        self._gm_parameters = ShuffleParameters(random_seed(self, seed, "shuffle", bits=32))
        self._permutation = Permutation(0, self._gm_parameters.seed)

    def _current_permutation(self) -> Permutation:
        length = len(self._gm_parents[0])
        # it may change as long as nothing downstream has fixed it
        if self._permutation.length != length:
            self._permutation = Permutation(length, self._gm_parameters.seed)
        self._check_not_empty(length)
        return self._permutation

    def _reindex(self, index: Any) -> Any:
        permutation = self._current_permutation()
        length = permutation.length
        epochs = index // length
        positions = index - epochs * length
        if type(index) is int:
            return permutation.one(epochs, positions) + epochs * length
        return permutation.many(epochs, positions) + epochs * length

    def _reindex_range(self, indices: range) -> Indices | None:
        permutation = self._current_permutation()
        epoch, position = divmod(indices.start, permutation.length)
        offset = epoch * permutation.length
        if indices.step != 1 or abs(offset) > self._limit:
            return None
        found = permutation.run(epoch, position, len(indices))
        return found if not offset or found is None else found + offset
