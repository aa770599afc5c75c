"""The counts of faults in the states of shards, whose number may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_counts, shown
from gristmill.dataset.bases.node import tolerances
from gristmill.dataset.engine.stream import Pos, Stream
from gristmill.dataset.faults.budget import Limits
from gristmill.dataset.faults.counts import Faults, FaultTotals, fault_totals
from gristmill.dataset.states.values import copied

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode


class ShardFaults:
    """The faults of one shard. It continues with the counts in the state that it is given: the same
    if the number of shards is; else the same rate of its own elements, rounded up.

    Args:
        ds: the dataset.
        is_common: true if every shard, and every lane of it, reads all elements.
    """

    def __init__(self, ds: DatasetNode, is_common: bool) -> None:
        self._limits: list[Limits] = [tolerance.limits for tolerance in tolerances(ds)]
        self._is_common = is_common

    def found_at(self, stream: Stream, pos: Pos) -> tuple[Faults, ...]:
        """Return the counts at a position of the stream that delivers the elements of the shard."""
        if not self._limits:
            return ()
        found = [*fault_totals(stream.save(pos))]
        return tuple([self._joined(limits, _of_step(found, limits)) for limits in self._limits])

    def _joined(self, limits: Limits, lanes: Sequence[FaultTotals]) -> Faults:
        if self._is_common:
            lanes = [max(lanes, key=lambda totals: totals.tried)]
        total = sum([totals.total for totals in lanes])
        tried = sum([totals.tried for totals in lanes])
        recent = [skipped for totals in lanes for skipped in totals.recent]
        return Faults({"total": total, "tried": tried}, limits, tuple(recent))

    def with_counts(self, stream: Stream, pos: Pos, counts: Sequence[Faults]) -> Pos:
        """Return such a position, reached where the counts were, that continues with ``counts``."""
        if not self._limits:
            return pos
        state = copied(stream.save(pos))
        found = [*fault_totals(state)]
        for before, limits in zip(counts, self._limits, strict=True):
            lanes = _of_step(found, limits)
            total, tried, own = (
                before["total"],
                before["tried"],
                self._joined(limits, lanes)["tried"],
            )
            if tried not in (0, own):
                total = -(-total * own // tried)
            for i, totals in enumerate(lanes):
                totals.faults["total"] = total if i == 0 or self._is_common else 0
        return stream.load(state)

    def load(self, found: object, owner: object) -> tuple[Faults, ...]:
        """Return the counts in a state of the shard; zeros for ``None``.

        Raises:
            StateMismatchError: these are no counts.
        """
        if not self._limits:
            return ()
        counts = [(0, 0)] * len(self._limits) if found is None else self._parsed(found, owner)
        pairs = zip(counts, self._limits, strict=True)
        return tuple(
            [Faults({"total": total, "tried": tried}, limits) for (total, tried), limits in pairs]
        )

    def merged(self, states: Sequence[Any], owner: object) -> list[dict[str, int]]:
        """Return the counts of all shards in one."""
        if not self._limits:
            return []
        parsed = [
            self._parsed(state["faults"], owner)
            for state in states
            if state.get("faults") is not None
        ]
        parsed = parsed or [[(0, 0)] * len(self._limits)]
        return [
            {"total": sum([t for t, _ in step]), "tried": sum([n for _, n in step])}
            for step in zip(*parsed, strict=True)
        ]

    def _parsed(self, found: object, owner: object) -> list[tuple[int, int]]:
        parsed = []
        for entry in found if isinstance(found, list) else ():
            numbers = [entry.get("total"), entry.get("tried")] if isinstance(entry, Mapping) else []
            if counts := plain_counts(numbers):
                parsed.append((counts[0], counts[1]))
        if not isinstance(found, list) or not len(found) == len(parsed) == len(self._limits):
            raise StateMismatchError(
                f"faults in the state of {owner} must be a list of the counts (total, tried) of"
                f" {len(self._limits)} steps, got {shown(found)}"
            )
        return parsed


def _of_step(found: Sequence[FaultTotals], limits: Limits) -> list[FaultTotals]:
    return [
        totals
        for totals in found
        if totals.faults.limits is not None and totals.faults.limits.number == limits.number
    ]
