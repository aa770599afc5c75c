"""States of iterators as values: copies, the states between two, and Grain's layout for iterators that take turns."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import NoneType
from typing import Any, TypeAlias

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import state_count, state_field
from gristmill.dataset.iterator import BlockIterator, DatasetIterator

Fetched: TypeAlias = tuple[Any, Sequence[Any], int]  # an element, states, and which of them is the one after it


class LinearStates(Sequence[Any]):
    """The states after each of ``num`` elements, all of whose counts grow by one with every element."""

    def __init__(self, before: Any, num: int) -> None:
        self._before = before
        self._num = num

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, i: Any) -> Any:
        return _advanced(self._before, range(self._num)[i] + 1)

    @classmethod
    def between(cls, before: Any, after: Any, num: int) -> LinearStates | None:
        """The states on the way from one state to another, if all counts in them have grown by ``num``."""
        return cls(before, num) if before is not None and _advanced(before, num) == after else None


def _advanced(state: Any, num: int) -> Any:
    """``state`` with all its integers increased."""
    if type(state) is int:
        return state + num
    if type(state) is dict:
        return {key: _advanced(value, num) for key, value in state.items()}
    return [_advanced(value, num) for value in state] if type(state) is list else state


def is_ours(it: DatasetIterator[Any]) -> bool:
    """Whether no user's iterator is among ``it`` and those upstream."""
    return isinstance(it, BlockIterator) and all([is_ours(parent) for parent in it._parents])


def copied(state: Any) -> Any:
    """A copy of a state, for whoever may change it."""
    if type(state) is dict:
        return {key: copied(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)([copied(value) for value in state])
    return state if type(state) in (int, str, bool, float, bytes, NoneType) else copy.deepcopy(state)


@dataclass
class CycleState:
    """What an iterator that takes elements from several others in turn saves: whose turn it is, and where each of them is."""

    slot: int  # of the cycle, whose turn it is
    num_opened: int  # datasets that have been put into slots
    indices: list[int]  # of the dataset in each slot
    states: list[Any]  # of its iterator; ``None``: no dataset
    exhausted: list[int]  # 1: it has ended
    future_states: dict[int, Any] = field(default_factory=dict)  # of datasets that will be opened, by index

    def as_state(self) -> dict[str, Any]:
        return {
            "next_index_in_cycle": self.slot,
            "next_index_in_datasets": self.num_opened,
            "iterators_in_use_indices": [*self.indices],
            "iterators_in_use_states": copied(self.states),
            "exhausted": [*self.exhausted],
            "future_states": copied(self.future_states),
        }

    @classmethod
    def parse(cls, state: Any, owner: object, length: int, meaning: str) -> CycleState:
        """The parts of ``state``, copied; ``length`` is that of the cycle, and ``meaning`` says what decides it.

        Raises:
            StateMismatchError: they cannot be those of a cycle of this length.
        """
        slot = state_count(state, "next_index_in_cycle", owner)
        num_opened = state_count(state, "next_index_in_datasets", owner)
        lists = [state_field(state, key, owner) for key in ("iterators_in_use_indices", "iterators_in_use_states", "exhausted")]
        for key, values in zip(("iterators_in_use_indices", "iterators_in_use_states", "exhausted"), lists, strict=True):
            if not isinstance(values, list | tuple) or len(values) != length:
                raise StateMismatchError(
                    f"{key} must be a list of {length}, {meaning} of {owner}, got {values!r:.200}: "
                    "that must be the same when a state is restored"
                )
        indices, states, exhausted = lists
        if slot >= max(1, length):
            raise StateMismatchError(f"next_index_in_cycle must be below {length}, {meaning}, got {slot}")
        if any([not isinstance(i, Integral) or i < 0 for i in indices]):
            raise StateMismatchError(f"iterators_in_use_indices must be non-negative integers, got {indices!r:.200}")
        if any([flag not in (0, 1) for flag in exhausted]):
            raise StateMismatchError(f"exhausted must have only 0 and 1, got {exhausted!r:.200}")
        future_states = _by_index(state.get("future_states", {}))
        return cls(slot, num_opened, [*map(int, indices)], copied([*states]), [*map(int, exhausted)], copied(future_states))


def _by_index(states: Any) -> dict[int, Any]:
    """States of datasets by their index, which JSON made text."""
    try:
        return {operator.index(int(i) if isinstance(i, str) else i): state for i, state in states.items()}
    except (AttributeError, TypeError, ValueError):
        raise StateMismatchError(f"future_states must be a mapping of dataset indices to states, got {states!r:.200}") from None
