"""``order="stream"``: elements, states and errors are those of the chain without workers, for any
number of workers.
"""

import json
import os
import re
import signal
from functools import partial

import numpy as np
import pytest
from computing_ahead import DIRECT
from local_workers import LocalWorkersIterDataset
from operations import operation
from outcomes import comparable, outcomes
from refusing import assert_raises

from gristmill import DataLoader, MapDataset, MultiprocessingOptions
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.dataset.stages.stream_order import in_stream_order
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.experimental import (
    DatasetOptions,
    InterleaveIterDataset,
    WithOptionsIterDataset,
    get_next_index,
    set_next_index,
)
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.transforms import Batch, Filter, FlatMap, Map, RandomMap


def local(ds, num_workers):
    def workers(part, num_lanes=None):
        return LocalWorkersIterDataset(
            part, min(num_workers, num_lanes or num_workers), num_lanes=num_lanes
        )

    return in_stream_order(ds, workers)


def in_processes(ds, num_workers):
    return ds.mp_prefetch(MultiprocessingOptions(num_workers, executor="processes"), order="stream")


def test_totals_of_faults_continue_in_the_next_dataset():
    members = [
        MapDataset.range(10 * i, 10 * i + 10)
        .map(failing(9, int))
        .to_iter_dataset()
        .tolerate(max_rate=1)
        for i in range(3)
    ]
    ds = InterleaveIterDataset(members, cycle_length=2, iter_buffer_size=0)

    def delivered(it):
        return [*((x, it.get_state()) for x in it), it.get_state()]

    expected = delivered(iter(ds))
    assert delivered(iter(local(ds, 2))) == expected
    restored = iter(local(ds, 2))
    for i in (20, 7, 13):
        restored.set_state(expected[i][1])
        assert delivered(restored) == expected[i + 1 :]


def failing(modulus, fn):
    """``fn``, which fails with some elements."""

    def fail(x):
        if x % modulus == 7:
            raise LookupError("bad", x)
        return fn(x)

    return fail


