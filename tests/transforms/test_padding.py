from collections import namedtuple
from functools import partial

import numpy as np
from refusing import assert_raises

from gristmill import MapDataset
from gristmill.experimental import ShapeDtypeStruct, batch_and_pad, get_element_spec
from gristmill.transforms.batching import stack

Point = namedtuple("Point", ["x", "y"])


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()


VALUES = [[1, 2, 3], [1.5, 2], [True, False], ["a", "bcd"], [np.uint8(3), np.int8(-1)], [np.datetime64("2020-01-01")]]
VALUES += [[np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)], [np.zeros((2, 0))] * 2]


def test_full_batches_are_the_default_ones_others_begin_with_them_and_a_pad_value_is_cast():
    for values in VALUES:
        num, first = len(values), np.asarray(values[0])
        assert same(batch_and_pad(values, batch_size=num), stack(values))
        padded, mask = batch_and_pad(values, batch_size=num + 2, with_mask=True)
        assert same(padded[:num], stack(values))
        assert same(padded[num:].astype(first.dtype), np.full((2, *first.shape), 0, first.dtype))
        assert same(mask, np.array([True] * num + [False] * 2))
        assert same(batch_and_pad(values, batch_size=num, with_mask=True)[1], np.array([True] * num))
    padded = batch_and_pad([{"p": Point(1, [2.0]), "n": None, "t": ()}], batch_size=2, pad_value=7)
    assert repr(padded["p"]) == repr(Point(np.array([1, 7]), [np.array([2.0, 7.0])]))
    assert (padded["n"], padded["t"], len(padded)) == (None, (), 3)
    values = [{"a": 1, "b": ("x", None)}]
    padded = batch_and_pad(values, batch_size=2, pad_value={"a": -1, "b": ("y", None)})  # one for each leaf
    assert (padded["a"].tolist(), padded["b"][0].tolist(), padded["b"][1]) == ([1, -1], ["x", "y"], None)
    match = "have the structure of the elements with a value for each leaf; got"
    for wrong in ({"a": -1}, {"a": 1, "b": "y"}, {"a": 1, "b": ("y", 0)}, [1, "y"], None):
        assert_raises(ValueError, match, batch_and_pad, values, batch_size=2, pad_value=wrong)
    for value, pad_value, expected in [
        *((1, 2.0, 2), (1, np.float32(-3), -3), (True, 1, True), (1.5, 3, 3.0), (1.5, np.nan, np.nan), (1.5, -np.inf, -np.inf)),
        *((np.float32(1), 0.1, np.float32(0.1)), (1j, 2, 2 + 0j), ("abc", "zz", "zz"), ("abc", 12, "12"), (b"abc", 0, b"0")),
        (2**70, 3, 3),
    ]:
        padded = batch_and_pad([value], batch_size=2, pad_value=pad_value)
        assert padded.dtype == np.asarray(value).dtype
        assert repr(padded[1]) == repr(np.full(1, expected, padded.dtype)[0])


CANNOT_HOLD = {
    ValueError: [
        *(*[(1, pad_value) for pad_value in (2.7, 1.5, np.nan, "5", "x")], *[(1.0, pad_value) for pad_value in (1j, "2.5")]),
        *[(True, pad_value) for pad_value in (2, 0.5)],
        *[(np.int32(1), 1e30), (np.float32(1), 1e300), ("abc", "abcd"), (b"a", 12)],
    ],
    OverflowError: [(1, 2**64), (1.0, 10**400)],
}


def test_what_is_refused_and_as_a_batch_function():
    for error, value, pad_value in [(error, *pair) for error, pairs in CANNOT_HOLD.items() for pair in pairs]:
        for element, which in ((value, "the elements"), ({"k": [value]}, r"leaf \['k'\]\[0\]")):
            match = rf"pad_value must be a value that {which} of dtype .* can hold, got"
            assert_raises(error, match, batch_and_pad, [element], batch_size=2, pad_value=pad_value)
        assert len(batch_and_pad([value], batch_size=1, pad_value=pad_value)) == 1  # nothing is padded
    for values, batch_size, error, match in [
        ([], 3, ValueError, "cannot batch 0 values to batch_size 3"),
        ([1] * 4, 3, ValueError, "cannot batch 4 values to batch_size 3: there must be at least 1 and at most 3"),
        ([1], 0, ValueError, "batch_size must be a positive integer, got 0"),
        *(([1], 2.0, TypeError, "batch_size must be an integer"), ([{"a": 1}, {}], 3, ValueError, r"leaf \['a'\] is missing")),
        ([np.zeros(2), np.zeros(3)], 3, ValueError, r"is \(2,\) float64 in element 0 and \(3,\) float64 in element 1"),
    ]:
        assert_raises(error, match, batch_and_pad, values, batch_size=batch_size)
    batch_fn = partial(batch_and_pad, batch_size=4)
    for ds in (MapDataset.range(6), MapDataset.range(6).to_iter_dataset()):
        for size, expected in ((4, [[0, 1, 2, 3], [4, 5, 0, 0]]), (3, [[0, 1, 2, 0], [3, 4, 5, 0]])):  # all padded to four
            assert [x.tolist() for x in ds.batch(size, batch_fn=batch_fn)] == expected
            assert get_element_spec(ds.batch(size, batch_fn=batch_fn)) == ShapeDtypeStruct((4,), np.int64)
        masked = ds.batch(3, batch_fn=partial(batch_fn, with_mask=True, pad_value=-1))
        assert get_element_spec(masked) == (ShapeDtypeStruct((4,), np.int64), ShapeDtypeStruct((4,), np.bool_))
