"""Elements of any structure that come from a worker equal those that are computed in this
process.
"""

import dataclasses
import os
import sys
from collections import OrderedDict, defaultdict, namedtuple

import cloudpickle
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.workers.arena import Arena, ArenaReader, open_memory
from gristmill.workers.codec import MIN_SHARED_BYTES, Encoder, decode

DIRECT = ReadOptions(0, 0)
LENIENT = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
# shrinking would start too many
WITH_WORKERS = settings(LENIENT, phases=[Phase.explicit, Phase.reuse, Phase.generate])
Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object


DTYPES = st.one_of(
    hnp.scalar_dtypes(),  # of both byte orders, with strings, bytes, dates and time differences
    hnp.array_dtypes(allow_subarrays=True),  # structured
    st.sampled_from(
        [
            np.dtype("V5"),
            np.dtype(np.longdouble),
            np.dtype(np.clongdouble),
            np.dtype("S0"),
            np.dtype("U0"),
        ]
    ),
)
VIEWS = [
    lambda a: a,
    lambda a: a[::2] if a.ndim else a,
    lambda a: a[..., ::-1] if a.ndim else a,
    lambda a: a.T,
    np.asfortranarray,
    lambda a: np.broadcast_to(a, (2, *a.shape)),
    lambda a: a[a.shape[0] :] if a.ndim else a,  # nothing
]


