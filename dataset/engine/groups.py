"""Streams of stages that make their outputs of groups of elements, which they compute again after a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, repeat
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.permutation import shuffled_order
from gristmill.dataset.engine.choices import Records, Refilling
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs

_MOST = 64  # outputs of a window after which it is looked up how many are wanted


class Window(Refilling):
    """The parent's elements, shuffled within windows of ``size``.

    The position: the parent's before the window, the number of the window, and how many of its
    elements were delivered. A window is counted with its last element.
    """

    keys = ("parent_window_start_state", "window_index", "pos_in_window")
    own = (0, 0)

    def __init__(self, stage: Any, parent: Stream, size: int, seed: int) -> None:
        super().__init__(stage, parent)
        self.size = size
        self.seed = seed

    def load_layer(self, state: Any) -> Pos:
        start, number, taken = super().load_layer(state)
        if taken > self.size:
            raise StateMismatchError(
                f"pos_in_window in the state of {self} must be at most window_size = {self.size}, got {taken}"
            )
        # Grain before 0.2.16 counted a window when it read the next one.
        return start, number + ("parent_exhausted" in state and taken == self.size), taken

    def held(self, num: int) -> str:
        return f"a window of up to {self.size} elements, {num} of them delivered"

    def _run(self, cell: Cell) -> Iterator[Any]:
        start, number, first, records = self.same_as(cell.pos)
        inner = self.begin(cell, start, records)
        while True:
            window = self._read(cell, start, number, first)
            num, records = len(window), self.records()
            left = self._left(window, number, first)
            del window
            pop = left.pop
            while left:
                wanted = min(cell.take_wanted(), len(left))
                if wanted > 1:
                    cell.compute_by(partial(_in_window, start, number, num, records, left))
                    for _ in repeat(None, wanted):
                        yield pop()
                    cell.end_block()
                    continue
                for taken in range(num - len(left) + 1, num + 1)[:_MOST]:
                    cell.pos = start, number + (taken == num), taken, records
                    yield pop()
            if num < self.size:
                if not num:
                    cell.pos = start, number, 0, records
                return
            number += first < num
            start, first = inner.settle(), 0
            self.next_group()

    def _read(self, cell: Cell, start: Pos, number: int, taken: int) -> list[Any]:
        """Return the elements of a window, of which ``taken`` were delivered before."""
        window: list[Any] = []
        self.inner.wanted = self.size
        try:
            window.extend(islice(self.parent.run(self.inner), self.size))
        except Exception:
            if not taken:
                self.note_same(cell.pos, (start, number, 0, ()))
            cell.past_failed = partial(self._pass, cell, self.size - len(window) - 1, number + (taken < self.size))
            raise
        if len(window) < taken:
            raise StateMismatchError(
                f"pos_in_window in the state of {self} is {taken}, but only {len(window)} elements follow where its "
                "window starts: the state belongs to another pipeline"
            )
        return window

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
        cell.pos = self.inner.settle(), number, 0, ()


def _in_window(start: Pos, number: int, num: int, records: Records, left: list[Any]) -> Pos:
    """Return the position in a window of ``num`` elements where ``left`` is left of it."""
    return start, number + (not left), num - len(left), records


class Spread(Refilling):
    """The items that ``split`` makes of each element of the parent, without ``None`` unless it is an element.

    The position: the parent's before the element, and how many of its items were delivered.
    """

    keys = ("parent", "next_index_in_buffer")

    def __init__(self, stage: Any, parent: Stream, split: Callable[[Any], list[Any]], *, with_nones: bool) -> None:
        super().__init__(stage, parent)
        self.split = split
        self.with_nones = with_nones
        self._most = 0  # items of an element so far

    def load_layer(self, state: Any) -> Pos:
        before, taken = super().load_layer(state)
        return before, 0 if self.is_gone(state) else taken

    def held(self, num: int) -> str:
        return f"an element, {num} items of it delivered"

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
                    taken = 0 if self.is_missing() else taken
                    self._check(num, taken)
                if choices is not None:
                    records = choices.since()
                items.reverse()
                del items[num - taken :]
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
                before, taken = inner.settle(), 0
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

    def _expect(self, cell: Cell) -> int:
        """Return how many outputs are wanted, after telling the parent how many of its elements these need."""
        wanted = cell.take_wanted()
        if self._most:
            self.inner.wanted = max(1, wanted // self._most)
        return wanted if wanted > 1 else 0

    def _check(self, num: int, taken: int) -> None:
        if num < taken:
            raise StateMismatchError(
                f"next_index_in_buffer in the state of {self} is {taken}, but its element has only {num} items: the state "
                "belongs to another pipeline"
            )

    def _pass(self, cell: Cell) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.settle(), 0, ()
