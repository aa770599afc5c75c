"""Counts of the draws from each component of a mixture of streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_int, shown, state_count, state_field, state_flag
from gristmill.dataset.mixtures.tournament import Runner, Tournament

_FEW = 16  # components that are compared one by one in less time


class DrawCounts(NamedTuple):
    """Numbers by component; never changed in place.

    Args:
        elements: how many.
        lengths: of all elements of each together; their number, if lengths are not measured.
        epochs: how often it has restarted.
        ended: which have no elements left; where they start again, which have had none since.
        targets: how long the elements of each should be together, in parts of ``whole``; only where
            they are measured.
        whole: see there; 0 if lengths are not measured.
    """

    elements: tuple[int, ...]
    lengths: tuple[int, ...]
    epochs: tuple[int, ...]
    ended: frozenset[int] = frozenset()
    targets: tuple[int, ...] = ()
    whole: int = 0

    @classmethod
    def nothing(cls, num: int, whole: int) -> DrawCounts:
        """Return the counts of ``num`` components before the first element."""
        none = (0,) * num
        return cls(none, none, none, frozenset(), none if whole else (), whole)

    @classmethod
    def of_elements(cls, elements: Sequence[int]) -> DrawCounts:
        """Return counts of this many elements, without lengths."""
        return cls(tuple(elements), tuple(elements), (0,) * len(elements))

    def added(self, nums: Mapping[int, int], length: int | None = None) -> DrawCounts:
        """Return the counts with ``nums`` more elements; or with one more, of length ``length``."""
        elements, lengths = [*self.elements], [*self.lengths]
        for component, num in nums.items():
            elements[component] += num
            lengths[component] += num if length is None else length
        return self._replace(elements=tuple(elements), lengths=tuple(lengths))

    def by_name(self, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return the counts by component name, as users see them."""
        rows = zip(self.elements, self.lengths, self.epochs, strict=True)
        return {
            name: {"elements": elements, "lengths": lengths, "epochs": epochs}
            for name, (elements, lengths, epochs) in zip(names, rows, strict=True)
        }

    def saved(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the entries of a state."""
        counts: dict[str, dict[str, Any]] = {**self.by_name(names)}
        for i, name in enumerate(names):
            counts[name]["ended"] = i in self.ended
            if self.whole:
                counts[name]["target"] = self.targets[i]
        return {"counts": counts, "whole": self.whole} if self.whole else {"counts": counts}

    @classmethod
    def read(
        cls, state: Mapping[str, Any], names: Sequence[str], whole: int, owner: object
    ) -> DrawCounts:
        """Reads what ``saved`` wrote into a state. Components that the state does not name have a
        count of zero.

        Raises:
            StateMismatchError: there is something else.
        """
        saved = state_field(state, "counts", owner)
        if not isinstance(saved, Mapping):
            raise StateMismatchError(
                f"counts in the state of {owner} must be a mapping of names to numbers, got"
                f" {shown(saved)}"
            )
        owner = f"{owner} (counts)"
        rows = [saved.get(name, _NOTHING) for name in names]
        elements, lengths, epochs = [
            tuple([state_count(row, key, owner) for row in rows])
            for key in ("elements", "lengths", "epochs")
        ]
        ended = frozenset([i for i, row in enumerate(rows) if state_flag(row, "ended", owner)])
        totals = cls(elements, lengths, epochs, ended)
        if not whole:
            return totals
        saved_whole = _positive(state, "whole", owner, 1)
        common = math.lcm(saved_whole, whole)  # so that nothing is rounded
        targets = [_positive(row, "target", owner, 0) * (common // saved_whole) for row in rows]
        return totals._replace(targets=tuple(targets), whole=common)


# components with their shares of a length, in parts of ``whole``
Aims: TypeAlias = Sequence[tuple[int, int]]


class RunningCounts:
    """The numbers of a ``DrawCounts``, which is their frozen form.

    Args:
        frozen: where to begin.
    """

    __slots__ = (
        "_aims",
        "_length",
        "_order",
        "_was_asked",
        "elements",
        "ended",
        "epochs",
        "lengths",
        "targets",
        "whole",
    )

    def __init__(self, frozen: DrawCounts) -> None:
        self.elements = [*frozen.elements]
        self.lengths = [*frozen.lengths]
        self.epochs = [*frozen.epochs]
        self.ended, self.targets, self.whole = {*frozen.ended}, [*frozen.targets], frozen.whole
        # A length that was drawn under these shares, and is not in the targets.
        self._length = 0
        self._aims: Aims = ()
        self._was_asked = False  # ``furthest_behind`` was, under these shares
        self._order: Tournament | None = None  # of the components, if it was asked again

    def frozen(self) -> DrawCounts:
        """Return the numbers of now."""
        self._aim_for(self._aims)
        numbers = tuple(self.elements), tuple(self.lengths), tuple(self.epochs)
        return DrawCounts(*numbers, frozenset(self.ended), tuple(self.targets), self.whole)

    def _aim_for(self, aims: Aims) -> None:
        """Let the lengths that follow be shared as ``aims`` says."""
        if self._length:
            length, targets = self._length, self.targets
            for i, share in self._aims:
                targets[i] += share * length
        self._length, self._aims = 0, aims
        self._was_asked, self._order = False, None

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
            if self._order is not None and length:
                self._order.change(i, self.lengths[i] * self.whole - self.targets[i], self._length)

    def end(self, i: int) -> None:
        """Component ``i`` has no more elements."""
        self.ended.add(i)

    def restart(self, i: int) -> None:
        """Component ``i`` begins its next epoch, of which no element has come."""
        self.epochs[i] += 1
        self.ended.add(i)

    def furthest_behind(self, aims: Aims) -> int:
        """Return the first of the components that are furthest behind their targets."""
        if aims is not self._aims:
            self._aim_for(aims)
        length, lengths, targets, whole = self._length, self.lengths, self.targets, self.whole
        if not self._was_asked or len(aims) <= _FEW:  # the shares may change with every element
            self._was_asked = True
            return min(
                [(lengths[i] * whole - targets[i] - share * length, i) for i, share in aims]
            )[1]
        if self._order is None:
            self._order = Tournament(
                [Runner(lengths[i] * whole - targets[i], i, share) for i, share in aims], length
            )
        return self._order.least(length)


def sum_of_counts(
    some: dict[str, dict[str, int]], others: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the sum of the draw counts of two mixtures with the same components."""
    total = {name: {**row} for name, row in some.items()}
    for name, row in others.items():
        into = total.setdefault(name, {})
        for key, num in row.items():
            into[key] = into.get(key, 0) + num
    return total


_NOTHING = {"elements": 0, "lengths": 0, "epochs": 0, "ended": False, "target": 0}


def _positive(state: Mapping[str, Any], key: str, owner: object, least: int) -> int:
    """Return an integer of any size in a state."""
    number = plain_int(state_field(state, key, owner))
    if number is None or number < least:
        raise StateMismatchError(
            f"{key} in the state of {owner} must be an integer of at least {least}, got"
            f" {shown(state[key])}"
        )
    return number
