"""Observing what happens in workers, processes or threads.

A worker, on request, observes its own share of the pipeline as the consumer observes the rest, and
sends what it has counted along with its outputs: as often as costs it 2 % of its time, and before
its last message. No thread waits for the numbers.
"""

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gristmill.core.config import config
from gristmill.diagnostics.runtime.ahead import BudgetUse, budgets_of
from gristmill.diagnostics.runtime.jax_profiles import (
    ProfiledWorkers,
    annotate_while_profiling,
    serve_profiles,
)
from gristmill.diagnostics.runtime.probe import Probe, StageCounts, clock
from gristmill.diagnostics.runtime.processes import cpu_demand_ns
from gristmill.diagnostics.runtime.stacks import show_stacks_when_asked
from gristmill.workers.imports import slow_imports
from gristmill.workers.setup import is_worker

_SHARE = 50  # a report may take this fraction of the time between two of them


@dataclass
class StageRecord:
    """The counts of one stage, in one process or several."""

    name: str
    kind: str
    category: str
    source: str | None
    spec: str
    inputs: list[int]  # places in the list of records
    cell: StageCounts
    drops: bool = False  # it may leave elements out
    waits: bool = False  # for elements that others compute
    thread_wait: int = 0  # how long others waited because it had no thread,
    memory_wait: int = 0  # or no memory
    input_names: list[str] | None = None  # of a mixture whose components have names

    @property
    def form(self) -> tuple[str, tuple[int, ...]]:
        return self.kind, tuple(self.inputs)


@dataclass(frozen=True)
class ThreadTimeline:
    """The activity of one thread. Times in nanoseconds.

    Args:
        process: ``"main"``, or ``"worker 0"`` and so on, after the name of its node if it is on
            Ray.
        thread: its name.
        began_ns: when it was first seen (``time.perf_counter_ns``, which counts alike in all
            processes on Linux); on another node as exactly as its time of day is that of this
            machine.
        seen_ns: how long it has been seen.
        own_ns: how much of that each stage (by its id) has taken.
        events: single calls, if they are recorded: begin, end, id of the stage, number of elements.
    """

    process: str
    thread: str
    began_ns: int
    seen_ns: int
    own_ns: dict[int, int]
    events: list[tuple[int, int, int, int]]


@dataclass
class WorkerReport:
    """The report of a worker about itself. Times in nanoseconds.

    Args:
        spent: how long it took to make messages of elements (``"encoding"``) and to put them into
            an object store (``"storing"``), there was no room for more outputs (``"waiting"``), and
            the time of CPUs (``"cpu"``).
        token: of the group that asked for it.
        profiler_port: where it serves profiles.
        imports: slow ones, in seconds.
        wall: how much the clock of its machine is behind the time of day.
        node: where it is, if that may be another machine; is set by the consumer, as is
        is_there: rather than gone from there.
    """

    index: int
    process_id: int
    records: list[StageRecord]
    root: int | None
    threads: list[ThreadTimeline]
    began: int
    now: int
    spent: Counter[str]
    token: bytes
    profiler_port: int | None
    budgets: list[BudgetUse]
    imports: dict[str, float]
    wall: int
    node: str = ""
    is_there: bool = True


def records_of(observer: Any) -> list[StageRecord]:
    """Return the counts of an observer in this process, by the numbers of its probes."""
    probes = [*observer.probes]
    cells = [observer.cell(probe) for probe in probes]
    for probe in probes:
        if probe.category == "prefetch" and probe.inputs and probe.inputs[0].takes_indices:
            _complete(cells, probe.inputs[0])
    return [
        StageRecord(
            probe.name,
            probe.kind,
            probe.category,
            probe.source,
            probe.spec,
            [x.number for x in [*probe.inputs, *probe.components]],
            cells[probe.number],
            probe.drops,
            probe.waits,
            round(1e9 * probe.budget_waits.seconds["threads"]),
            round(1e9 * probe.budget_waits.seconds["memory"]),
            probe.input_names,
        )
        for probe in probes
    ]


def _complete(cells: list[StageCounts], top: Probe) -> None:
    """Adds what is still to be stood for, in proportion: all elements were counted where an
    iterator reads, not before that.
    """
    whole, part = cells[top.number].elements, cells[top.number].stood_for
    if whole == part or not part:
        return
    seen = {top.number}
    todo = [*top.inputs]
    while todo:
        probe = todo.pop()
        if probe.number not in seen:
            seen.add(probe.number)
            cells[probe.number].elements = round(cells[probe.number].elements * whole / part)
            todo += probe.inputs
    for number in seen:
        cells[number].own = round(cells[number].own * whole / part)
        cells[number].cpu = round(cells[number].cpu * whole / part)


def threads_of(observer: Any, process: str) -> list[ThreadTimeline]:
    """Returns the threads that an observer has seen; stages have the numbers of their probes."""
    return [
        ThreadTimeline(
            process,
            lane.name,
            lane.began,
            clock() - lane.began,
            {i: cell.own for i, cell in enumerate([*lane.cells])},
            [*(lane.events or ())],
        )
        for lane in [*observer.lanes]
    ]


