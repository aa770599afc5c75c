import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.dataset import DatasetIterator, IterDataset
from gristmill.experimental import (
    BestFitPackIterDataset,
    BOSHandling,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    ShapeDtypeStruct,
    get_element_spec,
)

DIRECT = ReadOptions(num_threads=0)


def stream(elements, options=DIRECT):
    return MapDataset.source(elements).to_iter_dataset(options)


def sequences(*lengths):
    """Of the given lengths, the ``i``-th with the tokens ``10 * i``, ``10 * i + 1``, …"""
    return [{"x": np.arange(10 * i, 10 * i + n)} for i, n in enumerate(lengths)]


def first_fit(ds, length=5, bins=2, **arguments):
    return FirstFitPackIterDataset(
        ds, **{"length_struct": {"x": length}, "num_packing_bins": bins, "shuffle_bins": False} | arguments
    )


def concat(ds, length=5, **arguments):
    return ConcatThenSplitIterDataset(ds, **{"length_struct": {"x": length}} | arguments)


def tokens(ds):
    return [row["x"].tolist() for row in ds]


PACKINGS = {"first_fit": first_fit, "concat": concat}
each_packing = pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)


class Faulty:
    """A source of sequences that fails at some keys, a number of times."""

    def __init__(self, elements, failures):
        self.elements = elements
        self.failures = dict(failures)
        self.num_reads = 0

    def __len__(self):
        return len(self.elements)

    def __getitem__(self, key):
        self.num_reads += 1
        if self.failures.get(key, 0):
            self.failures[key] -= 1
            raise OSError(f"cannot read {key}")
        return self.elements[key]


def test_names():
    assert str(first_fit(stream([]))) == "FirstFitPackIterDataset"
    assert str(BestFitPackIterDataset(stream([]), length_struct={"x": 1}, num_packing_bins=1)) == "BestFitPackIterDataset"
    assert str(concat(stream([]), 4)) == "ConcatThenSplitIterDataset(length_struct={'x': 4})"


def test_arrays_of_a_batch_are_new_and_writable():
    it = iter(first_fit(stream(sequences(3, 2, 4, 3, 3))))
    rows = [next(it) for _ in range(2)]
    before = [row["x"].tolist() for row in rows]
    for row in rows:
        row["x"][:] = -1
    assert tokens(it) == [[30, 31, 32, 0, 0], [40, 41, 42, 0, 0]]
    assert tokens(first_fit(stream(sequences(3, 2, 4, 3, 3))))[:2] == before


def test_a_row_that_was_changed_is_not_delivered_again():
    """A step that fails takes rows back that a step before it may have changed in place."""
    failures = set()

    def negate(row):
        row["x"] *= -1
        return row

    def fail_once(i, row):
        if i in failures:
            failures.discard(i)
            raise OSError(i)
        return row

    elements = sequences(3, 3, 3, 3)
    for pack in (lambda ds: first_fit(ds, bins=4), lambda ds: concat(ds, split_full_length_features=False, length=3)):
        expected = [[-x for x in row] for row in tokens(pack(stream(elements)))]
        assert len(expected) == 4
        it = iter(pack(stream(elements)).map(negate).map_with_index(fail_once).batch(4, batch_fn=list))
        failures.add(2)
        assert tokens(next(it)) == expected  # the batch is taken again, row by row, and nothing fails then
        assert not failures


@each_packing
def test_a_transient_error_heals_without_reading_everything_again(pack):
    elements = sequences(*[2] * 40)
    expected = tokens(pack(stream(elements), length=30))
    source = Faulty(elements, {10: 3, 25: 3, 39: 3})
    it = iter(pack(MapDataset.source(source).to_iter_dataset(DIRECT), length=30))
    delivered, errors = [], 0
    while True:
        before = it.get_state()
        try:
            delivered.append(next(it)["x"].tolist())
        except StopIteration:
            break
        except OSError:
            errors += 1
            assert it.get_state() == before
    assert delivered == expected
    assert errors >= 3
    assert source.num_reads < 130


