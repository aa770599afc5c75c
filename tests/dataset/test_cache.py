"""What ``CacheIterDataset`` does beyond the laws of all stages."""

import itertools
from functools import partial

import numpy as np
import pytest

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.experimental import CacheIterDataset
from gristmill.testing import assert_equal_output_after_checkpoint

DIRECT = ReadOptions(num_threads=0)


def numbers(n, seen=None):
    ds = MapDataset.range(n)
    if seen is not None:
        ds = ds.map(lambda x: seen.append(x) or x)
    return ds.to_iter_dataset(DIRECT)


def state(parent, position, cache_filled):
    return {"parent": {"next_index": parent}, "position": position, "cache_filled": cache_filled}


@pytest.mark.parametrize("n", [1, 2, 3, 100])
def test_the_parent_is_read_once(n):
    seen = []
    it = iter(CacheIterDataset(numbers(3, seen)).repeat(4))
    taken = []
    while block := it._take(n):
        taken += block
    assert taken == [0, 1, 2] * 4
    assert seen == [0, 1, 2]


def test_every_iterator_has_its_own_cache():
    seen = []
    ds = CacheIterDataset(numbers(3, seen))
    assert list(ds) == list(ds) == [0, 1, 2]
    assert seen == [0, 1, 2] * 2


def test_going_back_reads_nothing_when_all_is_in_memory():
    seen = []
    it = iter(CacheIterDataset(numbers(6, seen)))
    states = [it.get_state()]
    for _ in range(4):
        next(it)
        states.append(it.get_state())
    for position in (2, 0, 4, 1):  # the cache is not complete yet: states of the parent that it has passed are gone
        it.set_state(states[position])
        for i in range(position, 4):
            assert it.get_state() == states[i]
            assert next(it) == i
        assert it.get_state() == states[4]
    assert list(it) == [4, 5]
    seen.clear()
    for position in range(5):  # now it is
        it.set_state(states[position])
        assert it.get_state() == states[position]
        assert list(it) == list(range(position, 6))
    assert seen == []


def test_a_restored_iterator_fills_its_cache_when_it_is_first_asked():
    seen = []
    it = iter(CacheIterDataset(numbers(4, seen)).repeat(3))
    given = {"parent": state(0, 2, True), "epoch": 1}
    it.set_state(given)
    assert it.get_state() == given
    assert seen == []
    assert list(it) == [2, 3, 0, 1, 2, 3]
    assert seen == [0, 1, 2, 3]


def test_an_iterator_that_has_a_part_reads_only_the_rest():
    seen = []
    it = iter(CacheIterDataset(numbers(6, seen)))
    next(it), next(it)
    it.set_state(state(4, 4, False))
    assert list(it) == [4, 5]
    assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("filled", [False, True])
def test_grains_states_restore(filled):
    """The parent's state may be any of the parent's: it is the position that counts."""
    for parent, position in itertools.product(range(5), range(5)):
        it = iter(CacheIterDataset(numbers(4)))
        it.set_state(state(parent, position, filled))
        assert it.get_state() == state(parent, position, filled)
        assert list(it) == list(range(position, 4))


def test_more_elements_than_are_read_at_once():
    seen = []
    it = iter(CacheIterDataset(numbers(2000, seen)))
    it.set_state(state(1500, 1500, False))
    assert next(it) == 1500
    assert seen == list(range(1501))
    assert list(it) == list(range(1501, 2000))


def test_a_position_behind_the_end_is_refused_when_it_is_reached():
    it = iter(CacheIterDataset(numbers(4)))
    it.set_state(state(4, 5, False))
    for _ in range(2):
        with pytest.raises(StateIndexError, match=r"position .* must be in \[0, 4\], the number of elements, got 5"):
            next(it)
    it.set_state(state(0, 0, False))
    assert list(it) == [0, 1, 2, 3]


def test_a_state_of_another_parent_is_refused_even_when_all_is_in_memory():
    it = iter(CacheIterDataset(numbers(4)))
    assert list(it) == [0, 1, 2, 3]
    for wrong in ({**state(0, 1, False), "parent": {"other": 1}}, state(9, 1, True), {**state(0, 1, True), "cache_filled": 2}):
        with pytest.raises(StateMismatchError):
            it.set_state(wrong)
        assert it.get_state() == state(4, 4, True)
    it.set_state(state(2, 3, False))
    assert list(it) == [3]


def test_elements_are_the_same_objects_unless_copies_are_wanted():
    def arrays(i):
        return {"x": np.full(2, i)}

    ds = MapDataset.range(2).map(arrays).to_iter_dataset(DIRECT)
    first, second, first_again, second_again = ds.cache().repeat(2)
    assert first is first_again
    assert second is second_again
    values = []
    for element in ds.cache(copy_elements=True).repeat(3):
        values.append(element["x"].tolist())
        element["x"] += 10
        element["y"] = 1
    assert values == [[0, 0], [1, 1]] * 3


