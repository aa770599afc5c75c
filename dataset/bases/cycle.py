"""The base of iterators that take elements from the members of a cycle in turn: from open datasets, or from shards.

Guarantees:

1. The order follows from the elements of the members alone: not from how fast they are, what is fetched ahead, or blocks.
2. The position counts what was delivered: whose turn it is, who is in which slot, and where that one is after its last
   delivered element.
3. ``next`` either delivers or leaves this where it was. What was fetched and not delivered stays ready after an error, which
   comes in its turn, behind the elements before it; after an interrupt, of which nobody knows what it lost, it is computed again.
"""

from __future__ import annotations

import abc
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from gristmill.dataset.bases.feed import OneByOne
from gristmill.dataset.bases.iterator import BlockIterator, note_interrupt
from gristmill.dataset.faults.lanes import LaneBudgets
from gristmill.dataset.states.values import CycleState, Fetched, copied
from gristmill.dataset.watching import tell_of_faults

T = TypeVar("T")

Failure: TypeAlias = Callable[[], BaseException]  # makes the error to be raised
After: TypeAlias = tuple[Sequence[Any], int]  # states, and which of them it is that an iterator is at


class Member:
    """Whose turns come in a cycle: what was fetched of its elements and not delivered, and the failure or end that follows."""

    def __init__(self) -> None:
        self.ready: deque[Fetched] = deque()
        self.failure: Failure | None = None
        self.has_ended = False
        self.final: Any = None  # the state at the end, if it says more than the last one before

    def make_ready(self) -> bool:
        """Gets one more element ready, if that is all there is to it; false: it is left to ``_fetch``."""
        return False

    def clear(self) -> None:
        """Forgets what was fetched."""
        self.ready.clear()
        self.failure, self.has_ended, self.final = None, False, None

    def reported(self) -> Failure | None:
        """The failure, whose turn has come. It stays, unless a subclass forgets it so that it is tried again."""
        return self.failure


M = TypeVar("M", bound=Member)


class CyclePosition(BlockIterator[T]):
    """The base of those: where one is in its cycle, as the state says it.

    Args:
        num_members: how many members there are.
        cycle_length: of how many the elements are taken in turn.
    """

    def __init__(self, num_members: int, cycle_length: int) -> None:
        super().__init__()
        self._num_members = num_members
        self._cycle_length = cycle_length
        # Where this is, as the state says it. Nothing of it is changed in place but ``_after``, which is always the same list.
        self._slot = 0  # whose turn it is
        self._num_opened = 0  # members that have been put into slots
        self._indices: Sequence[int] = (0,) * cycle_length  # which member is in a slot,
        self._after: list[After | None] = [None] * cycle_length  # where its state is; ``None``: there is no member,
        self._exhausted: Sequence[int] = (0,) * cycle_length  # and whether it is said to have ended
        self._ended: frozenset[int] = frozenset()  # members of whom that is known
        self._future_states: Mapping[int, Any] = {}  # of members that will be put into slots
        # Where a member is in place of ``_after``, and how many of its elements from there on an old state calls delivered.
        self._undropped: Mapping[int, tuple[After, int]] = {}
        # Before the last output: whose turn it was, and where that one was; or the position.
        self._last_turn: Any = None

    def _is_vacant(self, slot: int) -> bool:
        """Whether there is no member in ``slot`` that may have more elements. What is ready may have to be delivered still."""
        return self._after[slot] is None or self._indices[slot] in self._ended

    def _say_exhausted(self, slot: int, flag: int) -> None:
        self._exhausted = (*self._exhausted[:slot], flag, *self._exhausted[slot + 1 :])

    def _pass_on(self) -> None:
        self._slot = (self._slot + 1) % self._cycle_length

    def _put(self, slot: int, index: int, after: After | None) -> None:
        """Puts member ``index``, the next one, into ``slot``; with ``None`` it is left out, so that the slot stays vacant."""
        if self._after[slot] is not None:
            self._ended -= {self._indices[slot]}
        self._indices = (*self._indices[:slot], index, *self._indices[slot + 1 :])
        self._after[slot] = after
        self._say_exhausted(slot, int(after is None))
        if index in self._future_states:
            self._future_states = {i: state for i, state in self._future_states.items() if i != index}
        self._num_opened = index + 1

    def _position(self) -> Any:
        slots = self._indices, [*self._after], self._exhausted
        return self._slot, self._num_opened, slots, self._ended, self._future_states, self._undropped

    def _set_position(self, position: Any) -> None:
        self._slot, self._num_opened, slots, self._ended, self._future_states, self._undropped = position
        self._indices, self._after[:], self._exhausted = slots

    def _mark(self) -> Any:
        return self._position()

    def _state_at(self, mark: Any) -> Any:
        now = self._position()
        try:
            self._set_position(mark)
            return self._state_here()
        finally:
            self._set_position(now)

    def _state_here(self) -> Any:
        """The state, without a step ahead."""
        return self.get_state()

    def _before_last(self) -> Any:
        if self._last_turn is None:
            return None
        place = self._last_turn
        if len(place) == 2:
            slot, after = place
            _, num, (indices, now, exhausted), *rest = self._position()
            place = slot, num, (indices, [*now[:slot], after, *now[slot + 1 :]], exhausted), *rest
        return copied(self._state_at(place))

    def _forget_last(self) -> None:
        self._last_turn = None

    def _cycle_state(self, states: list[Any]) -> CycleState:
        """The position as it is saved, with the state of each slot."""
        return CycleState(self._slot, self._num_opened, self._indices, states, self._exhausted, self._future_states)