@each_packing
def test_a_bad_element_can_be_skipped_and_stays_skipped(pack):
    elements = [*sequences(2, 2, 2), {"x": np.array("bad")}, *sequences(0, 0, 0, 0, 2, 2)[4:]]
    good = [element for element in elements if element["x"].dtype != "<U3"]
    expected = tokens(pack(stream(good), length=4))
    it = iter(pack(stream(elements), length=4))
    delivered, states = [], []
    while len(delivered) < len(expected):
        try:
            delivered.append(next(it)["x"].tolist())
        except ValueError as error:
            assert "<U3" in str(error)
            state = it.get_state()
            it.skip_failed()
            with pytest.raises(ValueError, match="nothing to skip"):
                it.skip_failed()
            assert it.get_state() == {**state, "skipped": it.get_state()["skipped"]}
        states.append((len(delivered), json.loads(json.dumps(it.get_state()))))
    assert delivered == expected
    assert "skipped" not in states[-1][1]
    first = next(i for i, (_, state) in enumerate(states) if "skipped" in state)
    for position, state in states[first:]:
        for again in (it, iter(pack(stream(elements), length=4))):
            again.set_state(state)
            assert tokens(again) == expected[position:]
            assert again.get_state() == states[-1][1]


@each_packing
@pytest.mark.parametrize("skipped", [3, [-1], ["1"], [1.5], None])
def test_a_damaged_list_of_skipped_elements(pack, skipped):
    it = iter(pack(stream(sequences(2, 2))))
    before = it.get_state()
    with pytest.raises(StateMismatchError, match="skipped"):
        it.set_state({**before, "skipped": skipped})
    assert it.get_state() == before


@each_packing
def test_overlong_or_foreign_elements(pack):
    class Odd:
        def __init__(self):
            self.x = 1

    for bad, error in [
        (3, (TypeError, ValueError)),
        (Odd(), (TypeError, ValueError)),
        ({"y": np.arange(2)}, (KeyError, ValueError)),
        ({"x": {"a": 1}}, ValueError),
        ({"x": [[1], [2, 3]]}, ValueError),
    ]:
        it = iter(pack(stream([*sequences(2), bad, *sequences(2)]), length=4))
        before = it.get_state()
        for _ in range(2):
            with pytest.raises(error):
                next(it)
            assert it.get_state() == before
        it.skip_failed()
        assert tokens(it) == [[0, 1, 0, 1]]


def test_a_sequence_longer_than_the_bin():
    it = iter(first_fit(stream(sequences(2, 7, 1))))
    with pytest.raises(ValueError, match=r"truncated.*too long are.*\(\"'x'\", 7, 5\)"):
        next(it)
    it.skip_failed()
    assert tokens(it) == [[0, 1, 20, 0, 0]]


def test_a_missing_feature_is_named():
    it = iter(first_fit(stream([{"x": [1]}]), length_struct={"x": 3, "y": 3}))
    with pytest.raises(KeyError) as caught:
        next(it)
    assert caught.value.args == ("y",)
    assert "it has ['x']" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match=r"\['x', 'y'\], got the features \['x'\]"):
        next(iter(concat(stream([{"x": [1]}]), length_struct={"x": 3, "y": 3})))


@each_packing
def test_none_is_passed_over_and_lists_and_scalars_are_sequences(pack):
    elements = [None, {"x": [1, 2]}, None, {"x": 3}, {"x": np.int32(4)}, {"x": (5,)}, None]
    ds = MapDataset.source(elements).to_iter_dataset(DIRECT, allow_nones=True)
    assert tokens(pack(ds)) == [[1, 2, 3, 4, 5]]


@each_packing
def test_a_map_dataset_will_do(pack):
    assert tokens(pack(MapDataset.source(sequences(2, 3)))) == [[0, 1, 10, 11, 12]]


@each_packing
def test_a_step_without_state(pack):
    class Plain(IterDataset):
        def __iter__(self):
            return iter(sequences(2, 3, 4))

    it = iter(pack(Plain()))
    assert next(it)["x"].tolist() == [0, 1, 10, 11, 12]
    with pytest.raises(NotImplementedError, match="no state"):
        it.get_state()
    assert tokens(it) == [[20, 21, 22, 23, 0]]


