"""What ``tolerate`` allows, and what it has passed over.

Guarantees:

1. A fault is counted where it is passed in the order of delivery, by whoever delivers: not by threads, blocks or workers that
   have met it ahead. In a lane it is the consumer of all lanes who judges by ``max_rate`` and ``max_total``, over all of them,
   at the element behind the fault; faults in a row are judged in the lane.
2. The counts are in the state. A step that takes elements again when it is restored (a window, bins, a batch that is being cut)
   has in its state what was passed over since the place from which it does: ``with_passed`` adds that. There these are passed
   over without a try, and any other that fails is an error.
3. An error beyond the budget leaves the iterator where it was, and comes again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.core.errors import FaultBudgetError, SourceEnded, StateMismatchError, add_note
from gristmill.core.state import plain_counts, plain_int, shown
from gristmill.core.value import Value
from gristmill.dataset.bases.feed import OneByOne
from gristmill.dataset.states.values import copied, given
from gristmill.dataset.telling.failures import is_of_no_element, note_at

NEVER = (NameError, SyntaxError, MemoryError, StateMismatchError, SourceEnded, FaultBudgetError)
NUM_LAST = 20
_MIN_TRIED = 1000  # of which a rate is
_MAX_LOGGED = 100_000  # places that are kept, far more than any window has
_MAX_TEXT = 300  # characters

_numbers = count()


class Fault(NamedTuple):
    """An element that was passed over.

    Args:
        record_key: of the record, or of those, that it was made of; ``None`` if that is not known.
        stage: what raised the error.
        error: its type and message.
    """

    record_key: Any
    stage: str
    error: str

    @classmethod
    def of(cls, error: BaseException, stage: Any) -> Fault:
        """What ``error`` says, which an element of ``stage`` has raised."""
        told = note_at(error)
        keys = () if told is None else told.failure.record_keys
        name = told.failure.stage if told is not None and told.failure.stage else str(stage)
        return cls(keys[0] if len(keys) == 1 else [*keys] or None, name, f"{type(error).__name__}: {error!s:.{_MAX_TEXT}}")


class FaultCounts(Value):
    """What was passed over, in this run and those that it continues.

    Args:
        total: how many elements.
        rate: how many of those that were tried, which count as 1 000 at least; of the step with the highest rate, if there are
            several.
        tried: elements that were tried.
        last: the last 20 of this run, the latest one last.
    """

    total: int
    rate: float
    tried: int
    last: tuple[Fault, ...]


class Limits(Value):
    """What a step allows, as plain data: it travels with the counts of workers.

    Args:
        number: tells steps apart.
        name: of the step.
    """

    number: str
    name: str
    max_rate: float | None
    max_total: int | None
    max_consecutive: int | None

    def excess(self, total: int, tried: int, in_a_row: int, last: Iterable[Fault]) -> FaultBudgetError | None:
        """The error, if so many are too many."""
        if self.max_consecutive is not None and in_a_row > self.max_consecutive:
            reason = f"{in_a_row} in a row are more than max_consecutive={self.max_consecutive}"
        elif self.max_total is not None and total > self.max_total:
            reason = f"they are more than max_total={self.max_total}"
        elif self.max_rate is not None and total > self.max_rate * max(_MIN_TRIED, tried):
            reason = f"they are more than max_rate={self.max_rate:g} of {max(_MIN_TRIED, tried)}"
        else:
            return None
        faults = tuple(last)[-NUM_LAST:]
        lines = [f"record key {x.record_key}, {x.stage}: {x.error}" for x in faults]
        return FaultBudgetError(
            f"{self.name}: {total} of {tried} elements failed, and {reason}. Look at the records, allow more, or go past this "
            f"one with it.skip_failed(). The last ones:\n" + "\n".join(lines),
            faults,
        )


class Tolerance:
    """The arguments of ``tolerate``, and which of a run's errors they are about."""

    def __init__(self, errors: Any, limits: Limits, retries: int, backoff_seconds: float, replaces: bool, log: Any) -> None:
        self.errors = errors
        self.limits = limits
        self.replaces = replaces
        self._retries = retries
        self._backoff_seconds = backoff_seconds
        self._log = log

    @staticmethod
    def new_number() -> str:
        return f"{os.getpid()}-{next(_numbers)}"

    def __getstate__(self) -> dict[str, Any]:
        is_file = hasattr(self._log, "write")  # which stays with the consumer, who writes
        return {**vars(self), "_log": None if is_file else self._log}

    def tolerates(self, error: BaseException) -> bool:
        return isinstance(error, self.errors) and not isinstance(error, NEVER) and not is_of_no_element(error)

    def attempt(self, compute: Callable[[], Any], error: Exception | None = None) -> tuple[Any, Exception | None]:
        """What ``compute`` gives, and ``None``; or ``None``, and the error of the last attempt.

        Args:
            compute: is called anew for every attempt.
            error: what the first one has raised, if it has been made.

        Raises:
            Exception: one that is not tolerated.
        """
        for i in range(self._retries + 1):
            if i:
                time.sleep(self._backoff_seconds * 2 ** (i - 1))
            if i or error is None:
                try:
                    return compute(), None
                except Exception as failed:
                    error = failed
            if not self.tolerates(error):
                raise error
        return None, error

    def write(self, faults: Iterable[Fault]) -> None:
        """Adds lines to the log."""
        if self._log is None:
            return
        text = "".join([json.dumps({**fault._asdict(), "tolerate": self.limits.name}, default=str) + "\n" for fault in faults])
        if hasattr(self._log, "write"):
            self._log.write(text)
            return
        with Path(self._log).open("a", encoding="utf-8") as file:
            file.write(text)


