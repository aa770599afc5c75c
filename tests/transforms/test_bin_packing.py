import itertools

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.transforms.bin_packing import (
    BestFit,
    Bins,
    Feature,
    FirstFit,
    ManyFeaturesFit,
    best_fit,
    first_fit,
)
from gristmill.transforms.concat_split import Concatenation, Target
from gristmill.transforms.pack_layout import PackLayout
from gristmill.transforms.sequences import as_dtype_of, as_sequence


def placed(placer, rows):
    """The bins that sequences of these lengths go to; those that fit nowhere are dropped."""
    chosen = []
    for lengths in rows:
        chosen.append(placer.find(lengths))
        assert placer.find(lengths) == chosen[-1]  # looking changes nothing
        if chosen[-1] >= 0:
            placer.put(chosen[-1], lengths)
    return chosen


def test_quick_placers_choose_as_the_general_one():
    rng = np.random.default_rng(1)
    for num_bins, max_sequences, alignment in itertools.product([1, 3, 33], [None, 1, 3], [1, 4]):
        features = [Feature("x", 20, alignment)]
        rows = [[int(rng.integers(0, 13))] for _ in range(12 * num_bins)]
        for make, best in ((first_fit, False), (best_fit, True)):
            expected = placed(ManyFeaturesFit(features, num_bins, max_sequences, best=best), rows)
            assert placed(make(features, num_bins, max_sequences), rows) == expected
            assert -1 in expected and num_bins - 1 in expected
    assert type(first_fit([Feature("x", 4)], 3, None)) is FirstFit
    assert type(best_fit([Feature("x", 4)], 3, None)) is BestFit
    # what is left is counted from the aligned place, which may be past the end of the bin
    for make in (first_fit, best_fit):
        assert placed(make([Feature("x", 4, 3)], 1, None), [[4], [0]]) == [0, -1]


def filled(features, elements, num_bins=1):
    bins = Bins(features, first_fit(features, num_bins, None), elements[0])
    for element in elements:
        assert bins.add(list(element))
    return bins


def test_columns_and_an_element_that_cannot_be_added():
    features = [Feature("'x'", 9, alignment=4, padding=7), Feature("'m'", 5, is_meta=True)]
    bins = filled(features, [(np.arange(1, 4), np.zeros((2, 2))), (np.arange(2), np.ones((3, 2)))])
    (x, ids, positions), (m, *others) = bins.columns()
    assert x.tolist() == [[1, 2, 3, 7, 0, 1, 7, 7, 7]]
    assert m.tolist() == [[[0, 0], [0, 0], [1, 1], [1, 1], [1, 1]]]
    assert others == [None, None]
    assert (x.dtype, ids.dtype, positions.dtype, m.dtype) == (
        np.int64,
        np.int32,
        np.int32,
        np.float64,
    )
    assert [len(arrays[0]) for arrays in bins.columns(3)] == [3, 3]
    assert bins.columns(3)[0][0].tolist()[1:] == [[7] * 9] * 2
    assert bins.num_bytes(2) == 2 * (9 * 8 + 2 * 4 * 9 + 8 + 5 * 2 * 8 + 2 * 4 * 5 + 8)
    again = bins.columns()
    assert not any(
        np.shares_memory(a, b) for a, b in zip((x, ids, positions), again[0], strict=True)
    )
    features = [Feature("'x'", 4), Feature("'y'", 3)]
    bins = filled(features, [(np.arange(2, dtype=np.int8), np.ones((1, 2)))])
    before = [c[0].tolist() for c in bins.columns()]
    bad = [
        ((np.arange(5), np.ones((4, 2))), r"truncated.*\(\"'x'\", 5, 4\), \(\"'y'\", 4, 3\)"),
        ((np.array([300]), np.ones((1, 2))), "feature 'x' has values of dtype int64 that int8"),
        ((np.array([1.5]), np.ones((1, 2))), "feature 'x' has values of dtype float64"),
        ((np.array([1]), np.ones((1, 3))), r"feature 'y' has the trailing shape \(3,\).*\(2,\)"),
    ]
    for element, match in bad:
        assert_raises(ValueError, match, bins.add, list(element))
        assert [c[0].tolist() for c in bins.columns()] == before and len(bins) == 1
    # values that the dtypes can hold
    assert bins.add([np.array([100]), np.ones((1, 2), np.float32)])
    assert [c[0].dtype for c in bins.columns()] == [np.int8, np.float64]
    # what does not fit is not looked at: it begins other bins
    assert not bins.add([np.array([300, 300]), np.ones((1, 9))])


