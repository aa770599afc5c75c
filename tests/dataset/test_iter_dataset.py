"""What ``IterDataset`` promises beyond the laws: element by element, checks of arguments, read options."""

import re

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset

FIVE = MapDataset.range(5).to_iter_dataset()


BAD_CALLS = [
    (lambda: FIVE.random_map(len), ValueError, r"random_map.*(ds\.seed\(seed\).*seed=|seed=.*ds\.seed\(seed\))"),
    (lambda: FIVE.random_map(len, seed=-1), ValueError, "seed .*-1"),
    (lambda: FIVE.random_map(len, seed="1"), TypeError, "seed .*'1'"),
    (lambda: FIVE.seed(-1), ValueError, "seed .*-1"),
    (lambda: FIVE.seed(1.0), TypeError, r"seed .*1\.0"),
    (lambda: FIVE.batch(2, batch_fn="x"), TypeError, "batch_fn .*'x'"),
    (lambda: WithOptionsIterDataset(FIVE, None), TypeError, "options must be a DatasetOptions, got None"),
    (lambda: WithOptionsIterDataset(FIVE, {}), TypeError, "options .*{}"),
    (lambda: WithOptionsIterDataset([1], DatasetOptions()), TypeError, "parents .*MapDataset"),
    (lambda: PrefetchIterDataset(FIVE), TypeError, "parent .*MapDataset"),
    (lambda: ReadOptions(-1), ValueError, "num_threads .*-1"),
    (lambda: ReadOptions(1, -1), ValueError, "prefetch_buffer_size .*-1"),
    (lambda: ReadOptions(1.5), TypeError, r"num_threads .*1\.5"),
    (lambda: ReadOptions(None), TypeError, "num_threads .*None"),
    (IterDataset, TypeError, "abstract"),
    (DatasetIterator, TypeError, "abstract"),
]


def test_wrong_arguments_and_no_random_access():
    for call, error, match in BAD_CALLS:
        assert_raises(error, re.compile(match, re.DOTALL), call)
    assert not [name for name in ("__len__", "__getitem__", "shuffle", "slice", "to_iter_dataset") if hasattr(FIVE, name)]
    assert isinstance(iter(FIVE), DatasetIterator) and isinstance(iter(MapDataset.range(3)), DatasetIterator)


def test_states_of_the_specification_and_batches_of_their_own():
    def indices(ds):
        it = iter(ds)
        return [state["next_index"] for state in [it.get_state(), *[it.get_state() for _ in it], it.get_state()]]

    assert indices(MapDataset.range(5).filter(lambda x: x in (1, 2)).to_iter_dataset()) == [0, 2, 3, 5]
    assert indices(FIVE.batch(2)) == [0, 2, 4, 5, 5]
    assert indices(FIVE.batch(2, drop_remainder=True)) == [0, 2, 4, 5]
    it = iter(FIVE.filter(lambda x: x % 2).map_with_index(lambda i, x: x).random_map(lambda x, rng: x, seed=1))
    next(it)
    assert it.get_state() == {"parent": {"parent": {"next_index": 2}, "counter": 1}, "index_for_rng": 1}
    kept = list(MapDataset.range(6).map(lambda i: np.full(200_000, i)).to_iter_dataset().batch(2))
    assert [b[:, 0].tolist() for b in kept] == [[0, 1], [2, 3], [4, 5]]
    assert all(batch.flags.c_contiguous and batch.flags.writeable for batch in kept)


TEXTS = [
    (FIVE.batch(2), "BatchIterDataset(batch_size=2, drop_remainder=False)"),
    (iter(FIVE.batch(2)), "BatchDatasetIterator(batch_size=2, drop_remainder=False)"),
    (FIVE.map(len), "MapIterDataset(transform=len)"),
    (iter(FIVE.map(len)), "MapDatasetIterator(transform=len)"),
    (FIVE.filter(len), "FilterIterDataset(transform=len)"),
    (iter(FIVE.filter(len)), "FilterDatasetIterator(transform=len)"),
    (iter(FIVE.map_with_index(len)), "MapWithIndexDatasetIterator(transform=len)"),
    (iter(FIVE.random_map(len, seed=1)), "RandomMapDatasetIterator(transform=len)"),
    (iter(MapDataset.source([1])), f"PrefetchDatasetIterator(read_options={ReadOptions()}, allow_nones=False)"),
    (ReadOptions(), "ReadOptions(num_threads=16, prefetch_buffer_size=500)"),
]


def test_texts_and_read_options(caplog):
    for value, text in TEXTS:
        assert str(value) == text
    assert ReadOptions(np.int64(3), np.int8(7)) == ReadOptions(3, 7)
    assert type(ReadOptions(np.int64(3)).num_threads) is int
    options = ReadOptions()
    assert_raises(TypeError, "unhashable", hash, options)
    options.num_threads = 2
    assert repr(options) == "ReadOptions(num_threads=2, prefetch_buffer_size=500)"
    with pytest.raises(AttributeError):
        options.threads = 3
    ReadOptions(16, 16), ReadOptions(16, 0), ReadOptions(0, 4)
    assert caplog.records == []
    ReadOptions(16, 4)  # a small buffer
    assert "16" in caplog.text and "4" in caplog.text


def test_where_none_is_an_element_only_the_failed_one_is_skipped():
    for num_threads in (0, 2):
        healthy = set()
        ds = MapDataset.range(5).map(lambda i, healthy=healthy: i if i != 2 else None if healthy else 1 / 0)
        it = iter(ds.to_iter_dataset(ReadOptions(num_threads, 4), allow_nones=True))
        assert [next(it), next(it)] == [0, 1]
        assert_raises(ZeroDivisionError, None, next, it)
        healthy.add("now")
        it.skip_failed()
        assert list(it) == [3, 4]
