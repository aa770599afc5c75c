import contextlib
import inspect
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import output
from refusing import assert_raises

from gristmill.core import tree


class Point(NamedTuple):
    x: object
    y: object


@dataclass(frozen=True)
class NotRegistered:
    x: int


KEYS = st.sampled_from(["a", "b", "ab", "c"])
LEAVES = st.sampled_from([0, 1, 1.5, "text", b"bytes", frozenset(), NotRegistered(1)])


def containers(children):
    pairs = st.lists(st.tuples(KEYS, children), max_size=3, unique_by=lambda pair: pair[0])
    return (
        st.none()
        | st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | pairs.map(dict)
        | st.dictionaries(st.sampled_from([3, -1, 20]), children, max_size=3)
        | pairs.map(OrderedDict)
        | pairs.map(lambda items: defaultdict(list, items))
        | st.builds(Point, children, children)
    )


TREES = st.recursive(LEAVES | st.none(), containers, max_leaves=8)


@contextlib.contextmanager
def own_traversal():
    """``tree`` as it works in a process without JAX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_jax_tree_util", lambda: None)
        yield


def shown(value):
    """What a container is, its order of keys and its default included."""
    if isinstance(value, dict):
        return type(value), [*value], getattr(value, "default_factory", None), [shown(child) for child in value.values()]
    if isinstance(value, list | tuple):
        return type(value), [shown(child) for child in value]
    return value


@settings(deadline=None)
@given(TREES, TREES)
def test_our_traversal_is_jax_s(value, other):
    jaxs = [jax.tree_util.tree_structure(one) for one in (value, other)]
    with own_traversal():
        leaves, structure = tree.flatten(value)
        assert leaves == jax.tree_util.tree_leaves(value)
        marked = list(range(len(leaves)))
        assert shown(tree.unflatten(structure, marked)) == shown(jax.tree_util.tree_unflatten(jaxs[0], marked))
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]]
        assert tree.leaf_paths(value) == paths
        assert structure == tree.flatten(value)[1] and hash(structure) == hash(tree.flatten(value)[1])
        assert (structure == tree.flatten(other)[1]) == (jaxs[0] == jaxs[1])
    # With JAX imported, its functions are used.
    assert tree.flatten(value) == (leaves, jaxs[0])
    assert shown(tree.unflatten(jaxs[0], leaves)) == shown(jax.tree_util.tree_unflatten(jaxs[0], leaves))
    assert len(tree.leaf_paths(value)) == len(leaves)


def test_types_registered_with_jax_are_traversed():
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, a, b):
            self.parts = a, b

        def tree_flatten(self):
            return self.parts, None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    leaves, structure = tree.flatten({"p": Pair(1, 2)})
    assert leaves == [1, 2]
    assert tree.unflatten(structure, [3, 4])["p"].parts == (3, 4)


def test_without_jax_which_is_not_imported_and_with_a_half_imported_one(tmp_path):
    array = np.arange(3)
    with own_traversal():
        leaves, _ = tree.flatten({"b": array, "a": np.float32(1)})
        assert leaves[1] is array and leaves[0] == 1
        assert_raises(ValueError, r"keys of a dict must be sortable.*'a', 1", tree.flatten, {"a": 1, 1: 2})
        leaves, structure = tree.flatten({"a": [1, (2, None)]})
        assert repr(structure) == "dict['a': list[*, tuple[*, NoneType[]]]]"
    assert tree.unflatten(structure, leaves) == {"a": [1, (2, None)]}  # JAX may be imported between the two
    script = f"""
import sys
from types import ModuleType
from gristmill.core import tree
{inspect.getsource(traverse)}
traverse(tree)
assert "jax" not in sys.modules
sys.modules["jax"] = ModuleType("jax")  # what another thread that imports it has put there so far
traverse(tree)
"""
    assert output(tmp_path, script) == []


def traverse(tree):
    leaves, structure = tree.flatten({"b": 1, "a": (2, None)})
    assert leaves == [2, 1]
    assert list(tree.unflatten(structure, [3, 4]).items()) == [("a", (3, None)), ("b", 4)]
    assert tree.leaf_paths({"b": 1, "a": (2, None)}) == ["['a'][0]", "['b']"]
