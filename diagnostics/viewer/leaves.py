"""An element as a list of leaves: each a path and a value. A batch can be cut into rows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from gristmill.core.naming import one_line
from gristmill.diagnostics.graph.spec_text import children, is_plain_list

MAX_LEAVES = 20_000
_MAX_DEPTH = 16
_MAX_NAME = 100  # characters of a key


class ElementLeaf(NamedTuple):
    """A value in an element, and the names that lead there."""

    path: tuple[str, ...]
    value: Any


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """In place of a value that could not be looked at."""

    error: BaseException


def leaves_of(element: Any) -> list[ElementLeaf]:
    """Returns the leaves of ``element``, in order: what is in mappings, lists, tuples and
    dataclasses. Of no more than 20 000.

    A list of nothing but numbers, or of nothing but texts, is a leaf, and so is a container that is
    empty or nested too deeply.

    Example:
        >>> leaves_of({"a": [1, 2], "b": {"c": "text"}})
        [ElementLeaf(path=('a',), value=[1, 2]), ElementLeaf(path=('b', 'c'), value='text')]
    """
    return list(itertools.islice(_leaves(element, ()), MAX_LEAVES))


def _leaves(element: Any, path: tuple[str, ...]) -> Iterator[ElementLeaf]:
    try:
        is_leaf = len(path) == _MAX_DEPTH or is_plain_list(element)
        parts = {} if is_leaf else children(element)
        if not parts:
            yield ElementLeaf(path, element)
        for key in parts:
            name = one_line(key if isinstance(key, str) else repr(key), _MAX_NAME)
            yield from _leaves(parts[key], (*path, name))
    except Exception as error:  # of an object of the user's
        yield ElementLeaf(path, Unreadable(error))


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Returns the shape of an array of any library, or of a list of plain values; ``None`` of
    anything else.
    """
    if isinstance(value, Unreadable | type):
        return None
    try:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return tuple(map(int, value.shape))
        return (len(value),) if is_plain_list(value) else None
    except Exception:  # of an object of the user's, or a shape that is not known
        return None


def num_rows(leaves: list[ElementLeaf]) -> int | None:
    """Returns the number of rows of an element that is a batch, on which all arrays and lists
    agree; else ``None``.
    """
    sizes = {shape[0] for leaf in leaves if (shape := shape_of(leaf.value))}
    return sizes.pop() if len(sizes) == 1 else None


def row_of(leaves: list[ElementLeaf], row: int) -> list[ElementLeaf]:
    """Returns the leaves of one row of a batch; what belongs to the whole batch is ``None`` in
    it.
    """
    found = []
    for leaf in leaves:
        try:
            found.append(ElementLeaf(leaf.path, leaf.value[row] if shape_of(leaf.value) else None))
        except Exception as error:
            found.append(ElementLeaf(leaf.path, Unreadable(error)))
    return found
