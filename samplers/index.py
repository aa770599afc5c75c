"""Global shuffle, epochs and sharding by index arithmetic."""

from __future__ import annotations

import sys

from gristmill.core.indices import Indices, as_array
from gristmill.core.naming import stable_repr
from gristmill.core.permutation import Permutation
from gristmill.core.seeds import check_seed
from gristmill.core.sharding import NoSharding, ShardOptions, even_split
from gristmill.samplers.base import (
    BlockSampler,
    check_num_records,
    check_positive,
    check_shard_options,
)


class IndexSampler(BlockSampler):
    """Goes through the records of a shard for some epochs, each in another order if ``shuffle`` is
    set.

    The shard owns a contiguous piece of the records. The consumer asks for the indices ``i ≡
    shard_index (mod shard_count)``; ``i // shard_count`` counts through the epochs of that piece.
    Order: epoch ``e`` is permuted with seed ``seed + e``; it depends on nothing else.

    Args:
        num_records: number of records of the whole source, at least 1.
        shard_options: the shard that this process reads.
        shuffle: whether to shuffle each epoch globally (within the shard's piece).
        num_epochs: how many epochs, at least 1; ``None`` never ends.
        seed: seed of the shuffle and of the records' generators (``Philox(key=seed + index)``), an
            unsigned 32-bit integer; needed for ``shuffle``.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, ``shuffle`` without ``seed``, or an endless sampler
            of an empty shard.

    Example:
        >>> sampler = IndexSampler(num_records=5, shuffle=True, num_epochs=2, seed=0)
        >>> [metadata.record_key for metadata in sampler]
        [0, 4, 1, 2, 3, 1, 2, 3, 0, 4]
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._num_records = check_num_records(num_records)
        in_grain = "Invalid number of epochs in Index Sampler."
        self._num_epochs = (
            None if num_epochs is None else check_positive("num_epochs", num_epochs, in_grain)
        )
        self._shuffle = bool(shuffle)
        if self._shuffle and seed is None:
            raise ValueError("shuffle=True needs a seed: pass seed=<an unsigned 32-bit integer>")
        self._seed = None if seed is None else check_seed(seed, bits=32)
        if self._shuffle and self._num_records > 2**63:
            raise ValueError(
                f"num_records must be at most 2**63 to be shuffled, got {self._num_records}"
            )
        shard = self._shard_options = check_shard_options(shard_options)
        whole = isinstance(shard, NoSharding)
        self._start, end = (0, self._num_records) if whole else even_split(self._num_records, shard)
        self._size = end - self._start
        if self._num_epochs is None and not self._size:
            raise ValueError(
                f"shard {shard.shard_index} of {shard.shard_count} has no records (num_records is"
                f" {self._num_records}), so it cannot repeat them forever: give num_epochs, or use"
                " fewer shards"
            )
        self._bound = None
        if self._num_epochs is not None:
            per_epoch = (
                self._size * shard.shard_count if shard.drop_remainder else self._num_records
            )
            self._bound = per_epoch * self._num_epochs if self._size else 0
        self._permutation = (
            Permutation(self._size, self._seed)
            if self._shuffle and self._seed is not None
            else None
        )

    def __len__(self) -> int:
        return sys.maxsize if self._bound is None else min(self._bound, sys.maxsize)

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self._num_records},"
            f" shard_options={stable_repr(self._shard_options)}, shuffle={self._shuffle},"
            f" num_epochs={self._num_epochs}, seed={self._seed})"
        )

    def _keys(self, indices: Indices) -> Indices:
        count, size, start, permutation = (
            self._shard_options.shard_count,
            self._size,
            self._start,
            self._permutation,
        )
        if len(indices) == 1:
            epoch, position = divmod(int(indices[0]) // count, size)
            return [start + (position if permutation is None else permutation.one(epoch, position))]
        steps = as_array(indices, 2**62 if self._num_records < 2**62 else -1) // count
        epochs, positions = steps // size, steps % size  # divmod takes no object arrays
        return start + (positions if permutation is None else permutation.many(epochs, positions))

    def _epoch(self, index: int) -> int:
        return index // self._shard_options.shard_count // self._size

    def _local_length(self) -> int | None:
        """Returns the number of records of the sampler's own shard in all epochs together; ``None``
        if it is infinite.
        """
        return None if self._num_epochs is None else self._num_epochs * self._size
