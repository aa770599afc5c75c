"""What a running mixture has drawn of its components, changed in place."""

from __future__ import annotations

from typing import Any

from gristmill.dataset.tally import Tally


class DrawCounts:
    """The numbers of a ``Tally``, which is their frozen form.

    Args:
        frozen: where to begin.
    """

    __slots__ = ("elements", "ended", "epochs", "lengths", "targets", "whole")

    def __init__(self, frozen: Tally) -> None:
        self.elements, self.lengths, self.epochs = [*frozen.elements], [*frozen.lengths], [*frozen.epochs]
        self.ended, self.targets, self.whole = {*frozen.ended}, [*frozen.targets], frozen.whole

    def frozen(self) -> Tally:
        """Return the numbers of now."""
        numbers = tuple(self.elements), tuple(self.lengths), tuple(self.epochs)
        return Tally(*numbers, frozenset(self.ended), tuple(self.targets), self.whole)

    def draw(self, i: int, length: int, aims: Any) -> None:
        """Count an element of component ``i``; ``aims`` are the components among which its length is shared, with weights."""
        self.elements[i] += 1
        self.lengths[i] += length
        if self.ended:
            self.ended.discard(i)
        if aims:
            targets, whole = self.targets, self.whole
            total = sum([weight for _, weight in aims])
            for component, weight in aims:
                targets[component] += weight * whole // total * length

    def end(self, i: int) -> None:
        """Component ``i`` has no more elements."""
        self.ended.add(i)

    def restart(self, i: int) -> None:
        """Component ``i`` begins its next epoch, of which no element has come."""
        self.epochs[i] += 1
        self.ended.add(i)

    def behind(self, i: int) -> int:
        """Return how far a component is before its target; negative: behind it."""
        return self.lengths[i] * self.whole - self.targets[i]
