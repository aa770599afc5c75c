"""A source of integers that needs no storage."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import numpy as np

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import as_int, key_out_of_range


class InvalidRangeError(ValueError, AssertionError):
    """A range that cannot be. Grain raises ``AssertionError`` for it, Python's own ``range``
    ``ValueError``.
    """


class RangeDataSource:
    """The integers ``start, start + step, ...`` before ``stop``, as a data source.

    Record ``i`` is ``start + i * step``; there are ``ceil((stop - start) / step)`` of them.

    Args:
        start: the first record.
        stop: the end, which is not a record itself.
        step: the distance of neighbours; negative to count down.

    Raises:
        TypeError: an argument is not an integer.
        InvalidRangeError: ``step`` is 0 or leads away from ``stop`` (a ``ValueError`` and an
            ``AssertionError``).

    Example:
        >>> source = RangeDataSource(start=0, stop=10, step=3)
        >>> list(source)
        [0, 3, 6, 9]
        >>> source
        RangeDataSource(start=0, stop=10, step=3)
    """

    def __init__(self, start: int, stop: int, step: int) -> None:
        self._start = as_int("start", start)
        self._stop = as_int("stop", stop)
        self._step = as_int("step", step)
        if self._step == 0:
            raise InvalidRangeError("step can't be zero")
        # rounded up, and exact for integers of any size
        self._length = -((self._start - self._stop) // self._step)
        if self._length < 0:
            raise InvalidRangeError(
                f"length can't be negative: from {self._start} no steps of {self._step} lead to"
                f" {self._stop}"
            )

    @property
    def element_spec(self) -> ShapeDtypeStruct:
        """The spec of a record, for ``get_element_spec``."""
        return ShapeDtypeStruct((), np.int64)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: SupportsIndex, /) -> int:
        place = operator.index(index)
        if not 0 <= place < self._length:
            raise key_out_of_range(place, self._length)
        return self._start + place * self._step

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[int]:
        """Returns the records at the indices, in this order."""
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._stop, self._step))

    def __repr__(self) -> str:
        return f"RangeDataSource(start={self._start}, stop={self._stop}, step={self._step})"
