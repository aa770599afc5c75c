"""``verify``: the conditions one after another, until one makes a difference."""

from __future__ import annotations

import time
from typing import Any

from gristmill.core.errors import as_int, as_seconds
from gristmill.core.naming import one_line
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.telling.display import stage_name
from gristmill.diagnostics.verification.comparing import Comparison, compare
from gristmill.diagnostics.verification.conditions import (
    Again,
    Blocks,
    CannotRunError,
    Condition,
    Fresh,
    Lanes,
    MadeAnew,
    OwnWorkers,
    RandomBlocks,
    RandomOrder,
    Restored,
    StreamOrder,
    Threads,
)
from gristmill.diagnostics.verification.culprit import Search
from gristmill.diagnostics.verification.fresh import Surroundings
from gristmill.diagnostics.verification.outcomes import Clock, Outcome, recorded
from gristmill.diagnostics.verification.report import AFTERWARDS, Check, Report
from gristmill.diagnostics.verification.subject import NUM_WORKERS, Part, Subject, last_stage, maps_read_by_streams
from gristmill.loader import DataLoader
from gristmill.workers.pickling import dumps

_FOR_REFERENCE = 0.15  # of the time
_FOR_CULPRIT = 0.3  # of the time that is left when a difference is found, at least
_MAX_NOTE = 200  # characters
_MAX_MAPS = 4  # that are read in random order
_SURROUNDINGS = [Surroundings(hash_seed=number, has_other_locale=True, lists_backwards=True, number=number) for number in (1, 2)]


def verify(ds: Any, *, steps: int = 200, seconds: float = 60) -> Report:
    """Returns whether ``ds`` gives the same elements and states whenever and wherever it runs; if not, where, and why.

    Compared are the first outputs, and the states after them: with a second run; in a fresh process with another
    ``PYTHONHASHSEED``, locale and order of the files in a directory; read by 0, 1 and 16 threads; in blocks of other sizes;
    computed by 0 and 2 worker processes, in lanes; saved and restored, again and again, at random steps; and ``ds[i]`` in random
    order. What does not apply to a pipeline is left out, and the report says why. Elements are equal if their structures, types,
    dtypes, shapes and bits are (NaN equals NaN), errors if their types and texts are.

    At the first difference the part of the pipeline before each stage is run by itself, which tells the stage; and the stage is
    watched, which mostly tells the reason.

    The pipeline runs about 10 times for so many steps, in this process and others. A copy of it is kept as bytes, its in-memory
    sources included. It cannot show that there is no difference, only find one.

    Args:
        ds: a ``MapDataset``, ``IterDataset`` or ``DataLoader``.
        steps: how many outputs to compare, at least 1.
        seconds: how long it may take, about: what was not got to is said in the report. An output that takes long by itself is
            waited for.

    Raises:
        TypeError: ``ds`` is no such pipeline, or draws from an iterator that is in use; or another argument has the wrong type.
        ValueError: a number is out of range.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> verify(MapDataset.range(10).shuffle(seed=1).batch(2), steps=3).ok
        True
        >>> counter = iter(range(1000))
        >>> report = verify(MapDataset.range(10).map(lambda x: x + next(counter)), steps=3)
        >>> report.ok, report.step, report.values, report.reason
        (False, 0, (0, 3), 'an iterator is kept: the global variable counter of <lambda>')
    """
    return Verifier(ds, steps, seconds).report()


