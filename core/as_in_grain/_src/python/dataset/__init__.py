"""Calls users' functions from where layers of Keras look for their caller.

A preprocessing layer of Keras computes on the CPU when a data pipeline calls it. It knows pipelines of Grain by the call stack:
by a file with "grain/_src/python/dataset" in its path. So that it knows ours too, this file has such a path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Call:
    """``function``, called from here."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def as_in_grain(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called from here if Keras is loaded, so that there may be a layer in it."""
    return Call(function) if "keras" in sys.modules else function
