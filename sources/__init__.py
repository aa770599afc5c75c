"""Data sources: collections of records that can be read in any order.

``RandomAccessDataSource`` says what a source is; whatever has ``len()`` and ``[]`` is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.sources.base import RandomAccessDataSource
from gristmill.sources.range import RangeDataSource

if TYPE_CHECKING:
    from gristmill.sources.array_record import ArrayRecordDataSource
    from gristmill.sources.in_memory import SharedMemoryDataSource
    from gristmill.sources.in_memory import SharedMemoryDataSource as InMemoryDataSource

__all__ = [
    "ArrayRecordDataSource",
    "InMemoryDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "SharedMemoryDataSource",
]


def __getattr__(name: str) -> Any:
    if name == "ArrayRecordDataSource":
        from gristmill.sources.array_record import ArrayRecordDataSource

        globals()[name] = ArrayRecordDataSource
        return ArrayRecordDataSource
    # Importing multiprocessing.shared_memory takes as long as half of NumPy; most programs do not need it.
    if name in ("SharedMemoryDataSource", "InMemoryDataSource"):
        from gristmill.sources.in_memory import SharedMemoryDataSource

        globals().update(SharedMemoryDataSource=SharedMemoryDataSource, InMemoryDataSource=SharedMemoryDataSource)
        return SharedMemoryDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
