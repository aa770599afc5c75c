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


def test_lengths_and_texts():
    lengths = {(0, 0, 1): 0, (0, 1, 5): 1, (0, 3 * 10**17 + 1, 3): 10**17 + 1, (10, 0, -3): 4}
    assert {arguments: len(RangeDataSource(*arguments)) for arguments in lengths} == lengths
    source = RangeDataSource(start=np.int64(0), stop=10, step=2)
    assert repr(source) == str(source) == "RangeDataSource(start=0, stop=10, step=2)"  # which states carry
    assert repr(pickle.loads(pickle.dumps(source))) == repr(copy.copy(source)) == repr(source)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((0, 5, 0), ValueError, "step can't be zero"),
        ((0, 5, 0), AssertionError, "step can't be zero"),
        ((5, 0, 1), ValueError, "length can't be negative"),
        ((0, 5, -1), AssertionError, "length can't be"),
        ((3,), TypeError, "missing"),
        ((0, 1.5, 1), TypeError, r"stop must be an integer, got 1\.5"),
    ],
)
def test_impossible_ranges(arguments, kind, message):
    with pytest.raises(kind, match=message):
        RangeDataSource(*arguments)


def test_indices():
    source = RangeDataSource(np.int64(0), 10, 2)
    for index in (np.int64(1), np.uint8(1), True):
        assert (source[index], type(source[index])) == (2, int)
    for index in (-1, 5, 10**30):
        with pytest.raises(KeyRangeError, match=rf"{index} .*length 5") as error:
            source[index]
        assert isinstance(error.value, IndexError)
    for index in (slice(0, 2), 1.0, "1", None):
        with pytest.raises(TypeError):
            source[index]
