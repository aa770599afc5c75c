"""Where elements come from, compared with elements that say it themselves."""

import itertools

import numpy as np
import pytest

import gristmill as gm
from gristmill.dataset import MapDataset
from gristmill.dataset.telling.origin import origin

N = 10
BASE = MapDataset.range(N)


class Letters(gm.transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element):
        return [element] * 3


class Source:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, key):
        return key


# Of all of them, an element is the keys of what it is made of.
PIPELINES = {
    "source": MapDataset.source(Source(N)),
    "range": BASE,
    "map": BASE.map(lambda x: x),
    "map_with_index": BASE.map_with_index(lambda i, x: x),
    "random_map": BASE.random_map(lambda x, rng: x, seed=1),
    "filter": BASE.filter(lambda x: True),
    "seed": BASE.seed(3),
    "shuffle": BASE.shuffle(seed=1),
    "window_shuffle": BASE.window_shuffle(4, seed=1),
    "slice": BASE[1:9:3],
    "slice_of_shuffle": BASE.shuffle(seed=1)[::-2],
    "indices": BASE.shuffle(seed=2).slice([3, 3, 1]),
    "repeat": BASE.shuffle(seed=1).repeat(3),
    "repeat_the_same": BASE.shuffle(seed=1).repeat(3, reseed_each_epoch=False),
    "batch": BASE.shuffle(seed=1).batch(4),
    "batch_dropping": BASE.shuffle(seed=1).batch(4, drop_remainder=True),
    "batch_of_batches": BASE.batch(2).batch(3, batch_fn=np.concatenate),
    "flat_map": BASE.shuffle(seed=1).flat_map(Letters()),
    "zip": BASE.zip(BASE.shuffle(seed=1)),
    "source_of_a_dataset": MapDataset.source(BASE.shuffle(seed=1)).shuffle(seed=2),
    "mix": MapDataset.mix([BASE.shuffle(seed=1), BASE.shuffle(seed=2)], weights=[1, 2]),
    "concatenate": MapDataset.concatenate([BASE.shuffle(seed=1), BASE.shuffle(seed=2)]),
    "select": MapDataset.select_from_datasets([BASE, BASE.shuffle(seed=1)], [(1, 2), (0, 3), (1, 0)] * 30),
}


def keys_of(records):
    return list(itertools.chain.from_iterable([part.keys for part in records]))


@pytest.mark.parametrize("name", PIPELINES)
def test_the_keys_are_those_of_the_element(name):
    ds = PIPELINES[name]
    for index in range(3 * len(ds) if name != "select" else len(ds)):
        assert keys_of(origin(ds, [index])) == list(np.ravel(ds[index])), index


def test_the_epoch_is_that_of_the_source():
    def epochs(ds, index):
        return [part.epoch for part in origin(ds, [index])]

    assert epochs(BASE.shuffle(seed=1).repeat(), 25) == [2]
    assert epochs(BASE.repeat(5, reseed_each_epoch=False), 25) == [2]
    assert epochs(BASE.repeat(5, reseed_each_epoch=False).batch(5), 5) == [2]
    assert epochs(BASE[:4].batch(3), 3) == [1]
    assert epochs(BASE, -1) == [-1]
    assert epochs(MapDataset.source(BASE), 21) == [2]
    assert epochs(MapDataset.concatenate([BASE, BASE[:2]]), 25) == [2]
    assert epochs(BASE.repeat(2).batch(15), 0) == [0, 1]


def test_records_of_a_loader_are_those_of_its_sampler():
    sampler = gm.samplers.IndexSampler(N, gm.sharding.ShardOptions(1, 2), shuffle=True, seed=4, num_epochs=3)
    loader = gm.DataLoader(data_source=range(N), sampler=sampler, operations=[gm.transforms.Batch(2)])
    (ds,) = [node for node in loader._dataset._parent.parents if isinstance(node, MapDataset)]
    for index in range(len(ds)):
        (part,) = origin(ds, [index])
        assert (part.epoch, part.sampled, part.keys) == (index // 5, [2 * index + 1], [sampler[2 * index + 1].record_key])


def test_what_cannot_be_known_is_left_out():
    class Own(MapDataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return index

    class NoLength:
        def __getitem__(self, key):
            return key

    class Broken(Source):
        def __len__(self):
            raise OSError("not now")

    class OwnMap(type(PIPELINES["map"])):
        pass

    assert origin(Own(), [1]) == origin(MapDataset.source(NoLength()), [1]) == origin(MapDataset.source(Broken(1)), [1]) == []
    assert origin(OwnMap(BASE, abs), [1]) == []
    half = Own().zip(BASE)
    assert keys_of(origin(half, [3])) == [3]
    assert origin(MapDataset.range(1_000_000).batch(1_000_000), [0]) == []
    assert origin(MapDataset.source([]), [0]) == []
