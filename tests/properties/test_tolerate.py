"""``tolerate``: streams are those of what does not fail, wherever they are computed and however
often they are restored.
"""

import collections
import io
import itertools
import json
import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from list_model import FAILED, MapModel, failing_map_steps
from list_model import build as build_map
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises
from stream_model import Endless, build, failing_trees, frozen, names, outcomes

import gristmill
from gristmill import (
    DataLoader,
    FaultBudgetError,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    ShardOptions,
)
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.stages.bin_packing import FirstFitPackIterDataset
from gristmill.dataset.stages.concat_then_split import ConcatThenSplitIterDataset
from gristmill.dataset.stages.elastic import ElasticIterator
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.repeat import RepeatIterDataset
from gristmill.samplers import IndexSampler
from gristmill.transforms import Batch, FlatMap, Map, Tolerate

ALL = {"max_rate": None, "max_consecutive": None}
DIRECT = ReadOptions(num_threads=0)
BROKEN = {5, 17, 900}
LIMIT = 40
some = settings(max_examples=35, deadline=None, suppress_health_check=list(HealthCheck))


def break_some(x):
    if x in BROKEN:
        raise ValueError(f"record {x} is broken")
    return x


def thousand(**arguments):
    return MapDataset.range(1000).map(break_some).tolerate(**{"max_rate": 0.01, **arguments})


def through_json(state):
    return json.loads(json.dumps(state))


@some
@given(failing_trees, st.integers(0, LIMIT), st.integers(1, 7))
def test_random_streams_are_those_of_what_does_not_fail(tree, position, n):
    # which do not go past all failures
    assume(names(tree).isdisjoint(["user", "workers", "local_workers", "cache", "zip"]))
    try:
        expected = [x for x in itertools.islice(outcomes(tree), LIMIT) if x is not FAILED]
    except Endless:
        assume(False)
    ds = build(tree).tolerate(**ALL)
    it = iter(ds)
    found = [frozen(x) for x in itertools.islice(it, len(expected))]
    assert found == expected
    start = min(position, len(expected))
    first, again = iter(ds), iter(ds)
    for _ in range(start):
        next(first)
    again.set_state(through_json(first.get_state()))
    assert [again.faults().total, again.faults().tried] == [
        first.faults().total,
        first.faults().tried,
    ]
    taken = [frozen(x) for x in again._gm_take(n)]  # of an endless stream, more than is expected
    assert taken[: len(expected) - start] == expected[start : start + n]
    assert first.faults().total + start == first.faults().tried


