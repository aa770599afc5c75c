"""Streams of stages that make their outputs of groups of elements, which they compute again after a
restore.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, repeat
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.permutation import shuffled_order
from gristmill.core.state import shown, state_count
from gristmill.dataset.engine.choices import Choices, Records, Replaying
from gristmill.dataset.engine.draws import packed, unpacked
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs
from gristmill.dataset.states.values import given

_GONE: Any = object()  # in the place of an element of a component that was dropped
_SOURCES = "from_choices"  # in a state: which choice gave each element of a window
_MOST = 64  # outputs of a window after which it is looked up how many are wanted


class Window(Replaying):
    """The parent's elements, shuffled within windows of ``size``.

    The position: the parent's before the window, the number of the window, how many of its
    elements were delivered, and which choice gave each of them if some gave none. A window is
    counted with its last element. If some of its elements are gone, the others keep their order.
    """

    keys = ("parent_window_start_state", "window_index", "pos_in_window")
    own = (0, 0)
    knows_draws = True

    def __init__(self, stage: Any, parent: Stream, size: int, seed: int) -> None:
        super().__init__(stage, parent)
        self.size = size
        self.seed = seed

    def start(self) -> Pos:
        return self.parent.start(), 0, 0, (), ()

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        return self.next_of_parent(end, records), 0, 0, (), ()

    def save_layer(self, pos: Pos) -> Any:
        *plain, sources = pos
        state = super().save_layer(tuple(plain))
        return {**state, _SOURCES: packed(sources)} if sources else state

    def load_layer(self, state: Any) -> Pos:
        start, number, taken = super().load_layer(state)
        if taken > self.size:
            raise StateMismatchError(
                f"pos_in_window in the state of {self} must be at most window_size = {self.size},"
                f" got {taken}"
            )
        # Grain before 0.2.16 counted a window when it read the next one.
        number += "parent_exhausted" in state and taken == self.size
        try:
            return start, number, taken, tuple(unpacked(given(state.get(_SOURCES, ()))))
        except Exception:
            raise StateMismatchError(
                f"{_SOURCES} in the state of {self} must be numbers, got {shown(state[_SOURCES])}"
            ) from None

    def held(self, state: object) -> str | None:
        num = state_count(state, "pos_in_window", self)
        return f"a window of up to {self.size} elements, {num} of them delivered" if num else None

    def _run(self, cell: Cell) -> Iterator[Any]:
        start, number, first, sources, records = self.same_as(cell.pos)
        inner = self.begin(cell, start, records)
        while True:
            window, sources = self._read(cell, start, number, first, sources)
            num, records = len(window), self.records()
            left = self._left(window, number, first)
            has_gaps = (bool(sources) or bool(records)) and any([x is _GONE for x in window])
            del window
            pop = left.pop
            while left:
                wanted = 1 if has_gaps else min(cell.take_wanted(), len(left))
                if wanted > 1:
                    cell.compute_by(partial(_in_window, start, number, num, sources, records, left))
                    for _ in repeat(None, wanted):
                        yield pop()
                    cell.end_block()
                    continue
                for taken in range(num - len(left) + 1, num + 1)[:_MOST]:
                    if has_gaps and left[-1] is _GONE:
                        pop()
                        continue
                    cell.pos = start, number + (taken == num), taken, sources, records
                    yield pop()
            if num < self.size:
                if not num:
                    cell.pos = start, number, 0, (), records
                if not self.continues(cell, (inner.settle(), number + (first < num), 0, (), ())):
                    return
            number += first < num
            start, first, sources = inner.settle(), 0, ()
            self.next_group()

    def _read(
        self, cell: Cell, start: Pos, number: int, taken: int, sources: Any
    ) -> tuple[list[Any], Any]:
        """Return the elements of a window, of which ``taken`` were delivered before, and their
        sources.
        """
        window: list[Any] = []
        self.inner.wanted = self.size
        try:
            if self.choices is not None:
                sources = self._read_choices(window, sources, self.choices)
            else:
                window.extend(islice(self.parent.run(self.inner), self.size))
        except Exception:
            if not taken:
                self.note_same(cell.pos, (start, number, 0, (), ()))
            cell.past_failed = partial(
                self._pass, cell, self.size - len(window) - 1, number + (taken < self.size)
            )
            raise
        if len(window) < taken:
            raise StateMismatchError(
                f"pos_in_window in the state of {self} is {taken}, but only {len(window)} elements"
                " follow where its window starts: the state belongs to another pipeline"
            )
        return window, sources

    def _read_choices(
        self, window: list[Any], sources: tuple[int, ...], choices: Choices
    ) -> tuple[int, ...]:
        """Read a window; return which choice gave each element, or nothing if that is clear."""
        inner, run = self.inner, self.parent.run(self.inner)
        key = None if self.mixture is None else self.mixture.key

        def num_asked() -> int:
            return choices.num_asked if key is None else choices.counts.get(key, 0)

        known = sources or range(
            sum(choices.until.values()) if key is None else choices.until.get(key, 0)
        )
        if known:
            while len(window) < self.size:  # a window that is not full ended with the elements
                before = inner.settle()
                x = next(run, _GONE)
                source = sys.maxsize if x is _GONE else num_asked() - 1
                while len(window) < len(known) and known[len(window)] < source:
                    window.append(_GONE)
                if len(window) < len(known):
                    window.append(x)
                    continue
                if x is not _GONE:  # it is of the next window
                    choices.go_back(choices.until)
                    inner.go_to(before)
                break
            return sources
        found = []
        for x in islice(run, self.size):
            window.append(x)
            found.append(num_asked() - 1)
        return () if found == [*range(num_asked())] else tuple(found)

    def _left(self, window: list[Any], number: int, taken: int) -> list[Any]:
        """Return the elements that follow in a window, the next one last."""
        if taken == len(window):  # the number is that of the next window
            return []
        order = shuffled_order(len(window), self.seed + number)[: len(window) - taken]
        return [window[i] for i in order.tolist()]

    def _pass(self, cell: Cell, num: int, number: int) -> None:
        """Move past the element that failed, and the ``num`` that would follow it in the window."""
        self.inner.pass_failed()
        pass_outputs(self.parent, self.inner, num)
        cell.pos = self.inner.settle(), number, 0, (), ()


def _in_window(
    start: Pos, number: int, num: int, sources: object, records: Records, left: list[Any]
) -> Pos:
    """Return the position in a window of ``num`` elements where ``left`` is left of it."""
    return start, number + (not left), num - len(left), sources, records


class Spread(Replaying):
    """The items that ``split`` makes of each element of the parent, without ``None`` unless it is
    an element.

    The position: the parent's before the element, and how many of its items were delivered.
    """

    keys = ("parent", "next_index_in_buffer")
    knows_draws = True

    def __init__(
        self, stage: Any, parent: Stream, split: Callable[[Any], list[Any]], *, with_nones: bool
    ) -> None:
        super().__init__(stage, parent)
        self.split = split
        self.with_nones = with_nones
        self._most = 0  # items of an element so far

    def held(self, state: object) -> str | None:
        num = state_count(state, "next_index_in_buffer", self)
        return f"an element, {num} items of it delivered" if num else None

    def _run(self, cell: Cell) -> Iterator[Any]:
        before, taken, records = self.same_as(cell.pos)
        split, with_nones, choices = self.split, self.with_nones, self.choices
        inner, num, items = self.begin(cell, before, records), taken, list[Any]()
        wanted = self._expect(cell)  # outputs that are in a block

        def in_block() -> Pos:
            return before, num - len(items), records

        try:
            for x in self.parent.run(inner):
                try:
                    items = [] if x is None and not with_nones else split(x)
                except Exception as error:
                    self.fail(error, inner)
                    raise
                x, num = None, len(items)
                if taken:
                    taken = self._checked(num, taken)
                    del items[:taken]
                if choices is not None:
                    records = self.records()
                items.reverse()
                if len(items) <= wanted:
                    wanted -= len(items)
                    if not cell.is_counting:
                        cell.compute_by(in_block)
                    while items:
                        yield items.pop()
                else:
                    cell.is_counting = False
                    for i in range(taken + 1, num + 1):
                        cell.pos = before, i, records
                        yield items.pop()
                before, taken = inner.settle() if inner.is_counting else inner.pos, 0
                if choices is not None:
                    choices.restart()
                if num > self._most:
                    self._most = num
                if cell.wanted > 1 or cell.outer is not None:
                    wanted = self._expect(cell)
        except Exception:
            if not (taken or cell.is_counting):
                self.note_same(cell.pos, (before, 0, ()))
            cell.is_counting = False
            cell.past_failed = partial(self._pass, cell)
            raise
        cell.is_counting = False
        cell.pos = before, num, self.records()
        if self.continues(cell, (inner.settle(), 0, ())):
            yield from self._run(cell)

    def _expect(self, cell: Cell) -> int:
        """Return how many outputs are wanted, after telling the parent how many of its elements
        these need.
        """
        wanted = cell.take_wanted()
        if self._most:
            self.inner.wanted = max(1, wanted // self._most)
        return wanted if wanted > 1 else 0

    def _checked(self, num: int, taken: int) -> int:
        """Return how many of ``num`` items were delivered, if it is the element of which ``taken``
        were.
        """
        if self.is_missing():
            return 0
        if num < taken:
            raise StateMismatchError(
                f"next_index_in_buffer in the state of {self} is {taken}, but its element has only"
                f" {num} items: the state belongs to another pipeline"
            )
        return taken

    def _pass(self, cell: Cell) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.settle(), 0, ()
