"""Mixtures whose weights and components change while stages downstream hold elements: all come
once.
"""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest

import gristmill as grain
from gristmill import IterDataset, MapDataset

FIRST = {"a": 0, "b": 1000, "c": 2000}


def length(x):
    return 1 + (x * 7919) % 6


def row(x):
    return {"x": np.full(length(x), x + 1)}


def mixture(sizes, weights, stop="all", **options):
    parts = {
        c: MapDataset.range(FIRST[c], FIRST[c] + n).to_iter_dataset() for c, n in sizes.items()
    }
    return IterDataset.mix(parts, weights, stop=stop, **options).map(row)


STAGES = {
    "batch": lambda ds: ds.batch(1, batch_fn=lambda rows: rows[0]),
    "window": lambda ds: ds.window_shuffle(9, seed=1),
    "flat": lambda ds: ds.flat_map(
        lambda e: [{"x": e["x"][i : i + 2]} for i in range(0, len(e["x"]), 2)]
    ),
    "first": lambda ds: grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"x": 8}, num_packing_bins=3, shuffle_bins=False
    ),
    "best": lambda ds: grain.experimental.BestFitPackIterDataset(
        ds, length_struct={"x": 8}, num_packing_bins=3, shuffle_bins=False
    ),
    "cut": lambda ds: grain.experimental.ConcatThenSplitIterDataset(ds, length_struct={"x": 8}),
}
CHAINS = [
    ["window"],
    ["flat"],
    ["first"],
    ["best"],
    ["cut"],
    ["window", "window"],
    ["flat", "window"],
    ["first", "window"],
    ["window", "first"],
    ["best", "window"],
    ["cut", "window"],
    ["window", "flat", "first"],
    ["batch", "window"],
]


def tokens(rows):
    return Counter(
        int(v) - 1
        for r in rows
        for v in np.ravel(r["x"]["x"] if isinstance(r["x"], dict) else r["x"])
        if v
    )


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
@pytest.mark.parametrize("by", [None, 1], ids=["elements", "lengths"])
def test_all_tokens_come_once_whatever_changes_between_states(chain, by):
    rng = random.Random("-".join(chain))
    options = {} if by is None else {"by": length}
    for history in range(12):
        sizes = {"a": rng.randint(5, 40), "b": rng.randint(5, 40)}
        late = {"c": rng.randint(5, 30)}
        state, got = None, Counter()
        num_changes = rng.randint(0, 4)
        for change in range(num_changes + 1):
            if change == num_changes or rng.random() < 0.3:
                sizes = {**sizes, **late}
            weights = {c: rng.randint(1, 7) for c in sizes}
            ds = mixture(sizes, weights, **options)
            for name in chain:
                ds = STAGES[name](ds)
            it = iter(ds)
            if state is not None:
                it.set_state(json.loads(json.dumps(state)))
            num = 10**6 if change == num_changes else rng.choice([0, 1, 2, 5, 13, 100])
            got += tokens(itertools.islice(it, num))
            state = it.get_state()
        expected = Counter(
            {x: length(x) for c, n in sizes.items() for x in range(FIRST[c], FIRST[c] + n)}
        )
        assert got == expected, (chain, history, got - expected, expected - got)
