import json
import pickle
import sys

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.errors import StateIndexError, StateKeyError, StateMismatchError, StateTextError
from gristmill.core.state import (
    plain_counts,
    process_file_name,
    shown,
    state_count,
    state_field,
    state_flag,
    state_from_text,
    state_list,
    state_to_text,
)


def test_fields_counts_flags_and_lists_of_states():
    assert state_field({"a": None}, "a", "owner") is None
    found = r"owner must have the key 'b', found only \['a', 1\]"
    assert_raises(StateKeyError, found, state_field, {"a": 0, 1: 0}, "b", "owner")
    for wrong in (None, [("a", 1)], 5, "a", b"a"):
        assert_raises(StateMismatchError, "owner must be a mapping with the key 'a'", state_field, wrong, "a", "owner")
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
        assert_raises(StateMismatchError, match, state_list, {"x": wrong}, "x", "owner", 2, "the number of parents")
    assert plain_counts([np.int32(3), 0, sys.maxsize]) == [3, 0, sys.maxsize]
    assert all(type(count) is int for count in plain_counts((np.uint8(3), 4)))
    for wrong in ([1, -1], [1, sys.maxsize + 1], [1.0], [True], ["1"], [None], 3, None, {1: 2}, "12"):
        assert plain_counts(wrong) is None


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff", b"{\0", "[" * 100_000, "1" * 5000])
def test_text_that_is_no_json(text):
    with pytest.raises(StateTextError, match="the state of owner must be JSON text, got") as caught:
        state_from_text(text, "owner")
    assert isinstance(caught.value, json.JSONDecodeError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is StateTextError
    assert str(caught.value)[:30] == str(again)[:30]


def test_text_is_indented_json_and_what_is_shown_is_short_and_never_fails_nor_commands_a_terminal():
    state = {"b": [1, None], "a": {"next_index": 2}}
    assert state_to_text(state) == json.dumps(state, indent=4)
    assert process_file_name() == "process_0-of-1.json"
    deep, endless = [], []
    for _ in range(5000):
        deep = [deep]
    endless.append(endless)
    for value in (deep, endless, 10**5000, [10**5000], "x" * 10**6, b"x" * 10**6, {"x" * 10**6: "y"}, [*range(10**6)], None):
        assert len(shown(value)) <= 200 and len(shown(value, 20)) <= 20
    for value in (1, -1.5, "a'b", b"a", None, True, [1, [2, "b"]], [], {}, {"a": {1: [None]}}, (1,), {2}, range(3)):
        assert shown(value) == repr(value)

    class Coloured:
        def __repr__(self):
            return "\x1b[31mred\x1b[0m,\n  \u202etxt.\ud800"

    assert shown(Coloured()) == r"\x1b[31mred\x1b[0m, \u202etxt.\ud800"
    assert shown({"\x1b[2J": "\r\x9b"}) == r"{'\x1b[2J': '\r\x9b'}"
