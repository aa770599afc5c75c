"""``Schedule``: weights of a mixture that change with the position in its output; and which
component is next under them.

The law: at every prefix of ``n`` elements each component has been drawn from more than ``W_i(n) -
1`` and fewer than ``W_i(n) + 1`` times, where ``W_i(n)`` is the integral of its share of the
weights up to ``n``, in exact arithmetic.

How that is met. Unit ``j`` of a component is due in a window of positions: it may come when ``W_i >
j - 1`` (its release) and must have come when ``W_i >= j`` (its deadline). As the integrals of all
components add up to ``n``, no interval of positions has more windows inside than positions; so by
Hall's theorem there is an order that meets all, and the order by deadlines (ties: the first
component) is one: at every position comes the unit that was released and has the earliest deadline.

How it is random access. At a position ``n`` a component has ``floor(W_i(n))`` units, or one more:
then it is ahead. Of those that might be, in the order of their deadlines, let ``late(t)`` be how
many after the ``j``-th were released up to ``t``, and ``g(t)`` how many units were released up to
``t`` beyond ``t``. The units up to the ``j``-th in that order are served before all others, so what
is left of them is the largest surplus of any stretch up to ``n`` (Lindley's formula): of the first
``j``, as many are ahead as

    R(n) + min(0, min over t of g(t) - late(t)),   R(n) = n - sum of floor(W_i(n)).

``g`` is never negative, and at least 1 where only one of the late ones was released; so only ``t``
since the second oldest release matter: no more than the window of a rare component.
"""

from __future__ import annotations

import heapq
import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.state import shown

_SMALLEST = Fraction(1, 1_000_000)  # share of a component that is drawn from
_BLOCK = 1024  # positions whose components are kept together
_MAX_BLOCKS = 2048  # of 12 KiB
# positions of one component that are looked up singly in about as much time as a block takes
_MOST_MISSES = 256
_PIECE = 1 << 14  # positions that are looked at together
# positions after which those that are never drawn from again have been given what they get
_MAX_SETTLING = 1 << 16
_SAFE = 1 << 62
_MANY = 32  # components that are looked at one by one
_FEW = 400  # integrals that are computed one by one in less time than with NumPy