class Verifier:
    """Verifies one pipeline.

    Args:
        ds: the pipeline.
        steps: how many outputs.
        seconds: how long.
        made_by: the name by which it can be made anew in another process.
    """

    def __init__(self, ds: Any, steps: int, seconds: float, made_by: str | None = None) -> None:
        if not isinstance(ds, MapDataset | IterDataset | DataLoader):
            raise TypeError(f"ds must be a MapDataset, IterDataset or DataLoader, got {shown(ds)} of type {type(ds).__name__}")
        for node in ancestors(last_stage(ds)):
            if isinstance(node, DatasetIterator):
                raise TypeError(f"ds must not draw from an iterator, which would be moved, got {node}: pass the dataset it reads")
        self._ds = ds
        self._steps = as_int("steps", steps, minimum=1)
        self._began = time.monotonic()
        self._clock = Clock(as_seconds("seconds", seconds, minimum=0.001))
        self._made_by = made_by
        try:
            self._packed: bytes | Exception = dumps(ds)
        except Exception as error:
            self._packed = error
        self._checks: list[Check] = []
        self._note = ""

    def report(self) -> Report:
        """Runs it under all conditions, up to the first difference."""
        base = recorded(Subject(self._ds).open, self._steps, self._clock.part(_FOR_REFERENCE))
        if base[-1].is_last:
            self._note = f"the first run ended after {len(base) - 1} steps: {base[-1].leaves[0].shown}"
        elif len(base) < self._steps:
            self._note = f"there was time for {len(base)} of {self._steps} steps"
        conditions = self._conditions()
        for i, condition in enumerate(conditions):
            found = self._run(condition, base, len(conditions) - i)
            if found is not None and found.difference is not None:
                for other in conditions[i + 1 :]:
                    self._checks.append(Check(other.name, "skipped", 0, AFTERWARDS))
                return self._different(condition, found, base)
        return Report(True, tuple(self._checks), self._num(base), self._elapsed, self._note)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _num(self, base: list[Outcome]) -> int:
        return len(base) - base[-1].is_last

    def _conditions(self) -> list[Condition]:
        maps = dict([*maps_read_by_streams(self._ds)][:_MAX_MAPS])
        names = {address: f", {stage_name(node)}" if len(maps) > 1 else "" for address, node in maps.items()}
        anew = [] if self._made_by is None else [MadeAnew(self._made_by, x) for x in _SURROUNDINGS]
        workers: list[Condition] = [StreamOrder(), Lanes()]
        if Subject(self._ds).has_own_workers:
            workers = [OwnWorkers(num) for num in (0, NUM_WORKERS)]
        return [
            Again(),
            *[kind(Part(address), which) for address, which in names.items() for kind in (RandomOrder, RandomBlocks)],
            Blocks(),
            Restored(),
            *[Fresh(b"" if isinstance(self._packed, Exception) else self._packed, x) for x in _SURROUNDINGS],
            *anew,
            *[Threads(num) for num in (0, 1, 16)],
            *workers,
        ]

    def _run(self, condition: Condition, base: list[Outcome], num_left: int) -> Comparison | None:
        if self._clock.is_over:
            self._checks.append(Check(condition.name, "skipped", 0, "there was no time left"))
            return None
        if condition.is_about == "processes" and isinstance(self._packed, Exception):
            note = one_line(f"the pipeline cannot be sent to other processes: {self._packed}", _MAX_NOTE)
            self._checks.append(Check(condition.name, "skipped", 0, note))
            return None
        is_whole = condition.part == Part()
        clock = self._clock.part(max(0.25, 1 / num_left) * (1 - _FOR_CULPRIT))
        try:
            subject = Subject(self._ds, condition.part)
            found = compare(condition, subject, len(base) if is_whole else self._steps, clock, base if is_whole else None)
        except CannotRunError as error:
            self._checks.append(Check(condition.name, "skipped", 0, one_line(str(error), _MAX_NOTE)))
            return None
        if found.difference is not None:
            self._checks.append(Check(condition.name, "failed", found.num))
        else:
            note = f"of {found.num_wanted}: there was no more time" if found.num < found.num_wanted and clock.is_over else ""
            self._checks.append(Check(condition.name, "passed", found.num, note))
        return found

    def _different(self, condition: Condition, found: Comparison, base: list[Outcome]) -> Report:
        difference = found.difference
        assert difference is not None
        culprit = Search(self._ds, self._packed, condition, max(found.num_wanted, 1), self._clock.part(0.8)).find()
        return Report(
            False,
            tuple(self._checks),
            self._num(base),
            self._elapsed,
            self._note,
            condition.name,
            difference.step,
            difference.leaf,
            difference.values,
            culprit.stage,
            culprit.reason,
        )
