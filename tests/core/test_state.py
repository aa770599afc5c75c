import json

import numpy as np
import pytest

from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.core.state import process_file_name, state_count, state_field, state_to_text


def test_state_field():
    assert state_field({"a": None}, "a", "owner") is None
    with pytest.raises(StateKeyError, match=r"owner must have the key 'b', found only \['1', 'a'\]"):
        state_field({"a": 0, 1: 0}, "b", "owner")
    for wrong in (None, [("a", 1)], 5, "a", b"a"):
        with pytest.raises(StateMismatchError, match="owner must be a mapping with the key 'a'"):
            state_field(wrong, "a", "owner")


def test_state_count():
    for value in (0, 7, np.int64(7), True):
        assert state_count({"n": value}, "n", "owner") == value
        assert type(state_count({"n": value}, "n", "owner")) is int
    for wrong in (-1, 1.0, "1", None, [1]):
        with pytest.raises(StateMismatchError, match="n in the state of owner must be a non-negative integer, got"):
            state_count({"n": wrong}, "n", "owner")
    with pytest.raises(StateKeyError):
        state_count({}, "n", "owner")


def test_a_long_state_does_not_flood_the_message():
    with pytest.raises(StateMismatchError) as caught:
        state_field("x" * 10_000, "a", "owner")
    assert len(str(caught.value)) < 400


def test_text_is_indented_json():
    state = {"b": [1, None], "a": {"next_index": 2}}
    assert state_to_text(state) == json.dumps(state, indent=4)


def test_file_name():
    assert process_file_name() == "process_0-of-1.json"
