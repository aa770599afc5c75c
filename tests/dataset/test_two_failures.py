"""Two elements that fail in any of three stages: ``skip_failed`` skips the same ones everywhere."""

import itertools

import numpy as np
import pytest
from computing_ahead import DIRECT

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.experimental import InterleaveIterDataset, ThreadPrefetchIterDataset

NUM = 5
OTHERS = MapDataset.range(100, 100 + NUM).to_iter_dataset(DIRECT)
DOWNSTREAM = {
    "batch": lambda ds: ds.batch(3),
    "rebatch": lambda ds: ds.batch(2).rebatch(3),
    "window_shuffle": lambda ds: ds.window_shuffle(3, seed=3),
    "windows of batches": lambda ds: ds.batch(2).window_shuffle(2, seed=1),
    "flat_map": lambda ds: ds.flat_map(lambda x: [x, x]).batch(3),
    "map_with_index": lambda ds: ds.map_with_index(lambda i, x: x + i).batch(3),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x, seed=1).batch(3),
    "filter": lambda ds: ds.filter(lambda x: x != 3).batch(3),
    "limit": lambda ds: ds.limit(NUM - 1).batch(3),
    "repeat": lambda ds: ds.repeat(2).batch(5),
    "mix": lambda ds: IterDataset.mix([ds, OTHERS], weights=[1, 1]).batch(3),
    "interleave": lambda ds: InterleaveIterDataset([ds, OTHERS], cycle_length=2).batch(3),
    "threads": lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=4).batch(3),
    "tolerate": lambda ds: ds.tolerate(max_rate=1.0).batch(3),
    "lanes": lambda ds: ds.mp_prefetch(MultiprocessingOptions(0, num_lanes=2)).batch(3),
    "global_batch": lambda ds: ds.global_batch(3),
}


def failing(failures, stage):
    def fail(x):
        if (stage, x) in failures:
            raise LookupError(x)
        return x

    return fail


def outcomes(failures, downstream):
    ds = MapDataset.range(NUM).map(failing(failures, 0)).to_iter_dataset(DIRECT)
    it = iter(downstream(ds.map(failing(failures, 1)).map(failing(failures, 2))))
    found = []
    while len(found) < 100:
        try:
            found.append(np.asarray(next(it)).tolist())
        except LookupError as error:
            found.append(error.args)
            it.skip_failed()
        except StopIteration:
            break
    return found


@pytest.mark.parametrize("name", DOWNSTREAM)
def test_stages_in_which_elements_fail_make_no_difference(name):
    """A run that waits for its next element may refer to a run upstream that an error has ended."""
    for one, two in itertools.combinations(range(NUM), 2):
        expected = outcomes({(2, one), (2, two)}, DOWNSTREAM[name])
        for stages in [(0, 0), (1, 1), (0, 1), (1, 0), (2, 0), (1, 2)]:
            failures = {*zip(stages, (one, two), strict=True)}
            assert outcomes(failures, DOWNSTREAM[name]) == expected, failures
