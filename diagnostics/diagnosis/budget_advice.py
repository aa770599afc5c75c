"""The gain from more threads or more memory for all prefetching stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gristmill.diagnostics.diagnosis.capacity import MIN_GAIN, SHARED, Capacity, Change, Station
from gristmill.diagnostics.runtime.ahead import short_name
from gristmill.diagnostics.runtime.summary import ExecutionSummary
from gristmill.diagnostics.units import size_text, time_text

if TYPE_CHECKING:
    from gristmill.diagnostics.diagnosis.advice import Machine

_MIN_THREADS, _MAX_THREADS = 16, 256  # to advise
_MORE = 4  # times as many threads, or as much memory
_FEW = 2  # this many times as many threads could be used
_MEMORY_SHARE = 0.5  # of the free memory that more elements ahead should not exceed


class BudgetAdvisor:
    """Finds changes that speed up a pipeline whose stages share too few resources."""

    def __init__(self, summary: ExecutionSummary, capacity: Capacity, machine: Machine) -> None:
        self._summary = summary
        self._capacity = capacity
        self._machine = machine
        self._here = next((x for x in summary.budgets if x.process == "main"), None)
        self._in_worker = next((x for x in summary.budgets if x.process != "main"), None)

    @property
    def is_divided(self) -> bool:
        """True if more worker processes have no more threads in total."""
        return any([x is not None and x.is_fixed for x in (self._here, self._in_worker)])

    def changes(self) -> Iterator[Change]:
        """Yields changes to more threads for all stages, or to more memory."""
        capacity, machine = self._capacity, self._machine
        if self._here is not None and SHARED in capacity.stations and machine.waits:
            now = self._here.max_threads
            threads = min(_MAX_THREADS, capacity.wanted_threads, max(_MIN_THREADS, _MORE * now))
            text = (
                f"Let more threads than {now} read ahead:"
                f" {_options('max_threads', threads)}.{self._waited('thread', 'them')}"
            )
            yield Change(text, capacity.with_stations(self.with_threads(threads)))
        now = self._max_bytes()
        num_bytes = now + int(min((_MORE - 1) * now, _MEMORY_SHARE * machine.memory))
        if num_bytes > now and not machine.is_busy:
            text = (
                f"Let elements ahead take more memory than {size_text(now)}:"
                f" {_options('max_bytes_ahead', num_bytes)}."
            )
            yield Change(
                f"{text}{self._waited('memory', 'it')}", capacity.with_memory(), is_most=True
            )

    def lacks(self, station: Station) -> bool:
        """True if the threads of all stages together, rather than those of one, are too few by
        far.
        """
        shared = self._capacity.stations.get(SHARED, station)
        return (
            shared.period > (1 + MIN_GAIN) * station.period
            and self._capacity.wanted_threads >= _FEW * shared.width
        )

    def with_threads(self, num_threads: int) -> dict[int | None, Station]:
        """Returns the stations that change if all stages together may use ``num_threads``, or more
        than now.
        """
        shared = self._capacity.stations.get(SHARED)
        if shared is None:
            return {}
        return {SHARED: shared.times(min(1.0, shared.width / num_threads))}

    def allowing(self, num_threads: int, num_workers: int = 0) -> str:
        """Returns the further settings needed so that a stage may use ``num_threads`` here, or in
        each worker.
        """
        budget = self._in_worker if num_workers else self._here
        if budget is None or not budget.is_fixed or num_threads <= budget.max_threads:
            return ""
        return f" Allow as many: {_options('max_threads', num_threads * max(1, num_workers))}."

    def _max_bytes(self) -> int:
        """Returns the largest number of bytes of prefetched elements, in the processes where others
        waited for memory.
        """
        places = {x.place == "workers" for x in self._summary.values() if x.memory_wait_ns}
        return sum([x.max_bytes for x in self._summary.budgets if (x.process != "main") in places])

    def _waited(self, kind: str, what: str) -> str:
        """Returns a sentence on the stage that waited longest for threads or memory."""
        waits = {x.id: getattr(x, f"{kind}_wait_ns") for x in self._summary.values()}
        longest = max(waits, key=waits.__getitem__)
        if not waits[longest]:
            return ""
        times = f"{time_text(waits[longest])} of {time_text(sum(waits.values()))}"
        return f" {short_name(self._summary[longest])} waited longest for {what}, {times}."


def _options(name: str, value: int) -> str:
    return f"grain.experimental.WithOptionsIterDataset(ds, DatasetOptions({name}={value}))"
