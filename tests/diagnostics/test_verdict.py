"""What binds a pipeline: right on pipelines that are bound by far in one way."""

import contextvars
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.diagnostics import diagnose, observe, verdict
from gristmill.diagnostics.summary import ExecutionSummary, Snapshot, StageSummary, WorkerLoad

SECONDS = 0.6


class SlowStorage:
    """A read waits for 5 ms."""

    def __len__(self):
        return 64

    def __getitem__(self, key):
        time.sleep(0.005)
        return np.full(10, key)

    def __repr__(self):
        return "SlowStorage()"


def compute(x):
    total = 0
    for i in range(30_000):
        total += i
    return x


def many_objects(x):
    return {str(i): [i] for i in range(3000)}


def with_workers(ds):
    return ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=1))


PIPELINES = {
    "source": lambda: MapDataset.source(SlowStorage()).map(np.sum).to_iter_dataset(ReadOptions(2, 8)).batch(4),
    "source in workers": lambda: with_workers(MapDataset.source(SlowStorage()).map(np.sum)),
    "transform": lambda: MapDataset.range(64).map(str).map(compute).to_iter_dataset().map(len),
    "transform of an iterator": lambda: MapDataset.range(64).to_iter_dataset().map(compute).map(str),
    "transform in workers": lambda: with_workers(MapDataset.range(64).map(compute).map(str)),
    "transport": lambda: with_workers(MapDataset.source([many_objects(0)] * 64).map(lambda x: x)),
    "consumer": lambda: MapDataset.range(6400).map(str).to_iter_dataset(),
    "consumer with workers": lambda: with_workers(MapDataset.range(6400).map(str)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_binds_it(name):
    bound_by = name.partition(" ")[0]
    consumer = (lambda x: time.sleep(0.005)) if bound_by == "consumer" else None
    diagnosis = diagnose(PIPELINES[name](), SECONDS, consumer=consumer)
    assert diagnosis.bound_by == bound_by, diagnosis
    assert diagnosis.sentence.startswith("Bound by ") and diagnosis.recommendations
    assert diagnosis.ceiling_per_second > diagnosis.elements_per_second > 0
    assert str(diagnosis).startswith(diagnosis.sentence)
    stage = {
        "source": "SourceMapDataset(source=SlowStorage)",
        "transform": "compute @",
        "transport": "MultiprocessPrefetchIterator",
        "consumer": "",
    }[bound_by]
    assert stage in (diagnosis.stage or "") and stage in diagnosis.sentence
    assert (diagnosis.starved_ratio < 0.5) == (bound_by == "consumer")


def test_iterators_are_set_back():
    it = iter(MapDataset.range(100).map(compute).to_iter_dataset())
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    assert diagnose(it, 0.05).bound_by == "transform"
    assert next(it) == 3


def test_what_runs_has_the_context_of_the_caller():
    mesh = contextvars.ContextVar("mesh")
    mesh.set("of the caller")
    seen = []
    diagnose(MapDataset.range(3), 0.01, consumer=lambda x: seen.append(mesh.get()))
    assert {*seen} == {"of the caller"}


def test_errors_of_the_pipeline_and_of_the_consumer_come_out():
    def fail(x):
        raise LookupError(f"at {x}")

    with pytest.raises(LookupError, match="at 0") as caught:
        diagnose(MapDataset.range(3).map(fail), 0.1)
    assert "Raised by MapMapDataset" in caught.value.__notes__[0]
    with pytest.raises(LookupError, match="at 1"):
        diagnose(MapDataset.range(3), 0.1, consumer=fail)
    assert not [thread for thread in threading.enumerate() if thread.name == "gristmill-consumer" and thread.is_alive()]


def test_one_element_is_enough_to_run():
    diagnosis = diagnose(MapDataset.range(1).map(compute).to_iter_dataset(), 0.1)
    assert diagnosis.snapshot.num_elements > 1


def test_wrong_arguments():
    ds = MapDataset.range(3)
    with pytest.raises(ValueError, match=r"seconds must be a finite number of seconds, at least 0\.001, got 0"):
        diagnose(ds, 0)
    with pytest.raises(TypeError, match="seconds must be a number"):
        diagnose(ds, "5")
    with pytest.raises(ValueError, match=r"stall_seconds must be a finite number of seconds"):
        diagnose(ds, stall_seconds=-1)
    with pytest.raises(TypeError, match="consumer must be a callable"):
        diagnose(ds, consumer=3)
    with pytest.raises(TypeError, match="iterator of a dataset"):
        diagnose([1, 2])
    with pytest.raises(ValueError, match="no elements"):
        diagnose(MapDataset.range(3).filter(lambda x: False), 0.1)


def test_too_little_to_tell():
    it = iter(MapDataset.range(3))
    with observe(it) as view:
        assert view.diagnosis().bound_by == "unknown"
        next(it)
        assert "Too little to tell" in view.report()


def stage(id_, category, place, own, ratio, inputs=(), num_bytes=0, name="stage"):
    return StageSummary(
        id_,
        f"{name}{id_}",
        inputs,
        ratio,
        own,
        1,
        own,
        1000,
        "",
        id_ == 0,
        category == "prefetch",
        0,
        num_bytes * 1000,
        category,
        place,
    )


def snapshot_of(*stages, waited=1.0, workers=()):
    nodes = {node.id: node for node in stages}
    second = 10**9
    return Snapshot(ExecutionSummary(nodes, second, int(waited * second)), 1000, {50: 1, 95: 2, 99: 3}, [], list(workers))


def threaded(ratio_of_reads):
    return snapshot_of(
        stage(0, "prefetch", "consumer", 10**9, 0.0, (1,)),
        stage(1, "preprocessing", "threads", 10**8, 1 - ratio_of_reads, (2,)),
        stage(2, "read", "threads", 4 * 10**9, ratio_of_reads, num_bytes=10**6),
    )


def in_workers(waiting_for_room=0, cpu=0, num=2):
    load = WorkerLoad(0, num, 0, num * 10**9, 10**6, waiting_for_room, cpu, 10**6)
    return snapshot_of(
        stage(0, "prefetch", "consumer", 10**9, 0.0, (1,), num_bytes=10**6),
        stage(1, "preprocessing", "workers", num * 10**9 - waiting_for_room, 1.0),
        workers=[load],
    )


def advice(monkeypatch, snapshot, *, cpus, cpu_ns=0, memory=10**10, reads=None, workers=None):
    monkeypatch.setattr(verdict, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(verdict, "free_memory", lambda: float(memory))
    options = MultiprocessingOptions(workers) if workers else None
    return verdict.diagnosis_of(snapshot, verdict.Settings(reads, options), cpu_ns).recommendations


def test_reads_that_wait_get_threads(monkeypatch):
    texts = advice(monkeypatch, threaded(0.9), cpus=8, cpu_ns=10**8, reads=ReadOptions(16, 500))
    assert "ReadOptions(num_threads=64, prefetch_buffer_size=500)" in texts[0]
    # Within the memory that is there: an element has 1 MB.
    texts = advice(monkeypatch, threaded(0.9), cpus=8, cpu_ns=10**8, reads=ReadOptions(16, 500), memory=10**8)
    assert "ReadOptions(num_threads=50, prefetch_buffer_size=50)" in texts[0]
    texts = advice(monkeypatch, threaded(0.9), cpus=8, cpu_ns=10**8, reads=ReadOptions(16, 500), memory=10**7)
    assert "limited by memory" in texts[0]


def test_computing_gets_processes_within_the_quota(monkeypatch):
    texts = advice(monkeypatch, threaded(0.1), cpus=8, cpu_ns=10**9, reads=ReadOptions())
    assert "num_workers=8" in texts[0]
    texts = advice(monkeypatch, threaded(0.1), cpus=1, cpu_ns=10**9, reads=ReadOptions())
    assert len(texts) == 1 and "busy" in texts[0] and "num_workers" not in texts[0]
    texts = advice(monkeypatch, in_workers(cpu=2 * 10**9), cpus=6, workers=2)
    assert "num_workers=6" in texts[0]
    texts = advice(monkeypatch, in_workers(cpu=2 * 10**9), cpus=2, workers=2)
    assert "All 2 CPUs" in texts[0]
    # The outputs of 6 workers, two of each, would not fit.
    texts = advice(monkeypatch, in_workers(cpu=2 * 10**9), cpus=6, workers=2, memory=1.7e7)
    assert "num_workers=4" in texts[0]


def test_workers_that_have_nothing_to_do(monkeypatch):
    idle = in_workers(waiting_for_room=3 * 10**9, cpu=10**9, num=4)
    idle = Snapshot(
        ExecutionSummary(idle.summary.nodes, 10**9, 10**7), idle.num_elements, idle.delay_ns, idle.threads, idle.workers
    )
    texts = advice(monkeypatch, idle, cpus=8, workers=4)
    assert "num_workers=1 would do instead of 4" in texts[1]


def measured(source, step, *, threads=1, waiting=0.0, marks=()):
    """A second of a pipeline whose source and consumer take so many milliseconds; ``waiting`` is what it waits beyond that."""
    period = (max(source / threads, step) if threads else source + step) + waiting
    num, second = round(1000 / period), 10**9
    own = int(source * 1e6 * num)
    place = "threads" if threads else "consumer"
    ahead = replace(stage(0, "prefetch", "consumer", int((period - step) * 1e6 * num), 0.0, (1,)), num_threads=threads)
    nodes = {0: replace(ahead, num_produced_elements=num)}
    nodes[1] = replace(stage(1, "read", place, own, 1.0, num_bytes=8), num_produced_elements=num)
    summary = ExecutionSummary(nodes, second, second - int(step * 1e6 * num))
    return Snapshot(summary, num, {50: 1, 95: 2, 99: 3}, [], [], list(marks))


def judged(monkeypatch, snapshot, *, threads, cpus=2, cpu_ns=10**7):
    monkeypatch.setattr(verdict, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(verdict, "free_memory", lambda: 1e10)
    return verdict.diagnosis_of(snapshot, verdict.Settings(ReadOptions(threads, 500), None), cpu_ns)


@pytest.mark.parametrize(
    ("source", "step", "threads", "bound_by", "ceiling", "advice_begins"),
    [
        (10, 6, 1, "source", 167, "Let more threads read: to_iter_dataset(ReadOptions(num_threads=16,"),
        (12, 6, 1, "source", 167, "Let more threads read: to_iter_dataset(ReadOptions(num_threads=16,"),
        (10, 6, 4, "consumer", 400, "The data is there in time"),
        (6, 10, 1, "consumer", 167, "The data is there in time"),
        (10, 2, 0, "source", 500, "Let threads read ahead"),
        (2, 10, 0, "consumer", 500, "Let threads read ahead"),
    ],
)
def test_what_each_part_would_gain_is_compared(source, step, threads, bound_by, ceiling, advice_begins, monkeypatch):
    for waiting in (0.0, 0.1, 0.3):  # a noisy measurement changes nothing
        found = judged(monkeypatch, measured(source, step, threads=threads, waiting=waiting), threads=threads)
        assert (found.bound_by, found.is_certain) == (bound_by, True), found
        assert found.ceiling_per_second == pytest.approx(ceiling, rel=0.2), found
        assert found.recommendations[0].startswith(advice_begins), found
        assert found.parts[0].ceiling_per_second == found.ceiling_per_second
        assert "certain" not in found.sentence


def test_a_recommendation_says_what_it_gains(monkeypatch):
    texts = judged(monkeypatch, measured(10, 6), threads=1).recommendations
    assert all("About 167 elements/s." in text for text in texts) and len(texts) == 2
    assert "About 33" in judged(monkeypatch, measured(48, 1), threads=1).recommendations[0]


@pytest.mark.parametrize(("source", "step", "threads"), [(10, 10, 1), (10, 10.2, 1), (6, 6, 0)])
def test_what_takes_as_long_is_not_told_apart(source, step, threads, monkeypatch):
    found = judged(monkeypatch, measured(source, step, threads=threads), threads=threads)
    assert not found.is_certain and {part.kind for part in found.parts[:2]} == {"source", "consumer"}
    assert "That is not certain: without " in found.sentence and "differences of 5% are not told apart" in found.sentence
    if threads:  # neither gains anything alone
        assert found.bound_by == "consumer" and not any("ReadOptions" in text for text in found.recommendations)


def test_a_measurement_that_varies_is_less_certain(monkeypatch):
    even = [(i * 10**8, 7 * i) for i in range(11)]
    uneven = [(i * 10**8, 7 * i + 6 * (i % 2)) for i in range(11)]
    for marks, is_certain in ((even, True), (uneven, False)):
        found = judged(monkeypatch, measured(7, 6, threads=0, marks=marks), threads=0)
        assert found.is_certain == is_certain, found


def test_no_ceiling_is_below_what_there_is(monkeypatch):
    for source in (0.1, 1, 5, 20):
        for step in (0.1, 1, 5, 20):
            for threads in (0, 1, 4):
                for cpu_ns in (10**7, 10**9):
                    found = judged(monkeypatch, measured(source, step, threads=threads), threads=threads, cpu_ns=cpu_ns)
                    ceilings = [part.ceiling_per_second for part in found.parts]
                    assert min(ceilings) >= found.elements_per_second * 0.97, found


def test_one_thread_that_reads_and_a_step_that_is_shorter():
    class Far(SlowStorage):
        def __getitem__(self, key):
            time.sleep(0.024)
            return key

    ds = MapDataset.source(Far()).to_iter_dataset(ReadOptions(1, 8))
    found = diagnose(ds, 1.2, consumer=lambda x: time.sleep(0.008))
    assert found.bound_by == "source" and found.recommendations[0].startswith("Let more threads read"), found
    assert found.ceiling_per_second > 1.5 * found.elements_per_second


def test_the_repr_is_short():
    assert len(repr(diagnose(PIPELINES["source"](), 0.1))) < 400
    with observe(iter(PIPELINES["source"]())) as view:
        assert len(repr(view.snapshot())) < 200 and len(repr(view.summary())) < 200 and len(repr(view)) < 400


@pytest.mark.parametrize(("waited", "text"), [(0.02, "in time"), (0.3, "made while it works")])
def test_a_consumer_that_waits_a_little_is_told_how_not_to(monkeypatch, waited, text):
    snapshot = snapshot_of(stage(0, "preprocessing", "consumer", 10**8, 1.0), waited=waited)
    assert text in advice(monkeypatch, snapshot, cpus=1, cpu_ns=10**8)[0]
