"""Elements that carry their identity through random pipelines: ``explain`` names just those that an
output has.
"""

import contextlib
import itertools
import random
import re

import pytest
from local_workers import LocalWorkersIterDataset
from new_seed import SEED

from gristmill import IterDataset, Ledger, MapDataset, ReadOptions, explain
from gristmill import experimental as gx
from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset.stages.mp_prefetch import TracedLanesIterDataset

NUM_PIPELINES = 40


class InWorkers(LocalWorkersIterDataset):
    """Workers of this process, explained as those in others are."""

    def _gm_traced(self, tracing):
        return TracedLanesIterDataset(tracing.of(self.parents[0]), self._options.num_workers, False)


def same(x, *_):
    return x


def some_left_out(x):
    return None if sum(x) % 5 == 2 else x


def merged(elements):
    return tuple([i for x in elements for i in x])


OF_MAPS = [
    lambda ds, rng: ds.shuffle(),
    lambda ds, rng: ds[rng.choice([slice(1, None), slice(None, None, -2), slice(0, 9)])],
    lambda ds, rng: ds.repeat(2),
    lambda ds, rng: ds.window_shuffle(4),
    lambda ds, rng: ds.filter(lambda x: x % 7 != 3),
]
OF_TUPLES = [
    lambda ds: ds.map(some_left_out),
    lambda ds: ds.random_map(same),
    lambda ds: ds.map_with_index(lambda i, x: x),
]
OF_STREAMS = [
    lambda ds, rng: ds.map(same),
    lambda ds, rng: ds.filter(lambda x: sum(x) % 3 != 1),
    lambda ds, rng: ds.flat_map(lambda x: [x, x] if sum(x) % 2 else []),
    lambda ds, rng: ds.random_map(same, seed=1),
    lambda ds, rng: ds.map_with_index(lambda i, x: x),
    lambda ds, rng: ds.batch(rng.randint(1, 4), batch_fn=merged, drop_remainder=rng.random() < 0.5),
    lambda ds, rng: ds.window_shuffle(rng.randint(1, 6), seed=3),
    lambda ds, rng: ds.limit(rng.randint(1, 20)),
    lambda ds, rng: ds.repeat(2),
    lambda ds, rng: ds.cache(),
    lambda ds, rng: ds.thread_prefetch(2),
    lambda ds, rng: ds.multithread_prefetch(2, 1),
    lambda ds, rng: ds.mp_prefetch(MultiprocessingOptions(num_lanes=2)),
    lambda ds, rng: InWorkers(ds, 2),
    lambda ds, rng: ds.global_batch(2, num_lanes=2, batch_fn=merged) if rng.random() < 0.5 else ds,
]
OF_TWO = [
    lambda one, two: IterDataset.mix({"a": one, "b": two}, {"a": 2, "b": 1}),
    lambda one, two: one.zip(two, strict=False).map(merged),
    lambda one, two: gx.InterleaveIterDataset([one, two], cycle_length=2),
]


def tree(rng, depth, number):
    """A stream of tuples of numbers, of which each source has others."""
    if depth:
        below = [tree(rng, depth - 1, 3 * number + i) for i in range(rng.choice([1, 1, 1, 2]))]
        return (
            rng.choice(OF_TWO)(*below) if len(below) > 1 else rng.choice(OF_STREAMS)(below[0], rng)
        )
    ds = MapDataset.range(1000 * number, 1000 * number + rng.randint(3, 30)).seed(
        rng.randrange(100)
    )
    for _ in range(rng.randrange(4)):
        ds = rng.choice(OF_MAPS)(ds, rng)
    ds = ds.map(lambda x: (int(x),))
    for step in OF_TUPLES:
        ds = step(ds) if rng.random() < 0.3 else ds
    return ds.to_iter_dataset(ReadOptions(num_threads=0))


def identities(told):
    starts = [int(re.search(r"start=(\d+)", record.source)[1]) for record in told.records]
    return tuple(
        [start + record.record_key for start, record in zip(starts, told.records, strict=True)]
    )


def check(ds, rng, ledger):
    """Compares the records named for some outputs with those they carry; returns how many there
    were.
    """
    # A zip of batches of one size is explained row by row, while `merged` puts one batch after the
    # other.
    ordered = tuple if "ZipIterDataset" not in repr(ds) else sorted

    def assert_explains(provenance, x):
        assert ordered(identities(provenance)) == ordered(x), repr(ds)

    it, seen = iter(ds), []
    states = [it.get_state()]
    for x in itertools.islice(ledger.follow(it), rng.randint(0, 20)):
        seen.append(x)
        states.append(it.get_state())
        assert_explains(explain(it), x)
    it.close()
    it = iter(ds)  # another one continues
    it.set_state(states[-1])
    for x in itertools.islice(it, 2):
        assert_explains(explain(it), x)
    for step in rng.sample(range(len(seen)), min(2, len(seen))):
        assert_explains(explain(ds, state=states[step]), seen[step])
        assert_explains(explain(ds, step=step, ledger=ledger), seen[step])
        # Without a ledger, functions are assumed to drop nothing.
        if "some_left_out" not in repr(ds):
            with contextlib.suppress(NotImplementedError):
                assert_explains(explain(ds, step=step), seen[step])
    it.close()
    return len(seen)


@pytest.mark.filterwarnings("ignore:.*takes a part of shuffled elements")
def test_random_pipelines(tmp_path):
    num_outputs = 0
    for k in range(NUM_PIPELINES):
        rng = random.Random(f"{SEED} {k}")
        try:
            ds = tree(rng, rng.randint(1, 5), 1)
            list(itertools.islice(ds, 25))
        except ValueError:
            # lanes of nothing, workers above workers, lanes that are shorter than their length says
            continue
        num_outputs += check(ds, rng, Ledger(tmp_path / str(k), every=rng.choice([1, 3])))
    assert num_outputs > NUM_PIPELINES
