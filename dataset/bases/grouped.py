"""The base of iterators whose elements come in groups, each made of one or several elements of the parent."""

from __future__ import annotations

import abc
from typing import Any, TypeVar

from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, marked, return_to, skip_one, snapshot
from gristmill.dataset.states.values import copied

T = TypeVar("T")


class GroupedIterator(BlockIterator[T]):
    """A group, the parent's state before it, and how many of its elements were delivered: that is the position.

    What was handed out is not kept: its user may change it. To continue from a state, the group is made again, and what was
    delivered of it is left out. A stage writes ``_make``, ``get_state`` and ``_restore``.
    """

    _flow = "stateful"
    _refills = True
    # What is left of the group, the next element last. ``None``: the group is to be made, and the parent is where it starts.
    _left: list[Any] | None = None
    _start: Any = None  # the parent's state before the group
    _position = 0  # elements of the group that were delivered
    _has_ended = False

    def __init__(self, parent: DatasetIterator[Any]) -> None:
        super().__init__(parent)
        self._source = parent

    @abc.abstractmethod
    def _make(self, num_delivered: int) -> tuple[list[Any], bool] | None:
        """Takes the next group from the parent: what is left of it, the next element last, and whether it is the last group.

        ``None``: there was none, and there will be none.
        """

    def _skip_group(self) -> None:
        """Moves past the elements of the parent that the next group is made of, which fail."""
        skip_one(self._source)

    def _is_used_up(self) -> None:
        """Called when the last element of a group has been delivered."""

    def _take_groups(self, n: int, taken: list[Any]) -> None:
        """Adds whole groups to ``taken``, ``n`` elements at most, where that is quicker."""

    def _take(self, n: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < n:
            if not self._left:
                self._take_groups(n - len(taken) - 1, taken)
                if not self._read():
                    break
                continue
            part = self._left[len(taken) - n :]
            self._position += len(part)  # before they are taken away, in case of an interrupt
            del self._left[-len(part) :]
            taken += part[::-1]
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
            return False
        left, is_last = made
        # In this order, so that an interrupt in between finds a state that is not that of what is in memory, or none there.
        self._position = delivered
        self._start, self._has_ended = start, is_last
        self._left = left
        return bool(left) or not is_last

    @property
    def _num_to_leave_out(self) -> int:
        """How many elements of the group to be made were delivered before."""
        return self._position if self._left is None else 0

    def _start_state(self) -> Any:
        """The parent's state before the group."""
        return self._source.get_state() if self._left is None or self._start is None else copied(self._start)

    def _go_to(self, position: int) -> None:
        """Is at a group to be made, of which so many elements were delivered; the parent is where it starts."""
        self._left, self._position, self._has_ended = None, position, False

    def _skip(self) -> None:
        while not self._left:
            before = marked(self._source)
            try:
                if not self._read():
                    return
            except Exception:
                return_to(self._source, before)
                self._skip_group()
                self._go_to(0)
                return
        self._take(1)
