"""Names, parameters and defaults of Grain's reference exist here, and our tables of methods are
complete.
"""

import inspect
import itertools
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill import experimental
from gristmill.core.cached import replaceable

# Class: its constructor, methods and factories, with their documented parameters.
DOCUMENTED = {
    "MapDataset": (
        """__init__(parents=()); concatenate(datasets); mix(datasets, weights=None); range(start, stop=None, step=1);
        select_from_datasets(datasets, selection_map); source(source); __getitem__(index); __iter__(); __len__();
        batch(batch_size, *, drop_remainder=False, batch_fn=None); filter(transform); map(transform); map_with_index(transform);
        pipe(func, /, *args, **kwargs); random_map(transform, *, seed=None); repeat(num_epochs=None); seed(seed);
        shuffle(seed=None); slice(sl); to_iter_dataset(read_options=None, *, allow_nones=False)"""
    ),
    "IterDataset": (
        """__init__(parents=()); mix(datasets, weights=None); __iter__();
        batch(batch_size, *, drop_remainder=False, batch_fn=None); filter(transform); map(transform); map_with_index(transform);
        mp_prefetch(options=None, worker_init_fn=None); pipe(func, /, *args, **kwargs); prefetch(multiprocessing_options);
        random_map(transform, *, seed=None); seed(seed)"""
    ),
    "DatasetIterator": (
        """__init__(parents=()); __iter__(); __next__(); get_state(); load(directory); save(directory);
        set_state(state); start_prefetch()"""
    ),
    "DataLoader": (
        """__init__(*, data_source, sampler, operations=(), worker_count=0, worker_buffer_size=1, shard_options=None,
        read_options=None, enable_profiling=False); __iter__()"""
    ),
    "IndexSampler": (
        """__init__(num_records, shard_options=NoSharding(), shuffle=False, num_epochs=None, seed=None);
        __getitem__(index)"""
    ),
    "ReadOptions": "__init__(num_threads=16, prefetch_buffer_size=500)",
    "MultiprocessingOptions": (
        "__init__(num_workers=0, per_worker_buffer_size=1, enable_profiling=False)"
    ),
    "ShardOptions": "__init__(shard_index, shard_count, drop_remainder=False)",
    "InMemoryDataSource": "__init__(elements=None, *, name=None)",
}
BINS = (
    "parent, *, length_struct, num_packing_bins, seed=0, shuffle_bins=True,"
    " shuffle_bins_group_by_feature=None, meta_features=(), pack_alignment_struct=None,"
    " padding_struct=None, max_sequences_per_bin=None"
)
EXPERIMENTAL = f"""BestFitPackIterDataset({BINS}); CacheIterDataset(parent);
    ConcatThenSplitIterDataset(parent, *, length_struct, meta_features=(), split_full_length_features=True,
        bos_handling=BOSHandling.DO_NOTHING, bos_features=(), bos_token_id=None);
    ElasticIterator(ds, global_batch_size, shard_options, *, read_options=None, multiprocessing_options=None);
    FirstFitPackIterDataset({BINS}); FlatMapIterDataset(parent, transform); FlatMapMapDataset(parent, transform);
    InterleaveIterDataset(datasets, *, cycle_length, num_make_iter_threads=1, make_iter_buffer_size=1, iter_buffer_size=1);
    LimitIterDataset(parent, count); PackAndBatchOperation(length_struct, batch_size, max_sequences_per_bin=None);
    ParquetIterDataset(path, **read_kwargs); PerformanceConfig(multiprocessing_options=None, read_options=None);
    RebatchIterDataset(parent, batch_size, drop_remainder=False); RepeatIterDataset(parent, num_epochs=None); RngPool(seed);
    ShapeDtypeStruct(shape, dtype); TFRecordIterDataset(path); ThreadPrefetchDatasetIterator(parent, prefetch_buffer_size);
    ThreadPrefetchIterDataset(parent, *, prefetch_buffer_size); WindowShuffleIterDataset(parent, *, window_size, seed);
    WindowShuffleMapDataset(parent, *, window_size, seed); WithOptionsIterDataset(parent, options);
    ZipIterDataset(parents, *, strict=True); ZipMapDataset(parents); apply_transformations(ds, transformations);
    assert_equal_output_after_checkpoint(ds); batch_and_pad(values, *, batch_size, pad_value=0);
    device_put(ds, device, *, cpu_buffer_size=4, device_buffer_size=2); get_element_spec(ds); get_next_index(ds_iter);
    index_shuffle(index, max_index, seed, rounds); multithread_prefetch(ds, num_threads, buffer_size, sequential_slice=False);
    pick_performance_config(ds, *, ram_budget_mb, max_workers, max_buffer_size, samples_to_check=5);
    set_next_index(ds_iter, index)"""  # `read_options=None` is `ReadOptions()`, Grain's default
