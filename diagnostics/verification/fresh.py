"""Copies of a pipeline in fresh processes, with other surroundings or the same."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.core.node_types import register_expected
from gristmill.core.options import MultiprocessingOptions
from gristmill.core.value import Value
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.diagnostics.runtime.attended import Attended
from gristmill.diagnostics.verification.outcomes import Clock
from gristmill.diagnostics.verification.subject import DIRECT
from gristmill.workers.pickling import dumps
from gristmill.workers.process import missing_calls

T = TypeVar("T")

_START_SECONDS = 10.0  # that a process may take besides


class Surroundings(Value):
    """In what a process differs from this one.

    Args:
        hash_seed: by which it orders sets of texts.
        has_other_locale: whether its language and encoding are others.
        lists_backwards: whether the files of a directory come in the opposite order.
        number: processes of different numbers have nothing in common, not even where their memory
            begins.
    """

    hash_seed: int = 1
    has_other_locale: bool = False
    lists_backwards: bool = False
    number: int = 0

    def environment(self) -> dict[str, str | None]:
        """Returns the environment variables that make it so."""
        variables: dict[str, str | None] = {
            "PYTHONHASHSEED": str(self.hash_seed),
            "GRISTMILL_VERIFY": str(self.number),
        }
        if self.has_other_locale:
            given = next((x for x in map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG")) if x), "C")
            variables["LC_ALL"] = "C.UTF-8" if given in ("C", "POSIX") else "C"
        return variables


class ColdCopies:
    """Copies of a pipeline in the state in which it was pickled, each in a fresh process.

    A copy has its own closures, default arguments, attributes and global variables of the script.
    The process imports modules again. A copy in this process would share imported modules, and
    unpickling it would change the classes of the script.

    Args:
        pipeline: used itself if it cannot be pickled, or on systems without worker processes.
        packed: the pickled pipeline, or the error of pickling it.
    """

    def __init__(self, pipeline: Any, packed: bytes | Exception) -> None:
        self._pipeline = pipeline
        self._packed = packed

    def call(self, function: Callable[[Any], T], clock: Clock) -> T:
        """Returns ``function(copy)``; see ``calls``."""
        with contextlib.closing(self.calls([function], clock)) as results:
            return next(results)

    def calls(
        self, functions: Sequence[Callable[[Any], T]], clock: Clock
    ) -> Generator[T, None, None]:
        """Yields ``function(copy)`` for each function, one process for all, a copy for each.

        Args:
            functions: they, and what they return, must be picklable.
            clock: the time limit.

        Raises:
            Exception: as raised by a function; or the process could not be started, or died.
        """
        if isinstance(self._packed, Exception) or missing_calls():
            for function in functions:
                yield function(self._pipeline)
        else:
            yield from run_fresh(self._packed, functions, clock, None)


def run_fresh(
    packed: bytes,
    functions: Sequence[Callable[[Any], T]],
    clock: Clock,
    surroundings: Surroundings | None,
) -> Generator[T, None, None]:
    """Yields the result of each function, called with a new copy of the pipeline in a new process.

    Args:
        packed: the pipeline, pickled.
        functions: called one after another in the same process.
        clock: the time limit.
        surroundings: those of the process; ``None`` for those of this one.

    Raises:
        Exception: as raised by a function; or the process could not be started, or died.
    """
    environment = {} if surroundings is None else surroundings.environment()
    run = _Runner(packed, surroundings is not None and surroundings.lists_backwards)
    ds = MapDataset.source([*functions]).map(run).to_iter_dataset(DIRECT)
    options = MultiprocessingOptions(1, worker_env=environment)
    it = iterate(ds.mp_prefetch(options, _in_a_process_of_its_own))
    hint = "It does not hang in this process."
    with Attended(lambda: it, clock.left + _START_SECONDS, hint, close=it.close) as thread:
        for _ in functions:
            yield pickle.loads(thread.call(lambda: next(it)))


class _Runner:
    """Calls functions in the fresh process; results are sent pickled, as they are."""

    def __init__(self, packed: bytes, lists_backwards: bool) -> None:
        self._packed = packed
        self._lists_backwards = lists_backwards

    def __call__(self, function: Callable[[Any], Any]) -> bytes:
        if self._lists_backwards:
            list_backwards()
            self._lists_backwards = False
        pipeline = pickle.loads(self._packed)
        register_expected()
        return dumps(function(pipeline))


def _in_a_process_of_its_own(index: int, count: int) -> None:
    """Does nothing: a worker with an initialization of its own is not shared with other
    pipelines.
    """


def list_backwards() -> None:
    """Has the files of directories listed in the opposite order from now on, as another file system
    might.
    """
    os.listdir = partial(_listed_backwards, os.listdir)
    os.scandir = partial(_Entries, os.scandir)  # type: ignore[assignment]


def _listed_backwards(original: Callable[..., list[Any]], *args: Any, **named: Any) -> list[Any]:
    return original(*args, **named)[::-1]


class _Entries(contextlib.AbstractContextManager[Any]):
    """The result of ``os.scandir``."""

    def __init__(self, original: Callable[..., Any], *args: Any, **named: Any) -> None:
        with original(*args, **named) as entries:
            self._entries = iter([*entries][::-1])

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
