import pickle

import numpy as np
import pytest
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
