"""Blocks of storage that are read once, for all elements that will come of them.

Guarantees:

1. Elements are those that ``read`` of the stage gives. Where a whole block cannot be read, what was asked for is read by itself:
   an error comes at its own element.
2. What is kept is counted in the memory of the budget, and takes no more than three quarters of it: the rest is for what is
   computed ahead. Where that is not enough, of each block what comes soonest is kept, and the block is read again for the others.
3. A block is read by one thread at a time, without the lock. Others that want it wait for nothing but that.
4. An iterator that goes elsewhere drops all of this with its reader.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gristmill.core.indices import Indices
from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.ahead.memory import Holding
from gristmill.dataset.ahead.sizes import mean_bytes, spread

_NUM_SPANS = 3  # that are read at a time: threads may be at the end of one and in the next
_NUM_MEASURED = 8  # elements of a block
_MOST_FREED = 32  # elements whose bytes are given back at once
_reading = threading.local()


class InBlocks(Protocol):
    """A step whose elements come from the same blocks within spans of its indices."""

    def span(self, index: int) -> range:
        """The indices around ``index`` that share blocks."""

    def keys(self, indices: Indices) -> Any:
        """The parent's index of each, an array."""

    def block(self, key: int) -> range:
        """The parent's indices of the block that ``key`` is in."""

    def read(self, keys: Indices) -> list[Any]:
        """The parent's elements."""


def current() -> KeptBlocks | None:
    """What keeps blocks for the reader on whose behalf this thread computes, if anything does."""
    return getattr(_reading, "blocks", None)


