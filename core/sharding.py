"""Which part of the data a process reads."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gristmill.core.errors import as_int

_log = logging.getLogger("gristmill")


@dataclass(frozen=True)
class ShardOptions:
    """Which of how many equal parts of the data to read.

    Args:
        shard_index: this part, in ``[0, shard_count)``.
        shard_count: how many parts there are, at least 1.
        drop_remainder: if the data cannot be split evenly, drop the records left over (every shard
            has the same number); otherwise the first shards have one record more.

    Raises:
        TypeError: an index or count is not an integer.
        ValueError: ``shard_count`` is not positive, or ``shard_index`` not in range.

    Example:
        >>> ShardOptions(shard_index=1, shard_count=3)
        ShardOptions(shard_index=1, shard_count=3, drop_remainder=False)
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        count = as_int("shard_count", self.shard_count, minimum=1)
        index = as_int("shard_index", self.shard_index)
        if not 0 <= index < count:
            raise ValueError(f"shard_index must be in [0, shard_count) = [0, {count}), got {index}")
        object.__setattr__(self, "shard_count", count)
        object.__setattr__(self, "shard_index", index)
        # the repr is part of states
        object.__setattr__(self, "drop_remainder", bool(self.drop_remainder))

    # not a dataclass's, which an interrupt can spoil for good (see ``stable_repr``)
    def __repr__(self) -> str:
        name, index, count = type(self).__qualname__, self.shard_index, self.shard_count
        return (
            f"{name}(shard_index={index}, shard_count={count},"
            f" drop_remainder={self.drop_remainder})"
        )


@dataclass(frozen=True, init=False, repr=False)
class NoSharding(ShardOptions):
    """All of the data in one part.

    Example:
        >>> NoSharding()
        NoSharding(shard_index=0, shard_count=1, drop_remainder=False)
    """

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


@dataclass(frozen=True, init=False, repr=False)
class ShardByJaxProcess(ShardOptions):
    """One part for every JAX process; part 0 of 1 where JAX is not installed.

    Asks ``jax.process_index()`` and ``jax.process_count()`` at construction, which initialises
    JAX's backend.

    Args:
        drop_remainder: as for ``ShardOptions``.

    Example:
        >>> ShardByJaxProcess(drop_remainder=True)
        ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=True)
    """

    def __init__(self, drop_remainder: bool = False) -> None:
        index, count = process_index_and_count()
        super().__init__(shard_index=index, shard_count=count, drop_remainder=drop_remainder)


def process_index_and_count() -> tuple[int, int]:
    """Returns this JAX process's index and the number of processes; ``(0, 1)`` where JAX is not
    installed.
    """
    try:
        import jax
    except ImportError:
        return 0, 1
    return jax.process_index(), jax.process_count()


def even_split(num_examples: int, options: ShardOptions) -> tuple[int, int]:
    """Returns the half-open interval of records that belong to one shard.

    The intervals of all shards follow one another; their lengths differ by at most one, the longer
    ones come first. With ``drop_remainder`` all have length ``num_examples // shard_count`` (and a
    warning is logged if records are lost).

    Args:
        num_examples: number of records, at least 0.
        options: the shard.

    Example:
        >>> [even_split(10, ShardOptions(i, 3)) for i in range(3)]
        [(0, 4), (4, 7), (7, 10)]
    """
    num_examples = as_int("num_examples", num_examples, minimum=0)
    shard, count = options.shard_index, options.shard_count
    size, remainder = divmod(num_examples, count)
    start, end = size * shard, size * (shard + 1)
    if remainder and options.drop_remainder:
        _log.warning(
            "%d of %d examples are dropped to split them evenly into %d shards",
            remainder,
            num_examples,
            count,
        )
    elif remainder:
        start, end = start + min(shard, remainder), end + min(shard + 1, remainder)
    return start, end
