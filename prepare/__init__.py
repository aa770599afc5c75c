"""Prepare data once: write a pipeline's elements to files, read them back, and keep them on disk.

``write`` turns a pipeline into files that are the same for any number of workers and hosts, and
continues after a crash. ``read`` returns what was written as a ``MapDataset``, and ``verify_files``
compares checksums.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.prepare.reading import read as read
    from gristmill.prepare.reading import verify_files as verify_files
    from gristmill.prepare.report import WriteReport as WriteReport
    from gristmill.prepare.writing import write as write

__all__ = ["WriteReport", "read", "verify_files", "write"]

_MODULES = {
    "WriteReport": "report",
    "read": "reading",
    "verify_files": "reading",
    "write": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
