"""Where elements come from, compared with elements that say it themselves."""

import itertools

import numpy as np
from users_datasets import BareMap

import gristmill as gm
from gristmill.dataset import MapDataset
from gristmill.dataset.telling.origin import origin

N = 10
BASE = MapDataset.range(N)
SHUFFLED = BASE.shuffle(seed=1)

# Of all of them, an element is the keys of what it is made of.
PIPELINES = {
    "source": MapDataset.source(range(N)),
    "range": BASE,
    "map": BASE.map(lambda x: x),
    "map_with_index": BASE.map_with_index(lambda i, x: x),
    "random_map": BASE.random_map(lambda x, rng: x, seed=1),
    "filter": BASE.filter(lambda x: True),
    "seed": BASE.seed(3),
    "shuffle": SHUFFLED,
    "window_shuffle": BASE.window_shuffle(4, seed=1),
    "slice": BASE[1:9:3],
    "slice_of_shuffle": SHUFFLED[::-2],
    "indices": BASE.shuffle(seed=2).slice([3, 3, 1]),
    "repeat": SHUFFLED.repeat(3),
    "repeat_the_same": SHUFFLED.repeat(3, reseed_each_epoch=False),
    "batch": SHUFFLED.batch(4),
    "batch_dropping": SHUFFLED.batch(4, drop_remainder=True),
    "batch_of_batches": BASE.batch(2).batch(3, batch_fn=np.concatenate),
    "flat_map": SHUFFLED.flat_map(lambda x: [x] * 3, max_fan_out=3),
    "zip": BASE.zip(SHUFFLED),
    "source_of_a_dataset": MapDataset.source(SHUFFLED).shuffle(seed=2),
    "mix": MapDataset.mix([SHUFFLED, BASE.shuffle(seed=2)], weights=[1, 2]),
    "concatenate": MapDataset.concatenate([SHUFFLED, BASE.shuffle(seed=2)]),
    "select": MapDataset.select_from_datasets([BASE, SHUFFLED], [(1, 2), (0, 3), (1, 0)] * 30),
}


def keys_of(records):
    return list(itertools.chain.from_iterable([part.keys for part in records]))


def test_the_keys_are_those_of_the_element():
    for name, ds in PIPELINES.items():
        for index in range(3 * len(ds) if name != "select" else len(ds)):
            assert keys_of(origin(ds, [index])) == list(np.ravel(ds[index])), (name, index)


def test_epochs_and_records_of_a_loader():
    for ds, index, epochs in [
        (SHUFFLED.repeat(), 25, [2]),
        (BASE.repeat(5, reseed_each_epoch=False), 25, [2]),
        (BASE.repeat(5, reseed_each_epoch=False).batch(5), 5, [2]),
        (BASE[:4].batch(3), 3, [1]),
        (BASE, -1, [-1]),
        (MapDataset.source(BASE), 21, [2]),
        (MapDataset.concatenate([BASE, BASE[:2]]), 25, [2]),
        (BASE.repeat(2).batch(15), 0, [0, 1]),
    ]:
        assert [part.epoch for part in origin(ds, [index])] == epochs
    sampler = gm.samplers.IndexSampler(N, gm.sharding.ShardOptions(1, 2), shuffle=True, seed=4, num_epochs=3)
    loader = gm.DataLoader(data_source=range(N), sampler=sampler, operations=[gm.transforms.Batch(2)])
    (ds,) = [node for node in loader._dataset._parent.parents if isinstance(node, MapDataset)]
    for index in range(len(ds)):
        (part,) = origin(ds, [index])
        assert (part.epoch, part.sampled, part.keys) == (index // 5, [2 * index + 1], [sampler[2 * index + 1].record_key])


def test_what_cannot_be_known_is_left_out():
    get, own_map = {"__getitem__": lambda self, key: key}, type("OwnMap", (type(PIPELINES["map"]),), {})
    kinds = type("NoLength", (), get), type("Failing", (), {**get, "__len__": lambda self: 1 // 0}), list
    sources = [MapDataset.source(kind()) for kind in kinds]
    for ds in (BareMap(N), *sources, own_map(BASE, abs), MapDataset.range(1_000_000).batch(1_000_000)):
        assert origin(ds, [0]) == []
    assert keys_of(origin(BareMap(N).zip(BASE), [3])) == [3]
