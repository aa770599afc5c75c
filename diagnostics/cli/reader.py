"""The iterator of a command: attended, so that a command ends although a pipeline is stuck."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gristmill.core.locks import Signal
from gristmill.core.uninterrupted import uninterrupted
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.next_index import set_next_index
from gristmill.diagnostics.runtime.attended import Attended
from gristmill.diagnostics.view import dataset_iterator
from gristmill.loader import DataLoader

END = object()

_STALL_SECONDS = 30.0
_HINT = "If it is only slow, allow more time for an element: --stall-seconds 300 (0 is forever)."


def iterator_of(pipeline: Any) -> Any:
    return iter(pipeline) if isinstance(pipeline, DataLoader) else iterate(pipeline)


def jumped(it: Any, index: int) -> bool:
    """True if ``it`` could continue at an index without the elements before it; where elements are
    dropped, they must be counted.
    """
    if dataset_iterator(it)._gm_has_gaps():
        return False
    try:
        set_next_index(it, index)
    except (NotImplementedError, ValueError):
        # it cannot, or there are fewer, which are counted then
        return False
    return True


@contextlib.contextmanager
def reading(pipeline: Any, stall_seconds: float | None) -> Iterator[tuple[Any, Attended]]:
    """Yields a new iterator of a dataset or a ``DataLoader``, which is closed afterwards, and the
    thread that is to use it.
    """
    it = iterator_of(pipeline)
    with attended(lambda: it, it.close, stall_seconds) as thread:
        yield it, thread


@contextlib.contextmanager
def attended(
    it: Callable[[], Any], close: Callable[[], None], stall_seconds: float | None
) -> Iterator[Attended]:
    """Yields a thread for the use of what ``it`` gives, which may be another iterator later on."""
    limit = _STALL_SECONDS if stall_seconds is None else stall_seconds
    with (
        ended_if_frozen(limit),
        Attended(lambda: dataset_iterator(it()), limit, _HINT, close=close) as thread,
    ):
        yield thread


@contextlib.contextmanager
def ended_if_frozen(seconds: float) -> Iterator[None]:
    """Ends the process, and shows the stacks of all threads, if for so long none of them can run;
    0: never.

    That is so if one calls C code that does not give the interpreter's lock back, a regular
    expression that never comes to an end, say. Nothing that is written in Python runs then, not
    even what handles an interrupt.
    """
    ended = Signal()
    try:
        file = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # no stderr, or one without a file descriptor
        file = -1
    if not seconds or file < 0:
        yield
        return

    def run() -> None:
        is_over = False
        while not is_over:
            faulthandler.dump_traceback_later(seconds, file=file, exit=True)
            is_over = ended.wait(seconds / 4)
        faulthandler.cancel_dump_traceback_later()

    thread = threading.Thread(target=run, name="gristmill-alive", daemon=True)
    uninterrupted(thread.start)
    try:
        yield
    finally:
        ended.set()
        thread.join()