@each_packing
def test_a_users_iterator_is_read_one_by_one_with_the_state_before_each(pack):
    class Count(DatasetIterator):
        def __init__(self):
            super().__init__()
            self.state = {"at": [0]}

        def __next__(self):
            i = self.state["at"][0]
            if i == 9:
                raise StopIteration
            self.state["at"][0] += 1  # its state is changed in place
            return {"x": np.arange(10 * i, 10 * i + 2)}

        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = state

    class Counted(IterDataset):
        def __iter__(self):
            return Count()

    ds = pack(Counted())
    expected = tokens(pack(stream(sequences(*[2] * 9))))
    it = iter(ds)
    states, rows = [json.dumps(it.get_state())], []
    for row in it:
        rows.append(row["x"].tolist())
        states.append(json.dumps(it.get_state()))
    assert rows == expected
    for position, state in enumerate(states):
        it.set_state(json.loads(state))
        assert tokens(it) == expected[position:]


@each_packing
def test_it_works_in_workers(pack):
    ds = pack(MapDataset.range(8).map(lambda i: {"x": np.full(2, i)}).to_iter_dataset())
    got = tokens(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    shares = [tokens(pack(MapDataset.range(8)[w::2].map(lambda i: {"x": np.full(2, i)}).to_iter_dataset())) for w in range(2)]
    assert got == [row for pair in zip(*shares, strict=True) for row in pair]


@each_packing
def test_an_error_in_a_worker_can_be_skipped(pack):
    def make(i):
        return {"x": np.arange(9) if i == 3 else np.full(2, i)} if pack is first_fit else {"x": "bad" if i == 3 else [i, i]}

    ds = pack(MapDataset.range(8).map(make).to_iter_dataset()).mp_prefetch(MultiprocessingOptions(num_workers=1))
    expected = tokens(pack(MapDataset.source([make(i) for i in range(8) if i != 3]).to_iter_dataset()))
    it = iter(ds)
    rows = []
    try:
        while True:
            try:
                rows.append(next(it)["x"].tolist())
            except ValueError:
                it.skip_failed()
            except StopIteration:
                break
    finally:
        it.close()
    assert rows == expected


# First and best fit


def test_the_state_says_more_rows_than_there_are():
    elements = sequences(3, 3, 3, 3)
    state = iter(first_fit(stream(elements), bins=4)).get_state()
    state = {**state, "next_row": 3, "counter": 3}
    it = iter(first_fit(stream(elements), bins=4))
    it.set_state(state)
    assert tokens(it) == [[30, 31, 32, 0, 0]]
    for bins in (1, 2, 3):
        it = iter(first_fit(stream(elements), bins=bins))
        it.set_state(state)
        for _ in range(2):
            with pytest.raises(StateIndexError, match=f"next_row.*3.*{bins} rows"):
                next(it)
            assert it.get_state() == state
    with pytest.raises(StateMismatchError, match="counter"):
        it.set_state({**state, "counter": 2})
    it.set_state({"parent": {"next_index": 4}, "next_row": 1, "counter": 1})
    with pytest.raises(StateIndexError):
        next(it)


def test_the_limit_holds_for_best_fit_of_sequences_without_tokens():
    elements = [{"x": np.zeros(0), "m": i} for i in range(5)]
    ds = BestFitPackIterDataset(
        stream(elements),
        length_struct={"x": 3},
        num_packing_bins=2,
        max_sequences_per_bin=2,
        meta_features=["m"],
        shuffle_bins=False,
    )
    assert [row["m"] for row in ds] == [[0, 1], [2, 3], [4]]


def test_shuffle_is_that_of_the_rows_before():
    elements = sequences(*[5] * 7)
    ds = first_fit(stream(elements), bins=3, shuffle_bins=True, seed=11)
    order = [
        *np.random.default_rng(11).permuted(range(3)),
        *(3 + np.random.default_rng(14).permuted(range(3))),
        6,
    ]
    assert [row["x"][0] // 10 for row in ds] == order


def test_rows_are_grouped():
    elements = [{"x": np.full(3, v)} for v in (7, 2, 5, 2)]
    ds = first_fit(stream(elements), length=3, bins=4, shuffle_bins=True, shuffle_bins_group_by_feature="x")
    assert [row["x"][0] for row in ds] == [2, 2, 5, 7]


def test_nested_meta_features():
    elements = [{"x": [1, 2], "m": {"a": [i], "b": {"c": i}}, "k": {"any": i}} for i in range(2)]
    ds = first_fit(
        stream(elements),
        length_struct={"x": 4, "m": {"a": 3, "b": {"c": 2}}},
        meta_features=("m", "k"),
        padding_struct={"m": {"a": 9}},
    )
    (row,) = ds
    assert row["m"]["a"].tolist() == [0, 1, 9] and row["m"]["b"]["c"].tolist() == [0, 1]
    assert row["k"] == [{"any": 0}, {"any": 1}]
    assert sorted(row) == ["k", "m", "x", "x_positions", "x_segment_ids"]


def test_the_dtype_is_that_of_the_first_sequence_of_the_bins():
    elements = [{"x": np.zeros(3, t)} for t in (np.int8, np.float32, np.int64, np.int8)]
    assert [row["x"].dtype for row in first_fit(stream(elements), length=3, bins=1)] == [np.int8, np.float32, np.int64, np.int8]


def test_packed_batch_size():
    elements = [{"x": np.arange(3), "y": np.ones((2, 3), np.float32), "s": 1}] * 3
    it = iter(first_fit(stream(elements), length_struct={"x": 8, "y": 5, "s": 4}, meta_features=["s"]))
    with pytest.raises(ValueError, match="next"):
        it.get_packed_batch_size_bytes()
    next(it)
    assert it.get_packed_batch_size_bytes() == 632


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_packing_bins": 0}, ValueError, "num_packing_bins"),
        ({"num_packing_bins": 1.5}, TypeError, "num_packing_bins"),
        ({"max_sequences_per_bin": 0}, ValueError, "max_sequences_per_bin must be a positive integer, got 0"),
        ({"seed": -1}, ValueError, "seed"),
        ({"shuffle_bins_group_by_feature": "y"}, ValueError, "group by"),
        ({"shuffle_bins_group_by_feature": "a", "length_struct": {"x": {"a": 4}}}, ValueError, "not nested"),
        ({"length_struct": {"x": -1}}, ValueError, "'x'"),
    ],
)
def test_bad_arguments_of_bins(arguments, error, match):
    for cls in (FirstFitPackIterDataset, BestFitPackIterDataset):
        with pytest.raises(error, match=match):
            cls(stream([]), **{"length_struct": {"x": 4}, "num_packing_bins": 2} | arguments)