@some
@given(
    st.integers(1, 12), failing_map_steps, st.lists(st.integers(-40, 40), min_size=1, max_size=9)
)
def test_random_map_datasets(length, steps, indices):
    model = MapModel(length, steps)
    assume(0 < model.length < 200)
    ds = build_map(model.steps)
    skipping = ds.tolerate(**ALL)
    expected = [None if model[i] is FAILED else model[i] for i in indices]
    assert [skipping[i] for i in indices] == list(skipping._gm_items(indices)) == expected
    size = len(ds)
    replacing = ds.tolerate(max_rate=None, then="replace")
    for i in indices:
        others = [
            model[k]
            for k in range(i // size * size, i // size * size + size)
            if model[k] is not FAILED
        ]
        if model[i] is not FAILED:
            assert replacing[i] == model[i]
        elif others:
            assert replacing[i] in others and replacing[i] == list(replacing._gm_items([i, i]))[1]


def streams():

    yield "replaced", thousand(then="replace").shuffle(seed=1).batch(10).to_iter_dataset()
    yield (
        "stream",
        MapDataset.range(1000)
        .to_iter_dataset()
        .map(break_some)
        .filter(lambda x: x % 3)
        .tolerate(max_rate=0.01),
    )
    yield "windows", thousand().to_iter_dataset().window_shuffle(32, seed=1).batch(7)
    yield "component", MapDataset.mix([thousand(), MapDataset.range(1000, 2000)]).to_iter_dataset()


@pytest.mark.parametrize(
    ("name", "ds"), [*streams()], ids=lambda x: x if isinstance(x, str) else ""
)
def test_streams_are_equal_for_all_executors(name, ds):
    def trace(lanes):
        with iter(lanes) as it:
            elements = [frozen(x) for x in it]
            return (
                elements,
                it.faults().total,
                it.faults().tried,
                sorted(fault.record_key for fault in it.faults().last),
            )

    expected = trace(ds.mp_prefetch(MultiprocessingOptions(num_lanes=3)))
    assert (
        expected[1] == 3 and expected[3] == sorted(BROKEN) and expected[2] in (667, 668, 1000, 1001)
    )
    for num_workers in (1, 2, 3):
        assert trace(LocalWorkersIterDataset(ds, num_workers, num_lanes=3)) == expected
    # a lane of a mixture is a mixture of lanes; threads share out the order of the mixture
    if name != "component":
        assert trace(ds.multithread_prefetch(3, 4)) == expected
    with iter(ds) as alone:
        assert sum(1 for _ in alone) and [alone.faults().total, alone.faults().tried] == [
            3,
            min(expected[2], 1000),
        ]
    if name == "windows":
        assert trace(ds.mp_prefetch(MultiprocessingOptions(num_workers=2, num_lanes=3))) == expected


def test_hosts_share_what_does_not_fail():
    ds = thousand(then="replace").shuffle(seed=1).to_iter_dataset()
    alone = iter(ds.global_batch(12, num_lanes=4))
    hosts = [
        iter(ds.global_batch(12, num_lanes=4, shard_options=ShardOptions(i, 2))) for i in range(2)
    ]
    for batch, *parts in zip(alone, *hosts, strict=True):
        assert np.concatenate(parts).tolist() == batch.tolist()
    assert sum(it.faults().total for it in hosts) == alone.faults().total == 3


def shards(ds, num, size=20):
    return [ElasticIterator(ds, size, ShardOptions(i, num)) for i in range(num)]


@pytest.mark.parametrize("then", ["replace", "skip"])
def test_shards_continue_with_their_counts(then):
    ds = thousand(then=then, max_total=2, max_rate=None)
    elements = [x for x in (ds[i] for i in range(1000)) if x is not None]
    whole = shards(thousand(then=then), 2)
    found = np.sort(np.concatenate([np.concatenate(list(it)) for it in whole])).tolist()
    assert (
        found == sorted(elements)[: len(elements) // 20 * 20]
        if then == "skip"
        else sorted(elements)
    )
    assert [it.faults().total for it in whole] == ([1, 2] if then == "replace" else [3, 3])
    (alone,) = shards(ds, 1)
    for _ in range(40):
        next(alone)
    state = through_json(alone.get_state())
    assert state["faults"] == [{"total": 2, "tried": state["global_next_index"]}]
    for num, totals in ((1, [2]), (2, [1, 1]), (4, [1, 1, 1, 1])):
        of_num = shards(ds, num)
        for it in of_num:
            it.set_state(state)
            assert through_json(it.get_state()) == state
            next(it)
        assert [it.faults().total for it in of_num] == (totals if then == "replace" else [2] * num)
        (again,) = shards(ds, 1)
        again.set_state(again._gm_merged_state([through_json(it.get_state()) for it in of_num]))
        next(again)
        assert again.faults().total == (sum(totals) if then == "replace" else 2)
    assert delivered(alone)[0] == 5 - (then == "skip") and alone.faults().total == 2
    with ElasticIterator(
        ds, 20, ShardOptions(0, 1), multiprocessing_options=MultiprocessingOptions(2)
    ) as by_workers:
        by_workers.set_state(state)
        assert delivered(by_workers)[0] == 5 - (then == "skip") and by_workers.faults().total == 2
        by_workers.skip_failed()
        assert len([*by_workers]) == 4 and by_workers.faults().total == 3
    old = shards(ds, 1)[0]
    old.set_state({"global_next_index": state["global_next_index"]})
    assert len([*old]) == 10 - (then == "skip") and old.faults().total == 1
    for wrong in (
        3,
        [],
        [{}],
        [{"total": 1}],
        [{"total": -1, "tried": 3}],
        [{"total": 1, "tried": 3}, 1],
    ):
        with pytest.raises(StateMismatchError, match="faults in the state"):
            old.set_state({**state, "faults": wrong})
    plain = shards(MapDataset.range(1000), 1)[0]
    assert plain.get_state() == {"global_next_index": 0}


class Coin:
    """A function that fails by chance."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.chance = 0.0
        self.failing = set()

    def __call__(self, x):
        if x in self.failing or self.random.random() < self.chance:
            raise OSError(f"{x} could not be read")
        return x


N = 150


def numbers_in(x):
    if isinstance(x, dict):  # a packed row, whose sequences are all alike and of one length
        return [int(v) for v, segment in zip(x["x"], x["x_segment_ids"], strict=True) if segment]
    return (
        [y for part in x for y in numbers_in(part)]
        if isinstance(x, list | tuple | np.ndarray)
        else [int(x)]
    )


def restored_streams(coin):
    ds = MapDataset.range(N).map(coin).tolerate(OSError, **ALL)
    stream, direct = ds.to_iter_dataset(), ds.to_iter_dataset(DIRECT)
    filtered = (
        MapDataset.range(N)
        .to_iter_dataset(DIRECT)
        .map(coin)
        .filter(lambda x: coin(x) >= 0)
        .tolerate(**ALL)
    )
    lanes = MultiprocessingOptions(num_lanes=3)
    return {
        "map": (direct, 1),
        "threads": (stream, 1),
        "stream": (filtered, 1),
        "windows": (direct.window_shuffle(16, seed=1), 1),
        "windows_of_windows": (
            filtered.map(coin).tolerate(**ALL).window_shuffle(5, seed=1).window_shuffle(7, seed=2),
            1,
        ),
        "batches": (filtered.batch(4).rebatch(3), 1),
        "bins": (
            FirstFitPackIterDataset(
                stream.map(threes), length_struct={"x": 10}, num_packing_bins=4
            ),
            3,
        ),
        "rows": (ConcatThenSplitIterDataset(stream.map(threes), length_struct={"x": 10}), 3),
        "lanes": (direct.window_shuffle(8, seed=1).mp_prefetch(lanes), 1),
        "behind_lanes": (
            filtered.map(coin).tolerate(**ALL).mp_prefetch(lanes).window_shuffle(8, seed=1),
            1,
        ),
    }


def threes(x):
    return {"x": np.full(3, x)}


@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(i, marks=pytest.mark.slow) for i in range(1, 2)]]
)
@pytest.mark.parametrize("name", restored_streams(Coin(0)))
def test_every_record_came_once_or_was_skipped(name, seed):
    """A window, a bin or a batch that is filled again has what it had, or ``next`` says that it
    cannot.
    """
    coin = Coin(f"{name}{seed}")
    ds, num_each = restored_streams(coin)[name]
    it, found, num_restarts = iter(ds), [], 0
    # the coin is thrown by threads, too, an unknown number of times
    coin.chance, restarts = 0.06, random.Random(seed + 1)
    while True:
        if restarts.random() < 0.2:
            state, counts = through_json(it.get_state()), it.faults()
            it = iter(ds)
            it.set_state(state)
            assert through_json(it.get_state()) == state
            assert (it.faults().total, it.faults().tried) == (counts.total, counts.tried)
            num_restarts += 1
        try:
            found += numbers_in(next(it))
        except StopIteration:
            break
        except OSError as error:  # it did not fail when the state was taken
            assert any("does not pass over it" in note for note in error.__notes__)
            it.set_state(it.get_state())
    assert num_restarts > 3 and set(map(found.count, found)) == {num_each}
    total = it.faults().total
    assert total + len(set(found)) == N and (total > 0 or "stream" not in name)


def test_the_last_faults_of_lanes_are_the_last_that_were_passed():
    coin = Coin(0)
    coin.failing = {*range(0, 400, 5)}
    ds = MapDataset.range(400).map(coin).tolerate(**ALL).to_iter_dataset(DIRECT)
    it = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=4)))
    found = {fault.record_key for _ in it for fault in it.faults().last}
    assert found == coin.failing
    assert [fault.record_key for fault in it.faults().last] == [*range(300, 400, 5)]


def test_what_was_skipped_is_skipped_again():
    coin = Coin(0)
    ds = (
        MapDataset.range(8)
        .map(coin)
        .tolerate(**ALL)
        .to_iter_dataset(DIRECT)
        .window_shuffle(8, seed=1)
    )
    coin.failing = {2}
    it = iter(ds)
    first, state, rest = next(it), through_json(it.get_state()), [*it]
    assert sorted([first, *rest]) == [0, 1, 3, 4, 5, 6, 7] and it.faults().total == 1
    ((key, stage, error),) = it.faults().last
    assert key == 2 and "Coin" in stage and error == "OSError: 2 could not be read"
    again = iter(ds)
    again.set_state(state)
    coin.failing = {0}
    with pytest.raises(OSError, match="0 could not be read") as caught:
        next(again)
    assert "does not pass over it" in "".join(caught.value.__notes__)
    coin.failing = set()
    assert [*again] == rest and again.faults().total == 1


def delivered(it):
    num = 0
    with pytest.raises(FaultBudgetError) as caught:
        for _ in it:
            num += 1
    return num, caught.value


def keys_in(log):
    """The records of the faults since it was asked last."""
    keys = [json.loads(line)["record_key"] for line in log.getvalue().splitlines()]
    log.seek(0)
    log.truncate()
    return keys


@pytest.mark.parametrize("limit", [{"max_total": 2, "max_rate": None}, {"max_rate": 2.5e-3}])
def test_a_budget_is_exceeded_at_the_same_place(limit):
    log = io.StringIO()
    ds = thousand(**limit, log=log).to_iter_dataset()
    alone = iter(ds)
    num, error = delivered(alone)
    assert num == 898
    assert [fault.record_key for fault in error.last] == [5, 17, 900]
    assert "record 900 is broken" in str(error)
    state = alone.get_state()
    assert_raises(FaultBudgetError, "3 of 901", next, alone)
    assert alone.get_state() == state and alone.faults().total == 2
    alone.skip_failed()
    assert len([*alone]) == 99 and alone.faults().total == 3 and keys_in(log) == [5, 17, 900]
    behind = iter(MapDataset.range(1000).to_iter_dataset().map(break_some).tolerate(**limit))
    assert delivered(behind)[0] == 898
    lanes = [iter(ds.mp_prefetch(MultiprocessingOptions(num_lanes=4)))]
    lanes += [iter(LocalWorkersIterDataset(ds, num, num_lanes=4)) for num in (1, 2, 4)]
    places = []
    for it in lanes:
        places.append(delivered(it)[0])
        state = it.get_state()
        assert_raises(FaultBudgetError, "3 of", next, it)
        assert it.get_state() == state
        it.skip_failed()
        assert sum(1 for _ in it) == 996 - places[-1]
        assert keys_in(log) == [5, 17, 900]
    assert len(set(places)) == 1
    # Counts continue after a restart.
    it = iter(ds)
    for _ in range(500):
        next(it)
    restored = iter(ds)
    restored.set_state(through_json(it.get_state()))
    assert delivered(restored)[0] == 398


def fails_at(divisor, rest):
    def function(x):
        if x % divisor == rest:
            raise ValueError(f"{x} is broken")
        return x

    return function


class UpToTwo(FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [element] * (element % 3)


EARLY_READERS = {
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "block_shuffle": lambda ds: ds.block_shuffle(4, group_size=2, seed=8),
    "one_block": lambda ds: ds.block_shuffle(16, group_size=1, seed=8)[::-1],
    "shuffled_blocks": lambda ds: ds.block_shuffle(3, group_size=4, seed=9).shuffle(seed=8),
    "flat_map": lambda ds: ds.flat_map(UpToTwo()),
    "shuffled_items": lambda ds: ds.flat_map(UpToTwo()).shuffle(seed=2),
}


@pytest.mark.parametrize("then", ["skip", "replace"])
@pytest.mark.parametrize("stage", EARLY_READERS.values(), ids=EARLY_READERS)
def test_a_fault_counts_once(stage, then):
    one = MapDataset.range(30).map(fails_at(3, 1)).tolerate(**ALL, then=then)
    for tolerant, num in ((one, 10), (one.map(fails_at(5, 2)).tolerate(**ALL), 14)):
        for max_total in (100, 4):
            ds = stage(tolerant).tolerate(max_rate=None, max_total=max_total)
            runs = []
            for options, restart in ((DIRECT, None), (DIRECT, 7), (ReadOptions(2, 4), 1)):
                it = iter(ds.to_iter_dataset(options))
                found = [next(it) for _ in range(restart or 0)]
                if restart is not None:
                    state, it = through_json(it.get_state()), iter(ds.to_iter_dataset(options))
                    it.set_state(state)
                runs.append(([*found, *it], it.faults().total))
            assert runs == runs[:1] * 3
            assert runs[0][1] == num or then == "replace"


WHAT_FOLLOWS = {
    "nothing": lambda ds: ds,
    "shuffle": lambda ds: ds.shuffle(seed=1)[::2],
    "map": lambda ds: ds.map(abs),
    "tolerate": lambda ds: ds.map(fails_at(7, 3)).tolerate(**ALL),
    "two parents": lambda ds: MapDataset.zip(MapDataset.range(100, 145), ds).map(sum),
    "component": lambda ds: MapDataset.mix([ds, MapDataset.range(100, 130)], [3, 1]),
    "batch": lambda ds: ds.batch(4, batch_fn=sum),
    "flat_map": lambda ds: ds.flat_map(UpToTwo()),
    "block_shuffle": lambda ds: ds.block_shuffle(4, group_size=2, seed=8).map(abs),
}


@pytest.mark.parametrize("then", ["skip", "replace"])
@pytest.mark.parametrize("name", WHAT_FOLLOWS)
def test_each_element_is_tried_once(name, then):
    """An error by chance would seldom be seen if it was tried again."""
    calls = collections.Counter()

    def fail(x):
        calls[x] += 1
        return fails_at(5, 2)(x)

    tolerant = MapDataset.range(45).map(fail).tolerate(**ALL, then=then)
    if then == "skip" and name in ("two parents", "batch"):  # which need an element at each index
        return
    of_map = WHAT_FOLLOWS[name](tolerant)
    for i in range(len(of_map)):
        of_map[i]
    expected = dict(calls)
    for options, kind, num_lanes in itertools.product(
        (DIRECT, ReadOptions(2, 8)), ("", "window", "batch"), (0, 3)
    ):
        calls.clear()
        ds = of_map.to_iter_dataset(options)
        ds = (
            ds.window_shuffle(8, seed=1)
            if kind == "window"
            else ds.batch(7, batch_fn=list)
            if kind == "batch"
            else ds
        )
        # each lane has a part of each element, or block
        if num_lanes and name not in ("flat_map", "block_shuffle"):
            ds = ds.mp_prefetch(MultiprocessingOptions(0, num_lanes=num_lanes))
        it = iter(ds)
        assert len([*it]) and it.faults().total > 3
        assert dict(calls) == expected


def test_the_budget_is_for_all_epochs():
    of_map = MapDataset.range(10).map(fails_at(5, 3)).tolerate(max_rate=None, max_total=5)
    stream = (
        MapDataset.range(10)
        .to_iter_dataset()
        .map(fails_at(5, 3))
        .tolerate(max_rate=None, max_total=5)
    )
    for ds in (of_map.to_iter_dataset(DIRECT), of_map.to_iter_dataset(), stream):
        it = iter(RepeatIterDataset(ds, num_epochs=9))
        for k in range(23):
            again = iter(RepeatIterDataset(ds, num_epochs=9))
            again.set_state(through_json(it.get_state()))
            assert (again.faults().total, again.faults().tried) == (
                it.faults().total,
                it.faults().tried,
            )
            assert delivered(again)[0] == 23 - k
            next(it)
        assert_raises(FaultBudgetError, "6 of 29 elements failed", next, it)
        assert (it.faults().total, [fault.record_key for fault in it.faults().last]) == (5, [3, 8])
        it.skip_failed()
        assert next(it) == 9 and it.faults().total == 6


def test_a_stage_covers_the_stages_since_the_one_before():
    def parse(x):
        if x == 2:
            raise KeyError(x)
        if x == 5:
            raise OSError("disk")
        return x

    ds = MapDataset.range(9)
    of_map = ds.map(parse).tolerate(KeyError)
    stream = ds.to_iter_dataset().map(parse).tolerate(KeyError)
    for tolerant, num_skipped in (  # a stream counts what is skipped by hand
        (of_map.map(str).tolerate(OSError), 0),
        (of_map.map(str).tolerate(**ALL).to_iter_dataset().tolerate(**ALL), 0),
        (of_map.to_iter_dataset().map(str).tolerate(**ALL), 0),
        (stream.map(str).tolerate(OSError), 1),
        (stream.tolerate(**ALL).batch(1, batch_fn=sum).tolerate(**ALL), 1),
    ):
        it = iter(tolerant)
        assert [int(next(it)) for _ in range(4)] == [0, 1, 3, 4] and it.faults().total == 1
        assert_raises(OSError, "disk", next, it)
        it.skip_failed()
        assert [int(x) for x in it] == [6, 7, 8] and it.faults().total == 1 + num_skipped


class Plain(IterDataset):
    def __iter__(self):
        return map(break_some, range(9))  # it has no state, and might end after an error


def test_nothing_is_skipped_of_a_plain_iterator():
    skipping = Plain().tolerate(**ALL)
    lanes = skipping.mp_prefetch(MultiprocessingOptions(0))
    for ds in (
        skipping,
        skipping.window_shuffle(6, seed=1),
        lanes,
        skipping.multithread_prefetch(1, 4),
    ):
        with pytest.raises(ValueError, match="record 5 is broken") as caught:
            list(ds)
        assert "return a DatasetIterator from __iter__" in "".join(caught.value.__notes__)


def test_many_stages_cost_no_more_each_than_few():
    calls = []
    ds = MapDataset.range(3).map(calls.append).to_iter_dataset(DIRECT, allow_nones=True)
    for _ in range(100):
        ds = ds.tolerate()
    it = iter(ds)
    assert [*it] == [None] * 3 and len(calls) == 3 and it.faults().tried == 300


def test_too_many_in_a_row():
    ds = (
        MapDataset.range(100)
        .map(lambda x: 1 // (x < 40 or x > 60))
        .tolerate(max_rate=None, max_consecutive=20)
    )
    assert delivered(iter(ds.to_iter_dataset()))[0] == 40
    found = delivered(
        iter(
            MapDataset.range(100)
            .map(lambda x: 1 // (x < 3))
            .to_iter_dataset()
            .tolerate(max_rate=None, max_consecutive=96)
        )
    )[0]
    assert found == (3)
    assert_raises(
        FaultBudgetError,
        "max_consecutive=1",
        MapDataset.range(9)
        .map(lambda x: x // 0)
        .tolerate(max_consecutive=1, then="replace")
        .__getitem__,
        0,
    )


@pytest.mark.parametrize(
    "error", [NameError, MemoryError, SyntaxError, StateMismatchError, KeyboardInterrupt, TypeError]
)
def test_errors_of_the_program_are_never_tolerated(error):
    def fail(x):
        if x == 3:
            raise error("no element's fault")
        return x

    kinds = (Exception,) if error is not TypeError else (ValueError,)
    for ds in (
        MapDataset.range(5).map(fail).tolerate(kinds).to_iter_dataset(),
        MapDataset.range(5).to_iter_dataset().map(fail).tolerate(kinds),
    ):
        it = iter(ds)
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        assert_raises(error, "no element's fault", next, it)


def die_at_three(x):
    if x == 3:
        os._exit(7)
    return x


def test_a_worker_that_dies_is_no_fault():
    ds = MapDataset.range(6).map(die_at_three).tolerate(**ALL).to_iter_dataset()
    processes = MultiprocessingOptions(1, executor="processes")
    with (
        iter(ds.mp_prefetch(processes)) as it,
        pytest.raises(RuntimeError, match="terminated unexpectedly"),
    ):
        list(it)


def test_retries_cost_nothing_and_faults_are_logged(tmp_path):
    attempts = []

    def flaky(x):
        attempts.append(x)
        if x == 2 or (x == 4 and attempts.count(4) < 3):
            raise OSError("slow")
        return x

    log = tmp_path / "faults.jsonl"
    it = iter(
        MapDataset.range(6)
        .map(flaky)
        .tolerate(OSError, max_rate=None, retries=2, backoff_seconds=0, log=log)
        .to_iter_dataset(DIRECT)
    )
    assert [*it] == [0, 1, 3, 4, 5] and it.faults().total == 1 and attempts.count(2) == 3
    (line,) = map(json.loads, log.read_text().splitlines())
    assert line["record_key"] == 2 and line["error"] == "OSError: slow" and "flaky" in line["stage"]
    file = io.StringIO()
    it = iter(LocalWorkersIterDataset(thousand(log=file).to_iter_dataset(), 2, num_lanes=4))
    assert len([*it]) == 997 and sorted(
        [json.loads(line)["record_key"] for line in file.getvalue().splitlines()]
    ) == sorted(BROKEN)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_members_that_workers_compute_again_log_each_fault_once(tmp_path, executor):
    log = tmp_path / "faults.jsonl"
    members = [
        MapDataset.range(i, i + 6).map(break_some).to_iter_dataset().tolerate(**ALL, log=log)
        for i in (0, 4, 12, 15)
    ]
    lanes = MultiprocessingOptions(2, num_lanes=2, executor=executor)
    it = iter(InterleaveIterDataset(members, cycle_length=1).mp_prefetch(lanes))
    for _ in range(5):
        next(it)
    it.set_state(through_json(it.get_state()))
    assert len([*it]) == 15 and it.faults().total == 4
    keys = [json.loads(line)["record_key"] for line in log.read_text().splitlines()]
    assert sorted(keys) == [1, 2, 5, 5]


class Break(Map):
    def map(self, element):
        return break_some(element)


@pytest.mark.parametrize("options", [{}, {"num_lanes": 3}])
def test_data_loaders(options):
    sampler = IndexSampler(num_records=1000, num_epochs=1)
    loader = DataLoader(
        data_source=range(1000),
        sampler=sampler,
        operations=[Break(), Tolerate(max_rate=0.01), Batch(10)],
        **options,
    )
    it = iter(loader)
    first = [next(it).tolist() for _ in range(20)]
    restored = iter(loader)
    restored.set_state(it.get_state())
    rest = [x.tolist() for x in restored]
    assert sorted(itertools.chain(*first, *rest)) == sorted({*range(1000)} - BROKEN)
    assert restored.faults().total == 3
    assert restored.faults().tried == 1000
    assert restored.faults().last[0].record_key == 900


def test_a_replacement_is_of_the_same_component():
    ds = MapDataset.mix([MapDataset.range(1000), MapDataset.range(1000, 1050)], [0.95, 0.05]).map(
        lambda x: x if x not in BROKEN and x % 50 else 1 // 0
    )
    replaced = ds.tolerate(then="replace")
    parts = MapDataset.mix(
        [MapDataset.source([0] * 1000), MapDataset.source([1] * 50)], [0.95, 0.05]
    )
    assert [int(replaced[i] >= 1000) for i in range(len(ds))] == [parts[i] for i in range(len(ds))]
    assert replaced.seed(3)[0] == replaced[0] != ds.seed(3).tolerate(then="replace")[0] != None  # noqa: E711


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"errors": KeyboardInterrupt}, TypeError, "errors must be a subclass of Exception"),
        ({"max_rate": 2}, ValueError, r"max_rate must be in \[0, 1\], got 2"),
        ({"max_rate": "1"}, TypeError, "max_rate must be a number"),
        ({"max_total": -1}, ValueError, "max_total must be a non-negative integer, got -1"),
        ({"backoff_seconds": -1}, ValueError, "backoff_seconds must be"),
        ({"then": "stop"}, ValueError, "then must be 'skip' or 'replace', got 'stop'"),
        ({"log": 3}, TypeError, "log must be a path"),
    ],
)
def test_wrong_arguments(arguments, error, match):
    assert_raises(error, match, lambda: MapDataset.range(3).tolerate(**arguments))
    with pytest.raises(ValueError, match="needs a MapDataset"):
        MapDataset.range(3).to_iter_dataset().tolerate(then="replace")
    assert gristmill.FaultBudgetError is FaultBudgetError
