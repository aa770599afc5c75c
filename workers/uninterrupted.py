"""Doing something that an interrupt must not leave half done.

Guarantees:

1. What is called runs to its end. Handlers of signals run in the main thread, between any two steps of it, and may raise there
   (that of Ctrl-C does); so whatever the main thread wants is done by another one.
2. The interrupt itself is raised at once. Then nobody takes what the call returns: it has to be kept somewhere else.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def uninterrupted(function: Callable[[], T]) -> T:
    """What ``function()`` returns or raises.

    Args:
        function: does the same whether or not its result arrives, and does not ask which thread it runs in.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    values: SimpleQueue[T] = SimpleQueue()
    errors: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        error = None
        try:
            values.put(function())
        except BaseException as raised:
            error = raised
        errors.put(error)

    try:
        _thread.start_new_thread(run, ())  # a call of C; that of a ``Thread`` can be interrupted between two locks
    except RuntimeError:  # the system gives no more threads, or the interpreter is about to end
        return function()
    error = errors.get()
    if error is None:
        return values.get()
    try:
        raise error
    finally:
        del error  # which refers to this frame
