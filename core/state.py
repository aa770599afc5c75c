"""States as text, and the file of a process."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.core.sharding import process_index_and_count


def state_field(state: Any, key: str, owner: object) -> Any:
    """``state[key]``, or an error that says which iterator expected it and what was found.

    Raises:
        StateMismatchError: ``state`` is not a mapping.
        StateKeyError: it has no such key.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"the state of {owner} must be a mapping with the key {key!r}, got {state!r:.200}")
    if key not in state:
        raise StateKeyError(f"the state of {owner} must have the key {key!r}, found only {sorted(map(str, state))}")
    return state[key]


def state_count(state: Any, key: str, owner: object) -> int:
    """``state[key]`` as a non-negative built-in ``int`` (NumPy integers are accepted)."""
    value = state_field(state, key, owner)
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise StateMismatchError(f"{key} in the state of {owner} must be a non-negative integer, got {value!r:.200}")
    return count


def state_to_text(state: Any) -> str:
    """The JSON text of a state, as it stands in checkpoint files."""
    return json.dumps(state, indent=4)


def process_file_name() -> str:
    """The name of this process's file in a checkpoint directory: ``process_<index>-of-<count>.json``."""
    index, count = process_index_and_count()
    return f"process_{index}-of-{count}.json"
