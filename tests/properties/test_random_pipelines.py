"""Any random map pipeline delivers what the naive list model says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from list_model import MapModel, build, map_steps

LIMIT = 40  # elements that are looked at


@settings(max_examples=200, deadline=None)
@given(length=st.integers(0, 12), steps=map_steps, data=st.data())
def test_map_pipelines(length, steps, data):
    model = MapModel(length, steps)
    ds = build(model.steps)
    assert len(ds) == model.length
    if not model.length:
        with pytest.raises(IndexError):
            ds[data.draw(st.integers(-3, 3))]
        return
    n = min(model.length, LIMIT)
    expected = [model[i] for i in range(n)]
    assert ds._block(range(n)) == expected
    assert [ds[i] for i in range(n)] == expected
    near = st.integers(-3 * n, 4 * n)
    far = st.integers(-(2**66), 2**66)
    indices = data.draw(st.lists(near | far, min_size=1, max_size=8))
    assert ds._block(indices) == [ds[i] for i in indices] == [model[i] for i in indices]
    assert ds._block(np.array(indices, dtype=object)) == [model[i] for i in indices]
    start, stop = data.draw(near), data.draw(near)
    if start != stop:
        block = range(start, stop, 1 if start < stop else -1)
        assert ds._block(block) == ds._block(np.array(block)) == [model[i] for i in block]
