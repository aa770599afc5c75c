"""``"auto"``: its stream is that of a fixed number, and the controller with models of loads."""

import itertools
import math
import time
from functools import partial

import numpy as np
import pytest
from computing_ahead import Crowd
from refusing import assert_raises
from waiting import running, wait_until

from gristmill import (
    DataLoader,
    IndexSampler,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    diagnostics,
)
from gristmill.core.ray_options import RayOptions
from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.ahead.threads import start_thread
from gristmill.dataset.ahead.tuning import ThreadTuning
from gristmill.dataset.executors.auto import Controller, Decision, Measured, most_workers, own_cpus
from gristmill.dataset.executors.tuning import Tuning
from gristmill.dataset.workers import threads as worker_threads
from gristmill.experimental import multithread_prefetch

SECONDS = 200


def simulated(load, most=8, noise=0.01, least=0, cpus=0.0, times=range(1, SECONDS)):
    """The number of workers after each of the measurements at ``times``, and the decisions;
    ``load(num, t)`` is the rate of workers, and the consumer's.
    """
    controller, numbers, decisions = Controller(least, most, min(2, most)), [], []
    for t in times:
        by_workers, by_consumer = load(controller.num, t)
        rate = 1 / max(1 / by_workers, 1 / by_consumer)
        rate *= 1 + noise * ((t * 7919) % 5 - 2) / 2
        waited = max(0.0, 1 - by_workers / by_consumer) if by_workers < by_consumer else 0.0
        busy = min(1.0, rate / by_workers)
        decision = controller.decide(Measured(float(t), rate, waited, busy, cpus))
        numbers.append(controller.num)
        if decision is not None:
            decisions.append(decision)
    return numbers, decisions


def bound_by_cpus(cpus, each, consumer):
    return lambda num, t: (
        each * min(num, cpus) if num else 1 / (1 / each + 1 / consumer),
        consumer,
    )


LOADS = {
    "python": (bound_by_cpus(4, 100, 10_000), {4}),
    "reads": (bound_by_cpus(1000, 10, 10_000), {8}),
    "consumer": (bound_by_cpus(4, 1000, 500), {1}),
    "both": (bound_by_cpus(4, 100, 250), {3, 4}),
}


@pytest.mark.parametrize("start", [0, 1000])  # the program compiles before it takes an element
@pytest.mark.parametrize("name", LOADS)
def test_it_finds_the_number_and_keeps_it(name, start):
    load, expected = LOADS[name]
    numbers, decisions = simulated(load, times=range(start + 1, start + SECONDS))
    assert set(numbers[10:20]) <= expected | {8}
    assert numbers[-1] in expected
    assert [decision for decision in decisions if decision.now > start + 20] == []


@pytest.mark.parametrize("seconds", [10, 20, 50])
def test_the_number_for_outputs_that_take_long_is_found_later(seconds):
    load = bound_by_cpus(16, 1 / seconds, 10)
    numbers, decisions = simulated(load, most=32, times=range(seconds, 2000, seconds))
    assert numbers[-1] == 16
    late = [decision.now for decision in decisions if decision.now > seconds + 20]
    assert late and min(b - a for a, b in itertools.pairwise(late)) >= 30
    assert late[-1] < 40 * seconds


def test_threads_that_keep_each_other_waiting_are_few():
    def with_the_lock(num, t):
        return 100 / (0.9 + 0.1 * num), 10_000

    for most in (2, 64):
        numbers, decisions = simulated(with_the_lock, most, least=1, cpus=1.0)
        assert numbers[-1] == 1
        assert [decision for decision in decisions if decision.now > 20] == []
    controller = Controller(1, 64, 2, "threads")
    jump = controller.jump(0.5, "an element took 9 ms")
    assert str(jump) == "2 → 64 threads: an element took 9 ms"
    assert controller.decide(Measured(2.0, 50.0, 1.0, 1.0, 1.0)).after == 1
    assert controller.decide(Measured(4.0, 100.0, 1.0, 1.0, 1.0)) is None
    assert controller.jump(5.0, "as before") is None


