"""The throughput that a pipeline would have if one of its parts took no or less time.

Each of the units that run at the same time is a station: the consumer's own thread, the threads of
a stage that reads ahead, the workers of a stage. A pipeline gives an output as often as its slowest
station can. What an output takes beyond that (hand-overs, reads of unequal length) is the rest; it
is attributed to the station that the consumer has waited for.

Threads that compute ahead belong to all stages together: where these could use more than there are,
all threads are one more station.

All times are nanoseconds for one output of the pipeline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise

from gristmill.diagnostics.diagnosis.alone import Alone
from gristmill.diagnostics.runtime.summary import (
    ExecutionSummary,
    Snapshot,
    StageSummary,
    WorkerLoad,
    on_all_nodes,
)

_MAX_SLICES = 10
_MIN_SLICES = 3

MIN_GAIN = 0.05  # a change that gains less is not worth it
CONSUMER = -1  # as a part: the work of the consumer itself
_FULL = 1.5  # from this inflation on, threads wait for one another rather than for data
_ANY = -4  # the part of all that computes, if that is not known by stages
SHARED = -3  # as a station: all threads of the consumer's process that compute ahead


@dataclass(frozen=True)
class Station:
    """A part of a pipeline that runs concurrently with all others.

    Args:
        parts: how long an output takes there because of each part: a stage by its id (of workers:
            what it takes to hand elements over), or the consumer.
        width: how many do it at once.
    """

    parts: dict[int, float]
    width: float = 1.0

    @property
    def period(self) -> float:
        return math.fsum(self.parts.values())

    def without(self, parts: Collection[int]) -> Station:
        return replace(
            self, parts={key: value for key, value in self.parts.items() if key not in parts}
        )

    def times(self, factor: float) -> Station:
        return replace(self, parts={key: factor * value for key, value in self.parts.items()})


@dataclass(frozen=True)
class Computing:
    """CPU time that an output takes in one process.

    Args:
        parts: of each stage, by its id.
        least: the least number of threads that can compute at once: as many as did.
        most: the largest number. It is above ``least`` if functions may release the interpreter's
            lock (GIL), which cannot be measured, and threads did not yet wait for one another.
    """

    parts: dict[int, float]
    least: float
    most: float

    def without(self, parts: Collection[int], share: float) -> float:
        at_once = self.least * (self.most / self.least) ** share
        return math.fsum([value for key, value in self.parts.items() if key not in parts]) / at_once


@dataclass(frozen=True)
class Change:
    """Something to do, and how long an output would take then, in nanoseconds; ``None``: it is only
    reported.
    """

    text: str
    left: float | None
    is_most: bool = False  # it would take no less than that


class Capacity:
    """The stations of a pipeline as it was seen.

    Args:
        snapshot: of at least one output.
        num_threads: how many threads may do the work of a stage that reads ahead, by its number of
            threads or ``None``.
        cpus: that the process may use.
        waits: whether what threads do is waiting rather than computing.
        alone: the times of stages in one thread, if they were measured.
        cpu_ns: CPU time of this process in the run, and the time that it waited for CPUs.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        num_threads: Callable[[StageSummary], int],
        cpus: int,
        waits: bool,
        alone: Alone | None = None,
        cpu_ns: int = 0,
    ) -> None:
        self._alone = alone
        snapshot = snapshot if alone is None else alone.snapshot
        summary = snapshot.summary
        self._alike = {i: alike for alike in alike_stages(summary).values() for i in alike}
        self._num = snapshot.num_elements
        self.now = summary.elapsed_ns / self._num
        self.step = (summary.elapsed_ns - summary.waited_ns) / self._num
        if alone is not None and alone.step_ns is not None:
            self.step = min(self.step, alone.step_ns)
        own = {
            x.id: x.total_processing_time_ns / self._num for x in _at_work(_segments(summary)[None])
        }
        self.stations: dict[int | None, Station] = {None: Station({CONSUMER: self.step, **own})}
        for key, stages in _segments(summary).items():
            if key is not None and stages and stages[0].place == "threads":
                self.stations[key] = self._of_threads(
                    summary, summary[key], stages, num_threads, cpus, waits
                )
        self._add_shared(summary)
        for load in on_all_nodes(snapshot.workers):
            self._add_workers(summary, load)
        self.computing: list[Computing] = []
        if alone is not None:
            self.computing = self._computing(alone, cpus, cpu_ns)
        elif waits and not snapshot.workers:  # the stages wait, so others in the process compute
            self.computing = [Computing({_ANY: cpu_ns / self._num}, 1.0, 1.0)]
        self.stations = {
            key: x.times(min(1.0, self.now / x.period)) if x.period else x
            for key, x in self.stations.items()
        }
        self.held = self._held(snapshot)
        self.rest = max(0.0, self.now - max(self._longest(self.stations), self._computed(())))
        elsewhere = {
            x.id: x.wait_time_ratio
            for x in summary.values()
            if x.id not in own or alone is not None
        }
        whole = math.fsum(elsewhere.values()) or 1.0
        self._shares = {key: ratio / whole for key, ratio in elsewhere.items()}  # of the rest

    def _of_threads(
        self,
        summary: ExecutionSummary,
        prefetch: StageSummary,
        stages: list[StageSummary],
        num_threads: Callable[[StageSummary], int],
        cpus: int,
        waits: bool,
    ) -> Station:
        """Returns the station of threads of a prefetching stage; elements still buffered there have
        not become an output.
        """
        computed = sum([summary[i].num_produced_elements for i in prefetch.inputs])
        used = min(1.0, prefetch.num_produced_elements / computed) if computed else 1.0
        work, width = _at_work(stages), num_threads(prefetch)
        longest = max(work, key=lambda x: x.total_processing_time_ns, default=prefetch)
        if self._alone is None and not waits and longest.category != "read":
            width = min(width, cpus)
        times = {x.id: used * x.total_processing_time_ns / self._num / width for x in work}
        return Station(times, width)

    def _add_shared(self, summary: ExecutionSummary) -> None:
        """Adds the station of all threads, if there are fewer than the stages could use."""
        ahead = [x for key, x in self.stations.items() if key is not None]
        self.wanted_threads = round(math.fsum([x.width for x in ahead]))
        for budget in summary.budgets:
            if budget.process == "main" and self.wanted_threads > budget.max_threads:
                work = {
                    part: value * x.width / budget.max_threads
                    for x in ahead
                    for part, value in x.parts.items()
                }
                self.stations[SHARED] = Station(work, budget.max_threads)

    def _held(self, snapshot: Snapshot) -> float:
        """Returns the time that an output waited because prefetched elements used all allowed
        memory; other stages may wait for the waiting one.
        """
        waits = {"consumer": 0.0, "threads": 0.0, "workers": 0.0}
        for x in snapshot.summary.values():
            waits[x.place] += x.memory_wait_ns / self._num
        waits["workers"] /= sum([load.num_workers for load in snapshot.workers]) or 1
        return min(self.now, max(waits.values()))

    def _add_workers(self, summary: ExecutionSummary, load: WorkerLoad) -> None:
        """Their time is shared out as the waiting for them is; if no thread waits, in proportion to
        their work.
        """
        num = max(1, load.num_workers)
        behind = [x for x in summary.values() if x.place == "workers"]
        times = {x.id: x.wait_time_ratio for x in [*behind, summary[load.stage]]}
        if not any(times.values()):
            times = {x.id: float(x.total_processing_time_ns) for x in _at_work(behind)} | {
                load.stage: float(load.encoding_ns + load.storing_ns)
            }
        whole = math.fsum(times.values()) or 1.0
        busy = (load.lifetime_ns - load.room_ns) / num / self._num
        times = {key: busy * value / whole for key, value in times.items()}
        self.stations[load.stage] = Station(times, num)
        if summary[load.stage].place == "consumer":
            own = self.stations[None]
            parts = {**own.parts, load.stage: load.decoding_ns / self._num}
            self.stations[None] = replace(own, parts=parts)

    @staticmethod
    def _longest(stations: dict[int | None, Station]) -> float:
        return max([station.period for station in stations.values()])

    def _computing(self, alone: Alone, cpus: int, cpu_ns: int) -> list[Computing]:
        """Returns the CPU time of an output in this process and in each of its workers."""
        stages = [x for x in alone.snapshot.summary.values() if x.cpu_time_ns and not x.is_prefetch]
        num_workers = sum([x.num_workers for x in on_all_nodes(alone.snapshot.workers)])
        found = []
        for place, num in (("threads", 1), ("workers", max(1, num_workers))):
            here = [x for x in stages if (x.place == "workers") == (place == "workers")]
            parts = {x.id: (x.cpu_time_ns or 0) / self._num / num for x in here}
            whole = math.fsum(parts.values())
            if place == "threads" and whole * self._num > cpu_ns:  # others used the CPUs meanwhile
                parts = {i: value * cpu_ns / self._num / whole for i, value in parts.items()}
            if parts:
                least = max(1.0, min(cpus, math.fsum(parts.values()) / self.now))
                is_full = alone.inflation.get(place, 1.0) > _FULL
                found.append(Computing(parts, least, least if is_full else max(least, cpus / num)))
        return found

    def _computed(self, parts: Collection[int], share: float = 0.5) -> float:
        """Returns the time of an output without some parts, if it waited for nothing but CPUs."""
        return max([min(self.now, x.without(parts, share)) for x in self.computing], default=0.0)

    def without(self, part: int, share: float = 0.5) -> float:
        """Returns the time of an output if a part took no time, and everything else the same.

        Stages of the same name, in several components of a mixture, are one part.

        Args:
            part: a stage by its id, or the consumer.
            share: 0 if as few threads as possible compute at once, 1 if as many as possible.
        """
        parts = self._alike.get(part, [part])
        left = {key: station.without(parts) for key, station in self.stations.items()}
        longest = max(self._longest(left), self._computed(parts, share))
        return longest + self.rest * (1 - math.fsum([self._shares.get(x, 0.0) for x in parts]))

    def work(self, part: int) -> float:
        """Returns how long an output takes in all stations because of a part."""
        parts = self._alike.get(part, [part])
        return math.fsum([x.parts.get(i, 0.0) for x in self.stations.values() for i in parts])

    def with_stations(self, changed: dict[int | None, Station]) -> float:
        """Returns the time of an output with other stations in place of some."""
        parts = {
            part for key in changed if key in self.stations for part in self.stations[key].parts
        }
        share = math.fsum([self._shares.get(part, 0.0) for part in parts])
        left = self._longest({**self.stations, **changed}) + self.rest * max(0.0, 1 - share)
        return max(left, self.held)  # neither threads nor processes have more memory

    def with_memory(self) -> float:
        """Returns the time of an output if there were memory for all prefetched elements; at least
        the present limit.
        """
        return max(self._longest(self.stations), self.now - self.held)


