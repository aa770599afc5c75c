"""Weights under which a mixture draws elements again that were drawn before they were changed (see ``states/mixtures.py``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown
from gristmill.dataset.plans import Plan, plan_of
from gristmill.dataset.states.mixtures import DRAWN, OWN, PASSED, bits_of
from gristmill.dataset.states.refilling import refuse_refilling


class Piece(NamedTuple):
    """Positions up to ``stop``, which are drawn under a plan of then.

    Args:
        stop: the first position that is not.
        plan: of components then.
        places: of each of them, which one it is here; ``None``: it is no longer there.
    """

    stop: int
    plan: Plan
    places: Sequence[int | None]


def pieces_of(state: Mapping[str, Any], own: Plan, owner: object, *, follows: bool) -> tuple[Piece, ...]:
    """The pieces that a state says.

    Args:
        state: of a mixture with names.
        own: the plan of the mixture that it is restored into.
        owner: that mixture, for messages.
        follows: whether it follows from a plan alone what is drawn.

    Raises:
        StateMismatchError: the state says something else, or nothing, and a step behind the mixture needs it; or it needs a
            component that is no longer there.
    """
    described = own.described()
    saved, drawn = state.get(OWN, described), state.get(DRAWN)
    index = state["index"]
    try:
        then = saved if saved == described else plan_of(saved).described()
        plans = [(int(stop), own if plan == described else plan_of(plan)) for stop, plan in drawn or () if stop > index]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise StateMismatchError(
            f"{OWN} and {DRAWN} in the state of {owner} must be a mapping of names to non-negative integers, or what describes a "
            f"schedule, and a list of positions and such, got {shown(saved)} and {shown(drawn)}"
        ) from error
    if drawn is None:
        names = {str(name) for name in state["parents"]}
        if names != set(own.names):
            refuse_refilling(owner, f"other components ({shown([*own.names])}, not {shown(sorted(names))})")
        if then != described:
            refuse_refilling(owner, f"other weights ({shown(described)}, not {shown(saved)})")
    forgotten = forgotten_in(state)
    places = {name: i for i, name in enumerate(own.names) if name not in forgotten}
    pieces: list[Piece] = []
    for stop, plan in plans:
        start = pieces[-1].stop if pieces else index
        _check_all_there(plan, start, stop, {*places, *forgotten}, owner, follows=follows)
        pieces.append(Piece(stop, plan, [places.get(name) for name in plan.names]))
    return tuple(pieces)


def forgotten_in(state: Mapping[str, Any]) -> set[str]:
    """The components whose elements are left out where elements are drawn again, as a state says."""
    passed = state.get(PASSED)
    return {str(name) for name, bits in passed.items() if bits is None} if isinstance(passed, Mapping) else set()


def passed_in(state: Mapping[str, Any], names: Sequence[str], owner: object) -> dict[int, str]:
    """By component, which of its next elements are passed over, as a state says."""
    passed = state.get(PASSED, {})
    try:
        return {i: bits for i, name in enumerate(names) if (bits := bits_of(passed.get(name) or "1"))}
    except (ValueError, TypeError, AttributeError) as error:
        raise StateMismatchError(
            f"{PASSED} in the state of {owner} must be a mapping of names to hexadecimal numbers, got {shown(passed)}"
        ) from error


def _check_all_there(plan: Plan, start: int, stop: int, known: Collection[str], owner: object, *, follows: bool) -> None:
    gone = [i for i, name in enumerate(plan.names) if name not in known]
    if not gone:
        return
    nums = [b - a for a, b in zip(plan.counts(start), plan.counts(stop), strict=True)] if follows else plan.weights(start)
    names = [plan.names[i] for i in gone if nums[i]]
    if names:
        raise StateMismatchError(
            f"a step behind {owner} holds elements of components that the mixture does not have any more, {names!r:.200}, and "
            "it is not known which others it holds: it fills itself again, which needs them. Keep them in the mixture, with the "
            "weight 0 in a Schedule, until these elements have come; then they can be dropped"
        )
