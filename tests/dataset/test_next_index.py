"""The index of the next element: it says which one comes, and jumping there computes nothing."""

import io
from functools import partial

import numpy as np
import pytest
from computing_ahead import Failing, numbers
from local_workers import LocalWorkersIterDataset
from operations import operation
from refusing import assert_raises
from tqdm import tqdm
from users_datasets import BareIterator, BareStream, Plain

from gristmill import (
    DataLoader,
    IndexSampler,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    RangeDataSource,
    ReadOptions,
)
from gristmill import experimental as gx
from gristmill.experimental import get_next_index, set_next_index
from gristmill.lengths import Exact, dataset_length
from gristmill.transforms import Batch, Filter, Map

N = 11


def draw(x, rng):
    return x, int(rng.integers(10**6))


def pair(i, x):
    return i, x


odd = (1).__and__
lists = partial(IterDataset.batch, batch_size=2, batch_fn=list)
threaded = partial(gx.ThreadPrefetchIterDataset, prefetch_buffer_size=3)
in_threads = partial(gx.multithread_prefetch, num_threads=2, buffer_size=1)
workers = LocalWorkersIterDataset
workers_batch = partial(
    IterDataset.global_batch,
    batch_size=4,
    num_lanes=4,
    batch_fn=list,
    workers=MultiprocessingOptions(2),
)
double = operation(Map, "map", lambda x: 2 * x)
ODD = operation(Filter, "filter", lambda x: x % 2 == 1)


def loader(*operations, worker_count=0):
    sampler = IndexSampler(10, shuffle=True, seed=1, num_epochs=2)
    source = RangeDataSource(0, 10, 1)
    return DataLoader(
        data_source=source, sampler=sampler, operations=operations, worker_count=worker_count
    )


PIPELINES = {
    "direct": MapDataset.range(N).to_iter_dataset(ReadOptions(num_threads=0)),
    "threads": MapDataset.range(N).map(lambda x: x).to_iter_dataset(),
    "empty": numbers(0),
    "allow_nones": lists(
        MapDataset.range(N).filter(odd).to_iter_dataset(allow_nones=True).map_with_index(pair)
    ),
    "map": numbers(N).map(lambda x: -x),
    "random_map": numbers(N).seed(3).random_map(draw),
    "batch": lists(numbers(N), batch_size=4),
    "batch_exact": lists(numbers(12), batch_size=4),
    "batch_drop": lists(numbers(N), batch_size=4, drop_remainder=True),
    "batch_batch": lists(lists(numbers(23), batch_size=3), batch_size=3),
    "thread_prefetch_0": threaded(numbers(N), prefetch_buffer_size=0),
    "thread_prefetch_batch": threaded(lists(threaded(numbers(N)))).random_map(draw, seed=1),
    "worker": workers(lists(numbers(N))),
    "workers": workers(lists(numbers(N).random_map(draw, seed=2)), 2).map_with_index(pair),
    "workers_batch": lists(workers(numbers(N), 2), batch_size=4),
    "processes": numbers(N).mp_prefetch(MultiprocessingOptions(2)),
    "limit": numbers(N).limit(5),
    "limit_threads": in_threads(numbers(N).limit(2)),
    "limit_batch": lists(numbers(N).limit(5)).limit(7),
    "interleave_one": (
        gx.InterleaveIterDataset([lists(numbers(N))], cycle_length=2).random_map(draw, seed=1)
    ),
    "mix": lists(IterDataset.mix([numbers(N), numbers(40), numbers(9)], [1, 2.5, 0.7])),
    "zip": lists(numbers(N).zip(numbers(N).map_with_index(pair))),
    "global_batch": numbers(24).map_with_index(pair).global_batch(4, num_lanes=2, batch_fn=list),
    "global_batch_workers": workers_batch(numbers(26)),
    "in_threads": in_threads(numbers(N).map_with_index(pair), num_threads=4),
    "in_more_threads_than_elements": in_threads(numbers(2), num_threads=4),
    "in_threads_sequential": in_threads(numbers(N), num_threads=3, sequential_slice=True),
    "loader": loader(double, Batch(3, batch_fn=list)),
    "loader_with_workers": loader(double, Batch(3, batch_fn=list), worker_count=2),
}


SLOW = ("processes", "loader_with_workers", "global_batch_workers")  # processes take their time


@pytest.mark.parametrize("name", PIPELINES)
def test_where_it_is_and_jumping(name):
    it, expected = iter(PIPELINES[name]), []
    states = [it.get_state()]
    for x in it:
        expected.append(x)
        states.append(it.get_state())
        assert get_next_index(it) == len(expected)
    last = len(expected)
    assert get_next_index(it) == last
    num = dataset_length(PIPELINES[name])
    assert it and (num == Exact(last) or not isinstance(num, Exact))
    # Jumping is like having delivered the elements before.
    indices = [*range(0, last + 1, 3), *reversed(range(1, last + 1, 4)), last]
    for index in [3, last, 1] if name in SLOW else indices:
        delivering = iter(PIPELINES[name])
        for _ in range(index):
            next(delivering)
        # asked only now, after elements have been read ahead
        assert get_next_index(delivering) == index
        assert list(delivering) == expected[index:]
        for jumping in (it, iter(PIPELINES[name])):
            set_next_index(jumping, index)
            assert get_next_index(jumping) == index
            if isinstance(num, Exact):
                assert len(jumping) == tqdm(jumping, disable=True).total == last - index
            else:
                assert_raises(TypeError, "has no len", len, jumping)
            assert index == last or jumping.get_state() == states[index]
            state = jumping.get_state()
            assert list(jumping) == expected[index:]
            jumping.set_state(state)
            assert get_next_index(jumping) == index
            assert list(jumping) == expected[index:]
    # Outside the data nothing changes.
    start = min(2, last)
    set_next_index(it, start)
    for wrong in (-1, last + 1, last + 7, 10**6):
        reason = (
            f"index {wrong} is out of range: "
            if wrong > 0
            else "index must not be negative, got -1"
        )
        for error in (IndexError, ValueError):
            assert_raises(error, reason, set_next_index, it, wrong)
    assert_raises(TypeError, "index must be an integer", set_next_index, it, 1.5)
    assert get_next_index(it) == start
    assert list(it) == expected[start:]


