"""Those of Grain's private names that programs use, below ``grain._src`` after
``install_as_grain()``.

Each leads to an object of ours; the import of a path warns once, and says what is public.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gristmill.core import tree
from gristmill.core.errors import as_int
from gristmill.core.inert import INERT, STATS

_ROOT = "grain._src"


def _of(module: str, names: str) -> dict[str, tuple[str, str]]:
    """Returns names of a public module: what to write, and where it is."""
    return {
        name: (f"{module}.{name}" if module else name, f"gristmill.{module}".rstrip("."))
        for name in names.split()
    }


def _instead(what: str, where: str, names: str) -> dict[str, tuple[str, str]]:
    """Returns names that are not public, with their replacements."""
    return dict.fromkeys(names.split(), (what, where))


_HERE = "gristmill.grain_src"
_STAGES = "gristmill.dataset.stages"
_TREE = "assert_same_structure flatten flatten_with_path map_structure unflatten_as"
_MONITORING = (
    "Bucketer Counter EventMetric Metadata Metric Units get_monitoring_root setup_telemetry"
    " record_bytes_read_and_latency record_framework_type record_autotune_parameter"
    " set_debug_server_ports"
)
_STATS = (
    "NodeType Stats StatsConfig Timer make_stats record_next_duration_if_output"
    " trace_input_pipeline trace_input_pipeline_next trace_input_pipeline_prefetch"
)
_OPTIONS = _of(
    "experimental", "DatasetOptions ExecutionTrackingMode ShapeDtypeStruct ShapeDtypeStructProtocol"
)
_SHARED_ARRAY = _of("multiprocessing", "SharedMemoryArray SharedMemoryArrayMetadata")
_TRANSFORMATIONS = {
    "batch": (
        _of("experimental", "batch_and_pad")
        | _instead("IterDataset.batch", f"{_STAGES}.batch", "BatchIterDataset BatchMapDataset")
    ),
    "cache": _of("experimental", "CacheIterDataset"),
    "filter": _instead(
        "IterDataset.filter", f"{_STAGES}.filter", "FilterIterDataset FilterMapDataset"
    ),
    "flatmap": _of("experimental", "FlatMapIterDataset FlatMapMapDataset"),
    "interleave": _of("experimental", "InterleaveIterDataset"),
    "limit": _of("experimental", "LimitIterDataset"),
    "map": (
        _of("experimental", "RngPool")
        | _instead("MapDataset.map", f"{_STAGES}.map", "MapIterDataset MapMapDataset")
        | _instead(
            "MapDataset.random_map",
            f"{_STAGES}.random_map",
            "RandomMapIterDataset RandomMapMapDataset",
        )
        | _instead(
            "MapDataset.map_with_index",
            f"{_STAGES}.map_with_index",
            "MapWithIndexIterDataset MapWithIndexMapDataset",
        )
    ),
    "mix": (
        _instead("MapDataset.mix", "gristmill.dataset.mixtures.map_dataset", "MixedMapDataset")
        | _instead("MapDataset.mix", "gristmill.dataset.mixtures.iter_dataset", "MixedIterDataset")
    ),
    "packing": _of("experimental", "BestFitPackIterDataset FirstFitPackIterDataset"),
    "packing_concat_then_split": _of("experimental", "BOSHandling ConcatThenSplitIterDataset"),
    "prefetch": (
        _of(
            "experimental",
            "ThreadPrefetchDatasetIterator ThreadPrefetchIterDataset multithread_prefetch",
        )
        | _instead(
            "MapDataset.to_iter_dataset",
            f"{_STAGES}.prefetch",
            "PrefetchDatasetIterator PrefetchIterDataset",
        )
        | _instead(
            "IterDataset.mp_prefetch", f"{_STAGES}.mp_prefetch", "MultiprocessPrefetchIterDataset"
        )
    ),
    "prefetch_autotune": _of("experimental", "PerformanceConfig pick_performance_config"),
    "rebatch": _of("experimental", "RebatchIterDataset"),
    "repeat": (
        _of("experimental", "RepeatIterDataset")
        | _instead("MapDataset.repeat", f"{_STAGES}.repeat", "RepeatMapDataset")
    ),
    "shuffle": (
        _of("experimental", "WindowShuffleIterDataset WindowShuffleMapDataset")
        | _instead("MapDataset.shuffle", f"{_STAGES}.shuffle", "ShuffleMapDataset")
    ),
    "slice": _instead("MapDataset.slice", f"{_STAGES}.slice", "SliceMapDataset"),
    "source": (
        _instead("MapDataset.source", f"{_STAGES}.source", "SourceMapDataset")
        | _instead("MapDataset.range", f"{_STAGES}.range", "RangeMapDataset")
    ),
    "zip": _of("experimental", "ZipIterDataset ZipMapDataset"),
}
_NAMES: dict[str, dict[str, tuple[str, str]]] = {
    "core.constants": _of(
        "constants", "DATASET_INDEX EPOCH INDEX META_FEATURES RECORD RECORD_KEY SEED"
    ),
    "core.monitoring": _of("monitoring", _MONITORING),
    "core.sharding": _of("sharding", "NoSharding ShardByJaxProcess ShardOptions even_split"),
    "core.transforms": _of(
        "transforms",
        "Batch Filter FlatMap Map MapWithIndex RandomMap TfRandomMap Transformation"
        " Transformations",
    ),
    "core.tree": _instead("jax.tree", _HERE, _TREE),
    "core.tree_lib": _instead("jax.tree", _HERE, _TREE),
    "python.checkpoint.handler": _of(
        "checkpoint", "CheckpointHandler CheckpointRestore CheckpointSave"
    ),
    "python.data_loader": (
        _of("", "DataLoader DataLoaderIterator")
        | _instead("DataLoader(worker_count=None)", _HERE, "_determine_worker_count")
    ),
    "python.data_sources": (
        _of("python", "ArrayRecordDataSource RandomAccessDataSource RangeDataSource")
        | _of("sources", "SharedMemoryDataSource")
    ),
    "python.dataset.base": (
        _of("transforms", "DatasetSelectionMap")
        | _of("sources", "RandomAccessDataSource")
        | _OPTIONS
    ),
    "python.dataset.dataset": (
        _of("", "MapDataset IterDataset DatasetIterator")
        | _OPTIONS
        | _of(
            "experimental",
            "WithOptionsIterDataset apply_transformations get_element_spec get_next_index"
            " set_next_index",
        )
        | _of("experimental", "get_execution_summary")
        | _of("transforms", "DatasetSelectionMap")
        | _instead("MapDataset", "gristmill.dataset", "MapDatasetMeta IterDatasetMeta")
    ),
    "python.dataset.elastic_iterator": _of("experimental", "ElasticIterator"),
    "python.dataset.sources.parquet_dataset": _of("experimental", "ParquetIterDataset"),
    "python.dataset.sources.tfrecord_dataset": (
        _of("experimental", "TFRecordIterDataset")
        | _instead(
            "experimental.TFRecordIterDataset(open=...)",
            "gristmill.grain_tfrecord",
            "_TFRecordReader _TFRecordDatasetIterator",
        )
    ),
    "python.dataset.stats": _instead("observe", _HERE, _STATS),
    **{f"python.dataset.transformations.{name}": names for name, names in _TRANSFORMATIONS.items()},
    "python.experimental.index_shuffle.python.index_shuffle_module": _of(
        "experimental", "index_shuffle"
    ),
    "python.ipc.shared_memory_array": _SHARED_ARRAY,
    "python.load": _of("", "load"),
    "python.operations": _of(
        "python", "BatchOperation FilterOperation MapOperation Operation RandomMapOperation"
    ),
    "python.options": _of("", "MultiprocessingOptions ReadOptions"),
    "python.record": _of("", "Record RecordMetadata"),
    "python.samplers": _of("samplers", "IndexSampler Sampler SequentialSampler"),
    "python.shared_memory_array": _SHARED_ARRAY,
}
_FOLDERS = {path.rsplit(".", n)[0] for path in _NAMES for n in range(1, path.count(".") + 1)} | {""}


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = _below_root(module.__name__)
        if path not in _NAMES:
            return
        names = _NAMES[path]
        vars(module).update(
            __getattr__=functools.partial(_look_up, module, names), __all__=list(names)
        )
        public = ", ".join(
            dict.fromkeys(
                f"grain.{what}" if what != "jax.tree" else what for what, _ in names.values()
            )
        )
        warnings.warn(
            f"{module.__name__} is private in Grain, and no module of gristmill: use {public}",
            DeprecationWarning,
            2,
        )


def find_private(fullname: str) -> importlib.machinery.ModuleSpec:
    """Returns the spec of ``grain._src`` or a module below it, for the import system.

    Raises:
        ModuleNotFoundError: the module does not exist here.
    """
    path = _below_root(fullname)
    if path not in _NAMES and path not in _FOLDERS:
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: it is private in Grain, and gristmill has only those of"
            " Grain's private modules that programs are known to use. What is public:"
            " grain.MapDataset, grain.DataLoader, grain.experimental, …",
            name=fullname,
        )
    spec = importlib.util.spec_from_loader(fullname, _Loader(), is_package=path in _FOLDERS)
    assert spec is not None
    return spec


def _below_root(fullname: str) -> str:
    return fullname.removeprefix(_ROOT).removeprefix(".")


def _look_up(module: ModuleType, names: dict[str, tuple[str, str]], name: str) -> Any:
    if name not in names:
        raise AttributeError(
            f"module {module.__name__!r} has no attribute {name!r}: it is private in Grain, and"
            f" gristmill has of it only {', '.join(names)}"
        )
    found = getattr(importlib.import_module(names[name][1]), name)
    setattr(module, name, found)
    return found


def _determine_worker_count(input_worker_count: int | None) -> int:
    return (
        (os.cpu_count() or 1)
        if input_worker_count is None
        else as_int("worker_count", input_worker_count, minimum=0)
    )


def flatten(structure: Any) -> list[Any]:
    return tree.flatten(structure)[0]


def flatten_with_path(structure: Any) -> list[Any]:
    import jax

    found: list[Any] = jax.tree_util.tree_flatten_with_path(structure)[0]
    return found


def unflatten_as(structure: Any, flat_sequence: Any) -> Any:
    return tree.unflatten(tree.flatten(structure)[1], flat_sequence)


def map_structure(f: Callable[..., Any], structure: Any, *rest: Any) -> Any:
    leaves, shape = tree.flatten(structure)
    for other in rest:
        assert_same_structure(structure, other)
    return tree.unflatten(
        shape, [f(*values) for values in zip(leaves, *map(flatten, rest), strict=True)]
    )


def assert_same_structure(a: Any, b: Any) -> None:
    shapes = tree.flatten(a)[1], tree.flatten(b)[1]
    if shapes[0] != shapes[1]:
        raise ValueError(f"Structures are not the same: a = {shapes[0]}, b = {shapes[1]}")


def make_stats(*args: Any, **kwargs: Any) -> Any:
    return STATS


NodeType = Stats = StatsConfig = Timer = INERT
record_next_duration_if_output = trace_input_pipeline = trace_input_pipeline_next = (
    trace_input_pipeline_prefetch
) = INERT