def spread(snapshot: Snapshot) -> float | None:
    """Returns the relative standard error of the time that an output takes, from slices of the run;
    ``None`` if there are too few.
    """
    marks = snapshot.marks
    step = max(1, math.ceil((len(marks) - 1) / _MAX_SLICES))
    slices = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(marks[::step]) if b[1] > a[1]]
    if len(slices) < _MIN_SLICES:
        return None
    return statistics.stdev(slices) / statistics.mean(slices) / math.sqrt(len(slices))


def alike_stages(summary: ExecutionSummary) -> dict[str, list[int]]:
    """Returns the ids of stages by their name."""
    found: dict[str, list[int]] = {}
    for x in summary.values():
        found.setdefault(x.name, []).append(x.id)
    return found


def _at_work(stages: list[StageSummary]) -> list[StageSummary]:
    """Returns the stages that do not wait for others."""
    return [stage for stage in stages if not stage.is_prefetch]


def _segments(summary: ExecutionSummary) -> dict[int | None, list[StageSummary]]:
    """Returns the stages that run in one thread, by the prefetching stage that waits for them;
    ``None`` is the consumer's thread.
    """
    segments: dict[int | None, list[StageSummary]] = {
        None: [x for x in summary.values() if x.place == "consumer"]
    }
    for node in summary.values():
        behind = [summary[i] for i in node.inputs]
        is_other_thread = any([x.place != node.place or x.place != "consumer" for x in behind])
        if node.is_prefetch and is_other_thread:
            segments[node.id] = summary.upstream([node.id], past_prefetch=False)
    return segments
