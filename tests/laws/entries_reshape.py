"""Stages that make other elements of those of several parents, several of one, or shuffle them within windows."""

from __future__ import annotations

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
    pair,
    sliced,
    sparse,
    ten,
    tens,
)

from gristmill.core.permutation import index_shuffle
from gristmill.dataset import MapDataset
from gristmill.dataset.stages.flat_map import FlatMapIterDataset, FlatMapMapDataset
from gristmill.dataset.stages.window_shuffle import WindowShuffleIterDataset, WindowShuffleMapDataset
from gristmill.dataset.stages.zip import ZipIterDataset, ZipMapDataset
from gristmill.transforms import FlatMap


class Fan(FlatMap):
    """``x % 4`` items of ``x``, by a generator."""

    max_fan_out = 3

    def flat_map(self, element: int) -> Any:
        for j in range(element % 4):
            yield (element, j)


def fan(x: int) -> list[tuple[int, int]]:
    return list(Fan().flat_map(x))


def letters(x: int | None) -> str:
    return "none" if x is None else "abc"[: x % 3]


def drop_all(x: Any) -> tuple[()]:
    return ()


def without_last(row: Any) -> Any:
    return row[:-1]


def fan_at(i: int, n: int) -> Any:
    element, j = (i // 3) % n, i % 3
    return (element, j) if j < element % 4 else None


def window_shuffled(i: int, length: int, size: int, seed: int) -> int:
    """The formula of the decision that a window ends with the epoch."""
    epoch, position = divmod(i, length)
    q = position // size
    m = min(size, length - q * size)
    number = seed + epoch * -(-length // size) + q
    return epoch * length + q * size + index_shuffle(position - q * size, m - 1, number % 2**32, 4)


def window_stream(elements: list[Any], size: int, seed: int) -> list[Any]:
    stream = []
    for k, start in enumerate(range(0, len(elements), size)):
        window = elements[start : start + size]
        order = [index_shuffle(i, len(window) - 1, (seed + k) % 2**32, 4) for i in range(len(window))]
        stream += [window[i] for i in order[::-1]]
    return stream


_FANNED = [item for x in range(11) for item in fan(x)]
_PRESENT = [x for x in range(11) if x % 3]


def dropping(options: Any) -> Any:
    return MapDataset.range(11).map(drop_threes).to_iter_dataset(options)


def zipped(*parents: Any, strict: bool = True) -> Any:
    return ZipIterDataset(parents, strict=strict)


MAP_ENTRIES = [
    MapEntry(
        "zip",
        lambda: ZipMapDataset([tens(), holey().map_with_index(pair)]),
        lambda i: (ten(i), None if ten(i) % 3 == 0 else (i, ten(i))),
        10,
    ),
    MapEntry(
        "zip_drop_missing",
        lambda: ZipMapDataset([tens(), holey()], drop_missing=True),
        lambda i: None if ten(i) % 3 == 0 else (ten(i), ten(i)),
        10,
    ),
    MapEntry("zip_one", lambda: ZipMapDataset([tens()]), lambda i: (ten(i),), 10),
    MapEntry("flat_map", lambda: FlatMapMapDataset(tens(), Fan()), lambda i: fan_at(i, 10), 30),
    MapEntry(
        "flat_map_of_sparse",
        lambda: holey().flat_map(fan, max_fan_out=3)[::-1],
        lambda i: None if (k := sliced(i, 30, slice(None, None, -1))) // 3 % 10 % 3 == 0 else fan_at(k, 10),
        30,
    ),
    MapEntry(
        "window_shuffle",
        lambda: WindowShuffleMapDataset(indexed(), window_size=4, seed=2**32 - 4),
        lambda i: (k := window_shuffled(i, 10, 4, 2**32 - 4), ten(k)),
        10,
    ),
    MapEntry(
        "window_shuffle_even",
        lambda: WindowShuffleMapDataset(tens(), window_size=5, seed=0),
        lambda i: ten(window_shuffled(i, 10, 5, 0)),
        10,
    ),
    MapEntry(
        "window_shuffle_one_window",
        lambda: WindowShuffleMapDataset(tens(), window_size=10**6, seed=7),
        lambda i: ten(window_shuffled(i, 10, 10**6, 7)),
        10,
    ),
    MapEntry(
        "window_shuffle_ones", lambda: WindowShuffleMapDataset(MapDataset.range(3), window_size=1, seed=7), lambda i: i % 3, 3
    ),
    MapEntry(
        "reshape_chain",
        lambda: (
            ZipMapDataset([MapDataset.range(4), MapDataset.range(4, 8)])
            .window_shuffle(3, seed=1)
            .flat_map(list, max_fan_out=3)
            .window_shuffle(5, seed=2)
        ),
        lambda i: (
            None if (k := window_shuffled(i, 12, 5, 2)) % 3 == 2 else window_shuffled(k // 3, 4, 3, 1) % 4 + (4 if k % 3 else 0)
        ),
        12,
    ),
]

ITER_ENTRIES = [
    IterEntry("zip", lambda: zipped(numbers(THREADED), numbers().map(add_ten)), [(x, x + 10) for x in range(11)]),
    IterEntry(
        "zip_sparse",
        lambda: zipped(numbers(), sparse(THREADED), sparse()),
        [(x, drop_threes(x), drop_threes(x)) for x in range(11)],
    ),
    IterEntry("zip_of_dropping", lambda: zipped(dropping(THREADED), numbers(n=7)), list(zip(_PRESENT, range(7), strict=True))),
    IterEntry(
        "zip_to_the_shortest",
        lambda: zipped(numbers(THREADED), dropping(THREADED), numbers(n=9), numbers().batch(4), strict=False).map(without_last),
        list(zip(range(7), _PRESENT, range(7), strict=True))[:3],
    ),
    IterEntry(
        "zip_first_is_shortest",
        lambda: zipped(dropping(DIRECT), numbers(THREADED), strict=False),
        list(zip(_PRESENT, range(7), strict=True)),
    ),
    IterEntry(
        "zip_all_end_behind_the_shortest",
        lambda: zipped(dropping(DIRECT), dropping(THREADED), numbers(n=5), strict=False),
        list(zip(_PRESENT, _PRESENT, range(5), strict=False)),
    ),
    IterEntry("zip_empty", lambda: zipped(numbers(n=0), numbers(n=0)), []),
    IterEntry("flat_map", lambda: FlatMapIterDataset(numbers(THREADED), Fan()), _FANNED),
    IterEntry("flat_map_function", lambda: FlatMapIterDataset(dropping(DIRECT), fan), [y for x in _PRESENT for y in fan(x)]),
    IterEntry("flat_map_nones", lambda: FlatMapIterDataset(sparse(), letters), [y for x in _PRESENT for y in "abc"[: x % 3]]),
    IterEntry(
        "flat_map_with_nones",
        lambda: FlatMapIterDataset(sparse(), letters, with_nones=True),
        [y for x in range(11) for y in letters(drop_threes(x))],
    ),
    IterEntry("flat_map_to_nothing", lambda: FlatMapIterDataset(numbers(), drop_all), []),
    IterEntry(
        "flat_map_twice",
        lambda: FlatMapIterDataset(FlatMapIterDataset(numbers(), fan), list),
        [y for item in _FANNED for y in item],
    ),
    IterEntry(
        "window_shuffle",
        lambda: WindowShuffleIterDataset(numbers(THREADED), window_size=4, seed=2**32 - 2),
        window_stream(list(range(11)), 4, 2**32 - 2),
    ),
    IterEntry(
        "window_shuffle_even",
        lambda: WindowShuffleIterDataset(numbers(n=10), window_size=5, seed=0),
        window_stream(list(range(10)), 5, 0),
    ),
    IterEntry(
        "window_shuffle_sparse",
        lambda: WindowShuffleIterDataset(numbers(THREADED).filter(not_multiple_of_three), window_size=3, seed=1),
        window_stream(_PRESENT, 3, 1),
    ),
    IterEntry(
        "window_shuffle_one_window",
        lambda: WindowShuffleIterDataset(sparse(), window_size=100, seed=1),
        window_stream([drop_threes(x) for x in range(11)], 100, 1),
    ),
    IterEntry("window_shuffle_empty", lambda: WindowShuffleIterDataset(numbers(n=0), window_size=3, seed=1), []),
    IterEntry("window_shuffle_ones", lambda: WindowShuffleIterDataset(numbers(), window_size=1, seed=5), list(range(11))),
    IterEntry(
        "reshape_chain",
        lambda: (
            zipped(numbers(THREADED).window_shuffle(4, seed=3), numbers())
            .flat_map(list)
            .window_shuffle(5, seed=4)
            .batch(3, batch_fn=list)
        ),
        [
            (
                stream := window_stream(
                    [y for pair in zip(window_stream(list(range(11)), 4, 3), range(11), strict=True) for y in pair], 5, 4
                )
            )[k : k + 3]
            for k in range(0, 22, 3)
        ],
    ),
]
