"""The counts of faults in positions and states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.faults.budget import MIN_TRIED, NUM_LAST, Fault, FaultCounts, Limits
from gristmill.dataset.states.values import copied


class Skipped(NamedTuple):
    """A fault, and the number ``place`` of the element among all that were tried; ``stage`` is
    which of the stages of a map dataset has skipped it.
    """

    place: int
    fault: Fault
    stage: int = 0


class Count(NamedTuple):
    """The faults of a stage up to a position.

    Args:
        total: their number.
        row: how many in a row the last ones were.
        last: the number of the element that failed last, or was replaced; among those that the
            iterator reads.
        recent: the last 20 of this run, and all since the last element that did not fail.
        epoch: how often a stream has restarted, since its choices may be recorded with those of
            the epoch before.
    """

    total: int = 0
    row: int = 0
    last: int = -1
    recent: tuple[Skipped, ...] = ()
    epoch: int = 0

    def row_at(self, place: int) -> int:
        """Return how many faults in a row there are before or at the element ``place``."""
        return self.row if self.last in (place, place - 1) else 0

    def added(self, place: int, num: int, skipped: Sequence[Skipped]) -> Count:
        """Return the counts after ``num`` faults at the element ``place``."""
        row = self.row_at(place)
        recent = self.recent if row else self.recent[-NUM_LAST + 1 :]
        return Count(self.total + num, row + num, place, (*recent, *skipped), self.epoch)

    @property
    def last_faults(self) -> list[Fault]:
        return [skipped.fault for skipped in self.recent]


class Choice(dict[str, Any]):
    """The recorded choice of a stage to skip or replace elements: JSON, and the faults if they are
    of this run.

    It has ``after``, the state of the parent after the element that was skipped, ``asked``, the
    numbers of choices that stages upstream made for it, and ``epoch`` (see ``Count``). Or, of a map
    dataset, it has ``faults``: ``[stage, index, number]`` of each stage that skipped or replaced
    elements, with a zero after it if another element counts them.
    """

    __slots__ = ("skipped",)

    def __init__(self, values: Mapping[str, Any], skipped: tuple[Skipped, ...] = ()) -> None:
        super().__init__(values)
        self.skipped = skipped

    def __deepcopy__(self, memo: object) -> Choice:
        return Choice(copied(dict(self)), self.skipped)

    __copy__ = None

    def __reduce__(self) -> Any:
        return Choice, (dict(self), self.skipped)


def num_faults(choice: Mapping[str, Any], stage: int | None = None) -> int:
    """Return how many faults of a stage, or of all, are counted in a recorded choice."""
    entries = choice.get("faults")
    if entries is None:
        return 1
    return sum([num for at, _, num, *rest in entries if stage in (None, at) and not rest])


def skipped_of(choice: Mapping[str, Any], stage: int) -> tuple[Skipped, ...]:
    """Return what is known in this run of the faults of a stage in a recorded choice."""
    return tuple([x for x in getattr(choice, "skipped", ()) if x.stage == stage])


class Faults(dict[str, Any]):
    """The counts of a stage in a state: JSON, and what other parts of this run need.

    No count in it grows with the elements.

    Args:
        counts: ``total``, and ``epoch`` (see ``Count``).
        limits: of the stage.
        recent: see ``Count``.
        key: under which choices of the stage are recorded.
        rate: how many elements of the stage the iterator draws from an epoch, and the length of
            that.
    """

    __slots__ = ("key", "limits", "rate", "recent")

    def __init__(
        self,
        counts: Mapping[str, Any],
        limits: Limits | None = None,
        recent: tuple[Skipped, ...] = (),
        key: str = "",
        rate: tuple[int, int] = (1, 1),
    ) -> None:
        super().__init__(counts)
        self.limits, self.recent, self.key, self.rate = limits, recent, key, rate

    def __deepcopy__(self, memo: object) -> Faults:
        return Faults(copied(dict(self)), self.limits, self.recent, self.key, self.rate)

    __copy__ = None

    def __reduce__(self) -> Any:
        return Faults, (dict(self), self.limits, self.recent, self.key, self.rate)


class FaultTotals(NamedTuple):
    """The counts of a stage in a state, up to the end of what is known of the elements that are
    replayed.

    Args:
        path: where in the state they are.
        faults: the counts in the state.
        place: the number of elements that the iterator of the stage is after.
        total: the number of faults.
        tried: the number of elements of the stage that were tried.
        recent: the last faults of this run.
    """

    path: tuple[Any, ...]
    faults: Faults
    place: int
    total: int
    tried: int
    recent: tuple[Skipped, ...]


def place_in(state: Mapping[str, Any]) -> int:
    """Return how many elements an iterator's state is after, of all epochs."""
    place: int = next(
        state[key] for key in ("next_index", "global_next_index", "tried") if key in state
    )
    return place + int(state.get("before", 0))


