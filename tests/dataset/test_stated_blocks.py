"""Blocks with states: what is computed in a block cannot be told from what is computed singly."""

import pytest
from computing_ahead import Boom, Clock, Count, Failing, numbers

from gristmill import ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset
from gristmill.dataset.ahead import blocks as stated_blocks
from gristmill.dataset.ahead.blocks import StatedBlocks


class Sharing(Count, DatasetIterator):
    pass


class SharingDataset(IterDataset):
    def __iter__(self):
        return Sharing(40)


PIPELINES = {
    "one_to_one": numbers(40, fn=str),
    "read_ahead": numbers(40, fn=str, options=ReadOptions(2, 7)),
    "counting": numbers(40).map_with_index(lambda i, x: (i, x)),
    "dropping": numbers(40).filter(lambda x: x % 7 != 3 or x > 30),
    "dropping_and_counting": numbers(40).filter(lambda x: x % 7).map_with_index(lambda i, x: i),
    "batches": numbers(40).batch(3, batch_fn=list),
    "users": SharingDataset().map(str),
    "empty": numbers(0),
    "failing": numbers(40).filter(lambda x: x % 5).map(Failing(23)),
    "stopping": numbers(40, fn=Failing(23, error=StopIteration)),
}


def run(ds, n):
    it = iter(ds)
    blocks = StatedBlocks(it)
    elements, states, error = [], [], None
    while error is None:
        block, after, error = blocks.take(n)
        assert len(block) == len(after) <= n
        assert block or error is not None
        elements += block
        states += after
    return elements, states, error, it


@pytest.mark.parametrize("name", PIPELINES)
def test_block_size_is_not_observable(name, monkeypatch):
    monkeypatch.setattr(stated_blocks, "_BLOCK_SECONDS", 100.0)
    ds = PIPELINES[name]
    elements, states, error, _ = run(ds, 1)
    for n in (2, 3, 7, 39, 40, 41, 1000):
        got, after, other, it = run(ds, n)
        assert (got, after) == (elements, states)
        assert (type(other), other.args) == (type(error), error.args)
        if name == "failing":
            assert it.get_state() == states[-1]  # where the following attempt goes on
    expected = {"failing": Boom, "stopping": RuntimeError}.get(name, StopIteration)
    assert type(error) is expected and (name != "stopping" or type(error.__cause__) is StopIteration)
    plain = iter(ds)
    for element, state in zip(elements, states, strict=True):
        assert next(plain) == element
        assert plain.get_state() == state


def test_slow_elements_do_not_wait_for_each_other(monkeypatch):
    """Quick ones are computed in large blocks; what turns out to be slow goes as it is."""
    clock = Clock()
    monkeypatch.setattr(stated_blocks, "time", clock)

    def slow(x):
        clock.now += 0.002 if x >= 4000 else 0.0
        return x

    blocks = StatedBlocks(iter(numbers(9000, fn=slow)))
    for first, n, num in ((0, 4000, 4000), (4000, 2048, 32), (4032, 2048, 32)):
        elements, states, stop = blocks.take(n)
        assert elements == [*range(first, first + num)] and stop is None
        assert states[num - 1] == {"next_index": first + num}
    monkeypatch.setattr(stated_blocks, "_BLOCK_SECONDS", -1.0)  # those that are computed singly are given away at once
    assert len(StatedBlocks(iter(PIPELINES["batches"])).take(9)[0]) == 1
    assert len(StatedBlocks(iter(PIPELINES["one_to_one"])).take(9)[0]) == 9
