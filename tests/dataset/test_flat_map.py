import gc
import itertools
import re
import sys
import weakref

import cloudpickle
import numpy as np
import pytest
from computing_ahead import Failing, numbers
from operations import operation
from refusing import assert_raises, assert_stays
from users_datasets import Plain

from gristmill import MapDataset
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.slicing import slice_pipeline
from gristmill.experimental import (
    FlatMapIterDataset,
    FlatMapMapDataset,
    FlatMapTransform,
    get_element_spec,
)


class Fan(FlatMapTransform):
    """``x % 4`` items of ``x``; counts its calls."""

    max_fan_out = 3

    def __init__(self):
        self.calls = []

    def flat_map(self, element):
        self.calls.append(element)
        return fan(element)


generator = operation(FlatMapTransform, "flat_map", lambda x: (y for y in (x, -x)), max_fan_out=2)
no_maximum = operation(FlatMapTransform, "flat_map", lambda x: [])


def fan(x):
    return [(x, j) for j in range(x % 4)]


def fails_once(at):
    calls = itertools.count(1)
    failing = Failing(at, times=1, error=OSError)
    return lambda x: (failing(next(calls)), x)[1]


def state(next_index, position):
    return {"parent": {"next_index": next_index}, "next_index_in_buffer": position}


THREE, TRIPLES = MapDataset.range(3), (lambda x: [x] * 3, itertools.repeat)
TOO_MANY = "more items of one element than its max_fan_out = 2: .*about 100"


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: FlatMapMapDataset(THREE, no_maximum),
            TypeError,
            "FlatMap.* must have an attribute max_fan_out",
        ),
        *[
            (lambda x=x: THREE.flat_map(fan, max_fan_out=x), ValueError, "max_fan_out must be")
            for x in (0, -1)
        ],
        *[
            (lambda x=x: THREE.flat_map(fan, max_fan_out=x), TypeError, "max_fan_out must be")
            for x in (2.0, "2")
        ],
        (lambda: THREE.flat_map(fan), TypeError, "max_fan_out must be given"),
        (lambda: FlatMapMapDataset(THREE, fan), TypeError, r"ds.flat_map\(..., max_fan_out=...\)"),
        (lambda: THREE.flat_map(3, max_fan_out=2), TypeError, "callable"),
        (lambda: numbers(3).flat_map(3), TypeError, "callable"),
        (
            lambda: get_element_spec(THREE.flat_map(fan, max_fan_out=3)),
            NotImplementedError,
            "FlatMapMapDataset",
        ),
        (
            lambda: get_element_spec(numbers(3).flat_map(fan)),
            NotImplementedError,
            "FlatMapIterDataset",
        ),
        (
            lambda: THREE.flat_map(fan, max_fan_out=3)[:].batch(2),
            ValueError,
            r"FlatMapMap.*to_iter_dataset\(\) before",
        ),
        (
            lambda: list(THREE.flat_map(lambda x: 5, max_fan_out=2)),
            TypeError,
            "must return a sequence .* of items, got 5",
        ),
        (
            lambda: list(numbers(1).flat_map(lambda x: None)),
            TypeError,
            "sequence or another iterable of items, got None",
        ),
        *[
            (lambda t=t, i=i: THREE.flat_map(t, max_fan_out=2)[i], ValueError, TOO_MANY)
            for t in TRIPLES
            for i in (0, 1)
        ],
    ],
)
def test_wrong_arguments_and_results(call, error, match):
    assert_raises(error, match, call)


def test_transforms_lengths_and_texts():
    assert list(THREE.flat_map(generator, max_fan_out=np.int64(5))) == [0, 0, 1, -1, 2, -2]
    assert (
        list(MapDataset.range(2).apply(generator))
        == list(numbers(2).apply([generator]))
        == [0, 0, 1, -1]
    )
    assert list(FlatMapIterDataset(numbers(4), no_maximum)) == []
    results = [
        (1, 2),
        [1, 2],
        np.array([1, 2]),
        "12",
        {1: "a", 2: "b"},
        (x for x in (1, 2)),
        range(1, 3),
        iter([1, 2]),
    ]
    for result in results:
        assert [
            int(x) for x in MapDataset.range(1).flat_map(lambda _, r=result: r, max_fan_out=2)
        ] == [1, 2]
    assert len(list(THREE.flat_map(fan, max_fan_out=3).to_iter_dataset().batch(2))) == 2
    assert len(FlatMapMapDataset(MapDataset.range(5).repeat(), Fan())) == sys.maxsize
    assert len(FlatMapMapDataset(MapDataset.range(2**62), Fan())) == sys.maxsize
    assert len(FlatMapMapDataset(MapDataset.range(2**61), Fan())) == 3 * 2**61
    assert str(FlatMapMapDataset(THREE, Fan())) == "FlatMapMapDataset(transform=Fan)"
    text = str(THREE.flat_map(fan, max_fan_out=3))
    assert re.fullmatch(r"FlatMapMapDataset\(transform=fan @ .*test_flat_map.py:\d+\)", text)
    assert str(FlatMapIterDataset(numbers(3), Fan())) == "FlatMapIterDataset(transform=Fan)"
    assert (
        str(iter(FlatMapIterDataset(numbers(3), Fan()))) == "FlatMapDatasetIterator(transform=Fan)"
    )
    ds = MapDataset.range(9).flat_map(fan, max_fan_out=3).to_iter_dataset()
    for sequential in (False, True):
        assert sorted(
            x for i in range(2) for x in slice_pipeline(ds, i, 2, sequential=sequential)
        ) == list(ds)


