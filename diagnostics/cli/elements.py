"""An element as lines that one can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.core.naming import one_line
from gristmill.dataset.descriptions.display import abbreviated
from gristmill.diagnostics.graph.spec_text import children, is_plain_list, spec_text

_MAX_VALUE = 100  # characters of a value
_MAX_PARTS = 24  # of a container
_MAX_DEPTH = 12
_MAX_NESTED = 8  # values of an array that are shown with its brackets, and one by one


def element_lines(element: Any, label: str) -> list[str]:
    """Returns the lines of ``element``: a container and, indented, its parts; a leaf with dtype,
    shape and the first values.

    Args:
        element: anything.
        label: the text before it.

    Example:
        >>> print("\\n".join(element_lines({"x": np.arange(10), "y": ["some text", 5]}, "0:")))
        0: dict
          'x': int64[10]  [0 1 2 … 7 8 9]
          'y': list
            0: str[]  'some text'
            1: int[]  5
    """
    return list(_lines(element, label, 0))


def _lines(element: Any, label: str, depth: int) -> Iterator[str]:
    parts = _parts(element)
    indent = "  " * depth
    if not parts or depth == _MAX_DEPTH:
        spec = one_line(spec_text(element), _MAX_VALUE)
        yield f"{indent}{label} {spec}  {_value_text(element)}".rstrip()
        return
    yield f"{indent}{label} {type(element).__name__}"
    for part in abbreviated(list(parts.items()), _MAX_PARTS, lambda num: f"… {num} more …"):
        if isinstance(part, str):
            yield f"{indent}  {part}"
        else:
            yield from _lines(part[1], f"{part[0]}:", depth + 1)


def _parts(element: Any) -> dict[str, Any]:
    """Returns the children of a container, by their path prefix; empty for a leaf such as a list of
    numbers.
    """
    name_of = repr if isinstance(element, Mapping) else str
    values = [*element] if isinstance(element, tuple) else element  # of a named tuple, too
    found = {} if is_plain_list(values) else children(element)
    return {one_line(name_of(key), _MAX_VALUE): value for key, value in found.items()}


def _value_text(leaf: Any) -> str:
    try:
        if isinstance(leaf, str | bytes):
            text = one_line(repr(leaf[:_MAX_VALUE]), _MAX_VALUE)
            kind = "characters" if isinstance(leaf, str) else "bytes"
            return text if len(leaf) <= _MAX_VALUE else f"{text}  ({len(leaf):,} {kind})"
        if isinstance(leaf, list | tuple):
            return one_line(repr(leaf[:_MAX_VALUE]), _MAX_VALUE)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            values = np.asarray(leaf)
            values = values.reshape(-1) if values.size > _MAX_NESTED else values
            text = np.array2string(values, threshold=_MAX_NESTED, max_line_width=10**6, precision=4)
            return one_line(text.replace("...", "…"), _MAX_VALUE)
        return "" if leaf is None or isinstance(leaf, Mapping) else one_line(repr(leaf), _MAX_VALUE)
    except Exception as error:  # of an object of the user's
        return f"({type(error).__name__} when its value was asked for)"
