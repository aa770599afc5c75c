"""The base of iterators that number the elements that come by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import state_count, state_field
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, skip_one, state_at
from gristmill.dataset.bases.next_index import check_no_gaps, move_to_index
from gristmill.dataset.bases.origins import Place, place_of

T = TypeVar("T")


class CountingIterator(BlockIterator[T]):
    """One element for every element of the only parent; the state is the parent's and how many there were.

    A stage writes ``_take``, which adds to ``_count``.
    """

    _flow = "one_to_one"
    _count_key: ClassVar[str]  # what the count is called in the state

    def __init__(self, parent: DatasetIterator[Any]) -> None:
        super().__init__(parent)
        self._count = 0  # elements that arrived, in this worker

    def get_state(self) -> Any:
        return {"parent": self._parents[0].get_state(), self._count_key: self._count}

    def _restore(self, state: Any) -> None:
        count = state_count(state, self._count_key, self)
        self._parents[0].set_state(state_field(state, "parent", self))
        self._count = count

    def _mark(self) -> Any:
        return self._parents[0]._mark(), self._count

    def _return_to(self, mark: Any) -> None:
        parent, self._count = mark
        self._parents[0]._return_to(parent)

    def _state_at(self, mark: Any) -> Any:
        parent, count = mark
        return {"parent": state_at(self._parents[0], parent), self._count_key: count}

    def _place(self) -> Place | None:
        return place_of(self._parents[0])

    def _merged_state(self, states: Any) -> Any:
        key = self._count_key
        if isinstance(states, Mapping):
            raise StateMismatchError(f"states of single datasets do not tell the {key} of {self}")
        counts = {state_count(state, key, self) for state in states}
        if len(counts) != 1:
            raise StateMismatchError(
                f"{key} of {self} must be the same in all shards when their number changes, got {sorted(counts)}"
            )
        return {"parent": self._parent._merged_state([state_field(state, "parent", self) for state in states]), key: counts.pop()}

    def _get_next_index(self) -> int:
        return self._count

    def _set_next_index(self, index: int) -> None:
        check_no_gaps(self)
        move_to_index(self._parents[0], index)
        self._count = index

    def _pass_failed(self) -> bool:
        is_past: bool = self._parents[0]._pass_failed()
        self._count += is_past
        return is_past

    def _skip(self) -> None:
        skip_one(self._parents[0])
        self._count += 1
