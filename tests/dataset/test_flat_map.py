import gc
import pickle
import re
import sys
import weakref

import numpy as np
import pytest

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import FlatMapIterDataset, FlatMapMapDataset, FlatMapTransform, get_element_spec


class Fan(FlatMapTransform):
    """``x % 4`` items of ``x``; counts its calls."""

    max_fan_out = 3

    def __init__(self):
        self.calls = []

    def flat_map(self, element):
        self.calls.append(element)
        return [(element, j) for j in range(element % 4)]


class Generator(FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        yield element
        yield -element


class Records(FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [{"x": element}, {"x": element}]


def add_one_in_place(record):
    record["x"] += 1
    return record


def fails_once(at):
    calls = []

    def fn(x):
        calls.append(x)
        if len(calls) == at:
            raise OSError("for a moment")
        return x

    return fn


def numbers(n):
    return MapDataset.range(n).to_iter_dataset()


def fan(x):
    return [(x, j) for j in range(x % 4)]


# Random access


def test_items_stand_at_their_element_times_the_fan_out():
    ds = FlatMapMapDataset(MapDataset.range(6), Fan())
    assert len(ds) == 18
    for i in [*range(-20, 40), 10**20]:
        element, j = i // 3 % 6, i % 3
        assert ds[i] == ((element, j) if j < element % 4 else None)
    assert list(ds) == [item for x in range(6) for item in fan(x)]


def test_an_endless_dataset_stays_endless():
    assert len(FlatMapMapDataset(MapDataset.range(5).repeat(), Fan())) == sys.maxsize
    assert len(FlatMapMapDataset(MapDataset.range(2**62), Fan())) == sys.maxsize
    assert len(FlatMapMapDataset(MapDataset.range(2**61), Fan())) == 3 * 2**61


def test_one_call_per_element_within_a_block_and_for_consecutive_accesses():
    transform = Fan()
    ds = FlatMapMapDataset(MapDataset.range(8), transform)
    ds._block(range(24))
    assert transform.calls == list(range(8))
    transform.calls.clear()
    assert [ds[i] for i in range(24)] == [ds._block([i])[0] for i in range(24)]
    transform.calls.clear()
    for i in range(24):
        ds[i]
    assert transform.calls == list(range(8))
    transform.calls.clear()
    ds._block([6, 20, 7, 6, 23])
    assert sorted(transform.calls) == [2, 2, 6, 7]  # the second item 6 is a fresh one


def test_what_a_user_changed_is_not_handed_out_again():
    ds = FlatMapMapDataset(MapDataset.range(4), Records()).map(add_one_in_place)
    for _ in range(3):
        assert ds[2] == {"x": 2}
    assert ds._block([2, 2, 3, 2]) == [{"x": 2}] * 4
    # A block that fails is computed again, element by element.
    it = iter(ds.map(fails_once(at=3)).to_iter_dataset().batch(4, batch_fn=list))
    assert list(it) == [[{"x": 1}, {"x": 1}, {"x": 2}, {"x": 2}], [{"x": 3}, {"x": 3}, {"x": 4}, {"x": 4}]]


def test_items_are_kept_no_longer_than_needed():
    class Item:
        pass

    made = []

    def make(x):
        items = [Item(), Item()]
        made.extend(map(weakref.ref, items))
        return items

    ds = MapDataset.range(100).flat_map(make, max_fan_out=2)
    for i in range(200):
        ds[i]
    ds._block(range(150))
    gc.collect()
    assert len(made) == 350
    assert [ref() for ref in made] == [None] * 350
    ds[0]
    gc.collect()
    assert len([ref for ref in made if ref() is not None]) == 1


def test_any_iterable_will_do():
    results = [(1, 2), [1, 2], np.array([1, 2]), "12", {1: "a", 2: "b"}, (x for x in (1, 2)), range(1, 3), iter([1, 2])]
    for result in results:
        assert [int(x) for x in MapDataset.range(1).flat_map(lambda _, r=result: r, max_fan_out=2)] == [1, 2]
    assert list(FlatMapMapDataset(MapDataset.range(3), Generator())) == [0, 0, 1, -1, 2, -2]
    for ds in (MapDataset.range(1).flat_map(lambda x: 5, max_fan_out=2), numbers(1).flat_map(lambda x: None)):
        with pytest.raises(TypeError, match=r"must return a sequence or another iterable of items, got (5|None)"):
            next(iter(ds))


def test_too_many_items():
    def endless(x):
        while True:
            yield x

    for transform in (lambda x: [x] * 3, endless):
        ds = MapDataset.range(3).flat_map(transform, max_fan_out=2)
        for i in (0, 1):
            with pytest.raises(ValueError, match=r"more items of one element than its max_fan_out = 2: .*about 100"):
                ds[i]


def test_missing_elements_are_not_split():
    transform = Fan()
    ds = FlatMapMapDataset(MapDataset.range(6).filter(lambda x: x % 2 == 1), transform)
    assert list(ds) == [item for x in (1, 3, 5) for item in fan(x)]
    assert sorted(set(transform.calls)) == [1, 3, 5]


def test_arguments():
    class NoMaximum(FlatMapTransform):
        def flat_map(self, element):
            return []

    with pytest.raises(TypeError, match="NoMaximum must have an attribute max_fan_out"):
        FlatMapMapDataset(MapDataset.range(3), NoMaximum())
    for wrong, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError), ("2", TypeError)):
        with pytest.raises(error, match="max_fan_out must be"):
            MapDataset.range(3).flat_map(fan, max_fan_out=wrong)
    with pytest.raises(TypeError, match="max_fan_out must be given"):
        MapDataset.range(3).flat_map(fan)
    with pytest.raises(TypeError, match=r"ds.flat_map\(..., max_fan_out=...\)"):
        FlatMapMapDataset(MapDataset.range(3), fan)
    with pytest.raises(TypeError, match="callable"):
        MapDataset.range(3).flat_map(3, max_fan_out=2)
    with pytest.raises(TypeError, match="callable"):
        numbers(3).flat_map(3)
    assert list(MapDataset.range(3).flat_map(Generator(), max_fan_out=np.int64(5))) == [0, 0, 1, -1, 2, -2]
    assert list(MapDataset.range(2).apply(Generator())) == list(numbers(2).apply([Generator()])) == [0, 0, 1, -1]
    assert list(FlatMapIterDataset(numbers(4), NoMaximum())) == []


