"""What states say of mixtures, wherever in a state they are: up to where elements were drawn under which weights.

Guarantees for a state that is restored into a mixture with other weights or components:

1. A step that holds elements of a mixture (a window, bins, a batch that is being cut) saves the mixture's state before these, in
   which stands, under ``"drawn"``, up to which position they were drawn and under which weights: ``[[stop, weights], ...]``.
2. The mixture draws up to there under those weights, whoever asks: a thread that reads ahead, a worker, a step that fills itself
   again. So what is held comes again as it was, and nothing of it is skipped or comes twice.
3. From there on the weights are the mixture's own. A state that is saved before that has what is left of the list.
4. As the list is part of the state, none of this depends on when or where an iterator is restored.
5. What cannot be drawn again, elements of a component that is no longer there, is refused.

A mixture is found by its entries, as JSON; so states of nested steps, lanes and users' iterators are looked into as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

OWN = "proportions"  # the weights of the mixture when the state was taken
DRAWN = "drawn"
_PLACES = ("epoch", "iterators_in_use_indices")  # what must be the same in two states for what is in them to be the same iterator


def is_mixture(state: Any) -> bool:
    """Whether ``state`` is that of a mixture with names."""
    return isinstance(state, Mapping) and "index" in state and "stop" in state and isinstance(state.get("parents"), Mapping)


def mixtures_in(state: Any, *, with_lists: bool = False) -> Iterator[Mapping[str, Any]]:
    """The states of mixtures with names (``with_lists``: of others, too) in ``state``, those inside of others left out."""
    if is_mixture(state) or (with_lists and isinstance(state, Mapping) and {"parents", "index", "stop"} <= state.keys()):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from mixtures_in(value, with_lists=with_lists)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from mixtures_in(value, with_lists=with_lists)


def has_mixtures(state: Any) -> bool:
    """Whether there is a state of a mixture with names in ``state``."""
    return next(mixtures_in(state), None) is not None


def drawn_until(before: Any, after: Any, *, is_last: bool = False) -> Any:
    """``before``, the state of an iterator, in which every mixture knows that elements were drawn up to where it is in ``after``.

    Args:
        before: the state.
        after: that of the same iterator, later on.
        is_last: whether it was asked for another element then, in vain: so it is to end there again.
    """
    if isinstance(before, Mapping):
        if not isinstance(after, Mapping) or any([before.get(key) != after.get(key) for key in _PLACES]):
            after = {}  # what was opened meanwhile is another one
        marked = {key: drawn_until(value, after.get(key), is_last=is_last) for key, value in before.items()}
        if OWN in before and is_mixture(before):
            marked[DRAWN] = _pieces(before, after, is_last)
        return marked
    if isinstance(before, list | tuple):
        others = after if isinstance(after, list | tuple) and len(after) == len(before) else [None] * len(before)
        return type(before)([drawn_until(x, y, is_last=is_last) for x, y in zip(before, others, strict=True)])
    return before


def _pieces(before: Mapping[str, Any], after: Mapping[str, Any], is_last: bool) -> Any:
    if not is_mixture(after):
        return None  # it is not known
    known = before.get(DRAWN, [])
    further = after.get(DRAWN, [])
    if known is None or further is None:
        return None
    stop = max([after["index"] + is_last, *[piece[0] for piece in further[-1:]]])
    start = known[-1][0] if known else before["index"]
    return [*known, [stop, before[OWN]]] if stop > start else [*known]


def without_components(state: Any, names: Collection[str]) -> Any:
    """``state`` without the positions of components with these names."""
    if isinstance(state, Mapping):
        kept = {key: without_components(value, names) for key, value in state.items()}
        if is_mixture(state):
            kept["parents"] = {name: value for name, value in kept["parents"].items() if str(name) not in names}
        return kept
    if isinstance(state, list | tuple):
        return type(state)([without_components(value, names) for value in state])
    return state


def as_names(drop: Any) -> frozenset[str]:
    """Names of components that are to be dropped."""
    if isinstance(drop, str) or not isinstance(drop, Collection):
        raise TypeError(f"drop must be a set of names of components, got {drop!r:.200}")
    return frozenset(map(str, drop))
