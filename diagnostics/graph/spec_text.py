"""A short text for the structure and the size of an element."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_MAX_ITEMS = 32  # of a container that are shown one by one
_MAX_COMPARED = 1000  # items of a list that are looked at to call it homogeneous
_MAX_TEXT = 2000
_PLAIN = frozenset({int, float, complex, bool, type(None), np.bool_})
_LISTED = frozenset({bool, int, float, complex, str, bytes})


def spec_text(element: Any) -> str:
    """Returns how ``element`` looks: a tree whose leaves are ``dtype[shape]``.

    Python values are shown by the names of their types, lists and tuples of items that look the
    same as ``list<int>[2]``. What ``get_element_spec`` returns looks like the elements that it
    describes; a length that is not known is ``?``. The text is short however large the element is,
    and never fails.

    Args:
        element: anything.

    Example:
        >>> spec_text({"a": np.zeros((2, 3)), "b": [1, 2], "c": "text"})
        "{'a': 'float64[2, 3]', 'b': 'list<int>[2]', 'c': 'str[]'}"
        >>> spec_text(5)
        'int[]'
    """
    try:
        text = _text(element)
    except Exception:
        # of an object of the user's that does not answer, or a tree nested without end
        text = f"{type(element).__name__}[]"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def static_spec_text(ds: Any) -> str | None:
    """Returns how the elements of a dataset look, if that is known without reading any; else
    ``None``.
    """
    try:
        return spec_text(ds._element_spec)
    except Exception:
        # a source or a function does not say, or the user's code that would is broken
        return None


def element_nbytes(element: Any) -> int:
    """Returns the bytes of the arrays, texts and byte strings in ``element``; anything else in it
    counts nothing.

    Example:
        >>> element_nbytes({"a": np.zeros(3, np.int32), "b": ["ab", 5]})
        14
    """
    try:
        return _nbytes(element)
    except Exception:  # as above
        return 0


def _nbytes(element: Any) -> int:
    kind = type(element)
    if kind is np.ndarray:
        return int(element.nbytes)
    if kind is dict:
        return sum([_nbytes(value) for value in element.values()])
    if kind is list or kind is tuple:
        is_plain = _PLAIN.issuperset(map(type, element))
        return 0 if is_plain else sum([_nbytes(value) for value in element])
    if kind in _PLAIN:
        return 0
    if isinstance(element, str | bytes | bytearray):
        return len(element)
    nbytes = getattr(element, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    return sum([_nbytes(value) for value in children(element).values()])


def children(element: Any) -> Mapping[Any, Any]:
    """Returns the parts of a container by key, name or number; none of a leaf."""
    if isinstance(element, Mapping):
        return element
    if isinstance(element, list | tuple):
        return dict(zip(getattr(element, "_fields", range(len(element))), element, strict=False))
    if dataclasses.is_dataclass(element) and not isinstance(element, type):
        return {field.name: getattr(element, field.name) for field in dataclasses.fields(element)}
    return {}


def is_plain_list(value: Any) -> bool:
    """True if ``value`` is a list or tuple of values of one kind, numbers or texts."""
    return (
        type(value) in (list, tuple)
        and len(value) > 1
        and type(value[0]) in _LISTED
        and len({*map(type, value)}) == 1
    )


def _text(element: Any) -> str:
    if element is None:
        return "None"
    kind = type(element).__name__
    if isinstance(element, type):
        return f"{kind}[]"
    if hasattr(element, "shape") and hasattr(element, "dtype"):
        return _array_text(element)
    if isinstance(element, Mapping):
        texts = [f"{key!r}: {_quoted(value)}" for key, value in _first(element.items())]
        return f"{{{_listed(texts, len(element))}}}"
    if isinstance(element, list | tuple) and not hasattr(element, "_fields"):
        return _sequence_text(element)
    parts = children(element)
    if parts:
        texts = [f"{name}={_quoted(part)}" for name, part in _first(parts.items())]
        return f"{kind}({_listed(texts, len(parts))})"
    return f"{kind}[]"


def _array_text(element: Any) -> str:
    sizes = ", ".join(["?" if size is None else str(size) for size in element.shape])
    dtype = element.dtype
    try:
        dtype = np.dtype(dtype)
    except TypeError:  # of another library
        dtype = getattr(dtype, "name", dtype)
    return f"{str(dtype).removeprefix('torch.')}[{sizes}]"


def _sequence_text(items: Sequence[Any]) -> str:
    kind, count = type(items).__name__, len(items)
    kinds = set(map(type, items))
    if not kinds or (len(kinds) == 1 and kinds <= (_PLAIN | {str, bytes})):
        return f"{kind}<{''.join([k.__name__ for k in kinds])}>[{count}]"
    if len(kinds) == 1:
        first = _text(items[0])
        if all([_text(item) == first for item in items[1:_MAX_COMPARED]]):
            return f"{kind}<{first.removesuffix('[]')}>[{count}]"
        if count > _MAX_ITEMS:
            return f"{kind}<{type(items[0]).__name__}>[{count}]"
    shown = _listed([_quoted(item) for item in _first(items)], count)
    return f"[{shown}]" if isinstance(items, list) else f"({shown})"


def _quoted(part: Any) -> str:
    """Returns a part of a container unchanged: containers as they are, leaves in quotes."""
    text = _text(part)
    is_tree = part is None or (not hasattr(part, "dtype") and (text[0] in "{[(" or text[-1] == ")"))
    return text if is_tree else repr(text)


def _first(items: Iterable[Any]) -> list[Any]:
    return [item for item, _ in zip(items, range(_MAX_ITEMS), strict=False)]


def _listed(texts: list[str], count: int) -> str:
    return ", ".join(texts if count == len(texts) else [*texts, f"… {count - len(texts)} more"])
