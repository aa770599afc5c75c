"""Pytrees by JAX's rules, whether or not JAX is installed.

Nodes are ``dict`` and ``defaultdict`` (keys sorted), ``OrderedDict`` (keys in order), ``list``,
``tuple``, namedtuples and ``None`` (a node without children); everything else is a leaf. Once a
program has imported JAX, its own functions are used, so that types registered there are traversed
too.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from gristmill.core.node_types import register_expected

Structure: TypeAlias = Any  # hashable and comparable; its type depends on the library


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Returns the leaves of ``tree`` in order, and its structure: two trees of equal structure
    differ only in their leaves.

    Example:
        >>> leaves, structure = flatten({"b": [1, None], "a": 2})
        >>> leaves
        [2, 1]
        >>> unflatten(structure, [x * 10 for x in leaves])
        {'a': 20, 'b': [10, None]}
    """
    return flattener()(tree)


def flattener() -> Callable[[Any], tuple[list[Any], Structure]]:
    """Returns ``flatten`` for trees that will be compared: its rules do not change when another
    thread imports JAX meanwhile.
    """
    register_expected()
    jax = _jax_tree_util()
    return _flatten_ours if jax is None else jax.tree_flatten


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Returns a tree of this ``structure`` (from ``flatten``) with other leaves."""
    if isinstance(structure, _Node | _Leaf):
        return _unflatten(structure, iter(leaves))
    return _jax_tree_util().tree_unflatten(structure, leaves)


def leaf_paths(tree: Any) -> list[str]:
    """Returns the path of each leaf of ``tree``, in the order of ``flatten``, in Python's notation:
    ``['a'][0]``.
    """
    jax = _jax_tree_util()
    if jax is not None:
        return [jax.keystr(path) for path, _ in jax.tree_flatten_with_path(tree)[0]]
    return list(_paths(tree))


def with_nones_as(tree: Any, value: Any) -> Any:
    """Returns ``tree`` with ``value``, a leaf, in place of every ``None`` in its dicts, lists and
    tuples.

    Example:
        >>> with_nones_as({"a": None, "b": (1, None)}, "nothing")
        {'a': 'nothing', 'b': (1, 'nothing')}
    """
    if tree is None:
        return value
    found = _children(tree)
    if found is None:
        return tree
    meta, children = found
    structure = _Node((type(tree), meta, len(children), *[_LEAF] * len(children)))
    return _unflatten(structure, iter([with_nones_as(child, value) for child in children]))


def _jax_tree_util() -> Any:
    # A module still being imported by another thread has no tree_util yet.
    jax = sys.modules.get("jax")
    return None if jax is None else getattr(jax, "tree_util", None)


def _flatten_ours(tree: Any) -> tuple[list[Any], Structure]:
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


class _Leaf:
    __slots__ = ()

    def __repr__(self) -> str:
        return "*"


class _Node(tuple[Any, ...]):
    """(type, what is needed to rebuild it, number of children, structures of the children …)"""

    __slots__ = ()

    def __repr__(self) -> str:
        parts = [repr(part) for part in self[3:]]
        if self[1] is not None:  # a dict's keys
            parts = [f"{key!r}: {part}" for key, part in zip(self[1][0], parts, strict=True)]
        return f"{self[0].__name__}[{', '.join(parts)}]"


_LEAF = _Leaf()


def _children(tree: Any) -> tuple[Any, list[Any]] | None:
    """Returns the data needed to rebuild a node, and its children; ``None`` for a leaf."""
    kind = type(tree)
    if tree is None:
        return None, []
    if kind is dict or kind is defaultdict or kind is OrderedDict:
        try:
            keys = list(tree) if kind is OrderedDict else sorted(tree)
        except TypeError:
            raise ValueError(
                f"the keys of a dict must be sortable among themselves, got {list(tree)!r:.200}"
            ) from None
        return (tuple(keys), getattr(tree, "default_factory", None)), [tree[key] for key in keys]
    if kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return None, list(tree)
    return None


def _flatten(tree: Any, leaves: list[Any]) -> _Node | _Leaf:
    found = _children(tree)
    if found is None:
        leaves.append(tree)
        return _LEAF
    meta, children = found
    return _Node(
        (type(tree), meta, len(children), *[_flatten(child, leaves) for child in children])
    )


def _unflatten(structure: _Node | _Leaf, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, _Leaf):
        return next(leaves)
    kind, meta, _, *parts = structure
    children = [_unflatten(part, leaves) for part in parts]
    if kind is type(None):
        return None
    if kind is list or kind is tuple:
        return kind(children)
    if meta is None:
        return kind(*children)  # a namedtuple
    items = zip(meta[0], children, strict=True)
    return defaultdict(meta[1], items) if kind is defaultdict else kind(items)


def _paths(tree: Any, prefix: str = "") -> Iterator[str]:
    found = _children(tree)
    if found is None:
        yield prefix
        return
    meta, children = found
    if meta is not None:
        names = [f"[{key!r}]" for key in meta[0]]
    else:
        names = [f".{name}" for name in getattr(tree, "_fields", ())] or [
            f"[{i}]" for i in range(len(children))
        ]
    for name, child in zip(names, children, strict=True):
        yield from _paths(child, prefix + name)
