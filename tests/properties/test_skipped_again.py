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
    for k in (0, 1, 5, 11) if name != "processes" else (5,):
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


def of_kinds(start=0, cycle_length=1):
    """An interleave of members that do not understand the positions of each other."""
    members = [
        tolerant(start, 4, FAILS),
        tolerant(start + 10, 4, FAILS).map(lambda x: x),
        MapDataset.range(2),
        tolerant(start + 20, 3, FAILS),
    ]
    return experimental.InterleaveIterDataset(members, cycle_length=cycle_length)


def nested():
    members = [of_kinds(), of_kinds(30, 2).map(lambda x: x), tolerant(6, 1, {6}), of_kinds()]
    return experimental.InterleaveIterDataset(members, cycle_length=2)


BEGINNING_AGAIN = {
    "components": lambda: IterDataset.mix(
        {"a": tolerant(0, 5, {3}), "b": tolerant(10, 50, ())}, stop="never"
    ).limit(60),
    "limited epochs": lambda: tolerant(0, 9, FAILS).limit(4).repeat(3),
    "lanes": lambda: lanes(0)(FAILS).repeat(2),
    "worker threads": lambda: lanes(2)(FAILS).repeat(2),
    "rows": lambda: rows(None)(FAILS).repeat(2),
    "members of other kinds": lambda: of_kinds().repeat(2),
    "lanes of an interleave": lambda: (
        of_kinds().mp_prefetch(MultiprocessingOptions(num_lanes=2)).repeat(2)
    ),
    "nested interleaves": nested,
    "nothing ahead of members": lambda: experimental.InterleaveIterDataset(
        [tolerant(10 * i, 6 + i, FAILS) for i in range(4)], cycle_length=2, iter_buffer_size=0
    ).window_shuffle(6, seed=1),
    "an interleave in a mixture in members": lambda: experimental.InterleaveIterDataset(
        [IterDataset.mix([of_kinds()]).limit(n) for n in (5, 3, 9)], cycle_length=2
    ),
    "rows in windows in members": lambda: experimental.InterleaveIterDataset(
        [rows(None)(FAILS).limit(n).window_shuffle(5, seed=1) for n in (9, 4, 20)], cycle_length=2
    ),
    "a mixture of interleaves that begins again": lambda: IterDataset.mix(
        {"a": of_kinds(), "b": tolerant(10, 50, ())}, stop="never"
    ).limit(60),
    "failing ends of epochs": lambda: (
        tolerant(1, 6, FAILS).repeat(3).window_shuffle(3, seed=1).window_shuffle(2, seed=1)
    ),
    "ends of lanes": lambda: (
        tolerant(1, 6, FAILS).global_batch(2, num_lanes=2, batch_fn=sum).repeat(2)
    ),
    "interleave by workers": lambda: of_kinds(0, 2).mp_prefetch(
        MultiprocessingOptions(2, executor="threads"), order="stream"
    ),
}


@pytest.mark.parametrize("name", BEGINNING_AGAIN)
def test_totals_never_go_back(name):
    ds = BEGINNING_AGAIN[name]()
    it = iter(ds)
    elements, states, totals = [], [it.get_state()], [it.faults().total]
    for x in it:
        elements.append(x)
        states.append(json.loads(json.dumps(it.get_state())))
        totals.append(it.faults().total)
    assert totals == sorted(totals) and totals[-1] > 2
    for k in range(0, len(states), 1 + len(states) // 6):
        again = it if k % 2 else iter(ds)
        again.set_state(states[k])
        assert again.faults().total == totals[k]
        assert [*again] == elements[k:]
        assert again.faults().total == totals[-1]


def test_an_iterator_without_a_state_has_no_faults():
    class Plain(IterDataset):
        def __iter__(self):
            return iter("abc")

    assert iter(Plain().map(str)).faults().total == 0
