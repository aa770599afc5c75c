"""The time that each stage of a pipeline took."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gristmill.dataset.mixtures.draw_counts import sum_of_counts
from gristmill.diagnostics.runtime.ahead import BudgetUse, ahead_text, budgets_of
from gristmill.diagnostics.runtime.probe import StageCounts
from gristmill.diagnostics.runtime.remote import (
    StageRecord,
    ThreadTimeline,
    WorkerGroup,
    WorkerReport,
    merge,
    records_of,
    threads_of,
)
from gristmill.diagnostics.table import Column, DataTable
from gristmill.diagnostics.units import size_text, time_text


@dataclass(frozen=True)
class StageSummary:
    """The counts and times of one stage. Times are in nanoseconds, and those of all threads and
    worker processes together.

    Args:
        id: its number; the last stage is 0, parents are numbered depth first.
        name: the stage as text.
        inputs: the numbers of its parents.
        wait_time_ratio: which share of the time that the consumer waited is due to it; in [0, 1], 1
            for all stages together.
        total_processing_time_ns: the time spent in it, without that of its parents.
        min_processing_time_ns: the least of that for one element; 0 without elements.
        max_processing_time_ns: the most.
        num_produced_elements: its outputs so far; computed, where they are computed ahead.
        output_spec: what its output looks like.
        is_output: whether it is the last stage.
        is_prefetch: whether others compute its elements ahead: then the time in it is mostly
            waiting for them.
        bytes_consumed: size of its inputs, estimated.
        bytes_produced: size of its outputs, estimated.
        category: ``"read"``, ``"preprocessing"`` or ``"prefetch"``.
        place: ``"consumer"``, ``"threads"`` or ``"workers"``: where it runs.
        kept_ratio: outputs for each input, where the stage may leave some out; else ``None``.
        buffered: elements that are ready at the moment, of a prefetching stage; else ``None``.
        num_errors: calls that raised.
        num_threads: that may compute its elements ahead, of a prefetching stage; else ``None``.
        thread_wait_ns: how long others waited for a stage that computes ahead because all threads
            of the pipeline were busy.
        memory_wait_ns: the same, because elements ahead took all the memory that they may.
        components: of a mixture of streams in this process: what was drawn of each component
            (``elements``, ``lengths``, ``epochs``).
        num_long: of a stage that makes batches of a stream by length, in this process: how many
            elements were longer than the last boundary, since the beginning of the stream; else
            ``None``.
        cpu_time_ns: CPU time within ``total_processing_time_ns``; ``None`` unless ``diagnose`` has
            measured it.
        component: the name of the component of a mixture that it belongs to; of nested mixtures all
            names, the outermost first, with ``/`` between them; empty without a name.
    """

    id: int
    name: str
    inputs: tuple[int, ...]
    wait_time_ratio: float
    total_processing_time_ns: int
    min_processing_time_ns: int
    max_processing_time_ns: int
    num_produced_elements: int
    output_spec: str
    is_output: bool
    is_prefetch: bool
    bytes_consumed: int
    bytes_produced: int
    category: str
    place: str
    kept_ratio: float | None = None
    buffered: int | None = None
    num_errors: int = 0
    num_threads: int | None = None
    thread_wait_ns: int = 0
    memory_wait_ns: int = 0
    components: dict[str, dict[str, int]] = field(default_factory=dict)
    num_long: int | None = None
    cpu_time_ns: int | None = None
    component: str = ""

    @property
    def kind(self) -> str:
        """Its class: its name without parameters."""
        return re.split(r"[(\[]", self.name, maxsplit=1)[0]

    @property
    def label(self) -> str:
        """Its name, after that of its component."""
        return f"{self.component}: {self.name}" if self.component else self.name

    @property
    def share_text(self) -> str:
        """The share of waiting in words; that of a prefetching stage is mostly that of others."""
        is_known = self.wait_time_ratio or not self.is_prefetch
        return f"{self.wait_time_ratio:.1%}" if is_known else "–"

    @property
    def mean_processing_time_ns(self) -> float:
        """The time spent in it for one of its outputs."""
        return self.total_processing_time_ns / max(1, self.num_produced_elements)

    @property
    def memory_bytes(self) -> int:
        """The number of bytes that a prefetching stage buffers, estimated from its inputs and
        outputs.
        """
        return max(0, self.bytes_consumed - self.bytes_produced)


_MAX_COMPONENTS = 8  # that are shown
MAX_DECISIONS = 5  # the last ones


def _drawn_text(components: dict[str, dict[str, int]]) -> str:
    most = sorted(components.items(), key=lambda item: -item[1]["elements"])
    num_elements = sum([counts["elements"] for counts in components.values()]) or 1
    whole_length = sum([counts["lengths"] for counts in components.values()]) or 1
    parts = []
    for name, counts in most[:_MAX_COMPONENTS]:
        num, length = counts["elements"], counts["lengths"]
        of_length = f", {length / whole_length:.0%} of the length" if length != num else ""
        parts.append(f"{name[:80]} {num:,} ({num / num_elements:.0%}{of_length})")
    left = len(most) - _MAX_COMPONENTS
    return ", ".join(parts) + (f" and {left} more" if left > 0 else "")


@dataclass(frozen=True)
class ExecutionSummary(Mapping[int, StageSummary]):
    """The stages of a pipeline by their ids; ``str`` is a table, the stage with the largest share
    of waiting first.

    Args:
        nodes: the stages.
        elapsed_ns: time since the first ``next``, of which
        waited_ns: the consumer has waited so long.
        budgets: what is in use of the threads and the memory for what is computed ahead, in each
            process that does so.
        faults: how many elements each stage of ``tolerate`` has skipped or replaced since it is
            observed, by its name; only those that have.
        imports: the modules that workers import with their task for more than half a second, and
            the seconds of the slowest worker.
        decisions: the changes of the number of workers, where that is ``"auto"``, with their
            reasons.
    """

    nodes: dict[int, StageSummary]
    elapsed_ns: int = 0
    waited_ns: int = 0
    budgets: tuple[BudgetUse, ...] = ()
    faults: dict[str, int] = field(default_factory=dict)
    decisions: tuple[str, ...] = ()
    imports: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, key: int) -> StageSummary:
        return self.nodes[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        waited = f"{time_text(self.waited_ns)} of {time_text(self.elapsed_ns)}"
        return f"ExecutionSummary({len(self.nodes)} stages, the consumer waited {waited})"

    def _repr_html_(self) -> str:
        from gristmill.diagnostics.notebook import summary_html

        return summary_html(self)

    @property
    def bottleneck(self) -> StageSummary | None:
        """The stage with the largest share of waiting; ``None`` before there is any."""
        most = max(self.nodes.values(), key=lambda node: node.wait_time_ratio, default=None)
        return most if most is not None and most.wait_time_ratio else None

    @property
    def ranked(self) -> list[StageSummary]:
        """The stages, those with the largest shares of waiting, and then those that took longest,
        first.
        """
        return sorted(
            self.values(), key=lambda x: (-x.wait_time_ratio, -x.total_processing_time_ns)
        )

    def upstream(self, ids: Iterable[int], *, past_prefetch: bool = True) -> list[StageSummary]:
        """Returns the stages whose elements some stages are made of.

        Args:
            ids: of these.
            past_prefetch: False: up to the next prefetching ones.
        """
        found: dict[int, StageSummary] = {}
        todo = [i for id_ in ids for i in self[id_].inputs]
        while todo:
            i = todo.pop()
            if i not in found and i in self:
                found[i] = self[i]
                todo += self[i].inputs if past_prefetch or not self[i].is_prefetch else ()
        return [*found.values()]

    @property
    def read_ahead(self) -> str:
        """The threads and the memory in use for prefetching, and the stages that waited for them;
        may be empty.
        """
        return ahead_text(self)

    @property
    def skipped(self) -> str:
        """The number of faults that were skipped, by stage; empty if there were none."""
        parts = ", ".join([f"{num:,} by {step}" for step, num in self.faults.items()])
        return f"faults tolerated: {parts}" if parts else ""

    @property
    def drawn(self) -> str:
        """The draw counts of the components of mixtures of streams, the largest first; empty
        without a mixture.
        """
        mixtures = [x for x in self.nodes.values() if x.components]
        return "; ".join([f"drawn by {x.id}: {_drawn_text(x.components)}" for x in mixtures])

    @property
    def too_long(self) -> str:
        """The number of elements longer than the last boundary, by stage; empty if there were
        none.
        """
        parts = [f"{x.num_long:,} in {x.name}" for x in self.nodes.values() if x.num_long]
        return f"longer than the last boundary: {', '.join(parts)}" if parts else ""

    @property
    def remarks(self) -> list[str]:
        """The remarks below the table."""
        lines = (self.read_ahead, self.drawn, self.skipped, self.too_long)
        return [*filter(None, lines), *[f"auto: {x}" for x in self.decisions[-MAX_DECISIONS:]]]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        nodes = {str(i): asdict(node) | {"inputs": [*node.inputs]} for i, node in self.items()}
        found = asdict(self) | {"nodes": nodes}
        return {name: [*x] if isinstance(x, tuple) else x for name, x in found.items()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @property
    def table(self) -> DataTable:
        """The stages, that with the largest share of waiting first."""
        bottleneck = self.bottleneck
        mark = Column("id", lambda x: f"{'>' if x is bottleneck else ' '} {x.id}")
        nodes = sorted(self.nodes.values(), key=lambda node: -node.wait_time_ratio)
        return DataTable([mark, *_COLUMNS], nodes)

    def __str__(self) -> str:
        return "\n".join([self.table.ruled(), *self.remarks])


def _time(title: str, time_of: Callable[[StageSummary], float]) -> Column:
    """Returns the column of a time, which there is not before the first element."""
    return Column(
        title,
        lambda x: time_of(x) if x.num_produced_elements else None,
        time_text,
        missing="N/A",
    )


_COLUMNS = (
    Column("name", lambda x: x.label),
    Column("inputs", lambda x: ", ".join(map(str, x.inputs)) or None),
    Column(
        "percent wait time",
        lambda x: None if x.is_prefetch and not x.wait_time_ratio else x.wait_time_ratio,
        "{:.2%}".format,
        missing="N/A",
    ),
    _time("total processing time", lambda x: x.total_processing_time_ns),
    _time("min processing time", lambda x: x.min_processing_time_ns),
    _time("max processing time", lambda x: x.max_processing_time_ns),
    _time("avg processing time", lambda x: x.mean_processing_time_ns),
    Column("num produced elements", lambda x: x.num_produced_elements),
    Column("kept", lambda x: x.kept_ratio, "{:.1%}".format),
    Column("ready", lambda x: x.buffered),
    Column("bytes produced", lambda x: x.bytes_produced, size_text),
    Column(
        "memory usage",
        lambda x: x.memory_bytes if x.is_prefetch else None,
        size_text,
        missing="N/A",
    ),
    Column("output", lambda x: x.output_spec or None),
)


@dataclass(frozen=True)
class WorkerLoad:
    """The times of the workers of one stage on one node, added up, in nanoseconds.

    Args:
        stage: the id of the stage.
        num_workers: how many of those that have reported are there: on Ray, on the node at the
            moment.
        num_restarts: how many processes have taken the place of others.
        lifetime_ns: since they are observed, idle time excluded.
        encoding_ns: making messages of outputs.
        room_ns: waiting until there was room for more outputs, because the consumer had not taken
            those before.
        cpu_ns: of CPUs.
        decoding_ns: making outputs of messages, in the consumer.
        storing_ns: putting messages into Ray's object store.
        node: the address of the node, of Ray actors; of processes it is empty.
    """

    stage: int
    num_workers: int
    num_restarts: int
    lifetime_ns: int
    encoding_ns: int
    room_ns: int
    cpu_ns: int
    decoding_ns: int
    storing_ns: int = 0
    node: str = ""

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Of the workers' time, for computing (or waiting for threads that do), messages, the
        object store, waiting for room.
        """
        others = self.encoding_ns, self.storing_ns, self.room_ns
        encoding, storing, room = [x / max(self.lifetime_ns, 1) for x in others]
        return max(0.0, 1.0 - encoding - storing - room), encoding, storing, room


