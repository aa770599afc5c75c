"""The stream of an interleave: elements of several datasets in turn, some of them open at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.engine.choices import Records
from gristmill.dataset.engine.draws import count_in
from gristmill.dataset.engine.members import Member, Members, may_count_faults
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.states.values import CycleState, copied

# in place of the position of a slot's member: ``None`` is the position of a plain iterator
NO_MEMBER: Any = ...
# of a slot; Grain's states may say so of a member that has elements left
RUNNING, SAID_TO_HAVE_ENDED, ENDED = range(3)
_END: Any = object()
_TOTALS = "faults_of_ended"  # in a state, by slot, of each ``Total``: the member and the state
_MOST_CHANGES = 64  # of a log, besides one for each slot


class Total(NamedTuple):
    """The faults of a member that has ended, and of earlier ones in its slot.

    Attributes:
        member: its number.
        kind: see ``Stream.kind``.
        pos: where a member of the kind begins that continues to count.
    """

    member: int
    kind: tuple[Any, ...]
    pos: Pos


class Slots(NamedTuple):
    """The members in the slots of a cycle: what changes only when a member begins or ends."""

    num_opened: int  # members that have been put into slots
    indices: tuple[int, ...]  # of the member in each slot
    ended: tuple[int, ...]  # ``RUNNING``, ``SAID_TO_HAVE_ENDED`` or ``ENDED``
    # of members that will be put into slots; ``None``: it has ended
    future_states: Mapping[int, Any]
    # by slot, of kinds of which no later member has begun
    totals: Mapping[int, tuple[Total, ...]]

    def put(self, slot: int, flag: int) -> Slots:
        """Put the next member into ``slot``."""
        index = self.num_opened
        states = self.future_states
        if index in states:
            states = {i: state for i, state in states.items() if i != index}
        indices, ended = replaced(self.indices, slot, index), replaced(self.ended, slot, flag)
        return Slots(index + 1, indices, ended, states, self.totals)

    def with_total(self, slot: int, total: Total | None) -> Slots:
        if total is None:
            return self
        found = (*self.without_total(slot, total.kind).totals.get(slot, ()), total)
        return self._replace(totals={**self.totals, slot: found})

    def without_total(self, slot: int, kind: tuple[Any, ...]) -> Slots:
        found = tuple([total for total in self.totals.get(slot, ()) if total.kind != kind])
        totals = {i: both for i, both in {**self.totals, slot: found}.items() if both}
        return self._replace(totals=totals) if slot in self.totals else self

    def flagged(self, slot: int, flag: int) -> Slots:
        return self._replace(ended=replaced(self.ended, slot, flag))


class Interleave(Stream):
    """One element of each member in turn. A slot whose member has ended is filled by the next one.

    The position is ``(parts, log, num, slot, slots)``: ``slot`` is whose turn it is; ``parts`` are
    the positions of the members in the slots, of which the first ``num`` entries
    ``(slot, position)`` of the log have changed some; the log is shared by the positions of a run,
    and grows. In place of the position of a member that is ``ENDED`` is its state, so that it is
    not opened again to be saved.

    Args:
        members: the datasets.
        length: the number of slots.
    """

    # members may choose, and their keys begin with that of this stage
    opens_members = makes_choices = True
    work_category = "preprocessing"
    _cell: Cell | None = None  # of the last run, or without one the position ``_pos`` of the next

    def __init__(self, stage: Any, members: Members, length: int) -> None:
        super().__init__(stage)
        self.members = members
        self.length = length
        self.budget_waits = members.budget_waits
        self.unopenable = -1  # the dataset whose opening failed last: only a run tries again
        self._pos = self.start()

    def start(self) -> Pos:
        num = self.length
        return (NO_MEMBER,) * num, (), 0, 0, Slots(0, (0,) * num, (RUNNING,) * num, {}, {})

    def open_iterators(self) -> Sequence[DatasetIterator[Any]]:
        return self.members.iterators

    def report_opened(self, report: Callable[[Any], None] | None) -> None:
        self.members.opener.ctx.joined = report

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        self.members.join(self.ctx, self.key)
        *start, slots = self.start()
        return *start, slots._replace(totals=totals_after(end, records, self))

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
            if cell.wanted > 1 or cell.outer is not None:
                wanted = cell.take_wanted() // length
                for c in filter(None, cells) if wanted > 1 else ():
                    c.wanted = wanted
            run = runs[slot]
            try:
                if run is None:
                    if now[slot] is NO_MEMBER or ended[slot] == ENDED:
                        if slots.num_opened == self.members.num:
                            num_vacant, slot = num_vacant + 1, (slot + 1) % length
                            cell.pos = base, log, num, slot, slots
                        else:
                            open_new = self.members.open_next
                            now[slot], slots = self._filled_slot(slot, slots, open_new)
                            ended = slots.ended
                            log.append((slot, now[slot]))
                            num += 1
                        continue
                    index = slots.indices[slot]
                    run, cells[slot] = self.members.run(index, now[slot], cell.choices)
                    runs[slot] = run
                x = next(run, _END)
            except Exception:
                cell.past_failed = partial(self._pass, cell, tuple(now), slot, slots)
                raise
            c = cells[slot]
            part = c.settle() if c.is_counting else c.pos
            if x is _END:
                was_said, index = ended[slot], slots.indices[slot]
                slots = slots.with_total(slot, total_of(self.members, index, part))
                now[slot] = part = self.members.state_at(index, part)
                slots, runs[slot] = slots.flagged(slot, ENDED), None
                ended = slots.ended
                log.append((slot, part))
                num += 1
                if not was_said:  # by a state, so that its turn was over then
                    num_vacant, slot = 0, (slot + 1) % length
                cell.pos = base, log, num, slot, slots
                self.members.close_member(index)
                continue
            if ended[slot]:
                slots = slots.flagged(slot, RUNNING)
                ended = slots.ended
            now[slot] = part
            log.append((slot, part))
            num += 1
            num_vacant, slot = 0, slot + 1 if slot + 1 < length else 0
            cell.pos = base, log, num, slot, slots
            yield (x, x := None)[0]

    def _begin(self, cell: Cell) -> tuple[list[Pos], int, Slots]:
        """Take note of a run, and return where it begins; close members that are not needed
        soon.
        """
        self._cell = cell
        self.members.join(self.ctx, self.key)
        *found, slot, slots = cell.pos
        now = parts(*found)
        if slots.future_states:  # a member that has ended takes a slot as if it were saved here
            now, slot, slots = self._filled(cell.pos)
        running = {i for i, flag in zip(slots.indices, slots.ended, strict=True) if flag != ENDED}
        self.members.close_but({*running, *range(slots.num_opened, slots.num_opened + self.length)})
        return now, slot, slots

    def _filled_slot(
        self, slot: int, slots: Slots, open_new: Callable[[int], DatasetIterator[Any]]
    ) -> tuple[Pos, Slots]:
        """Return the position of the next member, in ``slot``; ``NO_MEMBER`` if it ended in a shard
        of another size.
        """
        index = slots.num_opened
        state = slots.future_states.get(index, _END)
        if state is None:
            return NO_MEMBER, slots.put(slot, ENDED)
        if index not in self.members:  # it may be there, if what came after it failed
            try:
                it = open_new(index) if state is _END else self.members.opener.open(index)
                self.members.add(index, it, None if state is _END else state)
            except Exception:
                self.unopenable = index
                raise
        return begun(index, self.members[index], slots.put(slot, RUNNING), slot)

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

    # Positions and states.

    def _filled(self, pos: Pos) -> tuple[list[Pos], int, Slots]:
        """Return the parts of ``pos``, with members in slots that have never had one: the same
        elements follow.
        """
        *found, slot, slots = pos
        now = parts(*found)
        self.members.join(self.ctx, self.key)
        for i in [i for i, part in enumerate(now) if part is NO_MEMBER]:
            is_new = not slots.ended[i]
            if is_new and slots.num_opened not in (self.members.num, self.unopenable):
                try:
                    now[i], slots = self._filled_slot(i, slots, self.members.opener.open)
                except Exception:
                    break  # its turn will come
        return now, slot, slots

    def save(self, pos: Pos) -> Any:
        now, slot, slots = self._filled(pos)
        states = saved_members(now, slots, self)
        flags = [1 if flag else 0 for flag in slots.ended]
        cycle = CycleState(
            slot, slots.num_opened, slots.indices, states, flags, slots.future_states
        )
        state = cycle.as_state(owns_states=True)
        ended = saved_totals(slots, self.members)
        return {**state, _TOTALS: ended} if ended else state

    def saves_anywhere(self) -> bool:
        return False  # it opens members

    def kind(self, index: int) -> tuple[Any, ...]:
        return Interleave, self.length

    def faults_in(self, pos: Pos) -> Any:
        return pos if self.members.may_count else pos[-1].totals

    def load(self, state: object) -> Pos:
        cycle = parsed(state, self)
        before = self.members.numbers
        self.members.join(self.ctx, self.key)
        pairs = [*zip(cycle.indices, cycle.states, strict=True)]
        try:
            totals = loaded_totals(state, self)
            now = [NO_MEMBER if x is None else self.members[i].stream.load(x) for i, x in pairs]
        except BaseException:
            self.members.close_but(before)
            raise
        self.members.close_but({i for i, value in pairs if value is not None})
        flags = tuple([SAID_TO_HAVE_ENDED if flag else RUNNING for flag in cycle.exhausted])
        slots = Slots(cycle.num_opened, tuple(cycle.indices), flags, cycle.future_states, totals)
        self._cell, self._pos = None, (tuple(now), (), 0, cycle.slot, slots)
        return self._pos

    def index_of(self, pos: Pos) -> int:
        stream = self._only("know the index of its next element")
        (part,), _, slots = self._filled(pos)
        return stream.index_of(stream.load(part) if slots.ended[0] == ENDED else part)

    def at_index(self, index: int) -> Pos:
        part = self._only("jump to an index").at_index(index)
        self._cell, self._pos = None, ((part,), (), 0, 0, Slots(1, (0,), (RUNNING,), {}, {}))
        return self._pos

    def has_gaps(self) -> bool:
        return self.members.num == 1 and self._only().has_gaps()

    def _only(self, ability: str = "") -> Stream:
        """Return the stream of the only member."""
        if self.members.num != 1:
            raise NotImplementedError(
                f"{self} does not {ability}: only an interleave of a single dataset does"
            )
        self.members.join(self.ctx, self.key)
        return self.members[0].stream

    # Resources, and what observers ask.

    def start_prefetch(self) -> None:
        if not self.members.is_closed:
            self._filled(self._pos if self._cell is None else self._cell.pos)
            for stream in self.members.streams:
                stream.start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        for stream in self.members.streams:
            stream.expect(rate, due)

    def take_singly(self) -> None:
        self.members.take_singly()

    def may_have_chosen(self) -> bool:
        return self.members.may_have_chosen()

    def reads_once(self) -> bool:
        return any([stream.reads_once() for stream in self.members.streams])

    def close(self) -> None:
        self.members.close()

    def drop(self) -> None:
        self.forget_run()
        self.members.drop()

    def forget(self) -> None:
        super().forget()
        for stream in self.members.streams:
            stream.forget()

    def __str__(self) -> str:
        return (
            f"InterleaveDatasetIterator([{self.members.num} datasets], cycle_length={self.length})"
        )


def parts(base: Sequence[Pos], log: Sequence[tuple[int, Pos]], num: int) -> list[Pos]:
    """Return the parts after the first ``num`` changes of ``log``."""
    now = [*base]
    for i, part in log[:num]:
        now[i] = part
    return now


def totals_after(end: Pos, records: Records, owner: Interleave) -> Mapping[int, Any]:
    """Return the totals of faults at ``end`` and in ``records``, by slot; all members are
    closed.
    """
    *found, _, slots = end
    members = owner.members
    for slot, (index, part) in enumerate(zip(slots.indices, parts(*found), strict=True)):
        if part is not NO_MEMBER and slots.ended[slot] != ENDED:
            slots = slots.with_total(slot, total_of(members, index, part, records))
    numbers = [record.key.removeprefix(f"{owner.key}.").partition("/")[0] for record in records]
    for index in range(slots.num_opened, members.num):
        if str(index) in numbers:  # it began after ``end``
            first, slots = begun(index, members[index], slots, slot := index % owner.length)
            slots = slots.with_total(slot, total_of(members, index, first, records))
    members.close_but(set())
    totals: Mapping[int, tuple[Total, ...]] = slots.totals
    return totals


def total_of(members: Members, index: int, end: Pos, records: Records = ()) -> Total | None:
    """Return the faults of a member that is at ``end``; ``None`` if it counts none."""
    stream = members[index].stream
    if not may_count_faults(stream):
        return None
    pos = stream.next_epoch(end, records)
    return Total(index, stream.kind(index), pos) if _counts(stream, pos) else None


def saved_members(now: Sequence[Pos], slots: Slots, owner: Interleave) -> list[Any]:
    """Return the states of the members that are at ``now``; ``None`` in slots without one."""
    members = owner.members

    def saved(index: int, part: Pos, flag: int) -> Any:
        if part is NO_MEMBER:
            return None
        return copied(part) if flag == ENDED else members.saved(index, part)

    open_members = map(members.by_number.get, slots.indices)
    try:
        states = [
            saved(index, part, flag)
            if member is None or flag == ENDED or part is NO_MEMBER
            else member.stream.save(part)
            for index, member, part, flag in zip(
                slots.indices, open_members, now, slots.ended, strict=True
            )
        ]
    except NotImplementedError as error:
        # A plain iterator has no state. Its own error names neither the interleave nor the remedy.
        raise _without_state(owner) from error
    if any([x is None and part is not NO_MEMBER for x, part in zip(states, now, strict=True)]):
        raise _without_state(owner)
    return states


def _without_state(owner: Interleave) -> NotImplementedError:
    """Return the error of ``get_state`` where a dataset is iterated by a plain Python iterator."""
    return NotImplementedError(
        f"{owner} has no state to save or to return to: one of its datasets is iterated by a plain"
        " Python iterator. Return a DatasetIterator from __iter__ to save its position"
    )


def saved_totals(slots: Slots, members: Members) -> dict[str, list[Any]]:
    """Return what a state has of faults that are not in the states of the members in slots."""
    found = {
        str(slot): [
            [total.member, members.saved(total.member, total.pos)]
            for total in totals
            if slots.ended[slot] != ENDED or total.member != slots.indices[slot]
        ]
        for slot, totals in slots.totals.items()
    }
    return {slot: totals for slot, totals in found.items() if totals}


def loaded_totals(state: Any, owner: Interleave) -> Mapping[int, tuple[Total, ...]]:
    """Return the totals that ``saved_totals`` has made a form of."""
    given, members = state.get(_TOTALS, {}), owner.members
    try:
        pairs = [(int(slot), *pair) for slot, pairs in given.items() for pair in pairs]
        found = [(slot, count_in(member), first) for slot, member, first in pairs]
    except (AttributeError, TypeError, ValueError):
        found = [(0, members.num, None)]
    slots = Slots(0, (), (), {}, {})
    for slot, member, first in found:
        if not (0 <= slot < owner.length and member < members.num):
            raise StateMismatchError(
                f"{_TOTALS} in the state of {owner} must have, by slot, pairs of the number of a"
                f" dataset and its state, got {shown(given)}"
            )
        stream = members[member].stream
        slots = slots.with_total(slot, Total(member, stream.kind(member), stream.load(first)))
    return slots.totals


def begun(index: int, member: Member, slots: Slots, slot: int) -> tuple[Pos, Slots]:
    """Return where a member begins that takes a slot, and the slots without the faults that it
    continues to count.
    """
    totals = slots.totals.get(slot, ()) if member.is_new else ()
    kind = member.stream.kind(index) if totals else ()
    for total in totals:
        if total.kind == kind:
            return member.stream.next_epoch(total.pos), slots.without_total(slot, kind)
    return member.first, slots


def _counts(stream: Stream, pos: Pos) -> bool:
    """Return true if there are counts of faults in a position before the first element."""
    if isinstance(stream, Interleave):
        return bool(pos[-1].totals)
    parents = enumerate(stream.parents)
    return stream.counts_faults or any(
        [_counts(parent, stream.pos_of_parent(pos, i)) for i, parent in parents]
    )


def replaced(values: tuple[Any, ...], i: int, value: object) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])


def parsed(state: object, owner: Interleave) -> CycleState:
    """Return the parts of a state.

    Raises:
        StateMismatchError: it is not the state of such an interleave.
    """
    cycle = CycleState.parse(state, owner, owner.length, "the cycle length")
    if cycle.num_opened > owner.members.num:
        raise StateMismatchError(
            f"next_index_in_datasets in the state of {owner} must be at most {owner.members.num},"
            f" the number of datasets, got {cycle.num_opened}"
        )
    if any([i >= max(1, cycle.num_opened) for i in cycle.indices]):
        raise StateMismatchError(
            f"iterators_in_use_indices in the state of {owner} must be numbers of opened datasets,"
            f" got {shown(cycle.indices)}"
        )
    running = [i for i, value in zip(cycle.indices, cycle.states, strict=True) if value is not None]
    if len({*running}) < len(running):
        raise StateMismatchError(
            f"iterators_in_use_indices in the state of {owner} must be different datasets, got"
            f" {shown(cycle.indices)}"
        )
    return cycle
