"""Errors never advance a ``DataLoader``'s iterator and never lose an element (DECISIONS 5 and 6);
closing.
"""

import gc
import itertools

import numpy as np
import pytest
from loaders import (
    DRAW,
    TO_TUPLE,
    Faults,
    IndexMapped,
    Kept,
    Mapped,
    RandomMapped,
    Source,
    make,
    plain,
)
from refusing import assert_raises, assert_stays
from waiting import running, wait_until

from gristmill import (
    Batch,
    DataLoaderIterator,
    IndexSampler,
    MapOperation,
    NoSharding,
    ReadOptions,
    RecordMetadata,
)

READ_OPTIONS = [ReadOptions(0, 0), ReadOptions(2, 3), ReadOptions(16, 500)]
N, READING = 11, "gristmill-read"
BATCH = Batch(3, batch_fn=list)


VectoredSource = type(
    "VectoredSource", (Source,), {"__getitems__": lambda self, keys: [self.fn(key) for key in keys]}
)


def sampled(index, fault):
    return RecordMetadata(
        range(N)[index], fault(index), np.random.Generator(np.random.Philox(key=index))
    )


PLACES = {
    "source": lambda f: {"data_source": Source(N, f)},
    "vectored source": lambda f: {"data_source": VectoredSource(N, f)},
    "sampler": lambda f: {"sampler": Source(N, lambda index: sampled(index, f))},
    "map": lambda f: {"operations": [Mapped(f)]},
    "random map": lambda f: {
        "operations": [RandomMapped(lambda x, rng: 0 * rng.integers(10) + f(x))]
    },
    "map with index": lambda f: {"operations": [IndexMapped(lambda index, x: f(x))]},
    "filter": lambda f: {"operations": [Kept(lambda x: f(x) is not None)]},
    "legacy": lambda f: {
        "operations": [lambda records: (r for r in records if f(r.data) is not None)]
    },
}
AFTER = {
    "alone": [],
    "filter": [Kept(lambda x: True)],
    "random": [TO_TUPLE, DRAW],
    "legacy": [lambda records: records],
}


def faulty(place, faults, read_options, *operations):
    arguments = PLACES[place](faults)
    operations = [*arguments.pop("operations", []), *operations]
    return make(N, *operations, **arguments, read_options=read_options, shard_options=NoSharding())


def combinations():
    """All places with all that follows; batches and options in turn, so that any two choices
    meet.
    """
    for (i, place), (j, after) in itertools.product(enumerate(PLACES), enumerate(AFTER)):
        batch = [BATCH] if (i + j // 2) % 2 else []
        yield pytest.param(
            place,
            READ_OPTIONS[(i + j) % 3],
            after,
            batch,
            id=f"{place}-{after}-{'batch' * len(batch)}",
        )


@pytest.mark.parametrize(("place", "read_options", "after", "batch"), [*combinations()])
def test_an_error_stays_until_it_heals_or_is_skipped(place, read_options, after, batch):
    faults = Faults()
    loader = faulty(place, faults, read_options, *AFTER[after], *batch)
    expected = plain(loader)
    faults.bad = {0, 7}
    it, again, failing = iter(loader), iter(loader), 2 if batch else 7
    assert_raises(OSError, "bad 0", next, it)
    faults.bad = {7}
    assert plain(itertools.islice(it, failing)) == expected[:failing]
    state = it.get_state()
    assert_stays(it, OSError, "bad 7", times=3)
    faults.bad = set()
    again.set_state(state)
    assert plain(it) == plain(again) == expected[failing:]
    faults.bad, it, found = {4, 10}, iter(loader), []
    while True:
        try:
            found += plain([next(it)])
        except OSError:
            it.skip_failed()
        except StopIteration:
            break
    assert found == [x for i, x in enumerate(expected) if i not in ({1, 3} if batch else {4, 10})]
    assert_raises(ValueError, "nothing to skip", it.skip_failed)


@pytest.mark.parametrize("place", PLACES)
def test_stop_iteration_of_users_is_no_end_but_of_a_source(place):
    it = iter(faulty(place, Faults(5, error=StopIteration), READ_OPTIONS[0]))
    assert list(itertools.islice(it, 5)) == [0, 1, 2, 3, 4]
    if "source" in place:
        assert list(it) == []
    else:
        assert_stays(it, RuntimeError, None)


def test_legacy_classes_and_interrupts_lose_nothing():
    faults = Faults(2)
    it = iter(make(4, MapOperation(faults)))
    with pytest.warns(DeprecationWarning):
        assert [next(it), next(it)] == [0, 1]
    assert_raises(ValueError, "map function", next, it)
    faults.bad = set()
    with pytest.warns(DeprecationWarning):
        assert list(it) == [2, 3]
    faults = Faults(3, error=KeyboardInterrupt)
    it = iter(faulty("map", faults, ReadOptions(2, 4), Batch(2)))
    next(it)
    assert_raises(KeyboardInterrupt, None, next, it)
    faults.bad = set()
    assert plain(it) == [[2, 3], [4, 5], [6, 7], [8, 9], [10]]


@pytest.fixture
def started(no_garbage):
    """Returns what lists the reading threads that a test has started; none of them is left at its
    end.
    """
    before = {*running(READING)}
    yield lambda: {*running(READING)} - before
    gc.collect()
    wait_until(lambda: {*running(READING)} <= before)


def test_close(started):
    def check_closed(*iterators):
        for it in iterators:
            assert_stays(it, ValueError, "closed")

    endless = make(10_000, sampler=IndexSampler(10_000), read_options=ReadOptions(3, 10))
    it, unused = iter(endless), iter(endless)
    assert iter(it) is it is not unused
    assert not started()
    assert [next(it), next(it)] == [0, 1] and started()
    state = it.get_state()
    it.close()
    it.close()
    unused.close()
    check_closed(it, unused)
    assert it.get_state() == state
    it.start_prefetch()
    with iter(endless) as it:
        assert next(it) == 0
    check_closed(it)
    assert 5 in endless  # which goes no further
    loader = make(9)  # closes its iterators, and continues
    a, b = iter(loader), DataLoaderIterator(loader, None)
    next(a)
    loader.close()
    loader.close()
    check_closed(a, b)
    assert next(iter(loader)) == 0
    loader.close()