def test_paddings():
    for padding, first, expected in [  # they are taken as the feature is
        (0.1, np.zeros(1, np.float32), [np.float32(0.1)] * 2),
        (True, np.zeros(1, np.int64), [1, 1]),
        ("no", np.array(["yes"]), ["no", "no"]),
        (b"", np.array([b"yes"]), [b"", b""]),
        ([5, 6, 7], np.zeros(1), [6, 7]),
        ([[1, 2], [3, 4], [5, 6]], np.zeros((1, 2)), [[3, 4], [5, 6]]),
        ([5, 6], np.zeros((1, 2)), [[5, 6]] * 2),
    ]:
        ((values, _, _),) = filled([Feature("'x'", 3, padding=padding)], [(first,)]).columns()
        assert values.dtype == first.dtype and values[0, 1:].tolist() == expected
    ((values, _, _),) = filled(
        [Feature("'x'", 5, alignment=2, padding=[1, 2, 3, 4, 5])], [(np.zeros(1),)] * 2
    ).columns()
    assert values.tolist() == [[0, 2, 0, 4, 5]]
    for padding, first, match in [
        (0.5, np.zeros(1, np.int64), "feature 'x' has values of dtype float64"),
        (-1, np.zeros(1, np.uint8), "feature 'x' has values of dtype int64"),
        ("long", np.zeros(1, "<U2"), "feature 'x' has values of dtype <U4"),
        ([1, 2], np.zeros(1), r"padding of feature 'x'.*\(3,\)"),
    ]:
        assert_raises(ValueError, match, filled, [Feature("'x'", 3, padding=padding)], [(first,)])


# Dtype, and sequences with their lengths.
SEQUENCES = [
    (np.int64, [([1, 2], 2), (7, 1), (np.array(3), 1), (range(3), 3)]),
    (np.float64, [((1.5,), 1), ([], 0)]),
]
SEQUENCES += [(np.float32, [(np.float32(1), 1)]), ("<U3", [("abc", 1)]), ("S2", [(b"ab", 1)])]
SEQUENCES += [(object, [(np.array([None, {}], object), 2)])]


def test_as_sequence_and_as_dtype_of_lose_nothing_but_digits():
    for dtype, value, length in [(dtype, *row) for dtype, rows in SEQUENCES for row in rows]:
        array = as_sequence("'x'", value)
        assert array.dtype == dtype and len(array) == length
    for value in ({"a": 1}, None, [None], [[1], [1, 2]], [1, {}], object(), {1, 2}):
        assert_raises(ValueError, "feature 'x'", as_sequence, "'x'", value)
    jnp = pytest.importorskip("jax.numpy")
    assert as_sequence("'x'", jnp.arange(3)).tolist() == [0, 1, 2]

    def converted(array, dtype):
        return as_dtype_of("'x'", np.array(array), np.dtype(dtype), (), "the first").tolist()

    for array, dtype, expected in [
        ([1, 2], np.int8, [1, 2]),
        ([1.0, 2.0], np.int64, [1, 2]),
        (["ab"], "<U2", ["ab"]),
        ([], np.int8, []),
        ([1.5, 2], np.complex128, [1.5, 2]),
        ([1, 0], np.bool_, [True, False]),
        ([1, 2], object, [1, 2]),
        ([0.1, np.inf], np.float32, [float(np.float32(0.1)), np.inf]),  # floats are rounded
    ]:
        assert converted(array, dtype) == expected
    assert np.isnan(converted([np.nan, 1.5], np.float32)[0])
    too_much = [
        ([300], np.int8),
        ([np.nan], np.int64),
        ([1e300], np.float32),
        (["abc"], "<U2"),
        (["1"], np.int64),
    ]
    for array, dtype in [
        *too_much,
        ([2**53 + 1], np.float64),
        ([-1], np.uint64),
        ([1j], np.float64),
    ]:
        assert_raises(ValueError, "feature 'x' has values of dtype", converted, array, dtype)


