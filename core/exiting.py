"""The end of the program, as daemon threads and finalizers see it.

Guarantees:

1. Once only daemon threads are left beside the exit of the interpreter, an error in a daemon thread
   that iterates ends that thread in silence: the exit is closing the resources that it iterates
   over, so the error says nothing about the program.
2. Before that moment, and in functions that the exit calls, errors are raised as usual.
3. Finalizers (``__del__``, callbacks of weak references) that run while modules are torn down use
   no global names but arguments with defaults, or closures. So they raise no errors, and nothing is
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
    """Return a ``__del__`` that calls ``close`` if the class has another one than ``inherited``."""
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
