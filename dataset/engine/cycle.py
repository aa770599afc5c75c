"""The stream of an interleave: elements of several datasets in turn, some of them open at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown
from gristmill.dataset.ahead.readahead import ReadAhead
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.context import ComponentContext
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.choices import Choices, number_choosers
from gristmill.dataset.engine.iterators import stream_of
from gristmill.dataset.engine.stream import Cell, Pos, Stream, cannot_merge
from gristmill.dataset.states.values import CycleState, copied

NO_MEMBER: Any = ...  # in place of the position of a slot's member: ``None`` is the position of a plain iterator
RUNNING, SAID_TO_HAVE_ENDED, ENDED = range(3)  # of a slot; Grain's states may say so of a member that has elements left
_END: Any = object()
_MOST_CHANGES = 64  # of a log, besides one for each slot


class Slots(NamedTuple):
    """The members in the slots of a cycle: what changes only when a member begins or ends."""

    num_opened: int  # members that have been put into slots
    indices: tuple[int, ...]  # of the member in each slot
    ended: tuple[int, ...]  # ``RUNNING``, ``SAID_TO_HAVE_ENDED`` or ``ENDED``
    future_states: Mapping[int, Any]  # of members that will be put into slots; ``None``: it has ended

    def put(self, slot: int, flag: int) -> Slots:
        """Put the next member into ``slot``."""
        index = self.num_opened
        states = self.future_states
        if index in states:
            states = {i: state for i, state in states.items() if i != index}
        return Slots(index + 1, replaced(self.indices, slot, index), replaced(self.ended, slot, flag), states)

    def flagged(self, slot: int, flag: int) -> Slots:
        return self._replace(ended=replaced(self.ended, slot, flag))


class Opener(Protocol):
    """Makes iterators of datasets. Threads that open ahead know it, so it does not know the stream it serves."""

    ctx: ComponentContext

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

    __slots__ = ("cell", "first", "it", "stream")

    def __init__(self, it: DatasetIterator[Any], state: Any) -> None:
        self.it = it
        self.stream = stream = stream_of(it)
        self.first = stream.start() if state is None else stream.load(state)
        self.cell = Cell(self.first)


class Interleave(Stream):
    """One element of each member in turn. A slot whose member has ended is filled by the next one.

    The position is ``(parts, log, num, slot, slots)``: ``slot`` is whose turn it is; ``parts`` are the
    positions of the members in the slots, of which the first ``num`` entries ``(slot, position)`` of
    the log have changed some; the log is shared by the positions of a run, and grows. In place of the
    position of a member that is ``ENDED`` is its state, so that it is not opened again to be saved.

    Args:
        num_members: the number of datasets.
        length: the number of slots.
        num_threads: threads that open datasets ahead.
        num_ahead: the most datasets that are open ahead of their turn.
    """

    makes_choices = True  # members may, and their keys begin with that of this stage
    work_category: ClassVar = "preprocessing"
    is_closed = False
    _cell: Cell | None = None  # of the last run
    _pos: Pos = None  # of the next one, without a cell
    _opening: ReadAhead | None = None  # gives the datasets from ``_opening_index`` on
    _opening_index = 0
    _finalizer: Any = None
    _reads_singly = False

    def __init__(
        self, stage: Any, opener: Opener, num_members: int, length: int, num_threads: int = 0, num_ahead: int = 0
    ) -> None:
        super().__init__(stage)
        self.opener = opener
        self.num_members = num_members
        self.length = length
        self._num_threads, self._num_ahead = num_threads, num_ahead if num_threads else 0
        self.budget_waits = BudgetWaits()
        self.members: dict[int, Member] = {}
        self._unstarted: list[int] = []  # members that were opened, and not yet asked to work ahead
        self.unopenable = -1  # the dataset whose opening failed last: only a run tries again
        self._pos = self.start()

    def start(self) -> Pos:
        num = self.length
        return (NO_MEMBER,) * num, (), 0, 0, Slots(0, (0,) * num, (RUNNING,) * num, {})

    # Running.

    def _run(self, cell: Cell) -> Iterator[Any]:
        now, slot, slots = self._begin(cell)
        length = self.length
        runs: list[Any] = [None] * length
        cells: list[Any] = [None] * length
        log: list[tuple[int, Pos]] = []
        base, num, ended = tuple(now), 0, slots.ended
        num_vacant = 0  # slots in a row that will remain so
        while num_vacant < length:
            if num > length + _MOST_CHANGES:
                base, log, num = tuple(now), [], 0
            run = runs[slot]
            try:
                if run is None:
                    if now[slot] is NO_MEMBER or ended[slot] == ENDED:
                        if slots.num_opened == self.num_members:
                            num_vacant, slot = num_vacant + 1, (slot + 1) % length
                            cell.pos = base, log, num, slot, slots
                        else:
                            now[slot], slots = self._filled_slot(slot, slots, self._open_next)
                            ended = slots.ended
                            log.append((slot, now[slot]))
                            num += 1
                        continue
                    run, cells[slot] = self._run_of(slots.indices[slot], now[slot], cell.choices)
                    runs[slot] = run
                x = next(run, _END)
            except Exception:
                cell.past_failed = partial(self._pass, cell, tuple(now), slot, slots)
                raise
            now[slot] = part = cells[slot].pos
            if x is _END:
                was_said, index = ended[slot], slots.indices[slot]
                now[slot] = part = self._state_at(index, part)
                slots, runs[slot] = slots.flagged(slot, ENDED), None
                ended = slots.ended
            elif ended[slot]:
                slots = slots.flagged(slot, RUNNING)
                ended = slots.ended
            log.append((slot, part))
            num += 1
            if x is _END:
                if not was_said:  # by a state, so that its turn was over then
                    num_vacant, slot = 0, (slot + 1) % length
                cell.pos = base, log, num, slot, slots
                self._close_member(index)
                continue
            num_vacant = 0
            slot = slot + 1 if slot + 1 < length else 0
            cell.pos = base, log, num, slot, slots
            yield (x, x := None)[0]

    def _begin(self, cell: Cell) -> tuple[list[Pos], int, Slots]:
        """Take note of a run, and return where it begins; close members that are not needed soon."""
        self._cell, self.opener.ctx.outer = cell, self.ctx
        *found, slot, slots = cell.pos
        now = parts(*found)
        if slots.future_states:  # a member that has ended takes a slot as if it were saved here
            now, slot, slots = self._filled(cell.pos)
        running = {i for i, flag in zip(slots.indices, slots.ended, strict=True) if flag != ENDED}
        self._close_members_but({*running, *range(slots.num_opened, slots.num_opened + self.length)})
        return now, slot, slots

    def _run_of(self, index: int, pos: Pos, choices: Choices | None) -> tuple[Iterator[Any], Cell]:
        member = self._member(index)
        number_choosers(member.stream, f"{self.key}.{index}/")
        while self._unstarted:  # the others of the cycle may work meanwhile
            if (i := self._unstarted.pop()) in self.members:
                self.members[i].stream.start_prefetch()
        return member.stream.run(member.cell.at(pos, choices=choices)), member.cell

    def _filled_slot(self, slot: int, slots: Slots, open_new: Callable[[int], DatasetIterator[Any]]) -> tuple[Pos, Slots]:
        """Return the position of the next member, in ``slot``; ``NO_MEMBER`` if it ended in a shard of another size."""
        index = slots.num_opened
        state = slots.future_states.get(index, _END)
        if state is None:
            return NO_MEMBER, slots.put(slot, ENDED)
        if index not in self.members:  # it may be there, if what came after it failed
            try:
                it = open_new(index) if state is _END else self.opener.open(index)
                self._add(index, it, None if state is _END else state)
            except Exception:
                self.unopenable = index
                raise
        return self.members[index].first, slots.put(slot, RUNNING)

    def _pass(self, cell: Cell, now: tuple[Pos, ...], slot: int, slots: Slots) -> None:
        """Move past what failed in ``slot``: an element, or a dataset that cannot be opened."""
        index, part = slots.indices[slot], NO_MEMBER
        if now[slot] is NO_MEMBER or slots.ended[slot] == ENDED:
            slots = slots.put(slot, ENDED)
        elif index not in self.members:
            slots = slots.flagged(slot, ENDED)
        else:
            self.members[index].cell.pass_failed()
            part = self.members[index].cell.pos
        cell.pos = replaced(now, slot, part), (), 0, (slot + 1) % self.length, slots

    # Members.

    def _member(self, index: int) -> Member:
        """Return member ``index``, opened again if it was closed."""
        if index not in self.members:
            self._add(index, self.opener.open(index))
        return self.members[index]

    def _add(self, index: int, it: DatasetIterator[Any], state: Any = None) -> None:
        member = Member(it, state)
        if self._reads_singly:
            member.stream.take_singly()
        self.members[index] = member
        self._unstarted.append(index)

    def _close_member(self, index: int) -> None:
        self.members.pop(index).it.close()

    def _close_members_but(self, needed: set[int]) -> None:
        for index in [i for i in self.members if i not in needed]:
            self._close_member(index)

    def _open_next(self, index: int) -> DatasetIterator[Any]:
        """Return a new iterator of the next dataset, by the threads that open ahead."""
        if not self._num_ahead:
            return self.opener.open(index)
        if self.is_closed:
            raise ValueError(f"{self} is closed")
        opening = self._opening
        if opening is None or self._opening_index != index or not opening.budget.is_here:
            self._stop_opening()
            what = self.opener.open_ahead, index, self.num_members, self._num_threads, self._num_ahead, self.ctx.budget
            opening = ReadAhead(*what, waits=self.budget_waits)
            self._finalizer = weakref.finalize(self, opening.close)
            opening.budget.enroll(opening)
            self._opening = opening
        try:
            (it,) = opening.take(1)
            self._opening_index = index + 1
        except BaseException:
            self._stop_opening()  # its threads would keep the error, and with that this stream, alive
            raise
        return it

    def _stop_opening(self) -> None:
        self._opening = None
        if self._finalizer is not None:
            self._finalizer()

    # Positions and states.

    def _filled(self, pos: Pos) -> tuple[list[Pos], int, Slots]:
        """Return the parts of ``pos``, with members in slots that have never had one: the same elements follow."""
        *found, slot, slots = pos
        now, self.opener.ctx.outer = parts(*found), self.ctx
        for i in range(self.length):
            is_new = now[i] is NO_MEMBER and not slots.ended[i]
            if is_new and slots.num_opened not in (self.num_members, self.unopenable):
                try:
                    now[i], slots = self._filled_slot(i, slots, self.opener.open)
                except Exception:
                    break  # its turn will come
        return now, slot, slots

    def save(self, pos: Pos) -> Any:
        now, slot, slots = self._filled(pos)
        states = []
        for index, part, flag in zip(slots.indices, now, slots.ended, strict=True):
            state = None if part is NO_MEMBER else copied(part) if flag == ENDED else self._saved(index, part)
            if state is None and part is not NO_MEMBER:
                raise NotImplementedError(
                    f"{self} has no state to save or to return to: one of its datasets is iterated by a plain Python iterator. "
                    "Return a DatasetIterator from __iter__ to save its position"
                )
            states.append(state)
        flags = [min(flag, 1) for flag in slots.ended]
        cycle = CycleState(slot, slots.num_opened, slots.indices, states, flags, slots.future_states)
        return cycle.as_state(owns_states=True)

    def _saved(self, index: int, part: Pos) -> Any:
        """Return the state of a position of a member, which is opened for a moment if it is not open."""
        is_open = index in self.members
        state = self._state_at(index, part)
        if not is_open:
            self._close_member(index)
        return state

    def _state_at(self, index: int, part: Pos) -> Any:
        try:
            return self._member(index).stream.save(part)
        except NotImplementedError:
            return None

    def saves_anywhere(self) -> bool:
        return False  # it opens members

    def load(self, state: Any) -> Pos:
        cycle = self._parsed(state)
        before = {*self.members}
        self.opener.ctx.outer = self.ctx
        pairs = [*zip(cycle.indices, cycle.states, strict=True)]
        try:
            now = [NO_MEMBER if value is None else self._member(i).stream.load(value) for i, value in pairs]
        except BaseException:
            self._close_members_but(before)
            raise
        self._close_members_but({i for i, value in pairs if value is not None})
        flags = tuple([SAID_TO_HAVE_ENDED if flag else RUNNING for flag in cycle.exhausted])
        slots = Slots(cycle.num_opened, tuple(cycle.indices), flags, cycle.future_states)
        return self._moved_to((tuple(now), (), 0, cycle.slot, slots))

    def _moved_to(self, pos: Pos) -> Pos:
        self._cell, self._pos = None, pos
        return pos

    def _parsed(self, state: Any) -> CycleState:
        cycle = CycleState.parse(state, self, self.length, "the cycle length")
        if cycle.num_opened > self.num_members:
            raise StateMismatchError(
                f"next_index_in_datasets in the state of {self} must be at most {self.num_members}, the number of datasets, "
                f"got {cycle.num_opened}"
            )
        if any([i >= max(1, cycle.num_opened) for i in cycle.indices]):
            raise StateMismatchError(
                f"iterators_in_use_indices in the state of {self} must be numbers of opened datasets, got {shown(cycle.indices)}"
            )
        running = [i for i, value in zip(cycle.indices, cycle.states, strict=True) if value is not None]
        if len({*running}) < len(running):
            raise StateMismatchError(
                f"iterators_in_use_indices in the state of {self} must be different datasets, got {shown(cycle.indices)}"
            )
        return cycle

    def place(self, pos: Pos) -> Place | None:
        return None

    def merge(self, states: Any) -> Any:
        raise cannot_merge(self)

    def index_of(self, pos: Pos) -> int:
        self._check_single("know the index of its next element")
        (part,), _, slots = self._filled(pos)
        stream = self._member(0).stream
        return stream.index_of(stream.load(part) if slots.ended[0] == ENDED else part)

    def at_index(self, index: int) -> Pos:
        self._check_single("jump to an index")
        part = self._member(0).stream.at_index(index)
        return self._moved_to(((part,), (), 0, 0, Slots(1, (0,), (RUNNING,), {})))

    def has_gaps(self) -> bool:
        return self.num_members == 1 and self._member(0).stream.has_gaps()

    def _check_single(self, ability: str) -> None:
        if self.num_members != 1:
            raise NotImplementedError(f"{self} does not {ability}: only an interleave of a single dataset does")

    # Resources, and what observers ask.

    @property
    def streams(self) -> list[Stream]:
        """Those of the members that are open."""
        return [member.stream for member in [*self.members.values()]]

    def start_prefetch(self) -> None:
        if not self.is_closed:
            self._filled(self._pos if self._cell is None else self._cell.pos)
            for stream in self.streams:
                stream.start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        for stream in self.streams:
            stream.expect(rate, due)

    def take_singly(self) -> None:
        self._reads_singly = True
        for stream in self.streams:
            stream.take_singly()

    def reads_once(self) -> bool:
        return any([stream.reads_once() for stream in self.streams])

    def close(self) -> None:
        self.is_closed = True
        self._stop_opening()
        self._close_members_but(set())
        self.opener.close()

    def drop(self) -> None:
        streams, self.members = self.streams, {}
        for stream in streams:
            stream.drop()
        super().drop()

    def forget(self) -> None:
        super().forget()
        for stream in self.streams:
            stream.forget()

    def __str__(self) -> str:
        return f"InterleaveDatasetIterator([{self.num_members} datasets], cycle_length={self.length})"


def parts(base: Sequence[Pos], log: Sequence[tuple[int, Pos]], num: int) -> list[Pos]:
    """Return the parts after the first ``num`` changes of ``log``."""
    now = [*base]
    for i, part in log[:num]:
        now[i] = part
    return now


def replaced(values: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])
