"""Blocks of elements with the state after each element, for whoever computes elements before they are delivered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gristmill.core.errors import stop_iteration_error
from gristmill.dataset.iterator import BlockIterator, DatasetIterator, rewind, snapshot
from gristmill.dataset.states import LinearStates, copied, is_ours

_BLOCK_SECONDS = 0.001  # what there is after this time is given away
_PIECE = 32  # elements between two looks at the clock: quick ones may be followed by slow ones


class StatedBlocks:
    """Takes blocks from an iterator, and knows the state after every element.

    A pipeline whose stages pass on or drop single elements is computed in blocks; if every count in its state has grown by the
    length of the block, the states in between follow. Otherwise elements are computed one by one.

    Args:
        it: the iterator to take from, which nobody else moves from the first ``take`` on. States that are made by users are
            copied: they may be changed later by their owner.
    """

    def __init__(self, it: DatasetIterator[Any]) -> None:
        self._it = it
        self._in_blocks = _passes_singly(it)
        self._is_ours = is_ours(it)
        self._is_new = True
        self._state: Any = None  # after the last element that was taken

    def take(self, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        """Up to ``n`` elements, at least one if nothing is wrong; the states after them; and what came instead of the next one.

        That is ``StopIteration`` at the end, or an error. The iterator is after the last element then.
        """
        it = self._it
        if self._is_new:
            self._state, self._is_new = self._current_state(), False
        if n > 1 and self._in_blocks:
            try:
                block, is_end = self._take_pieces(n)
                after = self._current_state()
            except BaseException:  # of the elements before the error, too, the states are needed
                self._go_back()
            else:
                linear = LinearStates.between(self._state, after, len(block))
                if linear is not None:
                    self._state = after
                    return block, linear, StopIteration() if is_end else None
                self._in_blocks = False
                self._go_back()
        elements: list[Any] = []
        states: list[Any] = []
        deadline = time.perf_counter() + _BLOCK_SECONDS
        while len(elements) < n:
            try:
                element = it._take(1)
            except BaseException as error:
                self._go_back()
                if isinstance(error, StopIteration):
                    cause, error = error, stop_iteration_error(str(it))
                    error.__cause__ = cause
                return elements, states, error
            if not element:
                return elements, states, StopIteration()
            elements += element
            self._state = self._current_state()
            states.append(self._state)
            if time.perf_counter() > deadline:
                break
        return elements, states, None

    def _take_pieces(self, n: int) -> tuple[list[Any], bool]:
        """Up to ``n`` elements, and whether they are the last ones."""
        block: list[Any] = []
        deadline = time.perf_counter() + _BLOCK_SECONDS
        while len(block) < n:
            size = min(_PIECE, n - len(block))
            piece = self._it._take(size)
            block += piece
            if len(piece) < size:
                return block, True
            if time.perf_counter() > deadline:
                break
        return block, False

    def _current_state(self) -> Any:
        state = snapshot(self._it)
        return state if self._is_ours else copied(state)

    def _go_back(self) -> None:
        if self._state is not None:
            rewind(self._it, self._state if self._is_ours else copied(self._state))


def _passes_singly(it: DatasetIterator[Any]) -> bool:
    """Whether each output is made of one element of every iterator upstream, some of which may be left out."""
    return (
        isinstance(it, BlockIterator)
        and it._kind in ("one_to_one", "dropping")
        and all([_passes_singly(parent) for parent in it._parents])
    )
