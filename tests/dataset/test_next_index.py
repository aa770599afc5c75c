"""The index of the next element: it says which one comes, and jumping there computes nothing."""

import numpy as np
import pytest

from gristmill import DataLoader, DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.experimental import (
    InterleaveIterDataset,
    ThreadPrefetchDatasetIterator,
    ThreadPrefetchIterDataset,
    get_next_index,
    multithread_prefetch,
    set_next_index,
)
from gristmill.samplers import IndexSampler
from gristmill.sources import RangeDataSource
from gristmill.transforms import Batch, Filter, Map

N = 11
DIRECT = ReadOptions(num_threads=0)


def numbers(n=N):
    return MapDataset.range(n).to_iter_dataset()


def draw(x, rng):
    return x, int(rng.integers(10**6))


def pair(i, x):
    return i, x


def threaded(ds):
    return ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3)


def workers(num):
    return lambda ds: ds.mp_prefetch(MultiprocessingOptions(num))


PIPELINES = {
    "direct": lambda: MapDataset.range(N).to_iter_dataset(DIRECT),
    "threads": lambda: MapDataset.range(N).map(lambda x: x).to_iter_dataset(),
    "empty": lambda: numbers(0),
    "allow_nones": lambda: (
        MapDataset.range(N).filter(lambda x: x % 2).to_iter_dataset(allow_nones=True).map_with_index(pair).batch(2, batch_fn=list)
    ),
    "map": lambda: numbers().map(lambda x: -x),
    "map_with_index": lambda: numbers().map_with_index(pair),
    "random_map": lambda: numbers().random_map(draw, seed=3),
    "seed": lambda: numbers().seed(3),
    "batch": lambda: numbers().batch(4),
    "batch_exact": lambda: numbers(12).batch(4),
    "batch_drop": lambda: numbers().batch(4, drop_remainder=True),
    "batch_one": lambda: numbers().batch(1),
    "batch_batch": lambda: numbers(23).batch(3, batch_fn=list).batch(3, batch_fn=list),
    "batch_batch_drop": lambda: numbers(23).batch(3, drop_remainder=True).batch(3),
    "batch_map_batch": lambda: MapDataset.range(N).batch(2).to_iter_dataset().map(lambda x: x + 1).batch(2, batch_fn=list),
    "thread_prefetch": lambda: threaded(numbers()),
    "thread_prefetch_0": lambda: ThreadPrefetchIterDataset(numbers(), prefetch_buffer_size=0),
    "thread_prefetch_batch": lambda: threaded(threaded(numbers()).batch(3)).random_map(draw, seed=1),
    "mp_prefetch_1": lambda: workers(1)(numbers().batch(2)),
    "mp_prefetch_2": lambda: (  # a lambda, so that the workers need not import this file
        workers(2)(numbers().random_map(lambda x, rng: (x, rng.random()), seed=2).batch(2, batch_fn=list)).map_with_index(pair)
    ),
    "mp_prefetch_batch": lambda: workers(2)(numbers()).batch(4),
    "limit": lambda: numbers().limit(5),
    "limit_beyond": lambda: numbers().limit(20),
    "limit_threads": lambda: multithread_prefetch(numbers().limit(2), 2, 1),
    "limit_batch": lambda: numbers().limit(5).batch(2).limit(7),
    "interleave_1": lambda: InterleaveIterDataset([numbers().batch(3)], cycle_length=2).random_map(draw, seed=1),
    "multithread_4": lambda: multithread_prefetch(numbers().map_with_index(pair), 4, 1),
    "multithread_more_than_elements": lambda: multithread_prefetch(numbers(2), 4, 1),
    "multithread_sequential": lambda: multithread_prefetch(numbers(), 3, 1, sequential_slice=True),
}


def plain(x):
    return x.tolist() if isinstance(x, np.ndarray) else [plain(y) for y in x] if isinstance(x, list | tuple) else x


def rest(it):
    return [plain(x) for x in it]


@pytest.mark.parametrize("name", PIPELINES)
def test_the_index_is_the_number_of_elements_before(name):
    expected = rest(PIPELINES[name]())
    it = iter(PIPELINES[name]())
    for index in range(len(expected)):
        assert get_next_index(it) == index
        assert plain(next(it)) == expected[index]
    assert get_next_index(it) == len(expected)
    with pytest.raises(StopIteration):
        next(it)
    assert get_next_index(it) == len(expected)
    # Asked only now, after elements have been read ahead.
    for index in range(1, len(expected), 4 if name.startswith("mp_") else 1):
        it = iter(PIPELINES[name]())
        for _ in range(index):
            next(it)
        assert get_next_index(it) == index
        assert rest(it) == expected[index:]


