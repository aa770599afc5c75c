"""Errors, indices and parts of states."""

import json
import pickle
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import assert_raises

import gristmill
from gristmill.core.errors import (
    KeyRangeError,
    StateIndexError,
    StateKeyError,
    StateMismatchError,
    StateTextError,
    add_note,
    as_int,
    missing_package,
    stop_iteration_error,
)
from gristmill.core.indices import as_array, as_ints
from gristmill.core.state import (
    plain_counts,
    process_file_name,
    shown,
    state_count,
    state_field,
    state_flag,
    state_from_text,
    state_list,
    state_to_line,
    state_to_text,
)
from gristmill.sources.tfrecord import check_compression


def test_fields_counts_flags_and_lists_of_states():
    assert state_field({"a": None}, "a", "owner") is None
    found = r"owner must have the key 'b', found only \['a', 1\]"
    assert_raises(StateKeyError, found, state_field, {"a": 0, 1: 0}, "b", "owner")
    for wrong in (None, [("a", 1)], 5, "a", b"a"):
        with pytest.raises(StateMismatchError, match="owner must be a mapping with the key 'a'"):
            state_field(wrong, "a", "owner")
    with pytest.raises(StateMismatchError) as caught:
        state_field("x" * 10_000, "a", "owner")
    assert len(str(caught.value)) < 400
    for value in (0, 7, np.int64(7), sys.maxsize):
        assert state_count({"n": value}, "n", "owner") == value
        assert type(state_count({"n": value}, "n", "owner")) is int
    match = "n in the state of owner must be a non-negative integer, got"
    for wrong in (-1, 1.0, "1", None, [1], True, np.bool_(True), np.float64(1), 10**30 * -1):
        assert_raises(StateMismatchError, match, state_count, {"n": wrong}, "n", "owner")
    assert_raises(StateKeyError, None, state_count, {}, "n", "owner")
    match = "n in the state of owner must be at most 9223372036854775807, got 1000"
    assert_raises(StateIndexError, match, state_count, {"n": 10**4299}, "n", "owner")
    for value in (True, False, np.bool_(True)):
        assert state_flag({"x": value}, "x", "owner") is bool(value)
    match = "x in the state of owner must be true or false, got"
    for wrong in (0, 1, 1.0, "true", None, []):
        assert_raises(StateMismatchError, match, state_flag, {"x": wrong}, "x", "owner")
    assert state_list({"x": (1, None)}, "x", "owner", 2, "the number of parents") == [1, None]
    match = "x in the state of owner must be a list of 2, the number of parents, got"
    for wrong in ([1], [1, 2, 3], {"0": 1}, "ab", None, 2):
        with pytest.raises(StateMismatchError, match=match):
            state_list({"x": wrong}, "x", "owner", 2, "the number of parents")
    assert plain_counts([np.int32(3), 0, sys.maxsize]) == [3, 0, sys.maxsize]
    assert all(type(count) is int for count in plain_counts((np.uint8(3), 4)))
    for wrong in (
        [1, -1],
        [1, sys.maxsize + 1],
        [1.0],
        [True],
        ["1"],
        [None],
        3,
        None,
        {1: 2},
        "12",
    ):
        assert plain_counts(wrong) is None


