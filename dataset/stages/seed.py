"""``seed``: the default seeds of later random stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from gristmill.core.indices import Indices
from gristmill.core.seeds import check_seed
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, field

T = TypeVar("T")


class SeedParameters(Parameters):
    seed: int | None = field(in_checkpoint=False)  # the seeds of downstream stages are described


class SeedMapDataset(BlockMapDataset[T]):
    """The parent, with a seed for the random stages that follow."""

    _element_spec = spec_of_first_parent
    _gm_keeps_indices = True

    def __init__(self, parent: object, seed: int | None) -> None:
        super().__init__(parent)
        self._gm_seed_point = None if seed is None else check_seed(seed)
        self._gm_parameters = SeedParameters(self._gm_seed_point)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        return self._gm_parents[0]._gm_items(indices)


class SeedIterDataset(IterDataset[T]):
    """The parent, with a seed for the random stages that follow; its iterator is the parent's."""

    _gm_passes_on = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number
    _gm_works_on = "nothing"

    def __init__(self, parent: object, seed: int | None) -> None:
        super().__init__(parent)
        self._gm_seed_point = None if seed is None else check_seed(seed)
        self._gm_parameters = SeedParameters(self._gm_seed_point)

    def __iter__(self) -> DatasetIterator[T]:
        return iterate(self._gm_parent)
