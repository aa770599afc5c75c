"""Stages that collect elements until an output can be made: chained at random, restored anywhere,
with elements that fail.

A stage upstream drops elements as it likes: that is in no position, so those that collect must
record it.
"""

import itertools
import json
import random
from functools import partial

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing
from dropping import DroppingIterDataset
from interrupting import interrupted

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, Schedule
from gristmill import experimental as gx


# Elements are sequences of tokens that are different; each stage makes others of them.
def bins(ds, length, num_bins=3):
    packed = gx.FirstFitPackIterDataset(
        ds.map(lambda x: {"x": x}), length_struct={"x": 2 * length}, num_packing_bins=num_bins
    )
    return packed.map(lambda row: row["x"][row["x_segment_ids"] > 0]), 2 * length


def joined(ds, length, *, splits):
    rows = gx.ConcatThenSplitIterDataset(
        ds.map(lambda x: {"x": x}), length_struct={"x": length}, split_full_length_features=splits
    )
    return rows.map(lambda row: row["x"][row["x_segment_ids"] > 0]), length


def buckets(ds, length, sizes=(3, 2), drop_remainder=False):
    options = {"batch_sizes": sizes, "pad_value": -1, "drop_remainder": drop_remainder}
    batches = ds.bucket_batch(len, [max(1, length // 2), max(2, length)], **options)
    return batches.map(lambda batch: batch[batch >= 0]), max(sizes) * length


STAGES = {
    "bins": bins,
    "one bin": partial(bins, num_bins=1),
    "many bins": partial(bins, num_bins=20),
    "joined": partial(joined, splits=True),
    "joined, whole": partial(joined, splits=False),
    "buckets": buckets,
    "large buckets": partial(buckets, sizes=(6, 9)),
    "whole buckets": partial(buckets, drop_remainder=True),
    "filter": lambda ds, length: (ds.filter(lambda x: x[0] % 5), length),
    "map": lambda ds, length: (ds.map(np.copy), length),
    "map_with_index": lambda ds, length: (ds.map_with_index(lambda i, x: x), length),
    "limit": lambda ds, length: (ds.limit(40), length),
    "window": lambda ds, length: (ds.window_shuffle(9, seed=length), length),
    "large window": lambda ds, length: (ds.window_shuffle(40, seed=5), length),
    "rebatch": lambda ds, length: (ds.rebatch(5), max(5, length)),
    "flat_map": lambda ds, length: (
        ds.flat_map(lambda x: [x[:1], x[1:2], x[2:]][: len(x)]),
        length,
    ),
}
COLLECTING = [*STAGES][:8]
MIDDLE = [*STAGES, "drop"]
STAGES["cache"] = lambda ds, length: (ds.cache(copy_elements=True).repeat(2), length)
REFILLED = [*COLLECTING, "window", "large window", "rebatch", "flat_map", "cache"]


def sequence(i):
    return np.arange(10 * i, 10 * i + 1 + i % 3) + 1


def chain(names, decides, fails=lambda i: i):
    """The stages one after the other; those that drop elements ask one of ``decides`` each."""
    decides = iter(decides)
    ds, length = MapDataset.range(70).map(lambda i: sequence(fails(i))).to_iter_dataset(DIRECT), 3
    for name in names:
        if name == "drop":
            ds = DroppingIterDataset(ds, next(decides))
        else:
            ds, length = STAGES[name](ds, length)
    return ds


class Decisions:
    """Decides at random, and knows what was decided last."""

    def __init__(self, rng):
        self.rng, self.last = rng, {}

    def __call__(self, x):
        x = tuple(x.tolist())
        self.last[x] = self.rng.random() < 0.3
        return self.last[x]

    def again(self, x):
        return self.last[tuple(x.tolist())]


@pytest.mark.parametrize("seed", range(60))
def test_a_restore_and_an_error_change_nothing(seed):
    rng = random.Random(seed)
    names = ["drop", *rng.choices(MIDDLE, k=rng.randrange(1, 4)), rng.choice(REFILLED)]
    decisions = [Decisions(rng) for name in names if name == "drop"]
    failing = Failing(*rng.sample(range(70), 4), times=2)
    ds = chain(names, decisions, failing)
    it, found = iter(ds), []
    saved = [(json.dumps(it.get_state()), 0)]
    num_restores = 15
    while True:
        try:
            taken = it._gm_take(rng.choice([1, 1, 1, 5]))
        except Boom:
            assert it.get_state() == json.loads(saved[-1][0])
            continue
        if not taken:
            break
        found += [x.tolist() for x in taken]
        saved.append((json.dumps(it.get_state()), len(found)))
        if num_restores and rng.random() < 0.3:
            num_restores -= 1
            state, num = rng.choice(saved[-5:])
            it = it if rng.random() < 0.3 else iter(ds)
            it.set_state(json.loads(state))
            del found[num:]
            saved = [x for x in saved if x[1] <= num]
    assert found == [x.tolist() for x in chain(names, [d.again for d in decisions])], names


@pytest.mark.parametrize("seed", range(40))
def test_skipped_elements_are_left_out_wherever_it_continues(seed):
    rng = random.Random(seed)
    name = rng.choice(COLLECTING)
    names = [
        "drop",
        *rng.choices(["map", "filter", "drop", "map_with_index"], k=rng.randrange(3)),
        name,
    ]
    decisions = [Decisions(rng) for name in names if name == "drop"]
    bad = rng.sample(range(70), 5)
    ds = chain(names, decisions, Failing(*bad))
    it, found = iter(ds), []
    while True:
        try:
            found.append(next(it).tolist())
        except Boom:
            it.skip_failed()
        except StopIteration:
            break
        if rng.random() < 0.3:
            state, it = json.dumps(it.get_state()), rng.choice([it, iter(ds)])
            it.set_state(json.loads(state))
    tokens = [token for x in found for token in x]
    assert not {token for i in bad for token in sequence(i).tolist()} & {*tokens}
    left = {x for d in decisions for x, drops in d.last.items() if drops}
    kept = [x for x in decisions[0].last if x not in left and ("filter" not in names or x[0] % 5)]
    if name != "whole buckets":
        assert sorted(tokens) == sorted([token for x in kept for token in x]), names


@pytest.mark.parametrize("seed", range(30))
def test_a_held_element_that_fails_can_be_skipped(seed):
    rng = random.Random(seed)
    names = ["drop", *rng.choices(["map", "filter", "drop"], k=rng.randrange(3)), "large buckets"]
    decisions = [Decisions(rng) for name in names if name == "drop"]
    it, found = iter(chain(names, decisions)), []
    for _ in range(rng.randrange(1, 5)):
        found.append(next(it).tolist())
    state = json.loads(json.dumps(it.get_state()))
    first = state["parent"]["next_index"]
    bad = [i for i in range(first, 70) if rng.random() < 0.2]
    ds = chain(names, decisions, Failing(*bad))
    it = iter(ds)
    it.set_state(state)
    while True:
        try:
            found.append(next(it).tolist())
        except Boom:
            it.skip_failed()
            state, it = json.dumps(it.get_state()), rng.choice([it, iter(ds)])
            it.set_state(json.loads(state))
        except StopIteration:
            break
    tokens = [token for x in found for token in x]
    left = {x for d in decisions for x, drops in d.last.items() if drops}
    kept = {
        token
        for x in decisions[0].last
        if x not in left and ("filter" not in names or x[0] % 5)
        for token in x
    }
    assert len({*tokens}) == len(tokens)
    assert kept - {*tokens} <= {token for i in bad for token in sequence(i).tolist()}


def test_the_first_element_of_a_row_can_be_skipped():
    elements = [{"x": np.arange(10 * i, 10 * i + 2 + (i == 2))} for i in range(8)]
    # is cut, and what is left cannot hold the token
    elements[3] = {"x": np.arange(2, dtype=np.int8)}
    bos = {
        "bos_handling": gx.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
        "bos_features": ["x"],
        "bos_token_id": 300,
    }
    ds = gx.ConcatThenSplitIterDataset(
        MapDataset.source(elements).to_iter_dataset(DIRECT), length_struct={"x": 4}, **bos
    )
    it = iter(ds)
    rows = [next(it)["x"].tolist() for _ in range(2)]
    with pytest.raises(ValueError, match="cannot hold"):
        next(it)
    it.skip_failed()
    again = iter(ds)
    again.set_state(it.get_state())
    rest = [row["x"].tolist() for row in it]
    assert rows + rest == [
        [300, 1, 300, 11],
        [300, 21, 22, 300],
        [300, 41, 300, 51],
        [300, 61, 300, 71],
    ]
    assert [row["x"].tolist() for row in again] == rest


def numbers(start, stop, options=DIRECT):
    return MapDataset.range(start, stop).to_iter_dataset(options)


PARTS = {"a": numbers(0, 4), "b": numbers(100, 105)}
LATER = Schedule({0: {"a": 1}, 2: {"a": 1, "b": 2}})
STREAMS = {
    "windows of items": lambda: (
        numbers(0, 11)
        .window_shuffle(4, seed=1)
        .flat_map(lambda x: [x] * (x % 3))
        .window_shuffle(7, seed=3)
    ),
    "windows of batches": lambda: (
        numbers(0, 11).batch(3).rebatch(5).flat_map(list).window_shuffle(7, seed=3)
    ),
    "limited windows of batches": lambda: (
        numbers(0, 11)
        .batch(5)
        .rebatch(2, drop_remainder=True)
        .flat_map(list)
        .window_shuffle(4, seed=1)
        .limit(50)
    ),
    "cache": lambda: (
        numbers(0, 11).batch(4, batch_fn=list).flat_map(list).cache(copy_elements=True).repeat(2)
    ),
    "pattern": lambda: IterDataset.mix(PARTS, {"a": 2, "b": 1}),
    "list": lambda: IterDataset.mix([*PARTS.values()]),
    "all": lambda: IterDataset.mix(PARTS, LATER, stop="all"),
    "never": lambda: IterDataset.mix(PARTS, stop="never").limit(14),
    "lengths": lambda: IterDataset.mix(PARTS, by=lambda x: 1 + x % 3, stop="all"),
    "batches": lambda: IterDataset.mix(PARTS).batch(3, batch_fn=list),
    "windows of a mixture": lambda: IterDataset.mix(PARTS).window_shuffle(3, seed=1),
    "drawn ahead": lambda: IterDataset.mix([numbers(0, 9, None), numbers(9, 12, None)], [3, 1]),
    "in order": lambda: (
        numbers(0, 12)
        .filter(lambda x: x % 3)
        .map(str)
        .mp_prefetch(MultiprocessingOptions(2, executor="threads"), order="stream")
    ),
}
STREAMS |= {
    name: lambda name=name: STAGES[name](
        MapDataset.range(14).map(sequence).to_iter_dataset(DIRECT), 3
    )[0]
    for name in COLLECTING
}
ENGINE = "packing buckets groups rebatching choices stream elements read caching"
FILES = (
    *[f"engine/{name}.py" for name in ENGINE.split()],
    *[f"mixtures/{name}.py" for name in ("stream", "drawing", "draw_counts", "standing")],
    "ahead/draws.py",
    "stages/stream_order.py",
)


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_an_interrupt_at_any_line_loses_no_element(make):
    def plain(elements):
        return [np.asarray(x).tolist() for x in elements]

    expected, num_interrupts = plain(make()), 0
    for num in range(0, len(expected), 3):
        for number in itertools.count(num // 3 % 3, 3):
            with iter(make()) as it:
                found = [*itertools.islice(it, num)]
                was_interrupted = interrupted(
                    lambda it=it, found=found: found.append(next(it)), number, FILES
                )
                if number % 2:
                    it.set_state(it.get_state())
                assert plain([*found, *it]) == expected, (num, number)
            if not was_interrupted:
                break
            num_interrupts += 1
    assert num_interrupts > 10


@pytest.mark.parametrize("name", COLLECTING)
def test_failing_elements_are_not_read_again(name):
    reads, bad = [], {*range(10, 60, 2)}

    def read(i):
        reads.append(i)
        if i in bad:
            raise Boom(str(i))
        return i

    it = iter(
        STAGES[name](MapDataset.range(70).map(read).map(sequence).to_iter_dataset(DIRECT), 30)[0]
    )
    while True:
        try:
            next(it)
        except Boom:
            it.skip_failed()
        except StopIteration:
            break
    assert len(reads) < 150