class CycleIterator(CyclePosition[T], Generic[T, M]):
    """One element of each member of a cycle in turn. One that has ended leaves its slot vacant, for the next one if there is any.

    A stage writes ``_fetch``, ``_skip_failed``, ``get_state`` and ``_restore``, and ``_refill`` if there may be more members than
    slots.
    """

    _flow = "stateful"
    _stays_on_error = True
    _is_costly_to_restore = True
    _budgets: Any = None  # who judges what members have passed over

    def __init__(self, num_members: int, cycle_length: int) -> None:
        super().__init__(num_members, cycle_length)
        # What is being done, by the number of the member.
        self._members: dict[int, M] = {}

    @abc.abstractmethod
    def _fetch(self, slot: int, num: int) -> None:
        """Gets elements of the member in ``slot``, or what follows them, where ``num`` are wanted of all members together."""

    @abc.abstractmethod
    def _skip_failed(self, slot: int) -> bool:
        """Leaves out what fails in ``slot``, whose turn it is; false if that was no element, and the turn is not over."""

    def _refill(self, slot: int) -> Failure | None:
        """Puts the next member into ``slot``, or returns why that failed. Only asked for where members wait for a slot."""
        raise AssertionError(f"all members of {self} have slots from the beginning")

    def _end(self, slot: int) -> None:
        """Called when the member in ``slot`` has ended."""
        final = self._members[self._indices[slot]].final if self._indices[slot] in self._members else None
        if final is not None:
            self._after[slot] = [final], 0
            error = None if self._budgets is None else self._budgets.judge([(self._indices[slot], [], lambda: final)])
            if error is not None:
                raise error
        self._say_exhausted(slot, 1)
        self._ended |= {self._indices[slot]}

    def _leave_vacant(self, slot: int) -> None:
        """Goes on from ``slot``, for which there is no member left."""
        self._pass_on()

    def _drop_delivered(self) -> None:
        """Passes over what an old state calls delivered, where there are such states."""

    def _rest(self) -> None:
        """Called when all members have ended. May be called again."""

    @property
    def num_ready(self) -> int:
        """How many elements were fetched and not delivered."""
        return sum([len(member.ready) for member in [*self._members.values()]])

    def _take(self, n: int) -> list[Any]:
        if self._undropped:
            self._drop_delivered()
        if n == 1 and (block := self._take_ready()):
            return block
        before = self._position()
        taken: list[tuple[int, Fetched]] = []
        try:
            failure = self._collect(n, taken)
            if failure is None and self._budgets is not None:
                failure = self._over_budget(taken)
            if failure is not None:
                self._put_back(taken)
                self._set_position(before)
                if self._budgets is not None and n > 1 and isinstance(failure(), OneByOne):
                    return self._take_singly(n)
            elements = [fetched[0] for _, fetched in taken]
            if elements:
                self._last_turn = before
        except BaseException:
            self._set_position(before)
            self._forget()
            raise
        if failure is not None:
            try:
                raise failure()
            finally:
                del failure  # it may have the error, whose traceback refers to this frame
        return elements

    def _take_singly(self, n: int) -> list[Any]:
        elements: list[Any] = []
        while len(elements) < n and (element := self._take(1)):
            elements += element
        return elements

    def _take_ready(self) -> list[Any]:
        """What ``_collect`` would take first, in a block, if that is ready; nothing otherwise. It is quick."""
        if not self._members:
            return []
        slot = self._slot
        after, member = self._after[slot], self._members.get(self._indices[slot])
        if member is None or after is None or self._exhausted[slot]:
            return []
        try:
            if not member.ready and not member.make_ready():
                return []
            element, states, which = member.ready[0]
            self._after[slot] = states, which
            self._last_turn = slot, after
            self._slot = (slot + 1) % self._cycle_length
            member.ready.popleft()
        except BaseException:  # an interrupt in the middle
            self._slot, self._after[slot] = slot, after
            self._forget()
            raise
        return [element]

    def _collect(self, n: int, taken: list[tuple[int, Fetched]]) -> Failure | None:
        """Takes elements until there are ``n``, or the end, or a failure, which is returned."""
        num_vacant = 0  # slots in a row that will remain so
        after, cycle_length = self._after, self._cycle_length
        while len(taken) < n and num_vacant < cycle_length:
            slot = self._slot
            index = self._indices[slot]
            member = self._members.get(index)
            if member is not None and member.ready and after[slot] is not None:
                num_vacant = 0
                fetched = member.ready.popleft()
                taken.append((index, fetched))
                after[slot] = fetched[1], fetched[2]
                if self._exhausted[slot]:
                    self._say_exhausted(slot, 0)
                self._slot = (slot + 1) % cycle_length
            elif after[slot] is None or index in self._ended:
                if self._num_opened == self._num_members:
                    num_vacant += 1
                    self._leave_vacant(slot)
                elif (failure := self._refill(slot)) is not None:
                    return failure
            elif member is None or (member.failure is None and not member.has_ended):
                self._fetch(slot, n - len(taken))
            elif member.failure is not None:
                return member.reported()
            else:
                was_said = self._exhausted[slot]  # by a state, so that its turn was over then
                self._end(slot)
                if not was_said:
                    num_vacant = 0
                    self._pass_on()
        if len(taken) < n:
            self._rest()
        return None

    def judge_by(self, tolerances: Sequence[Any], *, is_common: bool = False) -> None:
        """Judges what is delivered by what steps upstream tolerate; by nothing: somebody else does."""
        told = partial(tell_of_faults, self)
        self._budgets = LaneBudgets(tolerances, self._states, told, is_common=is_common) if tolerances else None
        if tolerances:
            self._counts_faults = True
            vars(self)["_take_ready"] = list  # nothing is, before it is judged

    def _states(self) -> list[Any]:
        """Where each member is."""
        return [None if after is None else after[0][after[1]] for after in self._after]

    def _judge_anew(self) -> None:
        if self._budgets is not None:
            self._budgets.restart()

    def _over_budget(self, taken: list[tuple[int, Fetched]]) -> Failure | None:
        """Why what was taken must not be delivered."""
        delivered = [(index, states, partial(operator.getitem, states, which)) for index, (_, states, which) in taken]
        error = self._budgets.judge(delivered)
        return None if error is None else lambda: error

    def _put_back(self, taken: list[tuple[int, Fetched]]) -> None:
        for index, fetched in reversed(taken):
            if index in self._members:  # else it is computed again
                self._members[index].ready.appendleft(fetched)

    def _return_to(self, mark: Any) -> None:
        if mark != self._position():  # else what is ready stays so, and so does an error
            self._forget()
            self._set_position(mark)
            self._judge_anew()

    def _forget(self) -> None:
        """Drops all members, which will be made again where the position says; of none it is known that it has ended."""
        self._members, self._ended = {}, frozenset()

    def _go_to(self, cycle: CycleState) -> None:
        # Grain may say "exhausted" of a member that is not: it is asked, and the flag stays until it gives an element.
        indices, exhausted = tuple(cycle.indices), tuple(cycle.exhausted)
        after: list[After | None] = [None if state is None else ([state], 0) for state in cycle.states]
        self._forget()
        # Nothing is called from here on, so that no interrupt comes in between.
        self._slot, self._num_opened = cycle.slot, cycle.num_opened
        self._indices, self._exhausted, self._after[:] = indices, exhausted, after
        self._future_states, self._undropped = cycle.future_states, {}

    def _move_to(self, state: Any) -> None:
        try:
            self._restore(state)  # which changes nothing before all of it has succeeded
        except BaseException as error:
            note_interrupt(self, error)
            raise
        self._failed_state, self._is_consistent = None, True
        self._forget_last()

    def _skip(self) -> None:
        if self._collect(1, []) is not None and self._skip_failed(self._slot):
            self._pass_on()
        if self._budgets is not None:
            self._budgets.pass_skipped()
