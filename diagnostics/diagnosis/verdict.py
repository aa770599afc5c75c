"""The bottleneck of a pipeline, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill.core.cgroup import usable_cpus
from gristmill.core.naming import one_line
from gristmill.core.options import ReadOptions
from gristmill.core.ray_options import WorkerOptions
from gristmill.dataset.bases.observing import running_upstream
from gristmill.diagnostics.diagnosis.advice import Advisor, Machine, Settings
from gristmill.diagnostics.diagnosis.alone import Alone
from gristmill.diagnostics.diagnosis.capacity import (
    CONSUMER,
    MIN_GAIN,
    Capacity,
    alike_stages,
    spread,
)
from gristmill.diagnostics.runtime.processes import free_memory
from gristmill.diagnostics.runtime.summary import (
    MAX_DECISIONS,
    Snapshot,
    StageSummary,
    WorkerLoad,
    delays_text,
)
from gristmill.diagnostics.units import rate_text, time_text
from gristmill.workers.ray_cluster import cluster_cpus

_MIN_ELEMENTS = 2
_MIN_NOISE = 0.05  # of the time that an output takes: smaller differences are ignored
COMPETING = 0.7  # wanted CPUs above which threads do not only wait for data
IN_TIME = 0.2  # the share of waiting below which the stages need not be distinguished
_MAX_RANGE = 2.25  # the largest ratio of two ceilings that is reported as one number
_KINDS = {"read": "source", "preprocessing": "transform", "prefetch": "transport"}
_MAX_REPR = 300  # characters
_MAX_IMPORTS = 5


@dataclass(frozen=True)
class PipelinePart:
    """A part of a pipeline that takes time, and the throughput without it.

    Args:
        kind: ``"source"``, ``"transform"``, ``"transport"`` or ``"consumer"``.
        stage: the name of the stage, of the consumer ``None``.
        ceiling_per_second: about how many elements a second there would be if it took no time;
            ``None`` if that is not known.
    """

    kind: str
    stage: str | None
    ceiling_per_second: float | None


@dataclass(frozen=True)
class Diagnosis:
    """Why a pipeline is not faster; ``str`` says it in a few lines.

    Args:
        bound_by: ``"source"``, ``"transform"``, ``"transport"`` (from workers to the consumer),
            ``"consumer"``, or ``"unknown"`` as long as too little is measured: what would gain
            most if it took no time.
        stage: the name of the stage that binds it, if one does.
        sentence: all of that in one sentence, or two if it is not certain.
        elements_per_second: what the consumer gets.
        ceiling_per_second: about what it would get if the binding part took no time; ``None`` if
            not known.
        starved_ratio: the share of its time that the consumer waited.
        delay_ns: how long it waited for 50, 95 and 99 % of the outputs at most.
        recommendations: what to change, the most effective first, within what this process may use.
        snapshot: what it follows from.
        parts: what there would be without each part of the pipeline, that which gains most first.
        is_certain: whether the first of ``parts`` gains more than the second by more than the
            measurement varies.
    """

    bound_by: str
    stage: str | None
    sentence: str
    elements_per_second: float
    ceiling_per_second: float | None
    starved_ratio: float
    delay_ns: dict[int, float]
    recommendations: list[str]
    snapshot: Snapshot
    parts: list[PipelinePart] = field(default_factory=list)
    is_certain: bool = True

    def __str__(self) -> str:
        summary = self.snapshot.summary
        lines = [
            self.sentence,
            f"{rate_text(self.elements_per_second)}; the consumer waited {self.starved_ratio:.0%}"
            f" of the time (each: {delays_text(self.delay_ns)})",
            *[f"- {text}" for text in self.recommendations],
            *_import_texts(summary.imports),
            *[_load_text(load) for load in self.snapshot.workers if load.node],
            *[f"auto: {decision}" for decision in summary.decisions[-MAX_DECISIONS:]],
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Diagnosis({one_line(self.sentence, _MAX_REPR)})"

    def _repr_html_(self) -> str:
        from gristmill.diagnostics.notebook import diagnosis_html

        return diagnosis_html(self)


def _import_texts(imports: Mapping[str, float]) -> list[str]:
    """Return one line about the imports of workers that take long."""
    if not imports:
        return []
    slowest = sorted(imports.items(), key=lambda pair: -pair[1])[:_MAX_IMPORTS]
    named = ", ".join([f"{name} ({seconds:.1f} s)" for name, seconds in slowest])
    return [
        f"- Each worker process imports {named} before its first output, because functions of the"
        " pipeline use it or are in a module that does. Import what they do not need inside of the"
        " functions that need it, or move them to a module of their own."
    ]


def _load_text(load: WorkerLoad) -> str:
    computing, transfer, storing, waiting = [f"{share:.1%}" for share in load.shares]
    restarts = f" ({load.num_restarts} restarted)" if load.num_restarts else ""
    return (
        f"Node {load.node}, {load.num_workers} Ray actor{'s' * (load.num_workers != 1)}{restarts}:"
        f" computing {computing} of the time, transfer {transfer} and {time_text(load.decoding_ns)}"
        f" in the consumer, object store {storing}, waiting for room {waiting}"
    )


def settings_of(it: Any) -> Settings:
    """Returns the settings of the first place, from the output upwards, that has some."""
    reads, workers = None, None
    todo = [it]
    while todo:
        node = todo.pop(0)
        for options in node._gm_work_options:
            if isinstance(options, WorkerOptions):
                workers = workers or options
            elif isinstance(options, ReadOptions):
                reads = reads or options
        todo += running_upstream(node)
    return Settings(reads, workers)


def diagnosis_of(
    snapshot: Snapshot, settings: Settings, cpu_ns: int, alone: Alone | None = None
) -> Diagnosis:
    """Returns the diagnosis that follows from a snapshot.

    Args:
        snapshot: the numbers.
        settings: those of the pipeline.
        cpu_ns: CPU time that this process wanted meanwhile, without its workers.
        alone: the times of stages in one thread, if they were measured.
    """
    elapsed = snapshot.summary.elapsed_ns
    if snapshot.num_elements < _MIN_ELEMENTS or not snapshot.summary or not elapsed:
        return _too_little(snapshot)
    wanted = (cpu_ns + sum([load.cpu_ns for load in snapshot.workers if not load.node])) / elapsed
    machine = Machine(usable_cpus(), free_memory(), wanted)
    wanted_there = sum([load.cpu_ns for load in snapshot.workers if load.node]) / elapsed
    cpus_there = cluster_cpus() if wanted_there else 0
    cluster = None
    if cpus_there:
        cluster = Machine(cpus_there, math.inf, wanted_there, "of the Ray cluster")
    capacity = Capacity(snapshot, settings.num_threads, machine.cpus, machine.waits, alone, cpu_ns)
    threads_wait = alone is None and _may_compete(snapshot, settings, machine)
    if alone is not None:
        snapshot = _with_ratios(snapshot, alone.snapshot)
    found = _Finding(snapshot, capacity, threads_wait)
    advised = snapshot if alone is None else alone.snapshot
    advisor = Advisor(advised, capacity, settings, machine, cluster)
    texts = advisor.for_consumer() if found.stage is None else advisor.for_stage(found.stage)
    best = found.parts[0]
    return Diagnosis(
        best.kind,
        best.stage,
        found.sentence(),
        snapshot.elements_per_second,
        best.ceiling_per_second if found.is_known else None,
        snapshot.starved_ratio,
        snapshot.delay_ns,
        texts,
        snapshot,
        found.parts,
        found.is_certain,
    )


def _may_compete(snapshot: Snapshot, settings: Settings, machine: Machine) -> bool:
    """Returns true if threads or workers may have waited for one another in the stages.

    A single thread waits for data only. Workers report finished elements: if there are too few, it
    is not known how the workers spent their time.
    """
    if snapshot.starved_ratio < IN_TIME:
        return False
    for load in snapshot.workers:
        behind = [snapshot.summary[i] for i in snapshot.summary[load.stage].inputs]
        if sum([x.num_produced_elements for x in behind]) < snapshot.num_elements / 2:
            return True
    if machine.wanted_cpus < COMPETING:
        return False
    ahead = [x for x in snapshot.summary.values() if x.place == "threads"]
    waits = [x for x in snapshot.summary.values() if x.is_prefetch]
    has_threads = bool(ahead) and max(map(settings.num_threads, waits)) > 1
    return bool(snapshot.workers) or has_threads


def _with_ratios(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """Returns a snapshot with the shares of waiting and the CPU times of ``other``."""
    nodes = {}
    for x in snapshot.summary.values():
        same = other.summary[x.id]
        nodes[x.id] = replace(x, wait_time_ratio=same.wait_time_ratio, cpu_time_ns=same.cpu_time_ns)
    return replace(snapshot, summary=replace(snapshot.summary, nodes=nodes))


def _too_little(snapshot: Snapshot) -> Diagnosis:
    sentence = (
        f"Too little to tell: the consumer got {snapshot.num_elements} elements while this was"
        " observed."
    )
    return Diagnosis(
        "unknown",
        None,
        sentence,
        snapshot.elements_per_second,
        None,
        snapshot.starved_ratio,
        snapshot.delay_ns,
        ["Observe it for longer."] if snapshot.summary else [],
        snapshot,
    )


class _Finding:
    """The part whose removal would gain most."""

    def __init__(self, snapshot: Snapshot, capacity: Capacity, threads_wait: bool) -> None:
        self._snapshot = snapshot
        self._threads_wait = threads_wait
        self._now = capacity.now
        stages: dict[int, StageSummary | None] = {CONSUMER: None}
        for alike in alike_stages(snapshot.summary).values():
            x = snapshot.summary[alike[0]]
            ratio = math.fsum([snapshot.summary[i].wait_time_ratio for i in alike])
            if not x.is_prefetch or ratio:
                stages[x.id] = replace(x, wait_time_ratio=ratio)
        left = {part: capacity.without(part) for part in stages}
        work = {part: capacity.work(part) for part in stages}
        order = sorted(stages, key=lambda part: (left[part], -work[part]))
        if left[order[0]] * (1 + MIN_GAIN) > self._now and snapshot.starved_ratio < 0.5:
            # nothing gains: the data is there as soon as it is wanted
            order.sort(key=lambda part: part != CONSUMER)
        self.stage = stages[order[0]]
        self.parts = [_part_of(stages[part], left[part]) for part in order]
        error = spread(snapshot)
        self._noise = max(_MIN_NOISE, 2 * error if error is not None else 0.0)
        most, least = [capacity.without(order[0], share) for share in (0.0, 1.0)]
        self._range = 1e9 / max(most, 1.0), 1e9 / max(least, 1.0)
        self.is_known = not threads_wait and most <= _MAX_RANGE * least
        is_first = len(order) < 2 or left[order[1]] - left[order[0]] > self._noise * self._now
        self.is_certain = is_first and self.is_known

    def sentence(self) -> str:
        best, snapshot = self.parts[0], self._snapshot
        rate = rate_text(snapshot.elements_per_second)
        why = f"it waits for data {snapshot.starved_ratio:.0%} of the time"
        if self.stage is not None:
            ratio = self.stage.wait_time_ratio
            why = f"{ratio:.0%} of the time that the consumer waits is due to it"
        text = f"Bound by {_name(best)}: {why}."
        if self._threads_wait:
            return (
                f"{text} That is not certain, and it is unknown how much more than {rate} the"
                " pipeline would give if it took no time: threads or workers compete for CPUs or"
                " for the interpreter's lock (GIL), and the times of stages include waiting for"
                " one another. diagnose(dataset) also runs them in one thread."
            )
        if not self.is_known:
            low, high = self._range
            return (
                f"{text} If it took no time, the pipeline would give between {rate_text(low)}, if"
                f" what is left holds the interpreter's lock (GIL), and {rate_text(high)}, if it"
                f" releases it, instead of {rate}."
            )
        gain = "many more elements"
        if best.ceiling_per_second is not None:
            gain = f"about {rate_text(best.ceiling_per_second)}"
        text += f" If it took no time, the pipeline would give {gain} instead of {rate}."
        if self.is_certain:
            return text
        other = self.parts[1]
        return (
            f"{text} That is not certain: without {_name(other)}, it would give about"
            f" {rate_text(other.ceiling_per_second)}, and differences of {self._noise:.0%} are not"
            " distinguished."
        )


def _part_of(stage: StageSummary | None, left: float) -> PipelinePart:
    ceiling = 1e9 / left if left > 0 else None
    if stage is None:
        return PipelinePart("consumer", None, ceiling)
    return PipelinePart(_KINDS[stage.category], stage.name, ceiling)


def _name(part: PipelinePart) -> str:
    return {
        "consumer": "the consumer",
        "source": f"reads of the source, {part.stage}",
        "transform": f"the transform {part.stage}",
        "transport": f"transport, from the workers of {part.stage} to the consumer",
    }[part.kind]
