"""Pipelines that can be computed from any position on: the files are ranges of positions.

These are all map datasets, and streams whose stages after ``to_iter_dataset`` change or choose
elements one by one. Any worker computes the elements of a range, and they are those of the whole.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

from gristmill.core.hooks import explained
from gristmill.core.options import ReadOptions
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import tolerances
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.descriptions.lineage import origin
from gristmill.dataset.slicing import replaced_in
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.dataset.stages.stream_interleave import needs_of
from gristmill.prepare.files import FileWriter, Finished, stem_of

_PLACE = re.compile(r" @ [^)]*")  # of a function in a file, which is another on another machine
_TOGETHER = 64  # elements that are taken at a time,
_TOGETHER_BYTES = 1 << 22  # or fewer, of this size
_NUM_TIMED = 2  # elements of each file that are computed one by one; the first may open files
_QUICK_SECONDS = 1.5e-5  # an element that takes longer is computed by threads
_NO_THREADS = ReadOptions(num_threads=0, prefetch_buffer_size=0)
NO_FAULTS: Mapping[str, Any] = {"total": 0, "last": []}


class Ranges:
    """The elements of a pipeline by ranges of positions.

    Args:
        ds: a map dataset, or a stream for which ``has_ranges`` is True.
    """

    def __init__(self, ds: Any) -> None:
        self._root: Any = ds
        self._steps: list[Any] = []  # from the source on
        while not isinstance(self._root, MapDataset):
            self._steps.insert(0, self._root)
            self._root = self._root._gm_parents[0]
        self._counts_faults = bool(tolerances(ds))

    @staticmethod
    def has_ranges(ds: Any) -> bool:
        """Returns True if elements follow from positions: any range can be computed alone."""
        while isinstance(ds, IterDataset):
            if type(ds) is PrefetchIterDataset:
                return not parameters_of(ds).allow_nones
            if needs_of(ds) not in ("elements", "choice", "nothing") or len(ds._gm_parents) != 1:
                return False
            ds = ds._gm_parents[0]
        return isinstance(ds, MapDataset)

    def __len__(self) -> int:
        return len(self._root)

    def over(self, part: Any, options: ReadOptions | None = None) -> Any:
        """Returns a stream of the elements of ``part``, a slice of the map dataset at the root.

        Args:
            part: the slice.
            options: how a map dataset is read; a stream has its own.
        """
        if not self._steps:
            return part.to_iter_dataset(options, allow_nones=True)
        ds = part
        for step in self._steps:
            ds = replaced_in(step, step._gm_parents[0], ds)
        return ds

    def write(
        self, writer: FileWriter, number: int, start: int, stop: int, record_bytes: int
    ) -> Finished:
        """Writes the elements at ``start`` to ``stop - 1`` as file ``number``."""
        # Small elements are taken together: one by one they take three times as long.
        together = max(1, min(_TOGETHER, _TOGETHER_BYTES // max(1, record_bytes)))
        has_holes = not self._steps  # of a stream, None is an element

        def where(place: int) -> str:
            if self._steps or (self._counts_faults and it.faults().total):  # which have no position
                records = records_of_last(it, place % together)
                return f"element {place} of those at {start} to {stop - 1}{records}"
            return f"element {start + place}{records_at(self._root, start + place)}"

        if self._steps or self._counts_faults:  # which one iterator has to know all of
            with closing(self._opened(start, stop, together)) as it:
                elements = chain.from_iterable(it)
                return writer.write(number, elements, lambda: self._faults(it), where, has_holes)
        with closing(self._batches(start, stop, together)) as batches:
            elements = chain.from_iterable(batches)
            return writer.write(number, elements, lambda: NO_FAULTS, where, has_holes)

    def _opened(
        self, start: int, stop: int, together: int, options: ReadOptions | None = None
    ) -> Any:
        """Returns an iterator over the elements at ``start`` to ``stop - 1``, in lists."""
        part = MapDataset.slice(self._root, slice(start, stop))
        return iter(self.over(part, options).batch(together, batch_fn=list))

    def _batches(self, start: int, stop: int, together: int) -> Generator[list[Any], None, None]:
        """Yields the elements of a map dataset at ``start`` to ``stop - 1`` in lists, computed by
        threads from where one element takes longer than to hand it from thread to thread.
        """
        first = min(start + _NUM_TIMED, stop)
        quickest = math.inf
        with closing(self._opened(start, first, 1, _NO_THREADS)) as it:
            for batch, seconds in _timed(it):
                quickest = min(quickest, seconds)
                yield batch
        if quickest < _QUICK_SECONDS and first < stop:
            with closing(self._opened(first, stop, together, _NO_THREADS)) as it:
                for batch, seconds in _timed(it):
                    first += len(batch)
                    yield batch
                    if seconds > _QUICK_SECONDS * len(batch):
                        break
        if first < stop:
            with closing(self._opened(first, stop, together)) as it:
                yield from it

    def _faults(self, it: Any) -> Mapping[str, Any]:
        return faults_of(it) if self._counts_faults else NO_FAULTS


class RangeJob:
    """Writes one file of a pipeline with ranges; the unit of work of workers.

    Args:
        writer: of the folder.
        ranges: the pipeline.
        record_bytes: about the size of a record.
    """

    def __init__(self, writer: FileWriter, ranges: Ranges, record_bytes: int) -> None:
        self._writer = writer
        self._ranges = ranges
        self._record_bytes = record_bytes

    def __str__(self) -> str:
        return "a file of gristmill.write"

    def __call__(self, unit: tuple[int, int, int]) -> tuple[int, bool, Finished]:
        """Writes a file unless it is written: its number, first position, and end are the unit.

        Returns:
            its number, whether this call has written it, and what is known of it.
        """
        number, start, stop = unit
        with self._writer.folder.lock(stem_of(number)):
            done = self._writer.finished(number)
            if done is not None:
                return number, False, done
            new = self._ranges.write(self._writer, number, start, stop, self._record_bytes)
            return number, True, new


def _timed(it: Iterator[list[Any]]) -> Iterator[tuple[list[Any], float]]:
    """Yields batches with the seconds that each took."""
    while True:
        began = time.perf_counter()
        batch = next(it, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - began


def faults_of(it: Any) -> dict[str, Any]:
    """Returns what an iterator has skipped, as JSON."""
    counts = it.faults()
    last = [
        {
            "record_key": _json_key(fault.record_key),
            "stage": _PLACE.sub("", fault.stage),
            "error": str(fault.error),
        }
        for fault in counts.last
    ]
    return {"total": counts.total, "last": last}


def added_faults(all_of: Any) -> dict[str, Any]:
    """Returns the faults of several files together."""
    faults = [*all_of]
    return {
        "total": sum([one["total"] for one in faults]),
        "last": [fault for one in faults for fault in one["last"]],
    }


def _json_key(key: Any) -> Any:
    return key if isinstance(key, int | str | None) else str(key)


def records_at(ds: Any, index: int) -> str:
    """Names the records that an element of a map dataset is made of, for messages."""
    return _records_text([key for records in origin(ds, [index]) for key in records.keys])


def records_of_last(it: Any, row: int | None = None) -> str:
    """Names the records that the last output of an iterator is made of, for messages.

    Args:
        it: the iterator.
        row: a row of the output; ``None`` for all of them.
    """
    try:
        found = explained(it)
    except Exception:  # a stage that cannot be explained, or a function that fails
        return ""
    skipped = {(record.source, record.record_key) for record in found.faults}
    rows = [[(record.source, record.record_key) for record in each.records] for each in found.rows]
    rows = [records for records in rows if skipped.isdisjoint(records)]
    rows = rows if row is None else rows[row : row + 1]
    return _records_text([key for records in rows for _, key in records])


def _records_text(keys: Sequence[Any]) -> str:
    if len(keys) < 2:
        return f" (record {keys[0]})" if keys else ""
    return f" (records {', '.join(map(str, keys[:8]))}{'…' * (len(keys) > 8)})"
