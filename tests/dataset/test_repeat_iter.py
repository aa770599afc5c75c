"""What ``RepeatIterDataset`` does beyond the laws of all stages."""

import contextlib
import itertools
import os

import pytest

from gristmill import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.telling.description import describe
from gristmill.experimental import RepeatIterDataset, multithread_prefetch

DIRECT = ReadOptions(num_threads=0)
TWO_WORKERS = MultiprocessingOptions(num_workers=2)


def numbers(n):
    return MapDataset.range(n).to_iter_dataset(DIRECT)


def test_random_steps_repeat():
    def draw(x, rng):
        return x, int(rng.integers(10**6))

    epochs = list(MapDataset.range(3).seed(4).random_map(draw).to_iter_dataset(DIRECT).random_map(draw).repeat(3))
    assert epochs[:3] == epochs[3:6] == epochs[6:]
    assert len(set(epochs)) == 3


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 100])
def test_blocks_cross_the_ends_of_epochs(n):
    ds = RepeatIterDataset(numbers(3), 4)
    it, taken = iter(ds), []
    while block := it._take(n):
        assert len(block) == min(n, 12 - len(taken))
        taken += block
    assert taken == [0, 1, 2] * 4
    assert it.get_state() == {"parent": {"next_index": 3}, "epoch": 4}


def test_batches_cross_the_ends_of_epochs():
    assert list(numbers(3).repeat(2).batch(4, batch_fn=list)) == [[0, 1, 2, 0], [1, 2]]


@pytest.mark.parametrize("num_epochs", [0, -1])
def test_num_epochs_must_be_positive(num_epochs):
    with pytest.raises(ValueError, match=f"num_epochs must be a positive integer, got {num_epochs}"):
        RepeatIterDataset(numbers(3), num_epochs)


def test_num_epochs_must_be_an_integer():
    with pytest.raises(TypeError, match=r"num_epochs must be an integer, got 2\.5"):
        RepeatIterDataset(numbers(3), 2.5)


def test_nothing_cannot_be_repeated_for_ever():
    it = iter(RepeatIterDataset(numbers(5).filter(lambda x: x > 9)))
    state = it.get_state()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"RepeatDatasetIterator\(num_epochs=None\) cannot go on.* has no elements"):
            next(it)
        assert it.get_state() == state
    with pytest.raises(ValueError, match="has no elements"):
        it.skip_failed()


def test_nothing_repeated_is_nothing():
    it = iter(RepeatIterDataset(numbers(0), 10**9))  # and does not take 10**9 steps
    assert list(it) == []
    assert it.get_state()["epoch"] == 10**9


def test_a_state_at_the_end_of_an_epoch_is_not_an_empty_epoch():
    it = iter(RepeatIterDataset(numbers(2)))
    for state in ({"parent": {"next_index": 2}, "epoch": 0}, {"parent": {"next_index": 2}, "epoch": 7}):
        it.set_state(state)
        assert [next(it) for _ in range(3)] == [0, 1, 0]
        assert it.get_state() == {"parent": {"next_index": 1}, "epoch": state["epoch"] + 2}


@pytest.mark.parametrize("epoch", [2, 3, 10**6])
def test_an_epoch_behind_the_last_one_is_the_end(epoch):
    it = iter(RepeatIterDataset(numbers(3), 2))
    state = {"parent": {"next_index": 1}, "epoch": epoch}
    it.set_state(state)
    assert list(it) == []
    assert it.get_state() == state


def test_a_failure_at_the_beginning_of_an_epoch_can_be_skipped():
    times = []

    def fails_in_the_second_epoch(x):
        times.append(x)
        if x == 0 and times.count(0) > 1:
            raise OSError("gone")
        return x

    it = iter(numbers(3).map(fails_in_the_second_epoch).repeat(2))
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    state = it.get_state()
    with pytest.raises(OSError, match="gone"):
        next(it)
    assert it.get_state() == state
    it.skip_failed()
    assert it.get_state() == {"parent": {"next_index": 1}, "epoch": 1}
    assert list(it) == [1, 2]


class Countdown(IterDataset):
    """A user's dataset that counts its iterators and hands out its live state."""

    num_iterators = 0

    def __iter__(self):
        type(self).num_iterators += 1
        return CountdownIterator()


class CountdownIterator(DatasetIterator):
    def __init__(self):
        super().__init__()
        self.state = {"left": 3}

    def __next__(self):
        if not self.state["left"]:
            raise StopIteration
        self.state["left"] -= 1
        return self.state["left"]

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_a_users_iterator_may_hand_out_its_live_state_and_keep_what_it_is_given():
    Countdown.num_iterators = 0
    assert list(RepeatIterDataset(Countdown(), 3)) == [2, 1, 0] * 3
    assert Countdown.num_iterators == 1


def test_a_parent_without_states_is_an_error_that_says_so():
    class Plain(IterDataset):
        def __iter__(self):
            return iter([1, 2])

    with pytest.raises(NotImplementedError, match="return a DatasetIterator from __iter__"):
        list(RepeatIterDataset(Plain(), 2))


def with_process(x):
    return x, os.getpid()


def test_workers_are_the_same_in_every_epoch():
    ds = numbers(6).map(with_process).mp_prefetch(TWO_WORKERS).repeat(4)
    with contextlib.closing(iter(ds)) as it:
        elements = list(it)
        assert [x for x, _ in elements] == [*range(6)] * 4
        pids = [pid for _, pid in elements]
        assert len(set(pids)) == 2
        assert pids == pids[:2] * 12
        it.set_state({**it.get_state(), "epoch": 0})  # at the end of an epoch
        assert [pid for _, pid in it] == pids[:18]


@pytest.mark.parametrize(
    "share",
    [
        lambda ds: ds.mp_prefetch(TWO_WORKERS),
        lambda ds: multithread_prefetch(ds, num_threads=2, buffer_size=2),
    ],
    ids=["processes", "threads"],
)
def test_a_state_of_any_epoch_continues_in_the_middle_of_it(share):
    ds = RepeatIterDataset(share(numbers(5)), 3)
    with contextlib.closing(iter(ds)) as it, contextlib.closing(iter(ds)) as other:
        for position in range(1, 16):
            assert next(it) == (position - 1) % 5
            other.set_state(it.get_state())
            expected = [x % 5 for x in range(position, 15)]
            assert list(itertools.islice(other, 4)) == expected[:4]
        assert list(it) == []


def test_an_endless_repetition_in_workers():
    with contextlib.closing(iter(numbers(3).repeat().mp_prefetch(TWO_WORKERS))) as it:
        assert list(itertools.islice(it, 8)) == [0, 1, 2, 1, 0, 1, 2, 1]


def test_text_specification_and_description():
    ds = RepeatIterDataset(numbers(9), 3)
    assert str(ds) == "RepeatIterDataset(num_epochs=3)"
    assert str(RepeatIterDataset(numbers(9))) == "RepeatIterDataset(num_epochs=None)"
    assert str(iter(ds)) == "RepeatDatasetIterator(num_epochs=3)"
    assert get_element_spec(ds) == get_element_spec(MapDataset.range(9))
    assert describe(iter(ds))["num_epochs"] == 3
    with pytest.raises(NotImplementedError):
        iter(ds)._get_next_index()