class Schedule:
    """Weights of the components of a mixture by the position in its output, for the ``weights`` of
    ``mix``.

    A step lasts until the next one; weights are shares of their sum, and may be 0.
    ``Schedule.linear`` goes from point to point in straight lines instead; before the first and
    after the last point weights are constant.

    Law: at every prefix of a mixture, the number of elements of each component differs from the
    integral of its share by less than 1.

    Args:
        steps: positions, from 0 on, to the weights from there on: a mapping of names to numbers, in
            the form of the datasets of the mixture (or sequences of numbers, one for each dataset).
            A name that is missing has the weight 0.

    Raises:
        TypeError: ``steps`` is not such a mapping, or a position is no integer.
        ValueError: there is no step at 0, or a step has only zeros, a negative weight, or one that
            is not 0 and below a millionth of the sum, or two names that are equal as text.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> web, code = MapDataset.range(100), MapDataset.range(1000, 1100)
        >>> schedule = Schedule({0: {"web": 1, "code": 0}, 4: {"web": 1, "code": 2}})
        >>> list(MapDataset.mix({"web": web, "code": code}, schedule))[:10]
        [0, 1, 2, 3, 1000, 1001, 4, 1002, 1003, 5]
    """

    _kind = "steps"

    def __init__(self, steps: Mapping[int, Mapping[str, float] | Sequence[float]]) -> None:
        if not isinstance(steps, Mapping):
            raise TypeError(
                "a schedule must be a mapping of positions to weights, such as "
                f"{{0: {{'web': 1, 'code': 2}}}}, got {shown(steps)} of type {type(steps).__name__}"
            )
        points = {_as_position(position): step for position, step in steps.items()}
        if 0 not in points:
            raise ValueError(
                "a schedule must have weights at position 0, where the mixture begins, got weights"
                f" at {sorted(points)[:10]}: add {{0: ...}}, a mapping of names to weights"
            )
        self._points = {
            position: _as_weights(position, points[position]) for position in sorted(points)
        }
        self._names = tuple(sorted({name for weights in self._points.values() for name in weights}))
        nums = {None if isinstance(step, Mapping) else len(step) for step in points.values()}
        if len(nums) > 1:
            raise ValueError(
                "a schedule must have mappings of names at all positions, or as many weights, got"
                f" {shown(steps)}"
            )
        self._num_weights = nums.pop()

    @classmethod
    def linear(cls, points: Mapping[int, Mapping[str, float] | Sequence[float]]) -> Schedule:
        """Returns a schedule whose shares go from point to point in straight lines, and stay as
        they are after the last one.

        Args:
            points: as for ``Schedule``.

        Example:
            >>> Schedule.linear({0: {"web": 1, "code": 0}, 50_000: {"web": 1, "code": 1}})
            Schedule.linear({0: {'web': 1, 'code': 0}, 50000: {'web': 1, 'code': 1}})
        """
        schedule = cls(points)
        schedule._kind = "linear"
        return schedule

    @property
    def names(self) -> tuple[str, ...]:
        """Of the components, sorted."""
        return self._names

    def check_num(self, num: int) -> None:
        """Raises ``ValueError`` if its weights are sequences that are not of as many datasets."""
        if self._num_weights not in (None, num):
            raise ValueError(
                f"a schedule must have one number for each of the {num} datasets at every position,"
                f" got {self._num_weights}"
            )

    def in_lane(self, num_lanes: int) -> Schedule:
        """Return the schedule of each of ``num_lanes`` lanes of a stream, whose elements come in
        turn.

        The weights at position ``p`` of the stream hold from position ``ceil(p / num_lanes)`` of
        the lane on. If several positions become one, the last one holds.
        """
        if num_lanes == 1 or len(self._points) == 1:
            return self
        points: Any = {
            -(-position // num_lanes): weights for position, weights in self._points.items()
        }
        return Schedule(points) if self._kind == "steps" else Schedule.linear(points)

    def __repr__(self) -> str:
        name = "Schedule" if self._kind == "steps" else "Schedule.linear"
        points = [f"{position}: {_plain(weights)}" for position, weights in self._points.items()]
        return f"{name}({{{', '.join(points)}}})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.described() == other.described()

    def __hash__(self) -> int:
        return hash(repr(self))

    def described(self) -> dict[str, Any]:
        """Return the JSON-able description from which ``of_description`` makes the schedule."""
        return {
            self._kind: {
                str(position): _plain(weights) for position, weights in self._points.items()
            }
        }

    @classmethod
    def of_description(cls, description: object) -> Schedule:
        """Return the schedule that was ``described``. Raises ``ValueError`` or ``TypeError`` for an
        invalid description.
        """
        if (
            not isinstance(description, Mapping)
            or len(description) != 1
            or next(iter(description)) not in ("steps", "linear")
        ):
            raise ValueError(
                f"the description of a schedule must have steps or linear, got {shown(description)}"
            )
        ((kind, points),) = description.items()
        steps: Any = {
            int(position): {n: Fraction(str(w)) for n, w in weights.items()}
            for position, weights in points.items()
        }
        return cls(steps) if kind == "steps" else cls.linear(steps)

    def selection(self, names: Sequence[str]) -> ScheduledSelection:
        """Returns which of ``names`` is next at every position, without the other components.

        Where none of them has a weight, those hold that the next position with weights has. It ends
        after the last one.
        """
        rows = {
            position: [weights.get(name, Fraction(0)) for name in names]
            for position, weights in self._points.items()
        }
        drawn_from = [position for position, row in rows.items() if any(row)]
        is_linear, last = self._kind == "linear", max(drawn_from, default=-1)
        end = next((position for position in rows if position > last), None) if drawn_from else None
        shares = []
        for position, row in rows.items():
            if not any(row):  # positions between points with weights take the nearest
                nearest = [p for p in drawn_from if p > position][:1] or drawn_from[-1:]
                row = rows[nearest[0]] if nearest else [Fraction(1)] * len(names)
            total = sum(row)
            shares.append([weight / total for weight in row])
        return ScheduledSelection(
            [*rows], shares, is_linear=is_linear, end=0 if not drawn_from else end
        )


def _as_position(position: object) -> int:
    if isinstance(position, bool | np.bool_):
        raise TypeError(
            f"a position of a schedule must be an integer, got {position!r} of type"
            f" {type(position).__name__}"
        )
    return as_int("a position of a schedule", position, minimum=0)


def _as_weights(position: int, weights: object) -> dict[str, Fraction]:
    """Exact weights by name. A float means what it is written as: 0.7 is 7/10."""
    if isinstance(weights, Sequence | np.ndarray) and not isinstance(weights, str | bytes):
        weights = {str(i): weight for i, weight in enumerate(weights)}
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"weights of a schedule must be a mapping of names to numbers, got {shown(weights)} at"
            f" {position}"
        )
    found: dict[str, Fraction] = {}
    for name, weight in weights.items():
        try:
            exact = weight if isinstance(weight, Fraction) else Fraction(str(weight))
        except (ValueError, ZeroDivisionError):
            exact = Fraction(-1)
        if exact < 0 or isinstance(weight, str | bytes):
            raise ValueError(
                f"weights of a schedule must be finite numbers, 0 or more, got {shown(weight)} for"
                f" {name!r} at {position}"
            )
        if str(name) in found:
            raise ValueError(
                f"names of a schedule must differ as text, got {str(name)!r} twice at {position}:"
                f" {shown(list(weights))}"
            )
        found[str(name)] = exact
    total = sum(found.values())
    if not total:
        raise ValueError(
            f"a schedule must have a weight above 0 at every position, got {shown(weights)} at "
            f"{position}: give one of the datasets a weight there, or leave out the position"
        )
    for name, weight in found.items():
        if 0 < weight < _SMALLEST * total:
            raise ValueError(
                "weights of a schedule must be 0, or at least a millionth of their sum, got"
                f" {shown(weights)} at {position}: leave out {name!r}"
            )
    return found


