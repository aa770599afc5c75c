"""What a running mixture has drawn of its components, changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gristmill.dataset.tally import Tally


Aims: TypeAlias = Sequence[tuple[int, int]]  # components with their shares of a length, in parts of ``whole``


class DrawCounts:
    """The numbers of a ``Tally``, which is their frozen form.

    Args:
        frozen: where to begin.
    """

    __slots__ = ("_aims", "_length", "elements", "ended", "epochs", "lengths", "targets", "whole")

    def __init__(self, frozen: Tally) -> None:
        self.elements, self.lengths, self.epochs = [*frozen.elements], [*frozen.lengths], [*frozen.epochs]
        self.ended, self.targets, self.whole = {*frozen.ended}, [*frozen.targets], frozen.whole
        # A length that was drawn under these shares, and is not in the targets.
        self._length = 0
        self._aims: Aims = ()

    def frozen(self) -> Tally:
        """Return the numbers of now."""
        self._aim_for(self._aims)
        numbers = tuple(self.elements), tuple(self.lengths), tuple(self.epochs)
        return Tally(*numbers, frozenset(self.ended), tuple(self.targets), self.whole)

    def _aim_for(self, aims: Aims) -> None:
        """Let the lengths that follow be shared as ``aims`` says."""
        if self._length:
            length, targets = self._length, self.targets
            for i, share in self._aims:
                targets[i] += share * length
        self._length, self._aims = 0, aims

    def draw(self, i: int, length: int, aims: Aims | None) -> None:
        """Count an element of component ``i``, whose length is shared among ``aims``."""
        self.elements[i] += 1
        self.lengths[i] += length
        if self.ended:
            self.ended.discard(i)
        if aims:
            if aims is not self._aims:
                self._aim_for(aims)
            self._length += length

    def end(self, i: int) -> None:
        """Component ``i`` has no more elements."""
        self.ended.add(i)

    def restart(self, i: int) -> None:
        """Component ``i`` begins its next epoch, of which no element has come."""
        self.epochs[i] += 1
        self.ended.add(i)

    def furthest_behind(self, aims: Aims) -> int:
        """Return which of the components in ``aims`` is furthest behind its target, the first one of several."""
        if aims is not self._aims:
            self._aim_for(aims)
        length, lengths, targets, whole = self._length, self.lengths, self.targets, self.whole
        return min([(lengths[i] * whole - targets[i] - share * length, i) for i, share in aims])[1]
