"""Every name and parameter that Grain's reference documents is here, of the same kind and with the same default."""

import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

import gristmill
import gristmill.python

# Class: its constructor, methods and factories, with their documented parameters.
DOCUMENTED: dict[str, dict[str, str]] = {
    "MapDataset": {
        "__init__": "parents=()",
        "concatenate": "datasets",
        "mix": "datasets, weights=None",
        "range": "start, stop=None, step=1",
        "select_from_datasets": "datasets, selection_map",
        "source": "source",
        "__getitem__": "index",
        "__iter__": "",
        "__len__": "",
        "batch": "batch_size, *, drop_remainder=False, batch_fn=None",
        "filter": "transform",
        "map": "transform",
        "map_with_index": "transform",
        "pipe": "func, /, *args, **kwargs",
        "random_map": "transform, *, seed=None",
        "repeat": "num_epochs=None",
        "seed": "seed",
        "shuffle": "seed=None",
        "slice": "sl",
        "to_iter_dataset": "read_options=None, *, allow_nones=False",
    },
    "IterDataset": {
        "__init__": "parents=()",
        "mix": "datasets, weights=None",
        "__iter__": "",
        "batch": "batch_size, *, drop_remainder=False, batch_fn=None",
        "filter": "transform",
        "map": "transform",
        "map_with_index": "transform",
        "mp_prefetch": "options=None, worker_init_fn=None",
        "pipe": "func, /, *args, **kwargs",
        "prefetch": "multiprocessing_options",
        "random_map": "transform, *, seed=None",
        "seed": "seed",
    },
    "DatasetIterator": {
        "__init__": "parents=()",
        "__iter__": "",
        "__next__": "",
        "get_state": "",
        "load": "directory",
        "save": "directory",
        "set_state": "state",
        "start_prefetch": "",
    },
    "DataLoader": {
        "__init__": "*, data_source, sampler, operations=(), worker_count=0, worker_buffer_size=1, shard_options=None, "
        "read_options=None, enable_profiling=False",
        "__iter__": "",
    },
    "IndexSampler": {
        "__init__": "num_records, shard_options=NoSharding(), shuffle=False, num_epochs=None, seed=None",
        "__getitem__": "index",
    },
    "ReadOptions": {"__init__": "num_threads=16, prefetch_buffer_size=500"},
    "MultiprocessingOptions": {"__init__": "num_workers=0, per_worker_buffer_size=1, enable_profiling=False"},
    "ShardOptions": {"__init__": "shard_index, shard_count, drop_remainder=False"},
    "InMemoryDataSource": {"__init__": "elements=None, *, name=None"},
}
BINS = (
    "parent, *, length_struct, num_packing_bins, seed=0, shuffle_bins=True, shuffle_bins_group_by_feature=None, "
    "meta_features=(), pack_alignment_struct=None, padding_struct=None, max_sequences_per_bin=None"
)
EXPERIMENTAL = {
    "BestFitPackIterDataset": BINS,
    "CacheIterDataset": "parent",
    "ConcatThenSplitIterDataset": "parent, *, length_struct, meta_features=(), split_full_length_features=True, "
    "bos_handling=BOSHandling.DO_NOTHING, bos_features=(), bos_token_id=None",
    # ``None`` is ``ReadOptions()``, Grain's default.
    "ElasticIterator": "ds, global_batch_size, shard_options, *, read_options=None, multiprocessing_options=None",
    "FirstFitPackIterDataset": BINS,
    "FlatMapIterDataset": "parent, transform",
    "FlatMapMapDataset": "parent, transform",
    "InterleaveIterDataset": "datasets, *, cycle_length, num_make_iter_threads=1, make_iter_buffer_size=1, iter_buffer_size=1",
    "LimitIterDataset": "parent, count",
    "PackAndBatchOperation": "length_struct, batch_size, max_sequences_per_bin=None",
    "ParquetIterDataset": "path, **read_kwargs",
    "PerformanceConfig": "multiprocessing_options=None, read_options=None",
    "RebatchIterDataset": "parent, batch_size, drop_remainder=False",
    "RepeatIterDataset": "parent, num_epochs=None",
    "RngPool": "seed",
    "ShapeDtypeStruct": "shape, dtype",
    "TFRecordIterDataset": "path",
    "ThreadPrefetchDatasetIterator": "parent, prefetch_buffer_size",
    "ThreadPrefetchIterDataset": "parent, *, prefetch_buffer_size",
    "WindowShuffleIterDataset": "parent, *, window_size, seed",
    "WindowShuffleMapDataset": "parent, *, window_size, seed",
    "WithOptionsIterDataset": "parent, options",
    "ZipIterDataset": "parents, *, strict=True",
    "ZipMapDataset": "parents",
    "apply_transformations": "ds, transformations",
    "assert_equal_output_after_checkpoint": "ds",
    "batch_and_pad": "values, *, batch_size, pad_value=0",
    "device_put": "ds, device, *, cpu_buffer_size=4, device_buffer_size=2",
    "get_element_spec": "ds",
    "get_next_index": "ds_iter",
    "index_shuffle": "index, max_index, seed, rounds",
    "multithread_prefetch": "ds, num_threads, buffer_size, sequential_slice=False",
    "pick_performance_config": "ds, *, ram_budget_mb, max_workers, max_buffer_size, samples_to_check=5",
    "set_next_index": "ds_iter, index",
}
OPTIONS = ["filter_warn_threshold_ratio", "filter_raise_threshold_ratio"]
OTHER_CLASSES = [
    "BOSHandling",
    "DatasetOptions",
    "ExecutionTrackingMode",
    "FlatMapTransform",
    "MapWithIndexTransform",
    "ShapeDtypeStructProtocol",
]

