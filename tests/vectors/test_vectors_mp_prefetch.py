"""Grain's elements and states behind ``mp_prefetch``, bit for bit, with real worker processes."""

import json

import pytest
from vector_data import build, load, plain

from gristmill import MultiprocessingOptions

ROWS = load("ds_mp_prefetch")["rows"]


def decided(row):
    """The elements as DECISIONS 7 has them: worker ``i`` of ``n`` numbers its elements ``i``, ``i + n``, …; Grain 0, 1, …."""
    if "map_with_index" not in row["pipeline"]:
        return row["elements"]
    assert row["pipeline"] == "range(5).to_iter.map_with_index((i,x))"
    assert row["elements"] == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]]
    return [[x, x] for _, x in row["elements"]]


def states(row):
    """All recorded states, by the number of elements before them; "stop" is after the end."""
    recorded = dict(enumerate(row["states"][:-1])) if "states" in row else {3: row["state_after_3"]}
    return {**recorded, "stop": row["states"][-1] if "states" in row else row["state_after_stop"]}


def dataset(row):
    return build(row["pipeline"]).mp_prefetch(
        MultiprocessingOptions(row["num_workers"]), sequential_slice=row.get("sequential_slice", False)
    )


def test_what_the_rows_hold():
    assert len(ROWS) == 20
    assert [row["pipeline"] for row in ROWS if decided(row) != row["elements"]] == ["range(5).to_iter.map_with_index((i,x))"]
    assert set().union(*ROWS) == {
        "pipeline", "num_workers", "elements", "states", "state_after_3", "state_after_stop", "sequential_slice"
    }  # fmt: skip


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_elements_states_and_restoring(number):
    row = ROWS[number]
    ds, elements, recorded = dataset(row), decided(row), states(row)
    it = iter(ds)
    taken = {}
    for k in range(len(elements) + 1):
        taken[k] = json.loads(json.dumps(it.get_state()))
        if k in recorded:
            assert taken[k] == recorded[k]
        if k < len(elements):
            assert plain(next(it)) == elements[k]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
        assert it.get_state() == recorded["stop"]
    for k, state in recorded.items():
        rest = [] if k == "stop" else elements[k:]
        it.set_state(state)
        assert it.get_state() == state
        assert [plain(x) for x in it] == rest
        assert it.get_state() == recorded["stop"]
    for k in reversed(range(len(elements))):  # also where Grain's states were not recorded
        it.set_state(taken[k])
        assert plain(next(it)) == elements[k]
        assert it.get_state() == taken[k + 1]
    for k, state in recorded.items():
        del it  # a fresh iterator takes over its processes
        it = iter(ds)
        it.set_state(state)
        assert it.get_state() == state
        assert [plain(x) for x in it] == ([] if k == "stop" else elements[k:])
        assert it.get_state() == recorded["stop"]
