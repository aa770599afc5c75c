"""Random map pipelines deliver what the naive list model says, and the shares of workers are parts
of the whole.
"""

import itertools

import cloudpickle
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from list_model import FAILED, MapModel, build, map_steps
from stream_model import WHOLE, Endless, frozen, outcomes, trees
from stream_model import build as build_tree

from gristmill.core.sharding import ShardOptions, even_split
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.slicing import slice_pipeline

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*takes every n-th element"),
    pytest.mark.filterwarnings("ignore:.*takes a part of shuffled elements"),
]

LIMIT = 30  # elements that are looked at
some = settings(max_examples=50, deadline=None)


def run_share(ds, index, count):
    it = iter(ds)
    it._ctx.numbers = Numbers(index, count)
    return frozen(list(itertools.islice(it, LIMIT)))


@some
@given(trees, st.integers(1, 5))
def test_shares_of_trees(tree, count):
    try:
        expected = [
            tuple(itertools.islice(outcomes(tree, WHOLE.of_thread(i, count)), LIMIT))
            for i in range(count)
        ]
    except Endless:
        assume(False)
    assume(all(FAILED not in share for share in expected))
    ds = build_tree(tree)
    nodes = list(ancestors(ds))
    attributes = [dict(vars(node)) for node in nodes]
    shares = [slice_pipeline(ds, i, count) for i in range(count)]
    assert all(vars(node) == before for node, before in zip(nodes, attributes, strict=True))
    for i, share in enumerate(shares):
        for sent in (share, cloudpickle.loads(cloudpickle.dumps(share))):
            assert run_share(sent, i, count) == expected[i]


OF_ITS_OWN = (
    "map",
    "map_with_index",
    "random_map",
    "remove",
    "filter",
    "seed",
    "shuffle",
    "repeat",
    "batch",
)


@some
@given(st.integers(0, 14), map_steps, st.integers(2, 5))
def test_a_part_of_the_source_is_like_a_source_of_its_own(length, steps, count):
    steps = [step for step in steps if step[0] in OF_ITS_OWN]
    steps = [*MapModel(length, steps).steps[1:], ("to_iter", (0, 0), True)]
    ds = build([("range", length), *steps])
    for i in range(count):
        part = build([("range", *even_split(length, ShardOptions(i, count))), *steps])
        assert run_share(slice_pipeline(ds, i, count, sequential=True), 0, 1) == run_share(
            part, 0, 1
        )


@settings(max_examples=80, deadline=None)
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
    assert list(ds._gm_items(range(n))) == expected
    assert [ds[i] for i in range(n)] == expected
    near = st.integers(-3 * n, 4 * n)
    far = st.integers(-(2**66), 2**66)
    indices = data.draw(st.lists(near | far, min_size=1, max_size=8))
    assert list(ds._gm_items(indices)) == [ds[i] for i in indices] == [model[i] for i in indices]
    assert list(ds._gm_items(np.array(indices, dtype=object))) == [model[i] for i in indices]
    start, stop = data.draw(near), data.draw(near)
    if start != stop:
        block = range(start, stop, 1 if start < stop else -1)
        assert (
            list(ds._gm_items(block))
            == list(ds._gm_items(np.array(block)))
            == [model[i] for i in block]
        )
