"""The states of shards whose elements are taken in turn, and what is said of those that cannot be
saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import state_count
from gristmill.dataset.states.old import parse_old_workers_state, refuse_old_interleave
from gristmill.dataset.states.values import CycleState, given


def parse_shards(state: Any, owner: object, num_shards: int) -> CycleState:
    """Return the parts of a state of as many shards.

    Raises:
        StateMismatchError: it cannot be one.
    """
    refuse_old_interleave(state, owner)
    count = state_count(state, "next_index_in_datasets", owner)
    if count != num_shards:
        raise StateMismatchError(
            f"the state was taken with {count} workers, threads or lanes, and"
            f" {str(owner).partition('(')[0]} has {num_shards}: restore it with {count}, too, or"
            f" with num_lanes={count}, which any number of workers computes"
        )
    cycle = CycleState.parse(state, owner, count, "the number of workers")
    if cycle.indices != list(range(count)):
        raise StateMismatchError(
            f"iterators_in_use_indices in the state of {owner} must be {list(range(count))}, got"
            f" {cycle.indices!r:.200}"
        )
    if cycle.future_states:
        raise StateMismatchError(
            f"future_states in the state of {owner} must be empty, got"
            f" {state['future_states']!r:.200}"
        )
    return cycle


def parse_old_shards(
    state: object, owner: object, beginnings: Sequence[Any]
) -> tuple[CycleState, list[int]]:
    """Return the parts of a state of Grain before 0.2.16, and how many elements of each shard were
    delivered after it.

    Args:
        state: the state.
        owner: the future owner, for errors.
        beginnings: the states of the shards before their first elements.

    Raises:
        StateMismatchError: it cannot be one.
        NotImplementedError: shards have no states.
    """
    slot, values, nums = parse_old_workers_state(state, owner, len(beginnings))
    states = [
        first if value is None else given(value)
        for first, value in zip(beginnings, values, strict=True)
    ]
    if None in states:
        raise stateless(owner)
    return shards_state(slot % len(states), states), nums


def shards_state(slot: int, states: list[Any]) -> CycleState:
    """Return the state in which ``slot`` is next, and no shard has ended."""
    return CycleState(slot, len(states), list(range(len(states))), states, [0] * len(states))


def stateless(owner: object) -> NotImplementedError:
    """Return the error of shards without states."""
    return NotImplementedError(
        f"{owner} has no state to save or to continue from: the pipeline before it is iterated by"
        " plain Python iterators. Return a DatasetIterator from __iter__ to save its position"
    )


def uneven(owner: object, num_shards: int) -> NotImplementedError:
    """Return the error of shards whose positions do not follow from an index."""
    return NotImplementedError(
        f"{owner} has no index for its elements: its {num_shards} shares are not of one length, so"
        " that their positions do not follow from the number of elements that came before. Use"
        " get_state and set_state"
    )


def indices_of_shards(index: int, num_shards: int) -> list[int]:
    """Return how many of the first ``index`` elements each shard has, if none but the first ones is
    longer, by one.
    """
    return [-((i - index) // num_shards) for i in range(num_shards)]
