"""Records in the order of the source."""

from __future__ import annotations

from gristmill.core.indices import Indices
from gristmill.core.seeds import check_seed
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.samplers.base import BlockSampler, check_num_records, check_shard_options


class SequentialSampler(BlockSampler):
    """Goes through the records once, in order.

    ``sampler[i]`` is record ``i`` for every ``i < len(sampler)``; it is the consumer that asks only for the indices of its
    shard, ``i ≡ shard_index (mod shard_count)``.

    Args:
        num_records: number of records, at least 1.
        shard_options: the shard; with ``drop_remainder`` the length is cut to a multiple of ``shard_count``.
        seed: if given, record ``i`` comes with the generator ``Philox(key=seed + i)``; a non-negative integer.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``num_records`` is not positive, or ``seed`` is negative.

    Example:
        >>> [metadata.record_key for metadata in SequentialSampler(num_records=3)]
        [0, 1, 2]
    """

    def __init__(self, num_records: int, shard_options: ShardOptions = NoSharding(), seed: int | None = None) -> None:
        self._num_records = check_num_records(num_records)
        self._shard_options = check_shard_options(shard_options)
        self._seed = None if seed is None else check_seed(seed)
        count = self._shard_options.shard_count
        self._bound = self._num_records // count * count if self._shard_options.drop_remainder else self._num_records

    def __len__(self) -> int:
        return self._bound or 0

    def __repr__(self) -> str:
        return f"SequentialSampler(num_records={self._num_records}, shard_options={self._shard_options!r})"

    def _keys(self, indices: Indices) -> Indices:
        return indices
