"""The diagnosis of pipelines with one dominant bottleneck."""

import contextlib
import contextvars
import itertools
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from computing_ahead import Boom, Failing
from refusing import assert_raises
from waiting import running

from gristmill import (
    DataLoader,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    transforms,
)
from gristmill.diagnostics import BudgetUse, diagnose, observe
from gristmill.diagnostics.diagnosis import verdict
from gristmill.diagnostics.diagnosis.alone import OneThread, alone, run_alone
from gristmill.diagnostics.runtime.summary import (
    ExecutionSummary,
    Snapshot,
    StageSummary,
    WorkerLoad,
)
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset
from gristmill.samplers import IndexSampler

SECOND = 10**9


class SlowStorage:  # a read waits
    def __init__(self, seconds=0.005):
        self.seconds = seconds

    def __len__(self):
        return 64

    def __getitem__(self, key):
        time.sleep(self.seconds)
        return np.full(10, key)


def compute(x):
    return sum(range(100_000)) and x


def processes(num):
    return MultiprocessingOptions(num, executor="processes")


def with_workers(ds):
    return ds.to_iter_dataset().mp_prefetch(processes(1))


NUMBERS, MANY = MapDataset.range(64), MapDataset.range(6400).map(str)
SLOW = MapDataset.source(SlowStorage()).map(np.sum)
OBJECTS = MapDataset.source([{str(i): [i] for i in range(3000)}] * 64)


@pytest.mark.parametrize(
    ("bound_by", "stage", "ds"),
    [
        ("source", "(source=SlowStorage)", SLOW.to_iter_dataset(ReadOptions(2, 8)).batch(4)),
        ("source", "(source=SlowStorage)", with_workers(SLOW)),
        ("transform", "compute @", NUMBERS.map(str).map(compute).to_iter_dataset().map(len)),
        ("transform", "compute @", NUMBERS.to_iter_dataset().map(compute).map(str)),
        ("transform", "compute @", with_workers(NUMBERS.map(compute).map(str))),
        ("transport", "MultiprocessPrefetchIterator", with_workers(OBJECTS.map(lambda x: x))),
        *[("consumer", "", ds) for ds in (MANY.to_iter_dataset(), with_workers(MANY))],
    ],
)
def test_what_binds_it(bound_by, stage, ds):
    diagnosis = diagnose(
        ds, 0.6, consumer=(lambda x: time.sleep(0.005)) if bound_by == "consumer" else None
    )
    assert diagnosis.bound_by == bound_by, diagnosis
    assert diagnosis.sentence.startswith("Bound by ") and diagnosis.recommendations
    assert diagnosis.ceiling_per_second > diagnosis.elements_per_second > 0
    assert str(diagnosis).startswith(diagnosis.sentence) and len(repr(diagnosis)) < 400
    assert stage in (diagnosis.stage or "") and stage in diagnosis.sentence
    assert (diagnosis.starved_ratio < 0.5) == (bound_by == "consumer")


def test_how_it_is_run_and_wrong_arguments():
    it = iter(MapDataset.range(100).map(compute).to_iter_dataset())
    assert [next(it) for _ in range(3)] == [0, 1, 2] and diagnose(it, 0.3).bound_by == "transform"
    assert next(it) == 3  # it was set back
    mesh, seen = contextvars.ContextVar("mesh"), set()
    mesh.set("of the caller")
    found = diagnose(MapDataset.range(1), 0.01, consumer=lambda x: seen.add(mesh.get()))
    assert seen == {"of the caller"} and found.snapshot.num_elements > 1
    with pytest.raises(Boom, match="0") as caught:
        diagnose(MapDataset.range(3).map(Failing(0)), 0.1)
    assert "Raised by MapMapDataset" in caught.value.__notes__[0]
    ds = MapDataset.range(3)
    for error, match, *args, options in (
        (Boom, "1", ds, 0.1, {"consumer": Failing(1)}),
        (
            ValueError,
            r"seconds must be a finite number of seconds, at least 0\.001, got 0",
            ds,
            0,
            {},
        ),
        *(
            (TypeError, "seconds must be a number", ds, "5", {}),
            (TypeError, "consumer must be a callable", ds, {"consumer": 3}),
        ),
        (ValueError, "stall_seconds must be a finite number of seconds", ds, {"stall_seconds": -1}),
        *(
            (TypeError, "iterator of a dataset", [1, 2], {}),
            (ValueError, "no elements", ds.filter(lambda x: False), 0.1, {}),
        ),
    ):
        assert_raises(error, match, diagnose, *args, **options)
    assert not running("gristmill-consumer")
    with observe(iter(ds)) as view:
        assert view.diagnosis().bound_by == "unknown"
        next(view.iterator)
        assert "Too little to tell" in view.report()
        assert (
            len(repr(view.snapshot())) < 200
            and len(repr(view.summary())) < 200
            and len(repr(view)) < 400
        )


