import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill.core.permutation import Permutation, index_shuffle

PLACES = st.tuples(st.integers(-3, 3) | st.just(2**40), st.integers(0, 10) | st.integers(0, 2**63 - 1))


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


def test_dtypes_and_order_of_a_block_do_not_matter_and_copies_and_threads_see_the_same():
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
    for other in (pickle.loads(pickle.dumps(permutation)), copy.deepcopy(permutation), copy.copy(permutation)):
        assert [other.one(1, i) for i in range(10)] == [permutation.one(1, i) for i in range(10)]
    assert len(pickle.dumps(permutation)) < 200
    permutation = Permutation(1_000_000, 5)
    blocks = [np.arange(start, start + 3000) for start in range(0, 300_000, 30_000)]

    def look_up():
        found = [permutation.many(np.zeros(3000, np.int64), block) for block in blocks]
        return [[int(order[0]), int(order[-1])] for order in found]

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(look_up) for _ in range(4)]
    expected = [[index_shuffle(i, 999_999, 5, 4) for i in (block[0], block[-1])] for block in blocks]
    assert [answer.result() for answer in answers] == [expected] * 4


def test_integers_of_all_kinds_in_range_are_taken_and_built_in_ones_returned():
    expected = index_shuffle(1, 10, 3, 4)
    for kind in (np.int64, np.uint8, np.int32):
        result = index_shuffle(kind(1), kind(10), kind(3), kind(4))
        assert result == expected and type(result) is int
    assert index_shuffle(index=True, max_index=10, seed=3, rounds=4) == expected
    assert index_shuffle(0, 0, 0, 4) == 0
    right = {"index": 1, "max_index": 10, "seed": 3, "rounds": 4}
    for change, error, message in [
        *(({name: x}, TypeError, f"{name} must be an integer, got") for name in right for x in (1.0, "1", None, [1])),
        *(({"rounds": n}, ValueError, rf"rounds must be an even integer in \[4, 1024\], got {n}") for n in (2, 5, 1026, -4)),
        ({"index": -1}, ValueError, "index must be in .0, max_index. = .0, 10., got -1"),
        ({"index": 11}, ValueError, "index must be in .0, max_index. = .0, 10., got 11"),
        ({"index": 0, "max_index": -1}, ValueError, "index must be in .0, max_index. = .0, -1., got 0"),
        ({"max_index": 2**63}, ValueError, "max_index must be .*, got 9223372036854775808"),
        ({"seed": -1}, ValueError, "seed must be .*, got -1"),
        ({"seed": 2**32}, ValueError, "seed must be .*, got 4294967296"),
        ({"rounds": 3, "index": 11}, ValueError, "rounds must be"),  # in this order
        ({"index": 1, "max_index": 0}, ValueError, "index must be"),
    ]:
        assert_raises(error, f"^{message}", index_shuffle, **{**right, **change})