def test_arguments_are_not_shared():
    lengths = {"x": 3}
    ds = first_fit(stream(sequences(3)), length_struct=lengths)
    lengths["x"] = 1
    assert tokens(ds) == [[0, 1, 2]]


# Concat then split


def test_grains_states_restore_with_tuples_and_lists():
    elements = sequences(3, 3, 3, 3)
    for empty, cut in (((-1, -1), (1, 3)), ([-1, -1], [1, 3])):
        it = iter(concat(stream(elements), 4))
        for slices, at, rest in [(empty, 0, [[0, 1, 2, 10], [11, 12, 20, 21]]), (cut, 1, [[11, 12, 20, 21], [22, 30, 31, 32]])]:
            it.set_state(
                {
                    "parent_state": {"next_index": at},
                    "remainder_slices": {"x": slices},
                    "elements_from_buffer_after_checkpoint": 0,
                }
            )
            assert tokens(it)[:2] == rest


def state(at=0, slices=(-1, -1), count=0, feature="x"):
    return {
        "parent_state": {"next_index": at},
        "remainder_slices": {feature: list(slices)},
        "elements_from_buffer_after_checkpoint": count,
    }


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (state(feature="y"), StateMismatchError),
        (state(slices=(-1, 2)), StateMismatchError),
        (state(slices=(2, 1)), StateMismatchError),
        (state(slices=(1, 2, 3)), StateMismatchError),
        (state(slices=(0.0, 1.0)), StateMismatchError),
        ({**state(), "remainder_slices": {"x": [-1, -1], "y": [-1, -1]}}, StateMismatchError),
    ],
)
def test_states_that_cannot_be(wrong, error):
    it = iter(concat(stream(sequences(3, 3))))
    before = it.get_state()
    with pytest.raises(error):
        it.set_state(wrong)
    assert it.get_state() == before


@pytest.mark.parametrize("wrong", [state(1, (1, 9)), state(2, (1, 3)), state(0, (-1, -1), 5)])
def test_states_that_turn_out_not_to_fit(wrong):
    it = iter(concat(stream(sequences(3, 3))))
    it.set_state(wrong)
    for _ in range(2):
        with pytest.raises(StateMismatchError):
            next(it)
        assert it.get_state() == wrong
    with pytest.raises(StateMismatchError):
        it.skip_failed()
    it.set_state(state())
    assert tokens(it) == [[0, 1, 2, 10, 11], [12, 0, 0, 0, 0]]


