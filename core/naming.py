"""Names of transformations, as they appear in texts of datasets and in messages."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from pathlib import PurePath
from typing import Any

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    functools.partial,
    type,
)


def transform_name(transform: Any) -> str:
    """Returns the name of a user's transformation: a class name, its own ``str``, or a function's
    name and place.

    Example:
        >>> transform_name(len)
        'len'
    """
    if isinstance(transform, _FUNCTIONS):
        return _function_name(transform)
    kind: Any = type(transform)
    plain = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    return kind.__name__ if plain else without_addresses(str(transform))


def without_addresses(text: str) -> str:
    """Returns ``text`` without the memory addresses in Python's default ``repr``, which differ in
    every run.
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def stable_repr(value: Any) -> str:
    """Returns ``repr(value)`` for a state or a description, which an interrupt must not spoil for
    later ones.

    Dataclasses guard their ``repr`` against recursion: after an interrupt at the wrong moment there
    is ``...`` in its place from then on. Here it is made without that guard.

    Example:
        >>> from gristmill.core.sharding import ShardOptions
        >>> stable_repr([ShardOptions(1, 3)])
        '[ShardOptions(shard_index=1, shard_count=3, drop_remainder=False)]'
    """
    try:
        return _unguarded_repr(value)
    except RecursionError:  # it is part of itself
        return repr(value)


def _unguarded_repr(value: Any) -> str:
    kind = type(value)
    if kind is list:
        return f"[{', '.join([_unguarded_repr(part) for part in value])}]"
    if kind is tuple and len(value) > 1:
        return f"({', '.join([_unguarded_repr(part) for part in value])})"
    if kind is dict:
        items = [f"{_unguarded_repr(key)}: {_unguarded_repr(x)}" for key, x in value.items()]
        return f"{{{', '.join(items)}}}"
    owner = next(c for c in kind.__mro__ if "__repr__" in vars(c))
    if not _has_generated_repr(owner):
        return repr(value)
    parts = [
        f"{f.name}={_unguarded_repr(getattr(value, f.name))}"
        for f in dataclasses.fields(owner)
        if f.repr
    ]
    return f"{kind.__qualname__}({', '.join(parts)})"


def _has_generated_repr(kind: type) -> bool:
    """True if ``dataclass`` generated the ``__repr__`` of a class."""
    function = getattr(vars(kind)["__repr__"], "__wrapped__", None)
    code = getattr(function, "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename == "<string>"


def one_line(text: str, limit: int) -> str:
    """Returns ``text`` for a terminal or a log: its lines joined, control characters made visible,
    cut to ``limit`` characters.

    Example:
        >>> one_line("two\\nlines, \\x1b[31mred", 40)
        'two lines, \\\\x1b[31mred'
    """
    head = text[: 8 * limit]  # what is far longer costs nothing
    line = visible(re.sub(r"\s*\n\s*", " ", head))
    return line if len(line) <= limit and len(head) == len(text) else f"{line[: limit - 1]}…"


def visible(text: str) -> str:
    """Returns ``text``, with escapes for what is not printable: it must neither command a terminal
    nor change how text looks.
    """
    return (
        text
        if text.isprintable()
        else "".join([c if c.isprintable() else _escaped(c) for c in text])
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _function_name(fn: Any) -> str:
    name = getattr(fn, "__name__", None) or without_addresses(repr(fn))
    code = getattr(fn, "__code__", None)
    if code is None or code.co_filename.startswith("<"):  # built in, or typed at a prompt
        return name
    parts = PurePath(code.co_filename).parts
    place = ".../" + PurePath(*parts[-3:]).as_posix() if len(parts) > 3 else code.co_filename
    return f"{name} @ {place}:{code.co_firstlineno}"
