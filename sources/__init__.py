"""Data sources: collections of records that can be read in any order.

``RandomAccessDataSource`` says what a source is; any object with ``len()`` and ``[]`` is one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.sources.base import RandomAccessDataSource
from gristmill.sources.range import RangeDataSource

if TYPE_CHECKING:
    from gristmill.sources.array_record import ArrayRecordDataSource
    from gristmill.sources.bag import BagDataSource
    from gristmill.sources.hugging_face import HuggingFaceSource
    from gristmill.sources.image_folder import ImageFolderSource
    from gristmill.sources.in_memory import SharedMemoryDataSource
    from gristmill.sources.in_memory import SharedMemoryDataSource as InMemoryDataSource
    from gristmill.sources.json_lines import JsonlSource
    from gristmill.sources.mds import MDSSource
    from gristmill.sources.parquet_table import ParquetSource
    from gristmill.sources.storage.cached import cached
    from gristmill.sources.storage.errors import ChangedFileError, DamagedFileError
    from gristmill.sources.tar import TarSource
    from gristmill.sources.tokens import TokenSource

__all__ = [
    "ArrayRecordDataSource",
    "BagDataSource",
    "ChangedFileError",
    "DamagedFileError",
    "HuggingFaceSource",
    "ImageFolderSource",
    "InMemoryDataSource",
    "JsonlSource",
    "MDSSource",
    "ParquetSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "SharedMemoryDataSource",
    "TarSource",
    "TokenSource",
    "cached",
]

# Imported when first used: most programs need one of them, and each brings modules along.
_MODULES = {
    "ArrayRecordDataSource": "array_record",
    "BagDataSource": "bag",
    "ChangedFileError": "storage.errors",
    "DamagedFileError": "storage.errors",
    "HuggingFaceSource": "hugging_face",
    "ImageFolderSource": "image_folder",
    "JsonlSource": "json_lines",
    "MDSSource": "mds",
    "ParquetSource": "parquet_table",
    "SharedMemoryDataSource": "in_memory",
    "TarSource": "tar",
    "TokenSource": "tokens",
    "cached": "storage.cached",
}


def __getattr__(name: str) -> Any:
    known_as = "SharedMemoryDataSource" if name == "InMemoryDataSource" else name
    if known_as not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[known_as]}"), known_as)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
