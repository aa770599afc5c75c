import random

import numpy as np
import pytest
from computing_ahead import DIRECT, Failing, numbers
from formulas import window_order, window_shuffled
from refusing import assert_raises, assert_refused, assert_stays

from gristmill import MapDataset
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import WindowShuffleIterDataset, WindowShuffleMapDataset


def state(start, number, position):
    return {
        "parent_window_start_state": {"next_index": start},
        "window_index": number,
        "pos_in_window": position,
    }


TWELVE = [4 * k + i for k in range(3) for i in window_order(4, 6 + k)]


def reading(keys, fn=lambda x: x):
    """Over twelve numbers; writes down what is read."""
    ds = MapDataset.range(12).map(lambda x: (keys.append(x), fn(x))[1])
    return iter(ds.to_iter_dataset(DIRECT).window_shuffle(4, seed=6))


@pytest.mark.parametrize("make", [MapDataset.range, numbers], ids=["map", "iter"])
def test_arguments_and_specs(make):
    ds = make(5)

    for wrong, error in ((-1, ValueError), (2**32, ValueError), (1.0, TypeError)):
        assert_raises(error, "seed must be", ds.window_shuffle, 3, seed=wrong)
    assert_raises(ValueError, "window_shuffle needs a seed", ds.window_shuffle, 3)
    seeded = ds.seed(8).window_shuffle(3)
    assert list(seeded) == list(ds.window_shuffle(3, seed=int(seeded._default_seed)))
    assert list(ds.window_shuffle(np.int64(3), seed=np.uint32(4))) == list(
        ds.window_shuffle(3, seed=4)
    )
    expected = "WindowShuffleMapDataset"
    assert (str(WindowShuffleMapDataset(MapDataset.range(3), window_size=2, seed=1))) == expected
    expected = "WindowShuffleIterDataset"
    assert (str(WindowShuffleIterDataset(numbers(3), window_size=2, seed=1))) == expected
    expected = "WindowShuffleDatasetIterator"
    assert (str(iter(WindowShuffleIterDataset(numbers(3), window_size=2, seed=1)))) == expected


@pytest.mark.parametrize("size", [3, 255, 256, 257, 65_535, 65_536, 65_537, 65_538])
def test_windows_of_any_size(size):
    n = 2 * size + size // 2 + 1
    ds = MapDataset.range(n).window_shuffle(size, seed=9)
    rng = random.Random(size)
    places = [0, 1, size - 1, size, 2 * size - 1, 2 * size, n - 1, n, *rng.sample(range(3 * n), 10)]
    expected = [window_shuffled(i, n, size, 9) % n for i in places]
    assert list(ds._gm_items(places)) == expected
    assert [ds[i] for i in places[:6]] == expected[:6]
    for start in (0, size - 2, 2 * size - 2, n - 3):
        assert list(ds._gm_items(range(start, start + 5))) == [
            window_shuffled(i, n, size, 9) % n for i in range(start, start + 5)
        ]
    assert size > 4096 or sorted(ds) == list(range(n))


def test_what_is_read_and_states():
    keys = []
    it = reading(keys)
    for _ in range(2):
        it.set_state(state(4, 1, 2))
    assert it.get_state() == state(4, 1, 2)
    assert keys == []  # nothing before the first element
    assert next(it) == TWELVE[6]
    assert keys == [4, 5, 6, 7]
    assert it.get_state() == state(4, 1, 3)
    it.set_state(state(0, 1, 4))  # at the end of a window
    assert list(it) == TWELVE[4:]
    it = iter(numbers(10).window_shuffle(4, seed=6))
    next(it)
    assert_refused(
        it,
        StateMismatchError,
        r"pos_in_window .* at most window_size = 4, got 5",
        state(0, 1, 5),
        state(0, 0, 1),
    )
    it.set_state(state(8, 2, 3))  # the last window has two elements: this is seen when it is read
    assert_stays(
        it, StateMismatchError, r"pos_in_window .* is 3, but only 2 elements follow", state(8, 2, 3)
    )
    it.set_state(state(8, 2, 1))
    assert len(list(it)) == 1


def test_errors_in_the_next_window_and_behind():
    keys, failing = [], Failing(5, error=OSError)
    it = reading(keys, failing)
    assert [next(it) for _ in range(4)] == TWELVE[:4]
    assert_stays(it, OSError, "5", state(0, 1, 4))
    failing.left.clear()
    assert list(it) == TWELVE[4:]
    assert not {0, 1, 2, 3}.intersection(keys[4:])  # it did not cost the last window
    # Failures downstream find the elements as they were.
    records = MapDataset.range(6).map(lambda x: {"x": x}).to_iter_dataset()
    failing = Failing(3, times=1, error=OSError)
    it = iter(
        records.window_shuffle(6, seed=2)
        .map(lambda record: record.pop("x"))
        .map(failing)
        .batch(3, batch_fn=list)
    )
    batches = []
    assert_raises(OSError, "3", batches.extend, it)
    batches.extend(it)
    assert [x for batch in batches for x in batch] == window_order(6, 2)
