"""``MapDataset.range``: integers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import as_int
from gristmill.core.indices import Indices, as_array, as_ints
from gristmill.dataset.bases.division import cut_into_parts
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.origins import RecordKey
from gristmill.dataset.bases.parameters import Parameters


class RangeParameters(Parameters):
    start: int
    stop: int
    step: int


class RangeMapDataset(BlockMapDataset[int]):
    """The integers of the builtin ``range``; element ``i`` is ``start + (i % len) * step``."""

    _gm_divided = cut_into_parts

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        super().__init__()
        self.start = 0 if stop is None else as_int("start", start)
        self.stop = as_int("start", start) if stop is None else as_int("stop", stop)
        self.step = as_int("step", step)
        if not self.step:
            raise ValueError("step must not be zero, got 0")
        self._gm_parameters = RangeParameters(self.start, self.stop, self.step)
        self._range = range(self.start, self.stop, self.step)
        # exact, unlike len() also beyond sys.maxsize
        self._length = max(0, -((self.start - self.stop) // self.step))

    def __len__(self) -> int:
        return min(self._length, sys.maxsize)

    def __repr__(self) -> str:
        return str(self)

    @property
    def _element_spec(self) -> Any:
        return ShapeDtypeStruct((), np.int64)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        values, length = self._range, self._length
        self._check_not_empty(length, indices[:1])
        if len(indices) == 1:
            return iter([values[as_ints(indices)[0] % length]])
        if isinstance(indices, range) and 0 <= indices[0] < length and 0 <= indices[-1] < length:
            step = indices.step * self.step
            first = values[indices[0]]
            return iter(range(first, first + step * len(indices), step))
        positions = as_array(indices, 2**63 - 1)
        if (
            positions.dtype == object
            or max(abs(self.start), abs(self.stop), abs(self.step)) >= 2**62
        ):
            return iter([values[i % length] for i in positions.tolist()])
        positions = positions % length
        if self.step != 1:
            positions *= self.step
        if self.start:
            positions += self.start
        return iter(positions.tolist())

    def _gm_origins(self, index: int) -> Iterable[RecordKey]:
        epoch, key = divmod(index, len(self))
        return [RecordKey(key, epoch)]