@pytest.mark.parametrize("name", PIPELINES)
def test_jumping_is_like_having_delivered_what_comes_before(name):
    expected = rest(PIPELINES[name]())
    one_by_one, states = iter(PIPELINES[name]()), []
    for _ in range(len(expected)):
        states.append(one_by_one.get_state())
        next(one_by_one)
    used = iter(PIPELINES[name]())
    next(used, None)
    indices = [*range(len(expected) + 1), *reversed(range(len(expected) + 1))]
    for index in [3, len(expected), 1] if name.startswith("mp_") else indices:  # processes take their time
        for it in (used, iter(PIPELINES[name]())):
            set_next_index(it, index)
            assert get_next_index(it) == index
            if index < len(expected):
                assert it.get_state() == states[index]
            state = it.get_state()
            assert rest(it) == expected[index:]
            it.set_state(state)
            assert get_next_index(it) == index
            assert rest(it) == expected[index:]


@pytest.mark.parametrize("name", PIPELINES)
def test_outside_the_data_nothing_changes(name):
    expected = rest(PIPELINES[name]())
    it = iter(PIPELINES[name]())
    start = min(2, len(expected))
    for _ in range(start):
        next(it)
    state = it.get_state()
    for wrong in (-1, len(expected) + 1, len(expected) + 7, 10**6):
        reason = f"index {wrong} is out of range: " if wrong > 0 else "index must not be negative, got -1"
        with pytest.raises(IndexError, match=reason):
            set_next_index(it, wrong)
        with pytest.raises(ValueError):
            set_next_index(it, wrong)
        assert it.get_state() == state
    with pytest.raises(TypeError, match="index must be an integer"):
        set_next_index(it, 1.5)
    assert get_next_index(it) == start
    assert rest(it) == expected[start:]


def test_numpy_integers():
    it = iter(numbers())
    set_next_index(it, np.int64(3))
    assert type(get_next_index(it)) is int
    assert next(it) == 3


def test_nothing_is_computed():
    def fail(x):
        raise AssertionError

    def crash(x, rng):
        raise AssertionError

    ds = MapDataset.range(90).map(fail).to_iter_dataset().random_map(crash, seed=1).batch(5)
    for pipeline in (ds, threaded(ds), ds.mp_prefetch(MultiprocessingOptions(2)), multithread_prefetch(ds, 3, 2)):
        it = iter(pipeline)
        set_next_index(it, 18)
        assert get_next_index(it) == 18
        assert list(it) == []
        set_next_index(it, 7)
        assert get_next_index(it) == 7


def sparse():
    return MapDataset.range(12).filter(lambda x: x % 3 == 1).to_iter_dataset()


@pytest.mark.parametrize("after", [lambda ds: ds, lambda ds: ds.map(lambda x: x), threaded, workers(1)])
def test_with_gaps_the_index_is_that_of_the_map_dataset(after):
    it = iter(after(sparse()))
    assert get_next_index(it) == 0
    assert [(next(it), get_next_index(it)) for _ in range(4)] == [(1, 2), (4, 5), (7, 8), (10, 11)]
    for index, left in ((0, [1, 4, 7, 10]), (2, [4, 7, 10]), (4, [4, 7, 10]), (5, [7, 10]), (12, [])):
        set_next_index(it, index)
        assert get_next_index(it) == index
        assert list(it) == left
    with pytest.raises(IndexError):
        set_next_index(it, 13)


COUNTING = {
    "batch": lambda ds: ds.batch(2),
    "map_with_index": lambda ds: ds.map_with_index(pair),
    "random_map": lambda ds: ds.random_map(draw, seed=1),
    "limit": lambda ds: ds.limit(3),
    "interleave": lambda ds: InterleaveIterDataset([ds], cycle_length=1).batch(2),
    "two workers": workers(2),
    "two threads": lambda ds: multithread_prefetch(ds, 2, 1),
    "thread prefetch and batch": lambda ds: threaded(ds).batch(2),
    "one worker and batch": lambda ds: workers(1)(ds).batch(2),
}


@pytest.mark.parametrize("name", COUNTING)
def test_with_gaps_nothing_can_be_counted(name):
    """Grain sets both the count and the position in the map dataset, which loses elements or repeats them."""
    it = iter(COUNTING[name](sparse()))
    expected = rest(COUNTING[name](sparse()))
    assert plain(next(it)) == expected[0]
    for index in (0, 1):
        with pytest.raises(NotImplementedError, match="get_state"):
            set_next_index(it, index)
    assert rest(it) == expected[1:]


def test_only_a_single_dataset_can_be_interleaved_by_index():
    it = iter(InterleaveIterDataset([numbers(), numbers()], cycle_length=2))
    assert next(it) == 0
    for attempt in (lambda: get_next_index(it), lambda: set_next_index(it, 1)):
        with pytest.raises(NotImplementedError, match="single dataset"):
            attempt()
    assert next(it) == 0


