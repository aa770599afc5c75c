"""Packing sequences into bins of fixed lengths: which bin each goes to, and what the bins hold in
the end.
"""

from __future__ import annotations

import abc
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, TypeAlias

import numpy as np

from gristmill.transforms.sequences import Array, as_dtype_of

# values, segment ids and positions of a feature in all bins
Columns: TypeAlias = "tuple[Array, Array | None, Array | None]"


@dataclass(frozen=True)
class Feature:
    """The way a feature is packed.

    Args:
        name: for messages.
        length: cells in a bin.
        alignment: sequences begin at multiples of it.
        padding: what unused cells hold, ``None`` for 0.
        is_meta: without segment ids and positions.
    """

    name: str
    length: int
    alignment: int = 1
    padding: Any = None
    is_meta: bool = False


class Placer(abc.ABC):
    """Chooses bins for sequences of given lengths, and remembers how full these are.

    A bin is suited if every feature fits after what it holds, and it holds fewer than
    ``max_sequences`` sequences. The bins in use are always the first ones.
    """

    @abc.abstractmethod
    def find(self, lengths: Sequence[int]) -> int:
        """Returns the bin for a sequence of these lengths, one for each feature; -1 if none is
        suited.
        """

    @abc.abstractmethod
    def put(self, chosen: int, lengths: Sequence[int]) -> None:
        """Counts a sequence into the bin that ``find`` has just chosen for it."""


# features, bins, sequences allowed in one
MakePlacer: TypeAlias = "Callable[[Sequence[Feature], int, int | None], Placer]"


class FirstFit(Placer):
    """The first suited bin, for one feature: ``log2(num_bins)`` steps, through a tree of the
    largest free spaces.
    """

    def __init__(self, feature: Feature, num_bins: int, max_sequences: int | None) -> None:
        self._length, self._alignment = feature.length, feature.alignment
        self._half = half = 1 << (num_bins - 1).bit_length()
        # free[half + r] is the space in bin r, -1 if it takes nothing at all; free[i] the larger
        # one of free[2i] and free[2i+1]
        self._free = free = [-1] * half + [self._length] * num_bins + [-1] * (half - num_bins)
        for i in range(half - 1, 0, -1):
            free[i] = max(free[2 * i], free[2 * i + 1])
        self._room = None if max_sequences is None else [max_sequences] * num_bins

    def find(self, lengths: Sequence[int]) -> int:
        (length,) = lengths
        free, half = self._free, self._half
        if free[1] < length:
            return -1
        node = 1
        while node < half:
            node += node
            if free[node] < length:
                node += 1
        return node - half

    def put(self, chosen: int, lengths: Sequence[int]) -> None:
        free, node = self._free, self._half + chosen
        space = free[node] - lengths[0]
        if self._alignment > 1:
            space = self._length - _aligned(self._length - space, self._alignment)
        if self._room is not None:
            self._room[chosen] -= 1
            if not self._room[chosen]:
                space = -1
        free[node] = space
        while node > 1:
            sibling = free[node ^ 1]
            if sibling > space:
                space = sibling
            node >>= 1
            if free[node] == space:
                break
            free[node] = space


class BestFit(Placer):
    """The fullest suited bin, the first of those that are equally full, for one feature.

    Bins that are equally full are in a heap. So the cost grows with the logarithm of their number,
    and with that of the number of different fillings.
    """

    def __init__(self, feature: Feature, num_bins: int, max_sequences: int | None) -> None:
        self._length, self._alignment = feature.length, feature.alignment
        self._fillings = [0]  # those that occur, in ascending order
        self._bins = {0: list(range(num_bins))}
        self._room = None if max_sequences is None else [max_sequences] * num_bins

    def find(self, lengths: Sequence[int]) -> int:
        i = bisect_right(self._fillings, self._length - lengths[0]) - 1
        return -1 if i < 0 else self._bins[self._fillings[i]][0]

    def put(self, chosen: int, lengths: Sequence[int]) -> None:
        i = bisect_right(self._fillings, self._length - lengths[0]) - 1
        filling = self._fillings[i]
        heappop(self._bins[filling])
        if not self._bins[filling]:
            del self._fillings[i], self._bins[filling]
        if self._room is not None:
            self._room[chosen] -= 1
            if not self._room[chosen]:
                return
        filling = _aligned(filling + lengths[0], self._alignment)
        if filling in self._bins:
            heappush(self._bins[filling], chosen)
        else:
            insort(self._fillings, filling)
            self._bins[filling] = [chosen]


