"""No element waits for one that comes after it, in all ways of reading ahead; and an iterator belongs to one thread at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from computing_ahead import DIRECT, Gate, fails, numbers
from operations import operation
from refusing import assert_raises
from waiting import PATIENCE_SECONDS, wait_until

import gristmill as gm
from gristmill import MapDataset, ReadOptions
from gristmill.experimental import ThreadPrefetchIterDataset, multithread_prefetch
from gristmill.samplers import SequentialSampler

ONE_WORKER = gm.MultiprocessingOptions(1)


class Source:
    """Waits for ever at the first of its late keys, in whatever process."""

    gate = threading.Event()

    def __init__(self, num_quick, num_late=40):
        self.num_quick, self.num_late = num_quick, num_late

    def __len__(self):
        return self.num_quick + self.num_late

    def __getitem__(self, key):
        if key >= self.num_quick:
            Source.gate.wait(10 * PATIENCE_SECONDS)
        return key

    def __repr__(self):
        return "Source()"


def loader(source, num_workers):
    operations, length = [operation(gm.transforms.Map, "map", source.__getitem__)], len(source)
    sampler, records = SequentialSampler(length), [*range(length)]
    return gm.DataLoader(data_source=records, sampler=sampler, operations=operations, worker_count=num_workers)


def mapped(source, options=None):
    """Read ahead by threads, or not, and mapped after that."""
    return numbers(len(source), options=options).map(source.__getitem__)


WAYS = {
    "threads": lambda s: MapDataset.source(s).shuffle(seed=1).map(lambda x: x).to_iter_dataset(),
    "one thread": lambda s: MapDataset.source(s).map_with_index(lambda i, x: x).to_iter_dataset(ReadOptions(1, 500)),
    "mixture": lambda s: MapDataset.mix([MapDataset.source(s), MapDataset.source(s)]).to_iter_dataset(),
    "thread_prefetch": lambda s: ThreadPrefetchIterDataset(mapped(s, DIRECT), prefetch_buffer_size=50),
    "thread_prefetch of threads": lambda s: ThreadPrefetchIterDataset(mapped(s), prefetch_buffer_size=50),
    "multithread_prefetch": lambda s: multithread_prefetch(mapped(s, DIRECT), 1, 50),
    "loader": lambda s: loader(s, 0),
    "worker": lambda s: mapped(s, DIRECT).mp_prefetch(ONE_WORKER),
    "worker with threads": lambda s: MapDataset.source(s).to_iter_dataset().mp_prefetch(ONE_WORKER),
    "worker, random": lambda s: mapped(s, DIRECT).random_map(lambda x, rng: x, seed=0).mp_prefetch(ONE_WORKER),
    "loader with a worker": lambda s: loader(s, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_elements_before_one_that_hangs_are_delivered(way):
    for num_quick in (100,) if "worker" in way else (2, 100, 1500):
        num_expected = num_quick
        if way in ("threads", "mixture"):  # in another order
            with iter(WAYS[way](Source(num_quick + 40, 0))) as it:
                num_expected = next(i for i, x in enumerate(it) if x >= num_quick)
        Source.gate.clear()
        it, got = iter(WAYS[way](Source(num_quick))), []

        def consume(it=it, got=got, num_expected=num_expected):
            while len(got) < num_expected:
                got.append(next(it))

        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(consume).result(PATIENCE_SECONDS)
        finally:
            Source.gate.set()
            it.close()


@pytest.mark.parametrize("way", ["threads", "thread_prefetch", "loader", "worker"])
def test_an_iterator_is_used_by_one_thread_at_a_time(way):
    """The others get an error that says so; elements are delivered once, and in order for each thread."""
    errors = set()
    with iter(WAYS[way](Source(3000, 0))) as it:

        def consume():
            got = []
            while True:
                try:
                    got.append(next(it))
                except StopIteration:
                    return got
                except RuntimeError as error:
                    errors.add(str(error).split(" is in next() already")[0])

        with ThreadPoolExecutor(4) as pool:
            parts = [part.result(PATIENCE_SECONDS) for part in [pool.submit(consume) for _ in range(4)]]
        assert sorted(x for part in parts for x in part) == list(range(3000))
        assert errors <= {str(it._iterator if way == "loader" else it)}


def test_another_thread_that_comes_into_next_is_refused():
    gate = Gate()
    it = iter(numbers(9, fn=gate, options=None).batch(2))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, it)
        wait_until(lambda: gate.num_busy)
        for use in (lambda: next(it), lambda: it.set_state({"next_index": 4})):
            assert_raises(RuntimeError, r"BatchDatasetIterator.*one thread at a time\. Give each thread an iterator", use)
        gate.open.set()
        assert first.result(PATIENCE_SECONDS).tolist() == [0, 1]
    assert next(it).tolist() == [2, 3]
    it = iter(numbers(9, fn=lambda x: next(it), options=None))
    fails(it, RuntimeError, match="by a function of its own pipeline")