def test_an_element_that_failed_and_was_skipped_is_not_in_the_cache():
    def fails_at_two(x):
        if x == 2:
            raise OSError("gone")
        return x

    it = iter(MapDataset.range(5).map(fails_at_two).to_iter_dataset(DIRECT).cache().repeat(2))
    assert [next(it), next(it)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(it)
    it.skip_failed()
    assert list(it) == [3, 4, 0, 1, 3, 4]

    again = iter(MapDataset.range(5).map(fails_at_two).to_iter_dataset(DIRECT).cache())
    after_three = {**state(4, 3, False), "skipped": [2]}  # the third one that is there
    again.set_state(after_three)
    assert again.get_state() == after_three
    assert list(again) == [4]
    assert again.get_state() == {**state(5, 4, True), "skipped": [2]}


def test_what_cannot_be_computed_again_is_no_longer_counted():
    """A state without ``skipped`` says that all elements before it were delivered."""

    def fails_at_two(x):
        if x == 2:
            raise OSError("gone")
        return x

    it = iter(MapDataset.range(5).map(fails_at_two).to_iter_dataset(DIRECT).cache().repeat(2))
    it.set_state({"parent": state(4, 4, False), "epoch": 0})
    with pytest.raises(OSError, match="gone"):
        next(it)
    assert it.get_state()["parent"] == state(4, 4, False)
    it.skip_failed()
    assert list(it) == [4, 0, 1, 3, 4]


@pytest.mark.parametrize("skipped", [[5], [3, 2], [-1], [1.0], [True], 2, "2", None, {}])
def test_wrong_places_of_skipped_elements_are_refused(skipped):
    it = iter(MapDataset.range(9).to_iter_dataset(DIRECT).cache())
    next(it)
    with pytest.raises(StateMismatchError, match="skipped in the state of CacheDatasetIterator"):
        it.set_state({**state(4, 4, False), "skipped": skipped})
    assert list(it) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_states_of_iterators_that_left_out_other_elements():
    """What is in memory is used only if it came with the same elements left out."""
    bad = set()

    def fail(x):
        if x in bad:
            raise OSError(x)
        return x

    ds = MapDataset.range(8).map(fail).to_iter_dataset(DIRECT).cache()
    states = {}
    for failing in [(), (2,), (2, 5), (5, 6), (0,), (7,)]:
        bad.clear()
        bad.update(failing)
        it, delivered = iter(ds), []
        for i in range(8):
            try:
                delivered.append(next(it))
            except OSError:
                it.skip_failed()
            states[failing, i + 1] = it.get_state(), delivered[:]
        assert list(it) == []
        states[failing, 9] = it.get_state(), delivered[:]
    bad.clear()
    used = iter(ds)
    for given, delivered in [*states.values(), *reversed(states.values())]:
        fresh = iter(ds)
        fresh.set_state(given)
        rest = [x for x in range(8) if x not in delivered][len(given.get("skipped", [])) :]
        assert list(fresh) == rest
        used.set_state(given)
        assert set(used) <= set(rest)  # what was left out since may stay so
        again = iter(ds)
        again.set_state(used.get_state())
        assert list(again) == []


def test_the_first_error_of_what_is_read_again_is_that_of_the_first_element():
    def early(x):
        if x == 4:
            raise KeyError(x)
        return x

    def late(x):
        if x == 2:
            raise OSError(x)
        return x

    it = iter(MapDataset.range(9).map(early).map(late).to_iter_dataset(DIRECT).cache())
    it.set_state(state(6, 6, False))
    for error in (OSError, KeyError):
        for _ in range(2):
            with pytest.raises(error):
                next(it)
        it.skip_failed()
    assert list(it) == [6, 7, 8]  # what was not delivered before


class NoCopies:
    def __deepcopy__(self, memo):
        raise TypeError("this one cannot be copied")


def test_an_element_that_cannot_be_copied_can_be_skipped():
    it = iter(MapDataset.source([1, NoCopies(), 3]).to_iter_dataset(DIRECT).cache(copy_elements=True))
    assert next(it) == 1
    for _ in range(2):
        with pytest.raises(TypeError, match="cannot be copied"):
            next(it)
    it.skip_failed()
    assert list(it) == [3]


def waits_for(path, x):
    if x == 1 and not path.exists():
        raise OSError("not there")
    return x


def test_a_failed_worker_is_asked_again_when_the_state_is_set(tmp_path):
    path = tmp_path / "file"
    ds = MapDataset.range(3).map(partial(waits_for, path)).to_iter_dataset(DIRECT)
    with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=1)).cache()) as it:
        assert next(it) == 0
        for _ in range(2):
            with pytest.raises(OSError, match="not there"):
                next(it)
            path.touch()
        it.set_state(it.get_state())
        assert list(it) == [1, 2]


def test_in_front_of_and_in_workers():
    options = MultiprocessingOptions(num_workers=2)
    assert list(numbers(5).mp_prefetch(options).cache().repeat(2)) == [*range(5)] * 2
    assert list(numbers(5).cache().repeat(2).mp_prefetch(options)) == [0, 1, 2, 3, 4, 1, 0, 3, 2, 4]


def test_checkpoints_of_repeated_caches():
    """Grain gives back another state than the one that was restored here."""
    ds = numbers(4).filter(lambda x: x != 1).cache().repeat(3)
    assert_equal_output_after_checkpoint(ds, at_end=True, through_json=True, in_place=True, twice=True, unchanged=True)


def test_text_and_specification():
    ds = CacheIterDataset(numbers(9).limit(3))
    assert str(ds) == "CacheIterDataset(parent=LimitIterDataset(count=3))"
    assert get_element_spec(CacheIterDataset(numbers(9))) == get_element_spec(MapDataset.range(9))
    with pytest.raises(NotImplementedError):
        iter(ds)._get_next_index()
