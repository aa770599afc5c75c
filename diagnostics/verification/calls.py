"""Calls that give something else at each time, in each thread or in each process."""

from __future__ import annotations

import _thread
import builtins
import gc
import os
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

_FILES = {"tempfile", "os", "glob", "pathlib", "posixpath"}
_BETWEEN = {"random", "secrets", "uuid", "datetime", "numpy"} | _FILES  # may be called for users
# what these ask for changes no element
_QUIET = (sys.stdlib_module_names - _BETWEEN) | {"gristmill"}
_KINDS: dict[str, tuple[Any, str]] = {
    "clock": (
        time,
        "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns localtime gmtime ctime",
    ),
    "entropy": (os, "urandom getrandom"),
    "process": (os, "getpid getppid uname"),
    "files": (os, "listdir scandir"),
    "thread": (_thread, "get_ident get_native_id"),
    "hash": (builtins, "hash"),
    "address": (builtins, "id"),
}
_CALLS: dict[Any, str] = {
    getattr(module, name): kind
    for kind, (module, names) in _KINDS.items()
    for name in names.split()
    if hasattr(module, name)
}
_NAMES = {"now": "clock", "utcnow": "clock", "today": "clock"}  # methods of classes in datetime
_ENVIRONMENT = getattr(type(os.environ).__getitem__, "__code__", None)


def revealing_call(frame: FrameType, event: str, argument: Any) -> tuple[str, str] | None:
    """Return the kind of evidence that a call is, and what is said of it; ``None`` for all other
    calls.
    """
    if event == "call":
        if frame.f_code is not _ENVIRONMENT or frame.f_back is None:
            return None
        kind, name, caller = "environment", "os.environ", _user_frame(frame.f_back)
    else:
        try:
            found = _CALLS.get(argument)
        except TypeError:  # a method of something that cannot be hashed
            found = None
        owner = getattr(argument, "__self__", None)
        if found is None and isinstance(owner, type) and owner.__module__ == "datetime":
            found = _NAMES.get(argument.__name__)
        if found is None:
            return None
        kind, name, caller = found, _name(argument, owner), _user_frame(frame)
    return None if caller is None else (kind, f"it calls {name}, {_place(caller)}")


def _user_frame(frame: FrameType) -> FrameType | None:
    """Return the line of the user's that leads to a call; none if a library asks for its own
    purposes.
    """
    caller: FrameType | None = frame
    while caller is not None and _package(caller) in _BETWEEN:
        caller = caller.f_back
    is_quiet = caller is None or _package(caller) in _QUIET or _collects_garbage(caller)
    return None if is_quiet else caller


def _collects_garbage(frame: FrameType | None) -> bool:
    """Return True for calls of functions in ``gc.callbacks``, which any allocation may run."""
    codes = [getattr(function, "__code__", None) for function in gc.callbacks]
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _name(argument: Any, owner: Any) -> str:
    module = owner.__name__ if isinstance(owner, type) else getattr(argument, "__module__", None)
    module = {"posix": "os", "nt": "os", "_thread": "threading", "builtins": None}.get(
        str(module), module
    )
    return f"{module}.{argument.__name__}" if module else str(argument.__name__)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} in {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