UNCOUNTABLE = {
    "filter": lambda: numbers().filter(lambda x: x % 2),
    "filter, batch": lambda: numbers().filter(lambda x: x % 2).batch(2),
    "filter, thread prefetch": lambda: threaded(numbers().filter(lambda x: x % 2)),
    "filter, worker": lambda: workers(1)(numbers().filter(lambda x: x % 2)),
    "filter, workers": lambda: workers(2)(numbers().filter(lambda x: x % 2)),
}


@pytest.mark.parametrize("name", UNCOUNTABLE)
def test_what_drops_elements_has_no_index(name):
    expected = rest(UNCOUNTABLE[name]())
    it = iter(UNCOUNTABLE[name]())
    assert plain(next(it)) == expected[0]
    state = it.get_state()
    with pytest.raises(NotImplementedError, match="Filter"):
        get_next_index(it)
    with pytest.raises(NotImplementedError, match=r"Filter.*would have to compute all elements before it"):
        set_next_index(it, 1)
    assert it.get_state() == state
    assert rest(it) == expected[1:]


class Stream(DatasetIterator):
    """A user's iterator without an index."""

    def __init__(self):
        super().__init__()
        self.position = 0

    def __next__(self):
        self.position += 1
        return self.position

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


class IndexedStream(Stream):
    def _get_next_index(self):
        return self.position

    def _set_next_index(self, index):
        self.position = index


class Streams(IterDataset):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __iter__(self):
        return self.kind()


def test_users_iterators_take_part():
    it = iter(threaded(Streams(IndexedStream)).batch(2))
    assert next(it).tolist() == [1, 2]
    assert get_next_index(it) == 1
    set_next_index(it, 5)
    assert next(it).tolist() == [11, 12]
    it = iter(Streams(Stream).batch(2))
    assert next(it).tolist() == [1, 2]
    for attempt in (lambda: get_next_index(it), lambda: set_next_index(it, 3)):
        with pytest.raises(NotImplementedError, match="Stream"):
            attempt()
    assert next(it).tolist() == [3, 4]


def test_an_iterator_of_another_library_has_none():
    class Foreign:
        def __next__(self):
            return 1

        def get_state(self):
            return 1

        def set_state(self, state):
            pass

    it = ThreadPrefetchDatasetIterator(Foreign(), 2)
    for attempt in (lambda: get_next_index(it), lambda: set_next_index(it, 1)):
        with pytest.raises(ValueError, match="Foreign knows no index"):
            attempt()
    assert next(it) == 1


def test_a_plain_iterator_loses_nothing():
    class Plain(IterDataset):
        def __iter__(self):
            return iter(range(5))

    it = iter(threaded(Plain()))
    assert next(it) == 0
    with pytest.raises(NotImplementedError):
        get_next_index(it)
    assert list(it) == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", [3, "abc", [1], iter([1]), numbers()])
def test_not_an_iterator(wrong):
    for attempt in (lambda: get_next_index(wrong), lambda: set_next_index(wrong, 1)):
        with pytest.raises(TypeError, match=r"must be an iterator of a dataset.*iter\(ds\)"):
            attempt()


def test_a_closed_iterator_stays_closed():
    it = iter(threaded(numbers()))
    next(it)
    it.close()
    assert get_next_index(it) == 1
    set_next_index(it, 3)
    with pytest.raises(ValueError, match="closed"):
        next(it)


def test_jumping_past_a_failed_element():
    def bad(x):
        if x == 3:
            raise OSError(x)
        return x

    for pipeline in (numbers().map(bad), threaded(numbers().map(bad)), workers(2)(numbers().map(bad))):
        it = iter(pipeline)
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OSError):
            next(it)
        assert get_next_index(it) == 3
        set_next_index(it, 4)
        with pytest.raises(ValueError, match="nothing to skip"):
            it.skip_failed()
        assert list(it) == list(range(4, N))


class Double(Map):
    def map(self, element):
        return 2 * element


class Odd(Filter):
    def filter(self, element):
        return element % 2 == 1


@pytest.mark.parametrize("worker_count", [0, 2])
def test_data_loaders_too(worker_count):
    def make(*operations):
        sampler = IndexSampler(10, shuffle=True, seed=1, num_epochs=2)
        return iter(
            DataLoader(data_source=RangeDataSource(0, 10, 1), sampler=sampler, operations=operations, worker_count=worker_count)
        )

    expected = rest(make(Double(), Batch(3)))
    it = make(Double(), Batch(3))
    assert plain(next(it)) == expected[0]
    assert get_next_index(it) == 1
    for index in (5, 2, len(expected), 0):
        set_next_index(it, index)
        state = it.get_state()
        assert rest(it) == expected[index:]
        it.set_state(state)
        assert get_next_index(it) == index
    for wrong in (-1, len(expected) + 1):
        with pytest.raises(IndexError):
            set_next_index(it, wrong)
    assert rest(it) == expected
    with pytest.raises(NotImplementedError, match="Filter"):
        get_next_index(make(Odd()))
