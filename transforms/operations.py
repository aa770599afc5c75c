"""The legacy operations of a ``DataLoader``: callables from an iterator of records to an iterator of records.

Deprecated; the classes in ``gristmill.transforms`` do the same, faster and with exact checkpoints. An operation that keeps
records back (reads several before it yields) loses them when its iterator is restored.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gristmill.core import tree
from gristmill.core.errors import as_int
from gristmill.core.record import Record

_log = logging.getLogger("gristmill")


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
class MapOperation:
    """Applies ``map_function`` to the data of every record."""

    map_function: Callable[[Any], Any]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("MapOperation", "Map")
        for record in input_iterator:
            data = _call("map function", self.map_function, record.data)
            yield Record(record.metadata.remove_record_key(), data)


@dataclass
class RandomMapOperation:
    """Applies ``random_map_function`` to the data and the generator of every record."""

    random_map_function: Callable[[Any, np.random.Generator], Any]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("RandomMapOperation", "RandomMap")
        for record in input_iterator:
            data = _call("random map function", self.random_map_function, record.data, record.metadata.rng)
            yield Record(record.metadata.remove_record_key(), data)


@dataclass
class FilterOperation:
    """Keeps the records whose data ``condition_function`` accepts."""

    condition_function: Callable[[Any], bool]

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        _deprecated("FilterOperation", "Filter")
        for record in input_iterator:
            if _call("condition function", self.condition_function, record.data):
                yield Record(record.metadata.remove_record_key(), record.data)


@dataclass
class BatchOperation:
    """Combines consecutive records into one; in a ``DataLoader`` it is treated as ``gristmill.transforms.Batch``.

    Args:
        batch_size: records per batch, at least 1.
        drop_remainder: drop the last batch if it is smaller.
        batch_fn: makes a batch of a list of data; by default leaves are stacked along a new first axis.

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
        return Record(records[-1].metadata.remove_record_key(), self.batch_fn([record.data for record in records]))

    def _batch(self, values: Sequence[Any]) -> Any:
        flat = [tree.flatten(value) for value in values]
        structure = flat[0][1]
        others = [i for i, (_, other) in enumerate(flat) if other != structure]
        if others:
            raise TypeError(
                f"Record structures do not match. Record at position 0 has structure {structure}, while records at "
                f"positions {others} have structures {[flat[i][1] for i in others]}."
            )
        rows = [leaves for leaves, _ in flat]
        return tree.unflatten(structure, [np.stack([row[i] for row in rows]) for i in range(len(rows[0]))])