METHODS = [(cls, name) for cls, methods in DOCUMENTED.items() for name in methods]
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def documented_signature(text: str) -> inspect.Signature:
    namespace: dict[str, Any] = {
        "BOSHandling": gristmill.experimental.BOSHandling,
        "NoSharding": gristmill.NoSharding,
    }
    exec(f"def documented({text}): ...", namespace)
    return inspect.signature(namespace["documented"])


def check(function: Any, text: str) -> None:
    check_parameters(list(inspect.signature(function).parameters.values()), text)


def check_parameters(ours: list[inspect.Parameter], text: str) -> None:
    theirs = list(documented_signature(text).parameters.values())
    by_name = {parameter.name: parameter for parameter in ours}
    for position, wanted in enumerate(theirs):
        assert wanted.name in by_name, f"there is no parameter {wanted.name}: {ours}"
        found = by_name[wanted.name]
        assert wanted.default in (found.default, wanted.empty), wanted.name  # what they require, we may leave open
        if wanted.kind is inspect.Parameter.KEYWORD_ONLY:
            assert found.kind in (wanted.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD), wanted.name
        else:
            assert found.kind is wanted.kind, wanted.name
            assert wanted.kind not in BY_POSITION or ours[position] is found, f"{wanted.name} has another position"
    for parameter in ours:  # what we add may be left out
        is_variable = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        assert parameter.name in [x.name for x in theirs] or is_variable or parameter.default is not parameter.empty


@pytest.mark.parametrize(("cls", "name"), METHODS, ids=[f"{cls}.{name}" for cls, name in METHODS])
def test_methods(grain, cls, name):
    owner = getattr(grain, cls)
    if name == "__init__":
        check(owner, DOCUMENTED[cls][name])
        return
    function = getattr(owner, name)
    if isinstance(function, types.FunctionType):  # of instances
        first, *others = inspect.signature(function).parameters.values()
        assert first.kind in BY_POSITION
        check_parameters(others, DOCUMENTED[cls][name])
    else:
        check(function, DOCUMENTED[cls][name])


@pytest.mark.parametrize("name", EXPERIMENTAL)
def test_experimental_names(grain, name):
    check(getattr(grain.experimental, name), EXPERIMENTAL[name])
    assert getattr(grain.experimental, name) is getattr(gristmill.experimental, name)


@pytest.mark.parametrize("name", OTHER_CLASSES)
def test_other_experimental_names(name):
    assert inspect.isclass(getattr(gristmill.experimental, name))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    options = gristmill.experimental.DatasetOptions(**{name: 0.5})
    assert getattr(options, name) == 0.5


@pytest.mark.parametrize("cls", ["MapDataset", "IterDataset"])
def test_parents_are_a_property(grain, cls):
    assert isinstance(inspect.getattr_static(getattr(grain, cls), "parents"), property)


def test_save_and_load_are_coroutines(grain):
    assert inspect.iscoroutinefunction(grain.DatasetIterator.save)
    assert inspect.iscoroutinefunction(grain.DatasetIterator.load)


@pytest.mark.parametrize(
    ("cls", "abstract"),
    [
        ("MapDataset", {"__getitem__", "__len__"}),
        ("IterDataset", {"__iter__"}),
        ("DatasetIterator", {"__next__", "get_state", "set_state"}),
    ],
)
def test_what_subclasses_must_define(grain, cls, abstract):
    assert getattr(grain, cls).__abstractmethods__ == abstract
    with pytest.raises(TypeError, match="abstract"):
        getattr(grain, cls)()


def test_bases_of_the_public_classes(grain):
    assert issubclass(grain.DatasetIterator, Iterator)
    assert type(grain.MapDataset).__name__ == "MapDatasetMeta"
    assert type(grain.IterDataset).__name__ == "IterDatasetMeta"
