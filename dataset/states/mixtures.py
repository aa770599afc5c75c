"""What states say of mixtures, wherever in a state they are: up to where elements were drawn under which weights.

Guarantees for a state that is restored into a mixture with other weights or components:

1. A step that holds elements of a mixture (a window, bins, a batch that is being cut) saves the mixture's state before these, in
   which stands, under ``"drawn"``, up to which position they were drawn and under which weights: ``[[stop, weights], ...]``.
2. The mixture draws up to there under those weights, whoever asks: a thread that reads ahead, a worker, a step that fills itself
   again. So what is held comes again as it was, and nothing of it is skipped or comes twice.
3. From there on the weights are the mixture's own. A state that is saved before that has what is left of the list.
4. As the list is part of the state, none of this depends on when or where an iterator is restored.
5. Bins also save, under ``"delivered"``, which elements of the group they hold were delivered, by component. When a component is
   dropped, they begin a new group, and the mixture passes over just these of the components that stay, which its state says under
   ``"passed"`` (``null`` for the dropped one): what was held of those comes once; what was held of the dropped one is forgotten.
6. Where that is not known (other steps, steps behind those bins that hold rows of them), dropping is refused: what is held of the
   dropped component cannot be drawn again.

A mixture is found by its entries, as JSON; so states of nested steps, lanes and users' iterators are looked into as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

OWN = "proportions"  # the weights of the mixture when the state was taken
DRAWN = "drawn"
PASSED = "passed"
DELIVERED = "delivered"
# What the states of steps say of the elements they hold, if these are any; of bins alone it is known which these are.
_HELD = frozenset(
    {"next_row", "pos_in_window", "next_index_in_buffer", "elements_from_buffer_after_checkpoint", "remainder_slices"}
)
_HELD |= {"batch_idx", "rows", "held", "position", "skipped"}
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


def without_components(state: Any, names: frozenset[str], *, is_held: bool = False) -> Any:
    """``state`` without the positions of components with these names.

    Args:
        state: of an iterator.
        names: of the components.
        is_held: whether a step behind that iterator takes elements of it again.
    """
    if isinstance(state, list | tuple):
        return type(state)([without_components(value, names, is_held=is_held) for value in state])
    if not isinstance(state, Mapping):
        return state
    if is_mixture(state):
        return _mixture_without(state, names, is_held=is_held)
    if not is_held:
        state = _beginning_anew(state, names)
    is_held = is_held or any([state.get(key) for key in _HELD])
    return {key: without_components(value, names, is_held=is_held) for key, value in state.items()}


def _mixture_without(state: Mapping[str, Any], names: frozenset[str], *, is_held: bool) -> dict[str, Any]:
    parents = {str(name): value for name, value in state["parents"].items()}
    passed = state.get(PASSED) or {}
    if not is_held and (passed or DRAWN in state):
        passed = {**passed, **dict.fromkeys(sorted(names & parents.keys()))}  # nothing was delivered of what was drawn
    is_held = is_held or any(passed.values())
    left = {name: value for name, value in parents.items() if name not in names}
    kept = {**state, "parents": {name: without_components(value, names, is_held=is_held) for name, value in left.items()}}
    if passed:  # ``None`` remains: what is forgotten by all
        kept[PASSED] = {name: bits for name, bits in passed.items() if name not in names or bits is None}
    return kept


def _beginning_anew(state: Mapping[str, Any], names: frozenset[str]) -> Mapping[str, Any]:
    """The state of bins such that they begin a new group with what they hold, if components of their mixture are in ``names``."""
    delivered: Any = state.get(DELIVERED)
    mixture: Any = state.get("parent")
    if not isinstance(delivered, Mapping) or not is_mixture(mixture) or state.get("skipped"):
        return state
    gone = {str(name) for name in mixture["parents"]} & names
    if not gone:
        return state
    try:
        num_gone = sum([len(bits_of(bits)) for name, bits in delivered.items() if name in gone])
    except (ValueError, TypeError):
        return state  # it is damaged, and what it holds is refused
    index = mixture["index"] + (num_gone if "whole" in mixture else 0)  # where it follows from that who is next, they are passed
    anew = {key: value for key, value in state.items() if key != DELIVERED}
    passed = {**mixture.get(PASSED, {}), **delivered}
    return {**anew, "next_row": 0, "parent": {**mixture, "index": index, PASSED: passed}}


def bits_of(text: Any) -> str:
    """A 0 or 1 for each of some elements, which ``text_of`` has written; ``ValueError`` or ``TypeError`` for anything else."""
    return f"{int(text, 16):b}"[1:]


def text_of(bits: str) -> str:
    """For a state: short."""
    return f"{int(f'1{bits}', 2):x}"


def as_names(drop: Any) -> frozenset[str]:
    """Names of components that are to be dropped."""
    if isinstance(drop, str) or not isinstance(drop, Collection):
        raise TypeError(f"drop must be a set of names of components, got {drop!r:.200}")
    return frozenset(map(str, drop))
