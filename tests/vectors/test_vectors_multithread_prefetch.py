"""Grain's elements and states behind ``mp_prefetch``, bit for bit, with threads in place of worker processes."""

import json

import pytest
from test_vectors_mp_prefetch import ROWS, decided, states
from vector_data import build, plain

from gristmill.experimental import multithread_prefetch


@pytest.mark.parametrize("buffer_size", [0, 1, 7])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['pipeline']} {row['num_workers']}")
def test_elements_states_and_restoring(row, buffer_size):
    ds = multithread_prefetch(build(row["pipeline"]), row["num_workers"], buffer_size, row.get("sequential_slice", False))
    elements, recorded = decided(row), states(row)
    it = iter(ds)
    for k, element in enumerate(elements):
        assert k not in recorded or json.loads(json.dumps(it.get_state())) == recorded[k]
        assert plain(next(it)) == element
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
        assert it.get_state() == recorded["stop"]
    for used in (it, iter(ds)):
        for k, state in recorded.items():
            used.set_state(state)
            assert used.get_state() == state
            assert [plain(x) for x in used] == ([] if k == "stop" else elements[k:])
            assert used.get_state() == recorded["stop"]
