"""States that Grain wrote before 0.2.16.

``mp_prefetch`` noted the states of its workers now and then, and counted the elements since:
``{"workers_state": {"0": state or null, ...}, "iterations_to_skip": {"0": number, ...},
"last_worker_index": worker}``. Interleaved datasets came in another order than today, so that their
states cannot be continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_counts, plain_int, shown, state_field


def is_old_workers_state(state: object) -> bool:
    """True if ``state`` is one of ``mp_prefetch``."""
    return isinstance(state, Mapping) and "workers_state" in state


def parse_old_workers_state(
    state: Any, owner: object, count: int
) -> tuple[int, list[Any], list[int]]:
    """Whose turn it is, the state of each worker (``None``: the beginning), and how many elements
    it has delivered since.

    Raises:
        StateMismatchError: it cannot be that of ``count`` workers.
    """
    keys = [str(i) for i in range(count)]
    found = []
    for name in ("workers_state", "iterations_to_skip"):
        values = state_field(state, name, owner)
        if not isinstance(values, Mapping) or set(values) != set(keys):
            raise StateMismatchError(
                f"{name} in the state of {owner} must have the keys {keys}, the workers, got"
                f" {shown(values)}: their number must be the same when a state is restored"
            )
        found.append([values[key] for key in keys])
    last = plain_int(state_field(state, "last_worker_index", owner))
    if last is None or not -1 <= last < count:
        raise StateMismatchError(
            f"last_worker_index in the state of {owner} must be an integer in [-1, {count - 1}], "
            f"got {shown(state['last_worker_index'])}"
        )
    states, given_nums = found
    nums = plain_counts(given_nums)
    if nums is None:
        raise StateMismatchError(
            f"iterations_to_skip in the state of {owner} must be non-negative integers, got"
            f" {shown(given_nums)}"
        )
    return (last + 1) % count, states, nums


def old_workers_state(slot: int, states: Sequence[Any], nums: Sequence[int]) -> dict[str, Any]:
    """Returns the state that ``parse_old_workers_state`` reads."""
    return {
        "workers_state": {str(i): state for i, state in enumerate(states)},
        "iterations_to_skip": {str(i): num for i, num in enumerate(nums)},
        "last_worker_index": slot - 1,
    }


def refuse_old_interleave(state: object, owner: object) -> None:
    """Raises ``StateMismatchError`` if ``state`` is of an interleave."""
    if (
        isinstance(state, Mapping)
        and "prefetch_ds_iter_states" in state
        and "exhausted" not in state
    ):
        raise StateMismatchError(
            f"the state of {owner} was written by Grain before 0.2.16 (it has the key"
            " 'prefetch_ds_iter_states'), where interleaved datasets came in another order: it"
            " cannot be continued"
        )
