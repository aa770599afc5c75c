"""What binds a pipeline, in words, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gristmill.core.cgroup import usable_cpus
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.dataset.map_dataset import ancestors
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterator
from gristmill.dataset.stages.prefetch import PrefetchDatasetIterator, PrefetchIterDataset
from gristmill.diagnostics.load import free_memory
from gristmill.diagnostics.summary import ExecutionSummary, Snapshot, StageSummary, size_text, time_text
from gristmill.workers.process import missing_calls

_MIN_ELEMENTS = 2
_CONSUMER_SHARE = 0.5  # of the time: from here on the consumer is what takes longest
_IN_TIME = 0.1  # of the time may be waited without anything to gain from it
_BUSY = 0.85  # of what CPUs could do: there is nothing left
_MAX_THREADS = 256
_MEMORY_SHARE = 0.5  # of the free memory that buffers should not exceed


@dataclass(frozen=True)
class Diagnosis:
    """Why a pipeline is not faster; ``str`` says it in a few lines.

    Args:
        bound_by: ``"source"``, ``"transform"``, ``"transport"`` (from worker processes to the consumer), ``"consumer"``, or
            ``"unknown"`` as long as there is too little to tell.
        stage: the name of the stage that binds it, if one does.
        sentence: all of that in one sentence.
        elements_per_second: what the consumer gets.
        ceiling_per_second: about what it would get if the binding part took no time; ``None`` if that is not known.
        starved_ratio: the share of its time that the consumer waited.
        delay_ns: how long it waited for 50, 95 and 99 % of the outputs at most.
        recommendations: what to change, the most effective first, within what this process may use.
        snapshot: what it follows from.
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

    def __str__(self) -> str:
        delays = ", ".join([f"p{percent} {time_text(delay)}" for percent, delay in self.delay_ns.items()])
        lines = [
            self.sentence,
            f"{rate_text(self.elements_per_second)}; the consumer waited {self.starved_ratio:.0%} of the time (each: {delays})",
            *[f"- {text}" for text in self.recommendations],
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Settings:
    """What can be changed about a pipeline: how much runs at once, and how far ahead."""

    read_options: ReadOptions | None
    multiprocessing_options: MultiprocessingOptions | None


@dataclass(frozen=True)
class Machine:
    """What this process may use, and what it did use."""

    cpus: int
    memory: float  # bytes that are free
    wanted_cpus: float  # on average, workers included

    @property
    def is_busy(self) -> bool:
        return self.wanted_cpus >= _BUSY * self.cpus


def settings_of(it: Any) -> Settings:
    """The settings of the first place, from the output upwards, that has some."""
    reads: ReadOptions | None = None
    workers: MultiprocessingOptions | None = None
    todo = [it]
    while todo:
        node = todo.pop(0)
        if isinstance(node, MultiprocessPrefetchIterator):
            workers = workers or node._options
        if hasattr(node, "_count") and hasattr(node, "_ds"):  # shares of a pipeline in threads or workers
            found = [x._read_options for x in ancestors(node._ds) if isinstance(x, PrefetchIterDataset)]
            reads = reads or (found[0] if found else None)
        elif isinstance(node, PrefetchDatasetIterator):
            reads = reads or node._read_options
        todo += node._parents
        todo += node._inner_iterators()
    return Settings(reads, workers)


def diagnosis_of(snapshot: Snapshot, settings: Settings, cpu_ns: int) -> Diagnosis:
    """What a snapshot says about what binds the pipeline.

    Args:
        snapshot: the numbers.
        settings: those of the pipeline.
        cpu_ns: CPU time that this process wanted meanwhile, without its workers.
    """
    summary = snapshot.summary
    elapsed = summary.elapsed_ns
    wanted = (cpu_ns + sum([load.cpu_ns for load in snapshot.workers])) / elapsed if elapsed else 0.0
    machine = Machine(usable_cpus(), free_memory(), wanted)
    starved, rate = snapshot.starved_ratio, snapshot.elements_per_second
    shares = {node.id: starved * node.wait_time_ratio for node in summary.values()}
    most = max(summary.values(), key=lambda node: shares[node.id], default=None)
    if snapshot.num_elements < _MIN_ELEMENTS or most is None or not elapsed:
        bound_by, stage, ceiling = "unknown", None, None
        sentence = f"Too little to tell: the consumer got {snapshot.num_elements} elements while this was observed."
    elif 1 - starved >= max(_CONSUMER_SHARE, shares[most.id]):
        bound_by, stage = "consumer", None
        ceiling = _ceiling_without_consumer(snapshot, machine)
        sentence = (
            f"Bound by the consumer: it waits for data {starved:.0%} of the time. If it took no time, the pipeline would give "
            f"about {rate_text(ceiling)} instead of {rate_text(rate)}."
        )
    else:
        stage = most.name
        kinds = {"read": "source", "preprocessing": "transform", "prefetch": "transport"}
        bound_by = kinds[most.category]
        ceiling = _ceiling_without(snapshot, most)
        what = {
            "source": f"reads of the source, {stage}",
            "transform": f"the transform {stage}",
            "transport": f"transport, from the workers of {stage} to the consumer",
        }[bound_by]
        gain = f"about {rate_text(ceiling)}" if ceiling is not None else "many more elements"
        sentence = (
            f"Bound by {what}: {most.wait_time_ratio:.0%} of the time that the consumer waits is due to it. If it took no time, "
            f"the pipeline would give {gain} instead of {rate_text(rate)}."
        )
    recommendations = _recommendations(bound_by, most, snapshot, settings, machine) if most is not None else []
    return Diagnosis(bound_by, stage, sentence, rate, ceiling, starved, snapshot.delay_ns, recommendations, snapshot)


def rate_text(per_second: float | None) -> str:
    if per_second is None:
        return "an unknown number of elements/s"
    digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
    return f"{per_second:,.{digits}f} elements/s"


def _segments(summary: ExecutionSummary) -> dict[int | None, list[StageSummary]]:
    """What runs together, by the prefetching stage that waits for it; ``None`` is the consumer's thread."""
    segments: dict[int | None, list[StageSummary]] = {None: [x for x in summary.values() if x.place == "consumer"]}
    for node in summary.values():
        behind = [summary[i] for i in node.inputs]
        if node.is_prefetch and any([x.place != node.place or x.place != "consumer" for x in behind]):
            found: dict[int, StageSummary] = {}
            while behind:
                x = behind.pop()
                if x.id not in found:
                    found[x.id] = x
                    behind += [] if x.is_prefetch else [summary[i] for i in x.inputs]
            segments[node.id] = [*found.values()]
    return segments


def _work(stages: list[StageSummary]) -> float:
    """Nanoseconds of work, waiting for others excluded."""
    return float(sum([node.total_processing_time_ns for node in stages if not node.is_prefetch]))


def _ceiling_without(snapshot: Snapshot, stage: StageSummary) -> float | None:
    """Outputs a second if ``stage`` took no time and all else took what it takes now."""
    summary = snapshot.summary
    now = summary.elapsed_ns / snapshot.num_elements
    consumer = (summary.elapsed_ns - summary.waited_ns) / snapshot.num_elements
    own_thread = consumer + _work([x for x in _segments(summary)[None] if x is not stage]) / snapshot.num_elements
    if stage.place == "consumer" and not stage.is_prefetch:
        left = now - stage.total_processing_time_ns / snapshot.num_elements
    elif stage.is_prefetch:
        left = now * (1 - stage.wait_time_ratio * snapshot.starved_ratio)
    else:
        work = next((_work(x) for key, x in _segments(summary).items() if key is not None and stage in x), 0.0)
        left = now * (1 - stage.total_processing_time_ns / work) if work else now
    longest = max(left, own_thread)
    return 1e9 / longest if longest > 0 else None


def _ceiling_without_consumer(snapshot: Snapshot, machine: Machine) -> float | None:
    summary = snapshot.summary
    times = [_work(_segments(summary)[None])]
    for load in snapshot.workers:
        times.append((load.lifetime_ns - load.room_ns) / max(1, load.num_workers))
    threads = len([line for line in snapshot.threads if line.process == "main"]) - 1
    for key, stages in _segments(summary).items():
        if key is not None and stages and stages[0].place == "threads" and threads > 0:
            is_reading = max(stages, key=lambda x: x.total_processing_time_ns).category == "read"
            times.append(_work(stages) / (threads if is_reading else min(threads, machine.cpus)))
    longest = max(times) / snapshot.num_elements
    return 1e9 / longest if longest > 0 else None


def _recommendations(bound_by: str, stage: StageSummary, snapshot: Snapshot, settings: Settings, machine: Machine) -> list[str]:
    if bound_by == "unknown":
        return ["Observe it for longer."]
    if bound_by == "consumer":
        return _for_consumer(snapshot, settings)
    if bound_by == "transport":
        return _for_transport(stage, snapshot)
    return _for_stage(stage, snapshot, settings, machine)


def _for_consumer(snapshot: Snapshot, settings: Settings) -> list[str]:
    if snapshot.starved_ratio <= _IN_TIME:
        texts = ["The data is there in time: nothing in the pipeline needs to be faster."]
    else:
        texts = [
            "Most of the time goes into the consumer. The waiting ends where enough elements are made while it works: by threads "
            "(ReadOptions, multithread_prefetch) or workers (mp_prefetch)."
        ]
    options = settings.multiprocessing_options
    for load in snapshot.workers:
        if options is not None and load.num_workers > 1 and load.lifetime_ns:
            busy = 1 - load.room_ns / load.lifetime_ns
            needed = max(1, math.ceil(busy * load.num_workers))
            if needed < load.num_workers:
                texts.append(
                    f"Its workers wait {1 - busy:.0%} of the time until there is room: num_workers={needed} would do instead of "
                    f"{load.num_workers}."
                )
    return texts


def _for_transport(stage: StageSummary, snapshot: Snapshot) -> list[str]:
    texts = []
    size = stage.bytes_produced / max(1, stage.num_produced_elements)
    if size < 1 << 14:
        texts.append(
            f"Call batch() before mp_prefetch(): an output of {size_text(size)} costs more to hand over than to make."
            if size
            else "Let the workers give arrays: Python objects (lists, strings, dictionaries of many values) are pickled one "
            "by one, arrays go through shared memory."
        )
    else:
        texts.append(
            f"Send less: an output has {size_text(size)}. Smaller types (uint8 instead of float32, converted on the accelerator) "
            "and cropping before mp_prefetch() help; lists of arrays cost more than one array."
        )
    texts.append(
        "Without worker processes nothing has to be handed over: threads may be enough for transforms that release the GIL."
    )
    return texts


def _for_stage(stage: StageSummary, snapshot: Snapshot, settings: Settings, machine: Machine) -> list[str]:
    reads, workers = settings.read_options, settings.multiprocessing_options
    num_workers = workers.num_workers if workers is not None else 0
    cpus = machine.cpus
    texts = []
    if machine.is_busy:
        texts.append(
            f"All {cpus} CPUs that this process may use are busy: only cheaper work helps, or more CPUs. "
            f"{stage.name} takes {time_text(stage.mean_processing_time_ns)} for an element."
        )
    elif stage.place == "workers":
        lifetime = sum([load.lifetime_ns for load in snapshot.workers]) or 1
        busy = sum([load.cpu_ns for load in snapshot.workers]) / lifetime
        if busy < 0.5 and reads is not None:
            texts.append(_more_threads(reads, stage, machine) + " In the workers it waits more than it computes.")
        more = max(num_workers + 1, min(2 * num_workers, cpus)) if busy < 0.5 else cpus
        if more > num_workers:
            texts.append(_workers(more, stage, workers, snapshot, machine))
    else:
        waits = machine.wanted_cpus < 0.5
        if stage.place == "threads" and reads is not None and waits:
            texts.append(_more_threads(reads, stage, machine) + " It waits more than it computes.")
        elif stage.place == "consumer" and waits and reads is not None and not (reads.num_threads and reads.prefetch_buffer_size):
            texts.append(
                "Let threads read ahead: to_iter_dataset(ReadOptions(num_threads=16, prefetch_buffer_size=500)), "
                "and do before it what need not come after it."
            )
        if not num_workers and missing_calls():
            texts.append(f"Make {stage.name} cheaper: there are no worker processes on this platform.")
        elif cpus > 1 and not num_workers:
            texts.append(_workers(cpus, stage, workers, snapshot, machine))
        elif not num_workers and not waits:
            texts.append(f"This process may use one CPU only: make {stage.name} cheaper.")
    return texts or [f"Make {stage.name} cheaper: nothing more can run at once within {cpus} CPUs."]


def _more_threads(reads: ReadOptions, stage: StageSummary, machine: Machine) -> str:
    threads = min(_MAX_THREADS, max(16, 4 * reads.num_threads))
    buffer = max(reads.prefetch_buffer_size, 2 * threads)
    size = stage.bytes_produced / max(1, stage.num_produced_elements)
    if size and buffer * size > _MEMORY_SHARE * machine.memory:
        buffer = max(1, int(_MEMORY_SHARE * machine.memory / size))
        threads = min(threads, buffer)
    if threads <= reads.num_threads:
        return f"Reads ahead are limited by memory: a buffer of {buffer} elements of {size_text(size)} is what fits."
    return f"Let more threads read: to_iter_dataset(ReadOptions(num_threads={threads}, prefetch_buffer_size={buffer}))."


def _workers(num: int, stage: StageSummary, options: MultiprocessingOptions | None, snapshot: Snapshot, machine: Machine) -> str:
    output = snapshot.summary[0]
    size = output.bytes_produced / max(1, output.num_produced_elements)
    ahead = 1 + (options.per_worker_buffer_size if options is not None else 1)
    if size and num * ahead * size > _MEMORY_SHARE * machine.memory:
        num = max(1, int(_MEMORY_SHARE * machine.memory / (ahead * size)))
    text = f"Let {num} worker processes do it: mp_prefetch(MultiprocessingOptions(num_workers={num}))."
    if size:
        text += f" Their buffers take {size_text(num * ahead * size)} of shared memory"
        text += f", of {size_text(machine.memory)} that are free." if machine.memory < math.inf else "."
    return text


def run(it: Any, seconds: float, consumer: Callable[[Any], Any] | None, now: Callable[[], float]) -> int:
    """Takes elements for a time, beginning anew at the end; returns how many there were."""
    num, start, deadline = 0, it.get_state(), now() + seconds
    while now() < deadline:
        try:
            element = next(it)
        except StopIteration:
            if not num:
                break
            it.set_state(start)
            continue
        num += 1
        if consumer is not None:
            consumer(element)
    return num
