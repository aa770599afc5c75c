"""Every public name is there, once: all its spellings are one object."""

import importlib

import pytest

import gristmill

# Where an object is at home, and its other spellings (all relative to gristmill).
ALIASES = {
    "DataLoader": ["python.DataLoader"],
    "DataLoaderIterator": ["python.PyGrainDatasetIterator", "PyGrainDatasetIterator"],
    "load": ["python.load"],
    "ReadOptions": ["python.ReadOptions"],
    "MultiprocessingOptions": ["multiprocessing.MultiprocessingOptions", "python.MultiprocessingOptions"],
    "multiprocessing.SharedMemoryArray": ["python.SharedMemoryArray", "SharedMemoryArray"],
    "multiprocessing.SharedMemoryArrayMetadata": [],
    "Record": ["python.Record"],
    "RecordMetadata": ["python.RecordMetadata"],
    "config": ["python.config"],
    "MapDataset": ["python.MapDataset"],
    "IterDataset": ["python.IterDataset"],
    "DatasetIterator": ["python.DatasetIterator"],
    "samplers.IndexSampler": ["python.IndexSampler", "IndexSampler"],
    "samplers.SequentialSampler": ["python.SequentialSampler", "SequentialSampler"],
    "samplers.Sampler": ["python.Sampler", "Sampler"],
    "sources.RandomAccessDataSource": ["python.RandomAccessDataSource", "RandomAccessDataSource"],
    "sources.ArrayRecordDataSource": ["python.ArrayRecordDataSource", "ArrayRecordDataSource"],
    "sources.RangeDataSource": ["python.RangeDataSource", "RangeDataSource"],
    "sources.SharedMemoryDataSource": [
        "python.InMemoryDataSource",
        "InMemoryDataSource",
        "sources.InMemoryDataSource",
    ],
    "transforms.Map": ["python.MapTransform", "MapTransform"],
    "transforms.RandomMap": ["python.RandomMapTransform", "RandomMapTransform"],
    "transforms.MapWithIndex": [
        "python.MapWithIndexTransform",
        "MapWithIndexTransform",
        "experimental.MapWithIndexTransform",
        "python.experimental.MapWithIndexTransform",
    ],
    "transforms.TfRandomMap": [],
    "transforms.FlatMap": ["experimental.FlatMapTransform", "python.experimental.FlatMapTransform"],
    "transforms.Filter": ["python.FilterTransform", "FilterTransform"],
    "transforms.Batch": ["python.Batch", "Batch", "python.BatchTransform", "BatchTransform"],
    "transforms.Transformation": ["python.Transformation", "Transformation"],
    "transforms.Transformations": ["python.Transformations", "Transformations"],
    "transforms.DatasetSelectionMap": ["python.DatasetSelectionMap", "DatasetSelectionMap"],
    "sharding.ShardOptions": ["python.ShardOptions", "ShardOptions"],
    "sharding.NoSharding": ["python.NoSharding", "NoSharding"],
    "sharding.ShardByJaxProcess": ["python.ShardByJaxProcess", "ShardByJaxProcess"],
    "sharding.even_split": [],
    **{
        f"constants.{name}": [f"python.{name}", name]
        for name in ("INDEX", "RECORD_KEY", "DATASET_INDEX", "EPOCH", "SEED", "RECORD", "META_FEATURES")
    },
    **{
        f"checkpoint.{name}": [place + prefix + name for place in ("", "python.") for prefix in ("PyGrain", "Grain")]
        for name in ("CheckpointHandler", "CheckpointSave", "CheckpointRestore")
    },
    "checkpoint.StateMismatchError": [],
    **{
        f"python.{name}": [name]
        for name in ("MapOperation", "RandomMapOperation", "FilterOperation", "BatchOperation", "Operation")
    },
    **{f"diagnostics.{name}": [name] for name in ("diagnose", "observe", "visualize", "start_telemetry", "stop_telemetry")},
    **{f"diagnostics.{name}": [] for name in ("Diagnosis", "ExecutionSummary", "Snapshot", "StageSummary", "View")},
    "diagnostics.get_execution_summary": ["experimental.get_execution_summary", "python.experimental.get_execution_summary"],
    **{
        f"testing.assert_{kind}_conforms": []
        for kind in ("iter_dataset", "iterator", "map_dataset", "sampler", "source", "transform")
    },
    "testing.assert_equal_output_after_checkpoint": [
        "experimental.assert_equal_output_after_checkpoint",
        "python.experimental.assert_equal_output_after_checkpoint",
    ],
    **{
        f"experimental.{name}": [f"python.experimental.{name}"]
        for name in (
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
            "InterleaveIterDataset",
            "LimitIterDataset",
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
            "batch_and_pad",
            "device_put",
            "get_element_spec",
            "get_next_index",
            "index_shuffle",
            "multithread_prefetch",
            "pick_performance_config",
            "set_next_index",
        )
    },
}