def test_texts():
    assert str(FlatMapMapDataset(MapDataset.range(3), Fan())) == "FlatMapMapDataset(transform=Fan)"
    text = str(MapDataset.range(3).flat_map(fan, max_fan_out=3))
    assert re.fullmatch(r"FlatMapMapDataset\(transform=fan @ .*test_flat_map.py:\d+\)", text)
    assert str(FlatMapIterDataset(numbers(3), Fan())) == "FlatMapIterDataset(transform=Fan)"
    assert str(iter(FlatMapIterDataset(numbers(3), Fan()))) == "FlatMapDatasetIterator(transform=Fan)"


def test_what_items_look_like_is_not_known():
    for ds in (MapDataset.range(3).flat_map(fan, max_fan_out=3), numbers(3).flat_map(fan)):
        with pytest.raises(NotImplementedError, match=type(ds).__name__):
            get_element_spec(ds)


def test_batches_of_indices_cannot_follow():
    for ds in (
        MapDataset.range(3).flat_map(fan, max_fan_out=3),
        MapDataset.range(3).flat_map(fan, max_fan_out=3).shuffle(seed=1),
    ):
        with pytest.raises(ValueError, match=r"FlatMapMapDataset.*to_iter_dataset\(\) before"):
            ds.batch(2)
        assert len(list(ds.to_iter_dataset().batch(2))) == 2


def test_pickles_without_what_it_remembers():
    ds = FlatMapMapDataset(MapDataset.range(3), Generator())
    size = len(pickle.dumps(ds))
    ds[0]
    assert len(pickle.dumps(ds)) == size
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds)


@pytest.mark.parametrize("sequential", [False, True])
def test_workers_lose_nothing(sequential):
    ds = MapDataset.range(9).flat_map(fan, max_fan_out=3).to_iter_dataset()
    workers = ds.mp_prefetch(MultiprocessingOptions(num_workers=2), sequential_slice=sequential)
    assert sorted(workers) == list(ds)


# Streams


def states(it):
    found = [it.get_state()]
    for _ in it:
        found.append(it.get_state())
    return found, it.get_state()


def state(next_index, position):
    return {"parent": {"next_index": next_index}, "next_index_in_buffer": position}


