"""The base of iterators that make several outputs at once of elements whose number is not known beforehand.

The guarantees:

1. The state is the parent's before the first element of a group, where in it the group begins, and how many of its outputs have
   been delivered. Restoring makes the group again.
2. An error of the parent in the middle of a group loses nothing: what has been packed stays, and ``next`` goes on with the
   element that failed. After any other error, or an interrupt, the group is made again.
3. An output that was delivered, and may have been changed, is not delivered again: it is made again.
4. ``skip_failed`` leaves out one element, the one that fails. The state says which, so that it is left out after restoring too.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.state import plain_counts, shown
from gristmill.dataset.ahead.lookahead import Lookahead
from gristmill.dataset.bases.grouped import GroupedIterator, Position, S
from gristmill.dataset.bases.iterator import DatasetIterator, go_to, state_to_refill
from gristmill.dataset.states.values import copied, given
from gristmill.dataset.telling.failures import tell, tell_at_last

G = TypeVar("G")  # a group in the making


class Outputs(Protocol):
    """The outputs of a group, perhaps made when asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> dict[str, Any]: ...


class Memory(Generic[G]):
    """What was read and made since a position, and is not in its state.

    Args:
        parent: the iterator to read from.
    """

    def __init__(self, parent: DatasetIterator[Any]) -> None:
        self.ahead = Lookahead(parent)
        self.open: G | None = None  # the group in the making
        self.group: Outputs | None = None  # when it is made


class PackIterator(GroupedIterator[dict[str, Any], S], Generic[S, G]):
    """Makes groups of elements whose number is not known beforehand. A stage also writes ``_pack`` and ``_after_group``."""

    _stays_on_error = True

    def __init__(self, parent: DatasetIterator[Any], start: S) -> None:
        super().__init__(parent)
        self._at = Position(None, start)
        self._memory: Memory[G] | None = Memory(parent)  # ``None`` after an interrupt: whatever was read is read again

    @abc.abstractmethod
    def _pack(self, memory: Memory[G], at: Position[S]) -> Position[S] | None:
        """Makes the group at ``at``, or the one after it if that has been made; returns its position, ``None`` at the end."""

    @abc.abstractmethod
    def _after_group(self, memory: Memory[G], at: Position[S]) -> Position[S]:
        """The position when all outputs of the group at ``at`` have been taken."""

    def _turns_of(self, at: Position[S]) -> Any:
        """What states in the group that is now at ``at`` say its elements are of."""
        return at.turns

    def _held(self, at: Position[S]) -> str | None:
        return f"rows, {at.num_taken} of them delivered" if at.num_taken or at.skipped else None

    def _take(self, n: int) -> list[Any]:
        memory, at = self._take_memory(), self._at
        began = at
        outputs: list[Any] = []
        try:
            while len(outputs) < n:
                found = self._find_output(memory, at)
                if found is None:
                    break
                at, group = found
                stop = min(len(group), at.num_taken + n - len(outputs))
                outputs += [group[i] for i in range(at.num_taken, stop)]
                at = at._replace(num_taken=stop)
                if stop == len(group):
                    memory.group = None
                    at = self._after_group(memory, at)
        except BaseException as error:
            if not memory.ahead.has_failed:
                if memory.ahead.is_at_last:
                    tell_at_last(error, self, self._source)
                else:
                    tell(error, self)
            elif not outputs:
                self._memory = memory
            raise
        self._at, self._memory = at, memory
        if outputs:
            self._last = began
        return outputs

    def _take_memory(self) -> Memory[G]:
        """What is in memory, taken away, so that it cannot be used again by whoever is interrupted."""
        memory, self._memory = self._memory, None
        if memory is None:
            if self._at.parent is not None:
                go_to(self._source, copied(self._at.parent))
            memory = Memory(self._source)
        memory.ahead.has_failed = False
        if self._at.parent is None:
            self._at = self._at._replace(parent=memory.ahead.state)
        return memory

    def _find_output(self, memory: Memory[G], at: Position[S]) -> tuple[Position[S], Outputs] | None:
        """The next position at which there is an output, and the group it is in."""
        while True:
            if memory.group is None:
                found = self._pack(memory, at)
                if found is None:
                    return None
                # The element after the group is drawn, too: that it does not fit has closed the group.
                at = found._replace(parent=self._until(found.parent, memory.ahead.drawn, is_last=memory.ahead.is_at_end))
                at = at._replace(turns=self._turns_of(at))
            assert memory.group is not None
            if at.num_taken < len(memory.group):
                return at, memory.group
            if at.num_taken > len(memory.group):
                raise StateIndexError(
                    f"the state of {self} says that {at.num_taken} outputs were made of the elements that now make "
                    f"{len(memory.group)}: data or arguments have changed since"
                )
            memory.group = None
            at = self._after_group(memory, at)

    def _elements(self, memory: Memory[G], at: Position[S]) -> Iterator[Any]:
        """The next elements; each is passed when the one after it is asked for. ``None`` and what is skipped are left out."""
        ahead, skipped = memory.ahead, at.skipped
        while True:
            if skipped and ahead.num_passed in skipped:
                ahead.skip()
                continue
            block = ahead.block()
            if not block:
                return
            for element in block:
                if skipped and ahead.num_passed in skipped:
                    break
                if element is not None:
                    yield element
                ahead.position += 1

    def get_state(self) -> Any:
        at, source = self._at, self._source
        parent = source.get_state() if at.parent is None else state_to_refill(source, at.parent, self._state_ahead)
        state = self._saved(parent, at.num_taken)
        if at.skipped:
            state["skipped"] = list(at.skipped)
        return state

    def _before_last(self) -> Any:
        if self._last is None:
            return None
        now, self._at = self._at, self._last
        try:
            return self.get_state()
        finally:
            self._at = now

    def _state_ahead(self) -> Any:
        """The parent's state after what decides the group: also an element that did not fit."""
        return self._at.parent if self._memory is None else self._memory.ahead.drawn()

    def _restore(self, state: Any) -> None:
        at = self._position_in(state)
        skipped = state.get("skipped", [])
        numbers = plain_counts(skipped)
        if numbers is None:
            raise StateMismatchError(
                f"skipped in the state of {self} must be a list of non-negative integers, got {shown(skipped)}"
            )
        self._go_to(at._replace(parent=given(at.parent), skipped=tuple(numbers)))

    def _begin(self, at: Position[S]) -> None:
        self._at, self._memory = at, Memory(self._source)

    def _skip(self) -> None:
        memory = self._take_memory()
        try:
            self._find_output(memory, self._at)
        except StateMismatchError:
            raise
        except Exception:
            number = memory.ahead.num_passed
            memory.ahead.skip()
            parent = self._until(self._at.parent, memory.ahead.drawn)
            self._at = self._at._replace(parent=parent, skipped=(*self._at.skipped, number))
            self._memory = memory
