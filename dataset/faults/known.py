"""The entries of states about replayed elements, for stages that keep no record of choices.

In such a state, ``passed`` in the counts of a stage says what was skipped between the state and a
later one: ``until`` which element, how many were ``tried`` by then and the ``total``, and ``over``,
a list of ``[number of the element, *entry]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_counts, plain_int, shown
from gristmill.dataset.faults.counts import Faults, place_in
from gristmill.dataset.states.values import copied, given


class Known(NamedTuple):
    """The facts known about the elements before number ``until``.

    Args:
        until: the number.
        tried: how many were tried by then.
        total: how many had failed.
        skipped: by number, the entries of those that are skipped.
    """

    until: int
    tried: int
    total: int
    skipped: dict[int, list[list[Any]]]

    def entries(self, start: int) -> list[list[Any]]:
        """Return ``[number, *entry]`` of those that are skipped, from number ``start`` on."""
        return [
            [place, *entry]
            for place in sorted(self.skipped)
            if place >= start
            for entry in self.skipped[place]
        ]


def parse_counts(faults: Any, owner: Any) -> tuple[int, Known | None]:
    """Return the total in the counts of a stage, and what is known of elements that follow.

    Raises:
        StateMismatchError: these are no counts of faults.
    """
    total = plain_int(faults.get("total")) if isinstance(faults, Mapping) else None
    if total is None or total < 0:
        raise StateMismatchError(
            f"faults in the state of {owner} must say how many there were (total), got"
            f" {shown(faults)}"
        )
    passed = faults.get("passed")
    if passed is None:
        return total, None
    parts = passed if isinstance(passed, Mapping) else {}
    known, listed = (
        plain_counts([parts.get(key) for key in ("until", "tried", "total")]),
        parts.get("over"),
    )
    skipped: dict[int, list[list[Any]]] = {}
    if known is None or not isinstance(listed, list):
        known, listed = [0], [None]  # which is refused
    for entry in listed:
        numbers = plain_counts(entry[:2]) if isinstance(entry, list) and len(entry) == 3 else None
        if numbers is None:
            raise StateMismatchError(
                f"passed in the state of {owner} must list skipped elements, got {shown(passed)}"
            )
        skipped.setdefault(numbers[0], []).append([numbers[1], given(entry[2])])
    return total, Known(known[0], known[1], known[2], skipped)


def passed_in(known: Known | None, place: int) -> dict[str, Any]:
    """Return what a state at number ``place`` says of elements that follow."""
    if known is None or place >= known.until:
        return {}
    over = copied(known.entries(place))
    return {
        "passed": {"until": known.until, "tried": known.tried, "total": known.total, "over": over}
    }


def keep_known(state: Any, now: Any) -> Any:
    """Return ``state``, a copy of a later one than ``now``, with what is known there of elements
    that follow.
    """
    if isinstance(state, dict) and type(now) is dict:
        found, known = state.get("faults"), now.get("faults")
        if isinstance(found, list) and type(known) is list and known and type(known[0]) is Faults:
            place = place_in(state)
            for faults, at in zip(found, known, strict=True):
                if "passed" in at and at["passed"]["until"] > place:
                    over = [entry for entry in at["passed"]["over"] if entry[0] >= place]
                    faults["passed"] = {**at["passed"], "over": copied(over)}
        for key, value in state.items():
            if key != "faults":
                keep_known(value, now.get(key))
    elif isinstance(state, list) and type(now) is list:
        for value, value_now in zip(state, now, strict=False):
            keep_known(value, value_now)
    return state


def with_counts_since(state: Any, before: Any, now: Any) -> None:
    """Change the counts of faults in ``state``, which were made from ``before`` on, to those that
    were made from ``now`` on.

    Args:
        state: a copy of a state.
        before: an earlier one of the same run.
        now: one of this run, before the same elements.
    """
    if isinstance(state, dict) and isinstance(before, dict) and isinstance(now, dict):
        known = now.get("faults")
        if type(known) is list and known and type(known[0]) is Faults:
            for faults, former, at in zip(state["faults"], before["faults"], known, strict=True):
                faults["total"] += at["total"] - former["total"]
                faults.pop("passed", None)
            if type(now.get("tried")) is list:
                del state["tried"]  # it follows from the others
            for key in ("before", "tried"):
                if key in state or type(now.get(key)) is int:
                    state[key] = state.get(key, 0) + now.get(key, 0) - before.get(key, 0)
            keep_known(state, now)
        for key in state.keys() & before.keys() & now.keys() - {"faults"}:
            with_counts_since(state[key], before[key], now[key])
    elif isinstance(state, list) and isinstance(before, list) and isinstance(now, list):
        for parts in zip(state, before, now, strict=False):
            with_counts_since(*parts)
