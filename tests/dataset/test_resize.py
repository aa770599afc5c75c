"""``resize`` of local pools: nothing is lost, and nothing is computed twice, in spite of failures
of workers meanwhile.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest
from new_seed import SEED
from refusing import assert_raises

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.lanes.local import LocalLanes
from gristmill.experimental import ThreadPrefetchIterDataset

NUM_LANES = 6


def logged(path, x):
    time.sleep(0.001)
    with path.open("a", encoding="ascii") as log:
        log.write(f"{x}\n")
    return x


def numbers(path, num, threads=0):
    def compute(x):
        return logged(path, x)

    return MapDataset.range(num).map(compute).to_iter_dataset(ReadOptions(threads, 20))


def sparse_batches(path, num):
    return numbers(path, num, 2).filter(lambda x: x % 3).batch(4)


PIPELINES = {
    "threads": lambda path: numbers(path, 300, 3),
    "batches": lambda path: sparse_batches(path, 300),
    "prefetch": lambda path: ThreadPrefetchIterDataset(
        numbers(path, 300, 3).batch(2), prefetch_buffer_size=5
    ),
}


def by_workers(ds, executor, num_workers=2):
    return ds.mp_prefetch(
        MultiprocessingOptions(num_workers, num_lanes=NUM_LANES, executor=executor)
    )


def outcome(it, before_each):
    """The elements as text, with the state after each, where ``before_each`` is called with the
    iterator before each.
    """
    found = []
    try:
        while True:
            before_each(it)
            found.append((str(next(it)), it.get_state()))
    except StopIteration:
        return found
    finally:
        it.close()


def resized(draw, share):
    def before_each(it):
        if draw.random() < share:
            it.resize(draw.randint(1, NUM_LANES))

    return before_each


@pytest.mark.parametrize(
    ("name", "executor"),
    [("threads", "threads"), ("prefetch", "threads"), ("batches", "processes")],
)
def test_every_element_is_computed_once(name, executor, tmp_path):
    path = tmp_path / "calls"
    ds = PIPELINES[name](path)
    expected = outcome(iter(by_workers(ds, executor)), lambda it: None)
    calls = Counter(path.read_text().split())
    assert set(calls.values()) == {1}
    path.unlink()
    assert outcome(iter(by_workers(ds, executor)), resized(random.Random(SEED), 0.05)) == expected
    assert Counter(path.read_text().split()) == calls


def test_no_kill_and_no_resize_is_observable(tmp_path):
    draw = random.Random(SEED)
    change = resized(draw, 0.05)
    kinds = itertools.cycle(["threads", "processes"])

    def disturb(it):
        change(it)
        pids = {worker.process_id for worker in it.executor.workers} - {os.getpid()}
        if draw.random() < 0.02 and pids:
            with contextlib.suppress(ProcessLookupError):  # it was killed before
                os.kill(draw.choice([*pids]), signal.SIGKILL)
        if draw.random() < 0.04 and it.executor._lanes is not None:
            it.executor.change_kind(next(kinds), draw.randint(1, NUM_LANES))

    ds = sparse_batches(tmp_path / "calls", 400)
    expected = outcome(iter(by_workers(ds, "processes")), lambda it: None)
    it, found = iter(by_workers(ds, "processes")), []
    while True:
        try:
            disturb(it)
            found.append((str(next(it)), it.get_state()))
        except StopIteration:
            break
        except RuntimeError as death:
            assert "terminated unexpectedly" in str(death)
            it.set_state(it.get_state())
    assert found == expected


@pytest.mark.parametrize("executor", ["processes", "threads"])
def test_workers_that_start_later_get_lanes(executor):
    """New workers are not up when the lanes are looked at first."""

    def worker(_):
        time.sleep(0.001)
        return os.getpid(), threading.get_ident()

    ds = MapDataset.range(10**6).map(worker).to_iter_dataset(ReadOptions(0))
    with iter(by_workers(ds, executor, num_workers=1)) as it:
        for _ in range(20):
            next(it)
        it.resize(3)
        deadline = time.monotonic() + 60
        while len({next(it) for _ in range(3 * NUM_LANES)}) < 3:
            assert time.monotonic() < deadline


def test_a_state_that_is_set_while_lanes_move(tmp_path):
    ds = sparse_batches(tmp_path / "calls", 150)
    expected = outcome(iter(by_workers(ds, "threads")), lambda it: None)
    draw = random.Random(SEED)
    auto = ds.mp_prefetch(MultiprocessingOptions("auto", num_lanes=NUM_LANES, executor="threads"))
    for it, least in ((iter(by_workers(ds, "threads")), 1), (iter(auto), 0)):
        states = [it.get_state(), *[state for _, state in expected]]
        for _ in range(20):
            start = draw.randrange(len(expected))
            it.set_state(states[start])
            for x, state in expected[start : start + draw.randint(1, 20)]:
                if draw.random() < 0.2:
                    it.resize(draw.randint(least, NUM_LANES))
                assert (str(next(it)), it.get_state()) == (x, state)
        it.close()


def passing_errors(it, sizes=(2,)):
    found, nums = [], itertools.cycle(sizes)
    while True:
        it.resize(next(nums))
        try:
            found.append(next(it))
        except StopIteration:
            return found
        except ZeroDivisionError as error:
            found.append(str(error))
            it.skip_failed()


def test_another_thread_resizes_while_workers_end(monkeypatch):
    """Lanes that have failed stay with workers that there are."""
    ds = MapDataset.range(600).map(lambda x: 6 // (x % 7)).to_iter_dataset(ReadOptions(2, 20))
    expected = passing_errors(iter(by_workers(ds, "threads")))
    dismiss = LocalLanes._dismiss

    def ask_and_dismiss(lanes, wanted):
        lanes.resize(NUM_LANES)
        dismiss(lanes, wanted)
        lanes.resize(wanted)

    monkeypatch.setattr(LocalLanes, "_dismiss", ask_and_dismiss)
    assert passing_errors(iter(by_workers(ds, "threads")), [6] * 9 + [2] * 9) == expected


def test_stages_after_the_workers_and_the_order_of_the_stream(tmp_path):
    ds = MapDataset.range(200).shuffle(seed=1).map(lambda x: x * 2).to_iter_dataset()
    workers = MultiprocessingOptions(4, executor="threads")
    for chain in (
        ds.batch(3).mp_prefetch(workers, order="stream").map(lambda x: x + 1),
        ds.mp_prefetch(workers).batch(3),
    ):
        expected = outcome(iter(chain), lambda it: None)
        assert outcome(iter(chain), resized_to(4)) == expected


def resized_to(most):
    draw = random.Random(SEED)
    return lambda it: it.resize(draw.randint(1, most))


def test_what_is_refused():
    ds = MapDataset.range(8).to_iter_dataset()
    assert_raises(ValueError, "no workers that can be resized", iter(ds).resize, 2)
    with iter(by_workers(ds, "threads")) as it:
        assert_raises(ValueError, "num_workers must be at most num_lanes, 6, got 7", it.resize, 7)
        assert_raises(TypeError, "num_workers must be", it.resize, "2")
        assert_raises(ValueError, "num_workers must be at least 1, got 0: where it", it.resize, 0)