def fault_totals(
    state: object, path: tuple[Any, ...] = (), records: tuple[Mapping[str, Any], ...] = ()
) -> Iterator[FaultTotals]:
    """Return all counts in a state that an iterator of this process or a worker has returned.

    Args:
        state: the state.
        path: where it is in the whole state.
        records: the records of choices of the stages downstream.
    """
    if type(state) is dict:
        if type(state.get("choices")) is dict and not _is_after_choices(state):
            records = (*records, state["choices"])
        found = state.get("faults")
        if type(found) is list and found and type(found[0]) is Faults:
            place = place_in(state)
            tried = state.get("tried", place)
            for i, faults in enumerate(found):
                num_tried = tried[i] if type(tried) is list else tried
                yield _fault_totals((*path, i), faults, place, num_tried, records)
        for key, value in state.items():
            if type(value) in (dict, list) and key != "choices":
                yield from fault_totals(value, (*path, key), records)
    elif type(state) is list:
        for i, value in enumerate(state):
            if type(value) in (dict, list):
                yield from fault_totals(value, (*path, i), records)


def _is_after_choices(state: Mapping[str, Any]) -> bool:
    """Return true for a cache, whose choices are before the parent's state."""
    return "cache_filled" in state and any(
        [of_step.place > 0 for of_step in fault_totals(state["parent"])]
    )


def _fault_totals(
    path: tuple[Any, ...],
    faults: Faults,
    place: int,
    tried: int,
    records: Sequence[Mapping[str, Any]],
) -> FaultTotals:
    total, recent = faults["total"], faults.recent
    tried = faults.get("tried", tried)
    for record in records:
        num, choices = record.get(faults.key, (0, ()))
        tried += num * faults.rate[0] // faults.rate[1]
        for _, choice in choices:
            total += num_faults(choice, path[-1])
            recent = (*recent, *skipped_of(choice, path[-1]))
    return FaultTotals(path, faults, place, total, tried, recent)


def counted(state: object) -> FaultCounts:
    """Return the counts in a state."""
    totals: dict[str, list[int]] = {}
    recent: list[Skipped] = []
    keys = set()
    for of_step in fault_totals(state):
        keys.add(of_step.faults.key)
        limits = of_step.faults.limits
        sums = totals.setdefault("" if limits is None else limits.number, [0, 0])
        sums[0] += of_step.total
        sums[1] += of_step.tried
        recent += of_step.recent
    # of members of an interleave that began after what the state has of it
    for record in _records(state):
        for key in record.keys() - keys:
            num, found = _in_record(record[key])
            sums = totals.setdefault("", [0, 0])
            sums[0] += found
            sums[1] += num
    rate = max([total / max(MIN_TRIED, tried) for total, tried in totals.values()], default=0.0)
    total, tried = [sum([sums[i] for sums in totals.values()]) for i in (0, 1)]
    return FaultCounts(total, rate, tried, latest(recent))


def _records(state: object) -> Iterator[Mapping[str, Any]]:
    """Return all records of choices in a state."""
    if type(state) is dict:
        if type(state.get("choices")) is dict and not _is_after_choices(state):
            yield state["choices"]
        for key, value in state.items():
            if key != "choices":
                yield from _records(value)
    elif type(state) is list:
        for value in state:
            yield from _records(value)


def _in_record(record: object) -> tuple[int, int]:
    """Return how many elements a record is about, and how many of them have failed."""
    if type(record) is not list:
        return 0, 0  # draws of a mixture
    num, choices = record
    return num, sum([num_faults(choice) for _, choice in choices if isinstance(choice, Mapping)])


def latest(recent: Iterable[Skipped]) -> tuple[Fault, ...]:
    """Return the last faults of several lanes, which are about equally far."""
    faults: list[Fault] = []
    for skipped in sorted(recent, key=lambda skipped: skipped.place):
        if skipped.fault not in faults:  # a fault of several records has a list of keys
            faults.append(skipped.fault)
    return tuple(faults[-NUM_LAST:])
