"""Experimental names of Grain that exist here."""

from gristmill.core.element_spec import ShapeDtypeStruct, ShapeDtypeStructProtocol
from gristmill.core.options import DatasetOptions, ExecutionTrackingMode
from gristmill.core.permutation import index_shuffle
from gristmill.core.seeds import RngPool
from gristmill.dataset.apply import apply_transformations
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.bases.next_index import get_next_index, set_next_index
from gristmill.dataset.performance import PerformanceConfig, pick_performance_config
from gristmill.dataset.stages.bin_packing import BestFitPackIterDataset, FirstFitPackIterDataset
from gristmill.dataset.stages.cache import CacheIterDataset
from gristmill.dataset.stages.concat_then_split import BOSHandling, ConcatThenSplitIterDataset
from gristmill.dataset.stages.device_put import device_put
from gristmill.dataset.stages.elastic import ElasticIterator
from gristmill.dataset.stages.flat_map import FlatMapIterDataset, FlatMapMapDataset
from gristmill.dataset.stages.hugging_face import HuggingFaceIterDataset
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.limit import LimitIterDataset
from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.parquet import ParquetIterDataset
from gristmill.dataset.stages.rebatch import RebatchIterDataset
from gristmill.dataset.stages.repeat import RepeatIterDataset
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.dataset.stages.thread_prefetch import (
    ThreadPrefetchDatasetIterator,
    ThreadPrefetchIterDataset,
)
from gristmill.dataset.stages.window_shuffle import (
    WindowShuffleIterDataset,
    WindowShuffleMapDataset,
)
from gristmill.dataset.stages.zip import ZipIterDataset, ZipMapDataset
from gristmill.diagnostics import get_execution_summary
from gristmill.testing import assert_equal_output_after_checkpoint
from gristmill.transforms import FlatMap as FlatMapTransform
from gristmill.transforms import MapWithIndex as MapWithIndexTransform
from gristmill.transforms.operations import PackAndBatchOperation
from gristmill.transforms.padding import batch_and_pad

__all__ = [
    "BOSHandling",
    "BestFitPackIterDataset",
    "CacheIterDataset",
    "ConcatThenSplitIterDataset",
    "DatasetOptions",
    "ElasticIterator",
    "ExecutionTrackingMode",
    "FirstFitPackIterDataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "HuggingFaceIterDataset",
    "InterleaveIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "PackAndBatchOperation",
    "ParquetIterDataset",
    "PerformanceConfig",
    "RebatchIterDataset",
    "RepeatIterDataset",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "TFRecordIterDataset",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "WithOptionsIterDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "assert_equal_output_after_checkpoint",
    "batch_and_pad",
    "device_put",
    "get_element_spec",
    "get_execution_summary",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]