OTHER_CLASSES = (
    "BOSHandling DatasetOptions ExecutionTrackingMode FlatMapTransform MapWithIndexTransform"
    " ShapeDtypeStructProtocol"
)
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def signatures(text: str) -> list[tuple[str, str]]:
    """The names in a text, each with its parameters."""
    return [
        (part.split("(")[0], part.partition("(")[2][:-1])
        for part in re.sub(r"\s+", " ", text).split("; ")
    ]


def check(ours: list[inspect.Parameter], text: str) -> None:
    namespace: dict[str, Any] = {
        "BOSHandling": experimental.BOSHandling,
        "NoSharding": grain.NoSharding,
    }
    exec(f"def documented({text}): ...", namespace)
    theirs = list(inspect.signature(namespace["documented"]).parameters.values())
    by_name = {parameter.name: parameter for parameter in ours}
    for position, wanted in enumerate(theirs):
        assert wanted.name in by_name, f"there is no parameter {wanted.name}: {ours}"
        found = by_name[wanted.name]
        # what they require, we may leave open
        assert wanted.default in (found.default, wanted.empty), wanted.name
        if wanted.kind is inspect.Parameter.KEYWORD_ONLY:
            assert found.kind in (wanted.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD), wanted.name
        else:
            assert found.kind is wanted.kind, wanted.name
            assert wanted.kind not in BY_POSITION or ours[position] is found, (
                f"{wanted.name} has another position"
            )
    for parameter in ours:  # what we add may be missing
        is_variable = parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        )
        assert (
            parameter.name in [x.name for x in theirs]
            or is_variable
            or parameter.default is not parameter.empty
        )


@pytest.mark.parametrize("cls", DOCUMENTED)
def test_methods(cls):
    owner = getattr(grain, cls)
    for name, text in signatures(DOCUMENTED[cls]):
        function = owner if name == "__init__" else getattr(owner, name)
        parameters = list(inspect.signature(function).parameters.values())
        if isinstance(function, types.FunctionType):  # of instances
            assert parameters.pop(0).kind in BY_POSITION
        check(parameters, text)


def test_experimental_names():
    for name, text in signatures(EXPERIMENTAL):
        check(list(inspect.signature(getattr(experimental, name)).parameters.values()), text)
    for name in OTHER_CLASSES.split():
        assert inspect.isclass(getattr(experimental, name))


def test_kinds_of_the_public_classes():
    for cls in (grain.MapDataset, grain.IterDataset):
        assert isinstance(inspect.getattr_static(cls, "parents"), property | replaceable)
        assert type(cls).__name__ == f"{cls.__name__}Meta"
    assert all(
        map(inspect.iscoroutinefunction, (grain.DatasetIterator.save, grain.DatasetIterator.load))
    )
    assert issubclass(grain.DatasetIterator, Iterator)
    for cls, abstract in [
        (grain.MapDataset, {"__getitem__", "__len__"}),
        (grain.IterDataset, {"__iter__"}),
        (grain.DatasetIterator, {"__next__", "get_state", "set_state"}),
    ]:
        assert cls.__abstractmethods__ == abstract
        assert_raises(TypeError, "abstract", cls)


