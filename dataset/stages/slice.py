"""``slice``: some of the elements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from gristmill.core.errors import SliceTypeError, as_int
from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.epochs import keeps_records
from gristmill.dataset.bases.length import Infinite, Length, num_elements
from gristmill.dataset.bases.map import ReindexMapDataset, not_over_a_part
from gristmill.dataset.bases.parameters import Parameters

T = TypeVar("T")


class SliceParameters(Parameters):
    start: int
    stop: int
    step: int


class SliceMapDataset(ReindexMapDataset[T]):
    """The elements of the parent at ``range(start, stop, step)`` of each epoch.

    Order: the slice's. Cost: a few array operations per block.
    """

    def __init__(self, parent: object, sl: slice) -> None:
        super().__init__(parent)
        self._parent_length = len(self._gm_parent)
        self._slice = sl
        self._start, self._stop, self._step = sl.indices(self._parent_length)
        self._gm_parameters = SliceParameters(self._start, self._stop, self._step)
        self._length = len(range(self._start, self._stop, self._step))
        self._gm_takes_a_part = not self._is_share_or_all()
        # of one element any step is valid, even one beyond int64
        self._stride = self._step if self._length > 1 else 0

    def __len__(self) -> int:
        return self._length

    def _gm_num_elements(self) -> Length:
        whole = num_elements(self._gm_parent)
        # as a share of it does
        goes_on = isinstance(whole, Infinite) and self._stop == self._parent_length
        return whole if goes_on else super()._gm_num_elements()

    def _is_share_or_all(self) -> bool:
        if not self._length or self._length == self._parent_length:
            return True
        # ds[i::n] is a share: that others have its records in later epochs is meant.
        taken = range(self._start, self._stop, self._step)
        first, step = min(taken[0], taken[-1]), abs(self._step)
        return first < step and len(range(first, self._parent_length, step)) == self._length

    @property
    def _gm_passed_on(self) -> tuple[Any, slice]:
        return self._gm_parent, self._slice

    def __str__(self) -> str:
        return f"SliceMapDataset[{self._start}:{self._stop}:{self._step}]"

    def _gm_chain_text(self) -> str:
        if self._stop < sys.maxsize:
            return str(self)
        return f"SliceMapDataset[{self._start or ''}::{self._step}]"  # of a parent without end

    def _gm_over(self, replaced: Callable[[Any], Any]) -> SliceMapDataset[T]:
        if self._length != self._parent_length:
            raise not_over_a_part(self, "selects elements by their position")
        # all of them, perhaps backwards
        return SliceMapDataset(replaced(self._gm_parent), slice(None, None, self._step))

    @property
    def _limit(self) -> int:
        # An index of epoch e moves to epoch e of the parent, whose epochs may be longer.
        return max((2**62 // max(self._parent_length, 1) - 2) * self._length, self._length - 1)

    def _reindex(self, index: Any) -> Any:
        self._check_not_empty(self._length)
        epoch = index // self._length
        position = index - epoch * self._length
        return self._start + position * self._stride + epoch * self._parent_length

    def _reindex_range(self, indices: range) -> Indices | None:
        self._check_not_empty(self._length)
        if indices[0] // self._length != indices[-1] // self._length:
            return None
        first, second, last = (self._reindex(indices[i]) for i in (0, 1, -1))
        return range(first, last + (second - first), second - first)


class ReindexedMapDataset(ReindexMapDataset[T]):
    """The elements of the parent at the given indices of each epoch, which are looked up when
    needed.

    Order: that of ``indices``. Cost: one look-up per element.
    """

    _gm_shared_by_threads = ("_indices",)
    _gm_needs_whole = "selects elements by their position"

    def __init__(self, parent: object, indices: Any) -> None:
        super().__init__(parent)
        self._indices = indices
        self._parent_length = len(self._gm_parent)
        self._gm_takes_a_part = 0 < len(indices) != self._parent_length

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def _gm_shares_records(self) -> bool:
        entries = [as_int(f"indices[{i}]", self._indices[i]) for i in range(len(self._indices))]
        is_of_first_epoch = all([0 <= entry < self._parent_length for entry in entries])
        if not is_of_first_epoch and not keeps_records(self._gm_parent):
            return True
        return len({entry % self._parent_length for entry in entries}) < len(entries)

    def __str__(self) -> str:
        length = len(self)
        shown = [
            str(self._indices[i])
            for i in (range(length) if length <= 5 else (0, 1, length - 2, length - 1))
        ]
        if length > 5:
            shown.insert(2, "...")
        return f"ReindexMapDataset(indices=[{', '.join(shown)}], len={length})"

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        # More than fits a description, but not millions of them as text.
        return {
            "indices": (
                self._indices[:500] if isinstance(self._indices, list | tuple) else self._indices
            )
        }

    def _reindex(self, index: int) -> int:
        length = len(self._indices)
        self._check_not_empty(length)
        epoch, position = divmod(index, length)
        entry = self._indices[position]
        if isinstance(entry, bool | np.bool_):
            entry = int(entry)
        return as_int(f"indices[{position}]", entry) + epoch * self._parent_length

    def _moved(self, indices: Indices) -> list[int]:
        return [self._reindex(i) for i in as_ints(indices)]


def slice_dataset(parent: Any, sl: object) -> Any:
    """Returns the stage for ``parent.slice(sl)``."""
    if isinstance(sl, slice):
        from gristmill.dataset.mixtures.shares import warn_if_slice_is_one_sided

        part: Any = SliceMapDataset(parent, sl)
        if not part._gm_takes_a_part:  # it is a share, such as ds[i::n]
            warn_if_slice_is_one_sided(parent, sl)
        return part
    is_sequence = (
        hasattr(sl, "__getitem__")
        and hasattr(sl, "__len__")
        and not isinstance(sl, str | bytes | Mapping)
    )
    if not is_sequence or getattr(sl, "ndim", 1) != 1:
        raise SliceTypeError(
            f"sl must be a slice or a sequence of indices, got {sl!r:.100} of type"
            f" {type(sl).__name__}"
        )
    return ReindexedMapDataset(parent, sl)
