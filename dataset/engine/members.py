"""The members of an interleave that are open."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from gristmill.dataset.ahead.readahead import ReadAhead
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.context import ComponentContext, IteratorContext
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.engine.choices import Choices
from gristmill.dataset.engine.iterators import stream_of
from gristmill.dataset.engine.stream import Cell, Pos, Stream


class Opener(Protocol):
    """Makes iterators of datasets. Threads that open ahead know it, so it does not know the stream
    it serves.
    """

    ctx: ComponentContext
    key: str  # of the interleave: the keys of stages in members that choose begin with it

    def open(self, index: int) -> DatasetIterator[Any]:
        """Return an iterator of dataset ``index``."""

    def open_ahead(self, indices: range) -> Iterator[DatasetIterator[Any]]:
        """Return iterators of datasets that have begun to work ahead."""

    def close(self) -> None:
        """Release what it holds. May be called again."""


class Member:
    """A dataset that is open.

    Args:
        it: its iterator.
        state: the state at which it begins; ``None`` is the beginning.
    """

    __slots__ = ("cell", "first", "is_new", "it", "stream")

    def __init__(self, it: DatasetIterator[Any], state: Any) -> None:
        self.it = it
        self.is_new = state is None
        self.stream = stream = stream_of(it)
        self.first = stream.start() if state is None else stream.load(state)
        self.cell = Cell(self.first)


def may_count_faults(stream: Stream) -> bool:
    """Return true if a stage upstream, or this one, counts faults, or a member of an interleave
    may.
    """
    is_one = stream.counts_faults or stream.opens_members
    return is_one or any(map(may_count_faults, stream.parents))


def has_counted_faults(stream: Any) -> bool:
    """As ``may_count_faults``, where all members that an interleave has opened are known."""
    if stream.opens_members:
        return bool(stream.members.may_count)
    return stream.counts_faults or any(map(has_counted_faults, stream.parents))


class Members:
    """The datasets of an interleave that are open, by their numbers.

    Args:
        opener: makes their iterators.
        num: the number of datasets.
        num_threads: threads that open datasets ahead.
        num_ahead: the most datasets that are open ahead of their turn.
    """

    is_closed = False
    _opening: ReadAhead | None = None  # gives the datasets from ``_opening_index`` on
    _opening_index = 0
    _finalizer: Any = None
    _reads_singly = False
    _had_chosen = False  # a member that is closed
    may_count = False  # one that is or was open may count faults
    _ctx: IteratorContext

    def __init__(self, opener: Opener, num: int, num_threads: int, num_ahead: int) -> None:
        self.opener = opener
        self.num = num
        self.budget_waits = BudgetWaits()
        self._num_threads, self._num_ahead = num_threads, num_ahead if num_threads else 0
        self.by_number: dict[int, Member] = {}
        self._unstarted: list[int] = []  # that were opened, and not yet asked to work ahead

    def __contains__(self, index: int) -> bool:
        return index in self.by_number

    def __getitem__(self, index: int) -> Member:
        """Return a member, which is opened again if it was closed."""
        if index not in self.by_number:
            self.add(index, self.opener.open(index))
        return self.by_number[index]

    @property
    def numbers(self) -> set[int]:
        """The numbers of those that are open."""
        return {*self.by_number}

    @property
    def iterators(self) -> list[DatasetIterator[Any]]:
        return [member.it for member in [*self.by_number.values()]]

    @property
    def streams(self) -> list[Stream]:
        return [member.stream for member in [*self.by_number.values()]]

    def join(self, ctx: IteratorContext, key: str) -> None:
        """Belong to the pipeline of ``ctx``, and to the stage ``key``, from now on."""
        self._ctx = self.opener.ctx.outer = ctx
        self.opener.key = key

    def add(self, index: int, it: DatasetIterator[Any], state: Any = None) -> None:
        member = Member(it, state)
        if self._reads_singly:
            member.stream.take_singly()
        self.may_count |= may_count_faults(member.stream)
        self.by_number[index] = member
        self._unstarted.append(index)

    def run(self, index: int, pos: Pos, choices: Choices | None) -> tuple[Iterator[Any], Cell]:
        """Return the elements of a member from ``pos`` on, and its cell."""
        member = self[index]
        while self._unstarted:  # the others of the cycle may work meanwhile
            if (i := self._unstarted.pop()) in self:
                self[i].stream.start_prefetch()
        return member.stream.run(member.cell.at(pos, choices=choices)), member.cell

    def open_next(self, index: int) -> DatasetIterator[Any]:
        """Return a new iterator of the next dataset, by the threads that open ahead."""
        if self.is_closed:
            raise ValueError("the interleave was closed while it opened its next dataset")
        if not self._num_ahead:
            return self.opener.open(index)
        opening = self._opening
        if opening is None or self._opening_index != index or not opening.budget.is_here:
            self._stop_opening()
            what = (
                self.opener.open_ahead,
                index,
                self.num,
                self._num_threads,
                self._num_ahead,
                self._ctx.budget,
            )
            opening = ReadAhead(*what, waits=self.budget_waits)
            self._finalizer = weakref.finalize(self, opening.close)
            opening.budget.enroll(opening)
            self._opening = opening
        try:
            (it,) = opening.take(1)
            self._opening_index = index + 1
        except BaseException:
            self._stop_opening()  # its threads would keep the error, and with that this, alive
            raise
        return it

    def _stop_opening(self) -> None:
        self._opening = None
        if self._finalizer is not None:
            self._finalizer()

    def saved(self, index: int, pos: Pos) -> Any:
        """Return the state of a position of a member, which is opened for a moment if it is not
        open.
        """
        is_open = index in self
        state = self.state_at(index, pos)
        if not is_open:
            self.close_member(index)
        return state

    def state_at(self, index: int, pos: Pos) -> Any:
        """Return the state of a position of a member; ``None`` if it has none."""
        try:
            return self[index].stream.save(pos)
        except NotImplementedError:
            return None

    def take_singly(self) -> None:
        self._reads_singly = True
        for stream in self.streams:
            stream.take_singly()

    def may_have_chosen(self) -> bool:
        """Return true if a member may have made choices."""
        return self._had_chosen or any([stream.may_have_chosen() for stream in self.streams])

    def close_member(self, index: int) -> None:
        member = self.by_number.pop(index)
        self._had_chosen |= member.stream.may_have_chosen()
        member.it.close()

    def close_but(self, needed: set[int]) -> None:
        """Close the members that are not among ``needed``."""
        for index in self.numbers - needed:
            self.close_member(index)

    def close(self) -> None:
        self.is_closed = True
        self._stop_opening()
        self.close_but(set())
        self.opener.close()

    def drop(self) -> None:
        """Close without waiting."""
        streams, self.by_number = self.streams, {}
        for stream in streams:
            stream.drop()
        self.close()
