"""Which component an element of a mixture comes from, and which of its elements it is.

Source: the rule of proportions is the tree of ratios of Grain's mixtures: component 0 gets its
share of all indices, component 1 its share of the rest, and so on, each rounded down, in exact
integers.
"""

from __future__ import annotations

import abc
import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices, as_array, as_ints
from gristmill.transforms.base import DatasetSelectionMap

# What to read of which components, and where in all that was read each element of the block is.
Selected: TypeAlias = tuple[list[tuple[int, Indices]], Sequence[int]]

_MAX_PERIOD = 1 << 16  # selections are tabulated up to this length
_MAX_PLANNED = 1024  # elements of a block up to which its selection is kept
# indices up to which looking at the components of each costs less than NumPy's calls for each
# component
_MAX_SINGLE = 64


def integer_weights(weights: Sequence[float] | None, count: int) -> tuple[int, ...]:
    """Return the proportions of ``count`` components: the weights, scaled so that the smallest is
    100, and truncated.

    Raises:
        TypeError: ``weights`` is not a sequence of numbers.
        ValueError: they are not one positive finite number for each component.
    """
    if weights is None:
        return (1,) * count
    if (
        not isinstance(weights, Sequence | np.ndarray)
        or isinstance(weights, str | bytes)
        or getattr(weights, "ndim", 1) != 1
    ):
        raise TypeError(
            f"weights must be a sequence of numbers, got {weights!r:.200} of type"
            f" {type(weights).__name__}"
        )
    if len(weights) != count:
        raise ValueError(
            f"weights must have one number for each of the {count} datasets, got {len(weights)}:"
            f" {weights!r:.200}"
        )
    for i, weight in enumerate(weights):
        try:
            is_good = math.isfinite(weight) and weight > 0
        except TypeError:
            raise TypeError(
                f"weights must be numbers, got weights[{i}] = {weight!r:.200}"
            ) from None
        except OverflowError:  # an integer beyond all floats
            is_good = False
        if not is_good:
            raise ValueError(
                f"weights must be positive and finite, got weights[{i}] = {weight!r:.200}: leave"
                " out the dataset"
            )
    try:
        with np.errstate(over="ignore"):  # of NumPy's numbers; it is found below
            scale = 100 / min(weights)
            return tuple([int(weight * scale) for weight in weights])
    except OverflowError:
        raise ValueError(f"weights must not be so far apart, got {weights!r:.200}") from None


