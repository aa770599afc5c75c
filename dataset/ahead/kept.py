"""Blocks of storage that are read once, for all elements that will come of them.

Guarantees:

1. Elements are those that ``read`` of the stage gives. Where a whole block cannot be read, what was
   asked for is read by itself: an error comes at its own element.
2. What is kept is counted in the memory of the budget, and takes no more than three quarters of it:
   the rest is for what is computed ahead. Where that is not enough, the elements of each block that
   are needed soonest are kept, and the block is read again for the others; where nothing can be
   kept, an element is read by itself.
3. A block is read by one thread at a time, without the lock. Others that want it wait for nothing
   but that.
4. Where memory is enough, a block is read once, for any number of groups that are read at a time
   and any order of calls. All elements of a group that a call may still ask for are kept. A group
   is dropped when all of it was taken, or when all calls that might ask for the rest have ended.
5. An iterator that goes elsewhere drops all of this with its reader.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from gristmill.core.indices import Indices
from gristmill.core.locks import Lock
from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.ahead.memory import Holding
from gristmill.dataset.ahead.sizes import mean_bytes, spread

_NUM_MEASURED = 8  # elements of a block
_MOST_FREED = 32  # elements whose bytes are given back together
_reading = threading.local()


class InBlocks(Protocol):
    """A stage whose elements come from the same blocks within spans of its indices."""

    def span(self, index: int) -> range:
        """Returns the indices around ``index`` that share blocks."""

    def keys(self, indices: Indices) -> Any:
        """Returns the parent's index of each, an array."""

    def block(self, key: int) -> range:
        """Returns the parent's indices of the block that ``key`` is in."""

    def read(self, keys: Indices) -> list[Any]:
        """Returns the parent's elements."""


