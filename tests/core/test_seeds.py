import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill.core.seeds import RngPool, check_seed, keyed_rng

DRAWS = {"float32": lambda rng: rng.random(3, dtype=np.float32).tolist(), "normal": lambda rng: rng.normal(size=3).tolist()}
DRAWS |= {"uint8": lambda rng: rng.integers(256, size=5, dtype=np.uint8).tolist()}
DRAWS |= {"choice": lambda rng: rng.choice(100, 5, replace=False).tolist()}
DRAWS |= {"raw": lambda rng: rng.bit_generator.random_raw(3).tolist()}
DRAWS |= {"jumped": lambda rng: rng.bit_generator.jumped().random_raw(2).tolist()}
DRAWS |= {"mixed": lambda rng: [rng.integers(9, dtype=np.uint32), rng.random(), rng.poisson(3), rng.shuffle([1, 2])]}


def state(rng):
    return repr(rng.bit_generator.state)


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def test_keyed_rng_equals_a_philox_of_that_key():
    for key in (0, 1, 7, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**100 + 3, 2**128 - 1):
        assert state(keyed_rng(key)) == state(np.random.Generator(np.random.Philox(key=key)))
        for name, draw in DRAWS.items():
            assert draw(keyed_rng(key)) == draw(np.random.Generator(np.random.Philox(key=key))), name


@pytest.mark.parametrize("drawn", [0, 1, 5])
def test_keyed_rng_survives_pickling_and_copying(drawn):
    rng = keyed_rng(2**70 + 5)
    rng.integers(10, size=drawn, dtype=np.uint32)
    others = [through_pickle(rng), copy.deepcopy(rng)]
    assert [state(other) for other in others] == [state(rng)] * 2
    expected = rng.random(5).tolist()
    assert [other.random(5).tolist() for other in others] == [expected] * 2


def test_children_of_a_keyed_rng_are_the_same_in_every_run_and_what_is_a_seed():
    def draws(rng):
        return [child.random() for child in [*rng.spawn(2), *rng.spawn(2)]]

    first = draws(keyed_rng(3))
    assert first == draws(keyed_rng(3)) == draws(through_pickle(keyed_rng(3))) != draws(keyed_rng(4))
    assert len({*first, keyed_rng(3).random()}) == 5
    for seed in (0, np.int64(5), True, 2**200):
        assert check_seed(seed) == seed and type(check_seed(seed)) is int
    assert check_seed(2**32 - 1, bits=32) == 2**32 - 1
    for wrong in (1.0, "1", (1,), None):
        assert_raises(TypeError, r"^seed must be an integer, got", check_seed, wrong)
        assert_raises(TypeError, r"^seed must be", RngPool, wrong)
    assert_raises(ValueError, r"^op must be a non-negative integer, got -1", check_seed, -1, name="op")
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


def test_a_pool_reuses_what_was_released_has_operation_zero_by_default_and_pickles():
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
    assert [answer.result() for answer in answers] == [[RngPool(8).acquire_rng(i).random() for i in range(200)]] * 4

    def first_of_children(pool, index, op_seed=0):
        rng = pool.acquire_rng(index, op_seed=op_seed)
        draws = [int(child.integers(2**62)) for child in rng.spawn(2) + rng.spawn(1)]
        pool.release_rng(rng)
        return draws

    pool = RngPool(7)
    assert first_of_children(pool, 3) == first_of_children(pool, 3) == first_of_children(RngPool(7), 3)
    different = [first_of_children(*a) for a in [(pool, 3), (pool, 4), (pool, 3, 1), (RngPool(8), 3)]]
    assert len({draw for draws in different for draw in draws}) == 12