def test_the_state_is_that_before_the_element_and_a_count():
    found, end = states(iter(FlatMapIterDataset(numbers(6), fan)))
    assert found == [state(0, 0), state(1, 1), state(2, 1), state(2, 2), state(3, 1), state(3, 2), state(3, 3), state(5, 1)]
    assert end == state(6, 1)
    assert states(iter(FlatMapIterDataset(numbers(5), fan)))[1] == state(5, 0)  # the last element had no items


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 1000])
def test_blocks_are_where_single_steps_are(n):
    sizes = [0, 1, 1, 2, 0, 3, 1, 9, 0, 0, 4, 30, 2, 2, 2, 2, 1, 0, 5, 0, 0]
    ds = FlatMapIterDataset(numbers(len(sizes)), lambda x: [(x, j) for j in range(sizes[x])])
    single = iter(ds)
    it = iter(ds)
    while block := it._take(n):
        assert block == [next(single) for _ in block]
        if len(block) == n:
            assert it.get_state() == single.get_state()
    assert list(single) == []
    assert it.get_state() == single.get_state()


def test_elements_are_taken_in_blocks():
    transform = Fan()
    it = iter(FlatMapIterDataset(MapDataset.range(1000).map(lambda x: x % 4).to_iter_dataset(), transform))
    total = [x for _ in range(10) for x in it._take(128)]
    assert total == [item for x in range(1000) for item in fan(x % 4)][:1280]
    # Each element once, but for those that were read when nobody knew how many items to expect.
    assert 853 <= len(transform.calls) < 1100


def test_nothing_is_read_before_the_first_element():
    transform = Fan()
    it = iter(FlatMapIterDataset(numbers(9), transform))
    it.set_state(state(3, 2))
    assert it.get_state() == state(3, 2)
    assert transform.calls == []
    assert next(it) == (3, 2)
    assert transform.calls == [3]
    assert it.get_state() == state(3, 3)


def test_a_count_that_the_element_cannot_have():
    it = iter(FlatMapIterDataset(numbers(9), fan))
    it.set_state(state(2, 3))
    for _ in range(2):
        with pytest.raises(StateMismatchError, match=r"next_index_in_buffer .* is 3, but its element has only 2 items"):
            next(it)
        assert it.get_state() == state(2, 3)
    it.set_state(state(2, 2))
    assert next(it) == (3, 0)


def test_generators_that_fail_midway_deliver_nothing_of_their_element():
    def letters(x):
        yield (x, "a")
        if x == 2:
            raise OSError(x)
        yield (x, "b")

    it = iter(FlatMapIterDataset(numbers(4), letters))
    assert [next(it) for _ in range(4)] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    for _ in range(2):
        with pytest.raises(OSError, match="2"):
            next(it)
        assert it.get_state() == state(1, 2)
    it.skip_failed()
    assert list(it) == [(3, "a"), (3, "b")]


def test_a_failure_behind_it_finds_the_items_as_they_were():
    def records(at):
        return FlatMapIterDataset(numbers(2), Records()).map(add_one_in_place).map(fails_once(at))

    assert next(iter(records(at=3).batch(4, batch_fn=list))) == [{"x": 1}, {"x": 1}, {"x": 2}, {"x": 2}]
    it = iter(records(at=2))
    assert next(it) == {"x": 1}
    with pytest.raises(OSError, match="moment"):
        next(it)
    assert list(it) == [{"x": 1}, {"x": 2}, {"x": 2}]


@pytest.mark.parametrize(
    "make",
    [lambda fn: MapDataset.range(3).flat_map(fn, max_fan_out=1), lambda fn: numbers(3).flat_map(fn)],
    ids=["map", "iter"],
)
def test_stop_iteration_of_user_code_ends_nothing(make):
    def stops(x):
        if x == 1:
            raise StopIteration
        return [x]

    def generates(x):
        if x == 1:
            next(iter(()))
        yield x

    for fn in (stops, generates):
        it = iter(make(fn))
        assert next(it) == 0
        with pytest.raises(RuntimeError):
            next(it)
        it.skip_failed()
        assert list(it) == [2]


def test_user_datasets_without_states():
    class Plain(IterDataset):
        def __iter__(self):
            return iter(range(5))

    assert list(FlatMapIterDataset(Plain(), fan).batch(3, batch_fn=list)) == [[(1, 0), (2, 0), (2, 1)], [(3, 0), (3, 1), (3, 2)]]
