"""Names of transformations, as they appear in texts of datasets and in messages."""

from __future__ import annotations

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
    """The name of a user's transformation: a class name, its own ``str``, or a function's name and place.

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
    """``text`` without the memory addresses in Python's default ``repr``, which differ in every run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def one_line(text: str, limit: int) -> str:
    """``text``, of which the lines are joined and what is longer than ``limit`` is left out."""
    text = re.sub(r"\s*\n\s*", " ", text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _function_name(fn: Any) -> str:
    name = getattr(fn, "__name__", None) or without_addresses(repr(fn))
    code = getattr(fn, "__code__", None)
    if code is None or code.co_filename.startswith("<"):  # built in, or typed at a prompt
        return name
    parts = PurePath(code.co_filename).parts
    place = ".../" + PurePath(*parts[-3:]).as_posix() if len(parts) >= 3 else code.co_filename
    return f"{name} @ {place}:{code.co_firstlineno}"
