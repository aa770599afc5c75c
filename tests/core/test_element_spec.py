"""Names, records, trees and specs of elements."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import pickle
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import output
from refusing import assert_raises

from gristmill.core import tree
from gristmill.core.element_spec import ShapeDtypeStruct, ShapeDtypeStructProtocol, map_spec
from gristmill.core.naming import transform_name
from gristmill.core.record import Record, RecordMetadata, sampled
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap, TfRandomMap

PLACE = ".../" + "/".join(Path(__file__).parts[-3:])


def a_function(x):
    return x


class AMap(Map):
    def map(self, element):
        return element


AMapWithStr = type("AMapWithStr", (AMap,), {"__str__": lambda self: "a map that shows itself"})
AMapWithRepr = type("AMapWithRepr", (AMap,), {"__repr__": lambda self: "AMapWithRepr(1)"})
ACallable = type("ACallable", (), {"__call__": lambda self, x: x})


def test_instances_and_callables():
    others = [
        (RandomMap, "random_map"),
        (TfRandomMap, "np_random_map"),
        (MapWithIndex, "map_with_index"),
        (Filter, "filter"),
    ]
    for base, method in others:
        assert transform_name(type("AnInstance", (base,), {method: a_function})()) == "AnInstance"
    assert transform_name(AMap()) == "AMap"
    assert transform_name(AMapWithStr()) == "a map that shows itself"
    assert transform_name(AMapWithRepr()) == "AMapWithRepr(1)"
    assert transform_name(Batch(2)) == "Batch(batch_size=2, drop_remainder=False, batch_fn=None)"
    for function, name in [
        (a_function, "a_function"),
        (lambda x: x, "<lambda>"),
        (AMap().map, "map"),
    ]:
        assert transform_name(function) == f"{name} @ {PLACE}:{function.__code__.co_firstlineno}"
    assert transform_name(len) == "len"
    assert transform_name(str.upper) == "upper"
    assert transform_name(functools.partial(len)) == "functools.partial(<built-in function len>)"
    assert transform_name(np.add) in ("add", "<ufunc 'add'>")
    assert transform_name(eval("lambda x: x")) == "<lambda>"
    assert transform_name(ACallable()).startswith("ACallable")
    assert transform_name(int) == "int"


def philox(key):
    return np.random.Generator(np.random.Philox(key=key))


def test_fields_slots_equality_and_texts():
    rng = philox(1)
    assert dataclasses.astuple(RecordMetadata(3)) == (3, None, None)
    metadata = RecordMetadata(index=3, record_key=4, rng=rng)
    assert (metadata.index, metadata.record_key, metadata.rng) == (3, 4, rng)
    record = Record(metadata=metadata, data="x")
    assert record.metadata is metadata and record.data == "x"
    assert Record[int](metadata, 1).data == 1
    for kind, names in (
        (RecordMetadata, ["index", "record_key", "rng"]),
        (Record, ["metadata", "data"]),
    ):
        assert [field.name for field in dataclasses.fields(kind)] == names
    metadata.index, metadata.record_key, record.data = 5, 6, 7
    rng = metadata.rng = philox(0)
    assert (metadata.index, metadata.record_key, record.data) == (5, 6, 7) and metadata.rng is rng
    for thing in (metadata, record):
        assert_raises(AttributeError, None, setattr, thing, "other", 1)
        assert not hasattr(thing, "__dict__")
    rng = philox(1)
    assert RecordMetadata(1, 2, rng) == RecordMetadata(1, 2, rng) != RecordMetadata(1, 2, philox(1))
    assert RecordMetadata(1, 2) != RecordMetadata(1, 3)
    assert RecordMetadata(1, 2) != (1, 2, None)
    assert (
        Record(RecordMetadata(1), 5) == Record(RecordMetadata(1), 5) != Record(RecordMetadata(1), 6)
    )
    lazy = sampled(1, 2, 7)
    assert lazy == lazy
    for thing in (RecordMetadata(1), Record(RecordMetadata(1), 1), lazy):
        assert_raises(TypeError, "unhashable", hash, thing)
    rng = philox(0)
    expected = "RecordMetadata(index=1, record_key=2, rng=Generator(Philox))"
    assert (str(RecordMetadata(1, 2, rng))) == expected
    assert str(RecordMetadata(1)) == "RecordMetadata(index=1, record_key=None, rng=None)"
    assert repr(RecordMetadata(1, 2)) == "RecordMetadata(index=1, record_key=2, rng=None)"
    assert repr(RecordMetadata(1, 2, rng)) == f"RecordMetadata(index=1, record_key=2, rng={rng!r})"
    assert repr(sampled(1, 2, 7)).startswith(
        "RecordMetadata(index=1, record_key=2, rng=Generator(Philox) at 0x"
    )
    assert str(sampled(1, 2, 7)) == "RecordMetadata(index=1, record_key=2, rng=Generator(Philox))"
    text = "Record(metadata=RecordMetadata(index=1, record_key=2, rng=None), data='x')"
    assert repr(Record(RecordMetadata(1, 2), "x")) == text


def test_a_record_has_one_generator():
    rng = philox(1)
    metadata = RecordMetadata(1, 2, rng)
    removed = metadata.remove_record_key()
    assert (removed.index, removed.record_key) == (1, None) and removed.rng is rng
    assert removed is not metadata and metadata.record_key == 2
    assert removed.remove_record_key() is removed
    metadata = sampled(1, 2, 7)
    rng = metadata.rng
    assert isinstance(rng, np.random.Generator) and metadata.rng is rng
    assert rng.random() == philox(7).random()
    assert metadata.remove_record_key().rng is copy.copy(metadata).rng is rng
    assert sampled(1, 2, None).rng is None
    # It continues in what replaces its metadata, in any order of access through either of the two.
    for first in (0, 1):
        metadata, reference = sampled(1, 2, 7), philox(7)
        both = metadata, metadata.remove_record_key()
        assert both[first].rng.random() == reference.random()
        assert both[1 - first].rng.random() == reference.random()
        assert both[0].rng is both[1].rng
    metadata = sampled(1, 2, 7)
    rng = metadata.rng
    replaced = dataclasses.replace(metadata, index=9)
    assert (replaced.index, replaced.record_key) == (9, 2) and replaced.rng is rng
    assert dataclasses.asdict(RecordMetadata(1, 2)) == {"index": 1, "record_key": 2, "rng": None}
    fields = dataclasses.asdict(sampled(1, 2, 7))
    assert fields["index"] == 1 and fields["rng"].random() == philox(7).random()
    assert dataclasses.astuple(Record(RecordMetadata(1), "x")) == ((1, None, None), "x")
    clones = (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)))
    for asked_before, clone in itertools.product([False, True], clones):
        metadata, reference = sampled(1, 2, 7), philox(7)
        if asked_before:
            assert metadata.rng.random() == reference.random()
        other = copy.copy(metadata) if clone is copy.copy else clone(Record(metadata, [1])).metadata
        assert (other.index, other.record_key) == (1, 2)
        assert other.rng.random() == reference.random()


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
    """The text of a container, with its order of keys and its default."""
    if isinstance(value, dict):
        return (
            type(value),
            [*value],
            getattr(value, "default_factory", None),
            [shown(child) for child in value.values()],
        )
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
        assert shown(tree.unflatten(structure, marked)) == shown(
            jax.tree_util.tree_unflatten(jaxs[0], marked)
        )
        paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]
        ]
        assert tree.leaf_paths(value) == paths
        assert structure == tree.flatten(value)[1]
        assert hash(structure) == hash(tree.flatten(value)[1])
        assert (structure == tree.flatten(other)[1]) == (jaxs[0] == jaxs[1])
    # With JAX imported, its functions are used.
    assert tree.flatten(value) == (leaves, jaxs[0])
    assert shown(tree.unflatten(jaxs[0], leaves)) == shown(
        jax.tree_util.tree_unflatten(jaxs[0], leaves)
    )
    assert len(tree.leaf_paths(value)) == len(leaves)


def test_without_jax_and_with_a_half_imported_one(tmp_path):
    array = np.arange(3)
    with own_traversal():
        leaves, _ = tree.flatten({"b": array, "a": np.float32(1)})
        assert leaves[1] is array and leaves[0] == 1
        with pytest.raises(ValueError, match=r"keys of a dict must be sortable.*'a', 1"):
            tree.flatten({"a": 1, 1: 2})
        leaves, structure = tree.flatten({"a": [1, (2, None)]})
        assert repr(structure) == "dict['a': list[*, tuple[*, NoneType[]]]]"
    # JAX may be imported between the two
    assert tree.unflatten(structure, leaves) == {"a": [1, (2, None)]}
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


def test_equivalent_dtypes_wrong_values_and_the_protocol():
    spec = ShapeDtypeStruct((2, None), np.float32)
    assert repr(spec) == "ShapeDtypeStruct(shape=(2, None), dtype=<class 'numpy.float32'>)"
    assert (
        spec
        == ShapeDtypeStruct(shape=(2, None), dtype=np.float32)
        == pickle.loads(pickle.dumps(spec))
    )
    assert_raises(AttributeError, None, setattr, spec, "shape", (3,))
    assert_raises((AttributeError, TypeError), None, setattr, spec, "other", 3)
    spec = ShapeDtypeStruct([np.int64(2), None], np.int8)
    assert spec.shape == (2, None) and type(spec.shape) is tuple and type(spec.shape[0]) is int
    spec = {"b": (ShapeDtypeStruct((2,), np.int8), None), "a": ShapeDtypeStruct((), np.int8)}
    assert map_spec(lambda leaf: leaf.shape, spec) == {"a": (), "b": ((2,), None)}
    equal = [
        ShapeDtypeStruct((3,), dtype)
        for dtype in (np.float32, np.dtype("float32"), "float32", "<f4")
    ]
    assert len({*equal}) == 1
    assert all(a == b for a in equal for b in equal)
    other_specs = [((3,), np.float64), ((3, 1), np.float32), ((None,), np.float32)]
    others = [*(ShapeDtypeStruct(*other) for other in other_specs), (3,), None]
    assert all(equal[0] != other for other in others)
    assert len({equal[0], *others}) == 6
    key = jax.random.key(0)
    spec = ShapeDtypeStruct(key.shape, key.dtype)
    assert spec == ShapeDtypeStruct((), key.dtype)
    assert hash(spec) == hash(ShapeDtypeStruct((), key.dtype))
    assert spec != ShapeDtypeStruct((), np.uint32)
    assert ShapeDtypeStruct((2,), jax.numpy.bfloat16) == ShapeDtypeStruct(
        (2,), jax.numpy.zeros(2, "bfloat16").dtype
    )
    for arguments, error, match in [
        *(
            ((shape, "i1"), TypeError, "shape must be a sequence of integers and")
            for shape in [3, None, (1.5,), "a", ("2",)]
        ),
        (((2, -1), np.int8), ValueError, "shape must be a non-negative integer, got -1"),
        (((2,), None), TypeError, "dtype must be a dtype, got None"),
        (((2,),), TypeError, "missing"),
        ((), TypeError, "missing"),
    ]:
        assert_raises(error, match, ShapeDtypeStruct, *arguments)
    arrays = [
        np.zeros(3),
        np.float32(1),
        jax.numpy.zeros(3),
        jax.ShapeDtypeStruct((2,), np.int8),
        ShapeDtypeStruct((), np.int8),
    ]
    assert all(isinstance(array, ShapeDtypeStructProtocol) for array in arrays)
    assert not any(
        isinstance(value, ShapeDtypeStructProtocol) for value in [3, [1, 2], "abc", None]
    )
