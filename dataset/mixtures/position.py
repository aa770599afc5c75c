"""The position of a mixture of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gristmill.dataset.engine.stream import Pos
from gristmill.dataset.mixtures.draw_counts import Aims, DrawCounts, RunningCounts

# What happened at an entry of a log.
DRAWN, ENDED, RESTARTED, LAST = range(4)


class MixturePos(NamedTuple):
    """The position of a mixture. Immutable.

    Attributes:
        parts: the positions of the components.
        num_asked: how often a component was asked for an element.
        has_ended: no more elements follow.
        counts: what was drawn of each; ``None``: it follows from the index.
    """

    parts: tuple[Pos, ...]
    num_asked: int = 0
    has_ended: bool = False
    counts: DrawCounts | None = None

    def after(self, log: Sequence[Any]) -> MixturePos:
        """Return where the mixture is after the entries of a log, which has at least one."""
        parts, has_ended = [*self.parts], self.has_ended
        counts = None if self.counts is None else RunningCounts(self.counts)
        for i, part, _, length, kind, aims in log:
            if i is not None:
                parts[i] = part
            has_ended = kind == LAST
            if counts is not None:
                count_entry(counts, i, length, kind, aims)
        frozen = None if counts is None else counts.frozen()
        return MixturePos(tuple(parts), log[-1][2], has_ended, frozen)


def count_entry(
    counts: RunningCounts, i: int | None, length: int, kind: int, aims: Aims | None
) -> None:
    """Count what an entry of a log says."""
    if i is None or kind == LAST:
        return
    if kind == DRAWN:
        counts.draw(i, length, aims)
    elif kind == ENDED:
        counts.end(i)
    else:
        counts.restart(i)
