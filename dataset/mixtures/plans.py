"""Which component of a mixture comes at which position: patterns of integer weights, as Grain's,
and schedules.
"""

from __future__ import annotations

import abc
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from gristmill.core.indices import Indices
from gristmill.core.state import plain_counts, shown
from gristmill.dataset.mixtures.schedule import Schedule
from gristmill.dataset.mixtures.selection import (
    BlockSelectionMap,
    Selected,
    SelectionWithProportionsMap,
    components_of,
    select_singly,
    shares_of,
)

_BLOCK = 1024  # positions that are looked at together


class Plan(abc.ABC):
    """Which of ``names`` comes at every position: a pure function of it.

    Args:
        names: of the components.
        end: the position at which the mixture ends, if any.
    """

    def __init__(self, names: Sequence[str], end: int | None = None) -> None:
        self.names = tuple(names)
        self.end = end

    # what the weights are called in descriptions and texts
    parameter: ClassVar = "weights"

    @property
    def shown(self) -> Any:
        """The weights as descriptions and texts have them."""
        return self.described()

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the JSON-able description from which ``plan_of`` makes the plan."""

    @abc.abstractmethod
    def at(self, position: int) -> tuple[int, int]:
        """Return which one comes at ``position``, and how often it came before."""

    @abc.abstractmethod
    def select(self, positions: range) -> Selected:
        """Return the same for consecutive positions."""

    def components(self, positions: range) -> Sequence[int]:
        """Return which one comes at each of consecutive positions."""
        if len(positions) == 1:
            return [self.at(positions.start)[0]]
        return components_of(*self.select(positions)) if positions else ()

    @abc.abstractmethod
    def counts(self, position: int) -> list[int]:
        """Return the number of elements of each component before ``position``."""

    def most_counts(self, position: int) -> list[int]:
        """Return the most elements of each before ``position``; by default the exact numbers."""
        return self.counts(position)

    def counts_by_name(self, position: int) -> dict[str, int]:
        """Return the same by name."""
        return dict(zip(self.names, self.counts(position), strict=True))

    @abc.abstractmethod
    def weights(self, position: int) -> list[int]:
        """Integer weights of the element at ``position``, whose sum is ``whole`` everywhere."""

    def weights_until(self, position: int) -> int:
        """Return a position up to which the weights at ``position`` hold."""
        del position
        return sys.maxsize

    @property
    @abc.abstractmethod
    def whole(self) -> int:
        """The sum of the weights."""

    @abc.abstractmethod
    def only(self, names: Sequence[str]) -> Plan:
        """Return the plan of some of the components."""

    def in_lane(self, num_lanes: int) -> Plan:
        """Return the plan of a lane of ``num_lanes`` of a mixture with this plan."""
        return self


class PatternPlan(Plan):
    """The pattern of Grain's mixtures.

    Args:
        names: of the components.
        proportions: a positive integer for each.
    """

    def __init__(self, names: Sequence[str], proportions: Sequence[int]) -> None:
        super().__init__(names, None if names else 0)
        self.proportions = tuple(proportions)
        self._selection = SelectionWithProportionsMap(proportions or (1,), sys.maxsize)

    parameter = "proportions"

    @property
    def shown(self) -> Any:
        return self.proportions

    def described(self) -> dict[str, Any]:
        return dict(zip(self.names, self.proportions, strict=True))

    def at(self, position: int) -> tuple[int, int]:
        return self._selection[position]

    def select(self, positions: range) -> Selected:
        return self._selection.select(positions)

    def components(self, positions: range) -> Sequence[int]:
        return self._selection.components(positions)

    def counts(self, position: int) -> list[int]:
        return self._selection.nums_before(position)

    def weights(self, position: int) -> list[int]:
        return [*self.proportions]

    @property
    def whole(self) -> int:
        return sum(self.proportions)

    def only(self, names: Sequence[str]) -> Plan:
        given = self.described()
        return PatternPlan(names, [given[name] for name in names])


class SchedulePlan(Plan):
    """That of a schedule.

    Args:
        names: of the components; what the schedule does not name is never drawn from.
        schedule: has their weights.
    """

    def __init__(self, names: Sequence[str], schedule: Schedule) -> None:
        self.schedule = schedule
        self.selection = schedule.selection(names)
        super().__init__(names, self.selection.end)

    def described(self) -> dict[str, Any]:
        return self.schedule.described()

    def at(self, position: int) -> tuple[int, int]:
        return self.selection[position]

    def select(self, positions: range) -> Selected:
        return shares_of(*self.selection.run(positions.start, len(positions)))

    def counts(self, position: int) -> list[int]:
        return self.selection.counts(position)

    def most_counts(self, position: int) -> list[int]:
        return self.selection.most_counts(position)

    def weights(self, position: int) -> list[int]:
        return self.selection.weights(position)

    def weights_until(self, position: int) -> int:
        return self.selection.weights_until(position)

    @property
    def whole(self) -> int:
        return self.selection.whole

    def only(self, names: Sequence[str]) -> Plan:
        return SchedulePlan(names, self.schedule)

    def in_lane(self, num_lanes: int) -> Plan:
        schedule = self.schedule.in_lane(num_lanes)
        return self if schedule is self.schedule else SchedulePlan(self.names, schedule)


def plan_of(description: object) -> Plan:
    """Return the plan that was ``described``, or raise ``ValueError`` or ``TypeError``."""
    if not isinstance(description, Mapping) or not description:
        raise ValueError(f"weights must be a mapping, got {shown(description)}")
    counts = plain_counts([*description.values()])
    if counts is not None and all(counts):
        return PatternPlan([str(name) for name in description], counts)
    schedule = Schedule.of_description(description)
    return SchedulePlan(schedule.names, schedule)


class _Phase(NamedTuple):
    """Positions of a mixture in which the same components are left.

    Args:
        start: the first position.
        plan: of those that are left.
        members: their numbers among all.
        offsets: how many more elements of each came before than the plan says.
    """

    start: int
    plan: Plan
    members: list[int]
    offsets: list[int]

    def counts(self, position: int) -> list[int]:
        return [
            count + offset
            for count, offset in zip(self.plan.counts(position), self.offsets, strict=True)
        ]


class PlannedSelectionMap(BlockSelectionMap):
    """Element ``n`` comes from the component that ``plan`` says, until one of them has ended, or
    all, or forever, as ``stop`` says.
    """

    def __init__(self, plan: Plan, lengths: Sequence[int], stop: str) -> None:
        self._plan, self._stop = plan, stop
        self._phases = [_Phase(0, plan, [*range(len(lengths))], [0] * len(lengths))]
        self._length = sys.maxsize if plan.end is None else plan.end
        self._epoch = [0] * len(lengths)  # elements of each component in an epoch
        while stop != "never":
            phase = self._phases[-1]
            self._length, ended = _end_of(phase, lengths)
            for i, count in zip(phase.members, phase.counts(self._length), strict=True):
                self._epoch[i] = count
            members = [i for i in phase.members if i != ended]
            if stop == "first" or ended is None or not members:
                break
            left = plan.only([plan.names[i] for i in members])
            offsets = [
                self._epoch[i] - count
                for i, count in zip(members, left.counts(self._length), strict=True)
            ]
            self._phases.append(_Phase(self._length, left, members, offsets))

    def over_lengths(self, lengths: Sequence[int]) -> tuple[list[int], BlockSelectionMap]:
        kept = [j for j, length in enumerate(lengths) if length]
        plan = self._plan.only([self._plan.names[j] for j in kept])
        return kept, PlannedSelectionMap(plan, [lengths[j] for j in kept], self._stop)

    def in_lane(self, lengths: Sequence[int], num_lanes: int) -> BlockSelectionMap:
        return PlannedSelectionMap(self._plan.in_lane(num_lanes), lengths, self._stop)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return (
            f"PlannedSelectionMap(weights={self._plan.described()}, stop={self._stop!r},"
            f" length={self._length})"
        )

    def __getitem__(self, index: int) -> tuple[int, int]:
        epoch = 0
        if index < 0 or (index >= self._length and self._stop == "all"):
            if self._stop == "never":
                raise IndexError(
                    f"a mixture that never stops has no element at {index}: its indices begin at 0"
                )
            epoch, index = divmod(index, self._length)
        phase = self._phases[bisect_right(self._phases, index, key=lambda phase: phase.start) - 1]
        place, count = phase.plan.at(index)
        component = phase.members[place]
        return component, count + phase.offsets[place] + epoch * self._epoch[component]

    def nums_before(self, index: int) -> list[int]:
        """Return the number of elements of each component among the first ``index`` elements."""
        epoch = 0
        if index > self._length and self._stop == "all":
            epoch, index = divmod(index, self._length)
        phase = self._phases[bisect_right(self._phases, index, key=lambda phase: phase.start) - 1]
        nums = [*self._epoch]  # of those that have ended
        for i, count, offset in zip(
            phase.members, phase.plan.counts(index), phase.offsets, strict=True
        ):
            nums[i] = count + offset
        return [num + epoch * of_epoch for num, of_epoch in zip(nums, self._epoch, strict=True)]

    def select(self, indices: Indices) -> Selected:
        if (
            not isinstance(indices, range)
            or indices.step != 1
            or indices.start < 0
            or indices.stop > self._length
        ):
            return select_singly(self, indices)
        components: list[int] = []
        inner: list[int] = []
        for phase, stop in zip(
            self._phases, [*[phase.start for phase in self._phases[1:]], self._length], strict=True
        ):
            part = range(max(indices.start, phase.start), min(indices.stop, stop))
            for place, count in map(phase.plan.at, part) if part else ():
                components.append(phase.members[place])
                inner.append(count + phase.offsets[place])
        return shares_of(components, inner)

    def _of_array(self, indices: object) -> Any:
        raise AssertionError("select asks for one index after the other")


def _end_of(phase: _Phase, lengths: Sequence[int]) -> tuple[int, int | None]:
    """Return the position at which a component without elements is drawn from, and which one that
    is;
    ``None``: there are no more turns.
    """
    low = phase.start
    high = min(sys.maxsize, low + sum([lengths[i] for i in phase.members]) + 1)
    if phase.plan.end is not None:
        high = max(low, min(high, phase.plan.end))
    # of those that are left
    lengths = [lengths[i] - offset for i, offset in zip(phase.members, phase.offsets, strict=True)]
    stop = high
    # the greatest position before which certainly nothing is needed that is not there
    while low < high:
        middle = (low + high + 1) // 2
        most = phase.plan.most_counts(middle)
        fits = all([count <= length for count, length in zip(most, lengths, strict=True)])
        low, high = (middle, high) if fits else (low, middle - 1)
    left = [length - count for length, count in zip(lengths, phase.plan.counts(low), strict=True)]
    while low < stop:
        for component in phase.plan.components(range(low, min(low + _BLOCK, stop))):
            if not left[component]:
                return low, phase.members[component]
            left[component] -= 1
            low += 1
    is_end = low == sys.maxsize or (phase.plan.end is not None and low >= phase.plan.end)
    return low, None if is_end else phase.members[phase.plan.at(low)[0]]
