"""Blocks with states: what is computed in a block cannot be told from what is computed singly."""

import pytest

from gristmill import MapDataset, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset
from gristmill.dataset.ahead import blocks as stated_blocks
from gristmill.dataset.ahead.blocks import StatedBlocks

DIRECT = ReadOptions(num_threads=0)


class Boom(Exception):
    pass


class Sharing(DatasetIterator):
    """A user's iterator, whose state is an object that it goes on changing."""

    def __init__(self):
        super().__init__()
        self.state = {"at": [0]}

    def __next__(self):
        if self.state["at"][0] == 40:
            raise StopIteration
        self.state["at"][0] += 1
        return self.state["at"][0] - 1

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


class SharingDataset(IterDataset):
    def __iter__(self):
        return Sharing()


def fail(x):
    if x == 23:
        raise Boom(x)
    return x


def stop(x):
    if x == 23:
        raise StopIteration
    return x


PIPELINES = {
    "one_to_one": MapDataset.range(40).to_iter_dataset(DIRECT).map(str),
    "read_ahead": MapDataset.range(40).map(str).to_iter_dataset(ReadOptions(2, 7)),
    "counting": MapDataset.range(40).to_iter_dataset(DIRECT).map_with_index(lambda i, x: (i, x)),
    "dropping": MapDataset.range(40).to_iter_dataset(DIRECT).filter(lambda x: x % 7 != 3 or x > 30),
    "dropping_and_counting": MapDataset.range(40).to_iter_dataset(DIRECT).filter(lambda x: x % 7).map_with_index(lambda i, x: i),
    "batches": MapDataset.range(40).to_iter_dataset(DIRECT).batch(3, batch_fn=list),
    "users": SharingDataset().map(str),
    "empty": MapDataset.range(0).to_iter_dataset(DIRECT),
    "failing": MapDataset.range(40).to_iter_dataset(DIRECT).filter(lambda x: x % 5).map(fail),
    "stopping": MapDataset.range(40).to_iter_dataset(DIRECT).map(stop),
}


def run(ds, n):
    it = iter(ds)
    blocks = StatedBlocks(it)
    elements, states = [], []
    while True:
        block, after, error = blocks.take(n)
        assert len(block) == len(after) <= n
        elements += block
        states += after
        if error is not None:
            return elements, states, error, it
        assert block


@pytest.mark.parametrize("name", PIPELINES)
def test_block_size_is_not_observable(name, monkeypatch):
    monkeypatch.setattr(stated_blocks, "_BLOCK_SECONDS", 100.0)
    ds = PIPELINES[name]
    elements, states, error, _ = run(ds, 1)
    for n in (2, 3, 7, 39, 40, 41, 1000):
        got, after, other, _ = run(ds, n)
        assert got == elements
        assert after == states
        assert (type(other), other.args) == (type(error), error.args)
    plain = iter(ds)
    for element, state in zip(elements, states, strict=True):
        assert next(plain) == element
        assert plain.get_state() == state


@pytest.mark.parametrize("n", [1, 4, 100])
def test_errors(n):
    elements, states, error, it = run(PIPELINES["failing"], n)
    assert elements == [x for x in range(23) if x % 5]
    assert type(error) is Boom
    assert it.get_state() == states[-1]  # where the following attempt goes on
    _, _, error, _ = run(PIPELINES["stopping"], n)
    assert type(error) is RuntimeError and type(error.__cause__) is StopIteration
    assert type(run(PIPELINES["batches"], n)[2]) is StopIteration


def test_elements_that_are_computed_singly_are_not_kept_for_long(monkeypatch):
    monkeypatch.setattr(stated_blocks, "_BLOCK_SECONDS", 0.0)
    assert len(StatedBlocks(iter(PIPELINES["batches"])).take(9)[0]) == 1
    assert len(StatedBlocks(iter(PIPELINES["one_to_one"])).take(9)[0]) == 9