@st.composite
def arrays(draw):
    dtype = draw(DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if dtype.itemsize == 0 or (dtype.kind == "V" and dtype.names is None):
        array = np.zeros(shape, dtype)
    else:
        array = draw(hnp.arrays(dtype, shape))
    if array.size and draw(st.integers(0, 3)) == 0:  # too large for a message
        array = np.resize(array, (MIN_SHARED_BYTES // max(1, array.dtype.itemsize) // 2 + 1, 2))
    array = draw(st.sampled_from(VIEWS))(array)
    if draw(st.booleans()):
        array.flags.writeable = False
    return array


def object_array(values):
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=30),
    st.dates(),
    *[st.binary(max_size=30), st.binary(min_size=MIN_SHARED_BYTES, max_size=MIN_SHARED_BYTES + 9)],
    *[st.builds(bytearray, st.binary(max_size=30)), st.sets(st.text(max_size=3), max_size=3)],
    st.frozensets(st.integers(), max_size=3),
    hnp.scalar_dtypes().flatmap(hnp.from_dtype),  # NumPy's scalars
)
KEYS = st.one_of(st.text(max_size=3), st.integers(0, 5), st.none(), st.tuples(st.integers(0, 2)))


def containers(children):
    lists = st.lists(children, max_size=4)
    dicts = st.dictionaries(KEYS, children, max_size=4)
    return st.one_of(
        *[lists, lists.map(tuple), lists.map(object_array)],
        *[dicts, dicts.map(OrderedDict), dicts.map(lambda d: defaultdict(list, d))],
        st.builds(Pair, children, children),
        st.builds(Point, children, children),
        st.builds(Frozen, children),
        children.map(lambda x: [x, x]),  # an object in two places
        children.map(lambda x: {"one": x, "other": (x,)}),
    )


TEXTS = st.lists(st.text(max_size=20), max_size=5).map(
    lambda texts: np.array(texts, np.dtypes.StringDType())
)
ELEMENTS = st.recursive(st.one_of(SCALARS, arrays(), TEXTS), containers, max_leaves=8)


def parts(x):
    """The children of a container."""
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype == object else []
    if dataclasses.is_dataclass(x):
        return [getattr(x, field.name) for field in dataclasses.fields(x)]
    return [*x.values()] if isinstance(x, dict) else x if isinstance(x, list | tuple) else []


def check(received, expected, seen=None):
    """Equal in type, dtype, shape and value; what was one object is one object; arrays are plain
    and writable.
    """
    seen = {} if seen is None else seen
    if id(expected) in seen and isinstance(expected, (list, dict, np.ndarray, Point)):
        assert received is seen[id(expected)]
        return
    seen[id(expected)] = received
    assert type(received) is (np.ndarray if isinstance(expected, np.ndarray) else type(expected))
    if isinstance(expected, np.ndarray):
        assert (received.dtype, received.shape) == (expected.dtype, expected.shape)
        assert received.flags.writeable and received.flags.aligned
        if expected.dtype.hasobject and expected.dtype != object:
            assert repr(received.tolist()) == repr(expected.tolist())
        assert expected.dtype.hasobject or received.tobytes() == expected.tobytes()
    elif isinstance(expected, np.generic):
        assert received.dtype == expected.dtype and received.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert [*received] == [*expected]
        assert getattr(received, "default_factory", None) is getattr(
            expected, "default_factory", None
        )
    elif isinstance(expected, (set, frozenset)):
        assert received == expected
    elif not (isinstance(expected, (list, tuple)) or dataclasses.is_dataclass(expected)):
        assert repr(received) == repr(expected)  # also of what is not equal to itself
    for ours, theirs in zip(parts(received), parts(expected), strict=True):
        check(ours, theirs, seen)


def scribble(element):
    """Writes over all arrays of an element."""
    if isinstance(element, np.ndarray) and not element.dtype.hasobject and element.nbytes:
        assert element.flags.forc
        element.T.reshape(-1, order="A").view(np.uint8)[:] = 0xA5
    for part in parts(element):
        scribble(part)


def check_independent(received, expected):
    """The elements one after the other, each of which is destroyed when it has been looked at."""
    assert len(received) == len(expected)
    for ours, theirs in zip(received, expected, strict=True):
        check(ours, theirs)
        scribble(ours)


@pytest.fixture(scope="module")
def ends():
    fd = open_memory("gristmill-test")
    arena = Arena(fd)
    yield arena, ArenaReader(fd)
    os.close(fd)


@settings(LENIENT, max_examples=45)
@given(elements=st.lists(ELEMENTS, max_size=3), min_shared_bytes=st.sampled_from([0, 10**5]))
def test_messages(ends, elements, min_shared_bytes):
    arena, reader = ends
    encoder = Encoder(arena, min_shared_bytes)
    for _ in range(2):  # in memory that was used before, too
        message = encoder.encode(elements, {"next_index": 3})
        assert (message.num_elements, message.failure) == (len(elements), None)
        if elements:
            received, states, failure = decode(message.payload, message.slots, reader)
            assert (states, failure) == ({"next_index": 3}, None)
            check_independent(received, elements)
            del received
        for slot in reader.released():
            arena.free(slot)


@pytest.fixture(scope="module")
def classes_in_workers():
    """They get them by value, and need not import this module, and hypothesis with it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def check_through_workers(ds, count):
    with iter(ds.mp_prefetch(MultiprocessingOptions(count, executor="processes"))) as it:
        check_independent(list(it), list(ds))


@settings(WITH_WORKERS, max_examples=3)
@given(count=st.sampled_from([1, 2]), elements=st.lists(ELEMENTS, min_size=4, max_size=8))
def test_through_workers(classes_in_workers, count, elements):
    # Many elements travel in one message.
    check_through_workers(
        MapDataset.source(elements).repeat(8).to_iter_dataset(DIRECT, allow_nones=True), count
    )


NUMBERS = st.sampled_from(["i1", "u1", "i4", "u8", "f2", "f4", "f8", "c8", ">f4", ">i8", "?"])


@settings(WITH_WORKERS, max_examples=3)
@given(
    st.lists(NUMBERS, min_size=12, max_size=12),
    st.sampled_from([0, 1, 3, 20000]),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)
def test_batches_of_mixed_dtypes(dtypes, size, batch_size, seed):
    """Promoted as in this process, where Grain's workers cast all to the dtype of the first."""

    def element(i):
        values = np.random.default_rng(seed + i).integers(0, 2, size)
        return {
            "same": values,
            "mixed": values.astype(dtypes[i]),
            "scalar": np.dtype(dtypes[i]).type(i % 2),
            "none": None,
        }

    check_through_workers(
        MapDataset.range(12).map(element).to_iter_dataset(DIRECT).batch(batch_size), 1
    )


def test_byte_orders_of_a_source():
    """NumPy's own pickling changes some of them on the way to the worker."""
    arrays = [
        np.array([1, 2, 3]).astype(dtype) for dtype in (">u8", ">c16", ">U3", ">M8[h]", ">m8[s]")
    ]
    elements = [view for array in arrays for view in (array, array[::-1], array[:0])]
    check_through_workers(MapDataset.source(elements).to_iter_dataset(DIRECT), 1)


@pytest.mark.slow  # a worker imports JAX
def test_arrays_of_jax():
    jax = pytest.importorskip("jax", reason="JAX is an optional dependency")
    elements = [
        jax.numpy.arange(n, dtype=dtype)
        for n in (0, 3, 100000)
        for dtype in ("int32", "float32", "bfloat16")
    ]
    elements.append({"array": elements[-1], "numpy": np.arange(3)})

    def double(x):
        return x * 2 if hasattr(x, "ndim") else x

    ds = MapDataset.source(elements).map(double).to_iter_dataset(DIRECT)
    for pair in zip(
        ds.mp_prefetch(MultiprocessingOptions(1, executor="processes")), ds, strict=True
    ):
        assert type(pair[0]) is type(pair[1])
        ours, theirs = [x["array"] if isinstance(x, dict) else x for x in pair]
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
