"""What the reference of ``MapDataset`` and ``IterDataset`` says about each method, by example.

The examples of Grain's reference, with other data; where one of them has a slip (``shuffle`` and ``random_map`` need a seed,
a ``map`` that should be a ``map_with_index``) it is mended. Random numbers are those that Grain draws.
"""

import numpy as np
import pytest

import gristmill as grain
from gristmill import experimental

M, Stream = grain.MapDataset, grain.IterDataset


def draw(x, rng):
    return x, int(rng.integers(100))


def stream(*args):
    return M.range(*args).to_iter_dataset()


def transform(base, method, function):
    return type("OnesOwn", (base,), {method: lambda self, *args: function(*args)})()


def plain(elements):
    return [x.tolist() if isinstance(x, np.ndarray) else x for x in elements]


IS_BIG = transform(grain.FilterTransform, "filter", lambda x: x > 3)
NEGATE = transform(grain.MapTransform, "map", lambda x: -x)
NUMBER = transform(grain.MapWithIndexTransform, "map_with_index", lambda index, x: f"{index}:{x}")
SHIFT = transform(grain.RandomMapTransform, "random_map", lambda x, rng: x + rng.integers(5, 10))
# What both kinds of dataset have.
METHODS = [
    (7, lambda ds: ds.batch(batch_size=3), [[0, 1, 2], [3, 4, 5], [6]]),
    (7, lambda ds: ds.batch(3, drop_remainder=True), [[0, 1, 2], [3, 4, 5]]),
    (7, lambda ds: ds.batch(3, batch_fn=sum), [3, 12, 6]),
    (6, lambda ds: ds.filter(lambda x: x % 3 == 0), [0, 3]),
    (6, lambda ds: ds.filter(IS_BIG), [4, 5]),
    (6, lambda ds: ds.filter(lambda x: x % 2).map(lambda x: 6 // x), [6, 2, 1]),  # never sees what was filtered out
    (4, lambda ds: ds.map(NEGATE), [0, -1, -2, -3]),
    (4, lambda ds: ds.map_with_index(lambda i, x: (i, x**2)), [(0, 0), (1, 1), (2, 4), (3, 9)]),
    (3, lambda ds: ds.map_with_index(NUMBER), ["0:0", "1:1", "2:2"]),
    (5, lambda ds: ds.random_map(lambda x, rng: x + rng.integers(5, 10), seed=42), [9, 7, 9, 12, 9]),
    (5, lambda ds: ds.random_map(SHIFT, seed=42), [9, 7, 9, 12, 9]),
]


@pytest.mark.parametrize("make", [M.range, stream], ids=["MapDataset", "IterDataset"])
def test_methods_of_both(make):
    for length, method, expected in METHODS:
        assert plain(method(make(length))) == expected
    (batch,) = make(3).map(lambda x: {"id": x, "pair": (x, np.full(2, x / 2))}).batch(3)
    assert plain([batch["id"], *batch["pair"]]) == [[0, 1, 2], [0, 1, 2], [[0, 0], [0.5, 0.5], [1, 1]]]
    with pytest.raises(ValueError, match="seed"):
        make(5).random_map(SHIFT)


def test_factories_and_methods_of_one_of_them():
    """Every step derives a seed of its own, a later one replaces an earlier one, and a mixture's is one of all components."""
    ds1, ds2 = M.range(10, 14), M.range(20, 22)
    turns = [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1)]
    seeded1, seeded2 = M.range(3).seed(1).shuffle(), M.range(10, 13).seed(2).shuffle()
    mixed = Stream.mix([seeded1.to_iter_dataset(), seeded2.to_iter_dataset()])
    kept = M.range(5).filter(lambda x: x != 2)
    for ds, expected in [
        (M.range(1, 10, 4), [1, 5, 9]),
        (M.source([2, 3, 5, 7]), [2, 3, 5, 7]),
        (M.concatenate([M.range(2), M.source(["w", "x", "y"]), M.range(7, 9)]), [0, 1, "w", "x", "y", 7, 8]),
        (M.mix([ds1, ds2]), [10, 20, 11, 21]),
        (M.mix([ds1, ds2], weights=[2, 1]), [10, 11, 20, 12, 13, 21]),
        (Stream.mix([stream(6, 12), stream(10, 12)]), [6, 10, 7, 11, 8]),
        (Stream.mix([stream(6, 12), stream(10, 12)], weights=[1, 2]), [6, 10, 11, 7]),
        (M.select_from_datasets([ds1, ds2], turns), [10, 11, 20, 12, 13, 21]),
        (M.range(3).repeat(3), [0, 1, 2] * 3),
        (M.range(5).shuffle(seed=42), [4, 1, 2, 3, 0]),
        (M.range(5).seed(42).shuffle(), [1, 3, 4, 2, 0]),
        (ds1.slice(slice(1, None, 2)), [11, 13]),
        (kept.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=3)), [0, 1, 3, 4]),
        (kept.to_iter_dataset(allow_nones=True), [0, 1, None, 3, 4]),
        (M.range(5).seed(42).random_map(SHIFT), [6, 8, 8, 8, 11]),
        (stream(10).pipe(experimental.WindowShuffleIterDataset, window_size=4, seed=3), [1, 0, 3, 2, 7, 6, 4, 5, 8, 9]),
        (stream(3).seed(1).random_map(draw).random_map(draw), [((0, 0), 13), ((1, 33), 7), ((2, 81), 90)]),
        (M.range(6).seed(1).shuffle().seed(2).random_map(draw), [(1, 54), (5, 22), (2, 47), (3, 60), (0, 18), (4, 32)]),
        (M.mix([seeded1, seeded2]).random_map(draw), [(1, 77), (11, 74), (0, 40), (12, 37), (2, 15), (10, 63)]),
        (mixed.random_map(draw), [(1, 16), (11, 39), (0, 48), (12, 1), (2, 68), (10, 58)]),
    ]:
        assert list(ds) == expected
    assert list(M.mix([ds1, ds2]).parents) == [ds1, ds2]
    assert M.range(6).seed(77).shuffle(seed=3).random_map(draw, seed=9)[0] == (M.range(6).shuffle(seed=3)[0], 29)
    assert not hasattr(stream(5), "shuffle") and not hasattr(stream(5), "slice")  # which need an index
    with pytest.warns(DeprecationWarning, match="mp_prefetch"):
        assert list(stream(4).prefetch(grain.MultiprocessingOptions(num_workers=1))) == [0, 1, 2, 3]
