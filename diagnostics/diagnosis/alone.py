"""Times of stages without competition for CPUs or for the interpreter's lock (GIL).

Where threads compete, most of the time that passes in a stage is waiting for other threads, and
says nothing about the cost of the stage. So a pipeline with threads or workers also runs for a
moment in one thread.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.node import parents_of
from gristmill.diagnostics.runtime.attended import Attended
from gristmill.diagnostics.runtime.observer import Observer
from gristmill.diagnostics.runtime.probe import clock
from gristmill.diagnostics.runtime.processes import thread_demand_ns
from gristmill.diagnostics.runtime.summary import Snapshot, StageSummary, WorkerLoad, take_snapshot
from gristmill.diagnostics.verification.fresh import ColdCopies
from gristmill.diagnostics.verification.outcomes import Clock
from gristmill.diagnostics.verification.subject import Subject, VariedStreams
from gristmill.workers.pickling import dumps

_START_SECONDS = 10.0  # the longest start of a process that measures
_END = object()
_SLICE = "SliceMapDataset["
_MAX_LONGER = 3  # the first output may take this multiple of the seconds


@dataclass(frozen=True)
class OneThread:
    """A run in one thread.

    Args:
        snapshot: of the run; CPU times include the waiting for CPUs that other programs use.
        pickling_ns: time to pickle an output, which is about the time that a worker needs to send
            it.
    """

    snapshot: Snapshot
    pickling_ns: int


@dataclass(frozen=True)
class Alone:
    """A snapshot with the times of stages in one thread.

    Args:
        snapshot: as observed, with these times in place of those of the run.
        inflation: by place (``"consumer"``, ``"threads"``, ``"workers"``), the time that passed in
            its stages in the run, as a multiple of their time in one thread.
        step_ns: time of the consumer's work between two outputs; ``None`` if not measured.
    """

    snapshot: Snapshot
    inflation: dict[str, float]
    step_ns: float | None = None


def run_alone(pipeline: Any, seconds: float) -> OneThread | None:
    """Returns the times of the stages of a pipeline in one thread.

    A pipeline with workers runs in a fresh process, any other in this one.

    Returns:
        ``None`` if it cannot be pickled, raises an error, or takes too long.
    """
    limit = seconds * (1 + _MAX_LONGER) + _START_SECONDS
    with contextlib.suppress(Exception):
        if Subject(pipeline).has_workers:
            copies = ColdCopies(pipeline, dumps(pipeline))
            return copies.call(partial(_run, seconds), Clock(limit))
        it = _in_one_thread(pipeline)
        with Attended(lambda: it, limit, "", close=it.close) as thread:
            return thread.call(lambda: _measured(it, seconds))
    return None


def _without_workers(ds: Any) -> Any:
    """Returns the part of a stage that its workers would compute, if it starts workers."""
    parents = parents_of(ds)
    return parents[0] if ds._gm_starts_workers and len(parents) == 1 else ds


def _run(seconds: float, pipeline: Any) -> OneThread:
    with contextlib.closing(_in_one_thread(pipeline)) as it:
        return _measured(it, seconds)


def _in_one_thread(pipeline: Any) -> DatasetIterator[Any]:
    stream = VariedStreams(_without_workers).replaced(Subject(pipeline).stream)
    return iterate(Subject(stream).with_threads(0) or stream)


def _measured(it: DatasetIterator[Any], seconds: float) -> OneThread:
    start = it.get_state()
    element = next(it)  # imports, fills caches
    pickling = min([_pickling_ns(element) for _ in range(3)])
    observer = Observer()
    observer.times_threads = True
    observer.join(it)
    before, deadline = thread_demand_ns(), time.perf_counter() + seconds
    try:
        while time.perf_counter() < deadline:
            if next(it, _END) is _END:
                it.set_state(start)
        ran, waited = [b - a for a, b in zip(before, thread_demand_ns(), strict=True)]
        stretch = (ran + waited) / ran if ran else 1.0
        return OneThread(_stretched(take_snapshot(observer), stretch), pickling)
    finally:
        observer.stop()


def _pickling_ns(element: Any) -> int:
    began = clock()
    with contextlib.suppress(Exception):  # outputs are not sent if there are no workers
        dumps(element)
    return clock() - began


def _stretched(snapshot: Snapshot, factor: float) -> Snapshot:
    """Returns a snapshot whose CPU times include the waiting for CPUs that other programs use.

    Few calls wait for a CPU, and these for long. So the waiting is shared out among all stages, in
    proportion to their CPU times. The rest of the time in a stage is waiting for data.
    """
    stages = [x for x in snapshot.summary.values() if not x.is_prefetch]
    cpu = factor * math.fsum([x.cpu_time_ns or 0 for x in stages])
    off = {x.id: max(0, x.total_processing_time_ns - (x.cpu_time_ns or 0)) for x in stages}
    total = math.fsum([x.total_processing_time_ns for x in stages])
    share = max(0.0, total - cpu) / (math.fsum(off.values()) or 1.0)
    nodes = dict(snapshot.summary)
    for x in stages:
        computing = round(factor * (x.cpu_time_ns or 0))
        spent = computing + round(off[x.id] * min(1.0, share))
        nodes[x.id] = replace(x, cpu_time_ns=computing, total_processing_time_ns=spent)
    return replace(snapshot, summary=replace(snapshot.summary, nodes=nodes))


def alone(snapshot: Snapshot, run: OneThread | None, is_step_alike: bool) -> Alone | None:
    """Returns a snapshot with the times of the same pipeline in one thread.

    Args:
        snapshot: of the pipeline as it is.
        run: of the pipeline in one thread, or ``None``.
        is_step_alike: True if the consumer did the same in both.

    Returns:
        ``None`` if the stages are not the same, or not all of them gave elements.
    """
    if run is None or not run.snapshot.num_elements or not snapshot.num_elements:
        return None
    other = run.snapshot
    without_slices = bool(snapshot.workers)
    stages = _compared(snapshot, without_slices)
    measured = _compared(other, without_slices)
    if [x.kind for x in stages] != [x.kind for x in measured]:
        return None
    times = snapshot.num_elements / other.num_elements
    changed = {a.id: _with_counts_of(a, b, times) for a, b in zip(stages, measured, strict=True)}
    inflation = {place: _inflation(stages, changed, place) for place in {x.place for x in stages}}
    pickling = run.pickling_ns * snapshot.num_elements // (len(snapshot.workers) or 1)
    loads = [replace(x, encoding_ns=min(x.encoding_ns, pickling)) for x in snapshot.workers]
    nodes = _share_again({**snapshot.summary, **changed}, snapshot.summary.waited_ns, loads)
    summary = replace(snapshot.summary, nodes=nodes)
    step = (other.summary.elapsed_ns - other.summary.waited_ns) / other.num_elements
    changed_snapshot = replace(snapshot, summary=summary, workers=loads)
    return Alone(changed_snapshot, inflation, step if is_step_alike else None)


def _compared(snapshot: Snapshot, without_slices: bool) -> list[StageSummary]:
    """Returns the stages that both runs have, without prefetching.

    Slices of users and the shares of workers look the same.
    """
    stages = [x for x in snapshot.summary.values() if not x.is_prefetch]
    return [x for x in stages if not without_slices or not x.name.startswith(_SLICE)]


def _with_counts_of(stage: StageSummary, other: StageSummary, times: float) -> StageSummary:
    """Returns a stage with the counts of ``other``, multiplied by ``times``.

    The counts of the run lack calls that have not ended, of long blocks. Calls that have ended took
    at least as long there as in one thread, unless the machine was busier later.
    """
    num = round(other.num_produced_elements * times)
    total = round(other.total_processing_time_ns * times)
    if stage.num_produced_elements:
        total = min(total, round(stage.mean_processing_time_ns * num))
    return replace(
        stage,
        total_processing_time_ns=total,
        num_produced_elements=num,
        bytes_produced=round(other.bytes_produced * times),
        cpu_time_ns=min(round((other.cpu_time_ns or 0) * times), total),
    )


def _inflation(stages: list[StageSummary], changed: dict[int, StageSummary], place: str) -> float:
    here = [(x, changed[x.id]) for x in stages if x.place == place and x.num_produced_elements]
    before = math.fsum([x.total_processing_time_ns for x, _ in here])
    after = [y.mean_processing_time_ns * x.num_produced_elements for x, y in here]
    return before / max(math.fsum(after), 1.0)


def _share_again(
    nodes: dict[int, StageSummary], waited_ns: int, loads: list[WorkerLoad]
) -> dict[int, StageSummary]:
    """Returns stages whose shares of the waiting follow from their times in one thread.

    The consumer waits for its own stages as long as they take, and the rest of the time for others.
    """
    working = [x for x in nodes.values() if not x.is_prefetch]
    own = {x.id: x.total_processing_time_ns for x in working if x.place == "consumer"}
    others = {x.id: x.total_processing_time_ns for x in working if x.place != "consumer"}
    for load in loads:
        handing = load.encoding_ns + load.storing_ns + load.decoding_ns
        others[load.stage] = others.get(load.stage, 0) + handing
    spent, elsewhere = sum(own.values()), sum(others.values())
    whole = max(waited_ns, spent) if elsewhere else spent
    ratios = {i: time / (whole or 1) for i, time in own.items()}
    rest = (whole - spent) / (whole or 1)
    ratios |= {i: rest * time / (elsewhere or 1) for i, time in others.items()}
    return {i: replace(x, wait_time_ratio=round(ratios.get(i, 0.0), 4)) for i, x in nodes.items()}
