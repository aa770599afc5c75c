import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.indices import as_array, as_ints

FAR = st.integers(-(2**80), 2**80) | st.integers(-10, 10) | st.sampled_from([2**62, 2**63 - 1, 2**63, -(2**63)])
LIMITS = st.sampled_from([0, 10, 2**31, 2**62, 2**63 - 1])


def check(indices, limit):
    expected = [int(i) for i in indices]
    array = as_array(indices, limit)
    assert [int(i) for i in array] == expected
    fits = all((-(2**63) if limit == 2**63 - 1 else -limit) <= i <= limit for i in expected)
    if array.dtype == np.int64:
        assert fits
    else:
        assert array.dtype == object and {type(i) for i in array} == {int}


@given(st.lists(FAR, min_size=1, max_size=5), st.sampled_from([1, -1, 3, 2**62]), LIMITS)
def test_lists_and_ranges_keep_their_values(indices, step, limit):
    check(indices, limit)
    if all(-limit <= i <= limit for i in indices):
        assert as_array(indices, limit).dtype == np.int64
    check(range(indices[0], indices[0] + len(indices) * step, step), limit)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), LIMITS)
def test_arrays_keep_their_values(indices, limit):
    check(np.array(indices, np.int64), limit)
    check(np.array(indices, object), limit)


def test_kinds_of_indices():
    array = np.arange(5)
    assert as_array(array, 4) is array
    check(np.array([-(2**63), 2**63 - 1]), 2**63 - 1)  # the largest limit takes every int64
    for indices in (range(3), [0, 1, 2], np.arange(3), np.array([0, 1, 2], object)):
        assert list(as_ints(indices)) == [0, 1, 2]
        assert {type(i) for i in as_ints(indices)} == {int}
