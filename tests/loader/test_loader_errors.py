"""Errors never advance a ``DataLoader``'s iterator and never lose an element (DECISIONS 5 and 6); closing."""

import gc
import itertools
import json
import threading

import numpy as np
import pytest

from gristmill import DataLoader, DataLoaderIterator, ReadOptions, RecordMetadata
from gristmill.python import MapOperation
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap

READ_OPTIONS = [ReadOptions(0, 0), ReadOptions(2, 3), ReadOptions(16, 500)]
N = 11


class Faults:
    """Raises for some numbers until it is healed, as a disk does that comes and goes."""

    def __init__(self, *bad, error=OSError):
        self.bad = set(bad)
        self.error = error

    def check(self, x):
        if x in self.bad:
            raise self.error(f"bad {x}")
        return x

    def heal(self):
        self.bad = set()


class Faulty:
    def __init__(self, faults):
        self.faults = faults


class Source(Faulty):
    def __len__(self):
        return N

    def __getitem__(self, key):
        return self.faults.check(key)

    def __repr__(self):
        return "Source()"


class VectoredSource(Source):
    def __getitems__(self, keys):
        return [self.faults.check(key) for key in keys]


class FaultySampler(Faulty):
    def __len__(self):
        return N

    def __getitem__(self, index):
        if not 0 <= index < N:
            raise IndexError
        return RecordMetadata(index, self.faults.check(index), np.random.Generator(np.random.Philox(key=index)))


class FaultyMap(Faulty, Map):
    def map(self, element):
        return self.faults.check(element)


class FaultyRandomMap(Faulty, RandomMap):
    def random_map(self, element, rng):
        rng.integers(10)
        return self.faults.check(element)


class FaultyIndex(Faulty, MapWithIndex):
    def map_with_index(self, index, element):
        return self.faults.check(element)


class FaultyFilter(Faulty, Filter):
    def filter(self, element):
        self.faults.check(element)
        return True


class AppendRandom(RandomMap):
    def random_map(self, element, rng):
        return (int(element), int(rng.integers(1000)))


PLACES = {
    "source": lambda f: {"data_source": Source(f)},
    "vectored source": lambda f: {"data_source": VectoredSource(f)},
    "sampler": lambda f: {"sampler": FaultySampler(f)},
    "map": lambda f: {"operations": [FaultyMap(f)]},
    "random map": lambda f: {"operations": [FaultyRandomMap(f)]},
    "map with index": lambda f: {"operations": [FaultyIndex(f)]},
    "filter": lambda f: {"operations": [FaultyFilter(f)]},
    "legacy": lambda f: {"operations": [lambda records: (r for r in records if f.check(r.data) is not None)]},
}
AFTER = {"alone": [], "filter": [FaultyFilter(Faults())], "random": [AppendRandom()], "legacy": [lambda records: records]}


def make(place, faults, read_options, *operations):
    arguments = {"data_source": range(N), "sampler": SequentialSampler(N, seed=1), "operations": [], **PLACES[place](faults)}
    arguments["operations"].extend(operations)
    return DataLoader(**arguments, read_options=read_options, shard_options=NoSharding())


def plain(x):
    return x.tolist() if isinstance(x, np.ndarray) else x


