"""Lanes of mixtures: the proportions of the whole in every stretch of every lane, each record in
one lane.
"""

import json
import random
import warnings
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, Schedule, ShardOptions
from gristmill.checkpoint import merge_states
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.slicing import slice_pipeline
from gristmill.experimental import ElasticIterator

NAMES = "abcd"


def components(rng, sizes, make=lambda ds: ds):
    """Integers of a thousand of its own for each component."""
    return {
        name: make(MapDataset.range(1000 * i, 1000 * i + n))
        for i, (name, n) in enumerate(zip(NAMES, sizes, strict=False))
    }


STAGES = {
    "map": lambda ds: ds.map(lambda x: x),
    "filter": lambda ds: ds.filter(lambda x: True),
    "indexed": lambda ds: ds.map_with_index(lambda i, x: x),
    "random": lambda ds: ds.seed(3).random_map(lambda x, rng: x),
}


def in_lanes(num_lanes, num_workers=0):
    return lambda ds: ds.mp_prefetch(
        MultiprocessingOptions(num_workers, num_lanes=num_lanes, executor="threads")
    )


def lanes_of(ds, num_lanes):
    lanes = []
    for i in range(num_lanes):
        it = iterate(slice_pipeline(ds, i, num_lanes, by_lanes=True))
        it._ctx.belong_to(i, num_lanes, IteratorContext())
        lanes.append(it)
    return lanes


