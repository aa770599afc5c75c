"""States are small, and count outputs that were left out like any others."""

import json
import sys

import cloudpickle
import numpy as np
import pytest
from operations import operation

import gristmill
from gristmill.dataset import IterDataset, MapDataset
from gristmill.experimental import FirstFitPackIterDataset, FlatMapTransform, InterleaveIterDataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers would import


def stream(n=10**6):
    return MapDataset.range(n).to_iter_dataset()


def packing_of_a_mix():
    tokens = stream().map(lambda i: {"tokens": np.full(i % 50 + 1, i)})
    return FirstFitPackIterDataset(IterDataset.mix([tokens] * 5), length_struct={"tokens": 64}, num_packing_bins=8).batch(4)


CROPS = operation(FlatMapTransform, "flat_map", lambda x: [x] * 4, max_fan_out=4)


def fail_at(*bad):
    def check(element):
        if element in bad:
            raise OSError(f"record {element} is bad")
        return element

    return operation(gristmill.transforms.Map, "map", check)


def image_loader(num_workers, *operations):
    num = 1_281_167
    shard = gristmill.sharding.ShardOptions(shard_index=127, shard_count=128, drop_remainder=True)
    return gristmill.DataLoader(
        data_source=gristmill.sources.RangeDataSource(0, num, 1),
        sampler=gristmill.samplers.IndexSampler(num, shard_options=shard, shuffle=True, num_epochs=90, seed=2**31),
        operations=[*operations, fail_at(), gristmill.transforms.Batch(256, drop_remainder=True)],
        worker_count=num_workers,
    )


def processes(ds, num):
    return ds.mp_prefetch(gristmill.multiprocessing.MultiprocessingOptions(num_workers=num))


# With the number of elements to take: none where that would start worker processes.
COMMON = {
    "images": (lambda: image_loader(0), 3),
    "images, 8 workers": (lambda: image_loader(8), 0),
    "images, crops": (lambda: image_loader(0, CROPS), 3),
    "images, crops, 4 workers": (lambda: image_loader(4, CROPS), 0),
    "mix of 5 window shuffles": (lambda: IterDataset.mix([stream().window_shuffle(64, seed=i) for i in range(5)]), 3),
    "interleave": (lambda: InterleaveIterDataset([stream(1000) for _ in range(100)], cycle_length=16).batch(8), 3),
    "packing of a mix": (packing_of_a_mix, 3),
    "4 processes": (lambda: processes(stream().random_map(lambda x, rng: x, seed=1).batch(32), 4), 0),
    "8 processes, then batches": (lambda: processes(stream(), 8).batch(32), 0),
}


@pytest.mark.parametrize("name", COMMON)
def test_states_of_common_pipelines_are_below_a_kilobyte(name):
    make, num = COMMON[name]
    with iter(make()) as it:
        for position in range(num + 1):
            if position:
                next(it)
            state = it.get_state()
            assert len(json.dumps(json.loads(state) if isinstance(state, bytes) else state)) < 1024


def rest_of(it, when_skipped=lambda found: None):
    """The remaining outputs; those that fail are left out."""
    found = []
    while True:
        try:
            found.append(np.asarray(next(it)).tolist() if isinstance(it, gristmill.DataLoaderIterator) else next(it))
        except StopIteration:
            return found
        except OSError:
            it.skip_failed()
            when_skipped(found)


BAD, BATCH = fail_at(0, 5, 6), gristmill.transforms.Batch(2)
OF_LOADERS = [(0, [BAD]), (0, [BAD, CROPS]), (0, [CROPS, BAD, BATCH]), (2, [fail_at(4), BATCH]), (3, [fail_at(0, 5), CROPS])]


@pytest.mark.parametrize(("num_workers", "operations"), OF_LOADERS)
def test_the_state_of_a_loader_after_leaving_out_an_output_restores(num_workers, operations):
    sampler = gristmill.samplers.SequentialSampler(9)
    loader = gristmill.DataLoader(data_source=range(9), sampler=sampler, operations=operations, worker_count=num_workers)
    rests = []
    with iter(loader) as it, iter(loader) as again:

        def restore(found):
            again.set_state(it.get_state())
            assert again.get_state() == it.get_state()
            rests.append((len(found), rest_of(again)))

        start = it.get_state()
        found = rest_of(it, restore)
        again.set_state(start)
        assert rest_of(again) == found
    assert rests and all(rest == found[position:] for position, rest in rests)
