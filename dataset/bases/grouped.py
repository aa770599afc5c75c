"""The bases of iterators whose outputs come in groups, each made of one or several elements of the parent."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    marked,
    return_to,
    skip_one,
    snapshot,
    state_to_refill,
)
from gristmill.dataset.drawn import turns_between
from gristmill.dataset.states.mixtures import drawn_until, has_mixtures
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.turns import TURNS, Turns
from gristmill.dataset.states.values import copied

T = TypeVar("T")
S = TypeVar("S")  # what decides how a group is made, besides the elements

FORGOTTEN: Any = object()  # in the place of an output that is left out, as its component was dropped


class Position(NamedTuple, Generic[S]):
    """Where an iterator of groups is.

    Args:
        parent: the parent's state before the group; ``None`` as long as nothing was read.
        start: what else decides the group.
        num_taken: outputs of the group that have been delivered.
        skipped: which elements are left out, counted from the state of the parent.
        turns: of which components of a mixture the elements are, as states say it; ``None``: that is not known, or not needed.
    """

    parent: Any
    start: S
    num_taken: int = 0
    skipped: tuple[int, ...] = ()
    turns: Any = None


class GroupedIterator(BlockIterator[T], Generic[T, S]):
    """A group, the parent's state before it, and how many of its outputs were delivered: that is the position.

    What was handed out is not kept: its user may change it. To continue from a state, the group is made again, and what was
    delivered of it is left out. A stage says what its states look like: ``_saved``, ``_position_in`` and ``_held``.

    How groups are made is written twice. Who knows how many elements the next one takes is a ``SizedGroupsIterator``: the parent
    stands between groups, so that an error is undone by setting it back, and an output costs no more than an item of a list.
    Who does not is a ``PackIterator``: it has read ahead, nothing of which an error in the middle of a group may lose.
    """

    _flow = "stateful"
    _is_costly_to_restore = True
    _refills = True
    _has_mixtures: bool | None = None  # whether states of the parent have those of mixtures; ``None``: that was not looked at
    _behind: Any = None  # the parent's state behind the group that was made last, if it has those of mixtures

    def __init__(self, parent: DatasetIterator[Any]) -> None:
        super().__init__(parent)
        self._source = parent

    def _until(self, before: Any, after: Callable[[], Any], *, is_last: bool = False) -> Any:
        """``before``, the parent's state before a group, such that mixtures draw the group as they have drawn it.

        Args:
            before: the state.
            after: gives the state behind what was drawn of the group; not called without need.
            is_last: whether the group ends because the parent has ended.
        """
        if self._has_mixtures is None:
            self._has_mixtures = has_mixtures(before)
        if not self._has_mixtures:
            return before
        self._behind = after()
        return drawn_until(before, self._behind, is_last=is_last)

    @abc.abstractmethod
    def _saved(self, parent: Any, num_taken: int) -> dict[str, Any]:
        """The state in the group before which that of the parent is ``parent``."""

    @abc.abstractmethod
    def _position_in(self, state: Any) -> Position[S]:
        """The position that ``state`` says, an error if it says none."""

    @abc.abstractmethod
    def _held(self, at: Position[S]) -> str | None:
        """What is made again at a position; ``None`` if that begins with elements of which nothing was delivered."""

    @abc.abstractmethod
    def _begin(self, at: Position[S]) -> None:
        """Is at a group that is to be made; the parent is where it starts."""

    def _restore(self, state: Any) -> None:
        self._go_to(self._position_in(state))

    def _go_to(self, at: Position[S]) -> None:
        with refilling(self, self._held(at)):
            self._source.set_state(copied(at.parent))
        # A text does not say whose faults they are; weights may be others than those of the state.
        if self._counts_faults or has_mixtures(at.parent):
            at = at._replace(parent=copied(snapshot(self._source)))
        self._begin(at)


class SizedGroupsIterator(GroupedIterator[T, S]):
    """Takes groups of the parent whose number of elements is known, and gives out what they are made into.

    A stage also writes ``_make``.
    """

    # What is left of the group, the next output last. ``None``: the group is to be made, and the parent is where it starts.
    _left: list[Any] | None = None
    _start: Any = None  # the parent's state before the group
    _num_taken = 0  # outputs of the group that were delivered
    _turns: Any = None  # of which components of a mixture the elements of the group are, when that is known
    _has_ended = False

    @abc.abstractmethod
    def _make(self, num_delivered: int) -> tuple[list[Any], bool] | None:
        """Takes the next group from the parent: what is left of it, the next output last, and whether it is the last group.

        ``None``: there was none, and there will be none.
        """

    def _skip_group(self) -> None:
        """Moves past the elements of the parent that the next group is made of, which fail."""
        skip_one(self._source)

    def _is_used_up(self) -> None:
        """Called when the last output of a group has been delivered."""

    def _take_groups(self, n: int, taken: list[Any]) -> None:
        """Adds whole groups to ``taken``, ``n`` outputs at most, where that is quicker."""

    def _take(self, n: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < n:
            if not self._left:
                self._take_groups(n - len(taken) - 1, taken)
                if not self._read():
                    break
                continue
            part = self._left[len(taken) - n :]
            self._num_taken += len(part)  # before they are taken away, in case of an interrupt
            del self._left[-len(part) :]
            taken += part[::-1] if self._turns is None else [x for x in part[::-1] if x is not FORGOTTEN]
            if not self._left:
                self._is_used_up()
        return taken

    def _read(self) -> bool:
        """Makes the next group, or again the one that a state points into; false at the end."""
        if self._has_ended:
            return False
        delivered = self._num_to_leave_out
        start, before = snapshot(self._source), marked(self._source)
        try:
            made = self._make(delivered)
        except BaseException:
            return_to(self._source, before)
            raise
        if made is None:
            self._left, self._start, self._has_ended = [], start, True
            self._turns = self._behind = None
            return False
        left, is_last = made
        # In this order, so that an interrupt in between finds a state that is not that of what is in memory, or none there.
        self._num_taken = delivered
        self._turns = self._turns if delivered else None  # which a state has told
        self._start, self._has_ended = self._until(start, partial(snapshot, self._source), is_last=is_last), is_last
        self._left = left
        return bool(left) or not is_last

    @property
    def _num_to_leave_out(self) -> int:
        """How many outputs of the group to be made were delivered before."""
        return self._num_taken if self._left is None else 0

    def get_state(self) -> Any:
        source = self._source
        is_there = self._left is None or self._start is None
        parent = source.get_state() if is_there else state_to_refill(source, self._start, source.get_state)
        state = self._saved(parent, self._num_taken)
        if self._num_taken and (turns := self._turns_told()) is not None:
            state[TURNS] = turns
        return state

    def _turns_told(self) -> Any:
        if self._turns is None and self._left is not None and self._behind is not None:
            turns = self._turns_of_group(self._start, self._behind)
            self._turns = None if turns is None else turns.saved()
        return None if self._turns is None else copied(self._turns)

    def _turns_of_group(self, before: Any, behind: Any) -> Turns | None:
        """What the mixture before this has drawn for the group, which is between two states of the parent."""
        return turns_between(self._source, before, behind)

    def _restore(self, state: Any) -> None:
        turns = Turns.of(state, self)
        super()._restore(state)
        self._turns = None if turns is None else turns.saved()

    def _begin(self, at: Position[S]) -> None:
        self._begin_after(at.num_taken)

    def _begin_after(self, num_taken: int) -> None:
        """Is at a group to be made, of which so many outputs were delivered; the parent is where it starts."""
        self._left, self._num_taken, self._has_ended = None, num_taken, False

    def _skip(self) -> None:
        while not self._left:
            before = marked(self._source)
            try:
                if not self._read():
                    return
            except Exception:
                return_to(self._source, before)
                self._skip_group()
                self._begin_after(0)
                return
        self._take(1)
