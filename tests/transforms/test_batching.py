import contextlib
import copy
import gc
import pickle
import platform
import random
import re
from collections import OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from programs import output
from refusing import assert_raises

from gristmill import BatchOperation, MapDataset, Record, RecordMetadata
from gristmill.core import tree
from gristmill.experimental import ShapeDtypeStruct, batch_and_pad, get_element_spec
from gristmill.transforms.batching import BufferPool, concatenate, stack

MEGABYTE = 1 << 20
leaves_of = jax.tree_util.tree_leaves


class Point(NamedTuple):
    x: object
    y: object


OTHERS = st.sampled_from([np.dtype(object), np.dtype([("a", np.int8), ("b", np.float32)])])
DTYPES = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes(max_len=4)
    | hnp.byte_string_dtypes(max_len=4)
    | OTHERS
)


def laid_out(array, how):
    if how == "strided" and array.ndim:
        wide = np.empty((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return np.asarray(array, order="F") if how == "fortran" else array


@st.composite
def columns(draw):
    """Leaves for one position of the elements of a batch."""
    num = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["arrays", "mixed arrays", "scalars"]))
    if kind == "scalars":
        scalars = (
            st.integers(-(2**70), 2**70)
            | st.floats()
            | st.booleans()
            | st.integers(-3, 3).map(np.int8)
        )
        text = st.text(max_size=3).map(lambda x: x.rstrip("\0"))
        data = st.binary(max_size=3).map(lambda x: x.rstrip(b"\0"))
        same = draw(st.sampled_from([scalars, st.integers(-9, 9), text, data]))
        return draw(st.lists(same, min_size=num, max_size=num))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    dtype = draw(DTYPES)
    elements = (
        st.sampled_from([None, 1, "a", (2, 3)]) if dtype.hasobject and kind == "arrays" else None
    )
    dtypes = st.just(dtype) if kind == "arrays" else st.sampled_from([np.dtype(d) for d in "bBlfd"])
    layouts = st.sampled_from(["c", "fortran", "strided"])
    return [
        laid_out(draw(hnp.arrays(draw(dtypes), shape, elements=elements)), draw(layouts))
        for _ in range(num)
    ]


def assert_same(ours, expected):
    assert (
        type(ours) is np.ndarray and ours.dtype == expected.dtype and ours.shape == expected.shape
    )
    if ours.dtype.names is None and not ours.dtype.hasobject:
        np.testing.assert_array_equal(ours, expected)
    else:  # NaN in a field or as an object is not equal to itself
        assert repr(ours.tolist()) == repr(expected.tolist())


def numpys(*leaves):
    # of one the byte order is kept
    return np.expand_dims(leaves[0], 0) if len(leaves) == 1 else np.stack(leaves)


STRUCTURES = {
    "leaf": lambda first, second: first,
    "dict": lambda first, second: {"b": first, "a": second},
    "tuple": lambda first, second: (first, second),
    "list": lambda first, second: [first, second],
    "nested": lambda first, second: {"x": [first, {"z": (second, None)}], "w": {}},
    "point": lambda first, second: Point(first, [second]),
    "ordered": lambda first, second: OrderedDict([("b", first), ("a", second)]),
    "default": lambda first, second: defaultdict(list, b=first, a=(second,)),
    "integer keys": lambda first, second: {3: first, -1: second},
    "none": lambda first, second: {"a": None, "b": first, "c": second},
}
IN_FORTRAN_ORDER = np.asarray(np.arange(6).reshape(2, 3), ">f4", order="F")


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(sorted(STRUCTURES)), columns(), columns(), st.booleans())
@example("leaf", [IN_FORTRAN_ORDER], [1], True)
@example("dict", [IN_FORTRAN_ORDER, IN_FORTRAN_ORDER.astype("f8")], [IN_FORTRAN_ORDER] * 2, False)
def test_leaf_by_leaf_as_numpy_stacks(name, first, second, with_jax):
    elements = [STRUCTURES[name](*leaves) for leaves in zip(first, second, strict=False)]
    before = copy.deepcopy(elements)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_jax_tree_util", tree._jax_tree_util if with_jax else lambda: None)
        batch = stack(elements)
    expected = jax.tree_util.tree_map(numpys, *elements)
    assert repr(batch) == repr(expected)  # containers keep their types
    inputs = [leaf for leaf in leaves_of(elements) if isinstance(leaf, np.ndarray)]
    for ours, theirs in zip(leaves_of(batch), leaves_of(expected), strict=True):
        assert_same(ours, theirs)
        assert ours.flags.c_contiguous and ours.flags.writeable
        assert not any([np.shares_memory(ours, other) for other in inputs])
    assert repr(elements) == repr(before)