class FaultLog:
    """Where a step has passed over what, in this run: the numbers of elements, and with each what is needed to do so again."""

    def __init__(self) -> None:
        self._places: dict[int, list[list[Any]]] = {}

    def add(self, place: int, entry: list[Any]) -> None:
        """Adds what was passed over at a place; again, if its first value is that of an older one."""
        entries = self._places.get(place, [])
        self._places[place] = [*[old for old in entries if old[0] != entry[0]], entry]
        if len(self._places) > _MAX_LOGGED:
            for old in [*self._places][: _MAX_LOGGED // 2]:
                del self._places[old]

    def cut(self, place: int) -> None:
        """Forgets what was passed over from ``place`` on, which is to be tried again."""
        for old in [old for old in self._places if old >= place]:
            del self._places[old]

    def between(self, start: int, stop: int) -> list[list[Any]]:
        return [[place, *entry] for place in sorted(self._places) if start <= place < stop for entry in self._places[place]]


class Passed(NamedTuple):
    """A fault that is passed over, and where."""

    place: int
    entry: list[Any]
    fault: Fault


class Faults(dict[str, Any]):
    """The part of a state that counts faults: JSON to those who save it. No count of it grows with the elements.

    Args:
        counts: ``total``; and ``passed``, where elements from here on are known: ``until`` which one, ``tried`` and ``total``
            then, and what is passed over of them (``over``).
        of: the step's limits.
        recent: the last ones before this state, all since the last element that did not fail included.
        log: the step's.
    """

    __slots__ = ("limits", "log", "recent")

    def __init__(self, counts: Mapping[str, Any], limits: Limits | None = None, recent: Any = (), log: Any = None) -> None:
        super().__init__(counts)
        self.limits = limits
        self.recent: tuple[Passed, ...] = recent
        self.log: FaultLog | None = log

    def __deepcopy__(self, memo: Any) -> Faults:
        return Faults(copied(dict(self)), self.limits, self.recent, self.log)

    __copy__ = None

    def __reduce__(self) -> Any:
        return Faults, (dict(self), self.limits, self.recent)

    @property
    def total(self) -> int:
        """Counted to the end of what is known."""
        number: int = self["passed"]["total"] if "passed" in self else self["total"]
        return number


class Tally(NamedTuple):
    """The counts of one step in a state.

    Args:
        path: where in the state they are.
        faults: the counts.
        place: how many elements of the iterator they are after,
        tried: and how many of the step were tried, counted to the end of what is known.
    """

    path: tuple[Any, ...]
    faults: Faults
    place: int
    tried: int

    @property
    def until(self) -> int:
        """Before which place it is known what fails."""
        until: int = self.faults["passed"]["until"] if "passed" in self.faults else self.place
        return until


def tallies(state: Any, path: tuple[Any, ...] = ()) -> Iterator[Tally]:
    """All counts in a state of an iterator of this process or a worker."""
    if type(state) is dict:
        found = state.get("faults")
        if type(found) is list and found and type(found[0]) is Faults:
            place = _place_in(state)
            tried = state.get("tried", place)
            for i, faults in enumerate(found):
                num: Any = tried[i] if type(tried) is list else tried
                num = faults["passed"]["tried"] if "passed" in faults else faults.get("tried", num)
                yield Tally((*path, i), faults, place, num)
        for key, value in state.items():
            if type(value) in (dict, list):
                yield from tallies(value, (*path, key))
    elif type(state) is list:
        for i, value in enumerate(state):
            if type(value) in (dict, list):
                yield from tallies(value, (*path, i))


def _place_in(state: Any) -> int:
    """How many elements of an iterator its state is after."""
    place: int = next(state[key] for key in ("next_index", "global_next_index", "tried") if key in state)
    return place


def with_passed(before: Any, now: Any) -> Any:
    """A copy of the state ``before`` that says what was passed over between it and ``now``, a later one of the same iterator."""
    result = copied(before)
    ends = {id(tally.faults.log): tally for tally in tallies(now)}
    for _, faults, start, _ in tallies(result):
        log = faults.log
        if log is None:
            continue
        end = ends.get(id(log))
        if end is None:  # it has come to its end
            continue
        faults.recent = end.faults.recent
        if end.until > start:
            faults["passed"] = {
                "until": end.until,
                "tried": end.tried,
                "total": end.faults.total,
                "over": copied(log.between(start, end.until)),
            }
    return result


def keep_known(state: Any, now: Any) -> Any:
    """``state``, a copy of a later one than ``now``, with what is known there of elements behind it."""
    if isinstance(state, dict) and type(now) is dict:
        found, known = state.get("faults"), now.get("faults")
        if isinstance(found, list) and type(known) is list and known and type(known[0]) is Faults:
            place = _place_in(state)
            for faults, at in zip(found, known, strict=True):
                if "passed" in at and at["passed"]["until"] > place:
                    over = [entry for entry in at["passed"]["over"] if entry[0] >= place]
                    faults["passed"] = {**at["passed"], "over": copied(over)}
        for key, value in state.items():
            if key != "faults":
                keep_known(value, now.get(key))
    elif isinstance(state, list) and type(now) is list:
        for value, value_now in zip(state, now, strict=False):
            keep_known(value, value_now)
    return state


def counted(state: Any) -> FaultCounts:
    """What a state says."""
    totals: dict[str, list[int]] = {}
    recent: list[Passed] = []
    for _, faults, _, tried in tallies(state):
        sums = totals.setdefault("" if faults.limits is None else faults.limits.number, [0, 0])
        sums[0] += faults.total
        sums[1] += tried
        recent += faults.recent
    rate = max([total / max(_MIN_TRIED, tried) for total, tried in totals.values()], default=0.0)
    total, tried = [sum([sums[i] for sums in totals.values()]) for i in (0, 1)]
    return FaultCounts(total, rate, tried, latest(recent))


def latest(recent: Iterable[Passed]) -> tuple[Fault, ...]:
    """The last faults of several lanes, which are about as far as each other."""
    found = sorted(recent, key=lambda passed: passed.place)
    return tuple(dict.fromkeys([passed.fault for passed in found if passed.fault is not None]))[-NUM_LAST:]


class Again:
    """What a state says of elements that are tried again.

    Args:
        until: the outcomes before this place are known.
        over: what is passed over of them, by place.
    """

    def __init__(self, until: int = 0, over: Mapping[int, list[list[Any]]] | None = None) -> None:
        self.until = until
        self.over = over or {}

    @classmethod
    def parse(cls, faults: Any, owner: Any) -> tuple[int, Again]:
        """The total, and what is known.

        Raises:
            StateMismatchError: these are no counts of faults.
        """
        total = plain_int(faults.get("total")) if isinstance(faults, Mapping) else None
        if total is None or total < 0:
            raise StateMismatchError(f"faults in the state of {owner} must say how many there were (total), got {shown(faults)}")
        passed = faults.get("passed")
        if passed is None:
            return total, cls()
        parts = passed if isinstance(passed, Mapping) else {}
        known, listed = plain_counts([parts.get(key) for key in ("until", "tried", "total")]), parts.get("over")
        over: dict[int, list[list[Any]]] = {}
        if known is None or not isinstance(listed, list):
            known, listed = [0], [None]  # which is refused
        for entry in listed:
            numbers = plain_counts(entry[:2]) if isinstance(entry, list) and len(entry) == 3 else None
            if numbers is None:
                raise StateMismatchError(f"passed in the state of {owner} must say what was passed over, got {shown(passed)}")
            over.setdefault(numbers[0], []).append([numbers[1], given(entry[2])])
        return total, cls(known[0], over)


def failed_again(error: BaseException, stage: Any) -> None:
    """Notes why an error is none to be passed over."""
    add_note(
        error,
        f"{stage} does not pass over it: the element did not fail when the state was taken, and is taken again for what the "
        "state holds. Without it other elements would follow. Try again, or go back to an earlier state",
    )


class Event(NamedTuple):
    """Faults at one index of a step: so many; what they were is not known again."""

    number: str
    at: int
    num: int
    faults: tuple[Fault, ...]


class Running(threading.local):
    """What a thread is at, while it computes elements of a map dataset for an iterator.

    ``events`` takes what comes up; ``known`` says how often an element of a step fails, by the step's number and the index.
    ``None``: nobody wants to know; nobody knows.
    """

    events: list[Event] | None = None
    known: Mapping[tuple[str, int], int] | None = None


running = Running()  # of this thread


@contextlib.contextmanager
def passed_over() -> Iterator[list[Event]]:
    """What comes up in this context, which whoever wants to know it outside of this gets, too."""
    outer, running.events = running.events, []
    try:
        yield running.events
    finally:
        events, running.events = running.events, outer
        if outer is not None:
            outer += events


class LaneBudgets:
    """Judges what is delivered of several lanes, in that order.

    Args:
        tolerances: of the steps upstream.
        states: gives the state of every lane after what was delivered.
        told: is told of the step's name, and how many of its faults are passed.
        is_common: whether every lane looks at all elements, so that the faults of one are those of all.
    """

    def __init__(
        self,
        tolerances: Iterable[Tolerance],
        states: Callable[[], Iterable[Any]],
        told: Callable[[str, int], None],
        *,
        is_common: bool = False,
    ) -> None:
        self._tolerances = {tolerance.limits.number: tolerance for tolerance in tolerances}
        self._states = states
        self._told = told
        self._is_common = is_common
        self._seen: dict[int, Any] = {}  # of every lane, what its counts were read from
        self._counts: dict[tuple[Any, ...], tuple[str, int, int]] = {}  # number of the step, total, tried; by lane and path
        self._logs: dict[tuple[Any, ...], FaultLog] = {}
        self._written: dict[tuple[Any, ...], int] = {}

    def restart(self) -> None:
        """Goes to where the lanes are now."""
        self._seen, self._counts = {}, {}
        for lane, state in enumerate(self._states()):
            for key, tally in self._of_lane(lane, state):
                self._logs[key].cut(tally.until)  # what comes after that is tried again
                if tally.faults.total >= self._known(key):
                    self._note(key, tally)

    def pass_skipped(self) -> None:
        """As ``restart``, where somebody skipped an output: what failed in it is told, and not judged."""
        for lane, state in enumerate(self._states()):
            for key, tally in self._of_lane(lane, state):
                if tally.faults.total > self._known(key):
                    self._pass(key, tally)
        self.restart()

    def judge(self, delivered: Sequence[tuple[int, Any, Callable[[], Any]]]) -> Exception | None:
        """Counts what is delivered: of which lane, from which sequence of states, and what gives the state.

        Returns:
            Why it must not be: too many faults; or, where several are, that there are any, so that each is judged alone.
        """
        for lane, source, state in delivered:
            if type(source) is not list and self._seen.get(lane) is source:
                continue  # a whole block without faults
            self._seen[lane] = source
            fresh = [(key, tally) for key, tally in self._of_lane(lane, state()) if tally.faults.total > self._known(key)]
            if not fresh:
                continue
            if len(delivered) > 1:
                self._seen = {}
                return OneByOne()
            error = self._judge_all()
            if error is not None:
                self._seen = {}
                return error
            for key, tally in fresh:
                self._pass(key, tally)
        return None

    def _known(self, key: tuple[Any, ...]) -> int:
        return self._counts[key][1] if key in self._counts else 0

    def _judge_all(self) -> FaultBudgetError | None:
        sums: dict[str, list[int]] = {}
        recent: dict[str, list[Passed]] = {}
        found = [pair for lane, state in enumerate(self._states()) for pair in self._of_lane(lane, state)]
        # By key, so that of lanes that have it in common the one that is farthest counts.
        for key, (_, faults, _, tried) in dict(sorted(found, key=lambda pair: pair[1].tried)).items():
            number = key[-1]
            total = sums.setdefault(number, [0, 0])
            total[0] += faults.total
            total[1] += tried
            recent.setdefault(number, []).extend(faults.recent)
        for number, (total_faults, tried) in sums.items():
            limits = self._tolerances[number].limits.replaced(max_consecutive=None)
            error = limits.excess(total_faults, tried, 0, latest(recent[number]))
            if error is not None:
                return error
        return None

    def _of_lane(self, lane: int, state: Any) -> Iterator[tuple[tuple[Any, ...], Tally]]:
        for tally in tallies(state):
            limits = tally.faults.limits
            if limits is not None and limits.number in self._tolerances:
                key = 0 if self._is_common else lane, *tally.path, limits.number
                log = tally.faults.log = self._logs.setdefault(key, FaultLog())
                for place, *entry in tally.faults["passed"]["over"] if "passed" in tally.faults else ():
                    log.add(place, entry)
                for passed in tally.faults.recent:
                    log.add(passed.place, passed.entry)
                yield key, tally

    def _note(self, key: tuple[Any, ...], tally: Tally) -> None:
        self._counts[key] = key[-1], tally.faults.total, tally.tried

    def _pass(self, key: tuple[Any, ...], tally: Tally) -> None:
        num = tally.faults.total - max(self._known(key), self._written.get(key, 0))
        self._note(key, tally)
        if num > 0:
            self._written[key] = tally.faults.total
            tolerance = self._tolerances[key[-1]]
            tolerance.write([passed.fault for passed in tally.faults.recent[-num:]])
            self._told(tolerance.limits.name, num)