def test_features_are_cut_where_each_of_them_is():
    """Grain repeats tokens of ``b``, and never ends."""
    elements = [{"a": np.arange(2), "b": np.arange(2)}, {"a": np.arange(8), "b": np.arange(5)}]
    rows = list(concat(stream(elements), length_struct={"a": 4, "b": 2}))
    for feature in "ab":
        got = np.concatenate([row[feature][row[f"{feature}_segment_ids"] > 0] for row in rows])
        assert got.tolist() == np.concatenate([element[feature] for element in elements]).tolist()


def test_long_lists_are_converted_once():
    class Counting(list):
        num_conversions = 0

        def __array__(self, dtype=None, copy=None):
            Counting.num_conversions += 1
            return np.array(list(self), dtype)

    ds = concat(stream([{"x": Counting(range(100))}]), 10)
    assert [x for row in tokens(ds) for x in row] == list(range(100))
    assert Counting.num_conversions == 1


def test_a_meta_feature_that_limits_is_logged_once(caplog):
    elements = [{"x": np.arange(2), "m": np.arange(3)}] * 4
    with caplog.at_level(logging.ERROR, "gristmill"):
        rows = list(concat(stream(elements), length_struct={"x": 9, "m": 5}, meta_features=["m"]))
    assert len(rows) == 4
    assert [record.getMessage() for record in caplog.records if "'m'" in record.getMessage()] == [
        "meta feature 'm' limits how much is packed into a row: consider more than 5 cells for it in length_struct"
    ]


BOS = BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"length_struct": {}}, ValueError, "length_struct"),
        ({"length_struct": 3}, TypeError, "length_struct"),
        ({"length_struct": {"x": 0}}, ValueError, "'x'"),
        ({"length_struct": {"x": 3, "x_positions": 3}}, ValueError, "named"),
        ({"bos_token_id": 1}, ValueError, "DO_NOTHING"),
        ({"bos_features": ["x"]}, ValueError, "DO_NOTHING"),
        ({"bos_handling": BOS, "bos_features": ["x"]}, ValueError, "bos_token_id"),
        ({"bos_handling": 2}, TypeError, "bos_handling"),
        ({"bos_handling": BOS, "bos_token_id": 1.5}, TypeError, "bos_token_id"),
        ({"bos_handling": BOS, "bos_token_id": 1, "bos_features": ["x"], "meta_features": ["x"]}, ValueError, "as well"),
        ({"bos_handling": BOS, "bos_token_id": 1, "bos_features": ["y"]}, ValueError, "bos_features.*'y'"),
        ({"meta_features": ["y"]}, ValueError, "meta_features.*'y'"),
    ],
)
def test_bad_arguments_of_concat_then_split(arguments, error, match):
    with pytest.raises(error, match=match):
        concat(stream([]), **arguments)


# Element specs


def described(spec):
    parent = stream([])

    class Described(IterDataset):
        _element_spec = spec

        def __iter__(self):
            return iter(parent)

    return Described()


def test_element_specs():
    spec = {
        "x": ShapeDtypeStruct((None, 2), np.float32),
        "s": ShapeDtypeStruct((), np.int64),
        "m": {"a": SimpleNamespace(shape=(3,), dtype="i4")},
    }
    numbers = ShapeDtypeStruct((6,), np.int32)
    row = {"x": ShapeDtypeStruct((6, 2), np.float32), "x_segment_ids": numbers, "x_positions": numbers}
    ds = first_fit(described(spec), length_struct={"x": 6, "m": {"a": 4}, "s": 2}, meta_features=["m", "s"])
    assert get_element_spec(ds) == {**row, "m": {"a": ShapeDtypeStruct((4,), "i4")}, "s": ShapeDtypeStruct((2,), np.int64)}
    assert get_element_spec(
        concat(described({"x": spec["x"], "s": spec["s"]}), length_struct={"x": 6, "s": 2}, meta_features=["s"])
    ) == {
        **row,
        "s": ShapeDtypeStruct((2,), np.int64),
    }
    with pytest.raises(NotImplementedError, match="'k'"):
        get_element_spec(first_fit(described(spec), meta_features=["k"]))
