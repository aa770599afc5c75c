"""Map stages: small instances, and what the specification's formulas say they hold at any index."""

from collections.abc import Callable
from typing import Any

import numpy as np
from entry import (
    Fan,
    MapEntry,
    Vectored,
    add_ten,
    break_threes,
    draw,
    drop_threes,
    fan,
    in_pairs,
    not_multiple_of_three,
    pair,
    repeated,
)
from files_of_laws import cache_folder
from formulas import block_shuffled, bucket_batches, chosen, shuffled, stream, window_shuffled

from gristmill.core.record import Record
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.faults.read import OutcomesMapDataset
from gristmill.dataset.mixtures.schedule import Schedule
from gristmill.dataset.stages.runs import RunsMapDataset
from gristmill.loader.records import SampledMapDataset
from gristmill.samplers import IndexSampler

SAMPLER = IndexSampler(num_records=7, shuffle=True, num_epochs=3, seed=5)
LETTERS = list("abcdefg")
COLUMNS = {"n": np.arange(7), "in": {"l": LETTERS}}
EVERY_SECOND = ShardOptions(1, 2)
SEED = 2**32 - 4  # and the next ones begin at 0
ONE_IN_TWO = slice(None, None, -2)
PAIRS = [(1, 2), (0, -1), (1, 7), (0, 3), (1, 2)]
_range, _mix = MapDataset.range, MapDataset.mix


def sampled(k: int, shard: ShardOptions) -> Any:
    return SAMPLER[k * shard.shard_count + shard.shard_index]


def sliced(i: int, length: int, sl: slice) -> int:
    start, _, step = sl.indices(length)
    epoch, position = divmod(i, len(range(*sl.indices(length))))
    return start + position * step + epoch * length


