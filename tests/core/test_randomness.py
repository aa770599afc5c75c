"""Permutations, seeds and generators."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill.core.permutation import Permutation, index_shuffle
from gristmill.core.seeds import RngPool, check_seed, keyed_rng

PLACES = st.tuples(
    st.integers(-3, 3) | st.just(2**40), st.integers(0, 10) | st.integers(0, 2**63 - 1)
)


@settings(deadline=None, max_examples=50)
@example(5, 2**32 - 1, [(-3, 0), (-1, 1), (0, 4), (1, 3), (2**32, 2), (2**40, 0)])
@given(st.integers(1, 2**63), st.integers(0, 2**32 - 1), st.lists(PLACES, min_size=1, max_size=20))
def test_one_and_many_and_the_function_agree(n, seed, places):
    permutation = Permutation(n, seed)
    places = [(epoch, position % n) for epoch, position in places]
    epochs, positions = zip(*places, strict=True)
    many = permutation.many(np.array(epochs), np.array(positions, np.int64))
    assert many.dtype == np.int64
    expected = [index_shuffle(p, n - 1, (seed + e) % 2**32, 4) for e, p in places]
    assert many.tolist() == [permutation.one(e, p) for e, p in places] == expected


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([4, 6, 8, 10]))
def test_it_is_a_permutation_for_every_number_of_rounds(n, seed, rounds):
    assert sorted(index_shuffle(i, n - 1, seed, rounds) for i in range(n)) == list(range(n))


def test_dtypes_and_order_of_a_block_do_not_matter():
    permutation = Permutation(100_000, 7)
    positions = np.array([99_999, 0, 5, 5, 50_000])
    expected = [index_shuffle(i, 99_999, 7, 4) for i in positions.tolist()]
    for dtype in (np.int64, np.int32, object):
        assert permutation.many(np.zeros(5, dtype), positions.astype(dtype)).tolist() == expected
    far = [index_shuffle(i, 99_999, (7 + 2**80) % 2**32, 4) for i in positions.tolist()]
    assert permutation.many(np.array([2**80] * 5, object), positions).tolist() == far
    for n in (100, 100_000):
        permutation = Permutation(n, 1)
        indices = np.arange(100)
        first = permutation.many(np.zeros(100, np.int64), indices)
        expected = first.copy()
        first[:] = -1
        assert np.array_equal(permutation.many(np.zeros(100, np.int64), indices), expected)
    permutation = Permutation(60_000, 3)
    permutation.one(0, 0)
    for other in (
        pickle.loads(pickle.dumps(permutation)),
        copy.deepcopy(permutation),
        copy.copy(permutation),
    ):
        assert [other.one(1, i) for i in range(10)] == [permutation.one(1, i) for i in range(10)]
    assert len(pickle.dumps(permutation)) < 200
    permutation = Permutation(1_000_000, 5)
    blocks = [np.arange(start, start + 3000) for start in range(0, 300_000, 30_000)]

    def look_up():
        found = [permutation.many(np.zeros(3000, np.int64), block) for block in blocks]
        return [[int(order[0]), int(order[-1])] for order in found]

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(look_up) for _ in range(4)]
    expected = [
        [index_shuffle(i, 999_999, 5, 4) for i in (block[0], block[-1])] for block in blocks
    ]
    assert [answer.result() for answer in answers] == [expected] * 4


def test_integers_of_all_kinds_in_range_are_taken():
    expected = index_shuffle(1, 10, 3, 4)
    for kind in (np.int64, np.uint8, np.int32):
        result = index_shuffle(kind(1), kind(10), kind(3), kind(4))
        assert result == expected and type(result) is int
    assert index_shuffle(index=True, max_index=10, seed=3, rounds=4) == expected
    assert index_shuffle(0, 0, 0, 4) == 0
    right = {"index": 1, "max_index": 10, "seed": 3, "rounds": 4}
    for change, error, message in [
        *(
            ({name: x}, TypeError, f"{name} must be an integer, got")
            for name in right
            for x in (1.0, "1", None, [1])
        ),
        *(
            ({"rounds": n}, ValueError, rf"rounds must be an even integer in \[4, 1024\], got {n}")
            for n in (2, 5, 1026, -4)
        ),
        ({"index": -1}, ValueError, "index must be in .0, max_index. = .0, 10., got -1"),
        ({"index": 11}, ValueError, "index must be in .0, max_index. = .0, 10., got 11"),
        (
            {"index": 0, "max_index": -1},
            ValueError,
            "index must be in .0, max_index. = .0, -1., got 0",
        ),
        ({"max_index": 2**63}, ValueError, "max_index must be .*, got 9223372036854775808"),
        ({"seed": -1}, ValueError, "seed must be .*, got -1"),
        ({"seed": 2**32}, ValueError, "seed must be .*, got 4294967296"),
        ({"rounds": 3, "index": 11}, ValueError, "rounds must be"),  # in this order
        ({"index": 1, "max_index": 0}, ValueError, "index must be"),
    ]:
        assert_raises(error, f"^{message}", index_shuffle, **{**right, **change})


DRAWS = {
    "float32": lambda rng: rng.random(3, dtype=np.float32).tolist(),
    "normal": lambda rng: rng.normal(size=3).tolist(),
}
DRAWS |= {"uint8": lambda rng: rng.integers(256, size=5, dtype=np.uint8).tolist()}
DRAWS |= {"choice": lambda rng: rng.choice(100, 5, replace=False).tolist()}
DRAWS |= {"raw": lambda rng: rng.bit_generator.random_raw(3).tolist()}
DRAWS |= {"jumped": lambda rng: rng.bit_generator.jumped().random_raw(2).tolist()}
DRAWS |= {
    "mixed": lambda rng: [
        rng.integers(9, dtype=np.uint32),
        rng.random(),
        rng.poisson(3),
        rng.shuffle([1, 2]),
    ]
}


def state(rng):
    return repr(rng.bit_generator.state)


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def test_keyed_rng_equals_a_philox_of_that_key():
    for key in (0, 1, 7, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**100 + 3, 2**128 - 1):
        assert state(keyed_rng(key)) == state(np.random.Generator(np.random.Philox(key=key)))
        for name, draw in DRAWS.items():
            assert draw(keyed_rng(key)) == draw(np.random.Generator(np.random.Philox(key=key))), (
                name
            )
    for drawn in (0, 1, 5):
        rng = keyed_rng(2**70 + 5)
        rng.integers(10, size=drawn, dtype=np.uint32)
        others = [through_pickle(rng), copy.deepcopy(rng)]
        assert [state(other) for other in others] == [state(rng)] * 2
        expected = rng.random(5).tolist()
        assert [other.random(5).tolist() for other in others] == [expected] * 2


def test_children_of_a_keyed_rng_are_the_same_in_every_run():
    def draws(rng):
        return [child.random() for child in [*rng.spawn(2), *rng.spawn(2)]]

    first = draws(keyed_rng(3))
    assert (
        first == draws(keyed_rng(3)) == draws(through_pickle(keyed_rng(3))) != draws(keyed_rng(4))
    )
    assert len({*first, keyed_rng(3).random()}) == 5
    for seed in (0, np.int64(5), True, 2**200):
        assert check_seed(seed) == seed and type(check_seed(seed)) is int
    assert check_seed(2**32 - 1, bits=32) == 2**32 - 1
    for wrong in (1.0, "1", (1,), None):
        assert_raises(TypeError, r"^seed must be an integer, got", check_seed, wrong)
        assert_raises(TypeError, r"^seed must be", RngPool, wrong)
    with pytest.raises(ValueError, match=r"^op must be a non-negative integer, got -1"):
        check_seed(-1, name="op")
    assert_raises(ValueError, "4294967296", check_seed, 2**32, bits=32)
    assert_raises(ValueError, r"^seed must be", RngPool, -1)


FAR = st.integers(-(2**70), 2**70)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**130), st.lists(st.tuples(FAR, FAR), min_size=1, max_size=5))
def test_pool_equals_a_philox_with_that_counter(seed, places):
    pool = RngPool(seed)
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    for index, op_seed in places:
        counter = np.array([0, 0, op_seed % 2**64, index % 2**64], np.uint64)
        expected = np.random.Generator(np.random.Philox(counter=counter, key=key))
        rng = pool.acquire_rng(index, op_seed=op_seed)
        assert state(rng) == state(expected)
        for draw in DRAWS.values():
            assert draw(rng) == draw(expected)
        pool.release_rng(rng)


def test_a_pool_reuses_what_was_released_and_pickles():
    pool = RngPool(1)
    first, second = pool.acquire_rng(0), pool.acquire_rng(0)
    assert first is not second
    assert first.random() == second.random()
    pool.release_rng(first)
    assert pool.acquire_rng(5) is first
    assert first.random() == RngPool(1).acquire_rng(5).random()
    pool = RngPool(2**80)
    assert pool.acquire_rng(1).random() == pool.acquire_rng(1, op_seed=0).random()
    assert pool.acquire_rng(1).random() != pool.acquire_rng(1, op_seed=1).random()
    assert_raises(TypeError, None, pool.acquire_rng, 1, 1)
    pool.release_rng(pool.acquire_rng(3))
    for other in (through_pickle(pool), copy.deepcopy(pool)):
        assert repr(other) == repr(pool) == f"RngPool(seed={2**80})"
        assert other.acquire_rng(9).random() == pool.acquire_rng(9).random()


def test_pool_in_threads_and_children_of_its_generators():
    pool = RngPool(8)

    def work():
        found = []
        for i in range(200):
            rng = pool.acquire_rng(i)
            found.append(rng.random())
            pool.release_rng(rng)
        return found

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(work) for _ in range(4)]
    assert [answer.result() for answer in answers] == [
        [RngPool(8).acquire_rng(i).random() for i in range(200)]
    ] * 4

    def first_of_children(pool, index, op_seed=0):
        rng = pool.acquire_rng(index, op_seed=op_seed)
        draws = [int(child.integers(2**62)) for child in rng.spawn(2) + rng.spawn(1)]
        pool.release_rng(rng)
        return draws

    pool = RngPool(7)
    assert (
        first_of_children(pool, 3) == first_of_children(pool, 3) == first_of_children(RngPool(7), 3)
    )
    different = [
        first_of_children(*a) for a in [(pool, 3), (pool, 4), (pool, 3, 1), (RngPool(8), 3)]
    ]
    assert len({draw for draws in different for draw in draws}) == 12
