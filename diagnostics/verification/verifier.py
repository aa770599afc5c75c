"""``verify``: the conditions one after another, until one makes a difference."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, Literal, TypeAlias

from gristmill.core.errors import as_int, as_seconds
from gristmill.core.naming import one_line
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.descriptions.display import stage_name
from gristmill.diagnostics.diagnosis.mixture_shares import mixture_shares
from gristmill.diagnostics.graph.stages import last_stage
from gristmill.diagnostics.verification.comparing import Comparison, base_of, compared
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
    Threads,
    WorkersInStreamOrder,
)
from gristmill.diagnostics.verification.culprit import Search
from gristmill.diagnostics.verification.fresh import ColdCopies, Surroundings
from gristmill.diagnostics.verification.outcomes import Clock, StepOutcome, recorded
from gristmill.diagnostics.verification.report import AFTERWARDS, Check, Report
from gristmill.diagnostics.verification.subject import (
    NUM_WORKERS,
    Subject,
    SubPipeline,
    maps_read_by_streams,
)
from gristmill.loader import DataLoader
from gristmill.workers.pickling import dumps

_FOR_REFERENCE = 0.15  # of the time
_FOR_CULPRIT = 0.3  # of the time that is left when a difference is found, at least
_MAX_NOTE = 200  # characters
_MAX_MAPS = 4  # that are read in random order
_NO_TIME = "there was no time left"
_NO_PROCESS = "the process failed"
_Comparisons: TypeAlias = Generator[tuple[Condition, Comparison | str], None, None]
_SURROUNDINGS = [
    Surroundings(hash_seed=number, has_other_locale=True, lists_backwards=True, number=number)
    for number in (1, 2)
]


def verify(ds: Any, *, steps: int = 200, seconds: float = 60) -> Report:
    """Runs ``ds`` in all ways that must not be observable, and returns a report of what differs.

    It compares the first outputs, and the states after them: with a second run; in fresh processes
    with another ``PYTHONHASHSEED``, locale and order of the files in a directory; ``ds[i]`` in
    random order; in blocks of other sizes; restored in the middle by a process that has not
    computed the first half, then saved and restored at random steps; read by 0, 1 and 16 threads;
    computed by 0 and 2 worker processes, in lanes. Checks that do not apply are skipped, and the
    report says why. Elements are equal if their structures, types, dtypes, shapes and bits are (NaN
    equals NaN), errors if their types and texts are.

    All checks but the second run use copies of the pipeline, in fresh processes. The state that
    functions keep (closures, default arguments, attributes, global variables of the script) is in a
    copy as it was when ``verify`` was called; modules are imported again. So the state that an
    earlier run has left cannot hide a difference. A pipeline that cannot be pickled is run in this
    process alone.

    At the first difference, the part of the pipeline up to each stage is run by itself to find the
    stage, and the stage is watched to find the reason.

    The pipeline runs about 10 times for ``steps`` steps, once or twice in this process. A copy of
    it is kept as bytes, its in-memory sources included. ``verify`` can find a difference, but not
    show that there is none.

    Args:
        ds: a ``MapDataset``, ``IterDataset`` or ``DataLoader``.
        steps: how many outputs to compare, at least 1.
        seconds: how long it may take, about: what was not got to is said in the report. An output
            that takes long by itself is waited for.

    Raises:
        TypeError: ``ds`` is no such pipeline, or draws from an iterator that is in use; or another
            argument has the wrong type.
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
        made_by: the name by which it can be made again in another process.
    """

    def __init__(self, ds: Any, steps: int, seconds: float, made_by: str | None = None) -> None:
        if not isinstance(ds, MapDataset | IterDataset | DataLoader):
            raise TypeError(
                f"ds must be a MapDataset, IterDataset or DataLoader, got {shown(ds)} of type"
                f" {type(ds).__name__}"
            )
        for node in ancestors(last_stage(ds)):
            if isinstance(node, DatasetIterator):
                raise TypeError(
                    f"ds must not draw from an iterator, which would be moved, got {node}: pass the"
                    " dataset it reads"
                )
        self._ds = ds
        self._steps = as_int("steps", steps, minimum=1)
        self._began = time.monotonic()
        self._clock = Clock(as_seconds("seconds", seconds, minimum=0.001))
        self._made_by = made_by
        try:
            self._packed: bytes | Exception = dumps(ds)
        except Exception as error:
            self._packed = error
        self._copies = ColdCopies(ds, self._packed)
        self._checks: list[Check] = []
        self._note = ""

    def report(self) -> Report:
        """Runs it under all conditions, up to the first difference."""
        return self._compared().replaced(mixtures=tuple(mixture_shares(last_stage(self._ds))))

    def _compared(self) -> Report:
        base = recorded(Subject(self._ds).open, self._steps, self._clock.part(_FOR_REFERENCE))
        if base[-1].is_last:
            self._note = (
                f"the first run ended after {len(base) - 1} steps: {base[-1].leaves[0].shown}"
            )
        elif len(base) < self._steps:
            self._note = f"there was time for {len(base)} of {self._steps} steps"
        conditions = self._conditions()
        with contextlib.closing(self._comparisons(conditions, base)) as comparisons:
            for i, (condition, found) in enumerate(comparisons):
                self._checks.append(_check(condition, found))
                if isinstance(found, Comparison) and found.difference is not None:
                    for other in conditions[i + 1 :]:
                        self._checks.append(Check(other.name, "skipped", 0, AFTERWARDS))
                    return self._different(condition, found, base)
        return Report(True, tuple(self._checks), self._num(base), self._elapsed, self._note)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _num(self, base: list[StepOutcome]) -> int:
        return len(base) - base[-1].is_last

    def _conditions(self) -> list[Condition]:
        maps = dict([*maps_read_by_streams(self._ds)][:_MAX_MAPS])
        names = {
            address: f", {stage_name(node)}" if len(maps) > 1 else ""
            for address, node in maps.items()
        }
        made_again = (
            [] if self._made_by is None else [MadeAnew(self._made_by, x) for x in _SURROUNDINGS]
        )
        workers: list[Condition] = [WorkersInStreamOrder(), Lanes()]
        if Subject(self._ds).has_own_workers:
            workers = [OwnWorkers(num) for num in (0, NUM_WORKERS)]
        packed = b"" if isinstance(self._packed, Exception) else self._packed
        by_index = (RandomOrder, RandomBlocks)
        return [
            Again(),
            *[Fresh(packed, x) for x in _SURROUNDINGS],
            *made_again,
            *[kind(SubPipeline(at), which) for at, which in names.items() for kind in by_index],
            Blocks(),
            Restored(),
            *[Threads(num) for num in (0, 1, 16)],
            *workers,
        ]

    def _comparisons(self, conditions: list[Condition], base: list[StepOutcome]) -> _Comparisons:
        """Yields each condition with what it finds, or with the reason why it was skipped.

        Conditions with the same ``process`` share one, because starting a process imports what the
        pipeline needs. Only the first of them finds the modules as they are after the import.
        """
        num_left = len(conditions)
        for process, members in itertools.groupby(conditions, lambda x: x.process):
            group = [*members]
            tasks = [self._task(condition, base, num_left - i) for i, condition in enumerate(group)]
            num_left -= len(group)
            functions = [task for task in tasks if not isinstance(task, str)]
            if process is None:
                results: Generator[Any, None, None] = (call(self._ds) for call in functions)
            else:
                results = self._copies.calls(functions, self._clock)
            with contextlib.closing(results):
                for condition, task in zip(group, tasks, strict=True):
                    yield condition, task if isinstance(task, str) else self._result(results)

    def _task(self, condition: Condition, base: list[StepOutcome], num_left: int) -> Any:
        """Returns a function that compares, given a pipeline; or the reason why there is none."""
        if self._clock.is_over:
            return _NO_TIME
        if condition.is_about == "processes" and isinstance(self._packed, Exception):
            return f"the pipeline cannot be sent to other processes: {self._packed}"
        seconds = self._clock.left * max(0.25, 1 / num_left) * (1 - _FOR_CULPRIT)
        own = base
        if condition.part != SubPipeline() or condition.has_own_base:
            num = len(base) if condition.part == SubPipeline() else self._steps
            try:
                own = base_of(condition, condition.part, num, 0.5 * seconds, self._ds)
            except CannotRunError as error:
                return str(error)
        return partial(compared, condition, condition.part, own, seconds)

    def _result(self, results: Iterator[Comparison | CannotRunError]) -> Comparison | str:
        if self._clock.is_over:
            return _NO_TIME
        try:
            found = next(results, _NO_PROCESS)
        except Exception as error:
            return f"the process failed, {type(error).__name__}: {error!s:.300}"
        return str(found) if isinstance(found, CannotRunError) else found

    def _different(
        self, condition: Condition, found: Comparison, base: list[StepOutcome]
    ) -> Report:
        difference = found.difference
        assert difference is not None
        clock = self._clock.part(0.8)
        num = max(found.num_wanted, 1)
        stage, reason = Search(self._ds, self._copies, condition, num, clock).find()
        return Report(
            False,
            tuple(self._checks),
            self._num(base),
            self._elapsed,
            self._note,
            condition=condition.name,
            step=difference.step,
            leaf=difference.leaf,
            values=difference.values,
            stage=stage,
            reason=reason,
        )


def _check(condition: Condition, found: Comparison | str) -> Check:
    if isinstance(found, str):
        return Check(condition.name, "skipped", 0, one_line(found, _MAX_NOTE))
    status: Literal["passed", "failed"] = "passed" if found.difference is None else "failed"
    return Check(condition.name, status, found.num, "", found.num_wanted)