@pytest.mark.parametrize("num_workers", [2, 3])
def test_processes(num_workers):
    numbers = MapDataset.range(50).map(failing(23, lambda x: x + 1)).to_iter_dataset().seed(1)
    ds = (
        numbers.random_map(lambda x, rng: x + rng.integers(9)).batch(4).map(lambda x: x + 1)
        if num_workers == 2
        else numbers.filter(lambda x: x % 3)
        .map_with_index(lambda i, x: x + i)
        .window_shuffle(7, seed=2)
    )
    expected, it = outcomes(iter(ds)), iter(in_processes(ds, num_workers))
    assert describe(it) == describe(iter(ds)) and outcomes(it) == expected
    for position in (1, len(expected) // 2):
        state = expected[position - 1][1]
        it.set_state(json.loads(json.dumps(state)))
        assert it.get_state() == state and outcomes(it) == expected[position:]
    # Processes are used again for the next epoch.
    ds = in_processes(MapDataset.range(6).map(lambda x: os.getpid()).to_iter_dataset().batch(2), 2)
    pids = {*np.concatenate(list(ds))}
    assert pids == {*np.concatenate(list(ds))} and os.getpid() not in pids


def fatal():
    return lambda x: os.kill(os.getpid(), signal.SIGKILL) if x == 13 else x


def test_a_worker_that_is_killed_loses_nothing():
    ds = MapDataset.range(40).map(fatal()).to_iter_dataset(DIRECT).batch(3).map(list)
    it = iter(in_processes(ds, 2).flat_map(list))
    assert [next(it) for _ in range(12)] == [*range(12)]
    with pytest.raises(
        RuntimeError,
        match=(
            r"Worker process 0 of 2 .*killed by signal 9.* at element 1[23] or in what is made"
            r" of it"
        ),
    ):
        next(it)
    alone = iter(ds.flat_map(list))
    # continues where no worker is killed, but this process would be
    alone.set_state(it.get_state())
    assert alone.get_state() == it.get_state()
    it.skip_failed()
    assert list(it) == [*range(15, 40)]
    members = [MapDataset.range(i, 40, 4).to_iter_dataset(DIRECT) for i in range(4)]
    ds = InterleaveIterDataset(members, cycle_length=4).filter(lambda x: x < 30).map(str)
    it = iter(
        in_processes(
            InterleaveIterDataset(members, cycle_length=4)
            .map(fatal())
            .filter(lambda x: x < 30)
            .map(str),
            2,
        )
    )
    assert [next(it) for _ in range(13)] == [str(x) for x in range(13)]
    assert_raises(RuntimeError, r"Worker process 1 of 2 .*killed by signal 9", next, it)
    state = it.get_state()
    it.skip_failed()
    assert [*it] == [str(x) for x in range(14, 30)]
    alone = iter(ds)
    alone.set_state(state)
    assert [*alone] == [str(x) for x in range(13, 30)]
    # Options downstream of an interleave act in the workers.
    strict = WithOptionsIterDataset(
        InterleaveIterDataset(
            [MapDataset.range(3000).to_iter_dataset().filter(lambda x: x < 5)] * 2, cycle_length=2
        ),
        DatasetOptions(filter_raise_threshold_ratio=0.9),
    )
    for ds in (strict, local(strict, 2)):
        it = iter(ds)
        assert [next(it) for _ in range(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert_raises(ValueError, "dropped", next, it)


def test_errors_name_the_step_and_the_element():
    """As those without workers do, and the worker."""
    boom = failing(13, lambda x: x)
    for step in (
        lambda ds: ds.map(boom),
        lambda ds: ds.filter(lambda x: x % 4).map(boom),
        lambda ds: ds.filter(boom),
    ):
        for batch in (lambda ds: ds, lambda ds: ds.batch(2)):
            ds = batch(step(MapDataset.range(1, 30).shuffle(seed=1).to_iter_dataset()))
            notes = []
            for it in (iter(ds), iter(local(ds, 3))):
                with pytest.raises(LookupError) as caught:
                    list(it)
                notes.append(caught.value.__notes__[0])
            assert re.sub(r" in worker [012] of 3", "", notes[1]) == notes[0]
    ds = MapDataset.range(9).map(lambda x: x if x != 5 else None).to_iter_dataset().batch(2)
    it = iter(local(ds, 2))
    assert [next(it).tolist(), next(it).tolist()] == [[0, 1], [2, 3]]
    assert_raises(ValueError, r"an element is None.*filter.*order='workers'", next, it)


def test_a_filter_that_drops_too_much_is_reported():
    options = DatasetOptions(filter_raise_threshold_ratio=0.7)
    for ds in (
        MapDataset.range(4000)
        .to_iter_dataset(DIRECT)
        .filter(lambda x: x < 500 or x % 7 == 0)
        .map(str),
        MapDataset.range(4000).filter(lambda x: x < 500 or x % 7 == 0).to_iter_dataset().map(str),
    ):
        found = []
        for it in (
            iter(WithOptionsIterDataset(ds, options)),
            iter(local(WithOptionsIterDataset(ds, options), 3)),
        ):
            elements = []
            with pytest.raises(ValueError, match="dropped") as caught:
                for x in it:
                    elements.append(x)
            state = it.get_state()
            found.append((elements, state, str(caught.value), next(it), it.get_state()))
        assert found[0] == found[1]


def test_states_that_do_not_fit():
    ds = (
        MapDataset.range(30).to_iter_dataset().map_with_index(lambda i, x: (i, x)).map(str).batch(4)
    )
    it, divided = iter(ds), iter(local(ds, 3))
    for each in (it, divided):
        set_next_index(each, 7)
    assert divided.get_state() == it.get_state() and get_next_index(divided) == 7
    for each in (it, divided):  # in the middle of a batch
        each.set_state({"parent": {"next_index": 5}, "counter": 5})
    assert outcomes(divided) == outcomes(it)
    before = divided.get_state()
    with pytest.raises(StateMismatchError, match=r"all counts .* must be equal"):
        divided.set_state({"parent": {"next_index": 5}, "counter": 3})
    assert divided.get_state() == before


def test_sources_that_end_before_their_length():
    class Early(list):
        def __getitem__(self, key):
            if key >= 17:
                raise StopIteration
            return super().__getitem__(key)

    for step in (lambda ds: ds, lambda ds: ds.map(str), lambda ds: ds.filter(lambda x: x % 2)):
        ds = step(MapDataset.source(Early(range(40))).to_iter_dataset(DIRECT))
        assert outcomes(iter(local(ds, 3))) == outcomes(iter(ds))
    batches = MapDataset.source(Early(range(40))).to_iter_dataset(DIRECT).batch(5)
    assert [x.tolist() for x in local(batches, 3)] == [x.tolist() for x in batches]


def test_what_is_refused():
    numbers, two = MapDataset.range(9).to_iter_dataset(), MultiprocessingOptions(2)
    assert numbers.mp_prefetch(MultiprocessingOptions(0), order="stream") is numbers
    with pytest.raises(ValueError, match="order must be 'workers' or 'stream', got 'rows'"):
        numbers.mp_prefetch(two, order="rows")
    stream = partial(numbers.mp_prefetch, order="stream")
    lanes = MultiprocessingOptions(2, num_lanes=4)
    assert_raises(
        ValueError, "cannot be used with num_lanes=4, which divides the stream", stream, lanes
    )
    with pytest.raises(ValueError, match="cannot be used with sequential_slice=True"):
        stream(two, sequential_slice=True)
    for ds, reason in (
        (
            numbers.zip(numbers).batch(2),
            r"ZipIterDataset.* draws from 2 datasets\. Apply mp_prefetch",
        ),
        (
            TFRecordIterDataset("no file"),
            "TFRecordIterDataset.* does not find its elements by index",
        ),
        (
            MapDataset.range(3).repeat().interleave(MapDataset.range, cycle_length=2),
            "it has more than 65536 datasets",
        ),
        (
            numbers.multithread_prefetch(2, 2).batch(2),
            "MultithreadPrefetchIterDataset.* divides it among threads",
        ),
        (
            numbers.mp_prefetch(two).map(str),
            "already has Multiprocess.*workers do not start workers",
        ),
        (
            in_processes(numbers, 2).map(str),
            "already has StreamOrder.*workers do not start workers",
        ),
    ):
        assert_raises(ValueError, reason, ds.mp_prefetch, two, order="stream")
    behind = in_processes(numbers, 2).map(str)
    with pytest.raises(ValueError, match=r"already has StreamOrder.*workers do not start workers"):
        behind.mp_prefetch(two)
    with pytest.raises(ValueError, match="its elements are those of one stream"):
        behind.multithread_prefetch(2, 2)


ADD_ONE = operation(Map, "map", lambda x: x + 1)
ADD_RANDOM = operation(RandomMap, "random_map", lambda x, rng: x + int(rng.integers(100)))
NO_THREES = operation(Filter, "filter", lambda x: x % 3 > 0)
TWICE = operation(FlatMap, "flat_map", lambda x: [x, -x], max_fan_out=2)
OPERATIONS = {
    "maps": [ADD_ONE, ADD_RANDOM, Batch(4), ADD_ONE],
    "filter": [ADD_ONE, NO_THREES, ADD_RANDOM, Batch(3, drop_remainder=True)],
    "flat map": [ADD_RANDOM, NO_THREES, TWICE, Batch(5)],
    "function": [ADD_ONE, lambda records: records],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_loaders(name):
    def loader(num_workers, **options):
        sampler = IndexSampler(30, shuffle=True, seed=3, num_epochs=2)
        given = {
            "sampler": sampler,
            "operations": OPERATIONS[name],
            "worker_count": num_workers,
            **options,
        }
        return DataLoader(data_source=range(30), **given)

    alone, divided = loader(0), loader(2, order="stream")
    it, other = iter(alone), iter(divided)
    states, expected = [it.get_state()], []
    for x in it:
        expected.append(comparable(x))
        states.append(it.get_state())
    assert other.get_state() == states[0]
    for x, state in zip(expected, states[1:], strict=True):
        assert comparable(next(other)) == x and other.get_state() == state
    assert next(other, None) is None
    assert other._gm_describe() == it._gm_describe()
    for position in (3, len(expected) // 2):
        for restored in (iter(alone), other):
            restored.set_state(states[position])
            assert [comparable(x) for x in restored] == expected[position:]
    assert "order='stream'" in repr(divided) and ", order=" not in repr(alone)
    assert_raises(ValueError, "num_lanes=2", loader, 0, order="stream", num_lanes=2)
    with pytest.raises(ValueError, match="order must be"):
        DataLoader(data_source=[1], sampler=SequentialSampler(1), order=None)
    divided.close()
