"""What ``LimitIterDataset`` does beyond the laws of all stages."""

import pytest

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.telling.description import describe
from gristmill.experimental import LimitIterDataset

DIRECT = ReadOptions(num_threads=0)


def numbers(n, seen=None):
    ds = MapDataset.range(n)
    if seen is not None:
        ds = ds.map(lambda x: seen.append(x) or x)
    return ds.to_iter_dataset(DIRECT)


@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_the_parent_is_not_asked_for_more(n):
    seen = []
    it = iter(LimitIterDataset(numbers(10, seen), 3))
    taken = []
    for _ in range(5):
        taken += it._take(n)
    assert taken == seen == [0, 1, 2]


def test_an_endless_parent_is_cut():
    assert list(numbers(2).repeat().limit(5)) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("count", [0, -1, -(10**20)])
def test_count_must_be_positive(count):
    with pytest.raises(ValueError, match=f"count must be a positive integer, got {count}"):
        LimitIterDataset(numbers(3), count)


@pytest.mark.parametrize("count", [2.5, "3", None])
def test_count_must_be_an_integer(count):
    with pytest.raises(TypeError, match="count must be an integer"):
        LimitIterDataset(numbers(3), count)


def test_next_index():
    it = iter(numbers(9).batch(2, batch_fn=list).limit(3))
    assert it._get_next_index() == 0
    next(it)
    assert it._get_next_index() == 1
    it._set_next_index(2)
    assert it.get_state() == {"parent": {"next_index": 4}, "count_elements_read": 2}
    assert list(it) == [[4, 5]]
    it._set_next_index(3)
    assert list(it) == []
    it._set_next_index(0)
    assert list(it) == [[0, 1], [2, 3], [4, 5]]


def test_an_impossible_next_index_changes_nothing():
    it = iter(numbers(9).limit(3))
    next(it)
    for index in (-1, 4, 10):
        with pytest.raises(IndexError):
            it._set_next_index(index)
        assert it.get_state() == {"parent": {"next_index": 1}, "count_elements_read": 1}
    it = iter(numbers(9).filter(bool).limit(3))
    with pytest.raises(NotImplementedError):
        it._set_next_index(1)
    assert list(it) == [1, 2, 3]


def test_every_worker_counts_its_own_elements():
    ds = numbers(9).limit(2)
    assert list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) == [0, 1, 2, 3]
    assert list(numbers(9).mp_prefetch(MultiprocessingOptions(num_workers=2)).limit(3)) == [0, 1, 2]


def test_text_specification_and_description():
    ds = LimitIterDataset(numbers(9), 3)
    assert str(ds) == "LimitIterDataset(count=3)"
    assert str(iter(ds)) == "LimitDatasetIterator(count=3)"
    assert get_element_spec(ds) == get_element_spec(MapDataset.range(9))
    assert describe(iter(ds))["count"] == 3
