"""Calls that an interrupt must not leave half done.

Guarantees:

1. The function that is called runs to its end. Handlers of signals run in the main thread and may
   raise there (that of Ctrl-C does). So another thread makes the call for the main thread.
2. The interrupt itself is raised at once, and the result of the call is lost. The function has to
   store what must not be.

Threads are started in this way, and futures waited for: both acquire locks of ``threading`` in
Python code, and an interrupt between two lines of that leaves them held (see ``core.locks``).
"""

from __future__ import annotations

import _thread
import contextvars
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor

T = TypeVar("T")
R = TypeVar("R")
_Outcome: TypeAlias = tuple[list[T], BaseException | None]


def uninterrupted(function: Callable[[], T]) -> T:
    """Return ``function()``, called in the context of the caller.

    Args:
        function: does the same whether or not its result arrives, and does not ask which thread
            it runs in.
    """
    if not _is_interruptible():
        return function()
    outcome: SimpleQueue[_Outcome[T]] = SimpleQueue()
    try:
        # A call of C; that of a ``Thread`` can be interrupted between two locks.
        _thread.start_new_thread(contextvars.copy_context().run, (_run, function, outcome))
    except RuntimeError:  # the system gives no more threads, or the interpreter is about to end
        return function()
    return _taken(outcome)


def _is_interruptible() -> bool:
    # Not by ``current_thread``, which makes an object for a thread that has none, and keeps it.
    return threading.get_ident() == threading.main_thread().ident


def _run(function: Callable[[], T], outcome: SimpleQueue[_Outcome[T]]) -> None:
    try:
        outcome.put(([function()], None))
    except BaseException as error:
        outcome.put(([], error))


def _taken(outcome: SimpleQueue[_Outcome[T]]) -> T:
    values, error = outcome.get()
    if error is None:
        return values[0]
    try:
        raise error
    finally:
        del error  # which refers to this frame


def computed_by(pool: Executor, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return ``[function(item) for item in items]``, computed by ``pool``.

    After an error or an interrupt no further item is begun, and the pool is as usable as before.

    Raises:
        Exception: the error of the first item that has one.
    """
    is_over = False

    def one(item: T) -> R:
        if is_over:
            raise RuntimeError("no further item is begun")
        return function(item)

    def compute() -> list[R]:
        futures = [pool.submit(one, item) for item in items]
        return [future.result() for future in futures]

    try:
        if not _is_interruptible():
            return compute()
        # Pools ask for the current thread, so it has to be one that ``threading`` knows.
        outcome: SimpleQueue[_Outcome[list[R]]] = SimpleQueue()
        uninterrupted(threading.Thread(target=_run, args=(compute, outcome), daemon=True).start)
        return _taken(outcome)
    finally:
        is_over = True


def in_threads(function: Callable[[T], R], items: Iterable[T], max_threads: int) -> list[R]:
    """Return ``[function(item) for item in items]``, computed by threads that end with this call.

    Raises:
        Exception: the error of the first item that has one.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(items), max_threads)) as pool:
        return computed_by(pool, function, items)
