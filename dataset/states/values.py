"""States of iterators as values: copies, the states between two, and Grain's layout for iterators
that take turns.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeAlias

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_counts, plain_int, shown, state_count, state_list
from gristmill.dataset.states.old import refuse_old_interleave

_UNCHANGEABLE = frozenset((int, str, bool, float, bytes, NoneType))
_DIGITS = re.compile("[0-9]{1,18}")

# an element, states, and which of them is the one after it
Fetched: TypeAlias = tuple[Any, Sequence[Any], int]


class LinearStates(Sequence[Any]):
    """The states after each of ``num`` elements, all of whose counts grow by one with every
    element.
    """

    def __init__(self, before: Any, num: int) -> None:
        self._before = before
        self._num = num

    def __len__(self) -> int:
        return self._num

    def __reduce__(self) -> Any:
        return LinearStates, (self._before, self._num)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            start, stop, _ = i.indices(self._num)
            return LinearStates(
                advanced(self._before, start) if start else self._before, max(0, stop - start)
            )
        return advanced(self._before, 1 + (i if 0 <= i < self._num else range(self._num)[i]))

    @classmethod
    def between(cls, before: object, after: object, num: int) -> LinearStates | None:
        """Return the states on the way from one state to another, if all counts in them have grown
        by ``num``.
        """
        return cls(before, num) if before is not None and advanced(before, num) == after else None


def advanced(state: object, num: int) -> Any:
    """Return ``state`` with all its integers increased."""
    if type(state) is int:
        return state + num
    if type(state) is dict:
        return {
            key: value + num if type(value) is int else advanced(value, num)
            for key, value in state.items()
        }
    return [advanced(value, num) for value in state] if type(state) is list else state


def copied(state: Any) -> Any:
    """Return a copy of a state, for a caller that may change it."""
    kind = type(state)
    if kind is dict:  # a call for each number would take most of the time
        copies = state.copy()
        for key, value in state.items():
            if type(value) not in _UNCHANGEABLE:
                copies[key] = copied(value)
        return copies
    if kind is list or kind is tuple:
        return kind([value if type(value) in _UNCHANGEABLE else copied(value) for value in state])
    return state if kind in _UNCHANGEABLE else copy.deepcopy(state)


def is_same(state: object, known: object) -> bool:
    """Return true if ``state``, of a user, is ``known``, which a ``get_state`` returned.

    1.0 and ``True`` are not the same as 1. States of Grain have no records of choices, which is the
    same as empty records.
    """
    state, known = _without_empty_records(state), _without_empty_records(known)
    return bool(state == known) and repr(state) == repr(known)


def _without_empty_records(state: object) -> Any:
    if type(state) is dict:
        pairs = [pair for pair in state.items() if pair != ("choices", {})]
        return {key: _without_empty_records(value) for key, value in pairs}
    return [*map(_without_empty_records, state)] if type(state) is list else state


def given(state: object) -> Any:
    """Return a copy of a state passed to ``set_state``, as ``get_state`` may return it: NumPy's
    numbers as built-in ones.

    Raises:
        StateMismatchError: it is nested too deeply to be one.
    """
    try:
        return _given(state)
    except RecursionError:
        raise StateMismatchError(
            f"a state must be nested less deeply than {shown(state)}"
        ) from None


def _given(state: Any) -> Any:
    if type(state) is dict:
        return {key: _given(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)([_given(value) for value in state])
    if isinstance(state, np.integer | np.floating | np.bool_):
        return state.item()
    return copied(state)


@dataclass
class CycleState:
    """The state of an iterator that draws from several others in turn: the index of the next one,
    and the state of each.
    """

    slot: int  # of the cycle, whose turn it is
    num_opened: int  # datasets that have been put into slots
    indices: Sequence[int]  # of the dataset in each slot
    states: list[Any]  # of its iterator; ``None``: no dataset
    exhausted: Sequence[int]  # 1: it has ended
    # of datasets that will be opened, by index
    future_states: Mapping[int, Any] = field(default_factory=dict)

    def as_state(self, *, owns_states: bool = False) -> dict[str, Any]:
        """Return the state that is saved; ``states`` are copied into it unless no other object
        refers to them.
        """
        return {
            "next_index_in_cycle": self.slot,
            "next_index_in_datasets": self.num_opened,
            "iterators_in_use_indices": [*self.indices],
            "iterators_in_use_states": self.states if owns_states else copied(self.states),
            "exhausted": [*self.exhausted],
            "future_states": copied(self.future_states),
        }

    @classmethod
    def parse(cls, state: Any, owner: object, length: int, meaning: str) -> CycleState:
        """Return the parts of ``state``, copied; ``length`` is that of the cycle, and ``meaning``
        says what decides it.

        Raises:
            StateMismatchError: they cannot be those of a cycle of this length.
        """
        refuse_old_interleave(state, owner)
        slot = state_count(state, "next_index_in_cycle", owner)
        num_opened = state_count(state, "next_index_in_datasets", owner)
        given_indices, given_states, given_flags = [
            state_list(state, key, owner, length, meaning)
            for key in ("iterators_in_use_indices", "iterators_in_use_states", "exhausted")
        ]
        if slot >= max(1, length):
            raise StateMismatchError(
                f"next_index_in_cycle in the state of {owner} must be below {length}, {meaning},"
                f" got {shown(slot)}"
            )
        indices = plain_counts(given_indices)
        exhausted = plain_counts(
            [int(flag) if isinstance(flag, bool | np.bool_) else flag for flag in given_flags]
        )
        if indices is None:
            raise StateMismatchError(
                f"iterators_in_use_indices in the state of {owner} must be non-negative integers,"
                f" got {shown(given_indices)}"
            )
        if exhausted is None or any([flag > 1 for flag in exhausted]):
            raise StateMismatchError(
                f"exhausted in the state of {owner} must have only 0 and 1, got"
                f" {shown(given_flags)}"
            )
        future_states = states_by_index(
            state.get("future_states", {}), f"future_states in the state of {owner}"
        )
        return cls(slot, num_opened, indices, given(given_states), exhausted, future_states)

    def of_datasets(self, num_datasets: int) -> list[dict[str, Any]]:
        """Return for each dataset true if it has ended, and its state; ``None`` at its beginning or
        after its end.
        """
        found: list[dict[str, Any]] = [
            {"exhausted": int(i < self.num_opened), "state": None} for i in range(num_datasets)
        ]
        for i, state in self.future_states.items():
            if self.num_opened <= i < num_datasets:
                found[i] = {"exhausted": int(state is None), "state": copied(state)}
        for i, state, flag in zip(self.indices, self.states, self.exhausted, strict=True):
            if state is not None and i < self.num_opened:
                found[i] = {"exhausted": flag, "state": None if flag else copied(state)}
        return found


def states_by_index(states: object, name: str) -> dict[int, Any]:
    """Return the states of datasets by their index, which JSON made text."""
    found: dict[int, Any] = {}
    if isinstance(states, Mapping):
        for key, state in states.items():
            index = plain_int(int(key) if isinstance(key, str) and _DIGITS.fullmatch(key) else key)
            if index is None or index < 0 or index in found:
                break
            found[index] = given(state)
    if not isinstance(states, Mapping) or len(found) < len(states):
        raise StateMismatchError(
            f"{name} must be a mapping of indices of datasets to states, got {shown(states)}"
        )
    return found
