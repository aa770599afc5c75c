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
from interrupting import interrupted

from gristmill import IterDataset, MapDataset
from gristmill import experimental as gx
from gristmill.dataset.engine.choices import NEW, USUAL
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.stream import Stream, pass_outputs

END = object()
ENGINE = tuple(
    f"engine/{name}.py" for name in ("packing", "buckets", "choices", "stream", "elements", "read")
)


class Dropping(Stream):
    """Drops about a third of the elements; ``decided`` has what was decided last about each."""

    makes_choices = True

    def __init__(self, stage, parent, decide):
        super().__init__(stage, parent)
        self.decide = decide

    def _run(self, cell):
        run, choices = self.parent.run(cell), cell.choices
        while True:
            known = NEW if choices is None else choices.ask(self.key)
            if known is not NEW and known is not USUAL:
                pass_outputs(self.parent, cell, 1)  # whether it fails now or not
                run = self.parent.run(cell)
                choices.note(self.key, known)
                continue
            if (x := next(run, END)) is END:
                if choices is not None:
                    choices.retract(self.key)
                return
            if known is USUAL or not self.decide(tuple(x.tolist())):
                yield x
            elif choices is not None:
                choices.note(self.key, "dropped")


class DroppingIterDataset(IterDataset):
    def __init__(self, parent, decide):
        super().__init__(parent)
        self.decide = decide

    def __iter__(self):
        return open_stage(self, partial(Dropping, decide=self.decide))


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
    "flat_map": lambda ds, length: (
        ds.flat_map(lambda x: [x[:1], x[1:2], x[2:]][: len(x)]),
        length,
    ),
}
COLLECTING = [*STAGES][:8]


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
        self.last[x] = self.rng.random() < 0.3
        return self.last[x]


def random_names(rng):
    return ["drop", *rng.choices([*STAGES, "drop"], k=rng.randrange(1, 4)), rng.choice(COLLECTING)]


@pytest.mark.parametrize("seed", range(60))
def test_after_a_restore_or_an_error_everything_is_as_in_the_first_run(seed):
    rng = random.Random(seed)
    names = random_names(rng)
    decisions = [Decisions(rng) for name in names if name == "drop"]
    failing = Failing(*rng.sample(range(70), 4), times=2)
    ds = chain(names, decisions, failing)
    it, found = iter(ds), []
    saved = [(json.dumps(it.get_state()), 0)]
    num_restores = 15
    while True:
        try:
            x = next(it)
        except Boom:
            assert it.get_state() == json.loads(saved[-1][0])
            continue
        except StopIteration:
            break
        found.append(x.tolist())
        saved.append((json.dumps(it.get_state()), len(found)))
        if num_restores and rng.random() < 0.3:
            num_restores -= 1
            state, num = rng.choice(saved[-5:])
            it = it if rng.random() < 0.3 else iter(ds)
            it.set_state(json.loads(state))
            del found[num:]
            saved = [x for x in saved if x[1] <= num]
    assert found == [x.tolist() for x in chain(names, [d.last.__getitem__ for d in decisions])], (
        names
    )


@pytest.mark.parametrize("seed", range(60))
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
def test_a_held_element_that_fails_after_a_restore_can_be_skipped(seed):
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
    assert len({*tokens}) == len(tokens) and kept - {*tokens} <= {
        token for i in bad for token in sequence(i).tolist()
    }


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


@pytest.mark.parametrize("name", COLLECTING)
def test_an_interrupt_at_any_line_loses_no_element(name):
    ds, _ = STAGES[name](MapDataset.range(14).map(sequence).to_iter_dataset(DIRECT), 3)
    expected = [x.tolist() for x in ds]
    num_interrupts = 0
    for num in range(0, len(expected), 2):
        for number in itertools.count():
            it = iter(ds)
            found = [next(it).tolist() for _ in range(num)]
            was_interrupted = interrupted(
                lambda it=it, found=found: found.append(next(it).tolist()), number, ENGINE
            )
            assert [*found, *[x.tolist() for x in it]] == expected, number
            if not was_interrupted:
                break
            num_interrupts += 1
    assert num_interrupts > 50


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
