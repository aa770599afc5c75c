"""The counts of an observer; and traces of single calls, in files and in profiles of JAX."""

import contextlib
import gc
import gzip
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing, fails, numbers
from refusing import assert_raises
from users_datasets import BareIterator

import gristmill
from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator
from gristmill.diagnostics import get_execution_summary, observe
from gristmill.diagnostics.runtime import probe
from gristmill.experimental import (
    DatasetOptions,
    ExecutionTrackingMode,
    InterleaveIterDataset,
    WithOptionsIterDataset,
)

TRACKED = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)
WORKERS = MultiprocessingOptions(num_workers=2, executor="processes")


def pair(x):
    return {"a": np.full(3, x, np.int32), "b": b"12345"}


def large(x):
    return np.full(100_000, x, np.uint16)  # so that workers cannot run far ahead


def class_names(summary):
    return [node.name.partition("(")[0].partition("[")[0] for node in summary.values()]


def by_kind(summary):
    return dict(zip(class_names(summary), summary.values(), strict=True))


def produced(summary):
    return [node.num_produced_elements for node in summary.values()]


def num_of(view, kind):
    return by_kind(view.summary())[kind].num_produced_elements


def take(it, n):
    return [next(it) for _ in range(n)]


def consumed(it):
    with observe(it) as view:
        return list(it), view


@pytest.fixture
def passes(monkeypatch):
    """Lets time pass, which it does at no other time."""
    now = [1]
    monkeypatch.setattr(probe, "clock", lambda: now[0])
    return lambda nanoseconds: now.append(now.pop() + nanoseconds)


def test_numbers_of_every_stage_filters_and_errors():
    it = iter(MapDataset.range(20).shuffle(seed=1).map(pair).to_iter_dataset(DIRECT).batch(2))
    with observe(it) as view:
        take(it, 5)
        summary = view.summary()
    for field, *expected in (
        ("id", 0, 1, 2, 3, 4),
        ("inputs", (1,), (2,), (3,), (4,), ()),
        ("num_produced_elements", 5, 10, 10, 10, 10),
        ("is_output", True, False, False, False, False),
        ("is_prefetch", False, True, False, False, False),
        ("category", "preprocessing", "prefetch", "preprocessing", "preprocessing", "read"),
    ):
        assert [getattr(node, field) for node in summary.values()] == expected
    assert (
        summary[2].output_spec == "{'a': 'int32[3]', 'b': 'bytes[]'}"
        and "int32[2, 3]" in summary[0].output_spec
    )
    assert summary[1].bytes_consumed == summary[2].bytes_produced == 10 * (12 + 5)
    for node in summary.values():
        assert (
            0 < node.min_processing_time_ns <= node.max_processing_time_ns
            and node.total_processing_time_ns > 0
        )
    ds = (
        MapDataset.range(1000)
        .filter(lambda x: x % 2 == 0)
        .to_iter_dataset(DIRECT)
        .filter(lambda x: x % 10 == 0)
    )
    elements, view = consumed(iter(ds))
    ratios = [node.kept_ratio for node in view.summary().values()]
    assert len(elements) == 100 and ratios == [
        pytest.approx(0.2),
        None,
        pytest.approx(0.5, abs=0.1),
        None,
    ]
    assert num_of(view, "FilterMapDataset") == 500
    it = iter(numbers(6, fn=Failing(3)))
    with observe(it) as view:
        assert take(it, 3) == [0, 1, 2]
        fails(it, Boom, "3", times=2)
        it.skip_failed()
        assert list(it) == [4, 5]
    assert [node.num_errors for node in view.summary().values()] == [2, 0, 0]


