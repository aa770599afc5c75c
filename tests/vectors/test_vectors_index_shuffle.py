import math

import numpy as np
import pytest
from vector_data import load

from gristmill.core.permutation import Permutation, round_keys
from gristmill.experimental import index_shuffle

VECTORS = load("index_shuffle")


def in_block(index: int, max_index: int) -> bool:
    """Whether ``index`` fits the cipher's block, whose size Grain takes from a logarithm in double precision."""
    bits = math.ceil(math.log2(max_index))
    return index < 2 ** max(bits + bits % 2, 16)


def test_round_keys():
    assert len(VECTORS["round_keys"]) == 25
    for case in VECTORS["round_keys"]:
        assert list(round_keys(case["seed"], case["rounds"])) == case["keys"]


def test_full_permutations():
    assert len(VECTORS["full_permutations"]) == 79
    for case in VECTORS["full_permutations"]:
        n, seed = case["n"], case["seed"]
        permutation = Permutation(n, seed)
        assert [index_shuffle(i, n - 1, seed, 4) for i in range(n)] == case["output"]
        assert permutation.many(np.zeros(n, np.int64), np.arange(n)).tolist() == case["output"]
        assert [permutation.one(0, i) for i in range(n)] == case["output"]


@pytest.mark.parametrize("name", ["samples", "rounds", "power_of_two_plus_one"])
def test_samples(name):
    """Equal to Grain but for indices that do not fit the block: those map to themselves (DECISIONS 2)."""
    deviations = []
    for case in VECTORS[name]:
        n, seed, rounds = case["n"], case["seed"], case["rounds"]
        expected = [
            output if n == 1 or in_block(index, n - 1) else index
            for index, output in zip(case["index"], case["output"], strict=True)
        ]
        deviations += [(n, i) for i, ours, grains in zip(case["index"], expected, case["output"], strict=True) if ours != grains]
        assert [index_shuffle(i, n - 1, seed, rounds) for i in case["index"]] == expected, case
        if rounds == 4:
            permutation = Permutation(n, seed)
            positions = np.array(case["index"], np.int64)
            assert permutation.many(np.zeros_like(positions), positions).tolist() == expected
    num_cases, num_deviations = {"samples": (159, 3), "rounds": (68, 0), "power_of_two_plus_one": (10, 10)}[name]
    assert (len(VECTORS[name]), len(deviations)) == (num_cases, num_deviations)
    assert all(index == n - 1 and (n - 1).bit_count() == 1 and n.bit_length() % 2 for n, index in deviations)


def test_every_small_length_is_permuted():
    for n in range(1, 513):
        order = Permutation(n, seed=n).many(np.zeros(n, np.int64), np.arange(n))
        assert np.array_equal(np.sort(order), np.arange(n)), n


@pytest.mark.parametrize("n", [4097, 65535, 65536, 65537, 65538, 131073, 262145])
def test_longer_lengths_are_permuted(n):
    permutation = Permutation(n, seed=3)
    order = np.concatenate(
        [permutation.many(np.zeros(len(block), np.int64), block) for block in np.split(np.arange(n), [1, 100, n // 2, n - 3])]
    )
    assert order.dtype == np.int64
    assert np.array_equal(np.bincount(order, minlength=n), np.ones(n))
    for i in (0, 1, 4095, 4096, n // 2, n - 2, n - 1):
        assert order[i] == index_shuffle(i, n - 1, 3, 4)


@pytest.mark.parametrize(
    "n",
    [
        2**31 - 1,
        2**31 + 5,
        2**32,
        2**32 + 1,
        2**50 + 1,
        2**53 - 1,
        2**53 + 1,
        2**60 + 7,  # the rounded logarithm makes the block too small for several indices
        2**62 + 3,
        2**62 + 5000,
        2**63 - 1,
    ],
)
def test_lengths_beyond_32_and_53_bits(n):
    """One index at a time and whole blocks agree, stay in range, and no two indices share an image."""
    top = n - 1
    images: dict[int, int] = {}
    permutation = Permutation(n, seed=2**32 - 1)
    for start in (0, n // 3, min(2**53, n - 200) - 100, n - 200):
        block = np.arange(start, start + 200, dtype=np.int64)
        many = permutation.many(np.ones(200, np.int64), block).tolist()  # epoch 1 of seed 2**32 - 1 is seed 0
        assert many == [index_shuffle(i, top, 0, 4) for i in block.tolist()]
        assert many == [permutation.one(1, i) for i in block.tolist()]
        assert all(0 <= image <= top for image in many)
        images |= dict(zip(block.tolist(), many, strict=True))
    assert len(set(images.values())) == len(images)
    outside = [i for i in images if not in_block(i, top)]
    assert all(images[i] == i for i in outside)
    assert len(outside) == {2**32 + 1: 1, 2**50 + 1: 1, 2**60 + 7: 7, 2**62 + 3: 3, 2**62 + 5000: 200}.get(n, 0)
