"""The shares of workers together are the whole pipeline."""

import itertools
from collections import Counter

import cloudpickle
from hypothesis import given, settings
from hypothesis import strategies as st
from list_model import MapModel, StreamModel, build, finite, iter_steps, map_steps, read_options, read_with

from gristmill.core.sharding import ShardOptions, even_split
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.slicing import slice_pipeline

LIMIT = 30
lengths, counts = st.integers(0, 14), st.integers(1, 5)
some = settings(max_examples=120, deadline=None)


def run_share(ds, index, count):
    it = iter(ds)
    it._ctx.worker_index, it._ctx.worker_count = index, count
    return list(itertools.islice(it, LIMIT))


def only(steps, *names):
    return steps.map(lambda chosen: [step for step in chosen if step[0] in names])


@some
@given(lengths, map_steps, read_options, only(iter_steps, "map", "map_with_index", "random_map", "seed", "options"), counts)
def test_dense_pipelines_do_not_depend_on_the_number_of_workers(length, before, options, after, count):
    model = StreamModel(finite(length, before, LIMIT), LIMIT, True, after)
    ds = build(read_with(model.steps, options, True))
    nodes = list(ancestors(ds))
    attributes = [dict(vars(node)) for node in nodes]

    shares = [slice_pipeline(ds, i, count) for i in range(count)]
    assert all(vars(node) == before for node, before in zip(nodes, attributes, strict=True))
    columns = []
    for i, share in enumerate(shares):
        columns.append(run_share(share, i, count))
        assert run_share(cloudpickle.loads(cloudpickle.dumps(share)), i, count) == columns[-1]
    missing = object()
    rows = itertools.zip_longest(*columns, fillvalue=missing)
    assert [x for row in rows for x in row if x is not missing] == model.outcomes
    assert list(ds) == model.outcomes


@some
@given(lengths, map_steps, read_options, only(iter_steps, "map", "filter"), counts)
def test_dropping_pipelines_lose_and_repeat_nothing(length, before, options, after, count):
    model = StreamModel(finite(length, before, LIMIT), LIMIT, False, after)
    ds = build(read_with(model.steps, options, False))
    elements = [x for i in range(count) for x in run_share(slice_pipeline(ds, i, count), i, count)]
    assert Counter(elements) == Counter(model.outcomes)


OF_ITS_OWN = ("map", "map_with_index", "random_map", "remove", "filter", "seed", "shuffle", "repeat", "batch")


@some
@given(length=lengths, steps=only(map_steps, *OF_ITS_OWN), count=st.integers(2, 5))
def test_a_part_of_the_source_is_like_a_source_of_its_own(length, steps, count):
    steps = [*MapModel(length, steps).steps[1:], ("to_iter", (0, 0), True)]
    ds = build([("range", length), *steps])
    for i in range(count):
        part = build([("range", *even_split(length, ShardOptions(i, count))), *steps])
        assert run_share(slice_pipeline(ds, i, count, sequential=True), 0, 1) == run_share(part, 0, 1)
