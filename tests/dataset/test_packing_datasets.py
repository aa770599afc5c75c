"""Packing stages with wrong elements, errors, states and arguments; rows are tested elsewhere."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing, Sharing
from refusing import assert_raises, assert_stays
from users_datasets import Given

from gristmill import MapDataset, MultiprocessingOptions
from gristmill import experimental as gx
from gristmill.core.errors import StateIndexError, StateMismatchError


def stream(elements):
    return MapDataset.source(elements).to_iter_dataset(DIRECT)


def sequences(*lengths):
    """Of the given lengths, the ``i``-th with the tokens ``10 * i``, ``10 * i + 1``, …"""
    return [{"x": np.arange(10 * i, 10 * i + n)} for i, n in enumerate(lengths)]


def first_fit(ds, length=5, bins=2, **arguments):
    defaults = {"length_struct": {"x": length}, "num_packing_bins": bins, "shuffle_bins": False}
    return gx.FirstFitPackIterDataset(ds, **defaults | arguments)


def concat(ds, length=5, **arguments):
    return gx.ConcatThenSplitIterDataset(ds, **{"length_struct": {"x": length}} | arguments)


def tokens(ds):
    return [row["x"].tolist() for row in ds]


each_packing = pytest.mark.parametrize("pack", [first_fit, concat])


class ChangedInPlace(Sharing):
    """A user's iterator over sequences, whose state changes with it."""

    def __next__(self):
        return {"x": [super().__next__()] * 2}


def test_rows_that_were_changed_are_not_delivered_again():
    it = iter(first_fit(stream(sequences(3, 2, 4, 3, 3))))
    for row in (next(it), next(it)):
        row["x"][:] = -1  # arrays of a batch are new and writable
    assert tokens(it) == [[30, 31, 32, 0, 0], [40, 41, 42, 0, 0]]

    def negate(row):
        row["x"] *= -1
        return row

    elements = sequences(3, 3, 3, 3)
    for pack in (
        lambda ds: first_fit(ds, bins=4),
        lambda ds: concat(ds, split_full_length_features=False, length=3),
    ):
        expected = [[-x for x in row] for row in tokens(pack(stream(elements)))]
        assert len(expected) == 4
        failing = Failing(2, times=1)
        it = iter(
            pack(stream(elements))
            .map(negate)
            .map_with_index(lambda i, x, f=failing: (f(i), x)[1])
            .batch(4, batch_fn=list)
        )
        assert_raises(Boom, "2", next, it)
        assert tokens(next(it)) == expected  # the rows are made again


@each_packing
def test_foreign_elements(pack):
    for bad, error in [
        (3, (TypeError, ValueError)),
        (SimpleNamespace(x=1), (TypeError, ValueError)),
        ({"y": np.arange(2)}, (KeyError, ValueError)),
        ({"x": {"a": 1}}, ValueError),
        ({"x": [[1], [2, 3]]}, ValueError),
    ]:
        it = iter(pack(stream([*sequences(2), bad, *sequences(2)]), length=4))
        assert_stays(it, error, None)
        it.skip_failed()
        assert tokens(it) == [[0, 1, 0, 1]]


def test_overlong_sequences_are_named():
    it = iter(first_fit(stream(sequences(2, 7, 1))))
    assert_raises(ValueError, r"truncated.*too long are.*\(\"'x'\", 7, 5\)", next, it)
    it.skip_failed()
    assert tokens(it) == [[0, 1, 20, 0, 0]]


