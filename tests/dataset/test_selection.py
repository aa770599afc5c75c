"""Which component an element of a mixture comes from: exact integers, at any index, for any
weights, in any block.
"""

import math
import pickle
import random
import sys
from fractions import Fraction

import numpy as np
import pytest
from formulas import chosen
from refusing import assert_raises

from gristmill import MapDataset
from gristmill.core.indices import as_ints
from gristmill.dataset.mixtures import selection
from gristmill.dataset.mixtures.selection import (
    ConcatenationMap,
    SelectionWithProportionsMap,
    integer_weights,
    select_singly,
    selected,
)
from gristmill.transforms.base import DatasetSelectionMap


def placed(lengths, i):
    """The index of element ``i`` of a concatenation."""
    epoch, position = divmod(i, sum(lengths))
    for j, length in enumerate(lengths):
        if position < length:
            return j, position + epoch * length
        position -= length
    raise AssertionError


def flat(shares, places):
    """The selection that ``select`` returns, one entry for each index."""
    read = [(j, k) for j, inner in shares for k in as_ints(inner)]
    assert all(type(k) is int for _, k in read) and all(type(j) is int for j, _ in shares)
    assert len({j for j, _ in shares}) == len(shares)  # one block of each
    return [read[place] for place in places]


STARTS = [
    0,
    1,
    7,
    -1,
    -40,
    2**31 - 3,
    2**53,
    2**62,
    2**63 - 5,
    2**63 + 11,
    2**64 - 2,
    -(2**63) - 9,
    10**30,
    -(10**30),
]
PROPORTIONS = [(1,), (5,), (1, 1), (1, 1, 1), (100, 200), (233, 100), (100, 233, 7, 1)]
# a period of 65535, which is tabulated, and a longer one
PROPORTIONS += [(30_000, 30_000, 5_535), (65_536, 65_537)]
PROPORTIONS += [
    tuple(range(1, 400)),
    (1, 10**9, 3, *range(100, 130)),
    (10**6, 10**6 + 1, 10**5),
    (100, 10**15),
]
PROPORTIONS += [(2**61, 2**61 - 1), (100, 10**40, 10**39)]  # beyond all fixed sizes
LENGTHS = [
    (3,),
    (4, 0, 5),
    (0, 0, 1, 0),
    (1,) * 4,
    (10, 1000, 3),
    (2**40, 7, 2**41),
    (2**62,) * 2,
    (2**62, 2**62 + 5, 3),
]
LENGTHS.append((sys.maxsize - 1,) * 2)


def blocks(start, around):
    """Index blocks of every form and size, about ``start`` and about ``around``."""
    rng = random.Random(start % 1000)
    yield range(start, start + 2)
    yield range(start, start + 40)
    yield range(start + 40, start, -3)
    yield range(start - around, start + 3 * around, max(1, around))
    yield [start, start]
    values = [start + rng.randint(-around, around) for _ in range(30)]
    yield values
    if max(map(abs, values)) < 2**63:
        yield np.array(values, np.int64)
        yield np.array([start, start], np.int64)
    yield np.array(values, object)


CASES = [
    *[
        (SelectionWithProportionsMap(proportions, 10), chosen, proportions)
        for proportions in PROPORTIONS
    ],
    *[(ConcatenationMap(lengths), placed, lengths) for lengths in LENGTHS],
]


@pytest.mark.parametrize(
    ("selection_map", "model", "numbers"),
    CASES,
    ids=lambda value: getattr(value, "__name__", str(value))[:40],
)
def test_any_block_by_the_model(selection_map, model, numbers):
    total = sum(numbers)
    assert len(selection_map) == (10 if model is chosen else min(total, sys.maxsize))
    for start in [*STARTS, total, -total, numbers[0], total - numbers[-1]]:
        for indices in blocks(start, total):
            expected = [model(numbers, i) for i in as_ints(indices)]
            assert [selection_map[i] for i in as_ints(indices)] == expected
            assert flat(*selection_map.select(indices)) == expected