def test_threads_are_counted_exactly_and_like_components_once():
    ds = (
        MapDataset.range(5000)
        .map(lambda x: x + 1)
        .to_iter_dataset(ReadOptions(num_threads=8, prefetch_buffer_size=64))
    )
    elements, view = consumed(iter(ds))
    assert elements == list(range(1, 5001)) and produced(view.summary()) == [5000] * 3
    assert [node.place for node in view.summary().values()] == ["consumer", "threads", "threads"]
    it = iter(
        MapDataset.range(10_000)
        .map(lambda x: x)
        .to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=16))
    )
    take(it, 10)  # they read already
    elements, view = consumed(it)
    assert elements == list(range(10, 10_000)) and 9900 <= num_of(view, "MapMapDataset") <= 9990
    parts = MapDataset.range(100).map(
        lambda i: MapDataset.range(i, i + 3).map(lambda x: x * 2).to_iter_dataset()
    )
    elements, view = consumed(iter(InterleaveIterDataset(parts, cycle_length=7)))
    assert len(elements) == num_of(view, "MapMapDataset") == 300
    assert len(view.summary()) <= 6 and len(view._observer.probes) <= 6
    elements, view = consumed(
        iter(MapDataset.range(100).map(lambda x: x).to_iter_dataset().multithread_prefetch(3, 2))
    )
    assert elements == list(range(100)) and num_of(view, "MapMapDataset") == 100


@pytest.mark.parametrize("is_tracked", [False, True], ids=["observe", "option"])
def test_workers_are_counted_exactly(is_tracked):
    ds = (
        MapDataset.range(200)
        .map(pair)
        .filter(lambda x: x["a"][0] % 2 == 0)
        .to_iter_dataset()
        .batch(5)
        .mp_prefetch(WORKERS)
    )
    with iter(WithOptionsIterDataset(ds, TRACKED) if is_tracked else ds) as it:
        with contextlib.nullcontext() if is_tracked else observe(it) as view:
            num = len(list(it))
        summary = get_execution_summary(it) if is_tracked else view.summary()
    assert num == 20 and by_kind(summary)["FilterMapDataset"].kept_ratio == 0.5
    assert class_names(summary)[:2] == ["MultiprocessPrefetchIterator", "BatchDatasetIterator"]
    assert [*dict.fromkeys(produced(summary))] == [20, 100, 200]
    assert {node.place for node in summary.values()} == {"consumer", "workers"}
    assert sum([node.wait_time_ratio for node in summary.values()]) == pytest.approx(1, abs=1e-3)


def test_running_workers_are_observed_and_dead_ones_stay():
    ds = MapDataset.range(100).to_iter_dataset().map(large).mp_prefetch(WORKERS)
    with iter(ds) as it:
        take(it, 10)
        process_ids = [worker.process_id for worker in it.pool.workers]
        with observe(it) as view:
            assert len(list(it)) == 90
            assert [
                worker.process_id for worker in view._observer.groups[0].processes
            ] == process_ids
        assert 80 <= num_of(view, "MapDatasetIterator") <= 90
        it.set_state(iter(ds).get_state())
        next(it)
        for worker in it.pool.workers:
            # watching that fails leaves them alone
            worker.call(cloudpickle.dumps(lambda worker: 1 // 0))
        # by the same processes, which observe no more
        assert [int(x[0]) for x in it] == list(range(1, 100))
        it.set_state(iter(ds).get_state())
        with observe(it) as view:
            take(it, 10)
            before = num_of(view, "MapDatasetIterator")
            for worker in it.pool.workers:
                worker.transport.process.kill()
                worker.transport.process.wait(30)
            state = it.get_state()
            assert_raises(RuntimeError, "killed", list, it)
            it.set_state(state)
            assert len(list(it)) == 90 and 1 <= before <= num_of(view, "MapDatasetIterator") - 90
            assert view.snapshot().workers[0].num_restarts == 2


def test_memory_does_not_grow_with_the_run():
    it = iter(
        MapDataset.range(10).repeat().map(lambda x: x).to_iter_dataset(DIRECT).map(lambda x: x)
    )
    with observe(it) as view:
        take(it, 100)
        for hours in range(3000):
            view._observer.output.attend(probe.clock() + hours * 3_600_000_000_000)
        take(it, 1000)
        assert len(view._observer.output.marks) < 500
    threaded = iter(
        MapDataset.range(100).to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=2))
    )
    with observe(threaded) as view:
        for _ in range(150):  # threads come and go with every restart
            threaded.set_state({"next_index": 0})
            assert take(threaded, 3) == [0, 1, 2]
        assert len(view._observer.lanes) <= 70 and view.summary()[0].num_produced_elements == 450


