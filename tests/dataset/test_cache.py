"""Behaviour of ``CacheIterDataset``, ``RepeatIterDataset`` and ``LimitIterDataset`` beyond the laws
of all stages.
"""

import copy
import itertools
import threading

import numpy as np
import pytest
from computing_ahead import DIRECT, SharingDataset, numbers
from refusing import assert_raises, assert_refused, assert_stays
from users_datasets import Plain

from gristmill import MapDataset
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.experimental import CacheIterDataset, LimitIterDataset, RepeatIterDataset


def noting(n, seen, bad=()):
    """A stream that notes what it computes, and fails at the elements in ``bad``."""

    def compute(x):
        if x in bad:
            raise OSError(x)
        seen.append(x)
        return x

    return numbers(n, fn=compute)


def state(parent, position, cache_filled):
    return {"parent": {"next_index": parent}, "position": position, "cache_filled": cache_filled}


def test_what_is_read_to_continue_from_a_state():
    seen = []
    it = iter(CacheIterDataset(noting(6, seen)))
    states = [it.get_state(), *[(next(it), it.get_state())[1] for _ in range(4)]]
    assert list(it) == [4, 5]
    seen.clear()
    for position in range(5):
        it.set_state(states[position])
        assert it.get_state() == states[position]
        assert list(it) == list(range(position, 6))
    assert seen == []  # when all is in memory
    it = iter(CacheIterDataset(noting(4, seen)).repeat(3))
    given = {"parent": state(0, 2, True), "epoch": 1}
    it.set_state(given)
    assert it.get_state() == given and seen == []  # nothing before it is asked
    assert list(it) == [2, 3, 0, 1, 2, 3] and seen == [0, 1, 2, 3]
    seen.clear()
    it = iter(CacheIterDataset(noting(6, seen)))
    assert [next(it), next(it)] == [0, 1]
    it.set_state(state(4, 4, False))  # only what is not there yet
    assert list(it) == [4, 5] and seen == [0, 1, 2, 3, 4, 5]
    seen.clear()
    it = iter(CacheIterDataset(noting(2000, seen)))
    it.set_state(state(1500, 1500, False))  # more than is read at once
    assert next(it) == 1500 and seen == list(range(1501))
    assert list(it) == list(range(1501, 2000))


def test_grains_states_restore_and_those_that_are_refused():
    """The parent's state may be any of the parent's: it is the position that counts."""
    for parent, position, filled in itertools.product(range(5), range(5), (False, True)):
        it = iter(CacheIterDataset(numbers(4)))
        it.set_state(state(parent, position, filled))
        assert it.get_state() == state(parent, position, filled)
        assert list(it) == list(range(position, 4))
    it = iter(CacheIterDataset(numbers(4)))
    it.set_state(state(4, 5, False))
    # when it is reached
    assert_stays(
        it, StateIndexError, r"position .* must be in \[0, 4\], the number of elements, got 5"
    )
    it.set_state(state(0, 0, False))
    assert list(it) == [0, 1, 2, 3]
    for wrong in (
        {**state(0, 1, False), "parent": {"other": 1}},
        state(9, 1, True),
        {**state(0, 1, True), "cache_filled": 2},
    ):
        assert_refused(it, StateMismatchError, None, wrong)  # even when all is in memory
    for skipped in ([5], [3, 2], [-1], [1.0], [True], 2, "2", None, {}):
        with pytest.raises(
            StateMismatchError, match="skipped in the state of CacheDatasetIterator"
        ):
            it.set_state({**state(4, 4, False), "skipped": skipped})
    it.set_state(state(2, 3, False))
    assert list(it) == [3]


