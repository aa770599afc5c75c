"""Elements of a stream with the position after each, for threads and workers that compute them
ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any

from gristmill.dataset.bases.iterator import snapshot
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.members import has_counted_faults
from gristmill.dataset.engine.stream import Pos, Stream
from gristmill.dataset.errors.context import end_error_context
from gristmill.dataset.states.values import Fetched, LinearStates

_BLOCK_SECONDS = 0.001  # elements that there are after this time are handed over
_MOST_IN_LIST = 64  # positions that are kept together


class Growing:
    """A block that others may look at while it grows: as many of its elements as there are states
    are finished.
    """

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.states: Sequence[Any] = ()


class SavedPositions(Sequence[Any]):
    """The states of positions, each made when it is requested.

    Args:
        stream: the stream.
        before: the position before all of them.
        positions: the positions; the list may grow.
        have_same_faults: the counts of faults are the same in all of them, those that will be added
            to the list included.
    """

    def __init__(
        self, stream: Stream, before: Pos, positions: list[Pos], *, have_same_faults: bool = False
    ) -> None:
        self.have_same_faults = have_same_faults
        self._stream = stream
        self._before = before
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            start, stop, _ = i.indices(len(self))
            before = self._positions[start - 1] if start else self._before
            return SavedPositions(self._stream, before, self._positions[start:stop])
        try:
            return self._stream.save(self._positions[i])
        except NotImplementedError:  # as of a plain iterator
            return None

    def without_stream(self) -> Sequence[Any]:
        """Return the states themselves, as few numbers where all counts grow by one with each
        element.
        """
        if len(self) > 1:
            linear = LinearStates.between(self._stream.save(self._before), self[-1], len(self))
            if linear is not None:
                return linear
        return [*self]

    def __reduce__(self) -> Any:
        states = self.without_stream()
        return states.__reduce__() if type(states) is LinearStates else (list, (states,))


class StreamBlocks:
    """Takes elements from the iterator of a stream, and knows the state after each.

    Args:
        it: the iterator, which is moved by this alone from the first ``take`` on.
    """

    def __init__(self, it: StreamIterator[Any]) -> None:
        self._it = it
        self._stream, self._cell = it._gm_engine, it._own_cell
        self._saves_anywhere = self._stream.saves_anywhere()
        self.growing = Growing()
        self.stopped: BaseException | None = None
        self._is_at_end = False  # of the stream, which a run has met

    def take(self, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        """Return up to ``n`` elements, the states after them, and what came instead of the next
        one.

        That is an error, or ``StopIteration`` at the end, with the state there if that counts
        faults.
        """
        after: list[Any] = []  # positions, or states where these cannot be had later
        block = self.growing = Growing()
        block.states = (
            SavedPositions(self._stream, self._it.pos, after) if self._saves_anywhere else after
        )
        stop = self._fill(block, after, n)
        self.growing = Growing()  # what is delivered belongs to the consumer alone
        return block.elements, block.states[: len(block.elements)], stop

    def _fill(self, block: Growing, after: list[Any], n: int) -> BaseException | None:
        """Put up to ``n`` elements into ``block``, each when it is computed; return what came
        instead of the next one.
        """
        if self._is_at_end:  # another run would not know the choices after the last element
            return self._end()
        try:
            # Without the GIL, ``extend`` would hold the lock of the list until the last element.
            deque(map(block.elements.append, self._until_late(after, n)), maxlen=0)
        except Exception as error:
            return self._arrived(error)
        except BaseException as error:
            return error
        return None if block.elements or not self._is_at_end else self._end()

    def _end(self) -> StopIteration:
        final = final_state(self._it)
        return StopIteration() if final is None else StopIteration(final)

    def _until_late(self, after: list[Any], n: int) -> Iterator[Any]:
        it, deadline = self._it, time.perf_counter() + _BLOCK_SECONDS
        run = it.run()
        if self._saves_anywhere:
            self._cell.wanted = n
        for x in islice(run, n):
            pos = it.commit()
            after.append(pos if self._saves_anywhere else snapshot(it))
            yield (x, x := None)[0]
            if time.perf_counter() > deadline:
                return
        if len(after) < n:
            it.commit()
            self._is_at_end = True

    def each(self) -> Generator[Fetched, None, None]:
        """Return the next elements, each computed when it is requested, as long as nothing else
        comes.

        Afterwards ``stopped`` is what came instead of the next one.
        """
        self.stopped = None
        it = self._it
        try:
            after: list[Any] = []  # positions, or states where these cannot be had later
            states: Sequence[Any] = after
            faults_in = self._stream.faults_in if it._gm_counts_faults else None
            faults: Any = None
            run, pos = it.run(), it.pos
            for x in run:
                before, pos, num = pos, it.commit(), len(after)
                is_new = num % _MOST_IN_LIST == 0
                if faults_in is not None and faults != (found := faults_in(pos)):
                    is_new, faults = True, found
                if is_new:
                    num, after = 0, []
                    states = (
                        SavedPositions(self._stream, before, after, have_same_faults=True)
                        if self._saves_anywhere
                        else after
                    )
                after.append(pos if self._saves_anywhere else snapshot(it))
                yield (x, x := None)[0], states, num
            it.commit()  # otherwise a window would be filled again to find its end
            self.stopped = self._end()
        except GeneratorExit:
            raise
        except Exception as error:
            self.stopped = self._arrived(error)

    def _arrived(self, error: BaseException) -> BaseException:
        end_error_context(error)
        return error


def final_state(it: StreamIterator[Any]) -> Any | None:
    """Return the state after the last element, if it may have more faults than the one before."""
    may_have_more = it._gm_counts_faults and has_counted_faults(it._gm_engine)
    return snapshot(it) if may_have_more else None
