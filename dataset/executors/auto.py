"""The number of workers or threads that ``"auto"`` stands for, decided while they run.

Guarantees:

1. The controller is a function of its arguments: times, rates and shares. It reads no clock.
2. It grows while the consumer waits and there are CPUs, and takes back a change that gained less
   than ``_GAIN``, in two measurements in a row unless the first one is clear. When no number gains
   more, it tries threads in place of processes, if there are CPUs or much is sent.
3. Where threads that read have used CPUs and the consumer waits, it also tries fewer: threads that
   need the same interpreter lock keep each other waiting.
4. On a steady load it changes nothing after the first ``_SEARCH_SECONDS``. Where these were too few
   measurements, as of outputs that take long, it continues, with one change in
   ``_LATE_SECONDS``. If three measurements in a row say that the load has changed, the search
   restarts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
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
_FULL = 0.9  # load from which there is no CPU for more workers
_MUCH_SENT = 1 << 29  # bytes per second, which take an eighth of a CPU or more
_CLEARLY_SLOWER = 0.75  # than the best setting: a short measurement shows it
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
_OTHER: Mapping[Kind, Kind] = {"processes": "threads", "threads": "processes"}


class Measured(NamedTuple):
    """One measurement.

    Args:
        now: when it ended, in seconds.
        rate: elements per second that the consumer took.
        waited: the share of its time for which the consumer waited for workers.
        busy: the share of looks at workers at which they had nothing ready.
        cpus: how many CPUs the threads used, on average; 0 if that is not known.
        sent: bytes per second that workers have sent.
        load: the CPUs that this process and its workers used, divided by ``own_cpus``; 0 if that
            is not known.
    """

    now: float
    rate: float
    waited: float
    busy: float
    cpus: float = 0.0
    sent: float = 0.0
    load: float = 0.0


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


class _Setting(NamedTuple):
    """A setting that was measured."""

    num: int
    kind: Kind
    measured: Measured


class Controller:
    """Finds the number of workers.

    A search keeps the best setting that was measured, and attempts others one by one. An attempt
    that is better is the best one from then on; else the next one begins at once, or the best
    one returns if there is none.

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
    _is_doubtful: bool  # one measurement says that the attempt is not better
    _not_before: float  # is the next change
    _best: _Setting | None  # of the search

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
        self._kind: Kind = "processes"
        self._is_settled = False  # there is nothing to gain
        self._settled: Measured | None = None  # the first measurement since, or a better one
        self._num_changed = 0

    def begin(self, without: Measured) -> None:
        """Take note of what was measured without workers, while the first ones started: where they
        are not quicker, none are used.
        """
        if self.num and not self._num_measured:
            self._best = _Setting(0, self._kind, without)

    def is_clear(self, rate: float) -> bool:
        """Return true if an attempt is so much slower than the best setting that a short
        measurement is enough. Workers that have just started may still become quicker.
        """
        best = self._best
        if best is None or (self._kind == best.kind and self.num > best.num):
            return False
        return rate < _CLEARLY_SLOWER * best.measured.rate

    def decide(self, measured: Measured) -> Decision | None:
        """Return the change to make after a measurement of the current number, if any."""
        if not self._num_measured:  # before that, the program may have done other things
            self._search_until = measured.now + _SEARCH_SECONDS
        self._num_measured += 1
        if self._is_settled:
            self._look_for_change(measured)
        if self._is_settled or measured.now < self._not_before:
            return None
        best = self._best
        if best is None or self._is_better(measured, best):
            self._best = _Setting(self.num, self._kind, measured)
            return self._attempt(self._best, measured.now)
        if not self._is_doubtful and _gain(measured, best) > _CLEARLY_SLOWER - 1:
            self._is_doubtful = True
            return None
        return self._attempt(best, measured.now, self._fail(measured, best))

    def _is_better(self, measured: Measured, best: _Setting) -> bool:
        """Return true if an attempt is to be kept."""
        gain = _gain(measured, best)
        if self._kind != best.kind:
            if gain >= _GAIN:
                self._is_enough = self._is_least = False  # of the other kind
        elif self.num < best.num and gain > -_GAIN:
            self._is_enough = True
            return True
        return gain >= _GAIN

    def _fail(self, measured: Measured, best: _Setting) -> str:
        """Take note of an attempt that is not kept; return why."""
        unit = self._unit
        if self._kind != best.kind:
            unit = self._kind
        elif self.num > best.num:
            self._is_enough = True
        else:
            self._is_least = True
        gain = _gain(measured, best)
        return f"{self.num} {unit} changed the speed by {gain:+.0%}, which is not worth it"

    def _attempt(self, best: _Setting, now: float, failed: str = "") -> Decision | None:
        """Try another setting, if there may be something to gain; else return to the best one.

        Args:
            best: the best setting.
            now: the time.
            failed: why the last attempt is not kept; empty if it is the best setting.
        """
        measured = best.measured
        reason = failed or (
            f"the consumer waited {measured.waited:.0%}, {self._unit} were busy {measured.busy:.0%}"
        )
        if not best.num and failed:  # it was not measured as it will be
            self._best = None
            return self._change(now, best.num, best.kind, reason)
        after = self._next(best, now)
        if after != best.num:
            return self._change(now, after, best.kind, reason)
        if self._may_try_other(measured) and not self._is_over(now):
            self._has_other = False
            # Where there may be no more processes, there may be more threads.
            after = best.num if 0 < best.num < self._most else max(2, 2 * best.num)
            return self._change(now, min(after, self._other_most), _OTHER[best.kind], reason)
        self._is_settled, self._settled, self._best = True, None, None
        return self._change(now, best.num, best.kind, reason) if failed else None

    def _may_try_other(self, measured: Measured) -> bool:
        """Return true if the other kind of workers may be better."""
        waits = measured.waited >= _WAITS and measured.load < _FULL
        return self._has_other and (waits or measured.sent >= _MUCH_SENT)

    def _next(self, best: _Setting, now: float) -> int:
        """Return the next number to try, or that of the best setting."""
        num, measured = best.num, best.measured
        if self._is_over(now):
            return num
        most = self._most_of(best.kind)
        is_full = self._is_enough or measured.load >= _FULL
        if measured.waited >= _WAITS and not is_full and num < most:
            return min(max(2, 2 * num), most)
        if self._is_least:
            return num
        if measured.waited >= _WAITS:
            if best.kind == "threads" and not self._least:
                return 0  # it costs less to compute here than to send, so even less without threads
            if measured.cpus < _COMPUTES:
                return num
            after = min(num // 2, math.ceil(measured.cpus))  # may do as much
        else:
            after = num // 2 if measured.busy < _BUSY else num
        return max(after, min(self._least, num))

    def jump(self, now: float, reason: str) -> Decision | None:
        """Return the change to the largest number, unless more have already been tried."""
        if self._is_enough or self.num == self._most or self._is_over(now):
            return None
        self._best, self._is_settled, self._is_enough = None, False, True
        return self._change(now, self._most, self._kind, reason)

    def refuse(self, now: float, num: int, reason: str, *, of_kind: bool) -> Decision:
        """Return the change to the ``num`` workers that there are, since the last change could not
        be made: of the kind if ``of_kind``, else of the number.
        """
        self._best, self._is_enough, self._has_other = None, True, False
        kind = _OTHER[self._kind] if of_kind else self._kind
        decision = self._change(now, num, kind, reason)
        self._most = max(num, self._least)
        return decision

    def _most_of(self, kind: Kind) -> int:
        return self._most if kind == self._kind else self._other_most

    def _change(self, now: float, after: int, kind: Kind, reason: str) -> Decision:
        if now >= self._search_until:
            self._not_before = now + _LATE_SECONDS
        before, self.num, self._is_doubtful = self.num, after, False
        if kind == self._kind:
            return Decision(now, before, after, reason, self._unit)
        self._most, self._other_most = self._other_most, self._most
        unit, self._kind = self._kind, kind
        return Decision(now, before, after, reason, unit, kind)

    def _is_over(self, now: float) -> bool:
        """Return true if nothing more is to be tried."""
        return now >= self._search_until and self._num_measured >= _LEAST_MEASUREMENTS

    def _begin_search(self, now: float) -> None:
        self._search_until = now + _SEARCH_SECONDS
        self._num_measured, self._not_before, self._best = 0, -math.inf, None
        self._is_doubtful = False
        self._is_enough = self._is_least = False
        self._has_other = self._other_most > 0

    def _look_for_change(self, measured: Measured) -> None:
        """Search again if the load is another one."""
        settled = self._settled
        if settled is None or (
            measured.rate >= settled.rate and _WAITS <= measured.waited <= settled.waited
        ):
            self._settled, self._num_changed = measured, 0
            return
        differs = (
            abs(measured.rate - settled.rate) > _CHANGED * settled.rate
            or abs(measured.waited - settled.waited) > _CHANGED
        )
        self._num_changed = self._num_changed + 1 if differs else 0
        if self._num_changed >= _NUM_CHANGED:
            self._num_changed, self._is_settled = 0, False
            self._begin_search(measured.now)


def _gain(measured: Measured, best: _Setting) -> float:
    rate = best.measured.rate
    return measured.rate / rate - 1 if rate else 1.0


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


def own_cpus() -> float:
    """Return how many CPUs this process may use, where those of one training run on this machine
    share them.
    """
    return usable_cpus() / _num_processes()


def _num_processes() -> int:
    given = [os.environ.get(name, "") for name in _LOCAL_SIZES]
    return next((max(1, int(number)) for number in given if number.isdecimal()), 1)


def most_workers(max_workers: int | None, num_lanes: int) -> int:
    """Return the largest number of workers that this process may start: two for each CPU that is
    its own.

    Processes of one training run on this machine share its CPUs and its memory.

    Args:
        max_workers: what the user allows.
        num_lanes: a worker computes whole lanes.
    """
    num_processes = _num_processes()
    most = max(1, int(2 * own_cpus()))
    memory = available_memory() / num_processes
    if memory < most * _WORKER_BYTES:
        most = max(1, int(memory // _WORKER_BYTES))
    return min(most, num_lanes, most if max_workers is None else max_workers)
