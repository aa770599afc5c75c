import copy
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.permutation import Permutation, index_shuffle, round_keys


def test_seeds_and_epochs_add_up_modulo_32_bits():
    for n in (5, 70_000):
        permutation = Permutation(n, seed=2**32 - 1)
        for epoch in (-3, -1, 0, 1, 2**32, 2**70):
            seed = (2**32 - 1 + epoch) % 2**32
            assert [permutation.one(epoch, i) for i in range(5)] == [index_shuffle(i, n - 1, seed, 4) for i in range(5)]


@settings(deadline=None)
@given(st.data(), st.integers(1, 2**63), st.integers(0, 2**32 - 1))
def test_one_and_many_and_the_function_agree(data, n, seed):
    permutation = Permutation(n, seed)
    count = data.draw(st.integers(1, 20))
    epochs = data.draw(st.lists(st.integers(-3, 3) | st.just(2**40), min_size=count, max_size=count))
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count))
    many = permutation.many(np.array(epochs), np.array(positions, np.int64))
    assert many.dtype == np.int64
    expected = [index_shuffle(p, n - 1, (seed + e) % 2**32, 4) for e, p in zip(epochs, positions, strict=True)]
    assert many.tolist() == expected
    assert [permutation.one(e, p) for e, p in zip(epochs, positions, strict=True)] == expected


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
    assert permutation.many(np.array([2**80] * 5, object), positions).tolist() == [
        index_shuffle(i, 99_999, (7 + 2**80) % 2**32, 4) for i in positions.tolist()
    ]


def test_the_caches_cannot_be_damaged_from_outside():
    for n in (100, 100_000):
        permutation = Permutation(n, 1)
        indices = np.arange(100)
        first = permutation.many(np.zeros(100, np.int64), indices)
        expected = first.copy()
        first[:] = -1
        assert np.array_equal(permutation.many(np.zeros(100, np.int64), indices), expected)


def test_copies_and_pickles_are_small_and_equal():
    permutation = Permutation(60_000, 3)
    permutation.one(0, 0)
    for other in (pickle.loads(pickle.dumps(permutation)), copy.deepcopy(permutation), copy.copy(permutation)):
        assert [other.one(1, i) for i in range(10)] == [permutation.one(1, i) for i in range(10)]
    assert len(pickle.dumps(permutation)) < 200


def test_threads_see_the_same_order():
    permutation = Permutation(1_000_000, 5)
    blocks = [np.arange(start, start + 3000) for start in range(0, 300_000, 30_000)]
    expected = [[index_shuffle(i, 999_999, 5, 4) for i in (block[0], block[-1])] for block in blocks]
    answers: list[list[int]] = []

    def look_up():
        found = [permutation.many(np.zeros(3000, np.int64), block) for block in blocks]
        answers.append([[int(order[0]), int(order[-1])] for order in found])

    threads = [threading.Thread(target=look_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4


def test_integers_of_all_kinds_are_taken_and_built_in_ones_returned():
    expected = index_shuffle(1, 10, 3, 4)
    for kind in (np.int64, np.uint8, np.int32):
        result = index_shuffle(kind(1), kind(10), kind(3), kind(4))
        assert result == expected and type(result) is int
    assert index_shuffle(index=True, max_index=10, seed=3, rounds=4) == expected
    assert index_shuffle(0, 0, 0, 4) == 0


@pytest.mark.parametrize("name", ["index", "max_index", "seed", "rounds"])
@pytest.mark.parametrize("value", [1.0, "1", None, [1]])
def test_only_integers_are_taken(name, value):
    with pytest.raises(TypeError, match=f"^{name} must be an integer, got"):
        index_shuffle(**{"index": 1, "max_index": 10, "seed": 3, "rounds": 4, name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 2}, "rounds must be an even integer in .4, 1024., got 2"),
        ({"rounds": 5}, "rounds must be an even integer in .4, 1024., got 5"),
        ({"rounds": 1026}, "rounds must be an even integer in .4, 1024., got 1026"),
        ({"rounds": -4}, "rounds must be an even integer in .4, 1024., got -4"),
        ({"index": -1}, "index must be in .0, max_index. = .0, 10., got -1"),
        ({"index": 11}, "index must be in .0, max_index. = .0, 10., got 11"),
        ({"index": 0, "max_index": -1}, "index must be in .0, max_index. = .0, -1., got 0"),
        ({"max_index": 2**63}, "max_index must be .*, got 9223372036854775808"),
        ({"seed": -1}, "seed must be .*, got -1"),
        ({"seed": 2**32}, "seed must be .*, got 4294967296"),
        ({"rounds": 3, "index": 11}, "rounds must be"),  # in this order
        ({"index": 1, "max_index": 0}, "index must be"),
    ],
)
def test_ranges(change, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        index_shuffle(**{"index": 1, "max_index": 10, "seed": 3, "rounds": 4, **change})


def test_round_keys_named_in_the_specification():
    assert round_keys(0, 4) == (2963817213, 69796629, 1973464570, 532167439)
    assert round_keys(4294967295, 4) == (3258260622, 2976084991, 227751652, 537413182)
