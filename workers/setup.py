"""What every worker process does before it loads its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = tuple[Callable[..., Any], tuple[Any, ...]]

_calls: list[Call] = []


def run_in_workers(function: Callable[..., Any], *args: Any) -> None:
    """Calls ``function(*args)``, which are pickled by reference, in every worker that is started from now on."""
    _calls.append((function, args))


def setup_calls() -> list[Call]:
    """The calls so far, and in which order."""
    return [*_calls]
