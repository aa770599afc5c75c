"""Limit, repeat, cache, rebatch and ``batch_and_pad`` as Grain 0.2.18 does them."""

import copy
import json

import numpy as np
import pytest
from vector_data import load

from gristmill import MapDataset, ReadOptions
from gristmill.experimental import (
    CacheIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    batch_and_pad,
)

MISC = load("exp_misc")
REBATCH = load("exp_rebatch")["cases"]


def numbers(n):
    return MapDataset.range(n).to_iter_dataset()


STREAMS = {
    "limit": lambda: LimitIterDataset(numbers(5), 3),
    "repeat": lambda: RepeatIterDataset(numbers(3), 2),
    "cache": lambda: CacheIterDataset(numbers(3)),
    "repeat_cache": lambda: RepeatIterDataset(CacheIterDataset(numbers(3)), 2),
}


def check(ds, output, states, state_after_end=None):
    """Elements and all states, and from each state, whatever the iterator did before, the elements that followed."""
    it = iter(ds)
    assert it.get_state() == states[0]
    for element, state in zip(output, states[1:], strict=True):
        assert plain(next(it)) == element
        assert it.get_state() == state
    with pytest.raises(StopIteration):
        next(it)
    if state_after_end is not None:
        assert it.get_state() == state_after_end
    for position, state in enumerate([*states, it.get_state()]):
        for again in (iter(ds), it):
            given = copy.deepcopy(state)
            again.set_state(given)
            assert again.get_state() == state
            assert [plain(x) for x in again] == output[position:]
            assert given == state


def plain(element):
    if isinstance(element, dict):
        return {key: value.tolist() for key, value in element.items()}
    return element


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name):
    row = MISC[name]
    check(STREAMS[name](), row["output"], row["states"], row["state_after_end"])


def batches(sizes):
    stops = np.cumsum(sizes, dtype=int)
    rows = [np.arange(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
    return [{"a": a, "b": 2 * a[:, None] + np.array([0, 1])} for a in rows]


@pytest.mark.parametrize("case", REBATCH, ids=str)
def test_rebatch(case):
    parent = MapDataset.source(batches(case["parent_batch_sizes"])).to_iter_dataset(ReadOptions(num_threads=0))
    check(RebatchIterDataset(parent, case["batch_size"], case["drop_remainder"]), case["output"], case["states"])


def test_how_many_cases_there_are():
    assert (len(REBATCH), len(MISC["batch_and_pad"]["cases"])) == (11, 7)


@pytest.mark.parametrize("case", MISC["batch_and_pad"]["cases"], ids=json.dumps)
def test_batch_and_pad(case):
    values, batch_size, pad_value, result, dtype = case
    values = [np.float32(x) for x in values] if dtype == "float32" else values
    if pad_value == 2.7:  # which Grain cuts to 2
        with pytest.raises(ValueError, match=r"dtype int64 can hold, got 2\.7"):
            batch_and_pad(values, batch_size=batch_size, pad_value=pad_value)
        return
    batch = batch_and_pad(values, batch_size=batch_size, pad_value=pad_value)
    assert (batch.dtype, batch.tolist()) == (dtype, result)