class KeptBlocks:
    """What one reader keeps.

    Args:
        budget: whose memory it is.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._holding = Holding()
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[int, int]] = {}  # by the stage: an index asked for alone, and the step of others
        self._freed: list[int] = []  # bytes of elements that are gone, which are still counted
        self._spans: dict[tuple[int, int], _Span] = {}  # by the step and the first index, oldest first

    def __enter__(self) -> None:
        """Makes it the current one of this thread."""
        _reading.blocks = self

    def __exit__(self, *_: object) -> None:
        _reading.blocks = None

    def close(self) -> None:
        """Keeps nothing any more; may be called again."""
        self._spans = {}
        self._budget.dismiss(self._holding)

    def take(self, stage: InBlocks, indices: Sequence[int], step: int | None) -> list[Any]:
        """The elements at ``indices``, which grow by ``step``, as those after them will; ``None``: that is not known."""
        elements: list[Any] = []
        while len(elements) < len(indices):
            span, num = self._span(stage, indices[len(elements) :], step)
            first = indices[len(elements)]
            if span is None:
                elements += stage.read(stage.keys(indices[len(elements) :][:num]))
            else:
                wanted = range(span.indices.index(first), span.indices.index(first) + num)
                found: dict[int, Any] = {}
                for place in wanted:
                    if place not in found:
                        self._find(span, place, wanted, found)
                elements += [found[place] for place in wanted]
        return elements

    def one(self, stage: InBlocks, index: int, step: int) -> Any:
        """As ``take``, of one."""
        for span in self._spans.values():
            if span.stage is stage and index in span.indices and step == span.indices.step:
                place = span.indices.index(index)
                found: dict[int, Any] = {}
                self._find(span, place, range(place, place + 1), found)
                return found[place]
        return self.take(stage, [index], step)[0]

    def _span(self, stage: InBlocks, indices: Sequence[int], step: int | None) -> tuple[_Span | None, int]:
        """That in which the first of ``indices`` are, and how many are; none if it is not known what comes after them."""
        first, last = indices[0], indices[-1]
        for span in self._spans.values():  # most are in one that is there
            if span.stage is stage and step in (span.indices.step, None) and first in span.indices and last in span.indices:
                return span, len(indices)
        if step is None:
            step = self._learned(stage, first)
        where = stage.span(first)
        num = len(indices) if last in where else sum([i in where for i in indices])
        if step is None or step < 1:
            return None, num
        with self._lock:
            place = id(stage), where.start
            found = self._spans.get(place)
            if found is None or found.indices.step > step:  # which is as good as none
                if found is not None:
                    self._drop(place)
                found = _Span(stage, range(first, where.stop, step))
                self._spans = {**self._spans, place: found}  # replaced, for those who look without the lock
                for old in list(self._spans)[:-_NUM_SPANS]:
                    self._drop(old)
        return (found if first in found.indices and step == found.indices.step else None), num

    def _learned(self, stage: InBlocks, index: int) -> int | None:
        """By how much single indices grow, as far as they have been seen."""
        with self._lock:
            first, step = self._seen.get(id(stage), (index, 0))
            step = math.gcd(step, index - first)
            self._seen[id(stage)] = first, step
        return step or None

    def _drop(self, place: tuple[int, int]) -> None:
        span = self._spans[place]
        self._spans = {key: value for key, value in self._spans.items() if key != place}
        self._hold(-sum([num_bytes for _, num_bytes in span.kept.values()]))
        span.kept, span.is_open = {}, False

    def _find(self, span: _Span, place: int, wanted: range, found: dict[int, Any]) -> None:
        """Puts the element at ``place``, and those of its block that are ``wanted`` after it, into ``found``."""
        with self._lock:
            if self._pop(span, place, found):
                return
        key = int(span.keys[place])
        block = span.stage.block(key)
        while True:
            with self._lock:
                if self._pop(span, place, found):
                    return
                loading = span.loading.get(block.start)
                if loading is None and not span.is_taken[place]:
                    mine = span.loading[block.start] = threading.Event()
                    break
            if loading is None:  # it is asked for again
                found[place] = span.stage.read([key])[0]
                return
            loading.wait()  # what it reads may not have been kept
        try:
            self._keep(span, block, span.stage.read(block), wanted, found)
        except Exception:
            found[place] = span.stage.read([key])[0]
        finally:
            with self._lock:
                del span.loading[block.start]
            mine.set()

    def _pop(self, span: _Span, place: int, found: dict[int, Any]) -> bool:
        kept = span.kept.pop(place, None)
        if kept is not None:
            found[place], num_bytes = kept
            self._freed.append(num_bytes)
            if len(self._freed) == _MOST_FREED:
                self._hold(-sum(self._freed))
                self._freed = []
            self._is_taken(span, place)
        return kept is not None

    def _is_taken(self, span: _Span, place: int) -> None:
        span.is_taken[place] = 1
        span.num_left -= 1
        if not span.num_left and span.is_open:
            self._drop(next(key for key, value in self._spans.items() if value is span))

    def _keep(self, span: _Span, block: range, elements: list[Any], wanted: range, found: dict[int, Any]) -> None:
        size = int(mean_bytes(spread(elements, _NUM_MEASURED))) + 1
        with self._lock:
            room = self._room() // size if span.is_open else 0
            for place in span.places_in(block):
                element = elements[int(span.keys[place]) - block.start]
                if place in wanted:
                    found[place] = element
                    if not span.is_taken[place]:
                        self._is_taken(span, place)
                elif room > 0 and not span.is_taken[place] and place not in span.kept:
                    span.kept[place] = element, size
                    self._hold(size)
                    room -= 1

    def _room(self) -> int:
        memory = self._budget.memory
        return min(memory.max_bytes * 3 // 4 - self._holding.num_bytes, memory.max_bytes - memory.num_bytes)

    def _hold(self, num_bytes: int) -> None:
        with self._budget.lock:
            self._budget.memory.hold(self._holding, num_bytes)


class _Span:
    """What will be read of a span: ``indices``, which have places from 0 on."""

    def __init__(self, stage: InBlocks, indices: range) -> None:
        self.stage = stage
        self.indices = indices
        self.keys = stage.keys(indices)
        self._by_key = np.argsort(self.keys, kind="stable")
        self._sorted = self.keys[self._by_key]
        self.kept: dict[int, tuple[Any, int]] = {}  # elements and their bytes, by their places
        self.loading: dict[int, threading.Event] = {}  # blocks, by their first keys
        self.is_taken = bytearray(len(indices))
        self.num_left = len(indices)
        self.is_open = True

    def places_in(self, block: range) -> list[int]:
        """The places of a block's elements, the soonest first."""
        first, last = np.searchsorted(self._sorted, [block.start, block.stop])
        found: list[int] = np.sort(self._by_key[first:last]).tolist()
        return found
