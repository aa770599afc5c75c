"""Suggested changes to a pipeline, with the expected gain.

Every change is what it makes of the stations of the pipeline (see ``capacity``). Those that gain
next to nothing are not advised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gristmill.core.options import MultiprocessingOptions, ReadOptions, chosen_executor
from gristmill.core.ray_options import RayOptions, WorkerOptions
from gristmill.diagnostics.diagnosis.budget_advice import BudgetAdvisor
from gristmill.diagnostics.diagnosis.capacity import (
    CONSUMER,
    MIN_GAIN,
    SHARED,
    Capacity,
    Change,
    Station,
)
from gristmill.diagnostics.runtime.summary import Snapshot, StageSummary, on_all_nodes
from gristmill.diagnostics.units import rate_text, size_text, time_text
from gristmill.workers.process import missing_calls

_IN_TIME = 0.1  # of the time may be waited without anything to gain from it
_BUSY = 0.85  # of what CPUs could do: there is nothing left
_WAITS = 0.5  # requested CPUs, below which a thread waits more than it computes
_SAME = 1.02  # times within this factor are treated as equal: the simpler change comes first
_NEW = -2  # a station that there is not yet
_MORE_THREADS = 4  # times as many
_NUM_THREADS = 16  # to begin with
_MAX_THREADS = 256
_MEMORY_SHARE = 0.5  # of the free memory that buffers should not exceed


@dataclass(frozen=True)
class Settings:
    """The settings of a pipeline that can be changed: concurrency and prefetching."""

    read_options: ReadOptions | None
    multiprocessing_options: WorkerOptions | None

    def num_threads(self, prefetch: StageSummary) -> int:
        """Returns the number of threads that may do the work of a stage that reads ahead."""
        if prefetch.num_threads is not None:
            return max(1, prefetch.num_threads)
        return max(1, self.read_options.most_threads) if self.read_options is not None else 1


@dataclass(frozen=True)
class Machine:
    """The resources that this process, or Ray actors, may use, and those that were used."""

    cpus: int
    memory: float  # bytes that are free
    wanted_cpus: float  # on average, workers included
    where: str = "that this process may use"

    @property
    def is_busy(self) -> bool:
        return self.wanted_cpus >= _BUSY * self.cpus

    @property
    def waits(self) -> bool:
        return self.wanted_cpus < _WAITS


class Advisor:
    """Finds changes that speed up a pipeline."""

    def __init__(
        self,
        snapshot: Snapshot,
        capacity: Capacity,
        settings: Settings,
        machine: Machine,
        cluster: Machine | None,
    ) -> None:
        self._snapshot = snapshot
        self._summary = snapshot.summary
        self._capacity = capacity
        self._reads = settings.read_options
        self._workers = settings.multiprocessing_options
        self._num_workers = self._workers.num_workers if self._workers is not None else 0
        self._finds_workers = self._num_workers == "auto"
        if self._finds_workers:
            loads = on_all_nodes(snapshot.workers)
            self._num_workers = max(1, sum([load.num_workers for load in loads]))
        self._machine = machine
        self._cluster = cluster or machine  # where the workers are
        self._budget = BudgetAdvisor(self._summary, capacity, machine)

    def for_consumer(self) -> list[str]:
        """Returns texts for the case that the consumer takes longest."""
        if self._snapshot.starved_ratio <= _IN_TIME:
            texts = ["The data is there in time: nothing in the pipeline needs to be faster."]
        else:
            changes = [*self._budget.changes(), *self._for_reads(), *self._more_at_once()]
            texts = self._texts(changes) or [
                "Most of the time goes into the consumer. The waiting ends where enough elements"
                " are made while it works: by threads (ReadOptions, multithread_prefetch) or"
                " workers (mp_prefetch)."
            ]
        for load in on_all_nodes(self._snapshot.workers):
            if self._workers is not None and load.num_workers > 1 and load.lifetime_ns:
                busy = 1 - load.room_ns / load.lifetime_ns
                needed = max(1, math.ceil(busy * load.num_workers))
                if needed < load.num_workers:
                    texts.append(
                        f"Its workers wait {1 - busy:.0%} of the time until there is room:"
                        f" num_workers={needed} would do instead of {load.num_workers}."
                    )
        return texts

    def for_stage(self, stage: StageSummary) -> list[str]:
        """Returns texts for the case that a stage takes longest."""
        without, cpus = self._capacity.without(stage.id), self._machine_of(stage).cpus
        if stage.is_prefetch:
            changes = _for_transport(stage, self._workers, without)
        else:
            changes = self._for_work(stage)
        text = f"Make {stage.name} cheaper: nothing more can run at once within {cpus} CPUs."
        cheaper = Change(text, without, is_most=True)
        return self._texts([*changes]) or self._texts([cheaper]) or self._without_gain()

    def _without_gain(self) -> list[str]:
        return [
            f"No single change gains {MIN_GAIN:.0%}: several parts take about as long as one"
            " another, at the same time. Make more than one of them faster."
        ]

    def _texts(self, changes: list[Change]) -> list[str]:
        """Returns the changes that gain something, the most effective first, with their gain."""
        most = self._capacity.now / (1 + MIN_GAIN)
        reported = [x.text for x in changes if x.left is None]
        useful = [x for x in changes if x.left is not None and x.left < most]
        useful.sort(key=lambda change: _step(change.left or 0.0))
        return [*reported, *[f"{change.text}{_gain(change)}" for change in useful]]

    def _machine_of(self, stage: StageSummary) -> Machine:
        return self._cluster if stage.place == "workers" else self._machine

    def _for_work(self, stage: StageSummary) -> Iterator[Change]:
        without = self._capacity.without(stage.id)
        machine = self._machine_of(stage)
        cpus = machine.cpus
        if machine.is_busy:
            yield Change(
                f"All {cpus} CPUs {machine.where} are busy: only cheaper work helps, or more CPUs. "
                f"{stage.name} takes {time_text(stage.mean_processing_time_ns)} for an element.",
                None,
            )
            return
        yield from self._budget.changes()
        if stage.place == "workers":
            yield from self._more_in_workers(stage)
        else:
            yield from self._for_reads()
            yield from self._more_at_once()
            if not self._num_workers and missing_calls():
                yield Change(
                    f"Make {stage.name} cheaper: there are no worker processes on this platform.",
                    without,
                    is_most=True,
                )
            elif not self._num_workers and cpus == 1 and not self._machine.waits:
                yield Change(
                    f"This process may use one CPU only: make {stage.name} cheaper.",
                    without,
                    is_most=True,
                )

    def _for_reads(self) -> Iterator[Change]:
        """Yields changes to more threads where they wait, or to some where there are none."""
        reads, machine = self._reads, self._machine
        if reads is None or machine.is_busy:
            return
        for key, station in self._capacity.stations.items():
            if key in (None, SHARED) or self._budget.lacks(station):
                continue
            if self._is_of_threads(key) and self._capacity_is_read(key) and machine.waits:
                threads, text = _more_threads(reads, self._largest(key), machine)
                if threads > reads.most_threads:
                    changed = {
                        key: station.times(station.width / threads),
                        **self._budget.with_threads(threads),
                    }
                    text += f"{self._budget.allowing(threads)} It waits more than it computes."
                    yield Change(text, self._capacity.with_stations(changed))
                else:
                    yield Change(text, None)
        yield from self._ahead(reads)

    def _is_of_threads(self, key: int) -> bool:
        parts = self._capacity.stations[key].parts
        return bool(parts) and all([self._summary[part].place == "threads" for part in parts])

    def _capacity_is_read(self, key: int) -> bool:
        """True if the number of threads is that of ``ReadOptions``."""
        own = 0 if self._reads is None else self._reads.most_threads
        return self._summary[key].num_threads in (None, own)

    def _largest(self, key: int) -> StageSummary:
        """Returns the stage of a station whose elements are the largest."""
        return max([self._summary[part] for part in self._capacity.stations[key].parts], key=_size)

    def _ahead(self, reads: ReadOptions) -> Iterator[Change]:
        """Yields changes to threads for reads of the consumer's thread, and its work before the
        first step of an iterator.
        """
        own, machine = self._capacity.stations[None], self._machine
        if reads.most_threads:
            return
        values = self._summary.values()
        waiting = [x.id for x in values if x.is_prefetch and x.place == "consumer"]
        behind = {x.id for x in self._summary.upstream(waiting)}
        moved = {part: value for part, value in own.parts.items() if part in behind}
        if moved:
            left = Station({part: value for part, value in own.parts.items() if part not in moved})
            work = math.fsum(moved.values())
            # What computes shares an interpreter with the consumer.
            computed = max(work, machine.wanted_cpus * self._capacity.now)
            ahead = work / _NUM_THREADS if machine.waits else computed
            yield Change(
                f"Let threads read ahead: to_iter_dataset(ReadOptions(num_threads={_NUM_THREADS},"
                " prefetch_buffer_size=500)), and do before it what need not come after it.",
                self._capacity.with_stations({None: left, _NEW: Station({_NEW: ahead})}),
            )

    def _more_at_once(self) -> Iterator[Change]:
        """Yields changes to workers where there are none."""
        machine = self._machine
        if self._num_workers or machine.cpus < 2 or machine.is_busy or missing_calls():
            return
        num, text = self._worker_text(machine.cpus)
        stations = self._capacity.stations
        own = stations[None].without([CONSUMER]).period
        others = {key: station for key, station in stations.items() if key is not None}
        if machine.waits:
            factor = 1.0 if self._budget.is_divided else 1 / min(num, self._more_waiting())
            computed = own
        else:
            work = math.fsum([x.period * x.width for key, x in others.items() if key != SHARED])
            factor, computed = 0.0, min(own + work, machine.wanted_cpus * self._capacity.now)
        changed: dict[int | None, Station] = {key: x.times(factor) for key, x in others.items()}
        changed[None] = Station({CONSUMER: self._capacity.step})
        changed[_NEW] = Station({_NEW: computed / num})
        yield Change(text, self._capacity.with_stations(changed))

    def _more_waiting(self) -> float:
        """Returns the factor by which more threads could wait at once; processes, which need as
        much memory, do no better.
        """
        if self._reads is None or not self._reads.most_threads:
            return _MORE_THREADS
        largest = max(self._summary.values(), key=_size)
        return _more_threads(self._reads, largest, self._machine)[0] / self._reads.most_threads

    def _more_in_workers(self, stage: StageSummary) -> Iterator[Change]:
        lifetime = sum([load.lifetime_ns for load in self._snapshot.workers]) or 1
        busy = sum([load.cpu_ns for load in self._snapshot.workers]) / lifetime
        key = next((load.stage for load in self._snapshot.workers), None)
        station = self._capacity.stations.get(key, Station({}))
        if busy < _WAITS and self._reads is not None:
            threads, text = _more_threads(self._reads, stage, self._cluster)
            reading = station.parts.get(stage.id, 0.0) * self._reads.most_threads / threads
            left = self._capacity.with_stations(
                {key: Station({**station.parts, stage.id: reading})}
            )
            text += (
                f"{self._budget.allowing(threads, self._num_workers)} In the workers it waits more"
                " than it computes."
            )
            yield Change(text, left)
        cpus = self._cluster.cpus
        twice = max(self._num_workers + 1, min(2 * self._num_workers, cpus))
        more = twice if busy < _WAITS else cpus
        is_limited = self._finds_workers or (busy < _WAITS and self._budget.is_divided)
        if more > self._num_workers and not is_limited:
            num, text = self._worker_text(more)
            changed = {key: station.times(station.width / num)}
            yield Change(text, None if key is None else self._capacity.with_stations(changed))

    def _worker_text(self, num: int) -> tuple[int, str]:
        """Returns the number of workers that fit, and a text on the resources that they take."""
        kind = MultiprocessingOptions if self._workers is None else type(self._workers)
        # Ray has a limit of its own
        output, memory = self._summary[0], math.inf if kind is RayOptions else self._machine.memory
        size = _size(output)
        ahead = 1 + getattr(self._workers, "per_worker_buffer_size", 1)
        if size and num * ahead * size > _MEMORY_SHARE * memory:
            num = max(1, int(_MEMORY_SHARE * memory / (ahead * size)))
        workers, executor = _kind_of_worker(self._workers), getattr(self._workers, "executor", None)
        options = f"{kind.__name__}(num_workers={num}{f', {executor=}' if executor else ''})"
        has_lanes = any([stage.name.startswith("GlobalBatch") for stage in self._summary.values()])
        call = f"global_batch(workers={options})" if has_lanes else f"mp_prefetch({options})"
        text = f"Let {num} {workers} do it: {call}."
        if size and kind is MultiprocessingOptions:
            text += (
                f" Their buffers take {size_text(num * ahead * size)} of"
                f" {'shared ' if 'processes' in workers else ''}memory"
            )
            text += f", of {size_text(memory)} that are free." if memory < math.inf else "."
        return num, text


def _for_transport(
    stage: StageSummary, workers: WorkerOptions | None, left: float
) -> Iterator[Change]:
    """Yields cheaper ways to hand outputs over. ``left`` is the time of a step without that."""
    size = _size(stage)
    if _kind_of_worker(workers) == "worker threads":
        text = "Call batch() before mp_prefetch(): each output costs the same to hand over."
        yield Change(text, left, is_most=True)
        return
    if size >= 1 << 14:
        text = (
            f"Send less: an output has {size_text(size)}. Smaller types (uint8 instead of float32,"
            " converted on the accelerator) and cropping before mp_prefetch() help; lists of arrays"
            " cost more than one array."
        )
    elif size:
        text = (
            f"Call batch() before mp_prefetch(): an output of {size_text(size)} costs more to hand"
            " over than to make."
        )
    else:
        text = (
            "Let the workers give arrays: Python objects (lists, strings, dictionaries of many"
            " values) are pickled one by one, arrays go through shared memory."
        )
    yield Change(text, left, is_most=True)
    text = (
        "Without worker processes nothing is handed over: threads may be enough for transforms that"
        " release the GIL."
    )
    yield Change(text, left, is_most=True)


def _kind_of_worker(options: WorkerOptions | None) -> str:
    """Returns the workers that would start now, in words."""
    if isinstance(options, RayOptions):
        return "Ray actors"
    options = options if isinstance(options, MultiprocessingOptions) else MultiprocessingOptions()
    return f"worker {chosen_executor(options)}"


def _more_threads(reads: ReadOptions, stage: StageSummary, machine: Machine) -> tuple[int, str]:
    threads = min(_MAX_THREADS, max(_NUM_THREADS, _MORE_THREADS * reads.most_threads))
    buffer = max(reads.prefetch_buffer_size, 2 * threads)
    size = _size(stage)
    if size and buffer * size > _MEMORY_SHARE * machine.memory:
        buffer = max(1, int(_MEMORY_SHARE * machine.memory / size))
        threads = min(threads, buffer)
    if threads <= reads.most_threads:
        text = (
            f"Reads ahead are limited by memory: a buffer of {buffer} elements of {size_text(size)}"
            " is what fits."
        )
        return reads.most_threads, text
    text = (
        f"Let more threads read: to_iter_dataset(ReadOptions(num_threads={threads},"
        f" prefetch_buffer_size={buffer}))."
    )
    return threads, text


def _size(stage: StageSummary) -> float:
    """Returns the size of an element of a stage in bytes."""
    return stage.bytes_produced / max(1, stage.num_produced_elements)


def _step(left: float) -> int:
    """Returns a number that is the same for times that are treated as equal."""
    return round(math.log(max(left, 1.0), _SAME))


def _gain(change: Change) -> str:
    if not change.left:
        return ""
    return f" ({'At most' if change.is_most else 'About'} {rate_text(1e9 / change.left)}.)"
