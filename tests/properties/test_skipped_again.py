"""Elements that an error budget skipped before a restore, with further stages downstream: no record
comes twice.
"""

import itertools
import json

import pytest

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, experimental

FAILS = {1, 2, 6, 11, 13, 20, 32, 43, 50}


def tolerant(start, num, fails):
    def read(x):
        if x in fails:
            raise OSError(x)
        return x

    return (
        MapDataset.range(start, start + num)
        .map(read)
        .to_iter_dataset()
        .tolerate(OSError, max_rate=None)
    )


def lanes(num_workers, executor="threads"):
    options = MultiprocessingOptions(num_workers, num_lanes=3, executor=executor)
    return lambda fails: tolerant(0, 40, fails).mp_prefetch(options)


def threads(buffer_size):
    return lambda fails: experimental.multithread_prefetch(tolerant(0, 40, fails), 3, buffer_size)


def interleaved(fails):
    return experimental.InterleaveIterDataset(
        [tolerant(10 * j, 4, fails) for j in range(5)], cycle_length=2
    )


def interleaved_by_workers(fails):
    options = MultiprocessingOptions(2, executor="threads")
    return interleaved(fails).mp_prefetch(options, order="stream")


def rows(*nums_workers):
    """The elements of batches, each iterator with the next number of workers."""
    numbers = itertools.cycle(nums_workers)

    def chain(fails):
        number = next(numbers)
        workers = number and MultiprocessingOptions(number, executor="threads")
        batches = tolerant(0, 40, fails).global_batch(4, workers=workers, end="pad")
        return experimental.FlatMapIterDataset(
            batches, lambda batch: [int(x) for x, is_there in zip(*batch, strict=True) if is_there]
        )

    return chain


def mixed_lanes(fails):
    lane = tolerant(0, 30, fails).window_shuffle(4, seed=1)
    return IterDataset.mix({"a": lane, "b": tolerant(40, 30, fails)}).mp_prefetch(
        MultiprocessingOptions(num_lanes=2)
    )


CHAINS = {
    "list": (1, lambda f: IterDataset.mix([tolerant(0, 30, f), tolerant(40, 30, f)])),
    "names": (1, lambda f: IterDataset.mix({"a": tolerant(0, 30, f), "b": tolerant(40, 30, f)})),
    "interleave": (1, interleaved),
    "interleave by workers": (1, interleaved_by_workers),
    "rows of other workers": (1, rows(2, None)),
    "repeat": (3, lambda f: tolerant(0, 7, f).repeat(3)),
    "lanes": (1, lanes(0)),
    "lanes of a mixture": (1, mixed_lanes),
    "threads in threads": (
        1,
        lambda f: experimental.multithread_prefetch(threads(0)(f).window_shuffle(4, seed=1), 2, 1),
    ),
    "threads": (1, threads(2)),
    "no threads": (1, threads(0)),
    "worker threads": (1, lanes(2)),
    "processes": (1, lanes(2, "processes")),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_was_skipped_is_skipped_again(name):
    times, chain = CHAINS[name]
    for k in range(12) if name != "processes" else (5,):
        fails = {*FAILS}
        it = iter(chain(fails).window_shuffle(6, seed=3))
        before = [next(it) for _ in range(k)]
        state, faults = json.loads(json.dumps(it.get_state())), it.faults()
        always = {*before, *it}
        fails.clear()  # nothing fails any more
        it = iter(chain(fails).window_shuffle(6, seed=3))
        it.set_state(state)
        assert (it.faults().total, it.faults().tried) == (faults.total, faults.tried)
        found = [*before, *it]
        assert max(map(found.count, found)) <= times
        assert min(map(found.count, always)) >= times


def test_totals_never_go_back_when_components_begin_again():
    fails = {3}
    ds = IterDataset.mix({"a": tolerant(0, 5, fails), "b": tolerant(10, 50, set())}, stop="never")
    it, totals = iter(ds), []
    for _ in range(60):
        next(it)
        totals.append(it.faults().total)
    assert totals == sorted(totals) and totals[-1] > 1


def test_totals_continue_where_an_epoch_ends_after_going_back_there():
    it = iter(tolerant(0, 9, FAILS).limit(4).repeat(3))
    states, totals = [it.get_state()], [0]
    for _ in it:
        states.append(it.get_state())
        totals.append(it.faults().total)
    assert totals[-1] == 6
    for state, total in zip(states, totals, strict=True):
        it.set_state(state)
        assert it.faults().total == total
        list(it)
        assert it.faults().total == totals[-1]
