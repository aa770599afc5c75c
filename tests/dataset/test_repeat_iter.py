"""What ``RepeatIterDataset`` and ``LimitIterDataset`` do beyond the laws of all stages."""

import itertools
import os

from refusing import assert_raises
from users_datasets import Plain

from gristmill import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.telling.description import describe
from gristmill.experimental import LimitIterDataset, RepeatIterDataset

TWO_WORKERS = MultiprocessingOptions(num_workers=2)


def numbers(n):
    return MapDataset.range(n).to_iter_dataset(ReadOptions(num_threads=0))


def test_a_limit_asks_its_parent_for_no_more():
    for n in (1, 2, 5, 100):
        seen = []
        it = iter(numbers(10).map(lambda x, seen=seen: seen.append(x) or x).limit(3))
        assert list(itertools.chain(*[it._take(n) for _ in range(5)])) == seen == [0, 1, 2]


def test_arguments_texts_specification_and_description():
    for kind, name in ((RepeatIterDataset, "num_epochs"), (LimitIterDataset, "count")):
        for wrong in (0, -1, -(10**20)):
            assert_raises(ValueError, f"{name} must be a positive integer, got {wrong}", kind, numbers(3), wrong)
        for wrong in (2.5, "3"):
            assert_raises(TypeError, f"{name} must be an integer, got {wrong!r}", kind, numbers(3), wrong)
    assert_raises(TypeError, "count must be an integer", LimitIterDataset, numbers(3), None)
    for ds, name, parameter in (
        (RepeatIterDataset(numbers(9), 3), "Repeat", "num_epochs"),
        (LimitIterDataset(numbers(9), 3), "Limit", "count"),
    ):
        assert str(ds) == f"{name}IterDataset({parameter}=3)"
        assert str(iter(ds)) == f"{name}DatasetIterator({parameter}=3)"
        assert get_element_spec(ds) == get_element_spec(MapDataset.range(9))
        assert describe(iter(ds))[parameter] == 3
    assert str(numbers(9).repeat()) == "RepeatIterDataset(num_epochs=None)"
    assert_raises(NotImplementedError, None, iter(numbers(9).repeat(3))._get_next_index)


def test_nothing_repeated_and_states_at_and_behind_ends():
    it = iter(RepeatIterDataset(numbers(5).filter(lambda x: x > 9)))
    state = it.get_state()
    for _ in range(2):
        assert_raises(ValueError, r"RepeatDatasetIterator\(num_epochs=None\) cannot go on.* has no elements", next, it)
        assert it.get_state() == state
    assert_raises(ValueError, "has no elements", it.skip_failed)
    it = iter(RepeatIterDataset(numbers(0), 10**9))  # and does not take 10**9 steps
    assert list(it) == []
    assert it.get_state()["epoch"] == 10**9
    it = iter(RepeatIterDataset(numbers(2)))
    for epoch in (0, 7):  # the end of an epoch is not an empty epoch
        it.set_state({"parent": {"next_index": 2}, "epoch": epoch})
        assert [next(it) for _ in range(3)] == [0, 1, 0]
        assert it.get_state() == {"parent": {"next_index": 1}, "epoch": epoch + 2}
    it = iter(RepeatIterDataset(numbers(3), 2))
    for epoch in (2, 3, 10**6):
        state = {"parent": {"next_index": 1}, "epoch": epoch}
        it.set_state(state)
        assert list(it) == []
        assert it.get_state() == state


def test_iterators_of_users():
    """They may hand out their live state and keep what they are given; one is enough for all epochs."""
    iterators = []

    class Live(DatasetIterator):
        def __init__(self):
            super().__init__()
            self.state = {"left": 3}
            iterators.append(self)

        def __next__(self):
            if not self.state["left"]:
                raise StopIteration
            self.state["left"] -= 1
            return self.state["left"]

        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = state

    class Stream(IterDataset):
        def __iter__(self):
            return Live()

    assert list(RepeatIterDataset(Stream(), 3)) == [2, 1, 0] * 3
    assert len(iterators) == 1
    assert_raises(NotImplementedError, "return a DatasetIterator from __iter__", list, RepeatIterDataset(Plain(2), 2))


def with_process(x):
    return x, os.getpid()


def test_workers():
    """They are the same in every epoch."""
    with iter(numbers(6).map(with_process).mp_prefetch(TWO_WORKERS).repeat(4)) as it:
        elements = list(it)
        assert [x for x, _ in elements] == [*range(6)] * 4
        pids = [pid for _, pid in elements]
        assert len(set(pids)) == 2
        assert pids == pids[:2] * 12
        it.set_state({**it.get_state(), "epoch": 0})  # at the end of an epoch
        assert [pid for _, pid in it] == pids[:18]
    with iter(numbers(3).repeat().mp_prefetch(TWO_WORKERS)) as it:
        assert list(itertools.islice(it, 8)) == [0, 1, 2, 1, 0, 1, 2, 1]
    assert list(numbers(9).limit(2).mp_prefetch(TWO_WORKERS).limit(3)) == [0, 1, 2]  # each counts its own
