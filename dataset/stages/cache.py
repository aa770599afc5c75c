"""``CacheIterDataset``: elements kept in memory."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias, TypeVar

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.state import plain_counts, shown, state_count, state_field, state_flag
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    iterate,
    marked,
    pull,
    return_to,
    skip_one,
    snapshot,
)
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied, given, is_same

T = TypeVar("T")

_BLOCK = 256  # elements that are read at once after a restore


class CacheParameters(Parameters):
    copy_elements: bool = aside()


class CacheIterDataset(IterDataset[T]):
    """Returns the elements of ``parent``, kept in memory: ``RepeatIterDataset(CacheIterDataset(ds), n)`` computes them once.

    Every iterator has a cache of its own, filled as elements pass. It is complete when the parent has ended, which is not
    touched any more then. Going back within what is in memory computes nothing.

    Order: the parent's. State: the parent's, the number of elements so far, whether the cache is complete, and where
    ``skip_failed`` has left out some, if it has; no elements. A new iterator that is restored computes those before its position
    again; so of a mixture in mapping form with other weights or components its state is refused, unless nothing has come yet:
    mix behind it. Cost: a list's, and the memory of all elements.

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
    _num_elements = same_number
    _parameters: CacheParameters

    def __init__(self, parent: Any, *, copy_elements: bool = False) -> None:
        super().__init__(parent)
        self._parameters = CacheParameters(bool(copy_elements))

    def __str__(self) -> str:
        return f"CacheIterDataset(parent={self._parent})"

    def _traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _parameters=self._parameters.replaced(copy_elements=False))

    def __iter__(self) -> DatasetIterator[T]:
        return CacheDatasetIterator(iterate(self._parent), self._parameters.copy_elements)


# Where an iterator is, which is what its state says:
# - the number of elements so far;
# - how many elements are before each one that is left out because it failed;
# - the parent's state, and whether the cache is complete, in the state that was restored, which need not be how they are.
#   ``None``: as they are; elements are read on from here.
_Position: TypeAlias = tuple[int, tuple[int, ...], tuple[Any, bool] | None]


class _Memory:
    """The first elements of ``source``, which is always right behind them.

    Args:
        source: the iterator, which nobody else moves.
    """

    def __init__(self, source: DatasetIterator[Any]) -> None:
        self.source = source
        self.elements: list[Any] = []
        self.gaps: list[int] = []  # how many elements are before each one that was left out
        self.is_all = False  # there are no more
        self.start: Any = None  # the state of ``source`` at the beginning, from the time it is first moved

    def read_until(self, stop: int, skipped: tuple[int, ...]) -> None:
        """Reads until there are ``stop`` elements, or all; ``skipped`` are the gaps, those that are there already included."""
        while len(self.elements) < stop and not self.is_all:
            before = marked(self.source)
            if self.start is None:
                self._note_start(snapshot(self.source))
            n = min(stop - len(self.elements), _BLOCK)
            if len(skipped) > len(self.gaps):
                n = min(n, skipped[len(self.gaps)] - len(self.elements))
            try:
                elements = pull(self.source, n) if n else []
                is_gap = not n and skip_one(self.source)
            except BaseException:
                return_to(self.source, before)
                raise
            if is_gap:
                self.gaps.append(len(self.elements))
            self.elements += elements
            self.is_all = len(elements) < n or (not n and not is_gap)

    def leave_out_next(self) -> None:
        """Leaves out the next element, which fails."""
        self.source._skip()
        self.gaps.append(len(self.elements))

    def state(self) -> Any:
        """A copy of the source's."""
        state = copied(self.source.get_state())
        self._note_start(state)
        return state

    def begins(self, position: int, skipped: tuple[int, ...]) -> bool:
        """Whether what is in memory, or up to ``position`` is to be, comes with just these elements left out."""
        num = min(len(self.gaps), len(skipped))
        if tuple(self.gaps[:num]) != skipped[:num] or position > min(self.gaps[num:], default=position):
            return False
        return num == len(skipped) or not (self.is_all or skipped[num] < len(self.elements))

    def clear(self) -> None:
        self.source.set_state(copied(self.start))
        self.elements, self.gaps, self.is_all = [], [], False

    def cut(self, position: int, skipped: tuple[int, ...], state: Any) -> None:
        """Keeps the elements up to ``position``, behind which the source is in ``state``."""
        self.source.set_state(state)
        del self.elements[position:]
        self.gaps[:] = skipped

    def _note_start(self, state: Any) -> None:
        if self.start is None:
            self.start = copied(state)


