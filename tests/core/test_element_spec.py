import pickle

import jax
import numpy as np
import pytest

from gristmill.core.element_spec import ShapeDtypeStruct, ShapeDtypeStructProtocol, map_spec


def test_a_value():
    spec = ShapeDtypeStruct((2, None), np.float32)
    assert repr(spec) == "ShapeDtypeStruct(shape=(2, None), dtype=<class 'numpy.float32'>)"
    assert spec == ShapeDtypeStruct(shape=(2, None), dtype=np.float32)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(AttributeError):
        spec.shape = (3,)
    with pytest.raises((AttributeError, TypeError)):
        spec.other = 3


def test_equivalent_dtypes_are_equal_and_hash_alike():
    equal = [ShapeDtypeStruct((3,), dtype) for dtype in (np.float32, np.dtype("float32"), "float32", "<f4")]
    assert len({*equal}) == 1
    assert all(a == b for a in equal for b in equal)
    others = [
        ShapeDtypeStruct((3,), np.float64),
        ShapeDtypeStruct((3, 1), np.float32),
        ShapeDtypeStruct((None,), np.float32),
        (3,),
        None,
    ]
    assert all(equal[0] != other for other in others)
    assert len({equal[0], *others}) == 6


def test_dtypes_of_other_libraries():
    key = jax.random.key(0)
    spec = ShapeDtypeStruct(key.shape, key.dtype)
    assert spec == ShapeDtypeStruct((), key.dtype) and hash(spec) == hash(ShapeDtypeStruct((), key.dtype))
    assert spec != ShapeDtypeStruct((), np.uint32)
    assert ShapeDtypeStruct((2,), jax.numpy.bfloat16) == ShapeDtypeStruct((2,), jax.numpy.zeros(2, "bfloat16").dtype)


def test_shapes_are_tuples_of_ints():
    spec = ShapeDtypeStruct([np.int64(2), None], np.int8)
    assert spec.shape == (2, None) and type(spec.shape) is tuple and type(spec.shape[0]) is int


@pytest.mark.parametrize("shape", [3, None, (1.5,), "a", ("2",)])
def test_shapes_of_a_wrong_type(shape):
    with pytest.raises(TypeError, match="shape must be a sequence of integers and None"):
        ShapeDtypeStruct(shape, np.int8)


def test_wrong_values():
    with pytest.raises(ValueError, match="shape must be a non-negative integer, got -1"):
        ShapeDtypeStruct((2, -1), np.int8)
    with pytest.raises(TypeError, match="dtype must be a dtype, got None"):
        ShapeDtypeStruct((2,), None)
    with pytest.raises(TypeError):
        ShapeDtypeStruct((2,))
    with pytest.raises(TypeError):
        ShapeDtypeStruct()


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.float32(1), jax.numpy.zeros(3), jax.ShapeDtypeStruct((2,), np.int8), ShapeDtypeStruct((), np.int8)]
)
def test_protocol(array):
    assert isinstance(array, ShapeDtypeStructProtocol)


@pytest.mark.parametrize("value", [3, [1, 2], "abc", None])
def test_not_of_the_protocol(value):
    assert not isinstance(value, ShapeDtypeStructProtocol)


def test_map_spec():
    spec = {"b": (ShapeDtypeStruct((2,), np.int8), None), "a": ShapeDtypeStruct((), np.int8)}
    assert map_spec(lambda leaf: leaf.shape, spec) == {"a": (), "b": ((2,), None)}
