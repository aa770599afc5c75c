"""Checks that a sampler keeps the promises on which a ``DataLoader`` depends."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.core.state import shown
from gristmill.testing.laws import REPEATABLE, Law, check_answers, spread

_METADATA = Law(
    "sampler[index] is a RecordMetadata, whose index is an integer, and whose rng None or a"
    " numpy.random.Generator",
    "Return gristmill.RecordMetadata(index=..., record_key=..., rng=...).",
)
_INDICES = Law(
    "metadata.index grows with the index",
    "Return RecordMetadata(index=index, ...) with the index asked for.",
)
_KEYS = Law(
    "record keys are keys of the source",
    "Keys are integers in [0, num_records); keys past the end read records twice.",
)
_END = Law(
    "from its end on, a sampler raises IndexError, and before it does not",
    "Raise IndexError, no other error, for every index >= len(sampler); a DataLoader finds the end"
    " by it.",
)
_SHARDS = Law(
    "the shards of an epoch have every record once, all together",
    "Element k of shard s of n is sampler[k * n + s]: give each shard's sampler keys of its own at"
    " those indices.",
)


def assert_sampler_conforms(
    sampler: Any,
    num_records: int | None = None,
    *,
    max_indices: int = 50,
    make_shard: Callable[[ShardOptions], Any] | None = None,
    in_worker: bool = False,
) -> None:
    """Asserts that ``sampler`` answers as a ``DataLoader`` expects it: by the index alone, until
    its end.

    Checked are the same metadata and the same draws at every access, in any order, in eight threads
    at a time and from copies made by cloudpickle; indices that grow, keys within the source,
    ``IndexError`` from the end on; and that the ``repr`` has no memory address and is that of a
    copy. A sampler with ``_shard_options`` is asked for the indices of its shard.

    Args:
        sampler: the sampler.
        num_records: the number of records of the source; ``None`` if keys are no integers.
        max_indices: how many indices to ask for.
        make_shard: makes the sampler of a shard, of one epoch in which every record occurs once:
            asserts that the shards have all records, and none twice, for up to four shards. Needs
            ``num_records``, and asks for all of them.
        in_worker: also start a worker process and ask there.

    Raises:
        AssertionError: something is not so; says which law is broken, what was found, and what to
            do.
        TypeError: ``sampler`` has no ``__getitem__``, or an argument is of the wrong type.

    Example:
        >>> from gristmill.samplers import IndexSampler
        >>> def shuffled(shard):
        ...     return IndexSampler(10, shard, shuffle=True, num_epochs=1, seed=0)
        >>> assert_sampler_conforms(shuffled(ShardOptions(0, 1)), 10, make_shard=shuffled)
    """
    if not hasattr(sampler, "__getitem__"):
        raise TypeError(
            f"sampler must have __getitem__, got {shown(sampler)} of type {type(sampler).__name__}"
        )
    max_indices = as_int("max_indices", max_indices, minimum=1)
    shard = getattr(sampler, "_shard_options", NoSharding())
    length = _length(sampler, max_indices * shard.shard_count)
    local = range(shard.shard_index, length, shard.shard_count)
    indices = (
        list(local[:max_indices])
        if length == sys.maxsize
        else [local[i] for i in spread(len(local), max_indices)]
    )
    found = check_answers(
        sampler, indices, _look_up, "sampler[{}]".format, with_repr=True, in_worker=in_worker
    )
    for index, metadata in zip(indices, found, strict=True):
        _check_metadata(sampler, index, metadata, num_records)
    for (i, one), (j, other) in pairwise(zip(indices, found, strict=True)):
        _INDICES.check(
            one.index < other.index,
            f"sampler[{i}].index is {one.index}, sampler[{j}].index is {other.index}",
        )
    for index in (length, length + 1, 2 * length + 1000) if length < sys.maxsize else ():
        _END.refuses(
            f"sampler[{index}], with {length} indices before its end,",
            (IndexError,),
            sampler.__getitem__,
            index,
        )
    if make_shard is not None:
        _check_shards(make_shard, as_int("num_records", num_records, minimum=1))


def _look_up(sampler: Any, indices: list[int]) -> list[Any]:
    return [sampler[index] for index in indices]


def _length(sampler: Any, limit: int) -> int:
    """Returns the number of indices; without ``__len__``, ``sys.maxsize`` if the first ``limit``
    are all there.
    """
    if hasattr(sampler, "__len__"):
        return _END.run("len(sampler)", len, sampler)
    for index in range(limit):
        try:
            sampler[index]
        except IndexError:
            return index
    return sys.maxsize


def _check_metadata(sampler: Any, index: int, metadata: Any, num_records: int | None) -> None:
    is_metadata = all([hasattr(metadata, name) for name in ("index", "record_key", "rng")])
    _METADATA.check(is_metadata, f"sampler[{index}] is {metadata!r:.200}")
    key, rng = metadata.record_key, metadata.rng
    _METADATA.check(
        hasattr(type(metadata.index), "__index__"),
        f"sampler[{index}].index is {metadata.index!r:.200}",
    )
    _METADATA.check(
        rng is None or isinstance(rng, np.random.Generator), f"sampler[{index}].rng is {rng!r:.200}"
    )
    if num_records is not None:
        is_key = hasattr(type(key), "__index__") and 0 <= key < num_records
        _KEYS.check(
            is_key, f"sampler[{index}].record_key is {key!r:.200}, and num_records {num_records}"
        )
    if rng is not None:
        sampler[index].rng.random()
        REPEATABLE.equal(f"sampler[{index}], after its rng was used,", metadata, sampler[index])


def _check_shards(make_shard: Callable[[ShardOptions], Any], num_records: int) -> None:
    limit = 2 * num_records + 4
    for count in range(1, 5):
        times: Counter[Any] = Counter()
        for shard in range(count):
            sampler = make_shard(ShardOptions(shard, count))
            times.update(
                [
                    sampler[i].record_key
                    for i in range(shard, min(_length(sampler, limit), limit), count)
                ]
            )
        missing = [key for key in range(num_records) if key not in times]
        repeated = [key for key, number in times.items() if number > 1]
        _SHARDS.check(
            not missing and not repeated,
            f"of {num_records} records in {count} shards, {missing!s:.100} are missing and"
            f" {repeated!s:.100} there again",
        )
