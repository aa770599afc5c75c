import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill.core.errors import (
    KeyRangeError,
    StateIndexError,
    StateKeyError,
    StateMismatchError,
    add_note,
    as_int,
    missing_package,
    stop_iteration_error,
)
from gristmill.core.indices import as_array, as_ints


def test_as_int_gives_built_in_integers():
    for value in (5, np.int64(5), np.uint8(5), np.array(5)):
        assert as_int("x", value) == 5 and type(as_int("x", value)) is int
    assert as_int("x", True) == 1 and type(as_int("x", True)) is int
    assert [as_int("x", value, minimum=-3, maximum=3) for value in (-3, 3)] == [-3, 3]


@pytest.mark.parametrize("value", [5.0, np.float64(5), "5", None, [5], 5j])
def test_as_int_refuses_other_types(value):
    with pytest.raises(TypeError, match=r"^batch_size must be an integer, got .* of type ") as caught:
        as_int("batch_size", value)
    assert repr(value) in str(caught.value) and type(value).__name__ in str(caught.value)
    assert caught.value.__suppress_context__


def test_as_int_names_parameter_and_range_and_errors_are_caught_as_what_users_expect():
    for limits, value, message in [
        ({"minimum": 0}, -1, "a non-negative integer, got -1"),
        ({"minimum": 1}, 0, "a positive integer, got 0"),
        ({"minimum": 4}, 3, "at least 4, got 3"),
        ({"minimum": 0, "maximum": 9}, 10, r"an integer in \[0, 9\], got 10"),
        ({"maximum": 9}, 10, r"an integer in \[-inf, 9\], got 10"),
    ]:
        assert_raises(ValueError, f"^x must be {message}$", as_int, "x", value, **limits)
    for kind, caught_as in [
        (StateMismatchError, (ValueError,)),
        (StateKeyError, (StateMismatchError, ValueError, KeyError)),
        (StateIndexError, (StateMismatchError, ValueError, IndexError)),
        (KeyRangeError, (IndexError, ValueError)),
    ]:
        for base in caught_as:
            with pytest.raises(base, match=r"^the message$"):
                raise kind("the message")
        other = pickle.loads(pickle.dumps(kind("the message")))
        assert type(other) is kind and str(other) == "the message"


def test_texts_of_errors_and_notes_of_any_exception():
    error = missing_package("pyarrow", "parquet", "ParquetIterDataset")
    assert isinstance(error, ImportError)
    for part in ("pyarrow", "gristmill[parquet]", "ParquetIterDataset"):
        assert part in str(error)
    error = stop_iteration_error("MapMapDataset(transform=f)")
    assert type(error) is RuntimeError
    assert "MapMapDataset(transform=f) raised StopIteration" in str(error)

    class Frozen(Exception):
        code: int

    for error in (ValueError("text"), Frozen(3)):
        add_note(error, "first")
        add_note(error, "second")
        assert error.__notes__ == ["first", "second"]


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