def stage(number, category, place, own, ratio, inputs=(), num_bytes=0):
    fixed = own, 1, own, 1000, "", number == 0, category == "prefetch", 0, num_bytes * 1000
    return StageSummary(number, f"stage{number}", inputs, ratio, *fixed, category, place)


def snapshot_of(*stages, waited=SECOND, workers=()):
    summary = ExecutionSummary({node.id: node for node in stages}, SECOND, waited)
    return Snapshot(summary, 1000, {50: 1, 95: 2, 99: 3}, [], list(workers))


def threaded(ratio_of_reads):
    return snapshot_of(
        stage(0, "prefetch", "consumer", SECOND, 0.0, (1,)),
        stage(1, "preprocessing", "threads", SECOND // 10, 1 - ratio_of_reads, (2,)),
        stage(2, "read", "threads", 4 * SECOND, ratio_of_reads, num_bytes=10**6),
    )


def in_workers(waiting_for_room=0, cpu=0, num=2, waited=SECOND):
    return snapshot_of(
        stage(0, "prefetch", "consumer", SECOND, 0.0, (1,), num_bytes=10**6),
        stage(1, "preprocessing", "workers", num * SECOND - waiting_for_room, 1.0),
        workers=[WorkerLoad(0, num, 0, num * SECOND, 10**6, waiting_for_room, cpu, 10**6)],
        waited=waited,
    )


@pytest.fixture
def judged(monkeypatch):
    def judge(
        snapshot,
        *,
        cpus=2,
        cpu_ns=0,
        memory=1e10,
        reads=None,
        workers=None,
        alone=None,
        executor="processes",
    ):
        monkeypatch.setattr(verdict, "usable_cpus", lambda: cpus)
        monkeypatch.setattr(verdict, "free_memory", lambda: memory)
        options = MultiprocessingOptions(workers, executor=executor) if workers else None
        return verdict.diagnosis_of(snapshot, verdict.Settings(reads, options), cpu_ns, alone)

    return judge


READS, COMPUTING = (
    {"cpus": 8, "cpu_ns": SECOND // 10, "reads": ReadOptions(16, 500)},
    {"cpu_ns": SECOND, "reads": ReadOptions()},
)
BUSY, IDLE = in_workers(cpu=2 * SECOND), in_workers(3 * SECOND, SECOND, num=4, waited=SECOND // 100)


@pytest.mark.parametrize(
    ("snapshot", "options", "text"),
    [
        (threaded(0.9), READS, "ReadOptions(num_threads=64, prefetch_buffer_size=500)"),
        # Within the memory that is there: an element has 1 MB.
        (
            threaded(0.9),
            {**READS, "memory": 1e8},
            "ReadOptions(num_threads=50, prefetch_buffer_size=50)",
        ),
        (threaded(0.9), {**READS, "memory": 1e7}, "limited by memory"),
        # Computing gets processes within the quota.
        *[
            (threaded(0.1), {**COMPUTING, "cpus": cpus}, text)
            for cpus, text in ((8, "num_workers=8"), (1, "busy"))
        ],
        *[
            (BUSY, {"cpus": cpus, "workers": 2}, text)
            for cpus, text in ((6, "num_workers=6"), (2, "All 2 CPUs"))
        ],
        # the outputs of 6, two of each, would not fit
        (BUSY, {"cpus": 6, "workers": 2, "memory": 1.7e7}, "num_workers=4"),
        (IDLE, {"cpus": 8, "workers": 4}, "num_workers=1 would do instead of 4"),
        # A consumer that waits a little.
        (
            snapshot_of(stage(0, "preprocessing", "consumer", 10**8, 1.0), waited=SECOND // 50),
            {"cpus": 1},
            "in time",
        ),
        (
            snapshot_of(stage(0, "preprocessing", "consumer", 10**8, 1.0), waited=SECOND // 3),
            {"cpus": 1},
            "made while it works",
        ),
    ],
)
def test_advice(snapshot, options, text, judged):
    texts = judged(snapshot, **options).recommendations
    assert text in texts[1 if snapshot is IDLE else 0]
    assert text != "busy" or (len(texts) == 1 and "num_workers" not in texts[0])


def measured(source, step, threads, *, waiting=0.0, marks=()):
    """A second of a pipeline whose source and consumer take this many milliseconds; ``waiting`` is
    what it waits beyond that.
    """
    period = (max(source / threads, step) if threads else source + step) + waiting
    num = round(1000 / period)
    place = "threads" if threads else "consumer"
    ahead = replace(
        stage(0, "prefetch", "consumer", int((period - step) * 1e6 * num), 0.0, (1,)),
        num_threads=threads,
    )
    nodes = ahead, stage(1, "read", place, int(source * 1e6 * num), 1.0, num_bytes=8)
    nodes = {node.id: replace(node, num_produced_elements=num) for node in nodes}
    summary = ExecutionSummary(nodes, SECOND, SECOND - int(step * 1e6 * num))
    return Snapshot(summary, num, {50: 1, 95: 2, 99: 3}, [], [], list(marks))


def test_what_each_part_would_gain_is_compared(judged):
    def measure(source, step, threads=1, cpu_ns=10**7, **changes):
        found = judged(
            measured(source, step, threads, **changes),
            cpu_ns=cpu_ns,
            reads=ReadOptions(threads, 500),
        )
        assert (
            min([part.ceiling_per_second for part in found.parts])
            >= found.elements_per_second * 0.97
        ), found
        return found

    there = "The data is there in time"
    more, early = (
        "Let more threads read: to_iter_dataset(ReadOptions(num_threads=16,",
        "Let threads read ahead",
    )
    for source, step, threads, bound_by, ceiling, advice in (
        *(
            (10, 6, 1, "source", 167, more),
            (12, 6, 1, "source", 167, more),
            (10, 2, 0, "source", 500, early),
        ),
        *(
            (10, 6, 4, "consumer", 400, there),
            (6, 10, 1, "consumer", 167, there),
            (2, 10, 0, "consumer", 500, early),
        ),
    ):
        for waiting in (0.0, 0.1, 0.3):  # a noisy measurement changes nothing
            found = measure(source, step, threads, waiting=waiting)
            assert (found.bound_by, found.is_certain) == (bound_by, True), found
            assert found.ceiling_per_second == pytest.approx(ceiling, rel=0.2), found
            assert (
                found.recommendations[0].startswith(advice) and "certain" not in found.sentence
            ), found
            assert found.parts[0].ceiling_per_second == found.ceiling_per_second
    texts = measure(10, 6).recommendations
    assert all("About 167 elements/s." in text for text in texts) and len(texts) == 2
    assert "About 33" in measure(48, 1).recommendations[0]
    # stages of equal times are not distinguished
    for source, step, threads in ((10, 10, 1), (10, 10.2, 1), (6, 6, 0)):
        found = measure(source, step, threads)
        assert not found.is_certain and {part.kind for part in found.parts[:2]} == {
            "source",
            "consumer",
        }
        assert (
            "That is not certain: without " in found.sentence
            and "differences of 5% are not distinguished" in found.sentence
        )
        if threads:  # neither gains anything alone
            assert found.bound_by == "consumer" and not any(
                "ReadOptions" in text for text in found.recommendations
            )
    for unevenness, is_certain in ((0, True), (6, False)):
        marks = [(i * 10**8, 7 * i + unevenness * (i % 2)) for i in range(11)]
        assert measure(7, 6, threads=0, marks=marks).is_certain == is_certain
    for choice in itertools.product((0.1, 1, 5, 20), (0.1, 1, 5, 20), (0, 1, 4), (10**7, 10**9)):
        measure(*choice)


def test_stages_of_one_name_in_several_components_are_one_part(judged):
    work, components = (
        SECOND // 10,
        [stage(i, "read", "consumer", 9 * SECOND // 20, 0.45) for i in (1, 2)],
    )
    mixture = stage(0, "preprocessing", "consumer", work, 0.1, (1, 2))
    found = judged(snapshot_of(mixture, *[replace(x, name="decode") for x in components]))
    assert (found.stage, found.is_certain, len(found.parts)) == ("decode", True, 3), found
    assert (
        found.ceiling_per_second == pytest.approx(10_000, rel=0.01)
        and "90% of the time" in found.sentence
    )
    apart = judged(snapshot_of(mixture, *components))
    assert not apart.is_certain and apart.ceiling_per_second == pytest.approx(1000 / 0.55, rel=0.01)


def competing(places, *, produced=1000, workers=(), threads=16):
    """A second with a thousand outputs, in which every stage waited for the GIL."""
    first, *others = [
        replace(
            stage(i, "preprocessing", place, 16 * SECOND, 0.3, (i + 1,) if i < 3 else ()),
            num_produced_elements=produced if place == "workers" else 1000,
            name=f"{name}()",
        )
        for i, (name, place) in enumerate(zip(("Batch", "Scale", "Decode"), places, strict=True), 1)
    ]
    ahead = replace(stage(0, "prefetch", "consumer", SECOND, 0.1, (1,)), num_threads=threads)
    return snapshot_of(ahead, first, *others, workers=workers)


def one_thread(batch, scale, decode, cpu=1.0):
    """Ten outputs of the same stages in one thread: the µs of each, of which ``cpu`` computing."""
    times = {"Batch": batch, "Scale": scale, "Decode": decode}
    stages = [
        replace(
            stage(i, "preprocessing", "consumer", 10_000 * spent, 0.3, (i + 1,) if i < 3 else ()),
            name=f"{name}()",
            num_produced_elements=10,
            cpu_time_ns=round(10_000 * spent * (cpu if name == "Decode" else 1.0)),
        )
        for i, (name, spent) in enumerate(times.items(), 1)
    ]
    ahead = stage(0, "prefetch", "consumer", SECOND, 0.1, (1,))
    return OneThread(replace(snapshot_of(ahead, *stages), num_elements=10), 5_000)


THREADS, CONSUMER = ("threads",) * 3, ("consumer", "threads", "threads")
LOAD = WorkerLoad(0, 1, 0, SECOND, SECOND // 2, 0, SECOND, 10**6)


@pytest.mark.parametrize(
    ("snapshot", "run", "cpus", "ceiling"),
    [
        # The GIL is held for 970 of 1000 µs: 30 are left, and 2 threads may not compute at once.
        pytest.param(competing(THREADS), one_thread(20, 10, 970), 2, 1e6 / 30, id="threads"),
        pytest.param(competing(CONSUMER), one_thread(20, 10, 970), 2, 1e6 / 30, id="batch here"),
        pytest.param(competing(THREADS), one_thread(200, 300, 500), 16, 2000, id="half"),
        # 16 threads wait for 16 ms each, and would compute for 400 µs: on 2 CPUs or one.
        pytest.param(
            competing(THREADS, threads=16), one_thread(100, 300, 16_000, 0.0), 2, 3536, id="waiting"
        ),
        # The time of making messages in workers was waiting, too.
        pytest.param(
            competing(("workers",) * 3, workers=[LOAD]),
            one_thread(20, 10, 970),
            2,
            27_000,
            id="workers",
        ),
        pytest.param(
            competing(("workers",) * 3, workers=[LOAD], produced=0),
            one_thread(20, 10, 970),
            2,
            27_000,
            id="workers that have reported nothing",
        ),
    ],
)
def test_competing_stages_are_compared_by_their_own_time(snapshot, run, cpus, ceiling, monkeypatch):
    monkeypatch.setattr(verdict, "usable_cpus", lambda: cpus)
    options = MultiprocessingOptions(1) if snapshot.workers else None
    settings = verdict.Settings(ReadOptions(), options)
    found = verdict.diagnosis_of(snapshot, settings, SECOND, alone(snapshot, run, True))
    assert (found.bound_by, found.stage) == ("transform", "Decode()"), found
    assert ceiling / 1.5 < found.ceiling_per_second < ceiling * 1.5, found
    assert (
        "instead of 1,000 elements/s" in found.sentence
        and "it is unknown how much" not in found.sentence
    )
    # Without the run in one thread, the measured times say nothing.
    unknown = verdict.diagnosis_of(snapshot, settings, SECOND)
    assert unknown.ceiling_per_second is None and not unknown.is_certain
    assert "it is unknown how much" in unknown.sentence and "If it took" not in unknown.sentence


def test_a_ceiling_that_depends_on_the_gil_is_a_range(judged):
    snapshot, run = competing(THREADS), one_thread(100, 300, 16_000, 0.0)
    times = {0: SECOND, 1: SECOND // 10, 2: 3 * SECOND // 10, 3: 16 * SECOND}  # as alone
    nodes = {i: replace(snapshot.summary[i], total_processing_time_ns=x) for i, x in times.items()}
    snapshot = replace(snapshot, summary=replace(snapshot.summary, nodes=nodes))
    found = judged(
        snapshot, cpus=16, cpu_ns=SECOND, reads=ReadOptions(), alone=alone(snapshot, run, True)
    )
    assert found.stage == "Decode()" and found.ceiling_per_second is None and not found.is_certain
    assert "between 2,500 elements/s, if what is left holds" in found.sentence, found


class Slow(transforms.Map):
    def map(self, x):
        return compute(x)


@pytest.mark.parametrize(
    "pipeline",
    [
        NUMBERS.map(compute).batch(2).to_iter_dataset(),
        IterDataset.mix([NUMBERS.map(compute).to_iter_dataset() for _ in range(2)]).batch(2),
        MapDataset.mix([NUMBERS.map(compute)[8:], NUMBERS.map(compute)]).batch(2).to_iter_dataset(),
        NUMBERS.map(compute)[8:].to_iter_dataset().batch(2).mp_prefetch(MultiprocessingOptions(2)),
        DataLoader(
            data_source=range(64),
            sampler=IndexSampler(64, shuffle=True, seed=1),
            operations=[Slow(), transforms.Batch(2)],
            worker_count=1,
        ),
    ],
    ids=["threads", "mixture", "mixture of maps", "workers", "loader"],
)
def test_a_pipeline_runs_alone_stage_by_stage(pipeline):
    with contextlib.closing(iter(pipeline)) as it, observe(it) as view:
        assert [next(it) for _ in range(3)]
        run = run_alone(pipeline, 0.02)
        snapshot = view.snapshot()
    found = alone(snapshot, run, False)
    assert found is not None
    stages = [x for x in found.snapshot.summary.values() if x.cpu_time_ns is not None]
    slow = max(stages, key=lambda x: x.cpu_time_ns)
    assert "compute" in slow.name or "Slow" in slow.name, slow
    assert all([x.cpu_time_ns <= x.total_processing_time_ns for x in stages])
    assert sum([x.wait_time_ratio for x in found.snapshot.summary.values()]) == pytest.approx(
        1, abs=0.01
    )


def test_a_run_alone_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr("gristmill.diagnostics.diagnosis.alone._START_SECONDS", 0.3)
    release = threading.Event()
    try:
        assert (
            run_alone(MapDataset.range(3).map(lambda x: release.wait()).to_iter_dataset(), 0.02)
            is None
        )
    finally:
        release.set()


def test_a_pipeline_in_one_thread_does_not_run_again():
    found = diagnose(NUMBERS.to_iter_dataset(ReadOptions(0, 0)).map(compute), 0.05)
    assert {x.cpu_time_ns for x in found.snapshot.summary.values()} == {None}
    assert found.ceiling_per_second and "it is unknown how much" not in found.sentence


def test_one_thread_that_reads_and_a_step_that_is_shorter():
    ds = MapDataset.source(SlowStorage(0.024)).to_iter_dataset(ReadOptions(1, 8))
    found = diagnose(ds, 1.2, consumer=lambda x: time.sleep(0.008))
    assert found.bound_by == "source" and found.recommendations[0].startswith(
        "Let more threads read"
    ), found
    assert found.ceiling_per_second > 1.5 * found.elements_per_second


@pytest.mark.parametrize(
    ("num", "options", "kind", "advice"),
    [
        (35, {"max_threads": 2}, "thread", "max_threads=16"),
        (3, {"max_bytes_ahead": 200}, "memory", "max_bytes_ahead=800"),
    ],
)
def test_waits_for_the_budget_are_in_text_data_and_diagnosis(num, options, kind, advice):
    ds = IterDataset.mix([SLOW.map(lambda x: np.full(10, x)).to_iter_dataset() for _ in range(num)])
    it = iter(WithOptionsIterDataset(ds, DatasetOptions(**options)))
    with observe(it) as view:
        # asking makes no budget
        assert not view.summary().budgets and "read-ahead" not in str(view.summary())
        assert len([next(it) for _ in range(100)]) == 100
        snapshot = view.snapshot()
    (budget,), summary = snapshot.summary.budgets, snapshot.summary
    assert budget.process == "main" and budget.is_fixed == ("max_threads" in options)
    assert {
        "max_threads": budget.max_threads,
        "max_bytes_ahead": budget.max_bytes,
    }.items() >= options.items()
    assert 0 < budget.num_threads <= budget.max_threads
    waits = {x.id: getattr(x, f"{kind}_wait_ns") for x in summary.values()}
    longest = max(waits, key=waits.get)
    assert 0 < sum(waits.values()) <= summary.waited_ns and summary[longest].name.startswith(
        "PrefetchDatasetIterator("
    )
    line = str(summary).splitlines()[-2]  # the last one is about the mixture
    assert line.startswith(f"read-ahead: {budget.num_threads} of {budget.max_threads} threads, ")
    assert f" for {kind.replace('d', 'ds')} in PrefetchDatasetIterator ({longest})" in line
    data = summary.to_dict()
    assert (
        data["budgets"] == [vars(budget)]
        and data["nodes"][str(longest)][f"{kind}_wait_ns"] == waits[longest]
    )
    texts = verdict.diagnosis_of(snapshot, verdict.settings_of(it), 0).recommendations
    assert (
        f"DatasetOptions({advice})). PrefetchDatasetIterator ({longest}) waited longest for "
        in texts[0]
    ), texts
    # none has more of it
    assert kind == "memory" or not any("ReadOptions" in text for text in texts)


def test_threads_that_the_options_forbid_are_not_promised(judged):
    snapshot = measured(10, 6, 1)
    for is_fixed in (False, True):
        summary = replace(snapshot.summary, budgets=(BudgetUse("main", 1, 1, 0, 10**9, is_fixed),))
        text = judged(
            replace(snapshot, summary=summary), cpu_ns=10**7, reads=ReadOptions(1, 500)
        ).recommendations[0]
        assert (
            "ReadOptions(num_threads=16" in text
            and ("Allow as many" in text and "(max_threads=16)" in text) == is_fixed
        )


def test_more_workers_are_of_the_same_kind(judged):
    for executor in ("threads", "processes"):
        (text,) = judged(in_workers(), cpus=8, workers=2, executor=executor).recommendations[:1]
        assert re.match(
            rf"Let 4 worker {executor} do it: .*num_workers=4, executor='{executor}'\)\)", text
        ), text
        assert ("of shared memory" in text) == (executor == "processes")


def test_imports_of_workers_that_take_long_are_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    modules = {"slow_library": "time.sleep(0.6)", "own_steps": "import slow_library, quick"}
    for name, text in {**modules, "quick": ""}.items():
        (tmp_path / f"{name}.py").write_text(
            f"import time\n{text}\ndef double(x):\n    return 2 * x\n"
        )
    import own_steps

    with iter(with_workers(MapDataset.range(64).map(own_steps.double))) as it, observe(it) as view:
        assert len([*it]) == 64
        imports, text = view.summary().imports, str(view.diagnosis())
    assert imports.keys() == modules.keys() and min(imports.values()) >= 0.6
    assert re.search(r"worker process imports own_steps \(\d+\.\d s\), slow_library \(", text)
    assert "inside of the functions that need it" in text


def test_workers_report_their_budgets():
    ds = IterDataset.mix([SLOW.to_iter_dataset() for _ in range(4)])
    it = iter(WithOptionsIterDataset(ds, DatasetOptions(max_threads=4)).mp_prefetch(processes(2)))
    with it, observe(it) as view:
        assert len(list(it)) == 4 * 64
        summary = view.summary()
    assert [(x.process, x.max_threads) for x in summary.budgets] == [
        ("worker 0", 2),
        ("worker 1", 2),
    ]
    assert {x.place for x in summary.values() if x.thread_wait_ns} == {
        "workers"
    } and "4 threads in 2 processes" in str(summary)