def test_elements_are_the_same_objects_or_copies():
    ds = MapDataset.range(2).map(lambda i: {"x": np.full(2, i)}).to_iter_dataset(DIRECT)
    first, second, first_again, second_again = ds.cache().repeat(2)
    assert first is first_again and second is second_again
    values = []
    for element in ds.cache(copy_elements=True).repeat(3):
        values.append(element["x"].tolist())
        element["x"] += 10
        element["y"] = 1
    assert values == [[0, 0], [1, 1]] * 3
    it = iter(
        MapDataset.source([1, threading.Lock(), 3])
        .to_iter_dataset(DIRECT)
        .cache(copy_elements=True)
    )
    assert next(it) == 1
    assert_stays(it, TypeError, "lock")
    it.skip_failed()
    assert list(it) == [3]
    ds = noting(5, [], bad=[2]).cache()
    it = iter(ds)
    after_three = {**state(4, 3, False), "skipped": [2]}  # the third one that is there
    it.set_state(after_three)
    assert it.get_state() == after_three
    assert list(it) == [4]
    assert it.get_state() == {**state(5, 4, True), "skipped": [2]}
    # A state without ``skipped`` says that all elements before it were delivered: what fails now is
    # no longer counted.
    it = iter(ds.repeat(2))
    it.set_state({"parent": state(4, 4, False), "epoch": 0})
    assert_raises(OSError, None, next, it)
    assert it.get_state()["parent"] == state(4, 4, False)
    it.skip_failed()
    assert list(it) == [4, 0, 1, 3, 4]


def test_states_of_iterators_that_left_out_other_elements():
    """Elements in memory are used only if the same elements were skipped when they were stored."""
    bad, states = set(), []
    ds = noting(8, [], bad).cache()
    for failing in [(), (2,), (2, 5), (5, 6), (0,), (7,)]:
        bad.clear()
        bad.update(failing)
        it, delivered = iter(ds), []
        for _ in range(8):
            try:
                delivered.append(next(it))
            except OSError:
                it.skip_failed()
            states.append((it.get_state(), delivered[:]))
        assert list(it) == []
        states.append((it.get_state(), delivered))
    bad.clear()
    used = iter(ds)
    for given, delivered in [*states, *reversed(states)]:
        fresh = iter(ds)
        fresh.set_state(copy.deepcopy(given))
        rest = [x for x in range(8) if x not in delivered][len(given.get("skipped", [])) :]
        assert list(fresh) == rest
        used.set_state(given)
        assert set(used) <= set(rest)  # what was skipped since may stay so
        fresh.set_state(used.get_state())
        assert list(fresh) == []


def test_the_first_error_is_that_of_the_first_element():
    early = MapDataset.range(9).map(lambda x: x if x != 4 else {}[x])
    opened = early.map(lambda x: open("/no/such/file") if x == 2 else x)  # noqa: SIM115, PTH123
    it = iter(opened.to_iter_dataset(DIRECT).cache())
    it.set_state(state(6, 6, False))
    for error in (OSError, KeyError):
        assert_stays(it, error, None)
        it.skip_failed()
    assert list(it) == [6, 7, 8]  # what was not delivered before
    for n in (1, 2, 5, 100):
        seen = []
        it = iter(numbers(10).map(lambda x, seen=seen: seen.append(x) or x).limit(3))
        assert list(itertools.chain(*[it._gm_take(n) for _ in range(5)])) == seen == [0, 1, 2]

    for ds, name, parameter in (
        (RepeatIterDataset(numbers(9), 3), "Repeat", "num_epochs"),
        (LimitIterDataset(numbers(9), 3), "Limit", "count"),
    ):
        assert str(ds) == f"{name}IterDataset({parameter}=3)"
        assert str(iter(ds)) == f"{name}DatasetIterator({parameter}=3)"
    assert str(numbers(9).repeat()) == "RepeatIterDataset(num_epochs=None)"
    expected = "CacheIterDataset(parent=LimitIterDataset(count=3))"
    assert (str(CacheIterDataset(numbers(9).limit(3)))) == expected
    for ds in (numbers(9).cache(), numbers(9).repeat(3)):
        assert_raises(NotImplementedError, None, iter(ds)._get_next_index)


def test_states_at_ends_and_iterators_of_users():
    it = iter(RepeatIterDataset(numbers(5).filter(lambda x: x > 9)))
    assert_stays(
        it,
        ValueError,
        r"RepeatDatasetIterator\(num_epochs=None\) cannot continue.* has no elements",
    )
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
    # They may hand out their live state and keep what they are given; one is enough for all epochs.
    ds = SharingDataset(3)
    assert list(RepeatIterDataset(ds, 3)) == [0, 1, 2] * 3
    assert len(ds.made) == 1
    with pytest.raises(NotImplementedError, match="return a DatasetIterator from __iter__"):
        list(RepeatIterDataset(Plain(2), 2))