class ManyFeaturesFit(Placer):
    """The first or the fullest suited bin, for any number of features: array operations over all
    bins.
    """

    def __init__(
        self, features: Sequence[Feature], num_bins: int, max_sequences: int | None, *, best: bool
    ) -> None:
        self._lengths = [feature.length for feature in features]
        self._alignments = [feature.alignment for feature in features]
        self._fillings = np.zeros((len(features), num_bins), np.int64)
        self._room = np.full(
            num_bins, np.iinfo(np.int64).max if max_sequences is None else max_sequences
        )
        self._totals = np.zeros(num_bins, np.int64) if best else None

    def find(self, lengths: Sequence[int]) -> int:
        is_suited = self._room > 0
        for fillings, whole, length in zip(self._fillings, self._lengths, lengths, strict=True):
            is_suited &= fillings <= whole - length
        if self._totals is None:
            chosen = int(is_suited.argmax())
        else:
            chosen = int(np.where(is_suited, self._totals, -1).argmax())
        return chosen if is_suited[chosen] else -1

    def put(self, chosen: int, lengths: Sequence[int]) -> None:
        before = self._fillings[:, chosen].tolist()
        after = [
            _aligned(filling + n, a)
            for filling, n, a in zip(before, lengths, self._alignments, strict=True)
        ]
        self._fillings[:, chosen] = after
        self._room[chosen] -= 1
        if self._totals is not None:
            self._totals[chosen] = sum(after)


def first_fit(features: Sequence[Feature], num_bins: int, max_sequences: int | None) -> Placer:
    """Returns a placer that takes the first suited bin."""
    if len(features) == 1:
        return FirstFit(features[0], num_bins, max_sequences)
    return ManyFeaturesFit(features, num_bins, max_sequences, best=False)


def best_fit(features: Sequence[Feature], num_bins: int, max_sequences: int | None) -> Placer:
    """Returns a placer that takes the suited bin that is fullest, summed over the features; of
    equally full ones the first.
    """
    if len(features) == 1:
        return BestFit(features[0], num_bins, max_sequences)
    return ManyFeaturesFit(features, num_bins, max_sequences, best=True)


