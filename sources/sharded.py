"""Sources whose records are in several shards, such as files.

Guarantees of ``ShardedSource``:

1. Keys count through the shards in their order. A key outside of the source is a
   ``KeyRangeError``, one that is no integer a ``TypeError``.
2. A block raises the error of its first key that has one.
3. Copies (pickles) and forked processes start without open files.
4. After ``close`` the next read opens what it needs. ``close`` may be called again.
"""

from __future__ import annotations

import abc
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Generic, Self, SupportsIndex, TypeVar

from gristmill.core.errors import key_out_of_range
from gristmill.sources.storage import forks
from gristmill.sources.storage.per_process import PerProcess

T = TypeVar("T")
K = TypeVar("K")


class ShardMap:
    """Positions of records in shards, by keys that count through all shards.

    Args:
        counts: the number of records of each shard.

    Attributes:
        bounds: the first key of each shard, and then the number of all records.

    Example:
        >>> shards = ShardMap([2, 0, 3])
        >>> shards.bounds, shards.locate(1), shards.locate(2)
        ([0, 2, 2, 5], (0, 1), (2, 0))
    """

    def __init__(self, counts: Iterable[int]) -> None:
        self.bounds = [*accumulate(counts, initial=0)]

    def locate(self, key: SupportsIndex) -> tuple[int, int]:
        """Return the number of the shard that has a record, and the record's position there.

        Raises:
            KeyRangeError: there is no such record.
            TypeError: ``key`` is not an integer.
        """
        index, bounds = operator.index(key), self.bounds
        if not 0 <= index < bounds[-1]:
            raise key_out_of_range(index, bounds[-1])
        if len(bounds) == 2:  # spares most of the time
            return 0, index
        number = bisect_right(bounds, index) - 1
        return number, index - bounds[number]


def checked_key(key: SupportsIndex, length: int) -> int:
    """Return a key of a source of ``length`` records as a built-in ``int``.

    Raises:
        KeyRangeError: there is no such record.
        TypeError: ``key`` is not an integer.

    Example:
        >>> checked_key(True, 3)
        1
    """
    index = operator.index(key)
    if not 0 <= index < length:
        raise key_out_of_range(index, length)
    return index


def read_in_order(
    read_many: Callable[[Sequence[K]], list[T]],
    read_one: Callable[[K], T],
    keys: Sequence[K],
) -> list[T]:
    """Return ``read_many(keys)``; after an error, the keys are read one by one.

    Raises:
        Exception: the error of the first key that has one.
    """
    try:
        return read_many(keys)
    except Exception:
        return [read_one(key) for key in keys]


class ShardedSource(PerProcess, Generic[T]):
    """Base of sources of several shards. See the guarantees above.

    Subclasses set ``_shards`` in the constructor, define ``_read_many``, and extend ``close`` by
    what they have open outside of ``_start_closed``.
    """

    _shards: ShardMap

    @property
    def shards(self) -> ShardMap:
        """The positions of records in the files."""
        return self._shards

    def __len__(self) -> int:
        return self._shards.bounds[-1]

    def __getitem__(self, record_key: SupportsIndex, /) -> T:
        """Return the record at the key.

        Raises:
            KeyRangeError: the key is negative or not below ``len(self)`` (an ``IndexError`` and a
                ``ValueError``).
            TypeError: the key is not an integer.
            Exception: the errors of reading that the class lists.
        """
        if self._fork != forks.number:
            self._start_closed()
        number, position = self._shards.locate(record_key)
        return self._read_one(number, position)

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[T]:
        """Return ``[self[key] for key in record_keys]``, by fewer and faster reads.

        Raises:
            Exception: as ``self[key]`` for the first key that has no record.
        """
        if self._fork != forks.number:
            self._start_closed()
        return read_in_order(self._read_keys, self._read_key, record_keys)

    def __iter__(self) -> Iterator[T]:
        for key in range(len(self)):
            yield self[key]

    def _read_key(self, record_key: SupportsIndex) -> T:
        number, position = self._shards.locate(record_key)
        return self._read_one(number, position)

    def _read_keys(self, record_keys: Sequence[SupportsIndex]) -> list[T]:
        locate = self._shards.locate
        return self._read_many([locate(key) for key in record_keys])

    @abc.abstractmethod
    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[T]:
        """Return the records at places that ``ShardMap.locate`` returned, in their order."""

    def _read_one(self, number: int, position: int) -> T:
        return self._read_many([(number, position)])[0]

    def close(self) -> None:
        """Closes all files. The next read opens them again."""
        self._start_closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
