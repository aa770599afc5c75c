"""Which components a mixture has drawn its last elements of, for steps behind it that hold some of them.

Guarantees:

1. Numbers are kept by position in the mixture, for those drawn last, at least ``_LEAST`` of them; what is asked for and is not
   there is ``None``, nothing else.
2. One thread notes, another one may ask: a list grows at its end, is cut only where what follows is drawn again, and is replaced
   by another when it has become too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.dataset.bases.iterator import BlockIterator
from gristmill.dataset.states.mixtures import is_mixture

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

    def delivered(self, start: int, stop: int, rows: Sequence[Sequence[int]]) -> list[dict[str, int]] | None:
        """Which elements of each component were delivered with the first rows: with none, with one, and so on.

        Args:
            start: the position of the first element that is held.
            stop: that behind the last one.
            rows: the positions of the elements of each.

        Returns:
            numbers whose first binary digit is 1, and then, for each element of the component, says whether it was delivered, or
            passed over when it was drawn.
        """
        first, drawn = self._kept
        if start < first:
            return None
        held = [(position, i) for position, i in enumerate(drawn[start - first : stop - first], start) if i is not None]
        nums: dict[int, int] = {}
        bits: dict[int, tuple[int, int]] = {}  # at each position: the component and its bit
        masks: dict[int, int] = {}
        for position, i in reversed(held):
            component = max(i, ~i)
            bits[position] = component, 1 << nums.get(component, 0)
            nums[component] = nums.get(component, 0) + 1
            masks[component] = masks.get(component, 0) | (bits[position][1] if i < 0 else 0)
        found = [{i: masks[i] | 1 << nums[i] for i in sorted(nums)}]
        for row in rows:
            masks = {**found[-1]}
            for position in row:
                component, bit = bits[position]
                masks[component] |= bit
            found.append(masks)
        return [{self._names[i]: mask for i, mask in masks.items()} for masks in found]


def draws_before(it: Any, state: Any) -> Draws | None:
    """What the mixture right before ``it``, whose state is ``state``, has drawn; ``None`` if there is something else in between.

    Steps that look at every element alone, and have nothing in their state, may be there.
    """
    if not is_mixture(state):
        return None
    while isinstance(it, BlockIterator) and it._flow in ("one_to_one", "dropping") and len(it._parents) == 1:
        it = it._parents[0]
    draws = getattr(it, "_draws", None)
    return draws if isinstance(draws, Draws) else None
