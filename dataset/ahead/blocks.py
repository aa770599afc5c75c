"""Blocks of elements with the state after each element, for whoever computes elements before they are delivered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Protocol

from gristmill.core.pacing import BlockSize
from gristmill.dataset.bases.feed import OneByOne, what_failed
from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    can_stream,
    is_of_blocks,
    leaves_out,
    marked,
    return_to,
    snapshot,
    stream_of,
    streaming_stages,
)
from gristmill.dataset.bases.node import parents_of
from gristmill.dataset.states.values import Fetched, LinearStates, copied
from gristmill.dataset.telling.failures import has_arrived, instead_of_stop

_BLOCK_SECONDS = 0.001  # what there is after this time is given away
_PIECE = 32  # elements between two looks at the clock: quick ones may be followed by slow ones


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


_NOTHING = Growing()


class StatedBlocks:
    """Takes blocks from an iterator, and knows the state after every element.

    A pipeline whose stages pass on single elements computes them one after the other through all stages, each in the sink as
    soon as it is finished; every count in the state grows by one with each, so that the states follow. Otherwise, where every
    output is made of one element, they are computed in blocks: if every count has grown by the length of the block, the states
    in between follow. Else elements are computed one by one.

    Args:
        it: the iterator to take from, which nobody else moves from the first ``take`` on. States that are made by users are
            copied: they may be changed later by their owner.
    """

    def __init__(self, it: DatasetIterator[Any]) -> None:
        self._it = it
        self._stages = streaming_stages(it)
        self._in_blocks = _passes_singly(it)
        if it._reads_once:  # nothing may be taken again, as what comes after something that is left out
            self._in_blocks = False
            if leaves_out(self._stages):
                self._stages = []
        self._is_exact = is_of_blocks(it)  # nobody changes its states later
        self._marks = self._is_exact and _is_costly_to_restore(it)
        self._is_new = True
        self._after: tuple[Sequence[Any], int] = [None], 0  # of ``_state``
        self.growing = _NOTHING  # what ``take`` is at
        self.stopped: BaseException | None = None  # see ``each``

    @property
    def _state(self) -> Any:
        """The state after the last element that was taken."""
        states, i = self._after
        return states[i]

    @_state.setter
    def _state(self, state: Any) -> None:
        self._after = [state], 0

    def take(self, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        """Up to ``n`` elements, at least one if nothing is wrong; the states after them; and what came instead of the next one.

        That is an error, or ``StopIteration`` at the end, with the state there if that counts faults. The iterator is after the
        last element then.
        """
        if n == 1:
            self._begin()
            elements, stop = self._take_one()
            return elements, [self._state] if elements else [], stop
        block = self.growing = Growing()
        stop = self.fill(block, n)
        self.growing = _NOTHING  # what is delivered is its user's alone
        return block.elements, block.states[: block.num], stop

    def fill(self, sink: Sink, n: int) -> BaseException | None:
        """As ``take``, with the elements in ``sink``; returns what came instead of the next one."""
        self._begin()
        before = sink.num
        try:
            if n > 1 and can_stream(self._stages):
                error = self._stream(sink, n)
                if error is not None:
                    return self._arrived(error)
            elif n > 1 and self.are_whole:
                self._take_block(sink, n)
        except Exception:
            pass  # it comes again when that element is computed alone
        except BaseException as error:
            return error
        return None if sink.num > before else self._take_singly(sink, n)

    def each(self, most: int) -> Generator[Fetched, None, None]:
        """The next elements, each computed when it is asked for, as long as nothing else comes.

        Afterwards ``stopped`` is the error that came instead of the next one, if that is known; ``take`` goes on otherwise.
        Whoever leaves off earlier closes this and calls ``go_back``. Sources that read many records at once are asked for
        ``most`` at the most, the more the quicker they are.
        """
        self.stopped = None
        self._begin()
        size = BlockSize()
        while can_stream(self._stages):
            states, num, seconds, is_left = LinearStates(self._state, size.now), 0, 0.0, False
            began = time.perf_counter()
            try:
                for element in stream_of(self._it, size.now):
                    seconds = seconds or time.perf_counter() - began
                    num += 1
                    yield element, states, num - 1
                    del element
            # The garbage collector raises it, too, while another thread may use the iterator. This
            # clause comes first because ``OneByOne`` is gone at the end of the interpreter.
            except GeneratorExit:
                is_left = True
                raise
            except OneByOne:
                pass
            except Exception as error:
                self.stopped = self._arrived(error)
                return
            finally:
                if num:
                    # The state is computed when it is needed: at the end of the interpreter it
                    # cannot be computed.
                    self._after = states, num - 1
                if num < size.now and not is_left:
                    self._stages = []  # there may be more of that
                    self.go_back()
            size.adapt(seconds, size.now, most)

    def want(self, num: int) -> None:
        """Do nothing: ``each`` says it by itself."""

    @property
    def are_whole(self) -> bool:
        """Whether ``take`` computes several elements at once, before the first of them is there."""
        return self._in_blocks and not self._stages

    def _begin(self) -> None:
        if self._is_new:
            self._state, self._is_new = self._current_state(), False

    def _stream(self, sink: Sink, n: int) -> Exception | None:
        """Takes up to ``n`` elements before the first thing that is not just another element; what that is, if it is an error."""
        states, first, num = LinearStates(self._state, n), sink.num, 0
        deadline = time.perf_counter() + _BLOCK_SECONDS
        try:
            while not num or (num < n and sink.num == first + num and time.perf_counter() < deadline):
                size = min(_PIECE, n - num)
                num += size
                sink.put(stream_of(self._it, size), states, num - size)
        except OneByOne:
            pass
        except Exception as error:
            traceback = error.__traceback__
            if traceback is not None and traceback.tb_next is not None:
                error.__traceback__ = traceback.tb_next.tb_next  # this frame and the sink's would keep the elements alive
            return error
        finally:
            if sink.num > first:
                self._state = states[sink.num - first - 1]
            if sink.num < first + num:
                self._stages = []  # there may be more of that
                self.go_back()
        return None

    def _take_block(self, sink: Sink, n: int) -> None:
        """Takes up to ``n`` elements if their states are known then."""
        before = marked(self._it)
        try:
            block = self._take_pieces(n)
            after = self._current_state()
            states = LinearStates.between(self._state, after, len(block))
        except BaseException:  # of the elements before the error, too, the states are needed
            return_to(self._it, before)
            raise
        if states is None:
            self._in_blocks = False
            return_to(self._it, before)
        else:
            self._state = after
            sink.put(block, states, 0)

    def _take_singly(self, sink: Sink, n: int) -> BaseException | None:
        deadline = time.perf_counter() + _BLOCK_SECONDS
        for _ in range(n):
            element, stop = self._take_one()
            if stop is not None:
                return stop
            sink.put(element, [self._state], 0)
            if time.perf_counter() > deadline:
                break
        return None

    def _take_one(self) -> tuple[list[Any], BaseException | None]:
        """The next element in a list, or what came instead."""
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

    def _arrived(self, error: BaseException) -> BaseException:
        error = what_failed(error)
        has_arrived(error)
        if isinstance(error, StopIteration):
            cause, error = error, instead_of_stop(error, str(self._it))
            error.__cause__ = cause
        return error

    def _take_pieces(self, n: int) -> list[Any]:
        block: list[Any] = []
        deadline = time.perf_counter() + _BLOCK_SECONDS
        while len(block) < n:
            size = min(_PIECE, n - len(block))
            piece = self._it._take(size)
            block += piece
            if len(piece) < size or time.perf_counter() > deadline:
                break
        return block

    def _current_state(self) -> Any:
        state = snapshot(self._it)
        return state if self._is_exact else copied(state)

    def go_back(self) -> None:
        """Takes the iterator to where it is after the last element that was taken."""
        if self._state is not None:
            self._it._restore(self._state if self._is_exact else copied(self._state))


def blocks_of(it: DatasetIterator[Any]) -> Any:
    """What takes blocks from ``it``."""
    from gristmill.dataset.engine.blocks import StreamBlocks
    from gristmill.dataset.engine.iterators import StreamIterator

    return StreamBlocks(it) if isinstance(it, StreamIterator) else StatedBlocks(it)


def _passes_singly(it: DatasetIterator[Any]) -> bool:
    """Whether each output is made of one element of every iterator upstream, some of which may be left out."""
    return (
        isinstance(it, BlockIterator)
        and it._flow in ("one_to_one", "dropping")
        and all([_passes_singly(parent) for parent in parents_of(it)])
    )


def _is_costly_to_restore(it: Any) -> bool:
    """Whether something upstream would lose what it has in memory if it were taken back by its state."""
    return it._is_costly_to_restore or any([_is_costly_to_restore(parent) for parent in it._parents])
