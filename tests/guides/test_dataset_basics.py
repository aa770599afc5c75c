"""What a first guide to ``MapDataset`` and ``IterDataset`` shows, with the results that Grain gives."""

import json

import numpy as np
import pytest


def lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture
def dataset(grain):
    return grain.MapDataset.source(list(range(20, 31))).shuffle(seed=7).map(lambda x: x * 2).batch(batch_size=3)


def test_a_chain_over_a_list(dataset):
    assert len(dataset) == 4
    assert dataset[0].tolist() == [48, 40, 46]
    assert isinstance(dataset[0], np.ndarray)
    assert lists(dataset) == [[48, 40, 46], [54, 44, 58], [52, 60, 42], [50, 56]]


def test_range_is_a_shortcut(grain, dataset):
    shortcut = grain.MapDataset.range(20, 31).shuffle(seed=7).map(lambda x: x * 2).batch(batch_size=3)
    assert lists(shortcut) == lists(dataset)


@pytest.mark.parametrize("inherits", [True, False])
def test_a_source_of_ones_own(grain, inherits):
    class Digits(*([grain.RandomAccessDataSource] if inherits else [])):
        def __init__(self):
            self._digits = [3, 1, 4, 1, 5, 9, 2, 6]

        def __len__(self):
            return len(self._digits)

        def __getitem__(self, index):
            return self._digits[index]

    ds = grain.MapDataset.source(Digits()).shuffle(seed=3).map(lambda x: x + 0.5).batch(batch_size=2)
    assert lists(ds) == [[5.5, 6.5], [3.5, 1.5], [4.5, 9.5], [1.5, 2.5]]
    assert isinstance(Digits(), grain.RandomAccessDataSource)


def test_an_index_past_the_end_is_in_a_later_epoch(dataset):
    assert lists(dataset[len(dataset) + i] for i in range(4)) == [[50, 46, 60], [54, 58, 42], [40, 44, 48], [56, 52]]
    assert not np.array_equal(dataset[len(dataset) + 2], dataset[2])
    assert dataset[2].tolist() == [52, 60, 42]  # asking for later epochs changes nothing


def test_epochs_without_random_steps_are_equal(grain):
    ds = grain.MapDataset.range(5).map(lambda x: x**2)
    assert all(ds[len(ds) + i] == ds[i] for i in range(5))


def test_filtered_elements_are_none_and_keep_their_place(dataset):
    even = dataset.filter(lambda batch: sum(batch) % 3 == 0)
    sums = [sum(batch) for batch in dataset]
    assert sums == [134, 156, 154, 106]
    assert len(even) == 4
    assert [x if x is None else x.tolist() for x in (even[i] for i in range(4))] == [None, [54, 44, 58], None, None]
    assert lists(even) == [[54, 44, 58]]


@pytest.mark.parametrize(
    ("shard_index", "first_epoch", "second_epoch"),
    [(0, [4, 1, 3], [6, 3, 5]), (1, [7, 2, 6], [0, 2, 7]), (2, [0, 5], [4, 1])],
)
def test_slices_are_shards(grain, shard_index, first_epoch, second_epoch):
    shard = grain.MapDataset.range(8).shuffle(seed=3)[shard_index::3]
    assert isinstance(shard, grain.MapDataset)
    assert len(shard) == len(first_epoch)
    assert list(shard) == first_epoch
    assert [shard[len(shard) + i] for i in range(len(shard))] == second_epoch


def test_batches_can_be_shared_out_too(dataset):
    assert lists(dataset[1::2]) == [[54, 44, 58], [50, 56]]


@pytest.mark.parametrize("options", [(16, 500), (1, 1), (3, 2), (0, 0)])
def test_reading_by_threads_changes_nothing(grain, dataset, options):
    num_threads, prefetch_buffer_size = options
    read_options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=prefetch_buffer_size)
    assert lists(dataset[0::2].to_iter_dataset(read_options)) == [[48, 40, 46], [52, 60, 42]]


def test_what_is_not_there_is_left_out_of_a_stream(grain):
    odd = grain.MapDataset.range(6).filter(lambda x: x % 2)
    assert list(odd.to_iter_dataset()) == [1, 3, 5]
    assert list(odd.to_iter_dataset(allow_nones=True)) == [None, 1, None, 3, None, 5]


def test_batch_after_filter_needs_a_stream(grain):
    odd = grain.MapDataset.range(8).filter(lambda x: x % 2)
    with pytest.raises(ValueError, match="to_iter_dataset"):
        odd.batch(2)
    assert lists(odd.to_iter_dataset().batch(2)) == [[1, 3], [5, 7]]


def test_iterators_can_be_rewound(grain, dataset):
    it = iter(dataset)
    assert isinstance(it, grain.DatasetIterator)
    assert next(it).tolist() == [48, 40, 46]
    state = it.get_state()
    assert next(it).tolist() == [54, 44, 58]
    it.set_state(state)
    assert lists(it) == [[54, 44, 58], [52, 60, 42], [50, 56]]


def test_states_are_small_and_fit_other_iterators(dataset):
    it = iter(dataset)
    next(it), next(it)
    text = json.dumps(it.get_state())
    assert text == '{"next_index": 2}'  # a position, no data
    other = iter(dataset)
    other.set_state(json.loads(text))
    assert lists(other) == [[52, 60, 42], [50, 56]]
