"""Any random pipeline delivers what the naive list model says."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from list_model import MapModel, StreamModel, build, finite, iter_steps, map_steps, read_options, read_with

LIMIT = 40  # elements of a stream that are looked at


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


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(0, 14),
    before=map_steps,
    options=read_options,
    allow_nones=st.booleans(),
    after=iter_steps,
    seed=st.integers(0, 1000),
)
def test_streams(length, before, options, allow_nones, after, seed):
    model = StreamModel(finite(length, before, LIMIT), LIMIT, allow_nones, after)
    ds = build(read_with(model.steps, options, allow_nones))
    it = iter(ds)
    assert it.get_state() == model.states[0]
    for k, x in enumerate(model.outcomes):
        assert next(it) == x
        assert it.get_state() == model.states[k + 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
        assert it.get_state() == model.end

    rng = random.Random(seed)
    blocks, position = iter(ds), 0
    while position < len(model.outcomes):
        size = min(rng.randint(1, 7), len(model.outcomes) - position)
        assert blocks._take(size) == model.outcomes[position : position + size]
        position += size
        assert blocks.get_state() == model.states[position]

    k = rng.randint(0, len(model.outcomes))
    it.set_state(model.states[k])
    assert list(it) == model.outcomes[k:]
    assert it.get_state() == model.end
