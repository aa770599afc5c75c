"""The arguments of ``tolerate``: which errors it is about, and the limits."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.core.errors import (
    FaultBudgetError,
    SourceEnded,
    StateMismatchError,
    add_note,
    as_int,
    as_seconds,
    check_word,
)
from gristmill.core.state import shown
from gristmill.core.value import Value
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.errors.context import is_pipeline_error, note_at

# Replaced by ``write``, whose users have no iterator.
REMEDY = "Look at the records, allow more, or go past this one with it.skip_failed()."
NEVER = (NameError, SyntaxError, MemoryError, StateMismatchError, SourceEnded, FaultBudgetError)
NUM_LAST = 20
MIN_TRIED = 1000  # elements that a rate refers to, at least
_MAX_TEXT = 300  # characters
_REFUSED = "_gristmill_refused"  # at an error that a ``tolerate`` has let through

_numbers = count()


class _Numbering(threading.local):
    numbers: Iterator[str] | None = None  # for stages of the dataset that this thread opens


_numbering = _Numbering()


@contextlib.contextmanager
def numbered_by(name: str) -> Iterator[None]:
    """Number the stages that are made in this context by ``name``.

    A function that makes them again, in any process, gives them the same numbers.
    """
    outer, _numbering.numbers = _numbering.numbers, (f"{name}.{i}" for i in count())
    try:
        yield
    finally:
        _numbering.numbers = outer


class Fault(NamedTuple):
    """An element that failed.

    Args:
        record_key: the key of its record, a list of them if there are several; ``None`` if it is
            not known.
        stage: the stage that raised the error.
        error: the type and the message of the error.
    """

    record_key: Any
    stage: str
    error: str

    @classmethod
    def of(cls, error: BaseException, stage: object) -> Fault:
        """Return the fault of an element of ``stage`` that raised ``error``."""
        context = note_at(error)
        keys = () if context is None else context.failure.record_keys
        name = (
            context.failure.stage if context is not None and context.failure.stage else str(stage)
        )
        return cls(
            keys[0] if len(keys) == 1 else [*keys] or None,
            name,
            f"{type(error).__name__}: {error!s:.{_MAX_TEXT}}",
        )


class FaultCounts(Value):
    """Elements that were skipped or replaced, in this run and those that it continues.

    Args:
        total: their number.
        rate: their share of the elements that were tried, at least of 1000; of several stages, the
            highest share.
        tried: the number of elements that were tried.
        last: the last 20 of this run, the latest one last.
    """

    total: int
    rate: float
    tried: int
    last: tuple[Fault, ...]


class Limits(Value):
    """The limits of a stage, as plain data, which goes with the counts of workers.

    Args:
        number: distinguishes stages.
        name: of the stage.
        max_rate: the largest share of the elements tried, at least of 1000.
        max_total: the largest number.
        max_consecutive: the largest number in a row.
    """

    number: str
    name: str
    max_rate: float | None
    max_total: int | None
    max_consecutive: int | None

    def exceeded(
        self, total: int, tried: int, in_a_row: int, last: Iterable[Fault]
    ) -> FaultBudgetError | None:
        """Return an error if ``total`` faults, ``in_a_row`` of them the last ones, exceed a limit.

        Args:
            total: faults so far.
            tried: elements tried so far.
            in_a_row: faults since the last element that did not fail.
            last: the last faults.
        """
        if self.max_consecutive is not None and in_a_row > self.max_consecutive:
            reason = f"{in_a_row} in a row are more than max_consecutive={self.max_consecutive}"
        elif self.max_total is not None and total > self.max_total:
            reason = f"they are more than max_total={self.max_total}"
        elif self.max_rate is not None and total > self.max_rate * max(MIN_TRIED, tried):
            reason = f"they are more than max_rate={self.max_rate:g} of {max(MIN_TRIED, tried)}"
        else:
            return None
        faults = tuple(last)[-NUM_LAST:]
        lines = [f"record key {x.record_key}, {x.stage}: {x.error}" for x in faults]
        return FaultBudgetError(
            f"{self.name}: {total} of {tried} elements failed, and {reason}. {REMEDY} The last"
            " ones:\n" + "\n".join(lines),
            faults,
        )


class TolerateParameters(Parameters):
    errors: Any = field(in_checkpoint=False, in_repr=False)
    max_rate: float | None = field(in_checkpoint=False)
    max_total: int | None = field(in_checkpoint=False, in_repr=False)
    max_consecutive: int | None = field(in_checkpoint=False, in_repr=False)
    retries: int = field(in_checkpoint=False, in_repr=False)
    backoff_seconds: float = field(in_checkpoint=False, in_repr=False)
    then: str
    log: Any = field(in_checkpoint=False, in_repr=False)

    def __post_init__(self) -> None:
        kinds = self.errors if isinstance(self.errors, tuple) else (self.errors,)
        if not kinds or not all(
            [isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds]
        ):
            raise TypeError(
                "errors must be a subclass of Exception, or a tuple of them, got"
                f" {shown(self.errors)}"
            )
        check_word("then", self.then, "skip", "replace")
        if self.max_rate is not None:
            if isinstance(self.max_rate, bool | str) or not hasattr(self.max_rate, "__float__"):
                raise TypeError(f"max_rate must be a number or None, got {shown(self.max_rate)}")
            if not 0 <= float(self.max_rate) <= 1:
                raise ValueError(f"max_rate must be in [0, 1], got {self.max_rate}")
            self._replace(max_rate=float(self.max_rate))
        for name in ("max_total", "max_consecutive"):
            if getattr(self, name) is not None:
                self._replace(**{name: as_int(name, getattr(self, name), minimum=0)})
        if not (
            self.log is None
            or isinstance(self.log, str)
            or hasattr(self.log, "__fspath__")
            or hasattr(self.log, "write")
        ):
            raise TypeError(
                f"log must be a path, a file open for text, or None, got {shown(self.log)}"
            )
        self._replace(
            errors=kinds,
            retries=as_int("retries", self.retries, minimum=0),
            backoff_seconds=as_seconds("backoff_seconds", self.backoff_seconds),
        )

    def __getstate__(self) -> dict[str, Any]:
        # an open file stays in its process
        return {**vars(self), "log": None if hasattr(self.log, "write") else self.log}


class Tolerance:
    """The budget of one stage of ``tolerate``."""

    def __init__(self, given: TolerateParameters, name: str) -> None:
        self.limits = Limits(
            self.new_number(), name, given.max_rate, given.max_total, given.max_consecutive
        )
        self.replaces, self.retries = given.then == "replace", given.retries
        self._given = given

    @staticmethod
    def new_number() -> str:
        """Return what distinguishes a stage from all others, of other processes too."""
        return next(_numbering.numbers or (f"{os.getpid()}-{i}" for i in _numbers))

    def tolerates(self, error: BaseException) -> bool:
        """Return true if the element that raised ``error`` may be skipped or replaced."""
        is_meant = isinstance(error, self._given.errors) and not isinstance(error, NEVER)
        return is_meant and not is_pipeline_error(error) and refused_by(error) is None

    def attempt(
        self, compute: Callable[[], Any], error: Exception | None = None
    ) -> tuple[Any, Exception | None]:
        """Return what ``compute`` returns, and ``None``; or ``None``, and the error of the last
        attempt.

        Args:
            compute: called for every attempt.
            error: the error of the first attempt, if it was made already.

        Raises:
            Exception: an error that is not tolerated, here or in a later ``tolerate``.
        """
        try:
            for i in range(self.retries + 1):
                if i:
                    time.sleep(self._given.backoff_seconds * 2 ** (i - 1))
                if i or error is None:
                    try:
                        return compute(), None
                    except Exception as failed:
                        error = failed
                if not self.tolerates(error):
                    refuse(error, self.limits)
                    raise error
            return None, error
        finally:
            del error  # its traceback refers to this frame

    def write(self, faults: Iterable[Fault]) -> None:
        """Add lines to the log."""
        log = self._given.log
        if log is None:
            return
        entries = [{**fault._asdict(), "tolerate": self.limits.name} for fault in faults]
        text = "".join([json.dumps(entry, default=str) + "\n" for entry in entries])
        if hasattr(log, "write"):
            log.write(text)
            return
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(text)


def refuse(error: BaseException, limits: Limits) -> None:
    """Note that the stage with ``limits``, and none downstream, covers what raised ``error``."""
    vars(error).setdefault(_REFUSED, limits.number)


def refused_by(error: BaseException) -> str | None:
    """Return the number of the stage upstream that has let ``error`` through."""
    number: str | None = vars(error).get(_REFUSED)
    return number


def failed_again(error: BaseException, stage: object, limits: Limits) -> None:
    """Note at ``error`` why the element is not skipped, which has to be computed again."""
    refuse(error, limits)
    add_note(
        error,
        f"{stage} does not pass over it: the element did not fail when the state was taken, and is"
        " taken again for what the state holds. Without it other elements would follow. Try again,"
        " or go back to an earlier state",
    )
