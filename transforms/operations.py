"""The legacy operations of a ``DataLoader``: callables from an iterator of records to an iterator
of records.

Deprecated; the classes in ``gristmill.transforms`` do the same, faster and with exact checkpoints.
An operation that keeps records back (reads several before it yields) loses them when its iterator
is restored.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from gristmill.core import tree
from gristmill.core.errors import as_int
from gristmill.core.record import Record, RecordMetadata
from gristmill.transforms.batching import check_no_nul, leaf_path
from gristmill.transforms.bin_packing import Bins, Feature, first_fit
from gristmill.transforms.sequences import as_sequence

_log = logging.getLogger("gristmill")

IN = TypeVar("IN")
OUT = TypeVar("OUT")


@runtime_checkable
class Operation(Protocol):
    """A callable that takes an iterator of records and gives one."""

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]: ...


def _deprecated(name: str, better: str) -> None:
    message = f"{name} is deprecated; use gristmill.transforms.{better}"
    _log.error("%s", message)
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _call(what: str, fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        raise ValueError(f"PyGrain encountered an error when calling {what}.") from error


@dataclass
class MapOperation(Generic[IN, OUT]):
    """Applies ``map_function`` to the data of every record."""

    map_function: Callable[[Any], Any]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("MapOperation", "Map")
        for record in input_iterator:
            data = _call("map function", self.map_function, record.data)
            yield Record(record.metadata.remove_record_key(), data)


@dataclass
class RandomMapOperation(Generic[IN, OUT]):
    """Applies ``random_map_function`` to the data and the generator of every record."""

    random_map_function: Callable[[Any, np.random.Generator], Any]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("RandomMapOperation", "RandomMap")
        for record in input_iterator:
            data = _call(
                "random map function", self.random_map_function, record.data, record.metadata.rng
            )
            yield Record(record.metadata.remove_record_key(), data)


@dataclass
class FilterOperation(Generic[IN]):
    """Keeps the records whose data ``condition_function`` accepts."""

    condition_function: Callable[[Any], bool]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("FilterOperation", "Filter")
        for record in input_iterator:
            if _call("condition function", self.condition_function, record.data):
                yield Record(record.metadata.remove_record_key(), record.data)


@dataclass
class BatchOperation(Generic[IN, OUT]):
    """Combines consecutive records into one; in a ``DataLoader`` it is treated as
    ``gristmill.transforms.Batch``.

    Args:
        batch_size: records per batch, at least 1.
        drop_remainder: drop the last batch if it is smaller.
        batch_fn: makes a batch of a list of data; by default leaves are stacked along a new first
            axis.

    Raises:
        ValueError: ``batch_size`` is not positive.
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        as_int("batch_size", self.batch_size)
        if self.batch_size <= 0:
            raise ValueError(f"batch_size must be a positive integer. Got {self.batch_size}.")
        if self.batch_fn is None:
            self.batch_fn = self._batch

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("BatchOperation", "Batch")
        records: list[Record[Any]] = []
        for record in input_iterator:
            records.append(record)
            if len(records) == self.batch_size:
                yield self._record(records)
                records = []
        if records and not self.drop_remainder:
            yield self._record(records)

    def _record(self, records: list[Record[Any]]) -> Record[Any]:
        assert self.batch_fn is not None
        return Record(
            records[-1].metadata.remove_record_key(),
            self.batch_fn([record.data for record in records]),
        )

    def _batch(self, values: Sequence[Any]) -> Any:
        flat = [tree.flatten(value) for value in values]
        structure = flat[0][1]
        others = [i for i, (_, other) in enumerate(flat) if other != structure]
        if others:
            raise TypeError(
                f"Record structures do not match. Record at position 0 has structure {structure},"
                f" while records at positions {others} have structures"
                f" {[flat[i][1] for i in others]}."
            )
        rows = [leaves for leaves, _ in flat]
        columns = [[row[i] for row in rows] for i in range(len(rows[0]))]
        for i, column in enumerate(columns):
            check_no_nul(column, partial(leaf_path, values[0], i))
        return tree.unflatten(structure, [np.stack(column) for column in columns])