def test_one_call_per_element_of_a_block():
    transform = Fan()
    ds = FlatMapMapDataset(MapDataset.range(8), transform)
    for access, calls in (
        (lambda: list(ds._gm_items(range(24))), [0, 1, 2, 3, 4, 5, 6, 7]),
        (lambda: [list(ds._gm_items([i])) for i in range(24)], None),
        (lambda: [ds[i] for i in range(24)], [0, 1, 2, 3, 4, 5, 6, 7]),
        # the second item 6 is a fresh one
        (lambda: list(ds._gm_items([6, 20, 7, 6, 23])), [2, 2, 6, 7]),
    ):
        transform.calls.clear()
        access()
        assert calls is None or sorted(transform.calls) == calls
    ds = FlatMapMapDataset(THREE, generator)
    size = len(cloudpickle.dumps(ds))
    ds[0]
    assert len(cloudpickle.dumps(ds)) == size  # without what it remembers


def test_what_a_user_changed_is_not_handed_out_again():
    ds = (
        MapDataset.range(4)
        .flat_map(lambda x: [{"x": x}, {"x": x}], max_fan_out=2)
        .map(lambda record: record.update(x=record["x"] + 1) or record)
    )
    for _ in range(3):
        assert ds[2] == {"x": 2}
    assert list(ds._gm_items([2, 2, 3, 2])) == [{"x": 2}] * 4
    # A block that fails is computed again, element by element: it finds the items as they were.
    fours = [[{"x": 1}, {"x": 1}, {"x": 2}, {"x": 2}], [{"x": 3}, {"x": 3}, {"x": 4}, {"x": 4}]]
    changing = (
        numbers(4)
        .flat_map(lambda x: [{"x": x}, {"x": x}])
        .map(lambda record: record.update(x=record["x"] + 1) or record)
    )
    for stream in (ds.map(fails_once(at=3)).to_iter_dataset(), changing.map(fails_once(at=3))):
        it = iter(stream.batch(4, batch_fn=list))
        try:
            first = next(it)
        except OSError:
            first = next(it)
        assert [first, *it] == fours
    it = iter(changing.map(fails_once(at=2)))
    assert next(it) == {"x": 1}
    assert_raises(OSError, "2", next, it)
    assert list(it) == [x for four in fours for x in four][1:]


def test_items_are_kept_no_longer_than_needed():
    made = []

    def make(x):
        items = [{x}, {x}]
        made.extend(map(weakref.ref, items))
        return items

    ds = MapDataset.range(100).flat_map(make, max_fan_out=2)
    for i in range(200):
        ds[i]
    list(ds._gm_items(range(150)))
    gc.collect()
    assert [ref() for ref in made] == [None] * 350
    ds[0]
    gc.collect()
    assert len([ref for ref in made if ref() is not None]) == 1


def test_what_is_read():
    transform = Fan()
    it = iter(
        FlatMapIterDataset(MapDataset.range(1000).map(lambda x: x % 4).to_iter_dataset(), transform)
    )
    total = [x for _ in range(10) for x in it._gm_take(128)]
    assert total == [item for x in range(1000) for item in fan(x % 4)][:1280]
    # Each element once, but for those that were read while the number of items was unknown.
    assert 853 <= len(transform.calls) < 1100
    transform.calls.clear()
    it = iter(FlatMapIterDataset(numbers(9), transform))
    it.set_state(state(3, 2))
    assert it.get_state() == state(3, 2)
    assert transform.calls == []  # nothing before the first element
    assert next(it) == (3, 2)
    assert transform.calls == [3]
    assert it.get_state() == state(3, 3)
    assert list(FlatMapIterDataset(Plain(5), fan).batch(3, batch_fn=list)) == [
        [(1, 0), (2, 0), (2, 1)],
        [(3, 0), (3, 1), (3, 2)],
    ]
    # A count that the element cannot have.
    it = iter(FlatMapIterDataset(numbers(9), fan))
    it.set_state(state(2, 3))
    assert_stays(
        it,
        StateMismatchError,
        r"next_index_in_buffer .* is 3, but its element has only 2 items",
        state(2, 3),
    )
    it.set_state(state(2, 2))
    assert next(it) == (3, 0)


@pytest.mark.parametrize(("error", "raised"), [(OSError, OSError), (StopIteration, RuntimeError)])
def test_generators_that_fail_midway_deliver_nothing(error, raised):
    def letters(x):
        yield (x, "a")
        if x == 2:
            raise error(x)
        yield (x, "b")

    it = iter(numbers(4).flat_map(letters))
    assert [next(it) for _ in range(4)] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert_stays(it, raised, None, state(1, 2))
    it.skip_failed()
    assert list(it) == [(3, "a"), (3, "b")]
    ds = MapDataset.range(4).flat_map(letters, max_fan_out=2)
    for i in (4, 5):
        assert_raises(raised, None, ds.__getitem__, i)