class Bins:
    """Bins that are being filled. What they hold is written when they are complete, once for all of
    them.

    Args:
        features: how each feature is packed.
        placer: chooses the bins.
        first: the first sequences, which decide dtypes and trailing shapes.
    """

    def __init__(self, features: Sequence[Feature], placer: Placer, first: Sequence[Array]) -> None:
        self._features = features
        self._placer = placer
        self._likes = [(array.dtype, array.shape[1:]) for array in first]
        self._paddings = [
            _unused(feature, array) for feature, array in zip(features, first, strict=True)
        ]
        # the sequences in each bin, an array for each feature
        self._contents: list[list[list[Array]]] = []
        # for each bin, what was given along with the sequences in it
        self.extras: list[list[Any]] = []

    def __len__(self) -> int:
        """Returns the number of bins in use, the first ones."""
        return len(self._contents)

    def add(self, sequences: list[Array], extra: Any = None) -> bool:
        """Puts ``sequences``, an array for each feature, into a bin, if one is suited. If this
        raises, nothing has changed.

        Raises:
            ValueError: a sequence is longer than a bin, or of a shape or dtype that does not suit
                the bin.
        """
        lengths = [len(array) for array in sequences]
        chosen = self._placer.find(lengths)
        if chosen < 0:
            if any(
                [n > feature.length for n, feature in zip(lengths, self._features, strict=True)]
            ):
                raise ValueError(_too_long(self._features, lengths))
            return False
        if [(array.dtype, array.shape[1:]) for array in sequences] != self._likes:
            sequences = [
                as_dtype_of(
                    feature.name, array, dtype, trailing, "the first sequence in these bins"
                )
                for feature, array, (dtype, trailing) in zip(
                    self._features, sequences, self._likes, strict=True
                )
            ]
        self._placer.put(chosen, lengths)
        if chosen == len(self._contents):
            self._contents.append([])
            self.extras.append([])
        self._contents[chosen].append(sequences)
        self.extras[chosen].append(extra)
        return True

    def num_bytes(self, num_bins: int) -> int:
        """Returns the bytes of arrays for ``num_bins`` bins, and of one number for each feature and
        bin, its fill.
        """
        size = 0
        for feature, padding in zip(self._features, self._paddings, strict=True):
            size += num_bins * (padding.nbytes + 2 * 4 * feature.length + 8)
        return size

    def columns(self, num_rows: int | None = None) -> list[Columns]:
        """Values, segment ids and positions of every feature, new arrays of shape ``(num_rows,
        length, …)``.

        Args:
            num_rows: how many bins, unused ones at the end among them; by default those in use.
        """
        rows = len(self) if num_rows is None else num_rows
        return [self._column(i, feature, rows) for i, feature in enumerate(self._features)]

    def _column(self, i: int, feature: Feature, num_rows: int) -> Columns:
        length, alignment = feature.length, feature.alignment
        dtype, trailing = self._likes[i]
        padding = self._paddings[i]
        pieces: list[Array] = []  # of the bins, one after another, gaps included
        numbers: list[int] = []  # of each piece in its bin; 0 for gaps
        for contents in self._contents:
            arrays = [sequences[i] for sequences in contents]
            if alignment == 1:
                pieces += arrays
                numbers += range(1, len(arrays) + 1)
                end = sum(map(len, arrays))
            else:
                end = 0
                for number, array in enumerate(arrays, 1):
                    start = _aligned(end, alignment)
                    pieces += [padding[end:start], array]
                    numbers += [0, number]
                    end = start + len(array)
            pieces.append(padding[end:])
            numbers.append(0)
        unused = num_rows - len(self)
        pieces += [padding] * unused
        numbers += [0] * unused
        values = np.empty((num_rows, length, *trailing), dtype)
        np.concatenate(pieces, out=values.reshape(num_rows * length, *trailing))
        if feature.is_meta:
            return values, None, None
        sizes = list(map(len, pieces))
        segment_ids = np.repeat(np.array(numbers, np.int32), sizes)
        ramp, zeros = np.arange(length, dtype=np.int32), np.zeros(length, np.int32)
        positions = np.concatenate(
            [(ramp if number else zeros)[:n] for number, n in zip(numbers, sizes, strict=True)]
        )
        return values, segment_ids.reshape(num_rows, length), positions.reshape(num_rows, length)


def emission_order(num_rows: int, seed: int, grouped_by: Array | None = None) -> list[int]:
    """Returns the order in which bins are given out: shuffled, or in groups of similar values.

    Args:
        num_rows: how many bins.
        seed: of the shuffle.
        grouped_by: values of one feature in every bin, of shape ``(num_rows, …)``: bins come in
            ascending order of the mean of the different non-zero ones, shuffled where that is
            equal.
    """
    shuffled = np.random.default_rng(seed).permuted(range(num_rows)).tolist()
    if grouped_by is None:
        return shuffled
    means = []
    for row in grouped_by:
        different = np.unique(row)
        means.append(different.sum() / max(np.count_nonzero(different), 1))
    return sorted(range(num_rows), key=lambda i: (means[i], shuffled[i]))


def _aligned(mark: int, alignment: int) -> int:
    return -(-mark // alignment) * alignment


def _unused(feature: Feature, like: Array) -> Array:
    """Returns a bin in which every cell is unused."""
    shape = (feature.length, *like.shape[1:])
    if feature.padding is None:
        return np.zeros(shape, like.dtype)
    padding = np.asarray(feature.padding)
    padding = as_dtype_of(
        feature.name, padding, like.dtype, padding.shape[1:], "the first sequence, for its padding,"
    )
    try:
        return np.ascontiguousarray(np.broadcast_to(padding, shape))
    except ValueError:
        raise ValueError(
            f"the padding of feature {feature.name} must be one value, or fill cells {shape}, got"
            f" {padding}"
        ) from None


def _too_long(features: Sequence[Feature], lengths: Sequence[int]) -> str:
    found = [
        (feature.name, n, feature.length)
        for feature, n in zip(features, lengths, strict=True)
        if n > feature.length
    ]
    return (
        "sequences must be truncated to the length of a bin before packing; too long are (feature,"
        " length, maximum): " + ", ".join(map(str, found))
    )
