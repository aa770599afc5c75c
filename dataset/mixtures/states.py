"""The states of mixtures of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown, state_count, state_field, state_flag, state_list
from gristmill.dataset.engine.draws import ELEMENT, needed
from gristmill.dataset.mixtures.draw_counts import DrawCounts
from gristmill.dataset.mixtures.plans import Plan, plan_of
from gristmill.dataset.mixtures.position import MixturePos
from gristmill.dataset.states.mixtures import OWN
from gristmill.dataset.states.replaying import refuse_replay

if TYPE_CHECKING:
    from gristmill.dataset.mixtures.stream import Mix

_NEW: Any = object()  # in place of the state of a new component


def saved(mix: Mix, at: MixturePos) -> Any:
    """Return the JSON-able state of a position."""
    states: Any = [mix.stream_in(i, at.counts).save(part) for i, part in enumerate(at.parts)]
    if mix.names is not None:
        states = dict(zip(mix.names, states, strict=True))
    state = {"parents": states, "index": at.num_asked, "stop": at.has_ended}
    if mix.names is not None and (mix.key or at.counts is not None):
        state[OWN] = mix.own.copy()  # Grain ignores the entry
    if at.counts is not None:
        state.update(at.counts.saved(mix.plan.names))
    return state


def loaded(mix: Mix, state: Any) -> MixturePos:
    """Return the position of a state.

    Raises:
        StateMismatchError: it is not the state of such a mixture.
    """
    states = state_field(state, "parents", mix)
    index = state_count(state, "index", mix)
    has_ended = state_flag(state, "stop", mix)
    if mix.names is None:
        states = state_list(state, "parents", mix, len(mix.parents), "the number of datasets")
    else:
        states = _states_by_name(states, mix.names, mix)
        _check_plan(state, mix.plan, mix)
        if mix.stop == "all" and _NEW in states:  # new components follow those that have ended
            has_ended = False
    counts = counts_in(mix, state, index)
    parents = [mix.parent_in(i, counts) for i in range(len(mix.parents))]
    parts = [
        parent.start() if s is _NEW else parent.load(s)
        for parent, s in zip(parents, states, strict=True)
    ]
    return MixturePos(tuple(parts), index, has_ended, counts)


def _check_plan(state: Mapping[str, Any], own: Plan, owner: object) -> None:
    """Raise ``StateMismatchError`` if the state is of a mixture of another plan, and a stage
    downstream that has no record of choices would get other elements by that.
    """
    described = own.described()
    saved = state.get(OWN, described)
    try:
        then = saved if saved == described else plan_of(saved).described()
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise StateMismatchError(
            f"{OWN} in the state of {owner} must be a mapping of names to non-negative integers, or"
            f" what describes a schedule, got {shown(saved)}"
        ) from error
    names = {str(name) for name in state["parents"]}
    if names != set(own.names):
        refuse_replay(
            owner, f"other components ({shown([*own.names])}, not {shown(sorted(names))})"
        )
    if then != described:
        refuse_replay(owner, f"other weights ({shown(described)}, not {shown(saved)})")


def counts_in(mix: Mix, state: Mapping[str, Any], index: int) -> DrawCounts | None:
    """Return what was drawn up to a state; ``None``: it follows from the index."""
    if "counts" in state or not (mix.is_plain or mix.names):
        return DrawCounts.read(state, mix.plan.names, mix.nothing.whole, mix)
    weights = state.get(OWN, mix.own if mix.is_plain else None)
    if mix.is_plain and weights == mix.own:
        return None
    # Nothing is known of states that do not have their weights.
    if weights is None:
        elements = {}
    else:
        elements = plan_of(weights).counts_by_name(index - state_flag(state, "stop", mix))
    counts = {i: elements.get(name, 0) for i, name in enumerate(mix.plan.names)}
    return mix.nothing.added(counts)


def counts_by_name(mix: Mix, counts: DrawCounts | None, index: int) -> dict[str, dict[str, int]]:
    """Return what was drawn of each component, for users."""
    return (counts or DrawCounts.of_elements(mix.plan.counts(index))).by_name(mix.plan.names)


def check_draw(choice: Any, mix: Mix) -> None:
    """Raise ``StateMismatchError`` unless ``choice``, of a state, may be a draw of a mixture."""
    try:
        plan_of(choice.weights)
    except (AttributeError, ValueError, TypeError) as error:
        text = f"a choice in the state of {mix} must be a draw of a mixture, got {shown(choice)}"
        raise StateMismatchError(text) from error
    if choice.kind == ELEMENT and choice.name is not None and choice.name not in mix.places:
        raise needed([choice.name], mix)


def _states_by_name(states: object, names: Sequence[str], owner: object) -> list[Any]:
    """Return the states of the components, ``_NEW`` for those that are new."""
    if not isinstance(states, Mapping):
        raise StateMismatchError(
            f"parents in the state of {owner} must be a mapping of names to states, got"
            f" {shown(states)}"
        )
    by_name = {str(name): state for name, state in states.items()}
    gone = sorted(by_name.keys() - set(names))
    if gone:
        raise StateMismatchError(
            f"the state of {owner} has the positions of components that the mixture does not have,"
            f" {gone!r:.200}. If these are to be forgotten, say so: it.set_state(state,"
            f" drop={set(gone)!r:.200}), or CheckpointRestore(it, drop=...); or keep them in the"
            " mixture, with the weight 0 in a Schedule"
        )
    return [by_name.get(name, _NEW) for name in names]