# Names of the frozen legacy surface that only the root and its modules have.
NOT_IN_PYTHON = [
    *("samplers", "checkpoint", "sources", "DataLoaderIterator", "SharedMemoryArrayMetadata"),
    *("TfRandomMap", "FlatMap", "__version__"),
]

MODULES = [
    "checkpoint",
    "constants",
    "diagnostics",
    "experimental",
    "multiprocessing",
    "samplers",
    "sharding",
    "sources",
    "transforms",
    "testing",
    "python",
    "python.experimental",
]


def resolve(name):
    place = gristmill
    for part in name.split("."):
        place = getattr(place, part)
    return place


@pytest.mark.parametrize(("home", "aliases"), ALIASES.items(), ids=list(ALIASES))
def test_all_spellings_are_one_object(home, aliases):
    canonical = resolve(home)
    for alias in aliases:
        assert resolve(alias) is canonical, alias
        module, _, name = alias.rpartition(".")
        namespace = {}
        exec(f"from gristmill{module and '.'}{module} import {name} as found", namespace)
        assert namespace["found"] is canonical
        assert name in dir(resolve(module) if module else gristmill)


def test_no_public_name_is_forgotten_here():
    """A name that is added to a public module must be added to the table above."""
    known = {*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)}
    for module in MODULES:
        names = [name for name in dir(resolve(module)) if not name.startswith("_")]
        public = getattr(resolve(module), "__all__", names)
        unknown = {f"{module}.{name}" for name in public} - known - {"python.experimental"}
        assert not unknown


@pytest.mark.parametrize("name", NOT_IN_PYTHON)
def test_the_legacy_surface_is_frozen(name):
    assert not hasattr(gristmill.python, name)


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    module = importlib.import_module(f"gristmill.{name}")
    assert resolve(name) is module
    assert module.__name__ == f"gristmill.{name}"
    assert module.__doc__
    assert name.partition(".")[0] in dir(gristmill)


@pytest.mark.parametrize("place", ["", "python", "checkpoint"])
def test_unknown_names_are_attribute_errors(place):
    module = resolve(place) if place else gristmill
    for name in ("NoSuchName", "_no_such_name", "__no_such_name__"):
        with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute '{name}'"):
            getattr(module, name)
    assert not hasattr(gristmill, "_src")


def test_constants():
    values = {name: getattr(gristmill.constants, name) for name in dir(gristmill.constants) if name.isupper()}
    features = values.pop("META_FEATURES")
    assert values == {
        "INDEX": "_index",
        "RECORD_KEY": "_record_key",
        "DATASET_INDEX": "_dataset_index",
        "EPOCH": "_epoch",
        "SEED": "_seed",
        "RECORD": "_record",
    }
    assert type(features) is frozenset and features == set(values.values())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("python.MapTransform", "Map"),
        ("python.RandomMapTransform", "RandomMap"),
        ("python.MapWithIndexTransform", "MapWithIndex"),
        ("python.FilterTransform", "Filter"),
        ("python.InMemoryDataSource", "SharedMemoryDataSource"),
        ("python.PyGrainDatasetIterator", "DataLoaderIterator"),
        ("python.PyGrainCheckpointHandler", "CheckpointHandler"),
        *((f"sharding.{name}", name) for name in ("NoSharding", "ShardOptions", "ShardByJaxProcess")),
        *((f"samplers.{name}", name) for name in ("IndexSampler", "SequentialSampler")),
        *((f"sources.{name}", name) for name in ("RangeDataSource", "ArrayRecordDataSource", "SharedMemoryDataSource")),
    ],
)
def test_classes_keep_the_names_that_states_hold(spelling, name):
    kind = resolve(spelling)
    assert kind.__name__ == kind.__qualname__ == name


def test_version():
    version, info = gristmill.__version__, gristmill.__version_info__
    assert type(version) is str and type(info) is tuple
    assert info == tuple(int(part) for part in version.split(".") if part.isdigit())
    assert len(info) >= 2


def test_the_handler_names_itself_for_orbax():
    handler = gristmill.checkpoint.CheckpointHandler
    assert handler.typestr() == f"{handler.__module__}.{handler.__qualname__}"
