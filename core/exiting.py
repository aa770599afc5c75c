"""The end of the program, as daemon threads and finalizers see it.

Guarantees:

1. From the moment in which only daemon threads are left beside the exit of the interpreter, an
   error in a daemon thread that iterates ends that thread in silence: what it iterates over is
   being closed by the exit, and nobody would read the error.
2. Before that moment, and in functions that the exit calls, errors are raised as ever.
3. Finalizers (``__del__``, callbacks of weak references) that run while modules are torn down use
   no global name: what they need is an argument with a default, or in a closure. So nothing is
   printed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any


def is_exiting() -> bool:
    """Return True once only daemon threads are left beside the exit of the interpreter."""
    main = threading.main_thread()
    others = [thread for thread in threading.enumerate() if thread is not main]
    return not main.is_alive() and all([thread.daemon for thread in others])


def end_thread_at_exit() -> None:
    """Raise ``SystemExit``, which ends a thread in silence, in a daemon thread at exit."""
    if is_exiting() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def closing_when_dropped(inherited: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``__del__`` that calls ``close`` of classes whose ``close`` is not ``inherited``."""
    is_finalizing = sys.is_finalizing

    def close_dropped(self: Any) -> None:
        if type(self).close is not inherited:
            try:
                self.close()
            except Exception:
                # At exit, modules that ``close`` uses may be gone.
                if not is_finalizing():
                    raise

    return close_dropped
