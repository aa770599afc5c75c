"""What states are like: JSON, of one shape, small; and that they count outputs that were left out like any others."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from state_damage import as_json

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from stage_table import ITER_ENTRIES, MAP_ENTRIES
from test_error_laws import AFTER, FAILED, STAGES, TYPICAL, Bombs, Boom, N, build, outcomes

import gristmill
from gristmill.dataset import IterDataset, MapDataset
from gristmill.experimental import FirstFitPackIterDataset, FlatMapTransform, InterleaveIterDataset, ThreadPrefetchIterDataset

PIPELINES = {
    **{entry.name: entry.make for entry in ITER_ENTRIES},
    **{f"map_{entry.name}": lambda entry=entry: entry.make().to_iter_dataset() for entry in MAP_ENTRIES},
}


def shape(state):
    if isinstance(state, dict):
        return {key: shape(value) for key, value in state.items()}
    return [shape(value) for value in state] if isinstance(state, list) else type(state)


@pytest.mark.parametrize("name", PIPELINES)
def test_states_are_json_and_keep_their_shape(name):
    it = iter(PIPELINES[name]())
    first = it.get_state()
    for _ in it:
        state = it.get_state()
        json.dumps(state, allow_nan=False)
        assert shape(state) == shape(first)
        assert shape(as_json(state)) == shape(as_json(first))
    assert shape(it.get_state()) == shape(first)


def numbers(n=10**6):
    return MapDataset.range(n).seed(1)


def tokens():
    return numbers().map(lambda i: {"tokens": np.full(i % 50 + 1, i)}).to_iter_dataset()


class Decode(gristmill.transforms.Map):
    def map(self, element):
        return np.full((4, 4, 3), element)


class Crops(FlatMapTransform):
    max_fan_out = 4

    def flat_map(self, element):
        return [element] * 4


def image_loader(num_workers, *operations):
    return gristmill.DataLoader(
        data_source=gristmill.sources.RangeDataSource(0, 1_281_167, 1),
        sampler=gristmill.samplers.IndexSampler(
            1_281_167,
            shard_options=gristmill.sharding.ShardOptions(shard_index=127, shard_count=128, drop_remainder=True),
            shuffle=True,
            num_epochs=90,
            seed=2**31,
        ),
        operations=[*operations, Decode(), gristmill.transforms.Batch(256, drop_remainder=True)],
        worker_count=num_workers,
    )


def processes(ds, num):
    return ds.mp_prefetch(gristmill.multiprocessing.MultiprocessingOptions(num_workers=num))


COMMON = {
    "images": lambda: image_loader(0),
    "images, 8 workers": lambda: image_loader(8),
    "images, crops": lambda: image_loader(0, Crops()),
    "images, crops, 4 workers": lambda: image_loader(4, Crops()),
    "shuffle, map, batch": lambda: numbers().shuffle().map(str).repeat(3).batch(64).to_iter_dataset(),
    "shuffle, map, batch of a stream": lambda: numbers().shuffle().to_iter_dataset().map(str).filter(len).batch(64),
    "everything random": lambda: (
        numbers().shuffle().to_iter_dataset().random_map(lambda x, rng: x).map_with_index(lambda i, x: x).batch(8)
    ),
    "mix of 5 by index": lambda: MapDataset.mix([numbers() for _ in range(5)], weights=[1, 2, 3, 4, 5]).to_iter_dataset(),
    "mix of 5": lambda: IterDataset.mix([numbers().shuffle().to_iter_dataset() for _ in range(5)], weights=[1, 2, 3, 4, 5]),
    "mix of 5 window shuffles": lambda: IterDataset.mix([numbers().to_iter_dataset().window_shuffle(64) for _ in range(5)]),
    "interleave, cycle 4": lambda: InterleaveIterDataset([numbers(1000) for _ in range(100)], cycle_length=4).batch(8),
    "interleave, cycle 16": lambda: InterleaveIterDataset([numbers(1000) for _ in range(100)], cycle_length=16),
    "window shuffle": lambda: numbers().to_iter_dataset().window_shuffle(window_size=512).batch(32),
    "flat map": lambda: numbers().to_iter_dataset().flat_map(Crops()).batch(8),
    "packing": lambda: FirstFitPackIterDataset(tokens(), length_struct={"tokens": 64}, num_packing_bins=8).batch(4),
    "packing of a mix": lambda: FirstFitPackIterDataset(
        IterDataset.mix([tokens() for _ in range(5)]), length_struct={"tokens": 64}, num_packing_bins=8
    ),
    "thread": lambda: ThreadPrefetchIterDataset(numbers().to_iter_dataset().batch(8), prefetch_buffer_size=2),
    "4 processes": lambda: processes(numbers().shuffle().to_iter_dataset().random_map(lambda x, rng: x).batch(32), 4),
    "8 processes, then batches": lambda: processes(numbers().shuffle().to_iter_dataset(), 8).batch(32),
    "epochs of a cache": lambda: numbers(100).to_iter_dataset().cache().repeat(5).batch(32),
}
STARTS_PROCESSES = ("images, 8 workers", "images, crops, 4 workers", "4 processes", "8 processes, then batches")


@pytest.mark.parametrize("name", COMMON)
def test_states_of_common_pipelines_are_below_a_kilobyte(name):
    """As ``json.dumps`` writes them, without the spaces of a checkpoint file."""
    it = iter(COMMON[name]())
    try:
        states = [it.get_state()]
        if name not in STARTS_PROCESSES:
            for _ in range(3):
                next(it)
                states.append(it.get_state())
        for state in states:
            assert len(json.dumps(json.loads(state) if isinstance(state, bytes) else state)) < 1024
    finally:
        it.close()


def rest_of(it):
    """The remaining outputs; those that fail are left out."""
    found = []
    while True:
        try:
            found.append(next(it))
        except StopIteration:
            return found
        except (Boom, OSError):
            it.skip_failed()


@pytest.mark.parametrize("after", TYPICAL)
@pytest.mark.parametrize("stage", STAGES)
def test_the_state_after_leaving_out_an_output_restores(stage, after):
    bad = {1, 6, 7}
    it = iter(build(stage, after, "direct", Bombs(bad)))
    expected = outcomes(stage, after, bad)
    for position, output in enumerate(expected, 1):
        if output is FAILED:
            with pytest.raises(Boom):
                next(it)
            it.skip_failed()
        else:
            assert next(it) == output
        state = as_json(it.get_state())
        again = iter(build(stage, after, "direct", Bombs(bad)))
        again.set_state(state)
        assert as_json(again.get_state()) == state
        assert rest_of(again) == [x for x in expected[position:] if x is not FAILED]
    assert N > 7 and after in AFTER


class FailAt(gristmill.transforms.Map):
    def __init__(self, *bad):
        self.bad = bad

    def map(self, element):
        if element in self.bad:
            raise OSError(f"record {element} is bad")
        return element


BATCH = gristmill.transforms.Batch(2)


@pytest.mark.parametrize(
    ("num_workers", "operations"),
    [
        (0, [FailAt(0, 5, 6)]),
        (0, [FailAt(0, 5, 6), BATCH]),
        (0, [FailAt(0, 5, 6), Crops()]),
        (0, [Crops(), FailAt(0, 5, 6), BATCH]),
        (2, [FailAt(4), BATCH]),
        pytest.param(2, [FailAt(0, 5), Crops()], marks=pytest.mark.slow),
        pytest.param(3, [FailAt(0, 5), BATCH], marks=pytest.mark.slow),
    ],
)
def test_the_state_of_a_loader_after_leaving_out_an_output_restores(num_workers, operations):
    loader = gristmill.DataLoader(
        data_source=range(9), sampler=gristmill.samplers.SequentialSampler(9), operations=operations, worker_count=num_workers
    )
    with iter(loader) as it:
        expected = [np.asarray(x).tolist() for x in rest_of(it)]
    num_delivered, num_left_out = 0, 0
    with iter(loader) as it, iter(loader) as again:
        while True:
            try:
                assert np.asarray(next(it)).tolist() == expected[num_delivered]
                num_delivered += 1
            except StopIteration:
                break
            except OSError:
                it.skip_failed()
                num_left_out += 1
                again.set_state(it.get_state())
                assert again.get_state() == it.get_state()
                assert [np.asarray(x).tolist() for x in rest_of(again)] == expected[num_delivered:]
    assert num_delivered == len(expected)
    assert num_left_out
