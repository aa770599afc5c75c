"""The metrics of a process: what the observers of its pipelines count, added up.

Guarantees:

1. No total goes back. What an observer has counted is added as the difference to what it had
   counted before, so that it stays when the pipeline is gone.
2. Memory does not grow with the number of pipelines: those that have ended are let go of, and of
   the numbers that bear the name of a pipeline only those of the last ``_MAX_NAMES`` and of
   pipelines in use are kept.
3. A pipeline never waits for a reader.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gristmill.core.locks import Lock
from gristmill.dataset.bases.node import DatasetNode, ancestors
from gristmill.diagnostics.runtime.probe import Probe
from gristmill.diagnostics.runtime.remote import records_of
from gristmill.diagnostics.runtime.summary import ExecutionSummary, on_all_nodes, take_snapshot
from gristmill.loader.records import SampledMapDataset

_log = logging.getLogger("gristmill")

_MAX_NAMES = 64
_MAX_NEW = 16  # pipelines that are looked at later
_MAX_TEXT = 200


@dataclass(frozen=True, eq=False)
class Family:
    """One metric, as Prometheus sees it.

    Args:
        kind: ``"histogram"``, ``"counter"`` or ``"gauge"``.
        name: without the endings that Prometheus adds.
        text: what it is.
        labels: what its values are distinguished by.
        buckets: the upper limits of those of a histogram: 0, or powers of two.
    """

    kind: str
    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()


FAMILIES: list[Family] = []  # in the order in which they are served
_TIMES = tuple([2**k for k in range(42)])
_STAGE = ("pipeline", "stage")


def _family(
    kind: str, name: str, text: str, labels: tuple[str, ...] = (), buckets: tuple[int, ...] = ()
) -> Family:
    FAMILIES.append(Family(kind, name, text, labels, buckets))
    return FAMILIES[-1]


_histogram = partial(_family, "histogram")
_counter = partial(_family, "counter")
_gauge = partial(_family, "gauge")

NEXT = _histogram(
    "grain_python_dataset_next_duration_ns",
    "Time of a next of the outermost iterator that delivered something.",
    buckets=_TIMES,
)
READY = _histogram(
    "grain_python_dataset_prefetch_buffer_ready_count",
    "Elements that threads had ready when the next ones were taken.",
    buckets=(0, *[2**k for k in range(17)]),
)
READ = _histogram(
    "grain_python_dataset_source_read_time_ns",
    "Time to read one element of a data source.",
    ("source",),
    _TIMES[::2],
)
BYTES = _counter(
    "grain_python_data_sources_bytes_read",
    "Bytes read from a data source, estimated.",
    ("source",),
)
LOADER = _histogram(
    "grain_python_data_loader_iterator_get_next",
    "Time of a next of a DataLoader's iterator, in nanoseconds.",
    buckets=_TIMES,
)
NAMED_NEXT = _histogram(
    "gristmill_next_duration_ns",
    "Time of a next of the pipeline's last iterator that delivered something.",
    ("pipeline",),
    _TIMES,
)
ELEMENTS = _counter("gristmill_stage_elements", "Elements that a stage has produced.", _STAGE)
TIME = _counter(
    "gristmill_stage_time_ns", "Time spent in a stage, in all threads and workers.", _STAGE
)
FAULTS = _counter("gristmill_faults", "Elements that tolerate has skipped or replaced.", _STAGE)
RESTARTS = _counter(
    "gristmill_worker_restarts", "Worker processes that took the place of others.", _STAGE
)
WORKERS = _gauge("gristmill_workers", "Workers that have reported, at the moment.", _STAGE)
DECISIONS = _counter(
    "gristmill_worker_decisions", "Changes of the number of workers by auto.", ("pipeline",)
)
WAIT_RATIO = _gauge(
    "gristmill_stage_wait_ratio", "A stage's share of the time that the consumer waited.", _STAGE
)
QUEUE_DEPTH = _gauge(
    "gristmill_queue_depth", "Elements that a prefetching stage has ready.", _STAGE
)
BUDGET_WAIT = _counter(
    "gristmill_budget_wait_ns",
    "Time that others waited for a stage because there were no threads, or no memory, to compute"
    " more ahead.",
    (*_STAGE, "resource"),
)
BUDGET_USED = _gauge(
    "gristmill_budget_used",
    "Threads that compute ahead, and bytes that are ahead.",
    ("pipeline", "resource"),
)
BUDGET = _gauge(
    "gristmill_budget",
    "The most threads, and bytes, that there may be of these.",
    ("pipeline", "resource"),
)
# By the names of the draw counts of a mixture.
_DRAW_COUNTS = {
    name: _gauge(f"gristmill_component_{name}", text, (*_STAGE, "component"))
    for name, text in {
        "elements": "Elements that a mixture has drawn of a component.",
        "lengths": "Their lengths together, as the mixture measures them.",
        "epochs": "How often a component of a mixture has started again.",
    }.items()
}
LONG = _gauge(
    "gristmill_long_elements",
    "Elements longer than the last boundary of batches by length.",
    _STAGE,
)

Key = tuple[Family, tuple[str, ...]]  # a metric and the values of its labels


class _Pipeline:
    """One that was used."""

    def __init__(self, observer: Any) -> None:
        self.observer = observer
        self.is_of_loader = _is_of_loader(observer.alive())
        self.name = ""  # that it has got
        self.counted: dict[Key, list[int]] = {}
        self.is_over = False

    def look(self) -> None:
        self.is_over = not any([self.observer.probe_of(it) for it in self.observer.alive()])


class Metrics:
    """Collects the registered observers, and their numbers while it lives."""

    def __init__(self) -> None:
        self._new: deque[_Pipeline] = deque()
        self._live: list[_Pipeline] = []
        self._totals: dict[Key, list[int]] = {}
        # of pipelines by their names, the one that was used last at the end
        self._forms: dict[str, Any] = {}
        self._numbers = itertools.count()
        self._lock = Lock()

    def add(self, observer: Any) -> None:
        """Counts what ``observer`` counts, from its beginning on."""
        self._new.append(_Pipeline(observer))
        if len(self._new) > _MAX_NEW + len(self._live) and self._lock.is_free():
            with self._lock:
                self._update()

    def read(self) -> dict[Key, list[int] | float]:
        """Returns all numbers of this moment; those of a histogram as in ``Histogram.powers``,
        followed by their total.
        """
        with self._lock:
            gauges = self._update()
            return {**{key: [*numbers] for key, numbers in self._totals.items()}, **gauges}

    def _update(self) -> dict[Key, float]:
        while self._new:
            self._live.append(self._new.popleft())
        gauges: dict[Key, float] = {}
        for pipeline in self._live:
            pipeline.look()  # before it is counted, perhaps for the last time
        for pipeline in self._live:
            try:
                if pipeline.is_over:
                    pipeline.observer.output.settle()
                self._count(pipeline, {} if pipeline.is_over else gauges)
            except Exception:
                _log.debug("the metrics of a pipeline could not be read", exc_info=True)
        self._live = [pipeline for pipeline in self._live if not pipeline.is_over]
        self._forget_names()
        return gauges

    def _count(self, pipeline: _Pipeline, gauges: dict[Key, float]) -> None:
        now = _totals(pipeline)
        snapshot = take_snapshot(pipeline.observer)
        name = self._name(pipeline)
        stages = _stages(snapshot.summary)
        now[NAMED_NEXT, (name,)] = now[NEXT, ()]
        for id_, node in snapshot.summary.items():
            key = name, stages[id_]
            now[ELEMENTS, key] = [node.num_produced_elements]
            now[TIME, key] = [node.total_processing_time_ns]
            gauges[WAIT_RATIO, key] = node.wait_time_ratio
            if node.thread_wait_ns or node.memory_wait_ns:
                now[BUDGET_WAIT, (*key, "threads")] = [node.thread_wait_ns]
                now[BUDGET_WAIT, (*key, "memory")] = [node.memory_wait_ns]
            for component, counts in node.components.items():
                for entry, family in _DRAW_COUNTS.items():
                    gauges[family, (*key, component)] = counts[entry]
            if node.num_long is not None:
                gauges[LONG, key] = node.num_long
            if node.buffered is not None:
                gauges[QUEUE_DEPTH, key] = gauges.get((QUEUE_DEPTH, key), 0) + node.buffered
        for step, num in snapshot.summary.faults.items():
            now[FAULTS, (name, step[:_MAX_TEXT])] = [num]
        if budgets := snapshot.summary.budgets:
            gauges[BUDGET_USED, (name, "threads")] = sum([x.num_threads for x in budgets])
            gauges[BUDGET_USED, (name, "memory")] = sum([x.num_bytes for x in budgets])
            gauges[BUDGET, (name, "threads")] = sum([x.max_threads for x in budgets])
            gauges[BUDGET, (name, "memory")] = sum([x.max_bytes for x in budgets])
        for load in on_all_nodes(snapshot.workers):
            now[RESTARTS, (name, stages[load.stage])] = [load.num_restarts]
            gauges[WORKERS, (name, stages[load.stage])] = load.num_workers
        if decisions := snapshot.summary.decisions:
            now[DECISIONS, (name,)] = [len(decisions)]
        for place, numbers in now.items():
            before = pipeline.counted.setdefault(place, [0] * len(numbers))
            totals = self._totals.setdefault(place, [0] * len(numbers))
            for i, number in enumerate(numbers):
                if number > before[i]:
                    totals[i] += number - before[i]
                    before[i] = number

    def _name(self, pipeline: _Pipeline) -> str:
        """Returns its own name, or that of an equal pipeline that is no more, or a new one."""
        form = _form(pipeline.observer.root)
        name = pipeline.observer.name or pipeline.name
        if not name:
            used = {other.name for other in self._live if not other.is_over}
            equal = [x for x, other in self._forms.items() if other == form and x not in used]
            name = equal[0] if equal else f"pipeline-{next(self._numbers)}"
        self._forms.pop(name, None)
        self._forms[name] = form
        pipeline.name = name
        return name

    def _forget_names(self) -> None:
        used = {pipeline.name for pipeline in self._live}
        unused = [name for name in self._forms if name not in used]
        for name in unused[: max(0, len(self._forms) - _MAX_NAMES)]:
            del self._forms[name]
            for family, labels in [*self._totals]:
                if "pipeline" in family.labels and labels[0] == name:
                    del self._totals[family, labels]


def _totals(pipeline: _Pipeline) -> dict[Key, list[int]]:
    """Returns the numbers that a pipeline adds to those of the process."""
    observer = pipeline.observer
    output = observer.output
    delays = [*output.delays.powers, output.waited - output.waited_in_vain]
    now: dict[Key, list[int]] = {(NEXT, ()): delays}
    if pipeline.is_of_loader:
        now[LOADER, ()] = delays
    reports = [report for group in [*observer.groups.values()] for report in group.reports()]
    in_workers = [record for report in reports for record in report.records]
    for record in [*records_of(observer), *in_workers]:
        histogram = record.cell.histogram
        if histogram is not None:
            numbers = [*histogram.powers, histogram.total]
            if record.source is None:
                _add(now, (READY, ()), numbers)
            else:
                _add(now, (READ, (record.source,)), numbers)
                _add(now, (BYTES, (record.source,)), [record.cell.bytes_read])
    return now


def _add(numbers: dict[Key, list[int]], key: Key, more: list[int]) -> None:
    before = numbers.get(key)
    numbers[key] = more if before is None else [a + b for a, b in zip(before, more, strict=True)]


def _stages(summary: ExecutionSummary) -> dict[int, str]:
    """Labels that distinguish the stages, by their ids: the text of a stage, numbered if several
    are alike.
    """
    names: dict[int, str] = {}
    alike: Counter[str] = Counter()
    for id_, node in sorted(summary.items()):
        name = node.name[:_MAX_TEXT]
        alike[name] += 1
        names[id_] = name if alike[name] == 1 else f"{name} ({alike[name]})"
    return names


def _form(probe: Probe) -> tuple[Any, ...]:
    return probe.name, *[_form(x) for x in probe.inputs]


def _is_of_loader(iterators: Iterable[Any]) -> bool:
    datasets = [vars(it).get("_ds") for it in iterators]
    nodes = [node for ds in datasets if isinstance(ds, DatasetNode) for node in ancestors(ds)]
    return any([isinstance(node, SampledMapDataset) for node in nodes])
