"""A record and its position in the stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from gristmill.core.seeds import keyed_rng

T = TypeVar("T")


class _LazyRng:
    """Placeholder of an unused generator: making one costs 2 µs, and most records never need it."""

    __slots__ = ("key", "stream")

    def __init__(self, key: int, stream: int) -> None:
        self.key = key
        self.stream = stream


@dataclass(slots=True)
class RecordMetadata:
    """The position of a record in the sampled stream, its key, and its private random generator.

    Args:
        index: position in the (conceptually endless) stream over all shards; unique and increasing.
        record_key: position of the record in the source.
        rng: a generator private to this record.

    Example:
        >>> RecordMetadata(index=3, record_key=1)
        RecordMetadata(index=3, record_key=1, rng=None)
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = field(default=None)

    def __str__(self) -> str:
        return f"RecordMetadata(index={self.index}, record_key={self.record_key}, rng={self.rng!s})"

    def remove_record_key(self) -> RecordMetadata:
        """Returns the same metadata without its key: an element made from several records has no
        key of its own.
        """
        return self if self.record_key is None else replace(self, record_key=None)


_rng_slot: Any = RecordMetadata.__dict__["rng"]


def _get_rng(self: RecordMetadata) -> np.random.Generator | None:
    rng = _rng_slot.__get__(self)
    if type(rng) is _LazyRng:
        rng = keyed_rng(rng.key, rng.stream)
        _rng_slot.__set__(self, rng)
    return rng


setattr(RecordMetadata, "rng", property(_get_rng, _rng_slot.__set__))  # noqa: B010  (a class variable to a type checker)


def sampled(
    index: int, record_key: int | None, rng_key: int | None, stream: int = 0
) -> RecordMetadata:
    """Metadata whose generator, ``Philox(key=rng_key, counter=[0, 0, 0, stream])``, is made when
    first asked for.
    """
    rng: Any = None if rng_key is None else _LazyRng(rng_key, stream)
    return RecordMetadata(index, record_key, rng)


@dataclass(slots=True)
class Record(Generic[T]):
    """A record's data with its metadata, as it travels through a ``DataLoader``."""

    metadata: RecordMetadata
    data: T