def _plain(weights: Mapping[str, Fraction]) -> dict[str, Any]:
    """Weights as numbers that JSON has, where these are exact."""
    return {name: _plain_number(weight) for name, weight in weights.items()}


def _plain_number(weight: Fraction) -> Any:
    if weight.denominator == 1:
        return int(weight)
    return float(weight) if Fraction(str(float(weight))) == weight else str(weight)


class _Segment:
    """Positions from ``start`` on, in which every integral is a polynomial: ``(base + slope * x +
    bend * x * x) / whole``.

    Args:
        start: the position where ``x`` is 0.
        base: of each component.
        slope: the same.
        bend: the same; 0 but in linear schedules.
    """

    def __init__(self, start: int, base: list[int], slope: list[int], bend: list[int]) -> None:
        self.start = start
        self.base = base
        self.slope = slope
        self.bend = bend

    def at(self, i: int, x: int) -> int:
        return self.base[i] + (self.slope[i] + self.bend[i] * x) * x

    def first(self, i: int, target: int, length: int | None) -> int | None:
        """Return the least ``x``, up to ``length``, at which component ``i`` has reached
        ``target``.
        """
        if not self.bend[i]:
            missing = target - self.base[i]
            if missing > 0 and not self.slope[i]:
                return None
            x = max(0, -(-missing // self.slope[i])) if missing > 0 else 0
            return x if length is None or x <= length else None
        assert length is not None
        base, slope, bend = self.base[i], self.slope[i], self.bend[i]
        if base >= target:
            return 0
        if base + (slope + bend * length) * length < target:
            return None
        # The root of a polynomial that grows up to ``length``, rounded; it is off by 1 at most.
        x = (math.isqrt(max(0, slope * slope + 4 * bend * (target - base))) - slope) // (2 * bend)
        x = min(max(x - 1, 1), length)
        while base + (slope + bend * x) * x < target:
            x += 1
        while base + (slope + bend * (x - 1)) * (x - 1) >= target:
            x -= 1
        return x


class ScheduledSelection:
    """Which component is next at every position, and how often each was before.

    Args:
        starts: positions at which shares are given, the first one 0.
        shares: of each component there; they add up to 1.
        is_linear: whether they change in straight lines in between.
        end: the position at which drawing ends, if any.
    """

    def __init__(
        self,
        starts: Sequence[int],
        shares: Sequence[Sequence[Fraction]],
        *,
        is_linear: bool,
        end: int | None = None,
    ) -> None:
        lengths = [stop - start for start, stop in pairwise(starts)]
        self._num = len(shares[0])
        denominators = [share.denominator for row in shares for share in row]
        finer = math.lcm(*[2 * n for n in lengths]) if is_linear else 1
        self._whole = math.lcm(*denominators) * finer
        numerators = [[int(share * self._whole) for share in row] for row in shares]
        self._starts = list(starts)
        self._segments: list[_Segment] = []
        base = [0] * self._num
        for s, start in enumerate(starts):
            slope, bend = numerators[s], [0] * self._num
            is_last = s == len(lengths)
            if is_linear and not is_last:
                ends = zip(slope, numerators[s + 1], strict=True)
                bend = [(b - a) // (2 * lengths[s]) for a, b in ends]
            segment = _Segment(start, base, slope, bend)
            self._segments.append(segment)
            if not is_last:
                base = [segment.at(i, lengths[s]) for i in range(self._num)]
        self._blocks: dict[int, tuple[array[int], array[int]]] = {}
        # a position, after what was served last, and the counts
        self._following: tuple[int, list[int]] = 0, [0] * self._num
        self._misses: dict[int, int] = {}  # by the number of the block
        self._last_missed = -2  # the position
        self._settled: list[int] | None = None
        last = self._segments[-1]
        # those that are never drawn from again
        self._gone = [i for i in range(self._num) if not last.slope[i]]
        slowest = min([slope for slope in last.slope if slope], default=self._whole)
        self._longest = self._whole // slowest + 2  # of its windows
        # of the order after the last change
        self._period = self._whole // math.gcd(self._whole, *last.slope)
        # How many positions after the last step that takes, at most; windows that began before it
        # do not matter then.
        self._settling = min(self._period, _MAX_SETTLING) + self._longest
        # all windows began after the last step
        self._unchanging_from = last.start + self._settling + self._longest
        self._lap: tuple[list[int], list[int]] | None = None  # the components of the first period
        self.end = end

    def __getstate__(self) -> dict[str, Any]:
        caches: dict[str, Any] = {"_lap": None, "_misses": {}, "_blocks": {}}
        return {**vars(self), **caches, "_following": (0, [0] * self._num)}

    @property
    def whole(self) -> int:
        """The common denominator of the weights."""
        return self._whole

    def weights(self, position: int) -> list[int]:
        """Numerators of the shares of the element at ``position``."""
        segment = self._segments[bisect_right(self._starts, position) - 1]
        x = position - segment.start
        coefficients = zip(segment.slope, segment.bend, strict=True)
        return [slope + 2 * bend * x for slope, bend in coefficients]

    def weights_until(self, position: int) -> int:
        """Return a position up to which the weights at ``position`` hold."""
        s = bisect_right(self._starts, position)
        if any(self._segments[s - 1].bend):
            return position + 1
        return self._starts[s] if s < len(self._starts) else sys.maxsize

    def integral(self, position: int) -> list[int]:
        """Numerators of the integrals of the shares up to ``position``."""
        segment = self._segments[bisect_right(self._starts, position) - 1]
        return [segment.at(i, position - segment.start) for i in range(self._num)]

    def __getitem__(self, position: int) -> tuple[int, int]:
        """Return the component at ``position`` and how often it came before."""
        if self._period <= _BLOCK and position >= self._unchanging_from:
            return self._repeated(position)
        number, offset = divmod(position, _BLOCK)
        block = self._blocks.get(number)
        if block is None:
            if self._is_rare(number, position):
                return self._single(position)
            block = self._block(number)
        return block[0][offset], block[1][offset]

    def _is_rare(self, number: int, position: int) -> bool:
        """Return true if few positions of block ``number`` were asked for before, and not the one
        before ``position`` last: the others of it may not be needed. ``-1`` stands for the first
        period.
        """
        if len(self._misses) >= _MAX_BLOCKS:
            self._misses = {}
        self._misses[number] = num = self._misses.get(number, 0) + 1
        follows, self._last_missed = position == self._last_missed + 1, position
        return not follows and (num - 1) * self._num < _MOST_MISSES

    def _single(self, position: int) -> tuple[int, int]:
        counts = self.counts(position)
        component = self._next(position, counts)
        return component, counts[component]

    def _repeated(self, position: int) -> tuple[int, int]:
        """Return the same if windows, and so their components, repeat those of an earlier
        period.
        """
        laps, offset = divmod(position - self._unchanging_from, self._period)
        if self._lap is None:
            if self._is_rare(-1, position):
                return self._single(position)
            self._lap = self._served(self._unchanging_from, self._period)
        component, inner = self._lap[0][offset], self._lap[1][offset]
        inner += laps * self._segments[-1].slope[component] * self._period // self._whole
        return component, inner

    def run(self, start: int, num: int) -> tuple[list[int], list[int]]:
        """Return the components at ``num`` positions from ``start`` on, and how often each came
        before.
        """
        components: list[int] = []
        inner: list[int] = []
        while len(components) < num:
            number, offset = divmod(start + len(components), _BLOCK)
            found = self._block(number)
            stop = min(_BLOCK, offset + num - len(components))
            components += found[0][offset:stop]
            inner += found[1][offset:stop]
        return components, inner

    def _block(self, number: int) -> tuple[array[int], array[int]]:
        found = self._blocks.get(number)
        if found is None:
            components, inner = self._served(number * _BLOCK, _BLOCK)
            found = array("i", components), array("q", inner)
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks = {}
            self._blocks[number] = found
        return found

    def _served(self, start: int, num: int) -> tuple[list[int], list[int]]:
        """Return the components at ``num`` positions: at each, the released unit with the earliest
        deadline.
        """
        following, counts = self._following
        counts = [*counts] if following == start else self.counts(start)
        last = start + num + 1
        waiting: list[tuple[int, int]] = []
        for i in self._drawn_from(start):
            release = self._first(i, counts[i] * self._whole + 1)
            if release is not None and release <= last:
                waiting.append((release, i))
        heapq.heapify(waiting)
        due: list[tuple[float, int]] = []
        components, inner = [], []
        for position in range(start + 1, start + num + 1):
            while waiting and waiting[0][0] <= position:
                _, i = heapq.heappop(waiting)
                heapq.heappush(due, (self._deadline(i, counts[i]), i))
            _, i = heapq.heappop(due)
            components.append(i)
            inner.append(counts[i])
            counts[i] += 1
            release = self._first(i, counts[i] * self._whole + 1)
            if release is not None and release <= last:
                heapq.heappush(waiting, (release, i))
        self._following = start + num, counts
        return components, inner

    def most_counts(self, position: int) -> list[int]:
        """Return numbers of each component that come before ``position`` at most."""
        return [-(-number // self._whole) for number in self.integral(position)]

    def _next(self, position: int, counts: list[int]) -> int:
        """Return the component at ``position``, where ``counts`` have come."""
        integral = self.integral(position + 1)
        released = [i for i in self._drawn_from(position) if integral[i] > counts[i] * self._whole]
        return min([(self._deadline(i, counts[i]), i) for i in released])[1]

    def _drawn_from(self, position: int) -> list[int]:
        """Components that may come at ``position`` or later."""
        if self._is_settled(position):
            return [i for i in range(self._num) if i not in self._gone]
        return [*range(self._num)]

    def _is_settled(self, position: int) -> bool:
        return bool(self._gone) and position > self._segments[-1].start + self._settling

    def _deadline(self, i: int, count: int) -> float:
        found = self._first(i, (count + 1) * self._whole)
        return math.inf if found is None else found

    def _first(self, i: int, target: int) -> int | None:
        """Return the first position at which the integral of component ``i`` is ``target`` or
        more.
        """
        segments = self._segments
        low, high = 0, len(segments)  # the last segment that begins below the target
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if segments[middle].base[i] < target else (low, middle)
        length = self._starts[low + 1] - self._starts[low] if low + 1 < len(segments) else None
        x = segments[low].first(i, target, length)
        return None if x is None else segments[low].start + x

    def counts(self, position: int) -> list[int]:
        """Return how often each component comes before ``position``; see the head of the module."""
        whole, integral = self._whole, self.integral(position)
        counts = [number // whole for number in integral]
        # since when windows matter; the units that members were given
        members, since, given = [*range(self._num)], 0, position
        if self._is_settled(position):
            settled = self._settled_counts()
            since = self._segments[-1].start + self._settling - self._longest
            for i in self._gone:
                counts[i] = settled[i]
                given -= settled[i]
            members = [i for i in members if i not in self._gone]
        num_ahead = given - sum([counts[i] for i in members])
        units = sorted(
            [(self._deadline(i, counts[i]), i) for i in members if integral[i] > counts[i] * whole]
        )
        if not units or num_ahead <= 0:
            return counts
        releases = [self._first(i, counts[i] * whole + 1) or 0 for _, i in units]
        # one alone is never ahead
        first = max(since, min(releases)) if since else sorted(releases)[1]
        lows = [0] * len(units)
        offset = position - given
        if (position + 1 - first) * len(members) <= _FEW:
            positions = range(first, position + 1)
            surplus = self._surplus_singly(members, positions, offset)
            _lower_singly(lows, releases, surplus, positions)
            first = position + 1
        for start in range(first, position + 1, _PIECE):
            stop = min(start + _PIECE, position + 1)
            surplus = self._surplus(members, start, stop, offset)
            _lower(lows, releases, surplus, start)
        before = 0
        for (_, i), low in zip(units, lows, strict=True):
            ahead = num_ahead + low
            counts[i] += ahead - before
            before = ahead
        return counts

    def _surplus_singly(self, members: Sequence[int], positions: range, offset: int) -> list[int]:
        """Return the same as ``_surplus``, in less time for few positions."""
        found = []
        for position in positions:
            segment = self._segments[bisect_right(self._starts, position) - 1]
            released = [-(-segment.at(i, position - segment.start) // self._whole) for i in members]
            found.append(offset - position + sum(released))
        return found

    def _surplus(self, members: Sequence[int], start: int, stop: int, offset: int) -> Any:
        """Return the number of units of ``members`` released beyond one for each position, at the
        positions of a range.
        """
        found = np.arange(-start, -stop, -1) + offset
        s = bisect_right(self._starts, start) - 1
        at = start
        while at < stop:
            segment = self._segments[s]
            end = min(stop, self._starts[s + 1]) if s + 1 < len(self._starts) else stop
            x, num = at - segment.start, end - at
            found[at - start : end - start] += _released(segment, self._whole, members, x, num)
            at, s = end, s + 1
        return found

    def _settled_counts(self) -> list[int]:
        """Return the counts when those that are never drawn from again have what they get."""
        if self._settled is None:
            self._settled = self.counts(self._segments[-1].start + self._settling)
        return self._settled


def _released(segment: _Segment, whole: int, members: Sequence[int], x: int, num: int) -> Any:
    """Units of ``members`` that were released, at ``num`` positions from ``x`` on in a segment."""
    if len(members) > _MANY or whole * (num + 2) >= _SAFE:
        return _released_by_unit(segment, whole, members, x, num)
    slope = [segment.slope[i] + 2 * segment.bend[i] * x for i in members]
    bend = [segment.bend[i] for i in members]
    # so that numbers are small; integrals are rounded up in any case
    common = math.gcd(whole, *slope, *bend)
    whole //= common
    base = [-(-segment.at(i, x) // common) for i in members]
    slope, bend = [n // common for n in slope], [n // common for n in bend]
    y = np.arange(num)
    columns = [
        np.array([n if i else n % whole for n in part])[:, None]
        for i, part in enumerate((base, slope, bend))
    ]
    numbers = columns[0] + (columns[1] + columns[2] * y) * y
    released = -(-numbers // whole)
    return released.sum(0).astype(np.int64) + sum([n // whole for n in base])


def _released_by_unit(
    segment: _Segment, whole: int, members: Sequence[int], x: int, num: int
) -> Any:
    """Return the same as ``_released``: it searches for each unit; there are about as many units as
    positions.
    """
    before = [segment.at(i, x) for i in members]
    slope = np.array([(segment.slope[i] + 2 * segment.bend[i] * x) / whole for i in members])
    bend = np.array([segment.bend[i] / whole for i in members])
    first = [-(-n // whole) for n in before]  # the unit that is released next
    nums = [
        -(-segment.at(i, x + num - 1) // whole) - unit
        for i, unit in zip(members, first, strict=True)
    ]
    member = np.repeat(np.arange(len(members)), nums)
    nth = np.arange(len(member)) - np.repeat(np.cumsum(nums) - nums, nums)
    missing = (
        nth
        + np.array([(unit * whole - n) / whole for unit, n in zip(first, before, strict=True)])[
            member
        ]
    )
    # The root of a polynomial. Where it is next to an integer, exact arithmetic decides.
    slope, bend = slope[member], bend[member]
    under_root = slope * slope + 4 * bend * missing
    with np.errstate(divide="ignore", invalid="ignore"):
        root = 2 * missing / (slope + np.sqrt(np.maximum(under_root, 0)))
        is_sure = (
            (abs(root - np.rint(root)) > 1e-5) & (under_root > 1e-3 * slope * slope) & (root < num)
        )
    when = np.where(is_sure, root, 0).astype(np.int64) + 1
    for k in np.flatnonzero(~is_sure).tolist():
        i = members[member[k]]
        found = segment.first(i, (first[member[k]] + int(nth[k])) * whole + 1, x + num)
        assert found is not None
        when[k] = found - x
    return np.cumsum(np.bincount(when, minlength=num)) + sum(first)


def _lower(lows: list[int], releases: list[int], surplus: Any, start: int) -> None:
    """Lowers ``lows[j]`` to the least of ``surplus - late``."""
    times = np.arange(start, start + len(surplus))
    released = np.searchsorted(np.sort(releases), times, side="right")
    kept = np.flatnonzero(surplus < released)
    if not len(kept):
        return
    is_late = np.asarray(releases)[:, None] <= times[kept]  # [unit, time]
    late = np.cumsum(is_late, 0, dtype=np.int32)  # of the units up to each
    least = ((surplus[kept] - late[-1]).astype(np.int32) + late).min(1)
    for j, low in enumerate(least.tolist()):
        lows[j] = min(lows[j], low)


def _lower_singly(
    lows: list[int], releases: list[int], surplus: list[int], positions: range
) -> None:
    """Do the same as ``_lower``, in less time for few positions."""
    for position, more in zip(positions, surplus, strict=True):
        late = sum([release <= position for release in releases])
        if more < late:
            for j, release in enumerate(releases):
                late -= release <= position  # those after it
                lows[j] = min(lows[j], more - late)