@dataclass
class PackAndBatchOperation(Generic[IN]):
    """Packs sequences into the rows of batches: each goes into the first row that has room for it.

    Data of a batch are a tuple of three pytrees like an element: values, shape ``(batch_size,
    length, …)``; segment ids, which count the sequences in a row from 1, and positions, which count
    in each sequence from 0, both ``int32`` and 0 in unused cells. A sequence that fits into no row
    begins the next batch. The last batch has all its rows too.

    Deprecated: use ``gristmill.experimental.FirstFitPackIterDataset``.

    Args:
        length_struct: the length of a row for every leaf of an element: a pytree of integers like
            the elements, whose leaves are arrays with the axis of the sequence first, or scalars,
            sequences of length 1.
        batch_size: rows per batch, at least 1.
        max_sequences_per_bin: sequences per row, at least 1; no limit by default.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is not positive. When iterating, an element has another structure, or a
            sequence is too long, or its trailing shape or its values do not suit the batch.

    Example:
        >>> import numpy as np, warnings
        >>> from gristmill.core.record import Record, RecordMetadata
        >>> records = [Record(RecordMetadata(i), np.full(n, n)) for i, n in enumerate([3, 4, 2])]
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", DeprecationWarning)
        ...     (batch,) = PackAndBatchOperation(length_struct=5, batch_size=2)(iter(records))
        >>> batch.data[0]
        array([[3, 3, 3, 2, 2],
               [4, 4, 4, 4, 0]])
    """

    length_struct: Any
    batch_size: int
    max_sequences_per_bin: int | None = None

    def __post_init__(self) -> None:
        message = (
            "PackAndBatchOperation is deprecated; use"
            " gristmill.experimental.FirstFitPackIterDataset"
        )
        _log.error("%s", message)
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        as_int("batch_size", self.batch_size, minimum=1)
        if self.max_sequences_per_bin is not None:
            as_int("max_sequences_per_bin", self.max_sequences_per_bin, minimum=1)
        self._features()

    def _features(self) -> list[Feature]:
        lengths, paths = tree.flatten(self.length_struct)[0], tree.leaf_paths(self.length_struct)
        if not lengths:
            raise ValueError(
                "length_struct must have a length for every leaf of an element, got"
                f" {self.length_struct!r:.200}"
            )
        lengths = [
            as_int(f"length_struct{path}", length, minimum=1)
            for path, length in zip(paths, lengths, strict=True)
        ]
        return [
            Feature(path or "of the elements", length)
            for path, length in zip(paths, lengths, strict=True)
        ]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        features = self._features()
        flatten = tree.flattener()
        structure = flatten(self.length_struct)[1]
        bins: Bins | None = None
        metadata = RecordMetadata(0)
        for record in input_iterator:
            leaves, other = flatten(record.data)
            if other != structure:
                raise ValueError(
                    f"elements must have the structure of length_struct, which is {structure}, got"
                    f" {other} in the record with key {record.metadata.record_key}: give"
                    " length_struct a length for every leaf of an element, or change the elements"
                    " before (with map)"
                )
            sequences = [
                as_sequence(feature.name, leaf)
                for feature, leaf in zip(features, leaves, strict=True)
            ]
            if bins is not None and not bins.add(sequences):
                yield Record(metadata, self._batch(bins, structure))
                bins = None
            if bins is None:
                bins = Bins(
                    features,
                    first_fit(features, self.batch_size, self.max_sequences_per_bin),
                    sequences,
                )
                bins.add(sequences)
            metadata = record.metadata.remove_record_key()
        if bins is not None:
            yield Record(metadata, self._batch(bins, structure))

    def _batch(self, bins: Bins, structure: tree.Structure) -> tuple[Any, ...]:
        return tuple(
            [
                tree.unflatten(structure, arrays)
                for arrays in zip(*bins.columns(self.batch_size), strict=True)
            ]
        )