@pytest.mark.parametrize(
    ("rates", "last", "num"),
    [
        pytest.param((10, 10, 999), "8 → 16 workers", 16, id="reads"),
        pytest.param((20, 9, 15), "8 threads → 4 processes", 4, id="python"),
    ],
)
def test_threads_in_place_of_processes(rates, last, num):
    controller, decisions = Controller(1, 4, 2, most_threads=16), []
    kinds = ["processes"]
    for t in range(1, SECONDS):
        by_process, by_thread, by_all_threads = rates
        rate = by_process * controller.num
        if kinds[-1] == "threads":
            rate = min(by_thread * controller.num, by_all_threads)
        decision = controller.decide(Measured(float(t), rate, 0.9, 1.0))
        if decision is not None:
            decisions.append(decision)
            kinds.append(decision.kind or kinds[-1])
    assert last in str(decisions[-1])
    assert controller.num == num and decisions[-1].now <= 20


def test_no_workers_where_the_consumer_is_quicker_without():
    controller = Controller(0, 4, 2, most_threads=16)
    controller.begin(Measured(1.0, 100.0, 1.0, 1.0))
    decision = controller.decide(Measured(2.0, 60.0, 0.3, 0.2))
    assert (
        str(decision) == "2 → 0 workers: 2 workers changed the speed by -40%, which is not worth it"
    )
    assert all(
        [controller.decide(Measured(3.0 + t, 110.0, 1.0, 1.0, load=1.0)) is None for t in range(9)]
    )
    assert controller.decide(Measured(20.0, 50.0, 1.0, 1.0)) is None
    assert controller.decide(Measured(21.0, 50.0, 1.0, 1.0)) is None
    assert controller.decide(Measured(22.0, 50.0, 1.0, 1.0)).after == 2  # the load is another one
    controller = Controller(0, 4, 2)
    controller.begin(Measured(1.0, 50.0, 1.0, 1.0))
    assert controller.decide(Measured(2.0, 60.0, 0.9, 1.0)).after == 4


@pytest.mark.parametrize(
    ("sent", "reasons"),
    [
        pytest.param(1e6, [], id="small"),
        pytest.param(
            1e10,
            [
                "2 processes → 2 threads: the consumer waited 90%, workers were busy 100%",
                "2 → 0 workers: the consumer waited 90%, workers were busy 100%",
            ],
            id="large",
        ),
    ],
)
def test_where_all_cpus_are_used_no_more_workers_are_tried(sent, reasons):
    controller, found = Controller(0, 8, 2, most_threads=16), []
    rates = {"processes": 10.0, "threads": 20.0, "none": 30.0}
    kind = "processes"
    for t in range(1, SECONDS):
        rate = rates[kind if controller.num else "none"]
        decision = controller.decide(Measured(float(t), rate, 0.9, 1.0, sent=sent, load=0.97))
        if decision is not None:
            found.append(str(decision))
            kind = decision.kind or kind
    assert found == reasons


def test_a_short_measurement_is_enough_for_a_much_slower_try():
    controller = Controller(1, 4, 4)
    assert not controller.is_clear(0.0)
    assert controller.decide(Measured(1.0, 100.0, 0.0, 0.1)).after == 2
    assert controller.is_clear(70.0) and not controller.is_clear(80.0)
    controller = Controller(1, 4, 2)
    assert controller.decide(Measured(1.0, 100.0, 0.9, 1.0)).after == 4
    assert not controller.is_clear(70.0)  # they have just started


class ConsumerBound:
    """A model of 16 lanes, of which the consumer takes an output each 4 ms. Where it computes them
    itself, it first takes what workers were ahead, and the first outputs of a lane take long.
    """

    is_settled, are_here, waited_seconds, num_delivered = True, False, 0.0, 0

    def __init__(self, clock, num_ahead):
        self.lanes, self.ready, self.num, self._clock = [self] * 16, [], 2, clock
        self._num_ahead, self._num_here = num_ahead, 0

    @property
    def num_received(self):
        return self.num_delivered + self._num_ahead

    @property
    def are_beginning(self):
        return not self.num and self._num_here < 5 * len(self.lanes)

    def busy(self):
        return 0.0

    def cpu_seconds(self):
        return None

    def receive(self, num):
        self.num_delivered += 1
        if not self.num:
            self._num_ahead = max(0, self._num_ahead - 1)
            if not self._num_ahead:
                self._num_here += 1
                self._pass(0.002 if self.are_beginning else 0.0)
        else:
            self._num_here = 0
        self._clock[0] += 0.004

    def _pass(self, seconds):
        self._clock[0] += seconds
        self.waited_seconds += seconds