class WorkerGroup:
    """The workers of one stage, seen from the consumer."""

    def __init__(self, observer: Any) -> None:
        self._observer = weakref.ref(observer)
        self._token = os.urandom(8)  # workers that had others to report to start again
        self._pool: Any = None
        self._workers: list[Any] = []
        self._profiled = ProfiledWorkers()
        self._latest: dict[int, bytes] = {}  # what each worker said last
        # of processes that are gone, by worker and node, the last one last
        self._past: dict[tuple[int, str], WorkerReport] = {}
        self._waited: Counter[str] = Counter()  # for messages, by node
        self._received: Counter[str] = Counter()  # waited, and made elements of them
        self.num_restarts: Counter[str] = Counter()  # by node

    def attach(self, pool: Any) -> None:
        """Observes the workers of ``pool`` from now on."""
        if pool is None or pool is self._pool:
            return
        workers, self._pool, self._workers = self._workers, pool, []
        for worker in workers:
            self._keep(worker)
        pool.on_start = self._watch
        for worker in pool.workers:
            self._watch(worker)

    @property
    def decisions(self) -> list[str]:
        """Return the changes of the number of workers, where that is ``"auto"``, with their
        reasons.
        """
        tuning = getattr(self._pool, "tuning", None)
        return [] if tuning is None else [str(decision) for decision in tuning.decisions]

    def update(self) -> None:
        """Sends the workers the current requests."""
        for worker in self._workers:
            if worker.is_alive():
                worker.call(self._start(worker))

    def _start(self, worker: Any) -> bytes:
        observer = self._observer()
        # the profiler of this process cannot reach other nodes
        serves_profiles = config.enable_multiprocess_worker_profiling and not _node(worker)
        start = _Start(
            self._token,
            max_events=0 if observer is None else observer.max_events,
            measures=observer is not None and observer.measures,
            serves_profiles=serves_profiles,
        )
        return pickle.dumps(start)

    def update_profiler(self) -> None:
        """Lets the profiler of this process know of the workers that serve profiles."""
        found = [self._report_of(worker) for worker in self._workers if worker.is_alive()]
        reports = [x for x in found if x is not None]
        ports = {x.process_id: x.profiler_port for x in reports if x.profiler_port is not None}
        self._profiled.update(ports)

    def stop(self) -> None:
        pool = self._pool
        if pool is None:
            return
        pool.on_start = None
        self._profiled.update({})
        for worker in pool.workers:
            worker.set_instruments(None, None)
            if not pool.is_closed and worker.is_alive():
                worker.call(pickle.dumps(_stop))

    def _watch(self, worker: Any) -> None:
        for other in [*self._workers]:
            if other.index == worker.index:
                self._workers.remove(other)  # first, so that it is not counted twice
                self._keep(other)
                self.num_restarts[_node(worker)] += other.process_id != worker.process_id
        self._workers.append(worker)
        index, node = worker.index, _node(worker)
        worker_of: Callable[[], Any] = weakref.ref(worker)

        def timed(spent: Counter[str], original: Callable[..., Any], *args: Any) -> Any:
            began = clock()
            try:
                return original(worker_of(), *args)
            finally:
                spent[node] += clock() - began
                if spent is self._received:
                    self._latest[index] = worker_of().last_report

        waiting = partial(partial, timed, self._waited)
        receiving = partial(partial, timed, self._received)
        worker.set_instruments(waiting, receiving)
        worker.call(self._start(worker))

    def _keep(self, worker: Any) -> None:
        report = self._report_of(worker)
        self._latest.pop(worker.index, None)
        if report is not None:
            key = report.index, report.node
            self._past[key] = _added(self._past.pop(key, None), report)

    def decoding(self, node: str) -> int:
        """Return the time that the consumer took to decode messages from a node."""
        return max(0, self._received[node] - self._waited[node])

    def reports(self) -> list[WorkerReport]:
        """Return one of every worker on each node where it was, what those before it in its place
        there have counted included.
        """
        reports = {
            key: replace(report, records=deepcopy(report.records))
            for key, report in [*self._past.items()]
        }
        for worker in [*self._workers]:
            report = self._report_of(worker)
            if report is not None:
                key = report.index, report.node
                reports[key] = _added(reports.pop(key, None), report)
        pool = self._pool
        here = None if pool is None or pool.is_closed else {worker.index for worker in pool.workers}
        newest = {report.index: report for report in reports.values()}
        for report in reports.values():
            report.is_there = report is newest[report.index] and (
                here is None or report.index in here
            )
        return sorted(reports.values(), key=lambda report: report.index)

    def _report_of(self, worker: Any) -> WorkerReport | None:
        data = self._latest.get(worker.index)
        report: WorkerReport | None = pickle.loads(data) if data else None
        if report is None or report.token != self._token:
            return None
        report.node = _node(worker)
        if report.node:
            shift = report.wall - _wall()
            report.threads = [_on_node(thread, report.node, shift) for thread in report.threads]
            report.budgets = [
                replace(x, process=f"node {report.node}, {x.process}") for x in report.budgets
            ]
        return report

    @property
    def processes(self) -> list[Any]:
        return [*self._workers]


