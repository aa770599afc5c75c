"""States as values and as text, what checks them, and the file of a process.

What is checked here is refused with the iterator that expected something else, what it expects and
what it got.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.core.errors import (
    StateIndexError,
    StateKeyError,
    StateMismatchError,
    StateTextError,
    drop_notes_of_serializing,
)
from gristmill.core.naming import one_line
from gristmill.core.sharding import process_index_and_count

_MAX_SHOWN = 200


def shown(value: Any, limit: int = _MAX_SHOWN) -> str:
    """Return a part of a state, or an argument, in an error message: its ``repr``, on one line and
    shortened, for any object.

    Example:
        >>> shown({"next_index": [1, 10**5000], "text": "a" * 1000}, 60)
        "{'next_index': [1, an integer of 16610 bits], 'text': 'aaaa…"
    """
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) > limit:  # the rest may be very long, or without end
            break
    return one_line(text, limit)


def _pieces(value: Any, limit: int) -> Iterator[str]:
    """Yield the ``repr`` of a value of JSON, in pieces as they are requested; of texts, no more
    than ``limit`` characters count.
    """
    kind = type(value)
    if kind is dict:
        yield "{"
        for i, (key, part) in enumerate(value.items()):
            yield ", " if i else ""
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(part, limit)
        yield "}"
    elif kind is list:
        yield "["
        for i, part in enumerate(value):
            yield ", " if i else ""
            yield from _pieces(part, limit)
        yield "]"
    else:
        yield _leaf_text(value[: limit + 1] if kind is str or kind is bytes else value)


def _leaf_text(value: Any) -> str:
    try:
        return repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return (
            f"an integer of {value.bit_length()} bits"
            if isinstance(value, int)
            else f"a {type(value).__name__}"
        )


def plain_int(value: Any) -> int | None:
    """Return ``value`` as a built-in ``int`` (NumPy integers are accepted), or ``None``: of a
    float, a truth value, a text.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def plain_counts(values: Any) -> list[int] | None:
    """Return a list of integers from 0 to ``sys.maxsize`` as built-in ones, or ``None`` if it is no
    such list.
    """
    if not isinstance(values, list | tuple):
        return None
    numbers = [
        number
        for number in map(plain_int, values)
        if number is not None and 0 <= number <= sys.maxsize
    ]
    return numbers if len(numbers) == len(values) else None


def state_field(state: Any, key: str, owner: object) -> Any:
    """Return ``state[key]``, or an error that says which iterator expected it and what was found.

    Raises:
        StateMismatchError: ``state`` is not a mapping.
        StateKeyError: it has no such key.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"the state of {owner} must be a mapping with the key {key!r}, got {shown(state)}"
        )
    if key not in state:
        raise StateKeyError(
            f"the state of {owner} must have the key {key!r}, found only {shown(list(state))}"
        )
    return state[key]


def state_count(state: Any, key: str, owner: object) -> int:
    """Return ``state[key]`` as a non-negative built-in ``int`` (NumPy integers are accepted).

    Raises:
        StateMismatchError, StateKeyError: it is no such list, or missing.
        StateIndexError: it is above ``sys.maxsize``, where no pipeline gets to.
    """
    value = state_field(state, key, owner)
    count = plain_int(value)
    if count is None or count < 0:
        raise StateMismatchError(
            f"{key} in the state of {owner} must be a non-negative integer, got {shown(value)}"
        )
    if count > sys.maxsize:
        raise StateIndexError(
            f"{key} in the state of {owner} must be at most {sys.maxsize}, got {shown(value)}"
        )
    return count


def state_flag(state: Any, key: str, owner: object) -> bool:
    """Return ``state[key]`` as a built-in ``bool`` (NumPy's are accepted)."""
    value = state_field(state, key, owner)
    if not isinstance(value, bool | np.bool_):
        raise StateMismatchError(
            f"{key} in the state of {owner} must be true or false, got {shown(value)}"
        )
    return bool(value)


def state_list(state: Any, key: str, owner: object, length: int, meaning: str) -> list[Any]:
    """Return ``state[key]`` as a list of ``length`` values; ``meaning`` says what decides how many
    there are.
    """
    values = state_field(state, key, owner)
    if not isinstance(values, list | tuple):
        raise StateMismatchError(
            f"{key} in the state of {owner} must be a list of {length}, {meaning}, got"
            f" {shown(values)}"
        )
    if len(values) != length:
        raise StateMismatchError(
            f"{key} in the state of {owner} must be a list of {length}, {meaning}, got"
            f" {len(values)}: {shown(values)}; that must be the same when a state is restored"
        )
    return list(values)


def state_to_text(state: Any) -> str:
    """Return the JSON text of a state, as it is in checkpoint files."""
    return _dumps(state, indent=4)


def state_to_line(state: Any) -> str:
    """Return the shortest JSON text of a state."""
    return _dumps(state, separators=(",", ":"))


def _dumps(state: Any, **layout: Any) -> str:
    try:
        return json.dumps(state, **layout)
    except Exception as error:
        drop_notes_of_serializing(error)
        raise


def state_from_text(text: str | bytes | bytearray, owner: object) -> Any:
    """Return the state whose JSON text is ``text``.

    Raises:
        StateTextError: (also a ``json.JSONDecodeError``) it is no JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason, document, position = error.msg, error.doc, error.pos
    except UnicodeDecodeError as error:
        reason, document, position = f"its bytes are no {error.encoding.upper()}", "", 0
    except (RecursionError, ValueError) as error:
        # nested too deeply, or a number of thousands of digits
        reason, document, position = str(error), "", 0
    raise StateTextError(
        f"the state of {owner} must be JSON text, got {shown(text[:_MAX_SHOWN])}: {reason}",
        document,
        position,
    )


def process_file_name() -> str:
    """Return the name of this process's file in a checkpoint directory:
    ``process_<index>-of-<count>.json``.
    """
    index, count = process_index_and_count()
    return f"process_{index}-of-{count}.json"