def check_proportions(elements, weights, most):
    """Every prefix has each component as often as its weight says, off by less than ``most``."""
    total, counts = sum(weights), Counter()
    for n, x in enumerate(elements, 1):
        counts[x // 1000] += 1
        assert all(abs(counts[i] - n * w / total) < most for i, w in enumerate(weights)), (
            n,
            counts,
        )


@pytest.mark.parametrize("seed", range(12))
def test_every_lane_has_the_proportions_of_the_whole(seed):
    rng = random.Random(seed)
    num, num_lanes = rng.randint(2, 4), rng.randint(2, 9)
    weights = [rng.randint(1, 7) for _ in range(num)]
    stop = rng.choice(["first", "all"])
    sizes = [rng.randint(num_lanes, 90) for _ in range(num)]
    parts = components(rng, sizes, lambda ds: ds.shuffle(seed=seed) if rng.random() < 0.5 else ds)
    if rng.random() < 0.5:  # a mixture of mixtures
        parts["a"] = MapDataset.mix([parts["a"]], [1]).map(lambda x: x)
    ds = MapDataset.mix(parts, dict(zip(NAMES, weights, strict=False)), stop=stop)
    for name in rng.choices([*STAGES], k=rng.randint(0, 3)):
        ds = STAGES[name](ds)
    lanes = [[*it] for it in lanes_of(ds.to_iter_dataset(), num_lanes)]
    records = [int(x) for lane in lanes for x in lane]
    assert len(records) == len(set(records))
    if stop == "all":
        assert sorted(records) == sorted(
            1000 * i + j for i, n in enumerate(sizes) for j in range(n)
        )
    for number, lane in enumerate(lanes):
        # Under stop="all" the first component that ends changes the proportions of the others.
        shares = [len(range(number, n, num_lanes)) for n in sizes]
        num_certain = int(min(n * sum(weights) / w for n, w in zip(shares, weights, strict=True)))
        check_proportions(lane[:num_certain], weights, num)
        assert len(lane) >= num_certain


def test_batches_and_workers_have_the_proportions_of_the_whole():
    ds = MapDataset.mix(
        {name: part.repeat() for name, part in components(random, [50, 60]).items()}
    ).to_iter_dataset()
    for lanes in (
        in_lanes(4),
        in_lanes(4, 2),
        lambda ds: LocalWorkersIterDataset(ds, 2, num_lanes=4),
    ):
        with iter(lanes(ds)) as it:
            elements = [*islice(it, 400)]
        for lane in range(4):
            check_proportions(elements[lane::4], [1, 1], 1)
    for host in range(2):
        with iter(ds.global_batch(8, num_lanes=4, shard_options=ShardOptions(host, 2))) as it:
            for batch in islice(it, 20):
                assert [x // 1000 for x in batch] == [0, 1, 0, 1]
    batches = (
        MapDataset.mix([part.repeat() for part in components(random, [50, 60]).values()])
        .batch(4)
        .to_iter_dataset()
    )
    with iter(in_lanes(8)(batches)) as it:
        assert all([x // 1000 for x in batch] == [0, 1, 0, 1] for batch in islice(it, 100))


def test_a_function_gets_the_number_in_the_whole_stream():
    ds = MapDataset.mix([MapDataset.range(40), MapDataset.range(40)]).seed(1)
    numbered = ds.map_with_index(lambda i, x: i).to_iter_dataset()
    assert [*in_lanes(4)(numbered)] == [*range(80)]
    draws = [*in_lanes(4)(ds.random_map(lambda x, rng: int(rng.integers(2**60))).to_iter_dataset())]
    assert draws == [*ds.random_map(lambda x, rng: int(rng.integers(2**60))).to_iter_dataset()]
    repeated = ds.map_with_index(lambda i, x: i).repeat(2).to_iter_dataset()
    assert [*in_lanes(4)(repeated)] == [*range(160)]


def changes(elements):
    return next(n for n, x in enumerate(elements) if x == "b")


@pytest.mark.parametrize("num_lanes", [1, 2, 4, 8])
@pytest.mark.parametrize("by", [None, 3])
def test_positions_of_a_schedule_are_those_of_the_whole_stream(num_lanes, by):
    parts = {name: MapDataset.source([name]).repeat() for name in "ab"}
    schedule = Schedule({0: {"a": 1, "b": 0}, 99: {"a": 0, "b": 1}})
    if by is None:
        mixtures = [
            MapDataset.mix(parts, schedule).to_iter_dataset(),
            IterDataset.mix(parts, schedule),
        ]
    else:
        schedule = Schedule({0: {"a": 1, "b": 0}, 99: {"a": 0, "b": 1}})
        mixtures = [IterDataset.mix(parts, schedule, by=lambda x: by)]
    for ds in mixtures:
        whole = changes(ds)
        assert whole <= changes(in_lanes(num_lanes)(ds)) < whole + num_lanes
        with iter(ds.global_batch(8, num_lanes=num_lanes)) as it:
            assert changes(x for batch in it for x in batch) - whole in range(-8, 9)
    linear = Schedule.linear(
        {0: {"a": 1, "b": 0}, 10: {"a": 1, "b": 1}, 50: {"a": 0, "b": 1}}
    ).in_lane(4)
    assert linear == Schedule.linear(
        {0: {"a": 1, "b": 0}, 3: {"a": 1, "b": 1}, 13: {"a": 0, "b": 1}}
    )


def test_states_of_other_kinds_of_shares_are_refused():
    ds = MapDataset.mix([MapDataset.range(40), MapDataset.range(40)], [2, 1]).to_iter_dataset()
    lanes, workers = in_lanes(3)(ds), LocalWorkersIterDataset(ds, 3)
    it, expected = iter(lanes), [*lanes]
    assert [next(it) for _ in range(7)] == expected[:7]
    state = json.loads(json.dumps(it.get_state()))
    again = iter(in_lanes(3, 2)(ds))
    again.set_state(state)
    assert [*again] == expected[7:]
    of_workers = iter(workers)
    next(of_workers)
    with pytest.raises(
        StateMismatchError, match=r"every 3-th element.*num_workers=3 without num_lanes"
    ):
        it.set_state(of_workers.get_state())
    assert_raises(StateMismatchError, "taken with num_lanes=3", of_workers.set_state, state)
    batches = iter(ds.global_batch(6, num_lanes=3))
    next(batches)
    state = merge_states([batches.get_state()])
    again = iter(ds.global_batch(6, num_lanes=3))
    again.set_state(state)
    assert np.array_equal(next(again), next(batches))
    del state["mixed_in_lanes"]
    assert_raises(StateMismatchError, "every 3-th element", batches.set_state, state)


def test_a_warning_says_which_proportions_shares_get():
    half = MapDataset.mix(
        {name: part.repeat() for name, part in components(random, [50, 60]).items()}
    )
    stream = half.map(lambda x: x).to_iter_dataset().filter(lambda x: True)
    workers = MultiprocessingOptions(2)
    for make in (
        lambda: half[1::2],
        lambda: stream.batch(2).mp_prefetch(workers),
        lambda: stream.multithread_prefetch(4, 2),
        lambda: ElasticIterator(half, 4, ShardOptions(0, 2)),
        lambda: half.batch(3)[::2].to_iter_dataset().mp_prefetch(MultiprocessingOptions(2)),
    ):
        with pytest.warns(
            UserWarning, match=r"a 50.0%, b 50.0%.* (a|b) 100.0%|a (0|66.7|33.3)"
        ) as caught:
            make()
        assert caught[0].filename == __file__ and "num_lanes" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = half[5:90], half.shuffle(seed=1)[1::2], half.batch(4)[::2]
        stream.mp_prefetch(MultiprocessingOptions(3))  # 2 and 3 have no common factor
        stream.mp_prefetch(MultiprocessingOptions(2, num_lanes=4))
        stream.mp_prefetch(MultiprocessingOptions(2), order="stream")
        IterDataset.mix([half.to_iter_dataset(), stream]).global_batch(4)
        IterDataset.mix([MapDataset.range(9), MapDataset.range(9)]).mp_prefetch(workers)
