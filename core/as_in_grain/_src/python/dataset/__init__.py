"""Calls users' functions from where layers of Keras look for their caller.

A preprocessing layer of Keras computes on the CPU when a data pipeline calls it. It knows pipelines
of Grain by the call stack: by a file with "grain/_src/python/dataset" in its path. So that it knows
ours too, this file has such a path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def as_in_grain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ``function`` from this module."""
    return functools.partial(_call, function)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