ONE = np.ones(1, int)
LACKING = [
    pytest.param(
        first_fit,
        {"length_struct": {"x": 3, "y": 3}},
        {"x": ONE},
        r"length_struct.*'y'.*\['x'\]: add",
        id="flat",
    ),
    pytest.param(
        first_fit,
        {"length_struct": {"m": {"a": 2, "b": 2}}},
        {"m": {"a": ONE}},
        r"length_struct.*'m'\['b'\].*\['a'\] in feature 'm': add",
        id="nested",
    ),
    pytest.param(
        first_fit,
        {"length_struct": {"m": {"a": 2}}},
        {"x": ONE},
        r"'m'\['a'\].*\['x'\]: add",
        id="outer",
    ),
    pytest.param(
        first_fit,
        {"meta_features": ["id"]},
        {"x": ONE},
        r"meta_features.*'id'.*\['x'\]: add",
        id="meta",
    ),
    pytest.param(
        concat,
        {"length_struct": {"x": 3, "y": 3}},
        {"x": ONE},
        r"\['x', 'y'\] of length_struct, got the features \['x'\]: add \['y'\]",
        id="concat",
    ),
]


@pytest.mark.parametrize(("pack", "arguments", "lacking", "match"), LACKING)
def test_an_element_that_lacks_a_feature_is_explained(pack, arguments, lacking, match):
    """The message names the feature; a note names the element where that is known."""
    whole = {"x": ONE, "y": ONE}
    if pack is not concat:
        whole |= {"id": "a", "m": {"a": ONE, "b": ONE}}
    elements = [whole] * 40 + [lacking] + [whole] * 40
    parents = {
        "plain": stream(elements),
        "threads": MapDataset.source(elements).to_iter_dataset(),
        "blocks": stream(elements).thread_prefetch(16),
        "zip": gx.ZipIterDataset([stream(elements), stream(elements)]).map(lambda pair: pair[0]),
    }
    for name, parent in parents.items():
        with pytest.raises(KeyError, match=match) as caught:
            list(pack(parent, **{"length": 9} | arguments))
        note = caught.value.__notes__[0]
        is_known = " at element 40 (epoch 0, source key 40)." in note
        assert isinstance(caught.value, ValueError) and is_known == (" at " in note)
        assert is_known or name in ("blocks", "zip")
    if "meta_features" not in arguments:
        assert_raises(KeyError, match, gx.get_element_spec, pack(Given(iter, lacking), **arguments))


def test_a_worker_explains_which_feature_an_element_lacks():
    work = MultiprocessingOptions(num_workers=1)
    it = iter(first_fit(stream([{"x": [1]}]), length_struct={"x": 3, "y": 3}).mp_prefetch(work))
    with it, pytest.raises(KeyError, match=r"^elements to pack must have all features .*'y'"):
        next(it)


@each_packing
def test_parents_of_all_kinds(pack):
    # lists and scalars, too
    elements = [None, {"x": [1, 2]}, None, {"x": 3}, {"x": np.int32(4)}, {"x": (5,)}, None]
    assert tokens(pack(MapDataset.source(elements).to_iter_dataset(DIRECT, allow_nones=True))) == [
        [1, 2, 3, 4, 5]
    ]
    assert tokens(pack(MapDataset.source(sequences(2, 3)))) == [[0, 1, 10, 11, 12]]
    it = iter(pack(Given(lambda: iter(sequences(2, 3, 4)))))
    assert next(it)["x"].tolist() == [0, 1, 10, 11, 12]
    assert_raises(NotImplementedError, "no state", it.get_state)
    assert tokens(it) == [[20, 21, 22, 23, 0]]
    # A user's iterator is read one by one with the state before each.
    it = iter(pack(Given(lambda: ChangedInPlace(9))))
    states, rows = [json.dumps(it.get_state())], []
    for row in it:
        rows.append(row["x"].tolist())
        states.append(json.dumps(it.get_state()))
    assert rows == tokens(pack(stream([{"x": [i, i]} for i in range(9)])))
    for position, state in enumerate(states):
        it.set_state(json.loads(state))
        assert tokens(it) == rows[position:]


