"""When elements of several readers will be needed: as often as before or, at first, as was
expected.
"""

from __future__ import annotations

import abc
import heapq
import itertools

_EXPECTED_DRAWS = 16  # from each reader: the expected value has the weight of this many draws
_RECENT_DRAWS = 256  # from each reader: then all that were before count half
_TOLERANCE = 1.1  # rates that are so near to the greatest count as that
_AT_ONCE = float("-inf")


class Drawn(abc.ABC):
    """Interface of the input that elements are drawn from."""

    rate = 1.0  # the share of all draws that is expected to be from it
    due = 0.0  # the draw, counted over all readers, that is the next one from it
    num_drawn = 0.0  # recently
    queued: float | None = None  # for when, as long as it is in the queue
    is_awaited = False  # a consumer waits for an element that no thread computes
    num_short = 0  # waits of a consumer while as many elements were begun as allowed

    @property
    @abc.abstractmethod
    def num_ahead(self) -> int:
        """The number of elements that were begun and not yet drawn."""

    @abc.abstractmethod
    def room(self) -> int:
        """Return the number of elements that may be begun now."""


class Draws:
    """Counts the draws from readers."""

    def __init__(self) -> None:
        self._readers: dict[Drawn, None] = {}
        self._clock = 0  # draws from all of them
        self._num_recent = 0.0
        self._total_rate = 0.0
        self._max_expected = 0.0  # of what was expected of readers
        self._max_rate = 0.0
        self._queue: list[tuple[float, int, Drawn]] = []  # a heap; entries may be out of date
        self._order = itertools.count()

    @property
    def are_several(self) -> bool:
        return len(self._readers) > 1

    def add(self, reader: Drawn) -> None:
        self._total_rate += reader.rate
        self._readers[reader] = None
        if len(self._readers) == 2:  # alone, one needs no queue
            self.queue(next(iter(self._readers)))
        self.expect(reader, reader.rate, 0.0)
        # Draws that were counted without this reader do not compare with its own.
        if self._num_recent:
            self._num_recent = 0.0
            for other in self._readers:
                other.num_drawn = 0.0
            self._weigh()

    def remove(self, readers: list[Drawn]) -> None:
        for reader in readers:
            self._readers.pop(reader, None)  # an interrupt may have come before it was added
        self._weigh()

    def expect(self, reader: Drawn, rate: float, due: float) -> None:
        """Records that ``reader`` is drawn from at ``rate``, first after ``due`` draws."""
        self._total_rate += rate - reader.rate
        reader.rate, reader.due = rate, self._clock + due
        self._max_expected = max(self._max_expected, rate)
        if self._num_recent:
            self._max_rate = max(self._max_rate, self._rate(reader))
        else:  # with each reader that is added, the others are drawn from less often
            self._max_rate = self._max_expected / max(self._max_expected, self._total_rate)

    def count(self, reader: Drawn, num: int) -> None:
        """Notes that ``num`` elements were drawn."""
        self._clock += num
        self._num_recent += num
        reader.num_drawn += num
        if self.are_several:
            if self._num_recent > _RECENT_DRAWS * len(self._readers):
                self._num_recent /= 2
                for other in self._readers:
                    other.num_drawn /= 2
                self._weigh()
            rate = self._rate(reader)
            self._max_rate = max(self._max_rate, rate)
            reader.due = self._clock + 1 / rate

    def queue(self, reader: Drawn) -> None:
        """Inserts ``reader``, if it has room, by the time at which its next unstarted element is
        needed.
        """
        if self.are_several and reader.room():
            due = (
                _AT_ONCE
                if reader.is_awaited
                else reader.due + reader.num_ahead / self._rate(reader)
            )
            if reader.queued is None or due < reader.queued:
                reader.queued = due
                heapq.heappush(self._queue, (due, next(self._order), reader))

    def first(self) -> Drawn | None:
        """Return the reader whose next element is needed first, of those that have room."""
        if not self.are_several:
            return next((reader for reader in self._readers if reader.room()), None)
        while self._queue:
            due, _, reader = self._queue[0]
            if due == reader.queued:
                if reader.room():
                    return reader
                reader.queued = None
            heapq.heappop(self._queue)
        return None

    def begun(self, reader: Drawn) -> None:
        """Records that the elements that ``first`` returned have been begun."""
        if self._queue and self._queue[0][2] is reader:
            heapq.heappop(self._queue)
            reader.queued = None
            self.queue(reader)

    def most_ahead(self, reader: Drawn, most: int) -> int:
        """Return how many elements ``reader``, which may be ahead by ``most``, should be ahead.

        Counted in draws over all readers, it is ahead by as much as the reader that is drawn from
        most often may be. If the rates do not add up to 1, the rest is drawn from readers that have
        not started yet, or from streams without a reader. The rest counts as one more reader, and
        for less each time that it has left ``reader`` short.
        """
        share = min(1.0, self._total_rate)
        if not self.are_several and share == 1.0:
            return most
        rate = self._rate(reader)
        greatest = max(share * max(self._max_rate, rate), (1.0 - share) / (1 + reader.num_short))
        return max(1, min(most, int(_TOLERANCE * most * share * rate / greatest + 0.5)))

    def waits(self, reader: Drawn, most: int) -> None:
        """Note that a consumer waits for ``reader``, which may be ahead by ``most``."""
        # The thread that begins the last element may not have started it yet.
        reader.num_short += reader.num_ahead + 1 >= self.most_ahead(reader, most)

    def _rate(self, reader: Drawn) -> float:
        # The reader may have been closed, and be no longer one of them.
        expected = _EXPECTED_DRAWS * max(1, len(self._readers))
        # The first draw of a component that comes once in a thousand draws says nothing: it may
        # come nearly a thousand draws too early.
        num_drawn = max(0.0, reader.num_drawn - 1)
        total_rate = max(self._total_rate, reader.rate)  # an interrupt may have left it too small
        return (expected * reader.rate / total_rate + num_drawn) / (expected + self._num_recent)

    def _weigh(self) -> None:
        """Adds up again what was added up inexactly, or has changed."""
        rates = [reader.rate for reader in self._readers]
        self._total_rate, self._max_expected = sum(rates), max(rates, default=0.0)
        self._max_rate = max([self._rate(reader) for reader in self._readers], default=0.0)
