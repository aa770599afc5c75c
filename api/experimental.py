"""What Grain calls experimental, as far as it exists here."""

from gristmill.core.options import DatasetOptions, ExecutionTrackingMode
from gristmill.core.permutation import index_shuffle
from gristmill.core.seeds import RngPool
from gristmill.dataset.apply import apply_transformations
from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator, ThreadPrefetchIterDataset
from gristmill.transforms import MapWithIndex as MapWithIndexTransform

__all__ = [
    "DatasetOptions",
    "ExecutionTrackingMode",
    "MapWithIndexTransform",
    "RngPool",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WithOptionsIterDataset",
    "apply_transformations",
    "index_shuffle",
    "multithread_prefetch",
]
