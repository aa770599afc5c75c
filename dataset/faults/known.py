"""The counts of a stage in a state, and counts of one run in a state of another."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_int, shown
from gristmill.dataset.faults.counts import Faults


def total_in(faults: object, owner: object) -> int:
    """Return the total in the counts of a stage.

    Raises:
        StateMismatchError: these are no counts of faults.
    """
    total = plain_int(faults.get("total")) if isinstance(faults, Mapping) else None
    if total is None or total < 0:
        raise StateMismatchError(
            f"faults in the state of {owner} must say how many there were (total), got"
            f" {shown(faults)}"
        )
    return total


def with_counts_since(state: object, before: object, now: object) -> None:
    """Change the counts of faults in ``state``, a copy, from those since ``before``, an earlier
    state of the same run, to those since ``now``, one of this run before the same elements.
    """
    if isinstance(state, dict) and isinstance(before, dict) and isinstance(now, dict):
        known = now.get("faults")
        if type(known) is list and known and type(known[0]) is Faults:
            for faults, former, at in zip(state["faults"], before["faults"], known, strict=True):
                faults["total"] += at["total"] - former["total"]
            if type(now.get("tried")) is list:
                del state["tried"]  # it follows from the others
            for key in ("before", "tried"):
                if key in state or type(now.get(key)) is int:
                    state[key] = state.get(key, 0) + now.get(key, 0) - before.get(key, 0)
        for key in state.keys() & before.keys() & now.keys() - {"faults"}:
            with_counts_since(state[key], before[key], now[key])
    elif isinstance(state, list) and isinstance(before, list) and isinstance(now, list):
        for parts in zip(state, before, now, strict=False):
            with_counts_since(*parts)