def test_no_workers_are_judged_when_all_lanes_are_here(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("gristmill.dataset.executors.tuning.time.monotonic", lambda: clock[0])
    for num_ahead in range(3000, 4000, 100):
        lanes, tuning = ConsumerBound(clock, num_ahead), Tuning(0, 4, 2)
        for i in range(20_000):
            decision = tuning.receive(lanes, i % 16, 1)
            lanes.num = lanes.num if decision is None else decision.after
        assert [(x.before, x.after) for x in tuning.decisions] == [(2, 1), (1, 0)]


def test_a_load_that_changes_is_followed():
    def load(num, t):
        return (100 * max(num, 0.5), 10_000) if t > 60 else (1000 * num or 300, 500)

    numbers, decisions = simulated(load)
    assert numbers[58] == 1
    assert numbers[70] == 8
    assert "the consumer waited" in str(decisions[-1])


LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)


def test_bounds(monkeypatch):
    for name in LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gristmill.dataset.executors.auto.usable_cpus", lambda: 6)
    assert most_workers(None, 64) == 12 and own_cpus() == 6
    assert most_workers(1, 64) == 1 and most_workers(None, 1) == 1 and most_workers(0, 64) == 0
    for name in LOCAL_SIZES:
        for size, most, threads in (("4", 3, 2), ("99", 1, 1), ("0", 12, 6), ("2(x3)", 12, 6)):
            monkeypatch.setenv(name, size)
            assert most_workers(None, 64) == most
            assert ThreadTuning(64, Budget()).num == threads
        monkeypatch.delenv(name)
    monkeypatch.setattr("gristmill.dataset.executors.auto.available_memory", lambda: 5 << 28)
    assert most_workers(None, 64) == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert most_workers(None, 64) == 1


def states_and_elements(it):
    return [(str(x), it.get_state()) for x in it]


AUTO = MultiprocessingOptions("auto", executor="threads")


def test_the_stream_is_that_of_16_lanes_or_of_no_workers():
    ds = (
        MapDataset.range(200)
        .shuffle(seed=1)
        .map(lambda x: x * 2)
        .to_iter_dataset(ReadOptions("auto", 20))
    )
    lanes = ds.batch(3).mp_prefetch(MultiprocessingOptions(0, num_lanes=16))
    with iter(ds.batch(3).mp_prefetch(AUTO)) as it:
        assert states_and_elements(it) == states_and_elements(iter(lanes))
    with iter(ds.batch(3).mp_prefetch(AUTO, order="stream")) as it:
        assert states_and_elements(it) == states_and_elements(iter(ds.batch(3)))
    expected = [*multithread_prefetch(ds, 16, 2)]
    assert [*multithread_prefetch(ds, "auto", 2)] == expected


@pytest.mark.parametrize("num_lanes", [1, 4, 64])
def test_global_batches_are_those_of_any_number(num_lanes):
    ds = MapDataset.range(700).shuffle(seed=1).to_iter_dataset().filter(lambda x: x % 5)
    batches = partial(ds.global_batch, 64, num_lanes=num_lanes, end="pad", batch_fn=list)
    expected, sizes = states_and_elements(iter(batches())), itertools.cycle([1, 4, 2, 0])
    for most in (0, 2, None):
        workers = MultiprocessingOptions("auto", executor="threads", max_workers=most)
        with iter(batches(workers=workers)) as it:
            found = []
            for x, num in zip(it, sizes, strict=False):
                found.append((str(x), it.get_state()))
                if most is None and num <= num_lanes:
                    it.resize(num)
        assert found == expected


