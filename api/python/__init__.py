"""The legacy surface: what ``import grain.python as grain`` gives, under the names of its
tutorials.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.checkpoint import CheckpointHandler as GrainCheckpointHandler
    from gristmill.checkpoint import CheckpointHandler as PyGrainCheckpointHandler
    from gristmill.checkpoint import CheckpointRestore as GrainCheckpointRestore
    from gristmill.checkpoint import CheckpointRestore as PyGrainCheckpointRestore
    from gristmill.checkpoint import CheckpointSave as GrainCheckpointSave
    from gristmill.checkpoint import CheckpointSave as PyGrainCheckpointSave
    from gristmill.python import experimental as experimental
    from gristmill.sources import SharedMemoryDataSource as InMemoryDataSource
    from gristmill.workers.shared_array import SharedMemoryArray as SharedMemoryArray

from gristmill.constants import DATASET_INDEX, EPOCH, INDEX, META_FEATURES, RECORD, RECORD_KEY, SEED
from gristmill.core.config import config
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.record import Record, RecordMetadata
from gristmill.core.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.loader import DataLoader, load
from gristmill.loader import DataLoaderIterator as PyGrainDatasetIterator
from gristmill.samplers import IndexSampler, Sampler, SequentialSampler
from gristmill.sources import ArrayRecordDataSource, RandomAccessDataSource, RangeDataSource
from gristmill.transforms import Batch, DatasetSelectionMap, Transformation, Transformations
from gristmill.transforms import Batch as BatchTransform
from gristmill.transforms import Filter as FilterTransform
from gristmill.transforms import Map as MapTransform
from gristmill.transforms import MapWithIndex as MapWithIndexTransform
from gristmill.transforms import RandomMap as RandomMapTransform
from gristmill.transforms.operations import (
    BatchOperation,
    FilterOperation,
    MapOperation,
    Operation,
    RandomMapOperation,
)

# Loaded when first used: they pull in Orbax, or shared memory.
_LAZY = {
    "GrainCheckpointHandler": ("gristmill.checkpoint", "CheckpointHandler"),
    "GrainCheckpointRestore": ("gristmill.checkpoint", "CheckpointRestore"),
    "GrainCheckpointSave": ("gristmill.checkpoint", "CheckpointSave"),
    "InMemoryDataSource": ("gristmill.sources", "SharedMemoryDataSource"),
    "PyGrainCheckpointHandler": ("gristmill.checkpoint", "CheckpointHandler"),
    "PyGrainCheckpointRestore": ("gristmill.checkpoint", "CheckpointRestore"),
    "PyGrainCheckpointSave": ("gristmill.checkpoint", "CheckpointSave"),
    "SharedMemoryArray": ("gristmill.workers.shared_array", "SharedMemoryArray"),
}

__all__ = [  # noqa: RUF022  (by subject)
    "ArrayRecordDataSource",
    "InMemoryDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "Batch",
    "BatchTransform",
    "DatasetSelectionMap",
    "FilterTransform",
    "MapTransform",
    "MapWithIndexTransform",
    "RandomMapTransform",
    "Transformation",
    "Transformations",
    "BatchOperation",
    "FilterOperation",
    "MapOperation",
    "Operation",
    "RandomMapOperation",
    "IndexSampler",
    "Sampler",
    "SequentialSampler",
    "NoSharding",
    "ShardByJaxProcess",
    "ShardOptions",
    "DataLoader",
    "MultiprocessingOptions",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "SharedMemoryArray",
    "config",
    "load",
    "GrainCheckpointHandler",
    "GrainCheckpointRestore",
    "GrainCheckpointSave",
    "PyGrainCheckpointHandler",
    "PyGrainCheckpointRestore",
    "PyGrainCheckpointSave",
    "PyGrainDatasetIterator",
    "DatasetIterator",
    "IterDataset",
    "MapDataset",
    "DATASET_INDEX",
    "EPOCH",
    "INDEX",
    "META_FEATURES",
    "RECORD",
    "RECORD_KEY",
    "SEED",
    "experimental",
]


def __getattr__(name: str) -> Any:
    if name == "experimental":
        return importlib.import_module("gristmill.python.experimental")
    if name not in _LAZY:
        raise AttributeError(f"module 'gristmill.python' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
