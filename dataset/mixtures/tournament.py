"""The least of many numbers that fall at different rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Runner(NamedTuple):
    """A number ``start - share * length``; of equal ones the least ``name`` comes first."""

    start: int
    name: int
    share: int


class Tournament:
    """Finds the least number at a length that only grows, in a time that hardly depends on how many
    there are.

    The numbers are the leaves of a binary tree. Each node knows the least one below it, and the
    length up to which that remains the least (a kinetic tournament). Source: J. Basch, L. Guibas,
    J. Hershberger, "Data Structures for Mobile Data", 1999.

    Args:
        runners: the numbers, at least one.
        length: where to begin.
    """

    def __init__(self, runners: Sequence[Runner], length: int) -> None:
        num = len(runners)
        self._leaves = {runner.name: num + i for i, runner in enumerate(runners)}
        # By node: the root is 1, and the children of node k are 2 k and 2 k + 1.
        self._least: list[Runner] = [*runners, *runners]
        self._until: list[float] = [math.inf] * (2 * num)
        for node in range(num - 1, 0, -1):
            self._compare(node, length)

    def least(self, length: int) -> int:
        """Return the name of the least number at ``length``."""
        if self._until[1] <= length:
            self._move_on(1, length)
        return self._least[1].name

    def change(self, name: int, start: int, length: int) -> None:
        """Let the number of this name, if there is one, be another one from ``length`` on."""
        node = self._leaves.get(name, 0)
        if not node:
            return
        self._least[node] = self._least[node]._replace(start=start)
        while node > 1:
            node //= 2
            self._compare(node, length)

    def _move_on(self, node: int, length: int) -> None:
        for child in (2 * node, 2 * node + 1):
            if self._until[child] <= length:
                self._move_on(child, length)
        self._compare(node, length)

    def _compare(self, node: int, length: int) -> None:
        first, other = self._least[2 * node], self._least[2 * node + 1]
        ahead = other.start - first.start + (first.share - other.share) * length
        if ahead < 0 or (ahead == 0 and other.name < first.name):
            first, other = other, first
        until = min(self._until[2 * node], self._until[2 * node + 1])
        faster = other.share - first.share
        if faster > 0:
            apart = other.start - first.start
            until = min(
                until, -(-apart // faster) if other.name < first.name else apart // faster + 1
            )
        self._least[node], self._until[node] = first, until
