import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import KeyRangeError
from gristmill.sources import RangeDataSource


@given(st.integers(-50, 50), st.integers(0, 50), st.integers(-7, 7).filter(bool))
def test_it_holds_what_range_holds(start, distance, step):
    stop = start + distance * (1 if step > 0 else -1)
    expected = list(range(start, stop, step))
    source = RangeDataSource(start, stop, step)
    assert list(source) == expected
    assert len(source) == len(expected)
    assert [source[i] for i in range(len(source))] == expected
    keys = list(range(len(expected)))[::-1] * 2
    assert source.__getitems__(keys) == [expected[key] for key in keys]


@pytest.mark.parametrize(
    ("arguments", "length"), [((0, 0, 1), 0), ((0, 1, 5), 1), ((0, 3 * 10**17 + 1, 3), 10**17 + 1), ((10, 0, -3), 4)]
)
def test_lengths_are_exact(arguments, length):
    assert len(RangeDataSource(*arguments)) == length


@pytest.mark.parametrize("kind", [ValueError, AssertionError])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 5, 0), "step can't be zero"), ((5, 0, 1), "length can't be negative"), ((0, 5, -1), "length can't be")],
)
def test_impossible_ranges(kind, arguments, message):
    with pytest.raises(kind, match=message):
        RangeDataSource(*arguments)


def test_arguments_are_required_and_integers():
    with pytest.raises(TypeError):
        RangeDataSource(3)
    with pytest.raises(TypeError, match=r"stop must be an integer, got 1\.5"):
        RangeDataSource(0, 1.5, 1)


@pytest.mark.parametrize("kind", [IndexError, KeyRangeError])
@pytest.mark.parametrize("index", [-1, 5, 10**30])
def test_an_index_outside_is_an_error_with_index_and_length(kind, index):
    with pytest.raises(kind, match=rf"{index} .*length 5"):
        RangeDataSource(0, 10, 2)[index]


@pytest.mark.parametrize("index", [slice(0, 2), 1.0, "1", None])
def test_only_integers_are_indices(index):
    with pytest.raises(TypeError):
        RangeDataSource(0, 10, 2)[index]


@pytest.mark.parametrize("index", [np.int64(1), np.uint8(1), True])
def test_every_kind_of_integer_is_an_index(index):
    record = RangeDataSource(np.int64(0), 10, 2)[index]
    assert record == 2
    assert type(record) is int


def test_repr_is_the_one_that_states_carry():
    source = RangeDataSource(start=np.int64(0), stop=10, step=2)
    assert repr(source) == str(source) == "RangeDataSource(start=0, stop=10, step=2)"
    assert repr(pickle.loads(pickle.dumps(source))) == repr(copy.copy(source)) == repr(source)
