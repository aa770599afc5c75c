"""What a first guide to ``MapDataset`` and ``IterDataset`` shows, with the results that Grain gives."""

import json

import numpy as np
import pytest

import gristmill.python as grain


def lists(batches):
    return [batch.tolist() for batch in batches]


def chain(ds):
    return ds.shuffle(seed=7).map(lambda x: x * 2).batch(batch_size=3)


@pytest.fixture
def dataset():
    return chain(grain.MapDataset.source(list(range(20, 31))))


def test_a_chain_over_a_list_and_its_epochs(dataset):
    assert len(dataset) == 4
    assert isinstance(dataset[0], np.ndarray)
    assert lists(dataset[len(dataset) + i] for i in range(4)) == [[50, 46, 60], [54, 58, 42], [40, 44, 48], [56, 52]]
    # Asking for later epochs changes nothing.
    assert lists(dataset) == lists(chain(grain.MapDataset.range(20, 31))) == [[48, 40, 46], [54, 44, 58], [52, 60, 42], [50, 56]]
    ds = grain.MapDataset.range(5).map(lambda x: x**2)
    assert all(ds[len(ds) + i] == ds[i] for i in range(5))


@pytest.mark.parametrize("bases", [(grain.RandomAccessDataSource,), ()])
def test_a_source_of_ones_own(bases):
    class Digits(*bases):
        def __init__(self):
            self._digits = [3, 1, 4, 1, 5, 9, 2, 6]

        def __len__(self):
            return len(self._digits)

        def __getitem__(self, index):
            return self._digits[index]

    ds = grain.MapDataset.source(Digits()).shuffle(seed=3).map(lambda x: x + 0.5).batch(batch_size=2)
    assert lists(ds) == [[5.5, 6.5], [3.5, 1.5], [4.5, 9.5], [1.5, 2.5]]
    assert isinstance(Digits(), grain.RandomAccessDataSource)


def test_what_is_filtered_out(dataset):
    even = dataset.filter(lambda batch: sum(batch) % 3 == 0)
    assert len(even) == 4
    assert [x if x is None else x.tolist() for x in (even[i] for i in range(4))] == [None, [54, 44, 58], None, None]
    assert lists(even) == [[54, 44, 58]]
    odd = grain.MapDataset.range(6).filter(lambda x: x % 2)
    assert list(odd.to_iter_dataset()) == [1, 3, 5]
    assert list(odd.to_iter_dataset(allow_nones=True)) == [None, 1, None, 3, None, 5]
    with pytest.raises(ValueError, match="to_iter_dataset"):
        odd.batch(2)
    assert lists(odd.to_iter_dataset().batch(2)) == [[1, 3], [5]]


def test_slices_are_shards_and_threads_change_nothing(dataset):
    epochs = [([4, 1, 3], [6, 3, 5]), ([7, 2, 6], [0, 2, 7]), ([0, 5], [4, 1])]
    for i, (first, second) in enumerate(epochs):
        shard = grain.MapDataset.range(8).shuffle(seed=3)[i::3]
        assert isinstance(shard, grain.MapDataset)
        assert len(shard) == len(first)
        assert list(shard) == first
        assert [shard[len(shard) + i] for i in range(len(shard))] == second
    assert lists(dataset[1::2]) == [[54, 44, 58], [50, 56]]
    for num_threads, prefetch_buffer_size in ((16, 500), (1, 1), (3, 2), (0, 0)):
        read_options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=prefetch_buffer_size)
        assert lists(dataset[0::2].to_iter_dataset(read_options)) == [[48, 40, 46], [52, 60, 42]]


def test_iterators_can_be_rewound_and_states_are_small(dataset):
    it = iter(dataset)
    assert isinstance(it, grain.DatasetIterator)
    assert next(it).tolist() == [48, 40, 46]
    state = it.get_state()
    assert next(it).tolist() == [54, 44, 58]
    text = json.dumps(it.get_state())
    assert text == '{"next_index": 2}'  # a position, no data
    it.set_state(state)
    assert lists(it) == [[54, 44, 58], [52, 60, 42], [50, 56]]
    other = iter(dataset)
    other.set_state(json.loads(text))
    assert lists(other) == [[52, 60, 42], [50, 56]]