def _node(worker: Any) -> str:
    return str(worker.transport.node)


def _wall() -> int:
    """Return the difference between the time of day, which is nearly the same on all machines, and
    the clock of this machine.
    """
    return time.time_ns() - clock()


def _on_node(thread: ThreadTimeline, node: str, shift: int) -> ThreadTimeline:
    """Return the thread with times by this machine's clock."""
    return replace(
        thread,
        process=f"node {node}, {thread.process}",
        began_ns=thread.began_ns + shift,
        events=[(a + shift, b + shift, stage, num) for a, b, stage, num in thread.events],
    )


def _added(before: WorkerReport | None, report: WorkerReport) -> WorkerReport:
    if before is None:
        return report
    report.spent.update(before.spent)
    report.began -= before.now - before.began
    merge(report.records, before.records)
    return report


def merge(records: list[StageRecord], others: list[StageRecord]) -> None:
    """Adds what was counted of the same stages elsewhere; stages that are not the same are left
    out.
    """
    for record, other in zip(records, others, strict=False):
        if record.form == other.form:
            record.cell.add(other.cell)
            record.spec = record.spec or other.spec
            record.thread_wait += other.thread_wait
            record.memory_wait += other.memory_wait


@dataclass
class _Start:
    """Called in a worker: begins to observe it."""

    token: bytes
    max_events: int
    measures: bool
    serves_profiles: bool

    def __call__(self, worker: Any) -> None:
        if worker.outbox.report is None or worker.outbox.report.__self__.token != self.token:
            _stop(worker)
            reporter = _Reporter(worker, self.token, self.measures)
            worker.outbox.report = reporter.report
            if is_worker():  # rather than a thread of the consumer's process
                show_stacks_when_asked()
                if self.serves_profiles:
                    reporter.profiler_port = serve_profiles()
        if self.max_events:
            worker.outbox.report.__self__.record(self.max_events)


def _cpu_demand_ns() -> int:
    """Return the CPU demand of a worker process; 0 in the consumer's process, which counts that of
    its threads itself.
    """
    return cpu_demand_ns() if is_worker() else 0


def _stop(worker: Any) -> None:
    if worker.outbox.report is not None:
        worker.outbox.report.__self__.stop()
        worker.outbox.report = None


class _Reporter:
    """In a worker: observes what runs there."""

    def __init__(self, worker: Any, token: bytes, measures: bool) -> None:
        from gristmill.diagnostics.runtime.observer import Observer

        self.token = token
        self._observer = Observer()
        self._observer.measures = measures
        annotate_while_profiling(self._observer)
        self.profiler_port: int | None = None
        self.record = self._observer.record
        self._worker = worker
        self._producer = worker.producer
        self._began = clock()
        self._spent: Counter[str] = Counter()
        self._cpu_now = _cpu_demand_ns()
        self._waited_before = worker.waited_ns  # for other workers of this process
        self._next = 0
        self._is_at_work = True  # or has nothing to do before it is started again
        encode, hand_over = partial(self._timed, "encoding"), partial(self._timed, "storing")
        instruments = (self._start, encode, self._receive, hand_over)
        worker.set_instruments(*[partial(partial, instrument) for instrument in instruments])
        self._join()

    def stop(self) -> None:
        self._worker.set_instruments(None, None, None, None)
        self._observer.stop()

    def _join(self) -> None:
        # those of several lanes are one pipeline
        for it in getattr(self._producer, "iterators", ()):
            self._observer.join(it)

    def _start(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # The first element is made after this, so it is observed.
        self._is_at_work = True
        result = original(*args, **options)
        self._join()
        return result

    def _timed(self, kind: str, original: Callable[..., Any], *args: Any) -> Any:
        began = clock()
        try:
            return original(*args)
        finally:
            self._spent[kind] += clock() - began

    def _receive(self, original: Callable[..., Any], *, wait: bool) -> None:
        began = clock()
        try:
            original(wait=wait)
        finally:
            if wait and self._is_at_work:
                self._spent["waiting"] += clock() - began
            elif wait:
                self._began += clock() - began  # as if it had not been there

    def report(self, is_last: bool) -> bytes | None:
        began = clock()
        self._is_at_work = not is_last
        if began < self._next and not is_last:
            return None
        before, self._cpu_now = self._cpu_now, _cpu_demand_ns()
        # its owner is unknown
        self._spent["cpu"] += (self._cpu_now - before) // self._worker.num_workers
        observer = self._observer
        root = observer.root
        index = getattr(self._producer, "index", 0)
        report = WorkerReport(
            index,
            os.getpid(),
            records_of(observer),
            None if root is None else root.number,
            threads_of(observer, f"worker {index}"),
            # as if the work for other workers of this process had taken no time
            began=self._began + self._worker.waited_ns - self._waited_before,
            now=began,
            spent=self._spent,
            token=self.token,
            profiler_port=self.profiler_port,
            budgets=budgets_of(observer, f"worker {index}"),
            imports=slow_imports(),
            wall=_wall(),
        )
        data = pickle.dumps(report)
        ended = clock()
        self._next = ended + _SHARE * (ended - began)
        return data