class Call:
    """One call that computes elements for a reader; the thread that is in it finds it here.

    Args:
        blocks: what the reader keeps.
        start: the reader's index of the first of these elements that is not finished.
    """

    __slots__ = ("blocks", "span", "start")

    def __init__(self, blocks: KeptBlocks, start: int) -> None:
        self.blocks = blocks
        self.start = start
        self.span: _Span | None = None  # the last one that was used

    def __enter__(self) -> None:
        _reading.call = self

    def __exit__(self, *_: object) -> None:
        _reading.call = None

    def elements(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Returns the elements that ``begin`` returns, each of them computed in this call."""
        with self:
            elements = begin()
        return self._each(elements)

    def _each(self, elements: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self:
                try:
                    element = next(elements)
                except StopIteration:
                    return
            yield (element, element := None)[0]
            self.start += 1


def current() -> KeptBlocks | None:
    """Returns the block buffer of the reader for which this thread computes, or ``None``."""
    call = getattr(_reading, "call", None)
    return None if call is None else call.blocks


@contextlib.contextmanager
def without_blocks() -> Iterator[None]:
    """Let elements that this thread computes in this context be read alone."""
    outer, _reading.call = getattr(_reading, "call", None), None
    try:
        yield
    finally:
        _reading.call = outer


class KeptBlocks:
    """The blocks that one reader buffers.

    Args:
        budget: whose memory it is.
        lowest: returns the lowest of the reader's indices that are being computed or have not been
            begun; its argument is the index of the current call.
    """

    def __init__(self, budget: Budget, lowest: Callable[[int], int]) -> None:
        self._budget = budget
        self._lowest = lowest
        self._holding = Holding()
        self._lock = Lock()
        # by the stage: an index asked for alone, and the distance of others
        self._seen: dict[int, tuple[int, int]] = {}
        self._freed = 0  # bytes of elements that are gone, which are still counted
        self._size = 0  # bytes of an element
        self._spans: tuple[_Span, ...] = ()  # replaced when it changes: it is read without the lock

    def close(self) -> None:
        """Keeps nothing any more; may be called again."""
        self._spans = ()
        self._budget.dismiss(self._holding)

    def one(self, stage: InBlocks, index: int, step: int | None) -> Any:
        """Returns the element at ``index``; ``step`` is from there to the next index, ``None`` if
        it is not known.
        """
        span: _Span | None = _reading.call.span
        if (
            span is None
            or span.stage is not stage
            or index not in span.indices
            or step != span.indices.step
        ):
            span = self._span(stage, index, step)
            if span is None:
                return stage.read(stage.keys([index]))[0]
        place = span.indices.index(index)
        found: dict[int, Any] = {}
        with self._lock:
            self._pop(span, place, found)
        if not found:
            self._find(span, place, found)
        return found[place]

    def _span(self, stage: InBlocks, index: int, step: int | None) -> _Span | None:
        """Returns the span with ``index``; ``None`` if it is not known which index comes next."""
        call: Call = _reading.call
        for span in self._spans:  # most are in one that is there
            if span.stage is stage and step in (span.indices.step, None) and index in span.indices:
                call.span = span.used(call.start)
                return span
        if step is None:
            step = self._learned(stage, index)
        if step is None or step < 1:
            return None
        where = stage.span(index)
        with self._lock:
            mine = [
                span for span in self._spans if span.stage is stage and span.indices.step == step
            ]
            found = next((span for span in mine if index in span.indices), None)
            if found is None:
                found = self._opened(stage, index, where, step)
        if found is not None:
            call.span = found.used(call.start)
        return found

    def _opened(self, stage: InBlocks, first: int, where: range, step: int) -> _Span | None:
        """Returns a new span of what calls may still ask for; ``None`` for a repeated call."""
        call: Call = _reading.call
        lowest = self._lowest(call.start)
        if call.start < lowest:
            return None
        start = first if call.start == lowest else where.start + (first - where.start) % step
        kept = []
        for span in self._spans:
            if span.passed_by < lowest:
                self._empty(span)
            else:
                kept.append(span)
                if span.stage is stage and span.last_call < call.start:
                    span.passed_by = min(span.passed_by, call.start)
        new = _Span(stage, range(start, where.stop, step))
        self._spans = (*kept, new)
        return new

    def _learned(self, stage: InBlocks, index: int) -> int | None:
        """Returns the growth of single indices seen so far."""
        with self._lock:
            first, step = self._seen.get(id(stage), (index, 0))
            step = math.gcd(step, index - first)
            self._seen[id(stage)] = first, step
        return step or None

    def _empty(self, span: _Span) -> None:
        self._hold(-sum([num_bytes for _, num_bytes in span.kept.values()]))
        span.kept, span.is_open = {}, False

    def _find(self, span: _Span, place: int, found: dict[int, Any]) -> None:
        """Puts the element at ``place`` into ``found``, and keeps those of its block that come
        after it.
        """
        block = span.stage.block(int(span.keys[place]))
        with span.loading.setdefault(block.start, Lock()):
            with self._lock:
                self._pop(span, place, found)  # another thread may have read it
                if place in found:
                    return
                # Otherwise it is a repeated call, or nothing else of the block can be kept.
                is_kept = not span.is_taken[place] and self._room() >= self._size
            if is_kept:
                with contextlib.suppress(Exception):
                    self._keep(span, block, span.stage.read(block), place, found)
                    return
        self._find_alone(span, place, found)

    def _find_alone(self, span: _Span, place: int, found: dict[int, Any]) -> None:
        found[place] = span.stage.read([int(span.keys[place])])[0]
        with self._lock:
            self._is_taken(span, place)

    def _pop(self, span: _Span, place: int, found: dict[int, Any]) -> None:
        """Puts the element at ``place``, if it is kept, into ``found``."""
        kept = span.kept.pop(place, None)
        if kept is not None:
            found[place], num_bytes = kept
            self._freed += num_bytes
            self._is_taken(span, place)
        if self._freed >= _MOST_FREED * self._size:
            self._hold(-self._freed)
            self._freed = 0

    def _is_taken(self, span: _Span, place: int) -> None:
        if not span.is_taken[place]:
            span.is_taken[place] = 1
            span.num_left -= 1
            if not span.num_left and span.is_open:
                self._empty(span)
                self._spans = tuple([other for other in self._spans if other is not span])

    def _keep(
        self, span: _Span, block: range, elements: list[Any], wanted: int, found: dict[int, Any]
    ) -> None:
        size = self._size = int(mean_bytes(spread(elements, _NUM_MEASURED))) + 1
        with self._lock:
            room, num_before = self._room() // size if span.is_open else 0, len(span.kept)
            for place in span.places_in(block):
                element = elements[int(span.keys[place]) - block.start]
                if place == wanted:
                    found[place] = element
                    self._is_taken(span, place)
                elif room > 0 and not span.is_taken[place] and place not in span.kept:
                    span.kept[place] = element, size
                    room -= 1
            self._hold(size * (len(span.kept) - num_before))

    def _room(self) -> int:
        memory = self._budget.memory
        return min(
            memory.max_bytes * 3 // 4 - self._holding.num_bytes, memory.max_bytes - memory.num_bytes
        )

    def _hold(self, num_bytes: int) -> None:
        with self._budget.lock:
            self._budget.memory.hold(self._holding, num_bytes)


class _Span:
    """Elements of a span that will be asked for: ``indices``, which have places from 0 on.

    A call passes a span if it uses a later span of the stage, and not this one. Calls ask in the
    order of their indices. So none of the span is asked for after that call, and all calls before
    it, have ended.
    """

    def __init__(self, stage: InBlocks, indices: range) -> None:
        self.stage = stage
        self.indices = indices
        self.keys = stage.keys(indices)
        self._by_key = np.argsort(self.keys, kind="stable")
        self._sorted = self.keys[self._by_key]
        self.kept: dict[int, tuple[Any, int]] = {}  # elements and their bytes, by their places
        self.loading: dict[int, Lock] = {}  # held while a block is read, by its first key
        self.is_taken = bytearray(len(indices))
        self.num_left = len(indices)
        self.is_open = True
        self.last_call = -1  # the highest index of a call that has used it
        self.passed_by = math.inf  # the index of the call that has passed it

    def used(self, call: int) -> _Span:
        """Notes that the call that begins at this index has used the span, and returns the span."""
        self.last_call = max(self.last_call, call)
        if call > self.passed_by:
            self.passed_by = math.inf
        return self

    def places_in(self, block: range) -> list[int]:
        """Returns the places of a block's elements, the soonest first."""
        first, last = np.searchsorted(self._sorted, [block.start, block.stop])
        found: list[int] = np.sort(self._by_key[first:last]).tolist()
        return found
