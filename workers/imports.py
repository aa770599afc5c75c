"""The modules that a worker process imports with its task, and how long that takes."""

from __future__ import annotations

import builtins
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

_SLOW_SECONDS = 0.5  # from here on an import is worth a word

_seconds: dict[str, float] = {}  # by top-level module, with all that it imports


def slow_imports() -> dict[str, float]:
    """Return the seconds that imports of this process took, those of more than half a second."""
    return {name: seconds for name, seconds in _seconds.items() if seconds >= _SLOW_SECONDS}


@contextlib.contextmanager
def timed_imports() -> Iterator[None]:
    """Measure the imports until the end of the context. No other thread may run."""
    original = builtins.__import__

    def timed(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if not top or top in sys.modules:  # relative to a package that is being imported, or known
            return original(name, globals, locals, fromlist, level)
        began = time.perf_counter()
        try:
            return original(name, globals, locals, fromlist, level)
        finally:
            _seconds[top] = _seconds.get(top, 0.0) + time.perf_counter() - began

    builtins.__import__ = timed
    try:
        yield
    finally:
        builtins.__import__ = original