def test_the_state_says_more_rows_than_there_are():
    def packed(bins):
        return iter(first_fit(stream(sequences(3, 3, 3, 3)), bins=bins))

    state = packed(4).get_state() | {"next_row": 3, "counter": 3}
    it = packed(4)
    it.set_state(state)
    assert tokens(it) == [[30, 31, 32, 0, 0]]
    for bins in (1, 2, 3):
        it = packed(bins)
        it.set_state(state)
        assert_stays(it, StateIndexError, f"next_row.*3.*{bins} rows", state)
    assert_raises(StateMismatchError, "counter", it.set_state, {**state, "counter": 2})
    it.set_state({"parent": {"next_index": 4}, "next_row": 1, "counter": 1})
    assert_raises(StateIndexError, None, next, it)


def test_dtypes_arguments_sizes_and_names():
    # The dtype is that of the first sequence of the bins.
    elements = [{"x": np.zeros(3, t)} for t in (np.int8, np.float32, np.int64, np.int8)]
    assert [row["x"].dtype for row in first_fit(stream(elements), length=3, bins=1)] == [
        x["x"].dtype for x in elements
    ]
    lengths = {"x": 3}
    ds = first_fit(stream(sequences(3)), length_struct=lengths)
    lengths["x"] = 1  # arguments are not shared
    assert tokens(ds) == [[0, 1, 2]]
    elements = [{"x": np.arange(3), "y": np.ones((2, 3), np.float32), "s": 1}] * 3
    it = iter(
        first_fit(stream(elements), length_struct={"x": 8, "y": 5, "s": 4}, meta_features=["s"])
    )
    assert_raises(ValueError, "next", it.get_packed_batch_size_bytes)
    next(it)
    assert it.get_packed_batch_size_bytes() == 632
    assert str(first_fit(stream([]))) == "FirstFitPackIterDataset"
    found = str(gx.BestFitPackIterDataset(stream([]), length_struct={"x": 1}, num_packing_bins=1))
    assert found == "BestFitPackIterDataset"
    assert str(concat(stream([]), 4)) == "ConcatThenSplitIterDataset(length_struct={'x': 4})"


BINS = {"num_packing_bins": 2}
BOS = {"bos_handling": gx.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS}


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_packing_bins": 0}, ValueError, "num_packing_bins"),
        ({"num_packing_bins": 1.5}, TypeError, "num_packing_bins"),
        (
            BINS | {"max_sequences_per_bin": 0},
            ValueError,
            "max_sequences_per_bin must be a positive integer, got 0",
        ),
        (BINS | {"seed": -1}, ValueError, "seed"),
        (BINS | {"shuffle_bins_group_by_feature": "y"}, ValueError, "group by"),
        (
            BINS | {"shuffle_bins_group_by_feature": "a", "length_struct": {"x": {"a": 4}}},
            ValueError,
            "not nested",
        ),
        ({"length_struct": {}}, ValueError, "length_struct"),
        ({"bos_token_id": 1}, ValueError, "DO_NOTHING"),
        ({"bos_features": ["x"]}, ValueError, "DO_NOTHING"),
        (BOS | {"bos_features": ["x"]}, ValueError, "bos_token_id"),
        ({"bos_handling": 2}, TypeError, "bos_handling"),
        (BOS | {"bos_token_id": 1.5}, TypeError, "bos_token_id"),
        (
            BOS | {"bos_token_id": 1, "bos_features": ["x"], "meta_features": ["x"]},
            ValueError,
            "as well",
        ),
        (BOS | {"bos_token_id": 1, "bos_features": ["y"]}, ValueError, "bos_features.*'y'"),
        ({"meta_features": ["y"]}, ValueError, "meta_features.*'y'"),
    ],
)
def test_bad_arguments(arguments, error, match):
    of_bins = "num_packing_bins" in arguments
    for cls in (
        (gx.FirstFitPackIterDataset, gx.BestFitPackIterDataset)
        if of_bins
        else (gx.ConcatThenSplitIterDataset,)
    ):
        assert_raises(error, match, cls, stream([]), **{"length_struct": {"x": 4}} | arguments)