def test_seeds_older_names_and_those_that_need_an_index():
    seeded = grain.MapDataset.range(6).seed(77)
    # given ones come before derived ones
    assert [*seeded.shuffle(seed=3)] == [*grain.MapDataset.range(6).shuffle(seed=3)]
    ds = grain.MapDataset.range(4).to_iter_dataset()
    with pytest.warns(DeprecationWarning, match="mp_prefetch"):
        assert list(ds.prefetch(grain.MultiprocessingOptions(num_workers=1))) == [0, 1, 2, 3]
    assert not hasattr(ds, "shuffle") and not hasattr(ds, "slice")


PAGE = (Path(__file__).parents[2] / "docs/guides/transforms.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|")
]
CLASSES = [grain.MapDataset, grain.IterDataset]
ARGUMENTS = {
    "batch": (3,),
    "filter": (bool,),
    "flat_map": (lambda x: [x] * x,),
    "limit": (4,),
    "map": (str,),
    "rebatch": (3,),
}
ARGUMENTS |= {
    "map_with_index": (lambda i, x: x,),
    "mp_prefetch": (grain.MultiprocessingOptions(2),),
    "repeat": (2,),
}
ARGUMENTS |= {
    "multithread_prefetch": (2, 1),
    "random_map": (lambda x, rng: x, 0),
    "thread_prefetch": (2,),
    "seed": (0,),
}
ARGUMENTS |= {"bucket_batch": (int, [6])}
KEYWORDS = {"bucket_batch": {"max_tokens": 12}}
ARGUMENTS |= {
    "global_batch": (3,),
    "window_shuffle": (3, 0),
    "zip": (grain.MapDataset.range(6).to_iter_dataset(),),
}
WITHOUT_EXAMPLE = {"apply", "pipe", "parents", "prefetch", "prefetch_to_device"}


def names_in(table: str) -> dict[str, list[str]]:
    """The rows of the table with that header, by the first name in backticks."""
    start = next(i for i, row in enumerate(ROWS) if " | ".join(row).startswith(table))
    rows = itertools.takewhile(lambda row: row[0] != "Method", ROWS[start + 2 :])
    return {re.findall(r"`(\w+)`", row[0])[0]: row[1:] for row in rows}


TABLE = names_in("Method | `MapDataset` | `IterDataset` | Number of elements | Seed")


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_every_method_is_in_the_column_of_its_class():
    factories = names_in("Method | `MapDataset` | `IterDataset` | Number of elements | State")
    for column, cls in enumerate(CLASSES):
        assert {method for method, row in TABLE.items() if row[column] == "yes"} == public(dir(cls))
        assert {factory for factory, row in factories.items() if row[column] == "yes"} == public(
            vars(type(cls))
        )
        for method in public(dir(cls)) - {"parents", "seed"}:
            takes_seed = "seed" in inspect.signature(getattr(cls, method)).parameters
            assert takes_seed == (TABLE[method][3] in ("yes", ("map", "stream")[column])), method
    methods = set(names_in("Method | Moves the iterator"))
    assert methods == public(dir(grain.DatasetIterator)) == public(vars(grain.DataLoaderIterator))


@pytest.mark.parametrize("method", sorted(public(dir(grain.IterDataset)) - WITHOUT_EXAMPLE))
def test_states(method):
    ds = grain.MapDataset.range(6).map(np.int64).to_iter_dataset()
    ds = ds.batch(2) if method == "rebatch" else ds
    args = ARGUMENTS.get(method, ())
    args, keywords = (
        (args[:1], {"seed": args[1]})
        if TABLE[method][3] == "yes"
        else (args, KEYWORDS.get(method, {}))
    )
    with iter(getattr(ds, method)(*args, **keywords)) as it:
        next(it)
        adds_nothing = it.get_state().keys() == {"next_index"}
    assert adds_nothing == (TABLE[method][4] == "–")
