"""Damage to a state: other values, types, lengths and keys anywhere in it, parts of other states,
and damaged text.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

_DEEP: Any = []
for _ in range(50):
    _DEEP = [_DEEP]

JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    5,
    -1,
    -2,
    10**6,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(10**30),
    0.0,
    1.0,
    1.5,
    -0.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "0",
    "1",
    "next_index",
    "é\ud800",
    [],
    [0],
    [1, 2],
    [-1, -1],
    [None],
    [[]],
    [True, 0],
    {},
    {"0": 0},
    {"next_index": 1},
    {"parent": {}},
    _DEEP,
]
# What must not come back in a message as it is: too long, or a command to the terminal that shows
# it.
_COMMANDS = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\r"
HOSTILE: list[Any] = [
    10**4000,
    -(10**4000),
    10**4299,
    _COMMANDS,
    _COMMANDS * 10_000,
    {_COMMANDS: 1},
    {_COMMANDS * 10_000: {}},
    *([_COMMANDS], [10**4299] * 1000, {"next_index": 10**4299}, {"parent": {_COMMANDS: _COMMANDS}}),
]
_MAX_MESSAGE = 2000


def is_harmless(text: str) -> bool:
    """True if ``text``, a message or a line, contains no control characters."""
    return text.isprintable() and len(text) <= _MAX_MESSAGE


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in (
        state if isinstance(state, dict) else range(len(state)) if isinstance(state, list) else ()
    ):
        yield from places(state[key], (*path, key))


def part(state: Any, path: Sequence[Any]) -> Any:
    for key in path:
        state = state[key]
    return state


def with_part(state: Any, path: Sequence[Any], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(state)
    part(changed, path[:-1])[path[-1]] = value
    return changed


def damaged(state: Any, rng: Random, others: Sequence[Any]) -> Any:
    """A copy of ``state`` with one to three changes; ``others`` are states to take parts from."""
    state = copy.deepcopy(state)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice([*places(state)])
        if not path:
            if rng.random() < 0.9:
                continue
            return rng.choice([*JUNK, *HOSTILE, *others])
        inner, key = part(state, path[:-1]), path[-1]
        value = inner[key]
        kinds = ["junk", "other", "delete", "swap"]
        if type(value) is int and abs(value) < 2**64:
            kinds += ["count"] * 4
        if isinstance(value, list):
            kinds += ["lengthen", "shorten"]
        kind = rng.choice(kinds)
        if kind == "junk":
            inner[key] = copy.deepcopy(rng.choice(JUNK + HOSTILE))
        elif kind == "other":
            other = rng.choice(others)
            inner[key] = copy.deepcopy(part(other, rng.choice([*places(other)])))
        elif kind == "delete":
            del inner[key]
        elif kind == "swap":
            another = rng.choice([*inner] if isinstance(inner, dict) else range(len(inner)))
            inner[key], inner[another] = inner[another], value
        elif kind == "count":
            inner[key] = rng.choice(
                (value + 1, value - 1, value + rng.randrange(20), -value, float(value), str(value))
            )
        elif kind == "lengthen":
            value.append(copy.deepcopy(rng.choice([*JUNK, *value])))
        elif value:
            del value[rng.randrange(len(value))]
    return state


def damaged_text(text: bytes, rng: Random) -> bytes:
    """A copy of ``text`` with a byte changed, added or removed, or cut off, or something else."""
    at = rng.randrange(len(text))
    before, after = text[:at], text[at + 1 :]
    added = rng.choice((b"\xff", b"\0", b"9", b"-", b"{", b'"', b".5")) + text[at:]
    others = (
        b"",
        b"null",
        b"3",
        b"[]",
        b'"x"',
        b"NaN",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b"1" * 5000,
    )
    changed = [before, before + bytes([rng.randrange(256)]) + after, before + after, before + added]
    return rng.choice([*changed, text + rng.choice((b"}", b"\0", b"1", text)), rng.choice(others)])


def as_json(state: Any) -> Any:
    return json.loads(json.dumps(state))