def batched(i: int, length: int, size: int, drop: bool) -> list[int]:
    epoch, b = divmod(i, length // size if drop else -(-length // size))
    return list(range(epoch * length + b * size, epoch * length + min(length, (b + 1) * size)))


def weighted(k: int) -> Any:
    j, i = chosen((233, 100), k)
    return at(i) if j == 0 else 100 + shuffled(i, 7, 3) % 7


def drawn_from_many(k: int) -> int:
    j, i = chosen((100, 700, 60_000, 9_999), k)
    return 1000 * j + i % 1000


def concatenated(i: int) -> int:
    epoch, position = divmod(i, 9)
    return position if position < 4 else 10 + shuffled(position - 4 + epoch * 5, 5, 1) % 5


class Turns:
    """A user's selection: in turn, but in pairs."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index // 2 % 2, index // 4 * 2 + index % 2


def turned(i: int) -> Any:
    j, k = Turns()[i]
    return at(k) if j == 0 else 100 + k % 10


def fan_at(i: int, n: int) -> Any:
    element, j = (i // 3) % n, i % 3
    return (element, j) if j < element % 4 else None


def reshaped(i: int) -> Any:
    k = window_shuffled(i, 12, 5, 2)
    return None if k % 3 == 2 else window_shuffled(k // 3, 4, 3, 1) % 4 + (4 if k % 3 else 0)


def ten(i: int) -> int:
    return i % 10


def tens() -> MapDataset[int]:
    return _range(10)


def indexed() -> MapDataset[Any]:
    return tens().map_with_index(pair)


def at(k: int) -> tuple[int, int]:
    """Element ``k`` of ``indexed()``."""
    return (k, ten(k))


def holey() -> MapDataset[Any]:
    return tens().map(drop_threes)


def unless_three(i: int, x: Any) -> Any:
    """The result for element ``i`` of ``holey()``."""
    return None if ten(i) % 3 == 0 else x


def bucketed(window: int, **options: bool) -> MapDataset[Any]:
    return (
        tens()
        .shuffle(seed=3)
        .map(repeated)
        .bucket_batch(
            range(10), [3, 6, 9], batch_sizes=[3, 2, 2], window=window, seed=SEED, **options
        )
    )


def bucketed_at(i: int, window: int, drop: bool) -> Any:
    num = 3 if drop else 6
    epoch, position = divmod(i, num)
    lengths = [shuffled(k, 10, 3) % 10 for k in range(epoch * 10, epoch * 10 + 10)]
    bucket, rows = bucket_batches(epoch, lengths, [3, 6, 9], [3, 2, 2], window, SEED, drop)[
        position
    ]
    of_rows = [lengths[row] for row in rows]
    batch = np.zeros((len(rows) if drop else [3, 2, 2][bucket], [3, 6, 9][bucket]), np.int64)
    for row, n in zip(batch, of_rows, strict=False):
        row[:n] = n
    return batch if drop else (batch, np.array(of_rows + [0] * (len(batch) - len(rows)), np.int32))


def of_part(positions: list[int]) -> Callable[[int], tuple[int, int]]:
    """The model of a part of ``indexed()`` that has these positions of every epoch."""
    return lambda i: at(positions[i % len(positions)] + i // len(positions) * 10)


PARTS = {"a": 0.6, "b": 0.4}


def tolerant(ds: MapDataset[Any], then: Any = "skip") -> MapDataset[Any]:
    return ds.map(break_threes).tolerate(ValueError, max_rate=None, then=then)


def replaced(i: int) -> Any:
    """Element ``i`` of ``tens()``, or the first one drawn from (0, ``i``) that is not broken."""
    rng, tried = stream(0, i), [i]
    while ten(tried[-1]) % 3 == 0:
        drawn = i // 10 * 10 + int(rng.integers(10))
        tried += [drawn] if drawn not in tried else []
    return ten(tried[-1])


def replaced_pair(i: int) -> Any:
    return [replaced(2 * i), replaced(2 * i + 1)]


def tolerated_twice(i: int) -> Any:
    return None if (replaced(i) + 10) % 3 == 0 else replaced(i) + 10


_ROWS: list[tuple[Any, ...]] = [
    ("range", lambda: _range(2, 20, 3), lambda i: 2 + (i % 6) * 3, 6),
    ("range_down", lambda: _range(5, -6, -2), lambda i: 5 - (i % 6) * 2, 6),
    ("range_huge", lambda: _range(-(2**70), 2**70, 2**69), lambda i: -(2**70) + (i % 4) * 2**69, 4),
    ("source", lambda: MapDataset.source(LETTERS), lambda i: LETTERS[i % 7], 7),
    ("source_vectored", lambda: MapDataset.source(Vectored(LETTERS)), lambda i: LETTERS[i % 7], 7),
    (
        "source_columns",
        lambda: MapDataset.source(COLUMNS),
        lambda i: {"n": np.int64(i % 7), "in": {"l": LETTERS[i % 7]}},
        7,
    ),
    ("map", lambda: tens().map(add_ten), lambda i: ten(i) + 10, 10),
    ("map_none", lambda: holey().map(add_ten), lambda i: unless_three(i, ten(i) + 10), 10),
    ("map_with_index", lambda: holey().map_with_index(pair), lambda i: unless_three(i, at(i)), 10),
    (
        "random_map",
        lambda: holey().random_map(draw, seed=7),
        lambda i: unless_three(i, draw(ten(i), stream(7, i))),
        10,
    ),
    ("filter", lambda: tens().filter(not_multiple_of_three), lambda i: unless_three(i, ten(i)), 10),
    ("seed", lambda: tens().seed(4), ten, 10),
    ("tolerate", lambda: tolerant(tens()), lambda i: unless_three(i, ten(i)), 10),
    (
        "tolerate_replace",
        lambda: tolerant(tens(), then="replace").map(add_ten),
        lambda i: replaced(i) + 10,
        10,
    ),
    (
        "tolerate_batches",
        lambda: tolerant(tens(), then="replace").batch(2, batch_fn=list),
        replaced_pair,
        5,
    ),
    (
        "tolerate_again",
        lambda: tolerant(tolerant(tens(), then="replace").map(add_ten)),
        tolerated_twice,
        10,
    ),
    ("tolerate_reading", lambda: OutcomesMapDataset(tens().tolerate()), ten, 10),
    ("shuffle", lambda: tens().shuffle(seed=3), lambda i: shuffled(i, 10, 3) % 10, 10),
    ("shuffle_one", lambda: _range(1).shuffle(seed=3), lambda i: 0, 1),
    ("shuffle_index", lambda: indexed().shuffle(seed=3), lambda i: at(shuffled(i, 10, 3)), 10),
    (
        "block_shuffle",
        lambda: indexed().block_shuffle(3, group_size=2, seed=5),
        lambda i: at(block_shuffled(i, 10, 3, 2, 5)),
        10,
    ),
    (
        "block_shuffle_whole",
        lambda: tens().block_shuffle(5, seed=5),
        lambda i: ten(block_shuffled(i, 10, 5, 512, 5)),
        10,
    ),
    ("disk_cache", lambda: tens().cache(cache_folder()), ten, 10),
    ("disk_cache_holes", lambda: holey().cache(cache_folder()), lambda i: drop_threes(ten(i)), 10),
    ("split", lambda: indexed().split(PARTS, seed=3)["b"], of_part([0, 4, 6, 7]), 4),
    (
        "split_by",
        lambda: indexed().split(PARTS, seed=3, by=in_pairs)["b"],
        of_part([4, 5, 6, 7]),
        4,
    ),
    ("slice", lambda: indexed()[1:9:3], lambda i: at(sliced(i, 10, slice(1, 9, 3))), 3),
    ("slice_back", lambda: indexed()[ONE_IN_TWO], lambda i: at(sliced(i, 10, ONE_IN_TWO)), 5),
    (
        "reindex",
        lambda: indexed().slice([3, -1, 12, 3]),
        lambda i: at([3, -1, 12, 3][i % 4] + i // 4 * 10),
        4,
    ),
    ("repeat", lambda: indexed().repeat(2), at, 20),
    (
        "repeat_same",
        lambda: indexed().repeat(2, reseed_each_epoch=False),
        lambda i: (ten(i), ten(i)),
        20,
    ),
    (
        "batch",
        lambda: indexed().batch(4, batch_fn=list),
        lambda i: [*map(at, batched(i, 10, 4, False))],
        3,
    ),
    (
        "batch_drop",
        lambda: tens().batch(4, drop_remainder=True),
        lambda i: np.array([*map(ten, batched(i, 10, 4, True))]),
        2,
    ),
    (
        "chain",
        lambda: tens().shuffle(seed=1)[1::2].map_with_index(pair).repeat(3),
        lambda i: (i, shuffled(sliced(i, 10, slice(1, None, 2)), 10, 1) % 10),
        15,
    ),
    (
        "sampled",
        lambda: SampledMapDataset(LETTERS, SAMPLER, NoSharding(), 21, as_records=False),
        lambda k: LETTERS[sampled(k, NoSharding()).record_key],
        21,
        False,
    ),
    (
        "sampled_records",
        lambda: SampledMapDataset(LETTERS, SAMPLER, EVERY_SECOND, 10, as_records=True),
        lambda k: Record(m := sampled(k, EVERY_SECOND), LETTERS[m.record_key]),
        10,
        False,
    ),
    (
        "zip",
        lambda: tens().zip(holey().map_with_index(pair)),
        lambda i: (ten(i), unless_three(i, at(i))),
        10,
    ),
    (
        "zip_drop_missing",
        lambda: tens().zip(holey(), drop_missing=True),
        lambda i: unless_three(i, (ten(i), ten(i))),
        10,
    ),
    ("zip_one", lambda: tens().zip(), lambda i: (ten(i),), 10),
    ("flat_map", lambda: tens().flat_map(Fan()), lambda i: fan_at(i, 10), 30),
    (
        "flat_map_of_sparse",
        lambda: holey().flat_map(fan, max_fan_out=3)[::-1],
        lambda i: unless_three((k := sliced(i, 30, slice(None, None, -1))) // 3, fan_at(k, 10)),
        30,
    ),
    (
        "window_shuffle",
        lambda: indexed().window_shuffle(4, seed=2**32 - 4),
        lambda i: at(window_shuffled(i, 10, 4, 2**32 - 4)),
        10,
    ),
    (
        "window_shuffle_even",
        lambda: tens().window_shuffle(5, seed=0),
        lambda i: ten(window_shuffled(i, 10, 5, 0)),
        10,
    ),
    (
        "window_shuffle_one_window",
        lambda: tens().window_shuffle(99, seed=7),
        lambda i: ten(window_shuffled(i, 10, 99, 7)),
        10,
    ),
    ("window_shuffle_ones", lambda: _range(3).window_shuffle(1, seed=7), lambda i: i % 3, 3),
    (
        "reshape_chain",
        lambda: (
            _range(4)
            .zip(_range(4, 8))
            .window_shuffle(3, seed=1)
            .flat_map(list, max_fan_out=3)
            .window_shuffle(5, seed=2)
        ),
        reshaped,
        12,
    ),
    ("runs", lambda: RunsMapDataset(tens(), Numbers(1, 2, 3, 1)), lambda i: [4, 5, 6][i], 3, False),
    (
        "mix",
        lambda: _mix([tens(), _range(10, 20), _range(20, 30)]),
        lambda i: 10 * (i % 3) + i // 3 % 10,
        30,
    ),
    (
        "mix_weighted",
        lambda: _mix([indexed(), _range(100, 107).shuffle(seed=3)], weights=[0.7, 0.3]),
        weighted,
        14,
    ),
    (
        "mix_without_table",
        lambda: _mix(
            [_range(1000 * j, 1000 * j + 1000) for j in range(4)], weights=[1, 7, 600, 99.99]
        ),
        drawn_from_many,
        1179,
    ),
    (
        "mix_schedule",
        lambda: _mix([_range(10), _range(10, 20)], Schedule({0: [1, 0], 3: [1, 2]})),
        lambda i: [0, 1, 2, 10, 3, 11, 12, 4, 13, 14, 5, 15, 16, 6, 17, 18, 7, 19][i],
        18,
        False,
    ),
    (
        "mix_until_all",
        lambda: _mix([_range(3), _range(10, 20)], stop="all"),
        lambda i: [0, 10, 1, 11, 2, 12, 13, 14, 15, 16, 17, 18, 19][i % 13],
        13,
    ),
    ("mix_one", lambda: _mix([tens().map(add_ten)], [3]), lambda i: ten(i) + 10, 10),
    (
        "concatenate",
        lambda: MapDataset.concatenate([_range(4), _range(0), _range(10, 15).shuffle(seed=1)]),
        concatenated,
        9,
    ),
    (
        "select",
        lambda: MapDataset.select_from_datasets([indexed(), _range(100, 110)], Turns()),
        turned,
        12,
    ),
    (
        "select_pairs",
        lambda: MapDataset.select_from_datasets([holey(), _range(100, 105)], PAIRS),
        lambda i: [102, None, 102, None, 102][i],
        5,
        False,
    ),
]
_ROWS += [
    (
        "bucket_batch",
        lambda: bucketed(4, drop_remainder=True),
        lambda i: bucketed_at(i, 4, True),
        3,
    ),
    (
        "bucket_batch_lengths",
        lambda: bucketed(99, with_lengths=True),
        lambda i: bucketed_at(i, 99, False),
        6,
    ),
]
MAP_ENTRIES = [MapEntry(*row) for row in _ROWS]
