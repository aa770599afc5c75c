"""Stages that take their elements from several datasets."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import Any

from entry import (
    DIRECT,
    THREADED,
    IterEntry,
    MapEntry,
    add_ten,
    drop_threes,
    holey,
    indexed,
    not_multiple_of_three,
    numbers,
    shuffled,
    tens,
)

from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.stages.interleave import InterleaveIterDataset


def chosen(k: int, proportions: tuple[int, ...]) -> tuple[int, int]:
    """The component and the index in it at ``k`` of a mixture, as the specification words it."""
    a, b, total = k, k + 1, sum(proportions)
    for j, weight in enumerate(proportions):
        rest = total - weight
        c, d = a * rest // total, b * rest // total
        if a - c != b - d:
            return j, b - d - 1
        a, b, total = c, d, rest
    raise AssertionError


def weighted(k: int) -> Any:
    j, i = chosen(k, (233, 100))
    return (i, i % 10) if j == 0 else 100 + shuffled(i, 7, 3) % 7


def drawn_from_many(k: int) -> int:
    j, i = chosen(k, (100, 700, 60_000, 9_999))
    return 1000 * j + i % 1000


def concatenated(i: int) -> int:
    epoch, position = divmod(i, 9)
    return position if position < 4 else 10 + shuffled(position - 4 + epoch * 5, 5, 1) % 5


PAIRS = [(1, 2), (0, -1), (1, 7), (0, 3), (1, 2)]


class Turns:
    """A user's selection: in turn, but in pairs."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index // 2 % 2, index // 4 * 2 + index % 2


def turned(i: int) -> Any:
    j, k = Turns()[i]
    return (k, k % 10) if j == 0 else 100 + k % 10


MAP_ENTRIES = [
    MapEntry(
        "mix",
        lambda: MapDataset.mix([tens(), MapDataset.range(10, 20), MapDataset.range(20, 30)]),
        lambda i: 10 * (i % 3) + i // 3 % 10,
        30,
    ),
    MapEntry(
        "mix_weighted",
        lambda: MapDataset.mix([indexed(), MapDataset.range(100, 107).shuffle(seed=3)], weights=[0.7, 0.3]),
        weighted,
        14,
    ),
    MapEntry(
        "mix_without_table",
        lambda: MapDataset.mix([MapDataset.range(1000 * j, 1000 * j + 1000) for j in range(4)], weights=[1, 7, 600, 99.99]),
        drawn_from_many,
        1179,
    ),
    MapEntry("mix_one", lambda: MapDataset.mix([tens().map(add_ten)], [3]), lambda i: i % 10 + 10, 10),
    MapEntry(
        "concatenate",
        lambda: MapDataset.concatenate([MapDataset.range(4), MapDataset.range(0), MapDataset.range(10, 15).shuffle(seed=1)]),
        concatenated,
        9,
    ),
    MapEntry("select", lambda: MapDataset.select_from_datasets([indexed(), MapDataset.range(100, 110)], Turns()), turned, 12),
    MapEntry(
        "select_pairs",
        lambda: MapDataset.select_from_datasets([holey(), MapDataset.range(100, 105)], PAIRS),
        lambda i: [102, None, 102, None, 102][i],
        5,
        endless=False,
    ),
]


def interleaved(*lists: list[Any]) -> list[Any]:
    return [x for x in chain.from_iterable(zip_longest(*lists)) if x is not None]


def filtered(n: int) -> IterDataset[int]:
    return numbers(THREADED, n).filter(not_multiple_of_three)


def starting_at(start: int) -> IterDataset[int]:
    return MapDataset.range(start, start + 3).map(add_ten).to_iter_dataset(DIRECT)


ITER_ENTRIES = [
    IterEntry("iter_mix", lambda: IterDataset.mix([filtered(9), numbers()]), [1, 0, 2, 1, 4, 2, 5, 3, 7, 4, 8, 5]),
    IterEntry(
        "iter_mix_weighted",
        lambda: IterDataset.mix({"b": numbers(), "a": filtered(30).map(add_ten)}, {"b": 2.5, "a": 1}),
        [11, 0, 1, 12, 2, 3, 4, 14, 5, 6, 15, 7, 8, 9, 17, 10],
    ),
    IterEntry("iter_mix_of_map", lambda: IterDataset.mix([MapDataset.range(3)]), [0, 1, 2]),
    IterEntry(
        "interleave",
        lambda: InterleaveIterDataset([filtered(4), numbers(), MapDataset.range(50, 53), numbers(n=0)], cycle_length=2),
        [1, 0, 2, 1, 2, 50, 3, 51, 4, 52, 5, 6, 7, 8, 9, 10],
    ),
    IterEntry(
        "interleave_all",
        lambda: InterleaveIterDataset([numbers(n=3), numbers(n=5)], cycle_length=9, iter_buffer_size=0, make_iter_buffer_size=0),
        interleaved([0, 1, 2], [0, 1, 2, 3, 4]),
    ),
    IterEntry(
        "interleave_lazy",
        lambda: MapDataset.range(0, 50, 10).map(drop_threes).interleave(starting_at, cycle_length=3),
        [20, 30, 21, 31, 50, 22, 32, 51, 52],
    ),
    IterEntry("interleave_one", lambda: InterleaveIterDataset([filtered(11)], cycle_length=1), [1, 2, 4, 5, 7, 8, 10]),
    IterEntry("interleave_none", lambda: InterleaveIterDataset([], cycle_length=4), []),
    IterEntry(
        "interleave_of_batches",
        lambda: InterleaveIterDataset([numbers(THREADED).batch(4, batch_fn=list), filtered(8)], cycle_length=2).batch(
            2, batch_fn=list
        ),
        [[[0, 1, 2, 3], 1], [[4, 5, 6, 7], 2], [[8, 9, 10], 4], [5, 7]],
    ),
]
