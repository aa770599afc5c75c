"""Streams of stages that repeat one parent or draw from several in lockstep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, islice, repeat
from operator import length_hint
from typing import Any

from gristmill.core.state import state_list
from gristmill.dataset.bases.next_index import check_no_gaps
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.choices import Records
from gristmill.dataset.engine.stream import Cell, Layer, Pos, Stream, are_equal, pass_outputs
from gristmill.dataset.errors.context import add_error_epoch, with_error_context

_END: Any = object()
_REMEDY = "pass strict=False to end with the shortest"


class Repeat(Layer):
    """The parent's elements ``num_epochs`` times; without end if it is ``None``.

    Args:
        note_epoch: called with the epoch and a list of elements; returns these.
    """

    keys = ("parent", "epoch")

    def __init__(self, stage: Any, parent: Stream, num_epochs: int | None, note_epoch: Any) -> None:
        super().__init__(stage, parent)
        self.num_epochs = num_epochs
        self.note_epoch: Callable[[int, list[Any]], list[Any]] | None = note_epoch

    def _run(self, cell: Cell) -> Iterator[Any]:
        pos, epoch = cell.settle()
        note, is_new = self.note_epoch, False
        while self.num_epochs is None or epoch < self.num_epochs:
            inner = self.inner.at(pos, cell)
            cell.compute_by(partial(_in_epoch, inner, epoch))
            try:
                run = self.parent.run(inner)
                if note is not None:
                    run = map(partial(_noted, note, epoch), run)
                for x in run:
                    is_new = False
                    yield (x, x := None)[0]
                    yield from islice(run, None)  # which does not close the run
            except Exception as error:
                cell.end_block()
                add_error_epoch(error, self, epoch)
                if inner.past_failed is not None:
                    cell.past_failed = partial(self._pass, cell, epoch)
                else:  # the position is past the element already; runs may refer to one that ended
                    inner.go_to(inner.settle())
                raise
            cell.end_block()
            if is_new and self.num_epochs is None:
                cell.past_failed = self._refuse_empty
                self._refuse_empty()
            # After an epoch without elements the other ones have none either.
            epoch = self.num_epochs if is_new else epoch + 1
            is_new, pos = True, inner.settle()
            if epoch != self.num_epochs:
                pos = self.parent.next_epoch(pos)
            inner.go_to(pos)
        cell.pos = pos, epoch

    def _refuse_empty(self) -> None:
        reason = f"an epoch of {self.parent} has no elements, so repeating it would never end"
        raise with_error_context(ValueError(f"{self} cannot continue: {reason}"), self)

    def _pass(self, cell: Cell, epoch: int) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.pos, epoch

    def place(self, pos: Pos) -> Place | None:
        place = self.parent.place(pos[0])
        return None if place is None else place.in_epoch(pos[1])


def _in_epoch(inner: Cell, epoch: int) -> Pos:
    return inner.settle(), epoch


def _noted(note: Callable[[int, list[Any]], list[Any]], epoch: int, x: object) -> Any:
    return note(epoch, [x]).pop()


class Zip(Stream):
    """Tuples of one element of each parent. The position: the parents', and true at the end.

    When one parent has ended, those before it have yielded one element more.
    """

    flow = "one_to_one"

    def __init__(self, stage: Any, *parents: Stream, strict: bool) -> None:
        super().__init__(stage, *parents)
        self.strict = strict
        self.cells = [Cell() for _ in parents]
        self._rate = 1.0  # the share of each parent in all draws
        self._is_expected = False  # the parents read ahead

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return pos[0][i]

    def start(self) -> Pos:
        return tuple([parent.start() for parent in self.parents]), False

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        ends = zip(self.parents, end[0], strict=True)
        return tuple([parent.next_epoch(inner, records) for parent, inner in ends]), False

    def save(self, pos: Pos) -> Any:
        return {
            "parents": [
                parent.save(inner) for parent, inner in zip(self.parents, pos[0], strict=True)
            ]
        }

    def load(self, state: object) -> Pos:
        states = state_list(state, "parents", self, len(self.parents), "the number of datasets")
        self._is_expected = False
        return (
            tuple([parent.load(inner) for parent, inner in zip(self.parents, states, strict=True)]),
            False,
        )

    def _run(self, cell: Cell) -> Iterator[Any]:
        positions, has_ended = cell.settle()
        if has_ended:
            return
        if not self._is_expected:
            self.expect(self._rate, 0.0)
        cells = self.cells
        choices = cell.choices
        runs = [
            parent.run(c.at(pos, choices=choices))
            for parent, c, pos in zip(self.parents, cells, positions, strict=True)
        ]
        steps = [repeat(True, sys.maxsize) for _ in runs]
        rows = chain(map(_as_tuple, *map(compress, runs, steps)))  # its end is the end
        cell.compute_by(lambda: (tuple([c.settle() for c in cells]), False))
        try:
            while True:
                if (wanted := cell.take_wanted()) > 1:
                    for c in cells:
                        c.wanted = wanted
                made = [next(rows, _END)]
                if made[0] is _END:
                    break
                yield made.pop()
                yield from islice(rows, wanted - 1)
        except Exception:
            cell.is_counting = False  # some parents are past the row that failed
            cell.past_failed = partial(self._pass, cell, _last_drawn(steps))
            raise
        cell.is_counting = False
        if self.strict:
            self._check_ends(cell, _last_drawn(steps), runs)
        cell.pos = tuple([c.settle() for c in cells]), True

    def _check_ends(self, cell: Cell, first: int, runs: list[Iterator[Any]]) -> None:
        """Raise unless all parents end where the one at ``first`` has ended, before which none has
        ended.
        """
        if first:
            cell.past_failed = partial(self._pass, cell, first)
            raise with_error_context(
                ValueError(
                    f"ZipIterDataset argument {first + 1} is shorter than {_arguments(first)}:"
                    f" {_REMEDY}"
                ),
                self,
            )
        for i, run in enumerate(runs[1:], 1):
            cell.past_failed = partial(self._pass, cell, i)
            if next(run, _END) is not _END:
                raise with_error_context(
                    ValueError(
                        f"ZipIterDataset argument {i + 1} is longer than {_arguments(i)}: {_REMEDY}"
                    ),
                    self,
                )
        cell.past_failed = None

    def _pass(self, cell: Cell, failed: int) -> None:
        c = self.cells[failed]
        before = c.settle()
        c.pass_failed()
        after = c.settle()
        if after is not before and are_equal(after, before):  # there was no element
            if failed:
                raise ValueError(
                    f"{self} cannot skip what failed in argument {failed + 1}: it was no element,"
                    " and the arguments before it have drawn theirs. Call next() again, which tries"
                    " the same tuple"
                )
            cell.pos = (*cell.pos,)
            return
        for parent, c in zip(self.parents[failed + 1 :], self.cells[failed + 1 :], strict=True):
            pass_outputs(parent, c, 1)
        cell.pos = tuple([c.settle() for c in self.cells]), False

    def expect(self, rate: float, due: float | None) -> None:
        self._rate, self._is_expected = rate, due is not None
        super().expect(rate, due)

    def index_of(self, pos: Pos) -> int:
        check_no_gaps(self)
        return self.parents[0].index_of(pos[0][0])

    def at_index(self, index: int) -> Pos:
        check_no_gaps(self)
        self._is_expected = False
        return tuple([parent.at_index(index) for parent in self.parents]), False

    def __str__(self) -> str:
        return f"ZipDatasetIterator([{len(self.parents)} parents])"


def _as_tuple(*row: Any) -> tuple[Any, ...]:
    return row


def _last_drawn(steps: Sequence[Iterator[bool]]) -> int:
    """Return the parent that gave no element for a row: the first one that has given the fewest."""
    left = [length_hint(counter) for counter in steps]
    return left.index(max(left))


def _arguments(num: int) -> str:
    return "argument 1" if num == 1 else f"arguments 1-{num}"