def combinations():
    """All places with all that follows; batches and options in turn, so that any two choices meet."""
    for (i, place), (j, after) in itertools.product(enumerate(PLACES), enumerate(AFTER)):
        batch = [Batch(3, batch_fn=list)] if (i + j // 2) % 2 else []
        yield pytest.param(place, READ_OPTIONS[(i + j) % 3], after, batch, id=f"{place}-{after}-{'batch' * len(batch)}")


@pytest.mark.parametrize(("place", "read_options", "after", "batch"), [*combinations()])
class TestEverywhere:
    def test_a_lasting_error_stays_where_it_is(self, place, read_options, after, batch):
        faults = Faults()
        loader = make(place, faults, read_options, *AFTER[after], *batch)
        expected = [plain(x) for x in loader]
        faults.bad = {7}
        it = iter(loader)
        failing = 2 if batch else 7
        assert [plain(next(it)) for _ in range(failing)] == expected[:failing]
        state = it.get_state()
        for _ in range(3):
            with pytest.raises(OSError, match="bad 7"):
                next(it)
            assert it.get_state() == state
        faults.heal()
        assert [plain(x) for x in it] == expected[failing:]

    def test_the_state_after_an_error_restores(self, place, read_options, after, batch):
        faults = Faults()
        loader = make(place, faults, read_options, *AFTER[after], *batch)
        expected = [plain(x) for x in loader]
        faults.bad = {0, 4}
        it = iter(loader)
        with pytest.raises(OSError, match="bad 0"):
            next(it)
        faults.bad = {4}
        assert [plain(next(it)) for _ in range(1)] == expected[:1]
        count = 1
        with pytest.raises(OSError, match="bad 4"):
            for element in it:
                assert plain(element) == expected[count]
                count += 1
        assert count == (1 if batch else 4)
        faults.heal()
        again = iter(loader)
        again.set_state(it.get_state())
        assert [plain(x) for x in again] == expected[count:]

    def test_skipping_is_asked_for(self, place, read_options, after, batch):
        faults = Faults()
        loader = make(place, faults, read_options, *AFTER[after], *batch)
        expected = [plain(x) for x in loader]
        faults.bad = {4, 10}
        it = iter(loader)
        found = []
        while True:
            try:
                found.append(plain(next(it)))
            except OSError:
                it.skip_failed()
            except StopIteration:
                break
        assert found == [x for i, x in enumerate(expected) if i not in ({1, 3} if batch else {4, 10})]
        with pytest.raises(ValueError, match="nothing to skip"):
            it.skip_failed()

    def test_stop_iteration_of_users_is_no_end(self, place, read_options, after, batch):
        it = iter(make(place, Faults(5, error=StopIteration), read_options, *AFTER[after], *batch))
        found = []
        with pytest.raises(RuntimeError) as caught:
            for element in it:
                found.append(plain(element))
        assert len(found) == (1 if batch else 5)
        cause = caught.value
        while type(cause) is RuntimeError and cause.__cause__ is not None:
            cause = cause.__cause__
        assert type(cause) is StopIteration
        assert str(cause) == "bad 5"


def test_the_error_is_the_user_s_own():
    error = OSError("text", 5)

    class Raise(Map):
        def map(self, element):
            raise error

    with pytest.raises(OSError) as caught:
        next(iter(DataLoader(data_source=[1], sampler=SequentialSampler(1), operations=[Raise()])))
    assert caught.value is error
    assert caught.value.args == ("text", 5)


def test_errors_of_batch_fn():
    calls = []

    def batch_fn(elements):
        calls.append(elements)
        if len(calls) == 2:
            raise OSError
        return elements

    it = iter(DataLoader(data_source=range(6), sampler=SequentialSampler(6), operations=[Batch(2, batch_fn=batch_fn)]))
    assert next(it) == [0, 1]
    with pytest.raises(OSError):
        next(it)
    assert list(it) == [[2, 3], [4, 5]]


def test_there_is_nothing_to_skip_before_an_error_and_after_restoring():
    it = iter(make("source", Faults(2), READ_OPTIONS[0]))
    start = it.get_state()
    no_skip = pytest.raises(ValueError, match="nothing to skip")
    with no_skip:
        it.skip_failed()
    next(it)
    with no_skip:
        it.skip_failed()
    with pytest.raises(OSError):
        list(it)
    failed = it.get_state()
    for state in (start, failed):
        it.set_state(state)
        with no_skip:
            it.skip_failed()
    with pytest.raises(OSError):
        next(it)
    it.skip_failed()
    assert next(it) == 3


def test_keyboard_interrupt_loses_nothing():
    faults = Faults(3, error=KeyboardInterrupt)
    it = iter(make("map", faults, ReadOptions(2, 4), Batch(2)))
    next(it)
    with pytest.raises(KeyboardInterrupt):
        next(it)
    faults.heal()
    assert [x.tolist() for x in it] == [[2, 3], [4, 5], [6, 7], [8, 9], [10]]


@pytest.mark.parametrize("read_options", READ_OPTIONS, ids=str)
def test_the_end_stays_the_end(read_options):
    it = iter(make("source", Faults(), read_options))
    assert len(list(it)) == N
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(it)
    assert json.loads(it.get_state())["last_seen_indices"] == {"0": N - 1}


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gristmill-read"]


class TestClosing:
    loader = DataLoader(data_source=range(10_000), sampler=IndexSampler(10_000), read_options=ReadOptions(3, 10))

    @pytest.fixture(autouse=True)
    def ends_without_threads(self):
        if reading_threads():
            gc.collect()
        for thread in reading_threads():
            thread.join()
        yield
        if reading_threads():
            gc.collect()
        for thread in reading_threads():
            thread.join(10)
            assert not thread.is_alive()

    def test_close(self):
        it = iter(self.loader)
        assert not reading_threads()
        assert [next(it), next(it)] == [0, 1]
        assert reading_threads()
        state = it.get_state()
        it.close()
        it.close()
        for _ in range(2):
            with pytest.raises(ValueError, match="closed"):
                next(it)
        assert it.get_state() == state
        it.start_prefetch()

    def test_close_before_use(self):
        it = iter(self.loader)
        it.close()
        with pytest.raises(ValueError, match="closed"):
            next(it)

    def test_context_manager(self):
        with iter(self.loader) as it:
            assert next(it) == 0
        with pytest.raises(ValueError, match="closed"):
            next(it)
        with pytest.raises(KeyError), iter(self.loader) as it:
            next(it)
            raise KeyError
        with pytest.raises(ValueError, match="closed"):
            next(it)

    def test_dropping(self):
        for element in self.loader:
            if element == 5:
                break

    def test_closing_the_loader_closes_its_iterators(self):
        loader = DataLoader(data_source=range(10_000), sampler=IndexSampler(10_000))
        a, b = iter(loader), DataLoaderIterator(loader, None)
        next(a)
        loader.close()
        loader.close()
        for it in (a, b):
            with pytest.raises(ValueError, match="closed"):
                next(it)
        assert next(iter(loader)) == 0
        loader.close()

    def test_start_prefetch(self):
        it = iter(self.loader)
        for _ in range(3):
            it.start_prefetch()
        assert reading_threads()
        assert list(itertools.islice(it, 50)) == list(range(50))
        it.start_prefetch()
        assert list(itertools.islice(it, 50)) == list(range(50, 100))

    @pytest.mark.parametrize("read_options", [*READ_OPTIONS[:1], ReadOptions(0, 5), ReadOptions(5, 0)], ids=str)
    def test_start_prefetch_without_threads(self, read_options):
        it = iter(DataLoader(data_source=range(9), sampler=SequentialSampler(9), read_options=read_options))
        it.start_prefetch()
        assert not reading_threads()
        assert list(it) == list(range(9))


def test_two_iterators_are_independent():
    loader = DataLoader(data_source=range(9), sampler=IndexSampler(9, shuffle=True, seed=1, num_epochs=1), operations=[Batch(2)])
    a, b = iter(loader), iter(loader)
    assert a is not b
    assert iter(a) is a
    first = next(a)
    np.testing.assert_equal(next(b), first)
    b.set_state(a.get_state())
    np.testing.assert_equal(next(a), next(b))
    a.close()
    assert len(list(b)) == 3


def test_legacy_classes_keep_their_place_after_an_error():
    faults = Faults(2)
    loader = DataLoader(data_source=range(4), sampler=SequentialSampler(4), operations=[MapOperation(faults.check)])
    it = iter(loader)
    with pytest.warns(DeprecationWarning):
        assert [next(it), next(it)] == [0, 1]
    with pytest.raises(ValueError, match="map function"):
        next(it)
    faults.heal()
    with pytest.warns(DeprecationWarning):
        assert list(it) == [2, 3]
