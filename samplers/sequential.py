"""Records in the order of the source."""

from __future__ import annotations

import sys

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices
from gristmill.core.naming import stable_repr
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.samplers.base import BlockSampler, check_num_records, check_shard_options


class SequentialSampler(BlockSampler):
    """Goes through the records once, in order.

    ``sampler[i]`` is record ``i`` for every ``i < len(sampler)``; the consumer asks only for the
    indices of its shard, ``i ≡ shard_index (mod shard_count)``.

    Args:
        num_records: number of records, at least 1.
        shard_options: the shard; with ``drop_remainder`` the length is cut to a multiple of
            ``shard_count``.
        seed: if given, record ``i`` comes with the generator ``Philox(key=seed + i)``, a key of 128
            bits; a non-negative integer.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``num_records`` is not positive, or ``seed`` is negative or too large for a key.

    Example:
        >>> [metadata.record_key for metadata in SequentialSampler(num_records=3)]
        [0, 1, 2]
    """

    def __init__(
        self, num_records: int, shard_options: ShardOptions = NoSharding(), seed: int | None = None
    ) -> None:
        self._num_records = check_num_records(num_records)
        self._shard_options = check_shard_options(shard_options)
        # seed + index is a key of 128 bits.
        self._seed = (
            None
            if seed is None
            else as_int("seed", seed, minimum=0, maximum=2**128 - self._num_records)
        )
        count = self._shard_options.shard_count
        self._bound = (
            self._num_records // count * count
            if self._shard_options.drop_remainder
            else self._num_records
        )

    def __len__(self) -> int:
        return min(self._bound or 0, sys.maxsize)

    def __repr__(self) -> str:
        return (
            f"SequentialSampler(num_records={self._num_records},"
            f" shard_options={stable_repr(self._shard_options)})"
        )

    def _keys(self, indices: Indices) -> Indices:
        return indices
