"""Elements of an iterator before they are wanted, with the state before each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gristmill.dataset.ahead.blocks import StatedBlocks, blocks_of
from gristmill.dataset.bases.iterator import DatasetIterator, skip_one, snapshot
from gristmill.dataset.states.values import copied

_BLOCK_SIZE = 128


class Lookahead:
    """Reads an iterator for whoever cannot know beforehand how many elements an output takes.

    No element is computed before it is asked for, but where stages compute only whole blocks: then never more than a block ahead,
    or what a millisecond gives. After an interrupt in the middle of a method this is of no use any more: set the iterator back,
    and make a new one.

    Args:
        it: the iterator, which nobody else moves from now on.
    """

    def __init__(self, it: DatasetIterator[Any]) -> None:
        self.position = 0  # of the next element in the block: whoever uses an element passes it by adding 1
        self.has_failed = False  # the last call of ``block`` raised what the iterator had raised; else it was interrupted
        self._it = it
        self._blocks: StatedBlocks | None = None
        self._each: Any = None  # what gives one element after the other
        self._elements: list[Any] = []
        self._states: Sequence[Any] = ()  # after each
        self._before: Any = None  # the state before them
        self._num_before = 0  # elements that were passed before the block
        self._state_at: Callable[[int], Any] | None = None  # see ``states``
        self._failure: BaseException | None = None  # what follows them

    @property
    def state(self) -> Any:
        """The state before the next element, new data; ``None`` if the iterator has none."""
        if self._blocks is None:
            return copied(snapshot(self._it))
        return copied(self._states[self.position - 1] if self.position else self._before)

    @property
    def next_state(self) -> Any:
        """The state after the next element, which is known; not to be changed."""
        return self._states[self.position]

    def states(self) -> Callable[[int], Any]:
        """What gives, whenever it is asked, the ``state`` at a ``num_passed`` within the block that ``block`` gave last."""
        if self._state_at is None:
            states, before, first = self._states, self._before, self._num_before
            self._state_at = lambda number: copied(states[number - first - 1] if number > first else before)
        return self._state_at

    @property
    def is_at_end(self) -> bool:
        """Whether no element is known to follow."""
        return self.position >= len(self._elements)

    @property
    def is_at_last(self) -> bool:
        """True if the next element is the one that the iterator returned last."""
        return 0 <= self.position == len(self._elements) - 1

    def drawn(self) -> Any:
        """The state after the next element, or, if none is known, before it."""
        return self.state if self.is_at_end else copied(self._states[self.position])

    @property
    def num_passed(self) -> int:
        """Elements that were passed, failing ones too, since ``restart_count``."""
        return self._num_before + self.position

    def restart_count(self, num_passed: int = 0) -> None:
        """Lets ``num_passed`` be that."""
        self._num_before, self._state_at = num_passed - self.position, None

    def block(self) -> list[Any]:
        """The next elements, which remain the next ones until ``position`` passes them; none only at the end.

        An error of the iterator is raised when all before it have been passed. It changes nothing: the next call tries again.
        """
        self.has_failed = False
        if self.position < len(self._elements):
            return self._elements[self.position :]
        if self._failure is None:
            if self._blocks is None:
                self._begin(snapshot(self._it))
            elements = self._next()
            if elements:
                return elements
        failure, self._failure = self._failure, None
        if isinstance(failure, StopIteration):
            if self._it._counts_faults:  # there may be some before the end
                self._num_before, self.position, self._before = self.num_passed, 0, copied(snapshot(self._it))
                self._elements, self._states, self._state_at = [], (), None
            return []
        assert failure is not None
        self.has_failed = True
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame

    def skip(self) -> None:
        """Passes the next element, whether or not it fails."""
        if self.position == len(self._elements):
            if self._each is not None and self._blocks is not None:
                self._each.close()
                self._blocks.go_back()
            skip_one(self._it)
            self._num_before += 1
            self._begin(copied(snapshot(self._it)))
        else:
            self.position += 1

    def _begin(self, state: Any) -> None:
        """Goes on where the iterator is, which is in ``state``."""
        self._num_before, self.position = self.num_passed, 0
        self._before, self._blocks, self._failure = state, blocks_of(self._it), None
        self._elements, self._states, self._state_at = [], (), None
        self._each = self._blocks.each(_BLOCK_SIZE)

    def _next(self) -> list[Any]:
        """One more element, or several where they are computed at once; none before ``_failure``."""
        assert self._blocks is not None
        for element, states, _ in self._each or ():
            if states is not self._states:
                self._begin_block([], states)
            self._elements.append(element)
            return [element]
        self._each = None
        self._failure, self._blocks.stopped = self._blocks.stopped, None
        if self._failure is None:
            elements, states, self._failure = self._blocks.take(_BLOCK_SIZE if self._blocks.are_whole else 1)
            self._begin_block(elements, states)
            return elements
        return []

    def _begin_block(self, elements: list[Any], states: Sequence[Any]) -> None:
        self._before = self.state
        self._num_before, self.position = self.num_passed, 0
        self._elements, self._states, self._state_at = elements, states, None