class CacheDatasetIterator(BlockIterator[T]):
    _flow = "stateful"
    _is_costly_to_restore = True
    _refills = True

    def __init__(self, parent: DatasetIterator[Any], copy_elements: bool) -> None:
        super().__init__(parent)
        self._copy_elements = copy_elements
        self._memory = _Memory(parent)
        self._at: _Position = 0, (), None

    def _take(self, n: int) -> list[Any]:
        memory, (num, skipped, told) = self._memory, self._at
        stop = num + n
        if memory.is_all:
            if told is not None and not told[1]:
                told = told[0], True
        elif stop > len(memory.elements):
            memory.read_until(stop, skipped)
            if told is not None and not told[1]:
                told = None
        elements = memory.elements[num:stop]
        if not elements and num > len(memory.elements):
            raise StateIndexError(
                f"position in the state of {self} must be in [0, {len(memory.elements)}], the number of elements, got {num}"
            )
        if self._copy_elements:
            elements = [copy.deepcopy(x) for x in elements]
        self._at = num + len(elements), skipped, told
        return elements

    def get_state(self) -> Any:
        memory, (num, skipped, told) = self._memory, self._at
        if told is None:
            state = {"parent": memory.source.get_state(), "position": num, "cache_filled": memory.is_all}
        else:
            state = {"parent": copied(told[0]), "position": num, "cache_filled": told[1]}
        if skipped:
            state["skipped"] = [*skipped]
        return state

    def _restore(self, state: Any) -> None:
        num = state_count(state, "position", self)
        is_filled = state_flag(state, "cache_filled", self)
        parent = state_field(state, "parent", self)
        skipped = self._skipped_in(state, None if is_filled else num)
        with refilling(self, f"{num} elements" if num else None):
            self._at = self._moved_to(num, skipped, parent, is_filled)

    def _moved_to(self, num: int, skipped: tuple[int, ...], parent: Any, is_filled: bool) -> _Position:
        """The position of a state, when the parent and what is in memory are such that elements follow from there."""
        memory = self._memory
        now = memory.state()
        if not (self._is_consistent and memory.begins(num, skipped)):
            memory.clear()
            now = copied(memory.start)
        is_in_memory = 0 < num <= len(memory.elements) or (num == 0 and is_same(parent, memory.start))
        if is_in_memory and not is_filled and not memory.is_all:
            memory.cut(num, skipped, parent)  # the states before what is in memory are not
            return num, skipped, None
        if not is_same(parent, now) and not is_same(parent, memory.start):
            try:
                memory.source.set_state(parent)  # which refuses what is none of its states
            finally:
                memory.source.set_state(now)
        elif not memory.is_all:
            memory.source.set_state(now)  # what has failed there is to be tried again
        # What is in memory stays as it is.
        return num, max(tuple(memory.gaps), skipped, key=len), (given(parent), is_filled)

    def _skipped_in(self, state: Any, most: int | None) -> tuple[int, ...]:
        skipped = plain_counts(state.get("skipped", []))
        if skipped is None or skipped != sorted(skipped) or (most is not None and max(skipped, default=0) > most):
            allowed = "" if most is None else f" up to position, {most}"
            raise StateMismatchError(
                f"skipped in the state of {self} must be ascending non-negative integers{allowed}, got {shown(state['skipped'])}"
            )
        return tuple(skipped)

    def _skip(self) -> None:
        memory, (num, skipped, told) = self._memory, self._at
        while num >= len(memory.elements) and not memory.is_all:
            try:
                memory.read_until(len(memory.elements) + 1, skipped)
            except Exception:
                memory.leave_out_next()
                self._at = self._behind_new_gap()
                return
        if num < len(memory.elements):
            self._at = num + 1, skipped, told

    def _behind_new_gap(self) -> _Position:
        """The position when the element behind what is in memory is left out from now on."""
        *known, new = self._memory.gaps
        num, skipped, told = self._at
        later = skipped[len(known) :]
        if num > new:  # it was delivered before, and cannot be read again: nobody counts it any more
            return num - 1, (*known, new, *[gap - 1 for gap in later]), told
        return num, (*known, new, *later), None
