"""Blocks of elements with the state after each element, for whoever computes elements before they are delivered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from gristmill.dataset.bases.iterator import DatasetIterator, is_of_blocks, marked, return_to, snapshot
from gristmill.dataset.states.values import Fetched, copied
from gristmill.dataset.telling.failures import has_arrived, instead_of_stop

_BLOCK_SECONDS = 0.001  # what there is after this time is given away


class Sink(Protocol):
    """Where elements go: each is to be seen there as soon as it is computed."""

    @property
    def num(self) -> int:
        """Elements that were put."""

    def put(self, elements: Iterable[Any], states: Sequence[Any], first: int) -> None:
        """Appends what ``elements`` gives until it ends or raises; the state after the first of them is ``states[first]``."""


class Growing:
    """A block that others may look at while it grows: as many of its elements as there are states are finished."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.states: Sequence[Any] = ()

    @property
    def num(self) -> int:
        return len(self.elements)

    def put(self, elements: Iterable[Any], states: Sequence[Any], first: int) -> None:
        if type(states) is list and type(self.states) is list:
            self.states += states
        else:
            self.states = states
        # Without the GIL, ``extend`` would hold the lock of the list until the last element.
        deque(map(self.elements.append, elements), maxlen=0)


class StatedBlocks:
    """Takes elements one by one from an iterator that is not of a stream, and knows the state after each.

    Args:
        it: the iterator, which is moved by this alone from the first ``take`` on. States that users make are
            copied, as their owner may change them later.
    """

    def __init__(self, it: DatasetIterator[Any]) -> None:
        self._it = it
        self._is_exact = is_of_blocks(it)  # nobody changes its states later
        self._marks = self._is_exact and _is_costly_to_restore(it)
        self._is_new = True
        self._state: Any = None  # after the last element that was taken
        self.growing = Growing()  # what ``take`` is at
        self.stopped: BaseException | None = None

    def take(self, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        """Return up to ``n`` elements, the states after them, and what came instead of the next one.

        That is an error, or ``StopIteration`` at the end, with the state there if that counts faults.
        The iterator is after the last element then.
        """
        if self._is_new:
            self._state, self._is_new = self._current_state(), False
        block = self.growing = Growing()
        stop = self._fill(block, n)
        self.growing = Growing()  # what is delivered belongs to the consumer alone
        return block.elements, block.states[: block.num], stop

    def _fill(self, block: Growing, n: int) -> BaseException | None:
        deadline = time.perf_counter() + _BLOCK_SECONDS
        for _ in range(n):
            element, stop = self._take_one()
            if stop is not None:
                return stop
            block.put(element, [self._state], 0)
            if time.perf_counter() > deadline:
                break
        return None

    def _take_one(self) -> tuple[list[Any], BaseException | None]:
        """Return the next element in a list, or what came instead."""
        before = marked(self._it) if self._marks else None
        try:
            element = self._it._take(1)
        except BaseException as error:
            if before is None:
                self.go_back()
            else:
                return_to(self._it, before)
            return [], self._arrived(error)
        if not element:
            return [], StopIteration(self._current_state()) if self._it._counts_faults else StopIteration()
        self._state = self._current_state()
        return element, None

    def each(self, most: int) -> Iterator[Fetched]:
        """Return nothing: all elements come by ``take``."""
        return iter(())

    def _arrived(self, error: BaseException) -> BaseException:
        has_arrived(error)
        if isinstance(error, StopIteration):
            cause, error = error, instead_of_stop(error, str(self._it))
            error.__cause__ = cause
        return error

    def _current_state(self) -> Any:
        state = snapshot(self._it)
        return state if self._is_exact else copied(state)

    def go_back(self) -> None:
        """Move the iterator to where it is after the last element that was taken."""
        if self._state is not None:
            self._it._restore(self._state if self._is_exact else copied(self._state))


def blocks_of(it: DatasetIterator[Any]) -> Any:
    """What takes blocks from ``it``."""
    from gristmill.dataset.engine.blocks import StreamBlocks
    from gristmill.dataset.engine.iterators import StreamIterator

    return StreamBlocks(it) if isinstance(it, StreamIterator) else StatedBlocks(it)


def _is_costly_to_restore(it: Any) -> bool:
    """Whether something upstream would lose what it has in memory if it were taken back by its state."""
    return it._is_costly_to_restore or any([_is_costly_to_restore(parent) for parent in it._parents])
