"""Elements of a stream with the position after each, for threads and workers that compute them ahead."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any

from gristmill.dataset.ahead.blocks import Growing, Sink
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.stream import Pos, Stream
from gristmill.dataset.states.values import Fetched, LinearStates
from gristmill.dataset.telling.failures import has_arrived

_BLOCK_SECONDS = 0.001  # elements that there are after this time are handed over
_MOST_IN_LIST = 64  # positions that are kept together


class SavedPositions(Sequence[Any]):
    """The states of positions, each made when it is asked for.

    Args:
        stream: the stream.
        before: the position before all of them.
        positions: the positions; the list may grow.
    """

    def __init__(self, stream: Stream, before: Pos, positions: list[Pos]) -> None:
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
        return self._stream.save(self._positions[i])

    def without_stream(self) -> Sequence[Any]:
        """Return the states themselves, as few numbers where all counts grow by one with each element."""
        if len(self) > 1:
            linear = LinearStates.between(self._stream.save(self._before), self[-1], len(self))
            if linear is not None:
                return linear
        return [*self]

    def __reduce__(self) -> Any:
        states = self.without_stream()
        return states.__reduce__() if type(states) is LinearStates else (list, (states,))


class StreamBlocks:
    """Takes elements from the iterator of a stream, and knows the state after each. Interface: ``StatedBlocks``.

    Args:
        it: the iterator, which is moved by this alone from the first ``take`` on.
    """

    def __init__(self, it: StreamIterator[Any]) -> None:
        self._it = it
        self._stream, self._cell = it.stream_and_cell
        # The consumer of several lanes keeps the counts of faults in the states that it gets.
        self._saves_anywhere = self._stream.saves_anywhere() and not it._counts_faults
        self.growing = Growing()
        self.stopped: BaseException | None = None

    def take(self, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        """Return up to ``n`` elements, the states after them, and what came instead of the next one."""
        block = self.growing = Growing()
        stop = self.fill(block, n)
        self.growing = Growing()  # what is delivered belongs to the consumer alone
        return block.elements, block.states[: block.num], stop

    def fill(self, sink: Sink, n: int) -> BaseException | None:
        """Put up to ``n`` elements into ``sink``, each when it is computed; return what came instead of the next one."""
        it, first = self._it, sink.num
        after: list[Any] = []  # positions, or states where these cannot be had later
        states = SavedPositions(self._stream, it.pos, after) if self._saves_anywhere else after
        is_at_end = [False]
        try:
            sink.put(self._until_late(after, n, is_at_end), states, 0)
        except Exception as error:
            return self._arrived(error)
        except BaseException as error:
            return error
        if is_at_end[0] and sink.num == first:
            return StopIteration(it.get_state()) if it._counts_faults else StopIteration()
        return None

    def _until_late(self, after: list[Any], n: int, is_at_end: list[bool]) -> Iterator[Any]:
        it, deadline = self._it, time.perf_counter() + _BLOCK_SECONDS
        run = it.run()
        if self._saves_anywhere:
            self._cell.wanted = n
        for x in islice(run, n):
            pos = it.commit()
            after.append(pos if self._saves_anywhere else it.get_state())
            yield (x, x := None)[0]
            if time.perf_counter() > deadline:
                return
        is_at_end[0] = len(after) < n
        if is_at_end[0]:
            it.commit()

    def each(self, most: int) -> Generator[Fetched, None, None]:
        """Return the next elements, each computed when it is requested, as long as nothing else comes.

        Afterwards ``stopped`` is the error that came instead of the next one, if there was one.
        """
        self.stopped = None
        it = self._it
        try:
            after: list[Any] = []  # positions, or states where these cannot be had later
            states: Sequence[Any] = after
            for x in it.run():
                if (num := len(after)) % _MOST_IN_LIST == 0:
                    num, after = 0, []
                    states = SavedPositions(self._stream, it.pos, after) if self._saves_anywhere else after
                pos = it.commit()
                after.append(pos if self._saves_anywhere else it.get_state())
                yield (x, x := None)[0], states, num
        except GeneratorExit:
            raise
        except Exception as error:
            self.stopped = self._arrived(error)

    def go_back(self) -> None:
        """Do nothing: the stream is after the last element that was taken."""

    def _arrived(self, error: BaseException) -> BaseException:
        has_arrived(error)
        return error