def with_legacy_operation(leaves):
    (record,) = BatchOperation(len(leaves))(
        iter([Record(RecordMetadata(i), leaf) for i, leaf in enumerate(leaves)])
    )
    return record.data


_texts = st.lists(st.text("a\0", max_size=3), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(_texts | _texts.map(lambda texts: [text.encode() for text in texts]), st.booleans())
@pytest.mark.filterwarnings("ignore:BatchOperation")
def test_text_and_bytes_are_kept_or_refused(leaves, as_scalars):
    if as_scalars:  # of NumPy, which keep a NUL themselves
        leaves = [(np.bytes_ if isinstance(leaf, bytes) else np.str_)(leaf) for leaf in leaves]
    nul = b"\0" if isinstance(leaves[0], bytes) else "\0"
    bad = next((i for i, leaf in enumerate(leaves) if leaf.endswith(nul)), None)
    ways = {
        "": stack,
        "leaf ['x'] of ": lambda leaves: stack([{"x": leaf} for leaf in leaves])["x"],
        "leaf [1] of ": lambda leaves: stack([(0, leaf) for leaf in leaves])[1],
        "leaf ['x']['y'] of ": lambda leaves: stack([{"x": {"y": leaf}} for leaf in leaves])["x"][
            "y"
        ],
        "leaf [0] of ": lambda leaves: batch_and_pad(
            [[leaf] for leaf in leaves], batch_size=len(leaves)
        )[0],
        "leaf ['z'] of ": lambda leaves: with_legacy_operation([{"z": leaf} for leaf in leaves])[
            "z"
        ],
    }
    for place, way in ways.items():
        if bad is None:
            assert way(leaves).tolist() == leaves
        else:
            with pytest.raises(
                ValueError,
                match=(re.escape(f"but {place}element {bad} ends in ") + ".*batch_fn=list"),
            ):
                way(leaves)


# like PyTorch's: its ``__array__`` takes no ``copy=``, which NumPy 2 warns of where it is given one
class Tensor:
    values = np.ones(2)

    def __array__(self, dtype=None):
        return self.values if dtype is None else self.values.astype(dtype)


def test_anything_is_an_element():
    assert stack([None, None]) is None
    assert (stack([{}, {}]), stack([(), ()]), stack([[None, {"a": None}]] * 3)) == (
        {},
        (),
        [None, {"a": None}],
    )
    assert stack((1, 2)).tolist() == [1, 2]
    assert stack(np.arange(6).reshape(3, 2)).tolist() == [[0, 1], [2, 3], [4, 5]]
    things = [object(), object()]
    assert stack(things).dtype == stack([object]).dtype == object
    assert stack(things).tolist() == things
    batch = stack([Tensor()])
    assert batch.tolist() == [[1, 1]]
    batch[:] = 5
    assert Tensor.values[0] == 1  # the batch is a copy


A3, A2 = np.zeros(3), np.zeros(2, np.int8)

DIFFERENCES = [
    ([A3, A2], ["(3,) float64 in element 0", "(2,) int8 in element 1"]),
    (
        [{"a": A3}, {"a": A3}, {"a": A2}],
        ["['a']", "(3,) float64 in element 0", "(2,) int8 in element 2"],
    ),
    ([(1, A3), (2, A2)], ["[1]", "(3,) float64 in element 0", "(2,) int8 in element 1"]),
    (
        [{"x": [1, {"z": A3}]}, {"x": [2, {"z": A2}]}],
        ["['x'][1]['z']", "(3,) float64", "(2,) int8"],
    ),
    ([Point(1, A3), Point(1, A2)], [".y", "(3,) float64", "(2,) int8"]),
    (
        [{"b": A2, "a": 1}, {"b": A2, "a": A2}],
        ["['a']", "() int in element 0", "(2,) int8 in element 1"],
    ),
    ([{"a": 1}, {"b": 1}], ["['a'] is missing", "['b'] is not in element 0", "in element 1"]),
    ([{"a": 1}, {"a": 1}, {"a": 1, "b": 2}], ["['b'] is not in element 0", "in element 2"]),
    ([[1, 2], [3]], ["[1] is missing", "in element 1"]),
    ([{"a": 1, "b": None}, {"a": 2, "b": 3}], ["['b'] is not in element 0"]),
    ([{"a": 1, "b": 3}, {"a": 2, "b": None}], ["['b'] is missing"]),
    ([{"a": 1}, 1], ["['a'] is missing", "(the element itself) is not in element 0"]),
    ([1, {"a": 1}], ["(the element itself) is missing", "['a'] is not in element 0"]),
    ([1, None], ["(the element itself) is missing"]),
    ([[1], (1,)], ["element 0 is", "element 1 is"]),
    ([{"a": 1}, OrderedDict(a=1)], ["element 0 is", "element 1 is"]),
]


@pytest.mark.parametrize("jax_or_none", [tree._jax_tree_util, lambda: None])
def test_errors_name_what_differs(jax_or_none, monkeypatch):
    monkeypatch.setattr(tree, "_jax_tree_util", jax_or_none)
    for elements, parts in DIFFERENCES:
        with pytest.raises(ValueError, match="same structure") as caught:
            stack(elements)
        assert all(part in str(caught.value) for part in parts), elements
    with pytest.raises(ValueError) as caught:
        stack([{"a": A3}, {"a": A2}])
    assert isinstance(caught.value.__cause__, ValueError)  # NumPy's
    assert_raises(ValueError, None, stack, [{"a": 1, 1: 2}] * 2)  # keys that cannot be sorted
    assert_raises(ValueError, "zero elements", stack, [])


class NoArray:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __array__(self, dtype=None, copy=None):
        raise ValueError("the file is closed")


def test_only_what_differs_is_blamed():
    key, rbg = jax.random.key(1), jax.random.key(1, impl="rbg")
    for first, second, law in [
        (A2, A3, "Their shapes must be equal and their dtypes of one kind"),
        (1, "a", "Their dtypes must be of one kind"),
        (np.datetime64("2026-01-01"), np.int64(3), "Their dtypes must be of one kind"),
        (key, rbg, "Their dtypes must be of one kind"),
        (key, np.uint32(1), "Their dtypes must be of one kind"),
    ]:
        with pytest.raises(ValueError, match=f"same structure.*in element 1. {law};") as caught:
            stack([{"x": first}, {"x": second}])
        assert caught.value.__cause__ is not None
    same = (
        r"leaf \['x'\], \(.*\) .* in every element, cannot be batched: the file is closed."
        r" batch_fn=list"
    )
    for value in (NoArray(), NoArray(shape=(2,), dtype="odd")):
        for num in (1, 2):
            assert_raises(ValueError, same, stack, [{"x": value}] * num)
    rows = NoArray(shape=(2, 3), dtype="odd")
    match = r"leaf \['x'\], rows of \(3,\) odd, cannot be joined: the file is closed"
    assert_raises(ValueError, match, concatenate, [{"x": rows}, {"x": rows}])
    assert_raises(ValueError, "Their dtypes must be", concatenate, [np.array(["a"]), np.array([1])])


def test_typed_keys_become_arrays_of_keys():
    keys = jax.random.split(jax.random.key(3), 6)

    def is_same(a, b):
        return a.dtype == b.dtype and np.array_equal(*map(jax.random.key_data, (a, b)))

    for shape in ((6,), (3, 2), (2, 3, 1)):
        rows = keys.reshape(shape)
        assert is_same(stack(list(rows)), rows)
        assert is_same(stack([{"k": [row]} for row in rows])["k"][0], rows)
        assert is_same(concatenate([rows[:1], rows[1:]]), rows)
        padded = batch_and_pad([*rows], batch_size=7, pad_value=jax.random.key(0))
        assert is_same(padded[: len(rows)], rows)
        assert is_same(padded[6], jax.numpy.broadcast_to(jax.random.key(0), shape[1:]))
    assert is_same(next(iter(MapDataset.source(keys).batch(4).to_iter_dataset().rebatch(6))), keys)
    with pytest.raises(
        ValueError, match="pad_value must be a value that the elements of dtype key"
    ):
        batch_and_pad([keys[0]], batch_size=2)


SHAPE, FLOAT = (4, MEGABYTE // 4), np.dtype(np.float32)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_dropped_batch_is_used_again():
    pool = BufferPool()
    batch = pool(SHAPE, FLOAT)
    assert (batch.shape, batch.dtype) == (SHAPE, FLOAT)
    assert batch.flags.c_contiguous
    assert batch.flags.writeable
    place = address(batch)
    del batch
    assert address(pool(SHAPE[::-1], np.dtype(np.int32))) == place  # as many bytes
    for other in (pickle.loads(pickle.dumps(pool)), copy.deepcopy(pool)):
        assert type(other) is BufferPool and not other._free
    pool = BufferPool()  # what is small, of objects or too much is not kept
    for shape, dtype in (
        ((10,), np.int8),
        ((MEGABYTE - 1,), np.int8),
        ((MEGABYTE,), object),
        ((0, 5), float),
    ):
        array = pool(shape, np.dtype(dtype))
        assert array.base is None and (array.shape, array.dtype) == (shape, dtype)
    assert not pool._free
    kept = [pool((MEGABYTE + i,), np.dtype(np.uint8)) for i in range(30)]
    assert len({address(batch) for batch in kept}) == 30
    kept.clear()
    assert 0 < len(pool._free) < 10  # its size is limited
    # nor does it keep what was large for the sake of smaller ones
    for num_bytes in (2**31, 2**20, 2**20):
        pool((num_bytes,), np.dtype(np.uint8))
    assert sum(buffer.nbytes for buffer in pool._free) <= 2**22


def end_of_bases(array):
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def cycle(batch):
    inside = [batch]
    inside.append(inside)
    return inside


KEEPERS = {
    "itself": lambda batch: batch,
    "row": lambda batch: batch[1],
    "one cell": lambda batch: batch.view(np.uint8)[0, :1],
    "transposed": lambda batch: batch.T,
    "strides": lambda batch: np.lib.stride_tricks.as_strided(batch, (1,), (4,)),
    "base": lambda batch: batch.reshape(-1).base,
    "end of the bases": end_of_bases,
    "memoryview": memoryview,
    "cast": lambda batch: np.frombuffer(memoryview(batch).cast("B"), np.uint8),
    "iterator": lambda batch: batch.flat,
    "containers": lambda batch: {"x": [(batch,)]},
    "method": lambda batch: batch.sum,
    "closure": lambda batch: lambda: batch,
    "cycle": cycle,
    "dlpack": np.from_dlpack,
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_memory_is_reused_after_the_last_reference(keep):
    pool = BufferPool()
    batch = pool(SHAPE, FLOAT)
    place = address(batch)
    kept = keep(batch)
    del batch
    others = [pool(SHAPE, FLOAT) for _ in range(3)]
    assert place not in map(address, others)
    del kept
    if keep is cycle:
        assert place not in [address(pool(SHAPE, FLOAT)) for _ in range(3)]
        gc.collect()
    assert address(pool(SHAPE, FLOAT)) == place


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc")
def test_elements_of_later_batches_cost_no_page_faults(tmp_path):
    code = """
        import resource

        import numpy as np

        from gristmill.transforms.batching import BufferPool, stack

        pool, faults = BufferPool(), []
        for _ in range(16):
            stack([np.ones((224, 224, 3), np.uint8) for _ in range(64)], pool)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        print(faults[-1] - faults[-9])
    """
    (num,) = output(tmp_path, code)
    assert int(num) < 1000  # 8 batches have 18,000 pages of elements


def test_jax_arrays_keep_their_values():
    """They look at the memory or have copied it, depending on its address."""
    pool = BufferPool()
    for value in range(8):
        batch = pool(SHAPE, FLOAT)
        batch[:] = value
        kept = jax.device_put(batch)
        del batch
        pool(SHAPE, FLOAT)[:] = 99
        assert (np.asarray(kept) == value).all()


def test_a_pool_of_many_threads_and_of_stacks():
    pool, shared = BufferPool(), deque()

    def work(number):
        mine = random.Random(number)
        for step in range(150):
            batch = pool((MEGABYTE,), np.dtype(np.uint8))
            batch[::4096] = value = (number * 50 + step) % 256
            shared.append((value, batch))
            del batch
            if len(shared) > mine.randrange(16):
                with contextlib.suppress(IndexError):  # other threads have taken all
                    value, batch = shared.popleft()  # another thread's, most of the time
                    assert (batch[::4096] == value).all()
                    del batch

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    asked = []  # when elements are stacked, where shape and dtype are known
    stack(
        [{"x": np.zeros((2, 3), np.float32), "y": 1}] * 4,
        lambda *array: asked.append(array) or np.empty(*array),
    )
    assert asked == [((4, 2, 3), np.float32)]
    pool, elements = BufferPool(), [np.full(MEGABYTE, i, np.uint8) for i in range(2)]
    first, second = stack(elements, pool), stack(elements[::-1], pool)
    np.testing.assert_array_equal(first, np.stack(elements))
    place = address(first)
    del first
    assert address(stack(elements, pool)) == place
    np.testing.assert_array_equal(second, np.stack(elements[::-1]))


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()


VALUES = [
    [1, 2, 3],
    [1.5, 2],
    [True, False],
    ["a", "bcd"],
    [np.uint8(3), np.int8(-1)],
    [np.datetime64("2020-01-01")],
]
VALUES += [[np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)], [np.zeros((2, 0))] * 2]


def test_full_batches_are_the_default_ones():
    for values in VALUES:
        num, first = len(values), np.asarray(values[0])
        assert same(batch_and_pad(values, batch_size=num), stack(values))
        padded, mask = batch_and_pad(values, batch_size=num + 2, with_mask=True)
        assert same(padded[:num], stack(values))
        assert same(padded[num:].astype(first.dtype), np.full((2, *first.shape), 0, first.dtype))
        assert same(mask, np.array([True] * num + [False] * 2))
        assert same(
            batch_and_pad(values, batch_size=num, with_mask=True)[1], np.array([True] * num)
        )
    padded = batch_and_pad([{"p": Point(1, [2.0]), "n": None, "t": ()}], batch_size=2, pad_value=7)
    assert repr(padded["p"]) == repr(Point(np.array([1, 7]), [np.array([2.0, 7.0])]))
    assert (padded["n"], padded["t"], len(padded)) == (None, (), 3)
    values = [{"a": 1, "b": ("x", None)}]
    # one for each leaf
    padded = batch_and_pad(values, batch_size=2, pad_value={"a": -1, "b": ("y", None)})
    assert (padded["a"].tolist(), padded["b"][0].tolist(), padded["b"][1]) == (
        [1, -1],
        ["x", "y"],
        None,
    )
    match = "have the structure of the elements with a value for each leaf; got"
    for wrong in ({"a": -1}, {"a": 1, "b": "y"}, {"a": 1, "b": ("y", 0)}, [1, "y"], None):
        assert_raises(ValueError, match, batch_and_pad, values, batch_size=2, pad_value=wrong)
    for value, pad_value, expected in [
        (1, 2.0, 2),
        (1, np.float32(-3), -3),
        (True, 1, True),
        (1.5, 3, 3.0),
        (1.5, np.nan, np.nan),
        (1.5, -np.inf, -np.inf),
        (np.float32(1), 0.1, np.float32(0.1)),
        (1j, 2, 2 + 0j),
        ("abc", "zz", "zz"),
        ("abc", 12, "12"),
        (b"abc", 0, b"0"),
        (2**70, 3, 3),
    ]:
        padded = batch_and_pad([value], batch_size=2, pad_value=pad_value)
        assert padded.dtype == np.asarray(value).dtype
        assert repr(padded[1]) == repr(np.full(1, expected, padded.dtype)[0])


CANNOT_HOLD = {
    ValueError: [
        *[(1, pad_value) for pad_value in (2.7, 1.5, np.nan, "5", "x")],
        *[(1.0, pad_value) for pad_value in (1j, "2.5")],
        *[(True, pad_value) for pad_value in (2, 0.5)],
        *[(np.int32(1), 1e30), (np.float32(1), 1e300), ("abc", "abcd"), (b"a", 12)],
    ],
    OverflowError: [(1, 2**64), (1.0, 10**400)],
}


def test_what_is_refused_and_as_a_batch_function():
    for error, value, pad_value in [
        (error, *pair) for error, pairs in CANNOT_HOLD.items() for pair in pairs
    ]:
        for element, which in ((value, "the elements"), ({"k": [value]}, r"leaf \['k'\]\[0\]")):
            match = rf"pad_value must be a value that {which} of dtype .* can hold, got"
            assert_raises(error, match, batch_and_pad, [element], batch_size=2, pad_value=pad_value)
        # nothing is padded
        assert len(batch_and_pad([value], batch_size=1, pad_value=pad_value)) == 1
    for values, batch_size, error, match in [
        ([], 3, ValueError, "cannot batch 0 values to batch_size 3"),
        (
            [1] * 4,
            3,
            ValueError,
            "cannot batch 4 values to batch_size 3: there must be at least 1 and at most 3",
        ),
        ([1], 0, ValueError, "batch_size must be a positive integer, got 0"),
        ([1], 2.0, TypeError, "batch_size must be an integer"),
        ([{"a": 1}, {}], 3, ValueError, r"leaf \['a'\] is missing"),
        (
            [np.zeros(2), np.zeros(3)],
            3,
            ValueError,
            r"is \(2,\) float64 in element 0 and \(3,\) float64 in element 1",
        ),
    ]:
        assert_raises(error, match, batch_and_pad, values, batch_size=batch_size)
    batch_fn = partial(batch_and_pad, batch_size=4)
    for ds in (MapDataset.range(6), MapDataset.range(6).to_iter_dataset()):
        # all padded to four
        for size, expected in (
            (4, [[0, 1, 2, 3], [4, 5, 0, 0]]),
            (3, [[0, 1, 2, 0], [3, 4, 5, 0]]),
        ):
            assert [x.tolist() for x in ds.batch(size, batch_fn=batch_fn)] == expected
            assert get_element_spec(ds.batch(size, batch_fn=batch_fn)) == ShapeDtypeStruct(
                (4,), np.int64
            )
        masked = ds.batch(3, batch_fn=partial(batch_fn, with_mask=True, pad_value=-1))
        assert get_element_spec(masked) == (
            ShapeDtypeStruct((4,), np.int64),
            ShapeDtypeStruct((4,), np.bool_),
        )
