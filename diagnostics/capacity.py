"""What a pipeline would give if one of its parts took no time, or less.

Whatever runs at the same time is a station: the consumer's own thread, the threads behind a stage that reads ahead, the workers
of a stage. A pipeline gives an output as often as its slowest station can. What an output takes beyond that (hand-overs, reads of
unequal length) is the rest; it is due to whom the consumer has waited for.

Threads that compute ahead belong to all stages together: where these could use more than there are, all threads are one more
station.

All times are nanoseconds for one output of the pipeline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from gristmill.diagnostics.summary import ExecutionSummary, Snapshot, StageSummary, WorkerLoad, on_all_nodes

_MAX_SLICES = 10
_MIN_SLICES = 3

MIN_GAIN = 0.05  # a change that gains less is not worth it
CONSUMER = -1  # as a part: the work of the consumer itself
SHARED = -3  # as a station: all threads of the consumer's process that compute ahead


@dataclass(frozen=True)
class Station:
    """What runs at the same time as everything else.

    Args:
        parts: how long an output takes there because of each part: a stage by its id (of workers: what it takes to hand elements
            over), or the consumer.
        width: how many do it at once.
    """

    parts: dict[int, float]
    width: float = 1.0

    @property
    def period(self) -> float:
        return math.fsum(self.parts.values())

    def without(self, part: int) -> Station:
        return replace(self, parts={key: value for key, value in self.parts.items() if key != part})

    def times(self, factor: float) -> Station:
        return replace(self, parts={key: factor * value for key, value in self.parts.items()})


@dataclass(frozen=True)
class Change:
    """Something to do, and how long an output would take then, in nanoseconds; ``None``: it is only told."""

    text: str
    left: float | None
    is_most: bool = False  # it would take no less than that


class Capacity:
    """The stations of a pipeline as it was seen.

    Args:
        snapshot: of at least one output.
        num_threads: how many threads may do the work of a stage that reads ahead, by its number of threads or ``None``.
        cpus: that the process may use.
        waits: whether what threads do is waiting rather than computing.
    """

    def __init__(self, snapshot: Snapshot, num_threads: Callable[[StageSummary], int], cpus: int, waits: bool) -> None:
        summary = snapshot.summary
        self._num = snapshot.num_elements
        self.now = summary.elapsed_ns / self._num
        self.step = (summary.elapsed_ns - summary.waited_ns) / self._num
        own = {x.id: x.total_processing_time_ns / self._num for x in _at_work(_segments(summary)[None])}
        self.stations: dict[int | None, Station] = {None: Station({CONSUMER: self.step, **own})}
        for key, stages in _segments(summary).items():
            if key is not None and stages and stages[0].place == "threads":
                self.stations[key] = self._of_threads(summary, summary[key], stages, num_threads, cpus, waits)
        self._add_shared(summary)
        for load in on_all_nodes(snapshot.workers):
            self._add_workers(summary, load)
        self.stations = {key: x.times(min(1.0, self.now / x.period)) if x.period else x for key, x in self.stations.items()}
        self.held = self._held(snapshot)
        self.rest = max(0.0, self.now - self._longest(self.stations))
        elsewhere = {x.id: x.wait_time_ratio for x in summary.values() if x.id not in own}
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
        """Those behind a stage that reads ahead; what is still ready there has not become an output."""
        computed = sum([summary[i].num_produced_elements for i in prefetch.inputs])
        used = min(1.0, prefetch.num_produced_elements / computed) if computed else 1.0
        work = _at_work(stages)
        is_reading = max(work, key=lambda x: x.total_processing_time_ns, default=prefetch).category == "read"
        width = num_threads(prefetch) if waits or is_reading else min(num_threads(prefetch), cpus)
        return Station({x.id: used * x.total_processing_time_ns / self._num / width for x in work}, width)

    def _add_shared(self, summary: ExecutionSummary) -> None:
        """That which does what all threads do, if there are fewer than the stages could use."""
        ahead = [x for key, x in self.stations.items() if key is not None]
        self.wanted_threads = round(math.fsum([x.width for x in ahead]))
        for budget in summary.budgets:
            if budget.process == "main" and self.wanted_threads > budget.max_threads:
                work = {part: value * x.width / budget.max_threads for x in ahead for part, value in x.parts.items()}
                self.stations[SHARED] = Station(work, budget.max_threads)

    def _held(self, snapshot: Snapshot) -> float:
        """How long an output waited because what is ahead took all the memory that it may; others may wait for who waits."""
        waits = {"consumer": 0.0, "threads": 0.0, "workers": 0.0}
        for x in snapshot.summary.values():
            waits[x.place] += x.memory_wait_ns / self._num
        waits["workers"] /= sum([load.num_workers for load in snapshot.workers]) or 1
        return min(self.now, max(waits.values()))

    def _add_workers(self, summary: ExecutionSummary, load: WorkerLoad) -> None:
        """Their time is shared out as the waiting for them is; unless nobody waits, then as their work is."""
        num = max(1, load.num_workers)
        behind = [x for x in summary.values() if x.place == "workers"]
        times = {x.id: x.wait_time_ratio for x in [*behind, summary[load.stage]]}
        if not any(times.values()):
            times = {x.id: float(x.total_processing_time_ns) for x in _at_work(behind)} | {
                load.stage: float(load.encoding_ns + load.storing_ns)
            }
        whole = math.fsum(times.values()) or 1.0
        busy = (load.lifetime_ns - load.room_ns) / num / self._num
        self.stations[load.stage] = Station({key: busy * value / whole for key, value in times.items()}, num)
        if summary[load.stage].place == "consumer":
            own = self.stations[None]
            self.stations[None] = replace(own, parts={**own.parts, load.stage: load.decoding_ns / self._num})

    @staticmethod
    def _longest(stations: dict[int | None, Station]) -> float:
        return max([station.period for station in stations.values()])

    def without(self, part: int) -> float:
        """How long an output would take if a part took no time, and all else as long as now."""
        left = {key: station.without(part) for key, station in self.stations.items()}
        return self._longest(left) + self.rest * (1 - self._shares.get(part, 0.0))

    def with_stations(self, changed: dict[int | None, Station]) -> float:
        """How long an output would take with other stations in place of some."""
        parts = {part for key in changed if key in self.stations for part in self.stations[key].parts}
        share = math.fsum([self._shares.get(part, 0.0) for part in parts])
        left = self._longest({**self.stations, **changed}) + self.rest * max(0.0, 1 - share)
        return max(left, self.held)  # neither threads nor processes have more memory

    def with_memory(self) -> float:
        """How long an output would take if there were memory for all that is computed ahead; no less than that."""
        return max(self._longest(self.stations), self.now - self.held)


def spread(snapshot: Snapshot) -> float | None:
    """The relative standard error of the time that an output takes, from slices of the run; ``None`` if there are too few."""
    marks = snapshot.marks
    step = max(1, math.ceil((len(marks) - 1) / _MAX_SLICES))
    slices = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(marks[::step]) if b[1] > a[1]]
    if len(slices) < _MIN_SLICES:
        return None
    return statistics.stdev(slices) / statistics.mean(slices) / math.sqrt(len(slices))


def _at_work(stages: list[StageSummary]) -> list[StageSummary]:
    """Those that do not wait for others."""
    return [stage for stage in stages if not stage.is_prefetch]


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