def test_times_are_right_although_few_calls_are_timed(passes):
    """Of quick calls, one in some stands for those before it: the sums are right all the same."""
    rng, spent = random.Random(0), Counter()

    def work(name, low, high):
        def call(x):
            nanoseconds = rng.randrange(low, high)
            passes(nanoseconds)
            spent[name] += nanoseconds
            return name == "FilterDatasetIterator" or x

        return call

    ds = MapDataset.range(20_000).map(work("MapMapDataset", 1000, 3000)).to_iter_dataset(DIRECT)
    ds = ds.map(work("MapDatasetIterator", 5000, 9000)).filter(
        work("FilterDatasetIterator", 100, 900)
    )
    elements, view = consumed(iter(ds))
    nodes = by_kind(view.summary())
    for name, tolerance in (
        ("MapDatasetIterator", 0.05),
        ("FilterDatasetIterator", 0.1),
        ("MapMapDataset", 0.1),
    ):
        assert nodes[name].total_processing_time_ns == pytest.approx(spent[name], rel=tolerance)
        assert nodes[name].num_produced_elements == len(elements) == 20_000
    # or else this tests nothing
    assert nodes["MapDatasetIterator"].total_processing_time_ns != spent["MapDatasetIterator"]
    assert nodes["RangeMapDataset"].num_produced_elements == pytest.approx(20_000, rel=0.05)
    assert view.summary().waited_ns == sum(spent.values())


def test_all_waiting_for_threads_is_counted():
    blocks = threading.Semaphore(0)

    def uneven(x):
        assert x % 300 < 299 or blocks.acquire(timeout=30)
        return x

    it = iter(
        MapDataset.range(3000)
        .map(uneven)
        .to_iter_dataset(ReadOptions(num_threads=1, prefetch_buffer_size=8))
    )
    with observe(it) as view:
        for x in it:
            if x % 300 == 280:  # the next ones are about to be waited for
                threading.Timer(0.01, blocks.release).start()
    summary = view.summary()
    assert summary[0].total_processing_time_ns == pytest.approx(summary.waited_ns, rel=0.05)


def test_rare_long_calls_and_elements_are_not_missed(passes):
    # A window is filled in one of many calls, in a block, which is always timed.
    ds = (
        MapDataset.range(10_000)
        .map(lambda x: passes(10_000) or x)
        .to_iter_dataset(DIRECT)
        .window_shuffle(500, seed=1)
    )
    elements, view = consumed(iter(ds))
    assert (
        len(elements) == 10_000
        and by_kind(view.summary())["MapMapDataset"].total_processing_time_ns == 10_000 * 10_000
    )
    # Elements that take long now and then: as soon as that matters, every call is timed.
    times = [10_000_000 if x % 501 == 500 else 1000 for x in range(30_000)]
    ds = (
        MapDataset.range(30_000)
        .to_iter_dataset(DIRECT)
        .map(lambda x: passes(times[x]) or x)
        .map(lambda x: x)
    )
    elements, view = consumed(iter(ds))
    assert len(elements) == view.summary()[1].num_produced_elements == 30_000
    assert view.summary()[1].total_processing_time_ns == pytest.approx(sum(times), rel=0.06)
    # The consumer's delays have them all, too.
    times = [1_000_000 if x % 100 == 99 else 1000 for x in range(1000)]
    it = iter(MapDataset.range(1000).to_iter_dataset(DIRECT).map(lambda x: passes(times[x])))
    with observe(it) as view:
        for _ in it:
            passes(1000)
    snapshot = view.snapshot()
    delays = [
        snapshot.delay_ns[50],
        snapshot.delay_ns[95],
        view._observer.output.delays.percentile(0.995),
    ]
    assert snapshot.num_elements == 1000 and delays == pytest.approx(
        [1000, 1000, 1_000_000], rel=0.07
    )
    assert snapshot.starved_ratio == pytest.approx(sum(times) / (sum(times) + 1_000_000), rel=0.01)


class Squares(MapDataset):  # a user's, which reads its parent by index
    def __init__(self, parent):
        super().__init__(parent)
        self.mine = parent

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self.slice(index) if isinstance(index, slice) else self.mine[index] ** 2