def test_plans_are_kept_by_phase_and_size():
    """Each is asked for twice, from several rounds, in mixed order."""
    selection._plan.cache_clear()
    for proportions in [(1, 1, 1), (233, 100), (100, 700, 50)]:
        period = sum(proportions) // math.gcd(*proportions)
        selection_map = SelectionWithProportionsMap(proportions, 10)
        starts = [
            round_ * period + phase
            for phase in {0, 1, period // 2, period - 1}
            for round_ in (0, 3, -2, 2**70)
        ]
        for num in (2, 3, period, 1024, 1025):  # the last is more than is kept
            for start in [*starts, *starts[::-1]]:
                shares, places = selection_map.select(range(start, start + num))
                assert flat(shares, places) == [selection_map[i] for i in range(start, start + num)]
                shares.clear()  # changes of a plan do not change the cached one
    info = selection._plan.cache_info()
    assert info.hits > info.misses > 0


WEIGHTS = [
    ([0.7, 0.3], (233, 100)),
    ((1, 2), (100, 200)),
    ([1, 1.009], (100, 100)),
    ([0.1, 0.1, 0.1], (100, 100, 100)),
    (np.array([0.7, 0.3]), (233, 100)),
    (np.array([0.3, 0.9], np.float32), (100, 299)),  # as the weights' own type rounds
    (np.array([0.3, 0.9], np.float64), (100, 300)),
    (np.array([0.015, 0.99], np.float16), (100, 6604)),
    (np.array([1, 2]), (100, 200)),
    (np.array([3, 200], np.uint8), (100, 6666)),
    (np.array([True, True]), (100, 100)),
    ([np.float32(0.5), 1], (100, 200)),
    ([2**70, 2**71], (100, 200)),
    ([Fraction(1, 3), Fraction(2, 7)], (116, 100)),
    ([1e-300, 1], (99, int(1 * (100 / 1e-300)))),
    (range(1, 4), (100, 200, 300)),
    (None, (1, 1, 1)),
]


def test_weights():
    for weights, expected in WEIGHTS:
        found = integer_weights(weights, len(expected))
        assert found == expected
        assert all(type(weight) is int for weight in found)
    for bad in (
        0,
        0.0,
        -0.0,
        -1,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        np.float32(0),
        10**400,
        -(10**400),
    ):
        for position, weights in ((0, [bad, 1.0, 1.0]), (2, [1.0, 1.0, bad])):
            for form in (
                (list, np.array) if not isinstance(bad, int) or abs(bad) < 2**63 else (list,)
            ):
                match = rf"positive and finite.*weights\[{position}\].*leave out"
                assert_raises(ValueError, match, integer_weights, form(weights), 3)
    for weights in ([], [1], [1, 2, 3, 4], np.ones(2), ()):
        with pytest.raises(ValueError, match=f"for each of the 3 datasets, got {len(weights)}"):
            integer_weights(weights, 3)
    no_numbers = "11", b"11", ["1", 2], [None, 1], [[1], [1, 2]], [1j, 1]
    for weights in (
        *no_numbers,
        5,
        1.5,
        {1, 2},
        {0: 1, 1: 2},
        iter([1, 2]),
        np.array(1.0),
        np.ones((2, 1)),
    ):
        assert_raises(TypeError, "weights must be", integer_weights, weights, 2)
    far_apart = (
        [1e-300, 1e300],
        [5e-324, 5e-324],
        [5e-324, 1],
        np.array([1e-300, 1e300]),
        np.array([0.001, 700], np.float16),
    )
    for weights in far_apart:  # no proportion can hold them
        assert_raises(ValueError, "far apart", integer_weights, weights, 2)


LENGTHS_OF_MIXTURES = [
    ([10, 20, 30], integer_weights([0.1, 0.2, 0.7], 3), 42),
    ([5, 5], (233, 100), 7),
    ([1], (1,), 1),
    ([1, 10**6], (1, 1), 2),
    ([sys.maxsize, sys.maxsize], (1, 1), sys.maxsize),
    ([sys.maxsize, 5], (1, 1), 10),
    ([sys.maxsize, sys.maxsize], (100, 10**300), sys.maxsize),
    ([2**62, 2**62], (1, 1), sys.maxsize),
]


def test_lengths_texts_pickling_and_entries_of_users():
    for lengths, proportions, expected in LENGTHS_OF_MIXTURES:
        selection_map = SelectionWithProportionsMap.of_datasets(lengths, proportions)
        assert len(selection_map) == expected
        used = [selection_map[i][0] for i in range(min(expected, 1000))]
        assert all(used.count(j) <= length for j, length in enumerate(lengths))
    for selection_map in (SelectionWithProportionsMap((233, 100), 7), ConcatenationMap([4, 0, 5])):
        assert isinstance(selection_map, DatasetSelectionMap)
        again = pickle.loads(pickle.dumps(selection_map))
        assert repr(again) == repr(selection_map)
        assert flat(*again.select(range(20))) == [selection_map[i] for i in range(20)]
    assert repr(selection_map) == "ConcatenationMap(lengths=(4, 0, 5))"
    pairs = [(1, 2), [0, -1], (np.int64(1), np.int32(7)), np.array([0, 3])]
    expected = [(1, 2), (0, -1), (1, 7), (0, 3)]
    for i, entry in enumerate(expected):
        assert selected(pairs, i) == entry
        assert all(type(x) is int for x in selected(pairs, i))
    for indices in ([0, 1, 2, 3], [3, 3, 0], np.array([2, 1]), range(3, -1, -1), [1]):
        assert flat(*select_singly(pairs, indices)) == [expected[i] for i in as_ints(indices)]
    for wrong in (5, None, (1,), (1, 2, 3), "ab", (1.0, 2), (1, 2.0), (0, None), ("0", 1)):
        assert_raises(TypeError, r"selection_map\[0\]", selected, [wrong], 0)


def test_a_table_without_an_entry_says_so():
    expected = [(1, 2), (0, -1), (1, 7), (0, 3)]
    asked_beyond = [
        lambda ds: list(ds.repeat(2)),
        lambda ds: list(ds.repeat(2).to_iter_dataset()),
        lambda ds: list(ds[1:3].repeat(2)),
        lambda ds: ds[4],
        lambda ds: ds[-5],
    ]
    for table in (expected, tuple(expected), np.array(expected), dict(enumerate(expected))):
        ds = MapDataset.select_from_datasets([MapDataset.range(9), MapDataset.range(9)], table)
        assert list(ds) == [2, 8, 7, 3]
        for ask in asked_beyond:
            match = (
                f"selection_map, a {type(table).__name__} of length 4, has no entry at (4|5|-5)"
                " .*repeat the stream"
            )
            assert_raises(IndexError, match, ask, ds)
        assert list(ds.to_iter_dataset().repeat(2)) == [2, 8, 7, 3] * 2
    ds = MapDataset.select_from_datasets([MapDataset.range(9)], {0: (0, 1), 2: (0, 2)})
    assert_raises(
        IndexError, r"length 2, has no entry at 1 \(KeyError\(1\)\): it must have one", list, ds
    )
