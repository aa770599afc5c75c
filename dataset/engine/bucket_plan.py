"""Which elements are in which batch, where batches are of elements of similar lengths.

The guarantees:

1. Batch ``k`` of a bucket in an epoch has the elements ``k * rows`` to ``(k + 1) * rows - 1`` of
   that bucket, counted in the order of the epoch. So what is left of a window continues into the
   next one, and nothing needs to be carried there.
2. A batch belongs to the window that has its last element; what is left at the end of the epoch, to
   the last window. The batches of a window are permuted by seed, epoch and window.
3. All that is kept are counts: of the elements of each bucket up to each window, for the epochs
   used last; and some windows. They are a cache. Everything follows from the lengths, the order of
   the elements, the seed and the epoch.
4. May be asked by several threads at a time.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gristmill.core.indices import Indices, as_array
from gristmill.core.locks import Lock
from gristmill.core.permutation import shuffled_order
from gristmill.dataset.bases.map import MapDataset, farthest_behind
from gristmill.dataset.descriptions.lineage import origin
from gristmill.transforms.length_buckets import Lengths, buckets_of

_NUM_EPOCHS = 4  # whose counts are kept
_NUM_WINDOWS = 8  # whose elements are kept
_NUM_PROBES = 16  # places at which epochs are compared


class BucketElements(NamedTuple):
    """The elements of one batch.

    Args:
        bucket: the number of the bucket.
        indices: where they are in the dataset, in order.
        lengths: of each, as given.
    """

    bucket: int
    indices: list[int]
    lengths: list[int]


class _Window(NamedTuple):
    """The elements of a window by bucket; those of bucket ``b`` are at ``starts[b]`` to ``starts[b
    + 1]``.
    """

    positions: NDArray[np.int64]  # in the epoch
    lengths: NDArray[np.int64]
    starts: list[int]


class _Epoch:
    """The cumulative number of elements of each bucket and of batches before each window, for the
    windows counted so far.
    """

    def __init__(self, num_buckets: int) -> None:
        self.counts = [np.zeros(num_buckets, np.int64)]
        self.num_batches = [0]
        self.order: tuple[int, NDArray[np.int64]] | None = None  # that of the batches of a window


class BucketPlan:
    """The batches of every epoch of a dataset.

    Args:
        ds: the dataset.
        lengths: of the elements of the source, or of ``base_of(ds)``.
        boundaries: of the buckets.
        rows: of a batch, for each bucket.
        window: elements of ``ds`` that are looked at together.
        seed: that of the order of batches.
        drop_remainder: whether batches with fewer rows, at the end of an epoch, are dropped.
        keep_long: whether what is longer than the last boundary is in the last bucket, or nowhere.

    Raises:
        ValueError: the elements of an epoch are not those of any other.
    """

    def __init__(
        self,
        ds: MapDataset[Any],
        lengths: Lengths,
        boundaries: tuple[int, ...],
        rows: tuple[int, ...],
        window: int,
        seed: int,
        drop_remainder: bool,
        keep_long: bool,
    ) -> None:
        self._ds, self._lengths, self._boundaries = ds, lengths, boundaries
        self._rows = np.asarray(rows, np.int64)
        self._window_size, self._seed, self._drop = window, seed, drop_remainder
        self._keep_long = keep_long
        self._num_elements = len(ds)
        self._num_windows = -(-self._num_elements // window)
        self._begin()
        # Of an epoch: the elements of each bucket, how many are longer than the last boundary, and
        # the batches.
        self.counts, self.num_long = self._count()
        self.num_batches = int(self._num_cut(self.counts, is_end=True).sum())

    def _begin(self) -> None:
        self._lock = Lock()
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("_lock", "_epochs", "_windows")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def members(self, index: int) -> BucketElements:
        """Returns the elements of the batch at ``index``; ``num_batches`` must not be 0."""
        number, position = divmod(index, self.num_batches)
        with self._lock:
            epoch = self._epoch(number)
            while epoch.num_batches[-1] <= position:
                self._count_window(number, epoch)
            window = bisect.bisect_right(epoch.num_batches, position) - 1
            begins, stops = self._num_cut(epoch.counts[window]), self._num_cut_after(epoch, window)
            order = self._order(number, epoch, window)
            ends = np.cumsum(stops - begins)
            cut = int(order[position - epoch.num_batches[window]])
            bucket = int(np.searchsorted(ends, cut, side="right"))
            batch = int(stops[bucket]) - (int(ends[bucket]) - cut)
            return self._collected(number, epoch, window, bucket, batch)

    def _collected(
        self, number: int, epoch: _Epoch, window: int, bucket: int, batch: int
    ) -> BucketElements:
        """Returns the elements of a batch that ends in ``window``."""
        start = batch * int(self._rows[bucket])
        stop = min(start + int(self._rows[bucket]), int(epoch.counts[window + 1][bucket]))
        positions: list[int] = []
        lengths: list[int] = []
        while stop > start:  # backwards, since mostly all are in the last window
            num_before = int(epoch.counts[window][bucket])
            if num_before < stop:
                found = self._window(number, window)
                first = found.starts[bucket] - num_before
                here = slice(first + max(start, num_before), first + stop)
                positions = found.positions[here].tolist() + positions
                lengths = found.lengths[here].tolist() + lengths
                stop = num_before
            window -= 1
        offset = number * self._num_elements
        return BucketElements(bucket, [offset + position for position in positions], lengths)

    def _epoch(self, number: int) -> _Epoch:
        found = self._epochs.get(number)
        if found is None:
            found = self._epochs[number] = _Epoch(len(self._rows))
            while len(self._epochs) > _NUM_EPOCHS:
                self._epochs.popitem(last=False)
        self._epochs.move_to_end(number)
        return found

    def _count_window(self, number: int, epoch: _Epoch) -> None:
        """Counts the next window."""
        window = len(epoch.counts) - 1
        if window < self._num_windows:
            epoch.counts.append(epoch.counts[-1] + np.diff(self._window(number, window).starts))
            num = self._num_cut_after(epoch, window)
            epoch.num_batches.append(int(num.sum()))
        if len(epoch.counts) > self._num_windows and (epoch.counts[-1] != self.counts).any():
            del self._epochs[number]
            raise _epochs_differ(
                self._ds, f"{epoch.counts[-1].tolist()} in the buckets, not {self.counts.tolist()}"
            )

    def _num_cut(self, counts: NDArray[np.int64], is_end: bool = False) -> NDArray[np.int64]:
        """Returns the number of batches that are cut from the given numbers of elements."""
        rest = self._rows - 1 if is_end and not self._drop else 0
        cut: NDArray[np.int64] = (counts + rest) // self._rows
        return cut

    def _num_cut_after(self, epoch: _Epoch, window: int) -> NDArray[np.int64]:
        return self._num_cut(epoch.counts[window + 1], is_end=window + 1 == self._num_windows)

    def _order(self, number: int, epoch: _Epoch, window: int) -> NDArray[np.int64]:
        """Returns the order of the batches of a window."""
        if epoch.order is None or epoch.order[0] != window:
            num = epoch.num_batches[window + 1] - epoch.num_batches[window]
            epoch.order = (
                window,
                shuffled_order(num, self._seed + number * self._num_windows + window),
            )
        return epoch.order[1]

    def _window(self, number: int, window: int) -> _Window:
        found = self._windows.get((number, window))
        if found is None:
            found = self._windows[number, window] = self._compute_window(number, window)
            while len(self._windows) > _NUM_WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end((number, window))
        return found

    def _compute_window(self, number: int, window: int) -> _Window:
        start = window * self._window_size
        stop = min(start + self._window_size, self._num_elements)
        offset = number * self._num_elements
        lengths = self._lengths.at(self._keys(range(offset + start, offset + stop)))
        buckets = buckets_of(lengths, self._boundaries).astype(np.min_scalar_type(len(self._rows)))
        if self._keep_long:
            np.minimum(buckets, len(self._rows) - 1, out=buckets)
        by_bucket = np.argsort(buckets, kind="stable")  # of bytes, that is a counting sort
        starts = [
            0,
            *np.cumsum(
                np.bincount(buckets, minlength=len(self._rows) + 1)[: len(self._rows)]
            ).tolist(),
        ]
        return _Window(by_bucket[: starts[-1]] + start, lengths[by_bucket[: starts[-1]]], starts)

    def _keys(self, indices: Indices) -> NDArray[np.int64]:
        """Returns the keys under which the lengths of the elements at ``indices`` are stored."""
        _, found = farthest_behind(self._ds, indices)
        keys = as_array(found, 2**63 - 1) % len(self._lengths)
        return keys.astype(np.int64, copy=False)

    def _count(self) -> tuple[NDArray[np.int64], int]:
        """Returns the number of elements of an epoch in each bucket, and the number of elements
        that are too long.
        """
        times, rest = (
            divmod(self._num_elements, len(self._lengths)) if len(self._lengths) else (0, 0)
        )
        if not rest:  # in any order
            *counts, num_long = (self._lengths.per_bucket(self._boundaries) * times).tolist()
            counts[-1] += num_long if self._keep_long else 0
            return np.array(counts, np.int64), num_long
        (first, num_long), (second, _) = [self._counted(number) for number in (0, 1)]
        if (first != second).any():
            raise _epochs_differ(
                self._ds,
                f"{second.tolist()} in the buckets in epoch 1, not {first.tolist()} as in epoch 0",
            )
        return first, num_long

    def _counted(self, number: int) -> tuple[NDArray[np.int64], int]:
        counts, num_long = np.zeros(len(self._rows), np.int64), 0
        for window in range(self._num_windows):
            found = self._window(number, window)
            counts += np.diff(found.starts)
            num_long += int((found.lengths > self._boundaries[-1]).sum())
        return counts, num_long if self._keep_long else self._num_elements - int(counts.sum())


def base_of(ds: MapDataset[Any]) -> MapDataset[Any]:
    """Returns the dataset whose elements are measured: the source, if every element of ``ds`` is
    one of its records.

    Raises:
        ValueError: that has other elements in other epochs, as a mixture has.
    """
    base, _ = farthest_behind(ds, [0]) if len(ds) else (ds, 0)
    length = len(base)
    for index in {i * length // _NUM_PROBES for i in range(_NUM_PROBES)} if length else ():
        first, later = [
            [records.keys for records in origin(base, [i])] for i in (index, index + length)
        ]
        if first != later:
            raise _epochs_differ(
                base, f"{later} at index {index} in epoch 1, not {first} as in epoch 0"
            )
    return base


def _epochs_differ(ds: MapDataset[Any], how: str) -> ValueError:
    return ValueError(
        f"bucket_batch needs the same elements in every epoch, in any order, but {ds} has"
        f" others ({how}). Take a part of a dataset before it is shuffled, ds[:n].shuffle(), not"
        " after; make batches of every component of a mixture, and mix these; or use"
        " to_iter_dataset().bucket_batch(length_fn, ...)"
    )