def state(at=0, slices=(-1, -1), count=0, feature="x"):
    parent, remainder = {"next_index": at}, {feature: list(slices)}
    return {
        "parent_state": parent,
        "remainder_slices": remainder,
        "elements_from_buffer_after_checkpoint": count,
    }


def test_states_of_grain_states_that_do_not_fit_and_long_lists():
    for kind in (tuple, list):
        it = iter(concat(stream(sequences(3, 3, 3, 3)), 4))
        for slices, at, rest in [
            ((-1, -1), 0, [[0, 1, 2, 10], [11, 12, 20, 21]]),
            ((1, 3), 1, [[11, 12, 20, 21], [22, 30, 31, 32]]),
        ]:
            it.set_state({**state(at), "remainder_slices": {"x": kind(slices)}})
            assert tokens(it)[:2] == rest
    it = iter(concat(stream(sequences(3, 3))))
    both = {**state(), "remainder_slices": {"x": [-1, -1], "y": [-1, -1]}}
    for wrong in (
        state(feature="y"),
        both,
        *[state(slices=x) for x in ((-1, 2), (2, 1), (1, 2, 3), (0.0, 1.0))],
        *[{**state(), "skipped": skipped} for skipped in (3, [-1], ["1"], [1.5], None)],
    ):
        assert_raises(StateMismatchError, None, it.set_state, wrong)
    assert it.get_state() == iter(concat(stream(sequences(3, 3)))).get_state()
    # this turns out later
    for wrong in (state(1, (1, 9)), state(2, (1, 3)), state(0, (-1, -1), 5)):
        it.set_state(wrong)
        assert_stays(it, StateMismatchError, None, wrong)
        assert_raises(StateMismatchError, None, it.skip_failed)
    it.set_state(state())
    assert tokens(it) == [[0, 1, 2, 10, 11], [12, 0, 0, 0, 0]]
    conversions = []

    class Counting(list):
        def __array__(self, dtype=None, copy=None):
            conversions.append(self)
            return np.array(list(self), dtype)

    ds = concat(stream([{"x": Counting(range(100))}]), 10)
    assert np.ravel(tokens(ds)).tolist() == list(range(100)) and len(conversions) == 1


def test_a_meta_feature_that_limits_is_logged_once(caplog):
    elements = [{"x": np.arange(2), "m": np.arange(3)}] * 4
    with caplog.at_level(logging.ERROR, "gristmill"):
        assert (
            len(list(concat(stream(elements), length_struct={"x": 9, "m": 5}, meta_features=["m"])))
            == 4
        )
    assert [record.getMessage() for record in caplog.records if "'m'" in record.getMessage()] == [
        "meta feature 'm' limits how much is packed into a row: consider more than 5 cells for it"
        " in length_struct"
    ]


def test_element_specs():
    x, s = gx.ShapeDtypeStruct((None, 2), np.float32), gx.ShapeDtypeStruct((), np.int64)
    spec = {"x": x, "s": s, "m": {"a": SimpleNamespace(shape=(3,), dtype="i4")}}
    numbers = gx.ShapeDtypeStruct((6,), np.int32)
    row = {
        "x": gx.ShapeDtypeStruct((6, 2), np.float32),
        "x_segment_ids": numbers,
        "x_positions": numbers,
    }
    row["s"] = gx.ShapeDtypeStruct((2,), np.int64)
    ds = first_fit(
        Given(iter, spec), length_struct={"x": 6, "m": {"a": 4}, "s": 2}, meta_features=["m", "s"]
    )
    assert gx.get_element_spec(ds) == {**row, "m": {"a": gx.ShapeDtypeStruct((4,), "i4")}}
    found = gx.get_element_spec(
        concat(Given(iter, {"x": x, "s": s}), length_struct={"x": 6, "s": 2}, meta_features=["s"])
    )
    assert found == row
    with pytest.raises(NotImplementedError, match="'k'"):
        gx.get_element_spec(first_fit(Given(iter, spec), meta_features=["k"]))
