"""``CacheIterDataset``: elements kept in memory."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.state import plain_counts, shown, state_count, state_field, state_flag
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, go_to, iterate, pull, skip_one, snapshot
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied, given, is_same

T = TypeVar("T")

_BLOCK = 256  # elements that are read at once after a restore


class CacheIterDataset(IterDataset[T]):
    """Returns the elements of ``parent``, kept in memory: ``RepeatIterDataset(CacheIterDataset(ds), n)`` computes them once.

    Every iterator has a cache of its own, filled as elements pass. It is complete when the parent has ended, which is not
    touched any more then. Going back within what is in memory computes nothing.

    Order: the parent's. State: the parent's, the number of elements so far, whether the cache is complete, and where
    ``skip_failed`` has left out some, if it has; no elements. A new iterator that is restored computes those before its position
    again. Cost: a list's, and the memory of all elements.

    Args:
        parent: the dataset; all its elements must fit in memory.
        copy_elements: hand out deep copies, so that elements may be changed in place. Otherwise every epoch has the very same
            objects, and a change would be seen in the next one.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(3).map(lambda x: print("computing", x) or x).to_iter_dataset()
        >>> list(CacheIterDataset(ds).repeat(2))
        computing 0
        computing 1
        computing 2
        [0, 1, 2, 0, 1, 2]
    """

    _element_spec = spec_of_first_parent

    def __init__(self, parent: Any, *, copy_elements: bool = False) -> None:
        super().__init__(parent)
        self._copy_elements = bool(copy_elements)

    def __str__(self) -> str:
        return f"CacheIterDataset(parent={self._parent})"

    def __iter__(self) -> DatasetIterator[T]:
        return CacheDatasetIterator(iterate(self._parent), self._copy_elements)


class CacheDatasetIterator(BlockIterator[T]):
    # The parent is always right behind what is in memory, wherever this iterator is.
    _kind = "stateful"
    _refills = True

    def __init__(self, parent: DatasetIterator[Any], copy_elements: bool) -> None:
        super().__init__(parent)
        self._source = parent
        self._copy_elements = copy_elements
        self._elements: list[Any] = []
        self._is_complete = False
        self._position = 0
        # How many elements were before each one that was left out because it failed, and how many of these are left out already.
        self._skipped: list[int] = []
        self._num_skipped = 0
        self._start: Any = None  # the parent's state at the beginning, from the time it is first moved
        # What the state says of the parent and of the cache after a restore, which need not be how they are.
        self._shown: tuple[Any, bool] | None = None

    def _take(self, n: int) -> list[Any]:
        stop = self._position + n
        if self._is_complete:
            if self._shown is not None:
                self._shown = self._shown[0], True
        elif stop > len(self._elements):
            self._read_until(stop)
            if self._shown is not None and not self._shown[1]:
                self._shown = None
        if self._position > len(self._elements):
            raise StateIndexError(
                f"position in the state of {self} must be in [0, {len(self._elements)}], the number of elements, "
                f"got {self._position}"
            )
        elements = self._elements[self._position : stop]
        self._position += len(elements)
        return [copy.deepcopy(x) for x in elements] if self._copy_elements else elements

    def _read_until(self, stop: int) -> None:
        """Gets elements into memory until there are ``stop``, or all."""
        while len(self._elements) < stop and not self._is_complete:
            before = snapshot(self._source)
            self._note_start(before)
            num_before_gap = self._num_before_gap()
            n = min(stop - len(self._elements), _BLOCK, num_before_gap)
            try:
                elements = pull(self._source, n) if n else []
                is_gap = not n and skip_one(self._source)
            except BaseException:
                go_to(self._source, before)
                raise
            self._elements += elements
            self._num_skipped += is_gap
            self._is_complete = len(elements) < n or (not n and not is_gap)

    def _num_before_gap(self) -> int:
        """How many elements come before the next one that is to be left out."""
        gaps = self._skipped[self._num_skipped : self._num_skipped + 1]
        return gaps[0] - len(self._elements) if gaps else _BLOCK

    def _note_start(self, state: Any) -> None:
        if self._start is None:
            self._start = copied(state)

    def get_state(self) -> Any:
        if self._shown is None:
            parent, is_complete = self._source.get_state(), self._is_complete
        else:
            parent, is_complete = copied(self._shown[0]), self._shown[1]
        state = {"parent": parent, "position": self._position, "cache_filled": is_complete}
        return {**state, "skipped": [*self._skipped]} if self._skipped else state

    def _restore(self, state: Any) -> None:
        position = state_count(state, "position", self)
        is_complete = state_flag(state, "cache_filled", self)
        parent = state_field(state, "parent", self)
        skipped = self._gaps_in(state, None if is_complete else position)
        with refilling(self, f"{position} elements" if position else None):
            self._restore_to(position, is_complete, parent, skipped)

    def _restore_to(self, position: int, is_complete: bool, parent: Any, skipped: list[int]) -> None:
        now = copied(self._source.get_state())
        self._note_start(now)
        if not self._is_of_memory(skipped, position):
            self._source.set_state(copied(self._start))
            now = copied(self._start)
            self._elements, self._is_complete, self._skipped, self._num_skipped = [], False, skipped, 0
        is_in_memory = 0 < position <= len(self._elements) or (position == 0 and is_same(parent, self._start))
        if is_in_memory and not is_complete and not self._is_complete:
            self._source.set_state(parent)  # the states before what is in memory are not
            del self._elements[position:]
            self._position, self._is_complete, self._shown = position, False, None
            self._skipped, self._num_skipped = skipped, len(skipped)
            return
        if not is_same(parent, now) and not is_same(parent, self._start):
            try:
                self._source.set_state(parent)  # which refuses what is none of its states
            finally:
                self._source.set_state(now)
        elif not self._is_complete:
            self._source.set_state(now)  # what has failed there is to be tried again
        self._skipped = max(self._skipped[: self._num_skipped], skipped, key=len)  # what is in memory stays as it is
        self._position = position
        self._shown = given(parent), is_complete

    def _gaps_in(self, state: Any, most: int | None) -> list[int]:
        skipped = plain_counts(state.get("skipped", []))
        if skipped is None or skipped != sorted(skipped) or (most is not None and max(skipped, default=0) > most):
            allowed = "" if most is None else f" up to position, {most}"
            raise StateMismatchError(
                f"skipped in the state of {self} must be ascending non-negative integers{allowed}, got {shown(state['skipped'])}"
            )
        return skipped

    def _is_of_memory(self, skipped: list[int], position: int) -> bool:
        """Whether what is in memory came with the same elements left out."""
        done = self._skipped[: self._num_skipped]
        num = min(len(done), len(skipped))
        if done[:num] != skipped[:num] or position > min(done[num:], default=position):
            return False
        return num == len(skipped) or not (self._is_complete or skipped[num] < len(self._elements))

    def _skip(self) -> None:
        while self._position >= len(self._elements) and not self._is_complete:
            try:
                self._read_until(len(self._elements) + 1)
            except Exception:
                self._source._skip()
                was_delivered = self._position > len(self._elements)  # before, and cannot be read again
                later = [num - was_delivered for num in self._skipped[self._num_skipped :]]
                self._skipped[self._num_skipped :] = [len(self._elements), *later]
                self._num_skipped += 1
                self._position -= was_delivered
                if not was_delivered:
                    self._shown = None
                return
        if self._position < len(self._elements):
            self._position += 1
