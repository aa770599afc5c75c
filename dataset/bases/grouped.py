"""The bases of iterators whose outputs come in groups, each made of one or several elements of the parent."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    snapshot,
)
from gristmill.dataset.states.mixtures import drawn_until, has_mixtures
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied

T = TypeVar("T")
S = TypeVar("S")  # what decides how a group is made, besides the elements


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