Inheriting = type("Inheriting", (BareIterator,), {})
Tripled = type(
    "Tripled", (BareIterator,), {"__next__": lambda self: 3 * BareIterator.__next__(self)}
)
NO_STATES = {"get_state": None, "set_state": None}
Doubled = type(
    "Doubled", (DatasetIterator,), {**NO_STATES, "__next__": lambda self: 2 * next(self._parent)}
)


def test_classes_of_users(caplog):
    it = Doubled(Doubled(iter(Squares(Squares(MapDataset.range(30))).to_iter_dataset(DIRECT))))
    with observe(it) as view:
        assert take(it, 20) == [4 * x**4 for x in range(20)]
        assert (
            type(it).__name__ == "Doubled"
            and isinstance(it, Doubled)
            and isinstance(view._observer.probes[0].name, str)
        )
    assert type(it) is Doubled
    expected = [
        "Doubled",
        "Doubled",
        "PrefetchDatasetIterator",
        "Squares",
        "Squares",
        "RangeMapDataset",
    ]
    assert class_names(view.summary()) == expected and produced(view.summary())[:3] == [20, 20, 20]
    # a method that calls that of its base is counted once
    its = [BareIterator(4), Inheriting(4), Tripled(4)]
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(observe(it)) for it in its]
        assert [list(it) for it in its] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 3, 6, 9]]
    assert [
        (view.summary()[0].num_produced_elements, view.summary()[0].num_errors) for view in views
    ] == [(4, 0)] * 3
    assert "__next__" not in vars(Inheriting)
    # what cannot be observed runs as it is
    uncopyable = type("Uncopyable", (Squares,), {"__copy__": lambda self: 1 // 0})
    batches, view = consumed(iter(uncopyable(MapDataset.range(10)).to_iter_dataset().batch(5)))
    assert [batch.tolist() for batch in batches] == [[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]
    assert "cannot be observed, and runs as it is" in caplog.text and produced(view.summary())[
        :2
    ] == [2, 10]


def test_other_objects_of_a_users_class_are_not_counted():
    gc.collect()  # here and below: an observed copy and its instrument know each other
    own = vars(BareIterator)["__next__"], vars(Squares)["__getitem__"]
    ds = Squares(MapDataset.range(30))
    observed, other, read = BareIterator(5), BareIterator(5), iter(ds.to_iter_dataset(DIRECT))
    with observe(observed) as view, observe(read) as read_view:
        assert [next(it) for it in (observed, other, other, observed, other)] == [0, 0, 1, 1, 2]
        assert [next(read), ds[5], next(read), [*ds[2:4]]] == [0, 25, 1, [4, 9]]
        assert (
            BareIterator.__next__.__name__ == "__next__"
            and "_gm_items" not in vars(ds)
            and type(ds) is Squares
        )
    gc.collect()
    assert (vars(BareIterator)["__next__"], vars(Squares)["__getitem__"]) == own
    assert not read._gm_engine.reader.is_observed
    assert [next(observed), next(other), next(read)] == [2, 3, 4]
    assert produced(view.summary()) == [2] and produced(read_view.summary()) == [2, 2, 2]
    its = [BareIterator(3), BareIterator(3)]
    views = [observe(it) for it in its]
    for view, it in zip(views, its, strict=True):
        view.__enter__()
        next(it)
    del it, view
    for is_left in (True, False):  # the class is as before when the last one is gone
        assert vars(BareIterator)["__next__"] is not own[0]
        assert (
            next(its[-1]) == 2 - is_left
            and views[-1].summary()[0].num_produced_elements == 3 - is_left
        )
        del its[0], views[0]
        gc.collect()
    assert vars(BareIterator)["__next__"] is own[0]


def test_the_option_observes_upstream_and_downstream():
    tracked = WithOptionsIterDataset(
        MapDataset.range(40).to_iter_dataset(DIRECT).map(lambda x: x), TRACKED
    )
    it = iter(tracked.filter(lambda x: x % 2 == 0).batch(2))
    take(it, 3)
    summary = get_execution_summary(it)
    assert summary[0].num_produced_elements == 3
    stages = [
        "BatchDatasetIterator",
        "FilterDatasetIterator",
        "MapDatasetIterator",
        "PrefetchDatasetIterator",
    ]
    assert class_names(summary) == [*stages, "RangeMapDataset"]
    with observe(it, trace=True) as view:
        take(it, 4)
    take(it, 2)
    assert get_execution_summary(it)[0].num_produced_elements == 9
    assert sum([len(line.events) for line in view.snapshot().threads]) >= 4
    assert_raises(ValueError, "STAGE_TIMING", get_execution_summary, iter(MapDataset.range(3)))
    for wrong in (MapDataset.range(3), [1], 3):
        assert_raises(TypeError, "iter", observe, wrong)


def test_summaries_as_data_as_text_and_for_other_threads():
    elements, view = consumed(iter(gristmill.load([1, 2, 3, 4], num_epochs=2, batch_size=2)))
    assert len(elements) == view.summary()[0].num_produced_elements == 4 and "2/2" not in str(
        view.postfix
    )
    _, view = consumed(iter(MapDataset.range(100).map(lambda x: x).to_iter_dataset().batch(10)))
    summary = view.summary()
    nodes = summary.to_dict()["nodes"]
    assert nodes["0"]["num_produced_elements"] == 10 and [*nodes] == ["0", "1", "2", "3"]
    assert summary.to_json().startswith("{") and "N/A" in str(summary)
    (marked,) = [line for line in str(summary).splitlines() if line.startswith(" >")]
    assert f" {summary.bottleneck.id} " in marked and view.report().startswith(
        ("Bound", "Too little")
    )
    it, done = iter(MapDataset.range(20_000).map(lambda x: x).to_iter_dataset()), threading.Event()

    def look(view):
        while not done.is_set():
            view.summary()
            str(view.diagnosis())

    with ThreadPoolExecutor(1) as pool, observe(it) as view:
        looking = pool.submit(look, view)
        assert len(list(it)) == 20_000
        done.set()
        looking.result()


def add_one(x):
    return x + 1


def events_of(ds, tmp_path, expected):
    path = tmp_path / "trace.json"
    with iter(ds) as it, observe(it, trace=True) as view:
        assert len(list(it)) == expected
    view.save_trace(path)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    data = json.loads(path.read_text())
    names = {
        event["pid"]: event["args"]["name"]
        for event in data["traceEvents"]
        if event["name"] == "process_name"
    }
    return [
        {**event, "process": names[event["pid"]]}
        for event in data["traceEvents"]
        if event["ph"] == "X"
    ]


def test_trace_nests_calls_and_has_a_row_for_every_thread(tmp_path):
    ds = MapDataset.range(50).to_iter_dataset(ReadOptions(num_threads=0)).map(add_one).batch(5)
    events = events_of(ds, tmp_path, 10)
    stages = ("BatchDatasetIterator", "MapDatasetIterator")
    batches, maps = [
        [event for event in events if event["name"] == name and event["args"]["elements"]]
        for name in stages
    ]
    assert len(batches) == 10 and sum([inner["args"]["elements"] for inner in maps]) == 50
    for outer in batches:
        inside = [
            inner for inner in maps if outer["ts"] <= inner["ts"] <= outer["ts"] + outer["dur"]
        ]
        assert sum([inner["args"]["elements"] for inner in inside]) == 5
        for inner in inside:
            assert (
                inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3
                and inner["tid"] == outer["tid"]
            )
    assert {event["cat"] for event in events} == {"read", "prefetch", "preprocessing"}
    events = events_of(
        MapDataset.range(50).map(add_one).to_iter_dataset().mp_prefetch(WORKERS), tmp_path, 50
    )
    assert {event["process"] for event in events} == {"main", "worker 0", "worker 1"}
    assert (
        sum([event["args"]["elements"] for event in events if event["name"] == "MapMapDataset"])
        == 50
    )
    assert min([event["ts"] for event in events]) == 0
    plain, traced = [observe(iter(MapDataset.range(3)), trace=trace) for trace in (False, True)]
    with plain, traced:
        assert_raises(ValueError, "trace=True", plain.save_trace, tmp_path / "other.json")
        for save in (traced.save_trace, traced.save_html):
            assert_raises(OSError, "nowhere", save, tmp_path / "nowhere" / "file")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_stages_in_a_profile_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    it = iter(MapDataset.range(2000).map(add_one).to_iter_dataset().map(add_one))
    with observe(it) as view:
        elements = [next(it) for _ in range(10)]
        with jax.profiler.trace(tmp_path):
            elements += [next(it) for _ in range(1000)]
            assert view._observer.output.annotates
        elements += list(it)
        assert not view._observer.output.annotates
    assert elements == list(range(2, 2002))
    (path,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [event for event in events if event.get("name") == "MapDatasetIterator.__next__"]
    assert len(named) == 1000 and named[0]["args"]["_ipl_stage_cat"] == "preprocessing"
    assert named[0]["args"]["_ipl_stage_name"].startswith("MapDatasetIterator(transform=add_one @ ")
    stages = {
        "PrefetchDatasetIterator.__next__",
        "MapMapDataset.__getitem__",
        "RangeMapDataset.__getitem__",
    }
    assert stages | {"Prefetch._getitem"} <= {event.get("name") for event in events}


@pytest.mark.slow
def test_workers_in_a_profile_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    ds = (
        MapDataset.range(10**6)
        .map(add_one)
        .to_iter_dataset()
        .map(lambda x: np.full(100_000, x % 1000, np.uint16))
    )
    options = jax.profiler.ProfileOptions()
    options.advanced_configuration = {"profile_subprocesses": True}
    wanted = [b"MapDatasetIterator.__next__", b"Prefetch._getitem"]  # in workers alone
    with (
        gristmill.config.override(enable_multiprocess_worker_profiling=True),
        iter(ds.mp_prefetch(WORKERS)) as it,
    ):
        deadline = time.monotonic() + 60
        while not (it._gm_observed[0].groups and len(it._gm_observed[0].groups[0]._profiled) == 2):
            next(it)
            assert time.monotonic() < deadline
        for attempt in range(4):  # it takes a moment until their threads read ahead again
            with jax.profiler.trace(tmp_path / str(attempt), profiler_options=options):
                for _ in range(200 * 4**attempt):
                    next(it)
            (path,) = (tmp_path / str(attempt)).rglob("*.xplane.pb")
            profile = path.read_bytes()
            if all([name in profile for name in wanted]):
                break
    missing = [
        name for name in (*wanted, b"MultiprocessPrefetchIterator.__next__") if name not in profile
    ]
    assert missing == []


def num_read(view):
    """The number of elements that lanes have read while observed."""
    read = [x for x in view.summary().values() if x.name.startswith("PrefetchDatasetIterator")]
    return sum([x.num_produced_elements for x in read])


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_lanes_that_come_to_a_worker_later_are_observed(executor):
    def workers(given):
        return MultiprocessingOptions(given, num_lanes=8, executor=executor)

    ds = MapDataset.range(2000).map(add_one).to_iter_dataset(ReadOptions(0))
    with iter(ds.mp_prefetch(workers(1))) as it, observe(it) as view:
        found = [next(it) for _ in range(16)]
        it.resize(3)
        assert [*found, *it] == [*range(1, 2001)]
        assert num_read(view) == 2000
    ds = MapDataset.range(10**6).map(add_one).to_iter_dataset(ReadOptions(0))
    with iter(ds.mp_prefetch(workers("auto"))) as it, observe(it) as view:
        assert any(num_read(view) for x in it if not x % 100)


@pytest.mark.parametrize("num_before", [0, 100])
def test_elements_computed_by_the_consumer_are_observed(num_before):
    ds = MapDataset.range(2000).map(add_one).to_iter_dataset(ReadOptions(0))
    with iter(ds.mp_prefetch(MultiprocessingOptions("auto"))) as it:
        it.resize(0)
        assert len([next(it) for _ in range(num_before)]) == num_before
        with observe(it) as view:
            num = len([*it])
            # What was computed before the observer came is not counted.
            assert num_read(view) == num if not num_before else 0 < num_read(view) < num
            assert "elements/s; the consumer waited" in str(view.diagnosis())