def test_shown_values_are_short_and_plain():
    state = {"b": [1, None], "a": {"next_index": 2}}
    assert state_to_text(state) == json.dumps(state, indent=4)
    assert process_file_name() == "process_0-of-1.json"
    for text in ("", "{", "[1,]", b"\xff", b"{\0", "[" * 100_000, "1" * 5000):
        with pytest.raises(
            StateTextError, match="the state of owner must be JSON text, got"
        ) as caught:
            state_from_text(text, "owner")
        assert isinstance(caught.value, json.JSONDecodeError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is StateTextError and str(caught.value)[:30] == str(again)[:30]
    deep, endless = [], []
    for _ in range(5000):
        deep = [deep]
    endless.append(endless)
    for value in (
        deep,
        endless,
        10**5000,
        [10**5000],
        "x" * 10**6,
        b"x" * 10**6,
        {"x" * 10**6: "y"},
        [*range(10**6)],
        None,
    ):
        assert len(shown(value)) <= 200 and len(shown(value, 20)) <= 20
    for value in (
        1,
        -1.5,
        "a'b",
        b"a",
        None,
        True,
        [1, [2, "b"]],
        [],
        {},
        {"a": {1: [None]}},
        (1,),
        {2},
        range(3),
    ):
        assert shown(value) == repr(value)

    class Coloured:
        def __repr__(self):
            return "\x1b[31mred\x1b[0m,\n  \u202etxt.\ud800"

    assert shown(Coloured()) == r"\x1b[31mred\x1b[0m, \u202etxt.\ud800"
    assert shown({"\x1b[2J": "\r\x9b"}) == r"{'\x1b[2J': '\r\x9b'}"


@pytest.mark.parametrize("to_text", [state_to_text, state_to_line])
def test_at_most_one_note_that_json_adds_is_kept(to_text):
    state = {"a": {1}}
    for _ in range(20):
        state = {"a": [state]}
    with pytest.raises(TypeError, match="set is not JSON serializable") as caught:
        to_text(state)
    assert len(getattr(caught.value, "__notes__", [])) <= 1


def test_other_integers_are_refused_with_parameter_and_range():
    for value in (5, np.int64(5), np.uint8(5), np.array(5)):
        assert as_int("x", value) == 5 and type(as_int("x", value)) is int
    assert as_int("x", True) == 1 and type(as_int("x", True)) is int
    assert [as_int("x", value, minimum=-3, maximum=3) for value in (-3, 3)] == [-3, 3]
    for value in (5.0, np.float64(5), "5", None, [5], 5j):
        with pytest.raises(
            TypeError, match=r"^batch_size must be an integer, got .* of type "
        ) as caught:
            as_int("batch_size", value)
        assert repr(value) in str(caught.value) and type(value).__name__ in str(caught.value)
        assert caught.value.__suppress_context__
    for limits, value, message in [
        ({"minimum": 0}, -1, "a non-negative integer, got -1"),
        ({"minimum": 1}, 0, "a positive integer, got 0"),
        ({"minimum": 4}, 3, "at least 4, got 3"),
        ({"minimum": 0, "maximum": 9}, 10, r"an integer in \[0, 9\], got 10"),
        ({"maximum": 9}, 10, r"an integer in \[-inf, 9\], got 10"),
    ]:
        assert_raises(ValueError, f"^x must be {message}$", as_int, "x", value, **limits)


STREAM = gristmill.MapDataset.range(4).to_iter_dataset()
WORDS = {
    "executor": ("threads", lambda word: gristmill.MultiprocessingOptions(1, executor=word)),
    "order": (
        "stream",
        lambda word: STREAM.mp_prefetch(gristmill.MultiprocessingOptions(1), order=word),
    ),
    "then": ("replace", lambda word: STREAM.tolerate(ValueError, then=word)),
    "end": ("pad", lambda word: STREAM.global_batch(2, end=word)),
    "stop": ("all", lambda word: gristmill.IterDataset.mix([STREAM], stop=word)),
    "by": ("elements", lambda word: gristmill.IterDataset.mix([STREAM], by=word)),
    "by ": (
        "elements",
        lambda word: gristmill.MapDataset.mix([gristmill.MapDataset.range(4)], by=word),
    ),
    "on_long": ("drop", lambda word: STREAM.bucket_batch(len, [1], batch_sizes=1, on_long=word)),
    "compression": ("gzip", check_compression),
    "format": ("raw", lambda word: gristmill.TokenSource("none", format=word)),
}


@pytest.mark.parametrize("name", WORDS)
def test_options_of_one_word_refuse_what_is_equal_to_a_word(name):
    word, make = WORDS[name]
    for wrong in (
        np.array([word]),
        np.array([word, word]),
        np.array(word),
        [word],
        {word},
        f"{word} ",
    ):
        with pytest.raises(
            (TypeError, ValueError),
            match=f"{name.strip()} must be .*got {re.escape(repr(wrong)[:20])}",
        ):
            make(wrong)


def test_errors_have_the_bases_texts_and_notes_users_expect():
    for kind, caught_as in [
        (StateMismatchError, (ValueError,)),
        (StateKeyError, (StateMismatchError, ValueError, KeyError)),
        (StateIndexError, (StateMismatchError, ValueError, IndexError)),
        (KeyRangeError, (IndexError, ValueError)),
    ]:
        other = pickle.loads(pickle.dumps(kind("the message")))
        assert type(other) is kind
        assert {*caught_as} < {*kind.__mro__}
        assert str(kind("the message")) == str(other) == "the message"
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


FAR = (
    st.integers(-(2**80), 2**80)
    | st.integers(-10, 10)
    | st.sampled_from([2**62, 2**63 - 1, 2**63, -(2**63)])
)
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