def test_a_jump_computes_nothing_and_leaves_failures_behind():
    def fail(*args):
        raise AssertionError

    ds = MapDataset.range(90).map(fail).to_iter_dataset().random_map(fail, seed=1).batch(5)
    for pipeline in (ds, threaded(ds), workers(ds, 2), in_threads(ds, num_threads=3)):
        it = iter(pipeline)
        set_next_index(it, 18)
        assert get_next_index(it) == 18
        assert list(it) == []
        set_next_index(it, 7)
        assert get_next_index(it) == 7
    it = iter(numbers(N).map(Failing(3, error=OSError)))
    assert_raises(OSError, None, list, it)
    set_next_index(it, 4)
    assert_raises(ValueError, "nothing to skip", it.skip_failed)
    assert list(it) == list(range(4, N))


SPARSE = MapDataset.range(12).filter(lambda x: x % 3 == 1).to_iter_dataset()


@pytest.mark.parametrize("ds", [SPARSE, SPARSE.map(lambda x: x), threaded(SPARSE), workers(SPARSE)])
def test_with_gaps_the_index_is_that_of_the_map_dataset(ds):
    it = iter(ds)
    assert get_next_index(it) == 0
    assert [(next(it), get_next_index(it)) for _ in range(4)] == [(1, 2), (4, 5), (7, 8), (10, 11)]
    for index, left in (
        (0, [1, 4, 7, 10]),
        (2, [4, 7, 10]),
        (4, [4, 7, 10]),
        (5, [7, 10]),
        (12, []),
    ):
        set_next_index(it, index)
        assert get_next_index(it) == index
        assert list(it) == left
    assert_raises(IndexError, None, set_next_index, it, 13)


FILTERED = numbers(N).filter(odd)
COUNTED = gx.InterleaveIterDataset([SPARSE], cycle_length=1)
# Grain sets both the count and the position in the map dataset, which loses elements or repeats
# them.
GAPS = [
    lists(SPARSE),
    SPARSE.map_with_index(pair),
    SPARSE.random_map(draw, seed=1),
    SPARSE.limit(3),
    lists(COUNTED),
]
OF_FILTERS = [
    lists(FILTERED),
    threaded(FILTERED),
    workers(FILTERED),
    workers(FILTERED, 2),
    loader(ODD),
]
GAPS += [workers(SPARSE, 2), in_threads(SPARSE), lists(threaded(SPARSE)), lists(workers(SPARSE))]
NO_INDEX = [
    *[(ds, None, "get_state") for ds in GAPS],
    (FILTERED, "Filter", r"Filter.*would have to compute all elements before it"),
    *[(ds, "Filter", r"Filter.*compute") for ds in OF_FILTERS],
    (
        gx.InterleaveIterDataset([numbers(N), numbers(N)], cycle_length=2),
        "single dataset",
        "single dataset",
    ),
    (lists(BareStream(9)), "BareIterator", "BareIterator"),
    (threaded(Plain(5)), "ThreadPrefetch", "ThreadPrefetch"),
]


@pytest.mark.parametrize(("ds", "reason_to_ask", "reason_to_jump"), NO_INDEX)
def test_what_has_no_index_loses_nothing(ds, reason_to_ask, reason_to_jump):
    expected = list(ds)
    it = iter(ds)
    assert next(it) == expected[0]
    if reason_to_ask is not None:
        assert_raises(NotImplementedError, reason_to_ask, get_next_index, it)
    for index in (0, 1) if reason_to_jump else ():
        assert_raises(NotImplementedError, reason_to_jump, set_next_index, it, index)
    if reason_to_ask is not None:
        assert_raises(TypeError, r"has no len\(\)", len, it)
        assert it and tqdm(it, file=io.StringIO()).total is None
    assert list(it) == expected[1:]


def test_iterators_of_users_and_others():
    class IndexedIterator(BareIterator):
        def _get_next_index(self):
            return self.position

        def _set_next_index(self, index):
            self.position = index

    Indexed = type("Indexed", (BareStream,), {"__iter__": lambda self: IndexedIterator(self.n)})
    it = iter(lists(threaded(Indexed(20))))
    assert next(it) == [0, 1] and get_next_index(it) == 1
    set_next_index(it, np.int64(5))
    assert next(it) == [10, 11] and type(get_next_index(it)) is int
    it.close()
    assert get_next_index(it) == 6
    set_next_index(it, 3)
    assert_raises(ValueError, "closed", next, it)
    methods = {
        "__next__": lambda self: 1,
        "get_state": lambda self: 1,
        "set_state": lambda self, state: None,
    }
    it = gx.ThreadPrefetchDatasetIterator(type("Foreign", (), methods)(), 2)
    attempts = [get_next_index, lambda it: set_next_index(it, 1)]
    for attempt in attempts:
        assert_raises(ValueError, "Foreign knows no index", attempt, it)
        for wrong in (3, "abc", [1], iter([1]), numbers(N)):
            with pytest.raises(TypeError, match=r"must be an iterator of a dataset.*iter\(ds\)"):
                attempt(wrong)
    assert next(it) == 1
