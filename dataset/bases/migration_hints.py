"""Migration hints: the error for a method of another library names its counterpart here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ROWS = (
    "rows of arrays are MapDataset.source({'x': x, 'y': y}), records of a list or data source"
    " MapDataset.source(records)"
)
_GENERATOR = (
    "what can only be read in order is an IterDataset of your own: derive a class and return its"
    " iterator from __iter__"
)
_PAD = (
    "pad in ds.map(...) or ds.batch(n, batch_fn=...), or pack with"
    " grain.experimental.FirstFitPackIterDataset"
)
_UNBATCH = (
    "call batch later, or ds.{call}, whose function lists the rows of a batch; batches of another"
    " size are ds.rebatch(n)"
)
_ENUMERATE = "use ds.map_with_index(lambda i, x: (i, x))"
_NUMPY = "iterate over the dataset itself: batches are NumPy arrays"
_LENGTH = "use len(ds), and operator.length_hint(ds) where only a bound is known"
_OPTIONS = (
    "use grain.experimental.WithOptionsIterDataset(ds, grain.experimental.DatasetOptions(...))"
)
_SPEC = "use grain.experimental.get_element_spec(ds)"
_COLUMNS = "use ds.map(...) with a function of one element"
_NO_RANDOM_ACCESS = "a stream has no random access: "

_OF_BOTH = {
    "as_numpy_iterator": _NUMPY,
    "cardinality": _LENGTH,
    "element_spec": _SPEC,
    "enumerate": _ENUMERATE,
    "from_dict": _ROWS,
    "from_generator": _GENERATOR,
    "from_list": _ROWS,
    "from_tensor_slices": _ROWS,
    "from_tensors": "use MapDataset.source([element])",
    "list_files": "use MapDataset.source(sorted(glob.glob(pattern)))",
    "padded_batch": _PAD,
    "remove_columns": _COLUMNS,
    "rename_column": _COLUMNS,
    "with_format": _COLUMNS,
    "with_options": _OPTIONS,
}


def _of_streams(call: str) -> str:
    return f"it is a step of streams, use ds.to_iter_dataset().{call}"


OF_MAP_DATASETS = _OF_BOTH | {
    "concatenate": "use grain.MapDataset.concatenate([ds, other])",
    "limit": "use ds[:n]",
    "mp_prefetch": _of_streams("mp_prefetch(grain.MultiprocessingOptions(num_workers=...))"),
    "multithread_prefetch": _of_streams("multithread_prefetch(num_threads, buffer_size)"),
    "prefetch": (
        "ds.to_iter_dataset(grain.ReadOptions(num_threads=..., prefetch_buffer_size=...)) reads"
        " ahead with threads,"
        " ds.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=...)) with"
        " processes"
    ),
    "prefetch_to_device": _of_streams("prefetch_to_device(device)"),
    "rebatch": _of_streams("rebatch(n)"),
    "select": "use ds.slice(indices)",
    "shard": "use ds[index::num_shards]",
    "skip": "use ds[n:]",
    "take": "use ds[:n]",
    "thread_prefetch": _of_streams("thread_prefetch(n)"),
    "train_test_split": "use ds.split({'train': 0.9, 'test': 0.1}, seed=0)",
    "unbatch": (
        _UNBATCH.format(call="flat_map(rows, max_fan_out=n)").replace(
            "ds.rebatch", "ds.to_iter_dataset().rebatch"
        )
    ),
}

OF_STREAMS = _OF_BOTH | {
    "concatenate": (
        "use grain.MapDataset.source([ds, other]).interleave(cycle_length=1), or"
        " MapDataset.concatenate"
    ),
    "interleave": (
        "use MapDataset.source(datasets).interleave(cycle_length=...), or"
        " MapDataset.source(paths).interleave(...)"
    ),
    "range": "use MapDataset.range(n).to_iter_dataset()",
    "select": f"{_NO_RANDOM_ACCESS}call slice(indices) on the MapDataset before to_iter_dataset()",
    "shard": (
        f"{_NO_RANDOM_ACCESS}shard the MapDataset, map_ds[index::num_shards], before"
        " to_iter_dataset()"
    ),
    "shuffle": (
        f"{_NO_RANDOM_ACCESS}shuffle the MapDataset before to_iter_dataset(), or shuffle what is"
        " near one another with ds.window_shuffle(window_size, seed=...)"
    ),
    "skip": (
        f"{_NO_RANDOM_ACCESS}slice the MapDataset, map_ds[n:], before to_iter_dataset(), or pass"
        " over elements with itertools.islice(ds, n, None); to continue where a run ended, restore"
        " the state of its iterator"
    ),
    "slice": (
        f"{_NO_RANDOM_ACCESS}slice the MapDataset, map_ds[a:b], before to_iter_dataset();"
        " ds.limit(n) is its beginning"
    ),
    "source": "use MapDataset.source(...).to_iter_dataset()",
    "take": "use ds.limit(n)",
    "to_iter_dataset": "it is a stream already",
    "split": f"{_NO_RANDOM_ACCESS}call split(...) on the MapDataset before to_iter_dataset()",
    "unbatch": _UNBATCH.format(call="flat_map(rows)"),
}


def lookup_with_hint(lookup: Callable[[Any, str], Any], obj: Any, name: str) -> Any:
    """Look up a missing attribute again, and add the migration hint to the ``AttributeError``.

    This is the body of ``__getattr__``: attributes stay missing for ``hasattr``, ``dir`` and
    runtime protocols, and an ``AttributeError`` that a property raises keeps its message.

    Args:
        lookup: ``object.__getattribute__``, or ``type.__getattribute__`` for a class.
        obj: a dataset or a class of datasets.
        name: the missing attribute.
    """
    try:
        return lookup(obj, name)
    except AttributeError as error:
        classes = (obj if isinstance(obj, type) else type(obj)).__mro__
        if name in obj._gm_migration_hints and not any([name in vars(cls) for cls in classes]):
            error.args = (f"{error}: {obj._gm_migration_hints[name]}",)
        raise
