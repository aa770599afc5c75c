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


def end_thread_at_exit() -> None:
    """Raise ``SystemExit`` in a daemon thread once only daemon threads are left beside the exit.

    It ends a thread in silence.
    """
    main = threading.main_thread()
    # The main thread does not ask: up to Python 3.12, an interrupt of ``is_alive`` marks the thread
    # as ended.
    if threading.get_ident() == main.ident or main.is_alive():
        return
    if all([thread.daemon for thread in threading.enumerate() if thread is not main]):
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
