"""``split``: parts of a dataset that have the same records in every epoch."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gristmill.core.apportion import Apportionment
from gristmill.core.errors import stop_iteration_error
from gristmill.core.keyed_hash import KeyedHash
from gristmill.core.locks import Lock
from gristmill.core.options import ReadOptions
from gristmill.dataset.ahead.reader import Reader
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.map import MapDataset, ReindexMapDataset
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.errors.context import add_error_context

T = TypeVar("T")

_BLOCK = 1024  # elements of which keys are computed at a time
_MAX_SIZE = 2**32  # of a part up to which its positions take four bytes


class KeyAssignment:
    """Parts that a hash of each element's key decides. Keys are computed when they are first
    needed, and pickled: no other process reads everything again.

    Args:
        keyed: what keys are computed of.
        by: makes a key of an element.
        shares: of the parts.
        seed: of the hash.
    """

    fits_int64 = True  # all arithmetic of ``position``

    def __init__(
        self,
        keyed: MapDataset[Any],
        by: Callable[[Any], Any],
        shares: Sequence[Fraction],
        seed: int,
    ) -> None:
        self._keyed = keyed
        self._by = by
        self._hash = KeyedHash(seed)
        self._starts = [int(start * 2**64) for start in itertools.accumulate(shares[:-1])]
        self._num_parts = len(shares)
        self._parts: list[NDArray[Any]] | None = None  # the positions of each, in order
        self._lock = Lock()

    def __getstate__(self) -> list[NDArray[Any]]:
        return self._positions()

    def __setstate__(self, positions: list[NDArray[Any]]) -> None:
        self._parts = positions

    def size(self, part: int) -> int:
        return len(self._positions()[part])

    def position(self, part: int, index: Any) -> Any:
        positions = self._positions()[part]
        if type(index) is int:
            return int(positions[index])
        return positions[index.astype(np.int64)].astype(np.int64)

    def _positions(self) -> list[NDArray[Any]]:
        if self._parts is None:
            with self._lock:
                if self._parts is None:
                    self._parts = self._computed()
        return self._parts

    def _computed(self) -> list[NDArray[Any]]:
        length = len(self._keyed)
        numbers = np.fromiter(self._numbers(), np.min_scalar_type(self._num_parts), length)
        dtype = np.uint32 if length <= _MAX_SIZE else np.int64
        return [np.flatnonzero(numbers == part).astype(dtype) for part in range(self._num_parts)]

    def _numbers(self) -> Iterator[int]:
        """Yields the part of each element, and an invalid number for missing elements."""
        length, options = len(self._keyed), ReadOptions()
        num_threads = options.num_threads if length > _BLOCK else 0
        reader = Reader(
            self._keyed, num_threads, options.prefetch_buffer_size, IteratorContext(joined=None)
        )
        try:
            start = 0
            while start < length:
                elements = reader.take(start, min(_BLOCK, length - start))
                for index, element in enumerate(elements, start):
                    yield self._num_parts if element is None else self._part_of(element, index)
                start += len(elements)
        finally:
            reader.close()

    def _part_of(self, element: object, index: int) -> int:
        try:
            return bisect_right(self._starts, self._hash(self._by(element)))
        except Exception as error:
            if isinstance(error, StopIteration):
                raise stop_iteration_error("by") from error
            add_error_context(error, self._keyed, [index])
            raise


# which elements of an epoch are in which part: one for all parts of a split
Assignment: TypeAlias = Apportionment | KeyAssignment


class SplitParameters(Parameters):
    part: str
    weights: dict[str, float]  # of all parts
    seed: int = field(in_repr=False)
    by: Callable[[Any], Any] | None = field(is_function=True)
    assignment: Assignment = field(in_checkpoint=False, in_repr=False)  # follows from these


class SplitMapDataset(ReindexMapDataset[T]):
    """A part of the parent, made of the same records in every epoch.

    Order: the parent's. Cost: some array operations per block, 0.1 µs per element; with keys one
    look-up, once they are known.
    """

    _gm_parameters: SplitParameters
    _gm_shared_by_threads = ("_assignment",)
    _gm_needs_whole = "selects elements by their position"

    def __init__(self, parent: MapDataset[T], parameters: SplitParameters) -> None:
        super().__init__(parent)
        self._gm_parameters = parameters
        self._assignment = parameters.assignment
        self._number = list(parameters.weights).index(parameters.part)
        self._parent_length = len(parent)

    def __len__(self) -> int:
        return self._assignment.size(self._number)

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {**super()._gm_described_parameters, "has_keys": self._gm_parameters.by is not None}

    @property
    def _limit(self) -> int:
        if not self._assignment.fits_int64:
            return -1
        length = len(self)
        return max((2**62 // max(self._parent_length, 1) - 2) * length, length - 1)

    def _reindex(self, index: Any) -> Any:
        length = len(self)
        self._check_not_empty(length)
        epoch = index // length
        return (
            self._assignment.position(self._number, index - epoch * length)
            + epoch * self._parent_length
        )
