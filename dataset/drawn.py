"""Which components a mixture has drawn its last elements of, for steps behind it that hold some of them.

Guarantees:

1. Numbers are kept by position in the mixture, for those drawn last, at least ``_LEAST`` of them; what is asked for and is not
   there is ``None``, nothing else.
2. One thread notes, another one may ask: a list grows at its end, is cut only where what follows is drawn again, and is replaced
   by another when it has become too long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from gristmill.dataset.bases.iterator import BlockIterator
from gristmill.dataset.states.mixtures import is_mixture
from gristmill.dataset.states.turns import Turns

_LEAST = 1 << 16


class Draws:
    """The components of the last elements of a mixture.

    Args:
        names: of the components.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._kept: tuple[int, list[int | None]] = (0, [])  # the first position, and what was drawn from there on

    def note(self, position: int, components: list[int]) -> None:
        """The elements from ``position`` on are of these; the complement of a number: the element was passed over."""
        first, drawn = self._kept
        if position < first:
            self._kept = first, drawn = position, []
        del drawn[position - first :]
        drawn += [None] * (position - first - len(drawn))  # turns of components that are not there any more
        drawn += components
        if len(drawn) > 2 * _LEAST:
            self._kept = first + len(drawn) - _LEAST, drawn[-_LEAST:]

    def go_to(self, position: int) -> None:
        """The next turn is that at ``position``, wherever that is."""
        first, drawn = self._kept
        if not first <= position <= first + len(drawn):
            self._kept = position, []

    def turns(self, start: int, stop: int, taken: Collection[int] | None = None) -> Turns | None:
        """Of which components the elements between two positions are; ``None`` if that is not known any more.

        Args:
            start: the position of the first one.
            stop: that behind the last one.
            taken: the positions of those that a step holds; the others were left out before it. ``None``: it holds all of them.
        """
        first, drawn = self._kept
        if start < first:
            return None
        draws = drawn[start - first : stop - first]
        if taken is not None:
            draws = [i if i is None or i < 0 or position in taken else ~i for position, i in enumerate(draws, start)]
        places = {i: place for place, i in enumerate(sorted({max(i, ~i) for i in draws if i is not None}))}
        found = [None if i is None else places[i] if i >= 0 else ~places[~i] for i in draws]
        return Turns(start, tuple([self._names[i] for i in places]), tuple(found))


def turns_between(it: Any, before: Any, behind: Any, taken: Collection[int] | None = None) -> Turns | None:
    """Of which components a mixture has drawn the elements between two states of ``it``, if that is right behind the mixture.

    Args:
        it: the iterator.
        before: the first state.
        behind: the second one.
        taken: the positions of those that ``it`` has given, if these are not all.
    """
    draws = draws_before(it, before)
    return None if draws is None or not is_mixture(behind) else draws.turns(before["index"], behind["index"], taken)


def draws_before(it: Any, state: Any) -> Draws | None:
    """What the mixture right before ``it``, whose state is ``state``, has drawn; ``None`` if there is something else in between.

    Steps that look at every element alone, and have nothing in their state, may be there.
    """
    if not is_mixture(state):
        return None
    draws = getattr([it, *_single_steps(it)][-1], "_draws", None)
    return draws if isinstance(draws, Draws) else None


def _single_steps(it: Any) -> list[Any]:
    """What is before ``it``, as far as every step looks at each element alone."""
    steps = []
    while isinstance(it, BlockIterator) and it._flow in ("one_to_one", "dropping") and len(it._parents) == 1:
        it = it._parents[0]
        steps.append(it)
    return steps
