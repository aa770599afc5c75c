"""The interface of samplers, and code that the library's samplers share."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices, as_ints
from gristmill.core.record import RecordMetadata, sampled
from gristmill.core.sharding import NoSharding, ShardOptions


@runtime_checkable
class Sampler(Protocol):
    """Anything that answers ``sampler[index]`` with a ``RecordMetadata`` and raises ``IndexError``
    past its end.

    ``__len__`` is optional (``DataLoader`` finds the length by bisection otherwise), as is an
    attribute ``_shard_options``, which ``DataLoader`` takes as its sharding by default.
    """

    def __getitem__(self, index: int) -> RecordMetadata: ...


class BlockSampler:
    """A sampler that answers whole blocks of indices with array arithmetic.

    Not an ``abc.ABC``, as protocols are: classes that users derive from a sampler and something
    else may have a metaclass.
    """

    _shard_options: ShardOptions
    _seed: int | None
    _bound: int | None  # first index that is out of range; None if there is none

    _num_records: int

    def _epoch(self, index: int) -> int:
        """Returns the epoch of ``index``."""
        return 0

    @abc.abstractmethod
    def _keys(self, indices: Indices) -> Indices:
        """Returns the record keys at ``indices``, a non-empty block that is in range."""

    def __getitem__(self, index: int) -> RecordMetadata:
        index = as_int("index", index)
        if index < 0 or (self._bound is not None and index >= self._bound):
            bound = "inf" if self._bound is None else self._bound
            raise IndexError(f"sampler index must be in [0, {bound}), got {index}")
        return self._block([index])[0]

    def __iter__(self) -> Iterator[RecordMetadata]:
        index = 0
        while self._bound is None or index < self._bound:
            yield self[index]
            index += 1

    def _block(self, indices: Indices) -> list[RecordMetadata]:
        """Returns the metadata at ``indices``, a non-empty block that is in range."""
        seed = self._seed
        pairs = zip(as_ints(indices), as_ints(self._keys(indices)), strict=True)
        return [sampled(i, key, None if seed is None else seed + i) for i, key in pairs]


def seed_of(sampler: BlockSampler) -> int | None:
    """Returns the seed of the generators of records."""
    return sampler._seed


def num_records_of(sampler: BlockSampler) -> int:
    """Returns the number of records in all shards together."""
    return sampler._num_records


def epoch_of(sampler: BlockSampler, index: int) -> int:
    """Returns the epoch of ``index``."""
    return sampler._epoch(index)


def answers_blocks(sampler: Any) -> bool:
    """True if ``sampler._block`` and ``_keys`` agree with ``sampler[index]``: a subclass may have
    its own ``__getitem__``.
    """
    return (
        isinstance(sampler, BlockSampler) and type(sampler).__getitem__ is BlockSampler.__getitem__
    )


def check_shard_options(options: Any) -> ShardOptions:
    """Returns ``options`` if it is a ``ShardOptions``; ``None`` is no sharding."""
    if options is None:
        return NoSharding()
    if not isinstance(options, ShardOptions):
        raise TypeError(
            f"shard_options must be a ShardOptions, got {options!r} of type"
            f" {type(options).__name__}"
        )
    return options


def check_num_records(num_records: int) -> int:
    return check_positive("num_records", num_records, "Invalid number of records in Sampler.")


def check_positive(name: str, value: int, in_grain: str) -> int:
    """Returns ``value`` as a positive ``int``; the error of others begins with what Grain says,
    which programs look for.
    """
    try:
        return as_int(name, value, minimum=1)
    except ValueError as error:
        raise ValueError(f"{in_grain} {error}") from None
