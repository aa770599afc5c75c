"""Weights under which a mixture draws elements again that were drawn before they were changed (see
``states/mixtures.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown
from gristmill.dataset.engine.draws import needed
from gristmill.dataset.mixtures.plans import Plan, plan_of
from gristmill.dataset.states.draw_log import DrawLog
from gristmill.dataset.states.mixtures import DRAWN, OWN, forgotten_in
from gristmill.dataset.states.replaying import refuse_replay


class EarlierPlan(NamedTuple):
    """Positions up to ``stop``, which are drawn under the plan valid there.

    Args:
        stop: the first position that is not.
        plan: of components then.
        places: of each of them, which one it is here; ``None``: it is no longer there.
    """

    stop: int
    plan: Plan
    places: Sequence[int | None]


def earlier_plans_of(
    state: Mapping[str, Any], own: Plan, owner: object, *, follows: bool
) -> tuple[EarlierPlan, ...]:
    """Returns the pieces that a state says.

    Args:
        state: of a mixture with names.
        own: the plan of the mixture that it is restored into.
        owner: that mixture, for messages.
        follows: whether it follows from a plan alone what is drawn.

    Raises:
        StateMismatchError: the state says something else, or nothing, and a stage downstream of the
            mixture needs it; or it needs a component that is no longer there.
    """
    described = own.described()
    saved, drawn = state.get(OWN, described), state.get(DRAWN)
    index = state["index"]
    try:
        then = saved if saved == described else plan_of(saved).described()
        plans = [
            (int(stop), own if plan == described else plan_of(plan))
            for stop, plan in drawn or ()
            if stop > index
        ]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise StateMismatchError(
            f"{OWN} and {DRAWN} in the state of {owner} must be a mapping of names to non-negative"
            " integers, or what describes a schedule, and a list of positions and such, got"
            f" {shown(saved)} and {shown(drawn)}"
        ) from error
    if drawn is None:
        names = {str(name) for name in state["parents"]}
        if names != set(own.names):
            refuse_replay(
                owner, f"other components ({shown([*own.names])}, not {shown(sorted(names))})"
            )
        if then != described:
            refuse_replay(owner, f"other weights ({shown(described)}, not {shown(saved)})")
    forgotten = forgotten_in(state)
    places = {name: i for i, name in enumerate(own.names) if name not in forgotten}
    earlier_plans: list[EarlierPlan] = []
    for stop, plan in plans:
        start = earlier_plans[-1].stop if earlier_plans else index
        _check_all_there(plan, start, stop, {*places, *forgotten}, owner, follows=follows)
        earlier_plans.append(EarlierPlan(stop, plan, [places.get(name) for name in plan.names]))
    return tuple(earlier_plans)


def draw_log_in(state: Mapping[str, Any], names: Sequence[str], owner: object) -> DrawLog | None:
    """Returns which elements are drawn again one after the other, as a state says, by the places of
    components in ``names``.

    Raises:
        StateMismatchError: the state says something else, or of components that are no longer
            there.
    """
    log = DrawLog.of(state, owner)
    if log is None:
        return None
    gone = [name for name in log.names if name is not None and name not in names]
    if gone:
        raise needed(gone, owner)
    places = [None if name is None else names.index(name) for name in log.names]
    draws = [
        None if i is None or (place := places[max(i, ~i)]) is None else place if i >= 0 else ~place
        for i in log.draws
    ]
    return log._replace(names=tuple(names), draws=tuple(draws), rows=())


def _check_all_there(
    plan: Plan, start: int, stop: int, known: Collection[str], owner: object, *, follows: bool
) -> None:
    gone = [i for i, name in enumerate(plan.names) if name not in known]
    if not gone:
        return
    nums = (
        [b - a for a, b in zip(plan.counts(start), plan.counts(stop), strict=True)]
        if follows
        else plan.weights(start)
    )
    names = [plan.names[i] for i in gone if nums[i]]
    if names:
        raise needed(names, owner)
