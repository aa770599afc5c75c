"""Buckets for records of different lengths: which lengths there are, and the boundaries that leave
the least padding.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import as_int
from gristmill.core.state import shown

_BLOCK = 1 << 20  # lengths looked at together
_MAX_CELLS = 1 << 16  # of a histogram


class Lengths:
    """The lengths of records, read where they are: an array, or a file that stays on disk and is
    not copied to workers.

    Args:
        values: a one-dimensional array, memory map or sequence of integers, none of them negative.
    """

    def __init__(self, values: Any) -> None:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise TypeError(
                "lengths must be a one-dimensional array of integers, one for each record, got "
                f"{shown(values)} of shape {array.shape} and dtype {array.dtype}"
            )
        self.values: NDArray[Any] = array if array.size else array.astype(np.int64)
        self.longest = 0
        for block in self.blocks():
            if int(block.min()) < 0:
                raise ValueError(f"lengths must not be negative, got {int(block.min())}")
            self.longest = max(self.longest, int(block.max()))

    def __len__(self) -> int:
        return len(self.values)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yields all of them, some at a time."""
        for start in range(0, len(self.values), _BLOCK):
            yield self.values[start : start + _BLOCK]

    def at(self, keys: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the lengths at ``keys``."""
        found: NDArray[np.int64] = np.asarray(self.values[keys]).astype(np.int64, copy=False)
        return found

    def per_bucket(self, boundaries: Sequence[int]) -> NDArray[np.int64]:
        """Returns the number of records in each bucket, and last the number of those longer than
        the last boundary; int64 [buckets + 1].
        """
        total = np.zeros(len(boundaries) + 1, np.int64)
        for block in self.blocks():
            total += np.bincount(buckets_of(block, boundaries), minlength=len(total))
        return total

    def first_longer(self, longest: int) -> tuple[int, int]:
        """Returns the first record that is longer than ``longest``, and its length; there is
        one.
        """
        start = 0
        for block in self.blocks():
            longer = np.flatnonzero(block > longest)
            if len(longer):
                return start + int(longer[0]), int(block[longer[0]])
            start += len(block)
        raise ValueError(f"no record is longer than {longest}")

    def __getstate__(self) -> Any:
        values: Any = self.values
        base: Any = values.base
        # of a part of it, the offset would be wrong
        if isinstance(base, mmap.mmap) and getattr(values, "filename", None):
            return self.longest, (values.filename, values.dtype, "r", values.offset, values.shape)
        return self.longest, values.astype(np.min_scalar_type(self.longest))

    def __setstate__(self, state: Any) -> None:
        self.longest, values = state
        self.values = np.memmap(*values) if isinstance(values, tuple) else values


def buckets_of(lengths: NDArray[Any], boundaries: Sequence[int]) -> NDArray[np.intp]:
    """Returns the bucket of each length: the first whose boundary is not smaller; their number for
    those that are too long.
    """
    if boundaries[-1] < _MAX_CELLS <= len(lengths) and lengths.dtype != np.uint64:
        return _bucket_table(tuple(boundaries)).take(lengths, mode="clip")
    return np.searchsorted(
        np.asarray(boundaries, lengths.dtype if _fits(boundaries, lengths) else np.int64), lengths
    )


@lru_cache(maxsize=8)
def _bucket_table(boundaries: tuple[int, ...]) -> NDArray[np.intp]:
    """Returns the bucket of each length up to the first one that is too long: to look up many takes
    a tenth of searching.
    """
    return np.searchsorted(boundaries, np.arange(boundaries[-1] + 2))


def _fits(boundaries: Sequence[int], lengths: NDArray[Any]) -> bool:
    return boundaries[-1] <= int(np.iinfo(lengths.dtype).max)


def check_boundaries(boundaries: Any) -> tuple[int, ...]:
    """Returns ``boundaries`` as integers.

    Raises:
        TypeError: they are no sequence of integers.
        ValueError: there are no boundaries, or they do not increase, or one is not positive.
    """
    if isinstance(boundaries, str | bytes) or not hasattr(boundaries, "__iter__"):
        raise TypeError(
            f"boundaries must be a sequence of increasing lengths, got {shown(boundaries)}"
        )
    found = tuple([as_int("boundaries", boundary, minimum=1) for boundary in boundaries])
    if not found or any([b <= a for a, b in pairwise(found)]):
        raise ValueError(
            f"boundaries must be increasing lengths, at least one, got {shown(list(found))}"
        )
    return found


def check_batch_sizes(
    boundaries: Sequence[int], max_tokens: int | None, batch_sizes: Any, *, num_shards: int = 1
) -> tuple[int, ...]:
    """Returns the number of rows of the batches of each bucket, of all shards together, which have
    equally many.

    Raises:
        TypeError: an argument is no integer, or neither or both of them are given.
        ValueError: there are other numbers of batch sizes and of buckets, or the shards would not
            have as many rows each.
    """
    if (max_tokens is None) == (batch_sizes is None):
        raise TypeError(
            "bucket_batch needs either max_tokens or batch_sizes, which say how many rows a"
            " batch has"
        )
    if max_tokens is not None:
        limit = as_int("max_tokens", max_tokens, minimum=1)
        if boundaries[-1] * num_shards > limit:
            raise ValueError(
                f"max_tokens must admit a row of the longest boundary, {boundaries[-1]}, for each"
                f" of {num_shards} shards, got {limit}: take at least"
                f" {boundaries[-1] * num_shards}, or a smaller boundary"
            )
        return tuple([limit // boundary // num_shards * num_shards for boundary in boundaries])
    if isinstance(batch_sizes, Sequence | np.ndarray) and not isinstance(batch_sizes, str | bytes):
        sizes = tuple([as_int("batch_sizes", size, minimum=1) for size in batch_sizes])
    else:
        sizes = (as_int("batch_sizes", batch_sizes, minimum=1),) * len(boundaries)
    if len(sizes) != len(boundaries):
        raise ValueError(
            f"batch_sizes must be one number, or one for each of the {len(boundaries)} buckets with"
            f" the boundaries {list(boundaries)}, got {list(sizes)}"
        )
    uneven = [size for size in sizes if size % num_shards]
    if uneven:
        raise ValueError(
            f"batch_sizes must be divisible by the number of shards, {num_shards}, got {uneven[0]}"
        )
    return sizes


def bucket_boundaries(lengths: Any, num_buckets: int, *, longest: int | None = None) -> list[int]:
    """Returns the boundaries of buckets that leave the least padding: no others leave less, with as
    many buckets or fewer.

    Every record is padded to the first boundary that is not smaller than its length; the last
    boundary is the greatest length. There are fewer than ``num_buckets`` if there are fewer
    different lengths. Found by dynamic programming over the histogram of the lengths: some 10 ns
    for each, and 50 ms for 65 536 different ones and 8 buckets. Greater lengths are distinguished
    in 65 536 steps.

    Args:
        lengths: an array or memory map of integers, one for each record, none negative.
        num_buckets: at least 1.
        longest: longer records count as this long, as they do if they are truncated to it.

    Raises:
        TypeError: ``lengths`` are no array of integers, or another argument is no integer.
        ValueError: a number is out of range, or there are no records.

    Example:
        >>> bucket_boundaries([3, 3, 3, 4, 9, 10, 10], 2)
        [4, 10]
        >>> bucket_boundaries([3, 3, 3, 4, 9, 10, 400], 2, longest=12)
        [4, 12]
    """
    found = Lengths(lengths)
    number = as_int("num_buckets", num_buckets, minimum=1)
    if not len(found):
        raise ValueError("lengths must not be empty: there is nothing to choose boundaries by")
    return chosen_boundaries(
        found, number, None if longest is None else as_int("longest", longest, minimum=1)
    )


def chosen_boundaries(
    lengths: Lengths, num_buckets: int, longest: int | None, keep_long: bool = True
) -> list[int]:
    """Returns ``bucket_boundaries``; without ``keep_long``, of the records that are not longer than
    ``longest``.
    """
    top = lengths.longest if longest is None else min(lengths.longest, longest)
    values, counts = _histogram(lengths, max(1, top), keep_long)
    return _least_padding(values, counts, num_buckets) if len(values) else [max(1, top)]


def _histogram(
    lengths: Lengths, longest: int, keep_long: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the different lengths, in steps, and how many records have each of them."""
    step = -(-longest // _MAX_CELLS)
    counts = np.zeros(-(-longest // step) + 1, np.int64)
    for block in lengths.blocks():
        cells = (np.minimum(block, longest) if keep_long else block[block <= longest]).astype(
            np.int64, copy=False
        )
        counts += np.bincount(cells if step == 1 else -(-cells // step), minlength=len(counts))
    counts[1] += counts[0]  # records without anything have a row of their own, too
    values = np.flatnonzero(counts[1:]) + 1
    return np.minimum(values * step, longest), counts[values]


def _least_padding(
    values: NDArray[np.int64], counts: NDArray[np.int64], num_buckets: int
) -> list[int]:
    """Returns the greatest value of each bucket.

    With ``v`` the values and ``n`` how many records there are up to each of them, ``k`` buckets of
    the first ``j`` values need ``best[k][j] = min over i of best[k-1][i] + v[j-1] * (n[j] - n[i])``
    cells. The ``i`` of the minimum does not decrease with ``j`` (the cost has the quadrangle
    inequality), so that every second one is between those of its neighbours.
    """
    num_before = np.concatenate([[0], np.cumsum(counts)])
    best = np.concatenate([[0], values * num_before[1:]])
    chosen: list[NDArray[np.int64]] = []
    for _ in range(min(num_buckets, len(values)) - 1):
        best, first = _with_one_more(best, values, num_before)
        chosen.append(first)
    stops = [len(values)]
    for first in reversed(chosen):
        stops.append(int(first[stops[-1]]))
    return [int(values[stop - 1]) for stop in sorted({stop for stop in stops if stop})]


def _with_one_more(
    best: NDArray[np.int64], values: NDArray[np.int64], num_before: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the fewest cells for the first ``j`` values with one more bucket, and where that
    begins; int64 [values + 1] each.
    """
    num = len(values)
    fewest, first = best.copy(), np.zeros(num + 1, np.int64)
    step = 1 << num.bit_length()
    while step:  # first for few ``j``, then for those between them
        stops = np.arange(step, num + 1, 2 * step)
        if len(stops):
            low = first[stops - step]
            after = stops + step
            high = np.where(after <= num, first[np.minimum(after, num)], stops - 1)
            sizes = np.minimum(high, stops - 1) - low + 1
            begins = np.cumsum(sizes) - sizes
            starts = np.arange(sizes.sum()) + np.repeat(low - begins, sizes)
            cells = best[starts] + np.repeat(values[stops - 1], sizes) * (
                np.repeat(num_before[stops], sizes) - num_before[starts]
            )
            fewest[stops] = np.minimum.reduceat(cells, begins)
            is_least = cells == np.repeat(fewest[stops], sizes)
            first[stops] = np.minimum.reduceat(np.where(is_least, starts, num), begins)
        step //= 2
    return fewest, first
