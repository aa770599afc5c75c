import pickle

import jax
import numpy as np
from refusing import assert_raises

from gristmill.core.element_spec import ShapeDtypeStruct, ShapeDtypeStructProtocol, map_spec


def test_a_value_with_equivalent_dtypes_and_those_of_other_libraries():
    spec = ShapeDtypeStruct((2, None), np.float32)
    assert repr(spec) == "ShapeDtypeStruct(shape=(2, None), dtype=<class 'numpy.float32'>)"
    assert spec == ShapeDtypeStruct(shape=(2, None), dtype=np.float32) == pickle.loads(pickle.dumps(spec))
    assert_raises(AttributeError, None, setattr, spec, "shape", (3,))
    assert_raises((AttributeError, TypeError), None, setattr, spec, "other", 3)
    spec = ShapeDtypeStruct([np.int64(2), None], np.int8)
    assert spec.shape == (2, None) and type(spec.shape) is tuple and type(spec.shape[0]) is int
    spec = {"b": (ShapeDtypeStruct((2,), np.int8), None), "a": ShapeDtypeStruct((), np.int8)}
    assert map_spec(lambda leaf: leaf.shape, spec) == {"a": (), "b": ((2,), None)}
    equal = [ShapeDtypeStruct((3,), dtype) for dtype in (np.float32, np.dtype("float32"), "float32", "<f4")]
    assert len({*equal}) == 1
    assert all(a == b for a in equal for b in equal)
    other_specs = [((3,), np.float64), ((3, 1), np.float32), ((None,), np.float32)]
    others = [*(ShapeDtypeStruct(*other) for other in other_specs), (3,), None]
    assert all(equal[0] != other for other in others)
    assert len({equal[0], *others}) == 6
    key = jax.random.key(0)
    spec = ShapeDtypeStruct(key.shape, key.dtype)
    assert spec == ShapeDtypeStruct((), key.dtype) and hash(spec) == hash(ShapeDtypeStruct((), key.dtype))
    assert spec != ShapeDtypeStruct((), np.uint32)
    assert ShapeDtypeStruct((2,), jax.numpy.bfloat16) == ShapeDtypeStruct((2,), jax.numpy.zeros(2, "bfloat16").dtype)


def test_wrong_values_and_the_protocol():
    for arguments, error, match in [
        *(((shape, "i1"), TypeError, "shape must be a sequence of integers and") for shape in [3, None, (1.5,), "a", ("2",)]),
        (((2, -1), np.int8), ValueError, "shape must be a non-negative integer, got -1"),
        (((2,), None), TypeError, "dtype must be a dtype, got None"),
        (((2,),), TypeError, "missing"),
        ((), TypeError, "missing"),
    ]:
        assert_raises(error, match, ShapeDtypeStruct, *arguments)
    arrays = [np.zeros(3), np.float32(1), jax.numpy.zeros(3), jax.ShapeDtypeStruct((2,), np.int8), ShapeDtypeStruct((), np.int8)]
    assert all(isinstance(array, ShapeDtypeStructProtocol) for array in arrays)
    assert not any(isinstance(value, ShapeDtypeStructProtocol) for value in [3, [1, 2], "abc", None])
