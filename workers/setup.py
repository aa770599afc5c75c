"""The set-up of every worker process before it loads its task, and a test if this process is
one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypedDict

from gristmill.workers.logs import LogSettings

Call: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
Part: TypeAlias = bytes | memoryview  # of a payload


class Preamble(TypedDict, total=False):
    """The beginning of a payload, as plain data."""

    path: list[str]
    argv: list[str]
    directory: str
    logs: LogSettings | None
    parts: list[tuple[int, int]]  # where each begins and ends
    buffer_size: int  # see ``BoundedConnection``
    min_shared_bytes: int  # see ``Encoder``
    is_shared: bool  # the process works for several pools


BOOT = str(Path(__file__).with_name("boot.py"))  # their main module

_calls: list[Call] = []
_preloaded: list[str] = []
_is_worker = False


def is_worker() -> bool:
    """True if this is a worker process of another process."""
    return _is_worker or getattr(sys.modules.get("__main__"), "__file__", None) == BOOT


def be_worker() -> None:
    """Makes this process one of them, where something else has started it."""
    global _is_worker
    _is_worker = True


def run_in_workers(function: Callable[..., object], *args: object) -> None:
    """Calls ``function(*args)``, which are pickled by reference, in every worker that is started
    from now on.
    """
    _calls.append((function, args))


def preload(*modules: str) -> None:
    """Has modules of this package, which most workers need, imported before there are any."""
    _preloaded.extend(modules)


def preloaded() -> list[str]:
    """Returns the modules so far."""
    return [*_preloaded]


def setup_calls() -> list[Call]:
    """Returns the calls so far, and in which order."""
    return [*_calls]
