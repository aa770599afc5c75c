"""Reads the entries of mixtures anywhere in a state: the elements drawn so far and their weights.

A stage that replays elements of a mixture has a record of its draws in its own state (see
``engine.choices``). Without one, dropping a component is refused if the stage may hold elements of
it.

A mixture is found by its entries, as JSON; so states of nested stages, lanes and users' iterators
are looked into as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gristmill.core.state import plain_int
from gristmill.dataset.engine.draws import LOST, SavedDraws

OWN = "proportions"  # the weights of the mixture when the state was taken
# What the states of steps say of the elements they hold, if these are any.
_HELD = frozenset(
    {
        "next_row",
        "pos_in_window",
        "next_index_in_buffer",
        "elements_from_buffer_after_checkpoint",
        "batch_idx",
    }
)
_HELD |= {"rows", "held", "position", "skipped"}
_NUM_DELIVERED = (
    "next_row",
    "elements_from_buffer_after_checkpoint",
)  # of groups that are others without some elements


def is_mixture(state: object) -> bool:
    """True if ``state`` is that of a mixture with names."""
    return (
        isinstance(state, Mapping)
        and "index" in state
        and "stop" in state
        and isinstance(state.get("parents"), Mapping)
    )


def mixtures_in(state: Any, *, with_lists: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yields the states of mixtures with names (``with_lists``: of others, too) in ``state``,
    without those inside of others.
    """
    if is_mixture(state) or (
        with_lists and isinstance(state, Mapping) and {"parents", "index", "stop"} <= state.keys()
    ):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from mixtures_in(value, with_lists=with_lists)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from mixtures_in(value, with_lists=with_lists)


def without_components(state: object, names: frozenset[str], *, is_held: bool = False) -> Any:
    """Returns ``state`` without the positions of components with these names.

    Args:
        state: of an iterator.
        names: of the components.
        is_held: whether a stage downstream of that iterator replays elements of it.
    """
    if isinstance(state, list | tuple):
        return type(state)([without_components(value, names, is_held=is_held) for value in state])
    if not isinstance(state, Mapping):
        return state
    if is_mixture(state):
        return _mixture_without(state, names, is_held=is_held)
    changed = None
    if isinstance(state.get("choices"), Mapping):
        changed = None if is_held else _replaying_without(state, names)
        if changed is None:
            records = {key: _losing(record, names) for key, record in state["choices"].items()}
            state = {**state, "choices": records}
    is_held = is_held or (changed is None and _holds_some(state))
    return {
        key: without_components(value, names, is_held=is_held)
        for key, value in (changed or state).items()
    }


def _holds_some(state: Mapping[str, Any]) -> bool:
    """True if the stage with this state replays elements of which a part was delivered."""
    left: Any = state.get("remainder_slices")
    slices = [*left.values()] if isinstance(left, Mapping) else left or []
    return any([state.get(key) for key in _HELD]) or any([part != [-1, -1] for part in slices])


def _mixture_without(
    state: Mapping[str, Any], names: frozenset[str], *, is_held: bool
) -> dict[str, Any]:
    parents = {str(name): value for name, value in state["parents"].items()}
    left = {name: value for name, value in parents.items() if name not in names}
    return {
        **state,
        "parents": {
            name: without_components(value, names, is_held=is_held) for name, value in left.items()
        },
    }


def _replaying_without(state: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any] | None:
    """Returns the state of a stage with a record of what mixtures have drawn, such that it
    continues without components with these names.

    ``None`` if it holds elements of these, and it is not known which others.
    """
    records = {
        key: draws
        for key, record in state["choices"].items()
        if (draws := _draws(record)) is not None
    }
    without = {key: draws.without(names) for key, draws in records.items()}
    changed = {**state}
    if _holds_some(state) and names & _names_drawn(state):
        delivered = [key for key, draws in records.items() if draws.delivery is not None]
        num = next((plain_int(state[name]) for name in _NUM_DELIVERED if name in state), 0)
        parts = [value for value in state.values() if is_mixture(value)]
        if len(delivered) != 1 or num is None or len(parts) != 1 or state.get("skipped"):
            return None
        (key,) = delivered
        delivery = records[key].delivery
        without[key] = without[key].passing(num)  # a new group begins with what was not delivered
        changed.update({name: 0 for name in _NUM_DELIVERED if name in state})
        left = None if delivery is None else delivery.left
        if "remainder_slices" in state and not _cuts_on(
            changed, without[key].are_there(), left, num
        ):
            return None
    changed["choices"] = {
        **state["choices"],
        **{key: draws.saved() for key, draws in without.items()},
    }
    return changed


def _losing(record: Any, names: frozenset[str]) -> Any:
    """Returns a record of choices that cannot be restored without components with these names if it
    has draws of them.
    """
    draws = _draws(record)
    lost = [] if draws is None else sorted(names & draws.names_drawn())
    return {**record, LOST: lost} if lost else record


def _draws(record: object) -> SavedDraws | None:
    """Returns the draws of a mixture that a record describes; ``None`` if it describes something
    else.
    """
    try:
        return SavedDraws.read(record) if isinstance(record, Mapping) else None
    except (ValueError, TypeError, KeyError):
        return None  # restoring says so


def _names_drawn(state: object) -> set[str]:
    """Returns the components of mixtures of which a stage, or stages upstream, hold elements."""
    if isinstance(state, Mapping):
        draws = _draws(state)
        return (
            set().union(*map(_names_drawn, state.values()))
            if draws is None
            else draws.names_drawn()
        )
    return set().union(*map(_names_drawn, state)) if isinstance(state, list | tuple) else set()


def _cuts_on(state: dict[str, Any], are_there: Sequence[bool], cut: object, num_rows: int) -> bool:
    """Changes the state of a stage that cuts elements such that it continues where it has cut one,
    if that is still there.

    Args:
        state: the state.
        are_there: for each element that the stage will get, whether its component was not dropped.
        cut: what is left of the last element, where a row was delivered.
        num_rows: how many rows were delivered.

    Returns:
        whether that is possible: others must not come first.
    """
    place = -1 if num_rows else 0  # of the one that was cut
    slices = state["remainder_slices"]
    if not isinstance(slices, Mapping):
        return False
    left = cut if num_rows else slices
    if left is None or not are_there or not are_there[place]:
        left = {name: [-1, -1] for name in slices}
    elif any(are_there[:place]):
        return False
    state["remainder_slices"] = left
    return True


def as_names(drop: object) -> frozenset[str]:
    """Returns names of components to drop."""
    if isinstance(drop, str) or not isinstance(drop, Collection):
        raise TypeError(f"drop must be a set of names of components, got {drop!r:.200}")
    return frozenset(map(str, drop))