def on_all_nodes(loads: list[WorkerLoad]) -> list[WorkerLoad]:
    """Return the loads of stages, those of all nodes together."""
    names = [x.name for x in fields(WorkerLoad) if x.name not in ("stage", "node")]
    whole: dict[int, WorkerLoad] = {}
    for load in loads:
        other = whole.get(load.stage)
        if other is not None:
            sums = {name: getattr(load, name) + getattr(other, name) for name in names}
            load = replace(load, node="", **sums)
        whole[load.stage] = load
    return [*whole.values()]


@dataclass(frozen=True)
class Snapshot:
    """All that is known of an observed pipeline at one moment.

    Args:
        summary: its stages.
        num_elements: outputs that the consumer has got.
        delay_ns: how long it waited for them: those that 50, 95 and 99 % of the outputs did not
            exceed.
        threads: all threads of all processes.
        workers: of each stage that has some, by node.
        marks: times, and how many outputs the consumer had got until then.
    """

    summary: ExecutionSummary
    num_elements: int
    delay_ns: dict[int, float]
    threads: list[ThreadTimeline]
    workers: list[WorkerLoad]
    marks: list[tuple[int, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"Snapshot({self.num_elements} elements in {time_text(self.summary.elapsed_ns)},"
            f" {len(self.summary)} stages)"
        )

    @property
    def elements_per_second(self) -> float:
        elapsed = self.summary.elapsed_ns
        return 1e9 * self.num_elements / elapsed if elapsed else 0.0

    @property
    def starved_ratio(self) -> float:
        """The share of the time that the consumer spent in ``next``."""
        return self.summary.waited_ns / self.summary.elapsed_ns if self.summary.elapsed_ns else 0.0


def delays_text(delay_ns: Mapping[int, float]) -> str:
    """Returns percentiles of delays as text.

    Example:
        >>> delays_text({50: 1200, 99: 3_000_000})
        'p50 1.20 µs, p99 3.00 ms'
    """
    return ", ".join([f"p{percent} {time_text(ns)}" for percent, ns in delay_ns.items()])


def take_snapshot(observer: Any) -> Snapshot:
    """Return the counts of an observer so far, its workers included."""
    records = records_of(observer)
    places: dict[int, str] = {}
    seen = [(thread, 0) for thread in threads_of(observer, "main")]
    loads: list[WorkerLoad] = []
    budgets, imports = budgets_of(observer, "main"), dict[str, float]()
    for number, group in [*observer.groups.items()]:
        reports = group.reports()
        for module, seconds in [item for report in reports for item in report.imports.items()]:
            imports[module] = max(seconds, imports.get(module, 0.0))
        offset = len(records)
        root = _add_workers(records, reports, places)
        if root is not None:
            # What the consumer itself has computed of the same stages is not shown.
            records[number].inputs[:] = [root]
            seen += [(thread, offset) for report in reports for thread in report.threads]
            nodes = sorted({report.node for report in reports})
            loads += [_load_of(number, node, reports, group) for node in nodes]
            budgets += [budget for x in reports if x.is_there for budget in x.budgets]
    output = observer.output
    delays = {percent: output.delays.percentile(percent / 100) for percent in (50, 95, 99)}
    if observer.root is None:
        return Snapshot(ExecutionSummary({}), 0, delays, [], [])
    order = _ids(records, observer.root.number)
    summary = ExecutionSummary(
        _stages(observer, records, order, places, loads),
        output.last - output.first if output.first is not None else 0,
        output.waited,
        tuple(budgets),
        {**observer.faults},
        _decisions(observer, budgets),
        imports,
    )
    threads = [_with_ids(thread, offset, order) for thread, offset in seen]
    loads = [replace(load, stage=order[load.stage]) for load in loads if load.stage in order]
    marks = [(output.first or 0, 0), *output.marks]
    return Snapshot(summary, output.elements, delays, threads, loads, marks)


def _with_ids(thread: ThreadTimeline, offset: int, order: dict[int, int]) -> ThreadTimeline:
    """Return a thread with the ids of stages in place of their places."""
    own = {order[i + offset]: ns for i, ns in thread.own_ns.items() if i + offset in order}
    events = [(a, b, order[i + offset], n) for a, b, i, n in thread.events if i + offset in order]
    return replace(thread, own_ns=own, events=events)


def _decisions(observer: Any, budgets: list[BudgetUse]) -> tuple[str, ...]:
    """Return the changes that ``"auto"`` has made, of workers and of threads."""
    of_workers = [text for group in [*observer.groups.values()] for text in group.decisions]
    of_threads = [
        text if budget.process == "main" else f"{budget.process}: {text}"
        for budget in budgets
        for text in budget.decisions
    ]
    return (*of_workers, *of_threads)


def _load_of(stage: int, node: str, reports: list[WorkerReport], group: WorkerGroup) -> WorkerLoad:
    reports = [report for report in reports if report.node == node]
    spent: Counter[str] = Counter()
    for report in reports:
        spent.update(report.spent)
    return WorkerLoad(
        stage,
        sum([report.is_there for report in reports]),
        group.num_restarts[node],
        lifetime_ns=sum([report.now - report.began for report in reports]),
        encoding_ns=spent["encoding"],
        room_ns=spent["waiting"],
        cpu_ns=spent["cpu"],
        decoding_ns=group.decoding(node),
        storing_ns=spent["storing"],
        node=node,
    )


def _stages(
    observer: Any,
    records: list[StageRecord],
    order: dict[int, int],
    places: dict[int, str],
    loads: list[WorkerLoad],
) -> dict[int, StageSummary]:
    transport: Counter[int] = Counter()
    for load in loads:
        transport[load.stage] += load.encoding_ns + load.storing_ns + load.decoding_ns
    ratios = _ratios(records, observer.root.number, transport)
    probes = {probe.number: probe for probe in observer.probes}
    components: dict[int, dict[str, dict[str, int]]] = {}
    num_long: Counter[int] = Counter()
    for number, it in observer.streams():
        drawn, num = it._gm_engine.drawn(it.pos), it._gm_engine.num_long(it.pos)
        if drawn is not None:
            components[number] = sum_of_counts(components.get(number, {}), drawn)
        if num is not None:
            num_long[number] += num
    names = _names_of_components(records, order)
    nodes = {}
    for number, id_ in order.items():
        record, probe = records[number], probes.get(number)
        cell, inputs = record.cell, [i for i in record.inputs if i in order]
        num_inputs = sum([records[i].cell.elements for i in inputs])
        is_prefetch = record.category == "prefetch"
        nodes[id_] = StageSummary(
            id=id_,
            name=record.name,
            inputs=tuple([order[i] for i in inputs]),
            wait_time_ratio=ratios[number],
            total_processing_time_ns=cell.own,
            min_processing_time_ns=cell.least if cell.most or cell.elements else 0,
            max_processing_time_ns=cell.most,
            num_produced_elements=cell.elements,
            output_spec=record.spec,
            is_output=number == observer.root.number,
            is_prefetch=is_prefetch,
            bytes_consumed=sum([_num_bytes(records[i].cell) for i in inputs]),
            bytes_produced=_num_bytes(cell),
            category=record.category,
            place=places.get(number) or _place(records, order, number),
            kept_ratio=min(1.0, cell.elements / num_inputs)
            if record.drops and num_inputs
            else None,
            buffered=probe.depth() if probe is not None and is_prefetch else None,
            num_errors=cell.errors,
            num_threads=None if probe is None else probe.num_threads,
            thread_wait_ns=record.thread_wait,
            memory_wait_ns=record.memory_wait,
            components=components.get(number, {}),
            num_long=num_long.get(number),
            cpu_time_ns=cell.cpu if observer.times_threads else None,
            component=names.get(number, ""),
        )
    return nodes


def _names_of_components(records: list[StageRecord], order: Iterable[int]) -> dict[int, str]:
    """Return the component that each stage belongs to, by its place in ``records``.

    Args:
        records: all stages.
        order: their places, each stage before its inputs.
    """
    found: dict[int, str] = {}
    for number in order:
        inputs, outer = records[number].inputs, found.get(number, "")
        names = records[number].input_names or []
        for i, stage in enumerate(inputs):
            name = names[i] if len(names) == len(inputs) else ""
            found.setdefault(stage, "/".join([text for text in (outer, name) if text]))
    return found


def _num_bytes(cell: StageCounts) -> int:
    return cell.sampled_bytes * cell.elements // cell.sampled if cell.sampled else 0


def _add_workers(
    records: list[StageRecord], reports: list[WorkerReport], places: dict[int, str]
) -> int | None:
    """Appends the stages that run in workers, added up; returns the place of the last one."""
    reports = [report for report in reports if report.root is not None]
    if not reports:
        return None
    first, *others = reports
    for other in others:
        if other.root == first.root:
            merge(first.records, other.records)
    offset = len(records)
    for record in first.records:
        places[len(records)] = "workers"
        record.inputs = [offset + i for i in record.inputs]
        records.append(record)
    assert first.root is not None
    return offset + first.root


def _ids(records: list[StageRecord], root: int) -> dict[int, int]:
    """Return the ids of what the output is made of: depth first, the output is 0."""
    ids: dict[int, int] = {}
    todo = [root]
    while todo:
        number = todo.pop()
        if number not in ids:
            ids[number] = len(ids)
            todo.extend(reversed(records[number].inputs))
    return ids


def _place(records: list[StageRecord], order: Mapping[int, int], number: int) -> str:
    """Return the thread of a stage, in words: a stage upstream of one that waits does not run in
    the consumer's thread.
    """
    behind: set[int] = set()
    for other in order:
        if records[other].waits:
            behind.update(_ids(records, other).keys() - {other})
    return "threads" if number in behind else "consumer"


def _ratios(
    records: list[StageRecord], root: int, transport: Mapping[int, int]
) -> dict[int, float]:
    """Return each stage's share of waiting: a prefetching stage hands its own on to what it waits
    for, in proportion to their times.

    What workers and their consumer need to hand elements over stays with the stage that does so.
    """
    ratios = dict.fromkeys(_ids(records, root), 0.0)

    def share_out(tops: list[int], whole: float, own: int | None) -> None:
        members, todo = dict.fromkeys(tops), list(tops)
        while todo:
            number = todo.pop()
            if records[number].category == "prefetch":
                continue
            for i in records[number].inputs:
                if i not in members:
                    members[i] = None
                    todo.append(i)
        times = {i: records[i].cell.own for i in members}
        total = sum(times.values()) + (transport.get(own, 0) if own is not None else 0)
        if not total:
            return
        for i, spent in times.items():
            ratios[i] += whole * spent / total
        if own is not None:
            ratios[own] = whole * transport.get(own, 0) / total
        for i in members:
            if records[i].category == "prefetch" and records[i].inputs and ratios[i]:
                part, before = ratios[i], ratios[i]
                ratios[i] = 0.0
                share_out(records[i].inputs, part, i)
                if not any([ratios[j] for j in _ids(records, i)]):
                    ratios[i] = before  # nothing is known of what it waits for

    share_out([root], 1.0, None)
    return {number: round(ratio, 4) for number, ratio in ratios.items()}
