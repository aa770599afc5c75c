"""What a mixture of streams has drawn of its components so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_int, shown, state_count, state_field, state_flag


class Tally(NamedTuple):
    """Numbers by component; never changed in place.

    Args:
        elements: how many.
        lengths: of all elements of each together; their number, where nobody measures them.
        epochs: how often it has begun anew.
        ended: which have no elements left; where they begin anew, which have had none since.
        targets: how long the elements of each should be together, in parts of ``whole``; only where they are measured.
        whole: see there; 0 where nobody measures.
    """

    elements: tuple[int, ...]
    lengths: tuple[int, ...]
    epochs: tuple[int, ...]
    ended: frozenset[int] = frozenset()
    targets: tuple[int, ...] = ()
    whole: int = 0

    @classmethod
    def nothing(cls, num: int, whole: int) -> Tally:
        """That of ``num`` components before the first element."""
        none = (0,) * num
        return cls(none, none, none, frozenset(), none if whole else (), whole)

    @classmethod
    def of_elements(cls, elements: Sequence[int]) -> Tally:
        """So many elements, which nobody measured."""
        return cls(tuple(elements), tuple(elements), (0,) * len(elements))

    def added(self, nums: Mapping[int, int], length: int | None = None) -> Tally:
        """With so many more elements of these components; or with one, of this length."""
        elements, lengths = [*self.elements], [*self.lengths]
        for component, num in nums.items():
            elements[component] += num
            lengths[component] += num if length is None else length
        return self._replace(elements=tuple(elements), lengths=tuple(lengths))

    def aimed(self, weights: Mapping[Any, int], length: int) -> Tally:
        """With ``length`` shared out among the targets by these weights."""
        total = sum(weights.values())
        shares = {component: weight * self.whole // total for component, weight in weights.items()}
        return self._replace(targets=tuple([target + shares.get(i, 0) * length for i, target in enumerate(self.targets)]))

    def ending(self, component: int) -> Tally:
        return self._replace(ended=self.ended | {component})

    def begun_anew(self, component: int) -> Tally:
        epochs = [*self.epochs]
        epochs[component] += 1
        return self._replace(epochs=tuple(epochs), ended=self.ended | {component})

    def behind(self, component: int) -> int:
        """How far a component is before its target; negative: behind it."""
        return self.lengths[component] * self.whole - self.targets[component]

    def by_name(self, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """What users see of it."""
        rows = zip(self.elements, self.lengths, self.epochs, strict=True)
        return {
            name: {"elements": elements, "lengths": lengths, "epochs": epochs}
            for name, (elements, lengths, epochs) in zip(names, rows, strict=True)
        }

    def saved(self, names: Sequence[str]) -> dict[str, Any]:
        """The entries of a state."""
        counts: dict[str, dict[str, Any]] = {**self.by_name(names)}
        for i, name in enumerate(names):
            counts[name]["ended"] = i in self.ended
            if self.whole:
                counts[name]["target"] = self.targets[i]
        return {"counts": counts, "whole": self.whole} if self.whole else {"counts": counts}

    @classmethod
    def read(cls, state: Mapping[str, Any], names: Sequence[str], whole: int, owner: object) -> Tally:
        """What ``saved`` has put into a state; of components that it does not name, nothing was drawn.

        Raises:
            StateMismatchError: there is something else.
        """
        saved = state_field(state, "counts", owner)
        if not isinstance(saved, Mapping):
            raise StateMismatchError(f"counts in the state of {owner} must be a mapping of names to numbers, got {shown(saved)}")
        owner = f"{owner} (counts)"
        rows = [saved.get(name, _NOTHING) for name in names]
        elements, lengths, epochs = [
            tuple([state_count(row, key, owner) for row in rows]) for key in ("elements", "lengths", "epochs")
        ]
        ended = frozenset([i for i, row in enumerate(rows) if state_flag(row, "ended", owner)])
        tally = cls(elements, lengths, epochs, ended)
        if not whole:
            return tally
        saved_whole = _positive(state, "whole", owner, 1)
        common = math.lcm(saved_whole, whole)  # so that nothing is rounded
        targets = [_positive(row, "target", owner, 0) * (common // saved_whole) for row in rows]
        return tally._replace(targets=tuple(targets), whole=common)


def sum_of_counts(some: dict[str, dict[str, int]], others: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """What two mixtures of the same components have drawn together."""
    total = {name: {**row} for name, row in some.items()}
    for name, row in others.items():
        into = total.setdefault(name, {})
        for key, num in row.items():
            into[key] = into.get(key, 0) + num
    return total


_NOTHING = {"elements": 0, "lengths": 0, "epochs": 0, "ended": False, "target": 0}


def _positive(state: Any, key: str, owner: object, least: int) -> int:
    """An integer of any size in a state."""
    number = plain_int(state_field(state, key, owner))
    if number is None or number < least:
        raise StateMismatchError(f"{key} in the state of {owner} must be an integer of at least {least}, got {shown(state[key])}")
    return number