def test_a_loader_finds_its_workers():
    def loader(**options):
        sampler = IndexSampler(40, shuffle=True, seed=1, num_epochs=1)
        return iter(DataLoader(data_source=range(40), sampler=sampler, **options))

    for given, fixed in (
        ({"worker_count": "auto"}, {"num_lanes": 16}),
        ({"worker_count": "auto", "order": "stream"}, {}),
        ({"workers": MultiprocessingOptions("auto", max_workers=0)}, {"num_lanes": 16}),
    ):
        it, expected = loader(**given), loader(**fixed)
        state = [next(it) for _ in range(5)] and it.get_state()
        assert [next(expected) for _ in range(5)] and expected.get_state() == state
        assert [*it] == [*expected]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_first_output_needs_no_worker_and_has_all_threads(executor):
    options = MultiprocessingOptions("auto", executor=executor, max_workers=2)
    ds = MapDataset.range(1600).map(Crowd(12)).to_iter_dataset(ReadOptions(16)).batch(16)
    with iter(ds.mp_prefetch(options)) as it:
        lanes = it.executor
        assert next(it)[1] == 16
        assert not lanes.workers
        assert all(
            lane.owner.text(lane) == f"this process, lane {lane.number}" for lane in lanes.shards
        )
        assert [next(it)[0] for _ in range(15)] == [*range(1, 16)]
        assert len(lanes.workers) == 2
        assert len([*it]) == 96


def no_more_than(num, monkeypatch):
    """Lets the system give this number of threads to workers."""

    def start_or_refuse(*args):
        nonlocal num
        if not num:
            raise RuntimeError("can't start new thread")
        num -= 1
        return start_thread(*args)

    monkeypatch.setattr(worker_threads, "start_thread", start_or_refuse)


@pytest.mark.parametrize("num", [0, 1])
def test_what_the_system_does_not_give_is_not_needed(num, monkeypatch, caplog):
    no_more_than(num, monkeypatch)
    with iter(MapDataset.range(600).to_iter_dataset().mp_prefetch(AUTO)) as it:
        assert [*itertools.islice(it, 300)] == [*range(300)]
        it.set_state(it.get_state())
        assert len(it.executor.workers) == num
        (decision,) = it.executor.tuning.decisions
        assert str(decision) == (
            f"2 → {num} workers: the system gave no more: RuntimeError: can't start new thread"
        )
        assert str(decision) in caplog.text
        assert [*it] == [*range(300, 600)]


def test_another_kind_that_the_system_does_not_give(monkeypatch):
    options = MultiprocessingOptions("auto", num_lanes=4, executor="threads", max_workers=2)
    with iter(MapDataset.range(600).to_iter_dataset().mp_prefetch(options)) as it:
        found = [*itertools.islice(it, 100)]
        no_more_than(0, monkeypatch)
        it.executor.change_kind("threads", 2)
        assert [*found, *it] == [*range(600)]
        assert "workers: the system gave no more" in str(it.executor.tuning.decisions[-1])
    controller = Controller(0, 2, 2, most_threads=16)
    assert controller.decide(Measured(1.0, 100.0, 0.9, 1.0)).kind == "threads"
    decision = controller.refuse(2.0, 2, "no", of_kind=True)
    assert str(decision) == "4 threads → 2 processes: no"
    assert [controller.decide(Measured(3.0 + t, 100.0, 0.9, 1.0)) for t in range(9)] == [None] * 9


def test_nothing_is_read_after_the_end():
    """The consumer's own lanes have threads, too."""
    wait_until(lambda: not running("gristmill-read"))
    for length in (300, 10**6):
        ds = MapDataset.range(length).map(lambda x: x).to_iter_dataset(ReadOptions(4, 50))
        it = iter(ds.mp_prefetch(AUTO))
        it.resize(0)
        assert [*itertools.islice(it, 300)] == [*range(300)]
        if length == 300:
            assert [*it] == []
        else:
            assert running("gristmill-read")
            it.close()
        wait_until(lambda: not running("gristmill-read"))


