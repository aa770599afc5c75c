"""The same pipeline in a process that has just started, with other surroundings."""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from gristmill.core.node_types import register_expected
from gristmill.core.options import MultiprocessingOptions
from gristmill.core.value import Value
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.diagnostics.attended import Attended
from gristmill.diagnostics.verification.outcomes import Clock, Outcome, error_outcome, recorded
from gristmill.diagnostics.verification.subject import DIRECT, Part, Subject
from gristmill.workers.pickling import dumps

_START_SECONDS = 10.0  # that a process may take besides


class Surroundings(Value):
    """In what a process differs from this one.

    Args:
        hash_seed: by which it orders sets of texts.
        has_other_locale: whether its language and encoding are others.
        lists_backwards: whether the files of a directory come in the opposite order.
        number: processes of different numbers have nothing in common, not even where their memory begins.
    """

    hash_seed: int = 1
    has_other_locale: bool = False
    lists_backwards: bool = False
    number: int = 0

    def environment(self) -> dict[str, str | None]:
        """The environment variables that make it so."""
        variables: dict[str, str | None] = {"PYTHONHASHSEED": str(self.hash_seed), "GRISTMILL_VERIFY": str(self.number)}
        if self.has_other_locale:
            given = next((x for x in map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG")) if x), "C")
            variables["LC_ALL"] = "C.UTF-8" if given in ("C", "POSIX") else "C"
        return variables


class Job(Value):
    """What a fresh process is to do.

    Args:
        pipeline: pickled; or the name by which it is made.
        part: which part of it.
        num: how many outcomes are wanted.
        seconds: how long it may take.
        lists_backwards: see ``Surroundings``.
    """

    pipeline: bytes | str
    part: Part
    num: int
    seconds: float
    lists_backwards: bool

    def run(self) -> list[Outcome]:
        if self.lists_backwards:
            list_backwards()
        try:
            subject = Subject(loaded(self.pipeline), self.part)
        except Exception as error:
            if isinstance(self.pipeline, bytes):
                raise
            return [error_outcome(error)]
        return recorded(subject.open, self.num, Clock(self.seconds))


def loaded(pipeline: bytes | str) -> Any:
    """A pipeline that nobody has used yet."""
    if isinstance(pipeline, bytes):
        found = pickle.loads(pipeline)
        register_expected()
        return found
    return importlib.import_module("gristmill.diagnostics.cli.target").load_pipeline(pipeline)


def run_fresh(pipeline: bytes | str, part: Part, num: int, clock: Clock, surroundings: Surroundings) -> list[Outcome]:
    """The first outcomes, as a new process finds them, which ends after it.

    Args:
        pipeline: pickled; or the name by which it is made anew, ``path/to/file.py:attribute``.
        part: which part of it.
        num: how many.
        clock: when to stop.
        surroundings: those of the process.

    Raises:
        Exception: the process could not be started, or died.
    """
    job = Job(pipeline, part, num, clock.left, surroundings.lists_backwards)
    options = MultiprocessingOptions(1, worker_env=surroundings.environment())
    ds = MapDataset.source([dumps(job)]).map(_run).to_iter_dataset(DIRECT)
    it = iterate(ds.mp_prefetch(options, _in_a_process_of_its_own))
    with Attended(lambda: it, clock.left + _START_SECONDS, "It does not hang in this process.", close=it.close) as thread:
        found: list[Outcome] = pickle.loads(thread.call(lambda: next(it)))
    return found


def _run(job: bytes) -> bytes:
    return dumps(pickle.loads(job).run())


def _in_a_process_of_its_own(index: int, count: int) -> None:
    """A worker that was initialized serves nobody else before or after."""


def list_backwards() -> None:
    """Has the files of directories listed in the opposite order from now on, as another file system might."""
    os.listdir = partial(_listed_backwards, os.listdir)
    os.scandir = partial(_Entries, os.scandir)  # type: ignore[assignment]


def _listed_backwards(original: Callable[..., list[Any]], *args: Any, **named: Any) -> list[Any]:
    return original(*args, **named)[::-1]


class _Entries:
    """What ``os.scandir`` gives."""

    def __init__(self, original: Callable[..., Any], *args: Any, **named: Any) -> None:
        with original(*args, **named) as entries:
            self._entries = iter([*entries][::-1])

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
