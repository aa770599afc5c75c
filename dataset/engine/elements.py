"""Streams of stages that look at every element alone."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import compress, islice, repeat
from operator import length_hint
from typing import Any

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.state import state_count, state_field
from gristmill.dataset.bases.context import ALL_NUMBERS
from gristmill.dataset.bases.next_index import check_no_gaps
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.stream import Cell, Layer, Pos, Stream, observed, pass_outputs
from gristmill.dataset.errors.context import add_error_place, instead_of_stop
from gristmill.dataset.stages.filter_guard import WINDOW, FilterGuard
from gristmill.transforms.batching import Allocate

Fn = Callable[..., Any]


class Each(Stream):
    """``fn`` of every element of the parent; ``None`` is passed on without a call, unless it is an
    element.

    A run is a ``map`` object, which keeps no element.
    """

    flow = "one_to_one"

    def __init__(self, stage: Any, parent: Stream, fn: Fn, *, with_nones: bool) -> None:
        super().__init__(stage, parent)
        self.fn = fn
        self.with_nones = with_nones
        self.function = fn if with_nones else partial(unless_none, fn)

    def run(self, cell: Cell) -> Iterator[Any]:
        if cell.wants_many:
            return super().run(cell)
        run = map(self._call(cell), self.parent.run(cell))
        return run if self.wrap is None else observed(run, self)

    def _run(self, cell: Cell) -> Iterator[Any]:
        """Runs as ``run``, but faster: keeps an element of the parent until the next one is
        requested.
        """
        fn, with_nones = self.fn, self.with_nones
        for x in self.parent.run(cell):
            try:
                yield None if x is None and not with_nones else fn(x)
            except Exception as error:
                self.fail(error, cell)
                raise

    def _call(self, cell: Cell) -> Fn:
        fn, with_nones = self.fn, self.with_nones

        def call(x: object) -> Any:
            try:
                return None if x is None and not with_nones else fn(x)
            except Exception as error:
                self.fail(error, cell)
                raise

        return call

    def index_of(self, pos: Pos) -> int:
        return self.parent.index_of(pos)

    def at_index(self, index: int) -> Pos:
        return self.parent.at_index(index)


def unless_none(fn: Fn, x: object) -> Any:
    """Return ``fn(x)``; ``None`` if ``x`` is ``None``."""
    return None if x is None else fn(x)


class Keep(Stream):
    """Elements of the parent that ``fn`` accepts; ``guard`` counts them."""

    flow = "dropping"

    def __init__(self, stage: Any, parent: Stream, fn: Fn) -> None:
        super().__init__(stage, parent)
        self.fn = self.function = fn
        self.guard = FilterGuard(str(self))
        parent.take_singly()
        self._decisions: list[bool] = []  # about the last elements

    def _run(self, cell: Cell) -> Iterator[Any]:
        fn, decisions = self.fn, self._decisions
        for x in self.parent.run(cell):
            try:
                keeps = bool(fn(x))
                decisions.append(keeps)
                if len(decisions) >= WINDOW:
                    self.guard.check(decisions, self.ctx.options)
            except Exception as error:
                self.fail(error, cell)
                raise
            if keeps:
                yield (x, x := None)[0]

    def place(self, pos: Pos) -> Place | None:
        place = self.parent.place(pos)
        return None if place is None else place.with_gaps()


class Numbered(Layer):
    """``fn(number, x)`` of every element of the parent. ``key`` is what the count is called in the
    state.
    """

    flow = "one_to_one"

    def __init__(self, stage: Any, parent: Stream, fn: Fn, key: str) -> None:
        super().__init__(stage, parent)
        self.fn = fn
        self.keys = ("parent", key)

    def _run(self, cell: Cell) -> Iterator[Any]:
        (pos, num), fn = cell.settle(), self.fn
        number_of = self.ctx.numbers if self.ctx.numbers != ALL_NUMBERS else None
        inner = self.inner.at(pos, cell)
        cell.compute_by(lambda: (inner.settle(), num))
        try:
            for x in self.parent.run(inner):
                try:
                    x = None if x is None else fn(num if number_of is None else number_of(num), x)
                except Exception as error:
                    self.fail(error, inner)
                    raise
                num += 1
                yield (x, x := None)[0]
        except Exception:
            cell.end_block()
            cell.past_failed = partial(self._pass, cell, num)
            raise
        cell.end_block()

    def _pass(self, cell: Cell, num: int) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.pos, num + 1

    def index_of(self, pos: Pos) -> int:
        return int(pos[1])

    def at_index(self, index: int) -> Pos:
        check_no_gaps(self)
        return self.parent.at_index(index), index

    def merge(self, states: Any) -> Any:
        key = self.keys[1]
        if isinstance(states, Mapping):
            raise StateMismatchError(f"states of single datasets do not have the {key} of {self}")
        counts = {state_count(state, key, self) for state in states}
        if len(counts) != 1:
            raise StateMismatchError(
                f"{key} of {self} must be the same in all shards when their number changes, got"
                f" {sorted(counts)}"
            )
        return {
            "parent": self.parent.merge([state_field(state, "parent", self) for state in states]),
            key: counts.pop(),
        }


class Limit(Layer):
    """The first ``most`` elements of the parent, which is not asked for more."""

    flow = "one_to_one"
    keys = ("parent", "count_elements_read")

    def __init__(self, stage: Any, parent: Stream, most: int) -> None:
        super().__init__(stage, parent)
        self.most = most

    def _run(self, cell: Cell) -> Iterator[Any]:
        pos, num = cell.settle()
        if num >= self.most:
            return
        inner = self.inner.at(pos, cell)
        left = repeat(True, self.most - num)
        cell.compute_by(lambda: (inner.settle(), self.most - length_hint(left)))
        try:
            yield from islice(compress(self.parent.run(inner), left), self.most - num)
        except Exception:
            cell.end_block()
            cell.past_failed = partial(self._pass, cell, cell.pos[1])
            raise
        cell.end_block()

    def _pass(self, cell: Cell, num: int) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.pos, num + 1

    def index_of(self, pos: Pos) -> int:
        return int(pos[1])

    def at_index(self, index: int) -> Pos:
        check_no_gaps(self)
        if index > self.most:
            raise StateIndexError(
                f"the index of the next element of {self} must be in [0, {self.most}], got {index}"
            )
        return self.parent.at_index(index), index


class BatchStream(Stream):
    """``make`` of ``size`` consecutive elements of the parent at a time."""

    def __init__(
        self, stage: Any, parent: Stream, size: int, make: Fn, *, drop_remainder: bool
    ) -> None:
        super().__init__(stage, parent)
        self.size = size
        self.make = make
        self.drop_remainder = drop_remainder

    def _run(self, cell: Cell) -> Iterator[Any]:
        cell.wanted = size = self.size  # before the parent is run, which depends on it
        elements = self.parent.run(cell)
        while True:
            group: list[Any] = []
            cell.wanted = size
            try:
                group.extend(islice(elements, size))
            except Exception:
                cell.past_failed = partial(
                    self._pass, cell, cell.past_failed, size - len(group) - 1
                )
                raise
            cell.settle()
            if not group or (self.drop_remainder and len(group) < size):
                return
            try:
                made = [self.make(group)]
            except Exception as error:
                self.fail(error, cell)
                raise
            del group
            yield made.pop()

    def _pass(self, cell: Cell, past_failed: Callable[[], None] | None, num: int) -> None:
        """Move past the element that failed, and the ``num`` that would follow it in the batch."""
        cell.past_failed = past_failed
        cell.pass_failed()
        pass_outputs(self.parent, cell, num)

    def fail(self, error: Exception, cell: Cell) -> None:
        add_error_place(error, self, lambda: self.place(cell.settle()))
        if isinstance(error, StopIteration):
            raise instead_of_stop(error, str(self)) from error

    def place(self, pos: Pos) -> Place | None:
        place = self.parent.place(pos)
        return None if place is None else place.in_groups(self.size)

    def allocate_with(self, allocate: Allocate) -> None:
        if hasattr(self.make, "allocate_with"):
            self.make.allocate_with(allocate)

    def index_of(self, pos: Pos) -> int:
        check_no_gaps(self)
        num = self.parent.index_of(pos)
        return num // self.size if self.drop_remainder else -(-num // self.size)

    def at_index(self, index: int) -> Pos:
        check_no_gaps(self)
        start = index * self.size
        try:
            return self.parent.at_index(start)
        except IndexError:  # perhaps it is the index after the last batch, which may be smaller
            if self.drop_remainder:
                raise
            positions = range(start - self.size + 1, start)
            num_valid = bisect.bisect_left(positions, True, key=self._is_beyond_end)
            if not num_valid:
                raise
            return self.parent.at_index(positions[num_valid - 1])

    def _is_beyond_end(self, index: int) -> bool:
        try:
            self.parent.at_index(index)
        except IndexError:
            return True
        return False