def test_layout_refuses_what_does_not_fit_together():
    layout = PackLayout({"x": 4, "m": {"a": 3, "b": 2}}, ["m", "q"], {"x": 2}, {"m": {"a": 9}})
    features = [
        ("'x'", 4, 2, None, False),
        ("'m'['a']", 3, 1, 9, True),
        ("'m'['b']", 2, 1, None, True),
    ]
    assert [
        (f.name, f.length, f.alignment, f.padding, f.is_meta) for f in layout.features
    ] == features
    sequences, carried = layout.read({"x": [1], "m": {"a": 5, "b": True}, "q": "any", "other": 0})
    assert [s.tolist() for s in sequences] == [[1], [5], [1]] and carried == ("any",)
    assert sequences[2].dtype == np.int64 and layout.index("x") == 0
    assert_raises(ValueError, "group by", layout.index, "m")
    for arguments, error, match in [
        ({"length_struct": 3}, TypeError, "length_struct must be a dict"),
        ({"length_struct": {}}, ValueError, "must name the features"),
        ({"length_struct": {"x": 1.5}}, TypeError, "length of feature 'x'"),
        ({"length_struct": {"x": {"a": 0}}}, ValueError, r"length of feature 'x'\['a'\].*positive"),
        ({"length_struct": {"x": {"a": 4, "a_positions": 4}}}, ValueError, "named"),
        ({"length_struct": {"x": 4, "x_positions": {"a": 4}}}, ValueError, "named"),
        ({"length_struct": {"x": 4, "x_positions": 4}}, ValueError, "named"),
        ({"length_struct": {"x": 4}, "meta_features": ["x_segment_ids"]}, ValueError, "named"),
        (
            {"length_struct": {"x": 4}, "pack_alignment_struct": {"y": 1}},
            ValueError,
            "pack_alignment_struct.*'x'.*'y'",
        ),
        (
            {"length_struct": {"x": 4}, "pack_alignment_struct": {"x": 0}},
            ValueError,
            "alignment of feature 'x'",
        ),
        ({"length_struct": {"x": 4}, "padding_struct": {"y": 1}}, ValueError, "padding_struct"),
        ({"length_struct": {"x": 4}, "padding_struct": 0.5}, TypeError, "padding_struct"),
    ]:
        assert_raises(error, match, PackLayout, **arguments)


def row(concatenation):
    return {name: array.tolist() for name, array in concatenation.output().items()}


def test_meta_features_first_tokens_and_dtypes():
    targets = [Target("a", 3), Target("m", 4, is_meta=True)]
    joined = Concatenation(targets)
    assert joined.add([np.arange(5), np.array([7, 8])], [3, 0]) is joined.limiting is None
    assert joined.add([np.arange(1), np.array([1, 2, 3])], [0, 0]) == [0, 0]
    assert joined.limiting is targets[1]
    assert row(joined)["m"] == [7, 8, 0, 0]
    with pytest.raises(ValueError, match="meta feature 'm' is 5 long"):
        joined.add([np.arange(1), np.arange(5)], [0, 0])
    joined = Concatenation([Target("a", 4, bos_id=99), Target("b", 4)])
    for a, b in [([1, 2], [5]), ([], [6, 7]), ([3, 4], [])]:
        assert joined.add([np.array(a, np.int64), np.array(b, np.int64)], [0, 0]) is None
    # the one without tokens would have written past the end
    assert row(joined)["a"] == [99, 2, 99, 4]
    assert row(joined)["b"] == [5, 6, 7, 0]
    wrong = [Target("a", 4, bos_id=300)]
    with pytest.raises(ValueError, match=r"feature 'a'.*int8.*bos_token_id"):
        Concatenation(wrong, [np.zeros(2, np.int8)])
    assert Concatenation([Target("a", 2, bos_id=5)], [np.zeros((1, 2))]).output()["a"].tolist() == [
        [5, 5],
        [0, 0],
    ]
    joined = Concatenation([Target("a", 9)], [np.zeros(2, np.int8)])
    assert joined.add([np.array([100])], [0]) is None
    for bad, match in [([300], "dtype int64 that int8"), ([[1]], r"trailing shape \(1,\)")]:
        assert_raises(ValueError, f"feature 'a'.*{match}", joined.add, [np.array(bad)], [0])
    output = joined.output()
    assert [output[name].dtype for name in ("a", "a_segment_ids", "a_positions")] == [
        np.int8,
        np.int32,
        np.int32,
    ]
    assert output["a"].tolist() == [0, 0, 100, 0, 0, 0, 0, 0, 0]
