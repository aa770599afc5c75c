"""The number of workers or threads that ``"auto"`` stands for, decided while they run.

Guarantees:

1. The controller is a function of its arguments: times, rates and shares. It reads no clock.
2. It grows while the consumer waits, and takes back a change that gained less than ``_GAIN``. When
   no number gains more, it tries threads in place of processes, or processes again.
3. Where workers have used CPUs and the consumer waits, it also tries fewer: threads that need the
   same interpreter lock keep each other waiting.
4. On a steady load it changes nothing after the first ``_SEARCH_SECONDS``. Where these were too few
   measurements, as of outputs that take long, it continues, with one change in
   ``_LATE_SECONDS``. If three measurements in a row say that the load has changed, the search
   restarts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from gristmill.core.cgroup import available_memory, usable_cpus

FIRST_WORKERS = 2  # at the beginning
_WINDOW_SECONDS = 1.0  # of one measurement
_ENOUGH = 30  # elements in a window
_LONGEST_SECONDS = 3.0  # of a window with fewer elements
_MOST_DECISIONS = 1000  # that are kept
_COMPUTES = 0.5  # CPUs, above which workers compute more than they wait
_GAIN = 0.03  # a change that gains less is taken back
_WAITS = 0.05  # from this share of its time on, the consumer waits
_BUSY = 0.5  # below this share of looks at which a worker had nothing ready, there are too many
_SEARCH_SECONDS = 20.0
_LEAST_MEASUREMENTS = 8  # of a search
_LATE_SECONDS = 30.0  # between two changes of a search that takes longer
_CHANGED = 0.3  # a load that differs by more has changed
_NUM_CHANGED = 3  # measurements in a row that must say so
_WORKER_BYTES = 1 << 28  # memory that a worker is taken to need
# How launchers name the number of training processes on this machine.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)


Kind: TypeAlias = Literal["processes", "threads"]


class Measured(NamedTuple):
    """One measurement.

    Args:
        now: when it ended, in seconds.
        rate: elements per second that the consumer took.
        waited: the share of its time for which the consumer waited for workers.
        busy: the share of looks at workers at which they had nothing ready.
        cpus: how many CPUs the workers used, on average; 0 if that is not known.
    """

    now: float
    rate: float
    waited: float
    busy: float
    cpus: float = 0.0


class Decision(NamedTuple):
    """A change of the number of workers, or of their kind.

    Args:
        now: when, in seconds of ``time.monotonic``.
        before, after: the numbers.
        reason: why, in words.
        unit: of the numbers.
        kind: the other kind, if that changes.
    """

    now: float
    before: int
    after: int
    reason: str
    unit: str = "workers"
    kind: Kind | None = None

    def __str__(self) -> str:
        if self.kind is None:
            return f"{self.before} → {self.after} {self.unit}: {self.reason}"
        return f"{self.before} {self.unit} → {self.after} {self.kind}: {self.reason}"


class Controller:
    """Finds the number of workers.

    Args:
        least: the smallest number, 0 or 1.
        most: the largest number.
        num: the number at the beginning.
        unit: of the number.
        most_threads: the largest number of threads, if workers may be threads in place of
            processes; else 0.
    """

    _is_enough: bool  # more of them have not been worth it
    _is_least: bool  # fewer have been slower
    _has_other: bool  # there is another kind that was not tried yet
    _search_until: float  # then it ends, if there were enough measurements
    _num_measured: int  # in the search
    _not_before: float  # is the next change

    def __init__(
        self,
        least: int,
        most: int,
        num: int,
        unit: str = "workers",
        most_threads: int = 0,
    ) -> None:
        self.num = num
        self._unit = unit
        self._least, self._most = least, most
        self._other_most = most_threads
        self._begin_search(math.inf)
        # of an attempt: the number, and what was measured
        self._before: tuple[int, Measured] | None = None
        self._kind: Kind = "processes"
        self._is_other = False  # the attempt is one of the other kind
        self._settled: Measured | None = None  # with this number, there is nothing to gain
        self._num_changed = 0

    def decide(self, measured: Measured) -> Decision | None:
        """Return the change to make after a measurement of the current number, if any."""
        if not self._num_measured:  # before that, the program may have done other things
            self._search_until = measured.now + _SEARCH_SECONDS
        if self._settled is not None:
            self._look_for_change(self._settled, measured)
        self._num_measured += 1
        if self._settled is not None or measured.now < self._not_before:
            return None
        if self._before is not None:
            return self._keep_or_undo(*self._before, measured)
        return self._attempt(measured)

    def _attempt(self, measured: Measured) -> Decision | None:
        """Try another number, if there may be something to gain."""
        after = self._next(measured)
        shares = (
            f"the consumer waited {measured.waited:.0%}, {self._unit} were busy {measured.busy:.0%}"
        )
        if after != self.num:
            self._before = self.num, measured
            return self._change(measured.now, after, shares)
        is_searching = self.num > 0 and not self._is_over(measured.now)
        if self._has_other and measured.waited >= _WAITS and is_searching:
            self._has_other, self._is_other, self._before = False, True, (self.num, measured)
            # Where there may be no more processes, there may be more threads.
            after = self.num if self.num < self._most else 2 * self.num
            return self._change_kind(measured.now, min(after, self._other_most), shares)
        self._settled = measured
        return None

    def _next(self, measured: Measured) -> int:
        """Return the next number to try, or the current one."""
        if self._is_over(measured.now):
            return self.num
        if measured.waited >= _WAITS and not self._is_enough and self.num < self._most:
            return min(max(2, 2 * self.num), self._most)
        if self._is_least:
            return self.num
        if measured.waited >= _WAITS:
            if measured.cpus < _COMPUTES:
                return self.num
            after = min(self.num // 2, math.ceil(measured.cpus))  # may do as much
        else:
            after = self.num // 2 if measured.busy < _BUSY else self.num
        return max(after, min(self._least, self.num))

    def jump(self, now: float, reason: str) -> Decision | None:
        """Return the change to the largest number, unless more have already been tried."""
        if self._is_enough or self.num == self._most or self._is_over(now):
            return None
        self._before, self._settled, self._is_enough = None, None, True
        return self._change(now, self._most, reason)

    def _keep_or_undo(self, num: int, before: Measured, measured: Measured) -> Decision | None:
        """Keep the last attempt, or take it back."""
        self._before = None
        is_other, self._is_other = self._is_other, False
        gain = measured.rate / before.rate - 1 if before.rate else 1.0
        if gain >= _GAIN or (not is_other and self.num < num and gain > -_GAIN):
            if is_other:
                self._is_enough = self._is_least = False
            return self._attempt(measured)
        unit = self._kind if is_other else self._unit
        reason = f"{self.num} {unit} changed the speed by {gain:+.0%}, which is not worth it"
        if is_other:
            return self._change_kind(measured.now, num, reason)
        if self.num > num:
            self._is_enough = True
        else:
            self._is_least = True
        return self._change(measured.now, num, reason)

    def _change(self, now: float, after: int, reason: str) -> Decision:
        self._note_change(now)
        before, self.num = self.num, after
        return Decision(now, before, after, reason, self._unit)

    def _change_kind(self, now: float, after: int, reason: str) -> Decision:
        self._note_change(now)
        before, self.num = self.num, after
        self._most, self._other_most = self._other_most, self._most
        unit, self._kind = self._kind, "processes" if self._kind == "threads" else "threads"
        return Decision(now, before, after, reason, unit, self._kind)

    def _note_change(self, now: float) -> None:
        if now >= self._search_until:
            self._not_before = now + _LATE_SECONDS

    def _is_over(self, now: float) -> bool:
        """Return true if nothing more is to be tried."""
        return now >= self._search_until and self._num_measured >= _LEAST_MEASUREMENTS

    def _begin_search(self, now: float) -> None:
        self._search_until = now + _SEARCH_SECONDS
        self._num_measured, self._not_before = 0, -math.inf
        self._is_enough = self._is_least = False
        self._has_other = self._other_most > 0

    def _look_for_change(self, settled: Measured, measured: Measured) -> None:
        """Search again if the load is another one."""
        differs = (
            abs(measured.rate - settled.rate) > _CHANGED * settled.rate
            or abs(measured.waited - settled.waited) > _CHANGED
        )
        self._num_changed = self._num_changed + 1 if differs else 0
        if self._num_changed >= _NUM_CHANGED:
            self._num_changed, self._settled = 0, None
            self._begin_search(measured.now)


def is_window(seconds: float, num: int) -> bool:
    """Return true if ``num`` elements in this time are a measurement."""
    return seconds >= (_WINDOW_SECONDS if num >= _ENOUGH else _LONGEST_SECONDS)


def kept(decisions: Sequence[Decision], decision: Decision) -> list[Decision]:
    """Return the decisions to keep after another one."""
    return [*decisions[-_MOST_DECISIONS + 1 :], decision]


def most_threads(max_workers: int | None, num_lanes: int) -> int:
    """Return the largest number of threads in place of processes. They take next to no memory, so
    that only waiting for storage bounds it.
    """
    return num_lanes if max_workers is None else min(num_lanes, max_workers)


def most_workers(max_workers: int | None, num_lanes: int) -> int:
    """Return the largest number of workers that this process may start: two for each CPU that is
    its own.

    Processes of one training run on this machine share its CPUs and its memory.

    Args:
        max_workers: what the user allows.
        num_lanes: a worker computes whole lanes.
    """
    num_processes = next(
        (int(os.environ[name]) for name in _LOCAL_SIZES if os.environ.get(name, "").isdecimal()), 1
    )
    num_processes = max(1, num_processes)
    most = max(1, 2 * usable_cpus() // num_processes)
    memory = available_memory() / num_processes
    if memory < most * _WORKER_BYTES:
        most = max(1, int(memory // _WORKER_BYTES))
    return min(most, num_lanes, most if max_workers is None else max_workers)
