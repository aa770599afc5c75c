"""Positions ``0 … length-1`` shared out among parts of exact sizes, each in order, without memory.

One part after the other is taken out of what is left. Of the part and the rest, the smaller one has
one position in each of as many runs of nearly equal lengths, which a keyed hash of the run chooses;
the larger one has the others. So every stretch has its share of each part, every position is as
likely as any other to be in a part, and parts are in the order of positions.

Source: stratified sampling; the sizes are those of largest remainders (Hamilton's method).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gristmill.core.keyed_hash import mixed


def largest_remainders(length: int, shares: Sequence[Fraction]) -> list[int]:
    """Returns ``length`` divided in proportion to ``shares``, which sum to 1: rounded down, and one
    more where most was lost.

    Example:
        >>> largest_remainders(10, [Fraction(2, 3), Fraction(1, 6), Fraction(1, 6)])
        [7, 2, 1]
    """
    exact = [length * share for share in shares]
    sizes = [int(size) for size in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: sizes[i] - exact[i])
    for i in by_remainder[: length - sum(sizes)]:
        sizes[i] += 1
    return sizes


class Apportionment:
    """Which positions belong to which part.

    Args:
        sizes: of the parts; their sum is the number of positions.
        seed: of the choice, a non-negative integer below ``2**64``.

    Example:
        >>> apportionment = Apportionment([6, 2], seed=0)
        >>> [
        ...     [apportionment.position(part, i) for i in range(size)]
        ...     for part, size in enumerate([6, 2])
        ... ]
        [[1, 2, 3, 4, 5, 6], [0, 7]]
    """

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self.sizes = tuple(sizes)
        self._seed = seed
        self.length = sum(sizes)
        self._left = [self.length]  # before a part is taken out
        for size in self.sizes:
            self._left.append(self._left[-1] - size)

    def size(self, part: int) -> int:
        """Returns the number of positions of a part."""
        return self.sizes[part]

    @property
    def fits_int64(self) -> bool:
        """True if all arithmetic of ``position`` fits into int64."""
        return self.length < 2**31

    def position(self, part: int, index: Any) -> Any:
        """Returns the position of element ``index`` of a part: of an ``int``, or of each entry of
        an array.
        """
        for level in range(part, -1, -1):
            index = self._among(level, index, in_part=level == part)
        return index

    def _among(self, level: int, index: Any, *, in_part: bool) -> Any:
        """Returns the position, in the union of both, of element ``index`` of part ``level`` or of
        the rest without it.
        """
        length, size, rest = self._left[level], self.sizes[level], self._left[level + 1]
        if not (rest if in_part else size):  # the other is empty
            return index
        is_part_chosen = size <= rest
        chosen, others = (size, rest) if is_part_chosen else (rest, size)
        if in_part == is_part_chosen:
            first = index * length // chosen
            return first + self._choice(level, index, first, chosen)
        run = ((index + 1) * chosen + others - 1) // others - 1
        first = run * length // chosen
        offset = index - (first - run)
        return first + offset + (offset >= self._choice(level, run, first, chosen))

    def _choice(self, level: int, run: Any, first: Any, num_runs: int) -> Any:
        """Returns which position of ``run`` is the one that is chosen."""
        size = (run + 1) * self._left[level] // num_runs - first
        chosen = mixed(run, mixed(level, self._seed))
        if isinstance(size, np.ndarray) and size.dtype != object:
            return (chosen % size.astype(np.uint64)).astype(np.int64)
        return chosen % size