class BlockSelectionMap(DatasetSelectionMap):
    """The base of our own selections: whole blocks are selected at once."""

    def select(self, indices: Indices) -> Selected:
        """Return the reads for a block of at least two indices."""
        components, inner = self._of_array(as_array(indices, self._limit))
        order = np.argsort(components, kind="stable")
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        found, starts = np.unique(components[order], return_index=True)
        shares: list[tuple[int, Indices]] = [
            (j, inner[share])
            for j, share in zip(found.tolist(), np.split(order, starts[1:]), strict=True)
        ]
        return shares, places.tolist()

    @abc.abstractmethod
    def over_lengths(self, lengths: Sequence[int]) -> tuple[list[int], BlockSelectionMap]:
        """Return the components that it selects from if they are so long, and how."""

    def in_lane(self, lengths: Sequence[int], num_lanes: int) -> BlockSelectionMap:
        """Return the selection in one of ``num_lanes`` lanes, with these lengths."""
        raise NotImplementedError(f"{self} has no lanes of its own")

    # up to this magnitude of an index all arithmetic of ``_of_array`` stays within int64
    _limit: int

    @abc.abstractmethod
    def _of_array(self, indices: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Components and indices in them of ``indices`` [n], both [n]."""


class SelectionWithProportionsMap(BlockSelectionMap):
    """Element ``k`` comes from the component whose count, of ``proportions``, is the one to grow
    from ``k`` to ``k + 1``; also after ``length``.
    """

    def __init__(self, proportions: Sequence[int], length: int) -> None:
        self._proportions = tuple(proportions)
        self._length = length
        divisor = math.gcd(*self._proportions)
        # the same selection, with the least period
        self._reduced = tuple([p // divisor for p in self._proportions])
        self._period = sum(self._reduced)
        self._limit = 2**62 // self._period - 1

    @classmethod
    def of_datasets(
        cls, lengths: Sequence[int], proportions: Sequence[int]
    ) -> SelectionWithProportionsMap:
        """Return the mixture that reads no component beyond its end."""
        total = sum(proportions)
        # In doubles, division by division: the length of a mixture is part of what Grain's
        # pipelines mean.
        longest = min([n / (p / total) for n, p in zip(lengths, proportions, strict=True)])
        return cls(proportions, sys.maxsize if longest >= sys.maxsize else int(longest))

    def over_lengths(self, lengths: Sequence[int]) -> tuple[list[int], BlockSelectionMap]:
        kept = [j for j, length in enumerate(lengths) if length]
        if not kept:
            return kept, ConcatenationMap(())
        proportions = [self._proportions[j] for j in kept]
        return kept, SelectionWithProportionsMap.of_datasets(
            [lengths[j] for j in kept], proportions
        )

    def in_lane(self, lengths: Sequence[int], num_lanes: int) -> BlockSelectionMap:
        return SelectionWithProportionsMap.of_datasets(lengths, self._proportions)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return (
            f"SelectionWithProportionsMap(proportions={self._proportions}, length={self._length})"
        )

    def __getitem__(self, index: int) -> tuple[int, int]:
        if self._period > _MAX_PERIOD:
            return _cascade(self._reduced, index)
        round_, phase = divmod(index, self._period)
        components, inner_of = _table(self._reduced)
        component = int(components[phase])
        return component, int(inner_of[phase]) + round_ * self._reduced[component]

    def components(self, positions: range) -> Sequence[int]:
        """Return the component of each of consecutive positions."""
        num = len(positions)
        if self._period > _MAX_PERIOD or num > _MAX_PLANNED:
            return components_of(*self.select(positions)) if num else ()
        return _turns(self._reduced, positions.start % self._period, num)

    def nums_before(self, index: int) -> list[int]:
        """Return the number of elements of each component among the first ``index`` elements."""
        nums, left, total = [], index, sum(self._reduced)
        for weight in self._reduced:
            following = left * (total - weight) // total
            nums.append(left - following)
            left, total = following, total - weight
        return nums

    def select(self, indices: Indices) -> Selected:
        if isinstance(indices, range) and indices.step == 1 and len(indices) <= _MAX_PLANNED:
            return self._select_run(indices)
        if self._period > _MAX_PERIOD and len(indices) <= _MAX_SINGLE:
            return select_singly(self, indices)
        return super().select(indices)

    def _select_run(self, indices: range) -> Selected:
        if self._period > _MAX_PERIOD:
            return _cascade_run(self._reduced, indices.start, indices.stop)
        round_, phase = divmod(indices.start, self._period)
        plan, places = _plan(self._reduced, phase, len(indices))
        shares: list[tuple[int, Indices]] = []
        for component, weight, first, num in plan:
            start = first + round_ * weight
            shares.append((component, range(start, start + num)))
        return shares, places

    def _of_array(self, indices: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if self._period > _MAX_PERIOD:
            return _cascade_many(self._reduced, indices)
        rounds = indices // self._period
        components, inner_of = _table(self._reduced)
        phases = (indices - rounds * self._period).astype(np.int64, copy=False)
        chosen = components[phases]
        return chosen, rounds * np.array(self._reduced)[chosen] + inner_of[phases]


# Of ``total`` indices in a row the first component takes ``weight``: those whose remainder below is
# less than that. The ``rest`` are numbered again, without gaps, and are those of the other
# components.


def _cascade(proportions: tuple[int, ...], index: int) -> tuple[int, int]:
    total = sum(proportions)
    for component, weight in enumerate(proportions):
        rest = total - weight
        following, remainder = divmod(index * rest, total)
        if remainder < weight:
            return component, index - following
        index, total = following, rest
    raise AssertionError("the last component takes what is left")


def _cascade_run(proportions: tuple[int, ...], start: int, stop: int) -> Selected:
    """Return the selection of a range of indices; each component is examined once."""
    left = list(range(stop - start))  # places in the block that no component has taken yet
    shares: list[tuple[int, Indices]] = []
    taken: list[int] = []
    total = sum(proportions)
    for component, weight in enumerate(proportions):
        rest = total - weight
        next_start, next_stop = start * rest // total, stop * rest // total
        inner = range(start - next_start, stop - next_stop)
        if inner:
            offsets = [i * total // weight - start for i in inner]
            taken += [left[offset] for offset in offsets]
            shares.append((component, inner))
            for offset in reversed(offsets):
                del left[offset]
            if not left:
                break
        start, stop, total = next_start, next_stop, rest
    places = [0] * len(taken)
    for i, place in enumerate(taken):
        places[place] = i
    return shares, places


def _cascade_many(
    proportions: tuple[int, ...], indices: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    components = np.zeros(len(indices), np.int64)
    inner = np.zeros_like(indices)
    left = np.arange(len(indices))  # places in the block that no component has taken yet
    total = sum(proportions)
    for component, weight in enumerate(proportions):
        rest = total - weight
        products = indices * rest
        following = products // total
        is_taken = products - following * total < weight
        if is_taken.any():
            places = left[is_taken]
            components[places] = component
            inner[places] = (indices - following)[is_taken]
            is_left = ~is_taken
            left, following = left[is_left], following[is_left]
            if not len(left):
                break
        indices, total = following, rest
    return components, inner


@lru_cache(maxsize=64)
def _table(proportions: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Components, and indices in them, of one period of the selection."""
    return _cascade_many(proportions, np.arange(sum(proportions), dtype=np.int64))


@lru_cache(maxsize=1024)
def _plan(
    proportions: tuple[int, ...], phase: int, num: int
) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Return the selection of ``num`` indices from ``phase`` on:
    ``(component, weight, first index in it, how many)`` and places.
    """
    shares, places = BlockSelectionMap.select(
        SelectionWithProportionsMap(proportions, 0), range(phase, phase + num)
    )
    return [(j, proportions[j], int(inner[0]), len(inner)) for j, inner in shares], list(places)


@lru_cache(maxsize=1024)
def _turns(proportions: tuple[int, ...], phase: int, num: int) -> tuple[int, ...]:
    """Return the components of ``num`` indices from ``phase`` on."""
    components, _ = _table(proportions)
    return tuple(np.take(components, range(phase, phase + num), mode="wrap").tolist())


def components_of(shares: Sequence[tuple[int, Indices]], places: Sequence[int]) -> list[int]:
    """Return the component of each element of a block that was selected."""
    found = [component for component, inner in shares for _ in inner]
    return [found[place] for place in places]


class ConcatenationMap(BlockSelectionMap):
    """One component after the other; an epoch is an epoch of each.

    Args:
        lengths: of the components.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = tuple(lengths)
        self._components = [j for j, length in enumerate(lengths) if length]
        self._starts = [0, *accumulate([lengths[j] for j in self._components])]
        self._total = self._starts[-1]
        self._limit = 2**62 // max(1, self._total) * self._total - 1

    def over_lengths(self, lengths: Sequence[int]) -> tuple[list[int], BlockSelectionMap]:
        return list(range(len(lengths))), ConcatenationMap(lengths)

    def __len__(self) -> int:
        return min(self._total, sys.maxsize)

    def __repr__(self) -> str:
        return f"ConcatenationMap(lengths={self._lengths})"

    def __getitem__(self, index: int) -> tuple[int, int]:
        epoch, position = divmod(index, self._total)
        i = bisect_right(self._starts, position) - 1
        component = self._components[i]
        return component, position - self._starts[i] + epoch * self._lengths[component]

    def select(self, indices: Indices) -> Selected:
        if isinstance(indices, range) and indices.step == 1:
            component, first = self[indices[0]]
            last_component, last = self[indices[-1]]
            if component == last_component and last - first == len(indices) - 1:
                return [(component, range(first, last + 1))], range(len(indices))
        return super().select(indices)

    def _of_array(self, indices: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        epochs = indices // self._total
        positions = indices - epochs * self._total
        starts, lengths = [
            np.array(numbers, indices.dtype) for numbers in (self._starts, self._lengths)
        ]
        i = np.searchsorted(starts, positions, side="right") - 1
        components = np.array(self._components)[i]
        inner = positions - starts[i] + epochs * lengths[components]
        return components, inner


def select_singly(selection_map: object, indices: Indices) -> Selected:
    """Return the reads for a block by a selection map that handles single indices only."""
    chosen = [selected(selection_map, i) for i in as_ints(indices)]
    return shares_of([component for component, _ in chosen], [inner for _, inner in chosen])


def shares_of(components: Sequence[int], inner: Sequence[int]) -> Selected:
    """Return the reads for elements ``inner[i]`` of ``components[i]``."""
    shares: dict[int, list[int]] = {}
    places = []
    for component, index in zip(components, inner, strict=True):
        share = shares.setdefault(component, [])
        places.append(len(share))
        share.append(index)
    starts = dict(zip(shares, accumulate(map(len, shares.values()), initial=0), strict=False))
    return list(shares.items()), [
        starts[component] + place for component, place in zip(components, places, strict=True)
    ]


def selected(selection_map: Any, index: int) -> tuple[int, int]:
    """Return ``selection_map[index]`` as built-in integers."""
    try:
        entry = selection_map[index]
    except LookupError as error:
        raise _no_entry(selection_map, index, error) from error
    try:
        component, inner = entry
    except (TypeError, ValueError):
        raise TypeError(
            f"selection_map[{index}] must be the index of a dataset and the index of an element in"
            f" it, got {entry!r:.200}"
        ) from None
    return as_int(f"the dataset index of selection_map[{index}]", component), as_int(
        f"the element index of selection_map[{index}]", inner
    )


def _no_entry(selection_map: Any, index: int, error: LookupError) -> IndexError:
    length, kind = len(selection_map), type(selection_map).__name__
    text = f"selection_map, a {kind} of length {length}, has no entry at {index} ({error!r:.200})"
    if 0 <= index < length:
        return IndexError(f"{text}: it must have one at every index below its length")
    return IndexError(
        f"{text}: repeat, and any index beyond the length, ask for entries of later epochs. Give it"
        " a __getitem__ that answers these, for example by index % len(self); or repeat the"
        " stream, by to_iter_dataset().repeat()"
    )