def test_decisions_are_seen():
    with (
        iter(MapDataset.range(100).to_iter_dataset().mp_prefetch(AUTO)) as it,
        diagnostics.observe(it) as view,
    ):
        [*itertools.islice(it, 10)]
        it.executor.tuning.decisions = [Decision(0.0, 2, 3, "the consumer waited 41%")]
        assert view.summary().decisions == ("2 → 3 workers: the consumer waited 41%",)
        assert "auto: 2 → 3 workers: the consumer waited 41%" in str(view.summary())
        assert "auto: 2 → 3 workers: the consumer waited 41%" in str(view.diagnosis())
        it.resize(1)
        assert [*it] == [*range(10, 100)]


def test_threads_are_found_and_seen():
    def slow(x):
        time.sleep(0.01)
        return x

    ds = MapDataset.range(400).map(slow)
    lanes = MultiprocessingOptions(0, num_lanes=16)
    for most, num_lanes in ((64, 1), (64, 16), (3, 1)):
        stream = ds.to_iter_dataset(ReadOptions("auto", max_workers=most))
        stream = stream.mp_prefetch(lanes) if num_lanes > 1 else stream
        with iter(stream) as it, diagnostics.observe(it) as view:
            assert [*it] == [*range(400)]
            (budget,) = view.summary().budgets
            assert budget.num_threads <= most
            (decision, *_) = view.summary().decisions
            assert f" → {most} threads: an element took " in decision
            assert f"auto: {decision}" in str(view.diagnosis())


def test_threads_that_compute_lanes_are_found():
    ds = MapDataset.range(300).map(lambda x: x + 1).to_iter_dataset().batch(2)
    expected = states_and_elements(iter(ds.multithread_prefetch(16, 2)))
    auto, sizes = ds.multithread_prefetch("auto", 2), itertools.cycle([1, 5, 0, 3, 16, 2])
    with iter(auto) as it:
        found = [(str(next(it)), it.get_state())]
        for (x, state), num in zip(expected[1:], sizes, strict=False):
            it.resize(num)
            assert (str(next(it)), it.get_state()) == (x, state), num
        assert found == expected[:1] and [*it] == []
    for most in (0, 1):
        assert len([*ds.multithread_prefetch("auto", 2, max_workers=most)]) == len(expected)
    assert "num_threads=auto" in str(auto) and "num_threads=auto" in str(iter(auto))


def test_what_is_refused():
    sampler = IndexSampler(4, shuffle=False, num_epochs=1)
    ds = MapDataset.range(4).to_iter_dataset()
    for name, make in (
        ("num_workers", MultiprocessingOptions),
        ("num_workers", RayOptions),
        ("num_threads", ReadOptions),
        ("num_threads", lambda num: ds.multithread_prefetch(num, 2)),
        (
            "worker_count",
            lambda num: DataLoader(data_source=range(4), sampler=sampler, worker_count=num),
        ),
    ):
        for value in ("many", "AUTO", "", "4", b"auto", ["auto"], 1.5, math.nan):
            assert_raises(TypeError, f"{name} must be an integer or 'auto', got", make, value)
        assert repr(make(np.str_("auto"))) == repr(make("auto"))
        with pytest.raises(ValueError, match=f"{name} must be .* got -1"):
            make(-1)
    with pytest.raises(ValueError, match=r"num_lanes must be an integer in .*65536., got 65537"):
        MultiprocessingOptions("auto", num_lanes=65537)
    with pytest.raises(ValueError, match="max_workers must be None unless num_workers is 'auto'"):
        MultiprocessingOptions(2, max_workers=3)
    with pytest.raises(ValueError, match="max_workers must be a positive integer, got 0"):
        RayOptions("auto", max_workers=0)
    of_threads = "max_workers must be None unless num_threads is 'auto', got 2 beside 4"
    assert_raises(ValueError, of_threads, ReadOptions, 4, max_workers=2)
    assert_raises(ValueError, of_threads, ds.multithread_prefetch, 4, 1, max_workers=2)
