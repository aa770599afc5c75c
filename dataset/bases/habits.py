"""Methods of other libraries: where somebody looks for one, the error says what to write here.

1. They are no attributes: ``hasattr`` is false, ``getattr`` gives its default, ``dir`` does not list them, and what a subclass,
   an object or another base calls so is found.
2. Looking up any other attribute costs nothing: with a ``__getattr__``, Python looks up all of them the slow way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_ROWS = "rows of arrays are MapDataset.source({'x': x, 'y': y}), records of a list or data source MapDataset.source(records)"
_GENERATOR = "what can only be read in order is an IterDataset of your own: derive a class and return its iterator from __iter__"
_PAD = "pad in ds.map(...) or ds.batch(n, batch_fn=...), or pack with grain.experimental.FirstFitPackIterDataset"
_UNBATCH = "call batch later, or ds.{call}, whose function lists the rows of a batch; batches of another size are ds.rebatch(n)"
_ENUMERATE = "use ds.map_with_index(lambda i, x: (i, x))"
_NUMPY = "iterate over the dataset itself: batches are NumPy arrays"
_LENGTH = "use len(ds), and operator.length_hint(ds) where only a bound is known"
_OPTIONS = "use grain.experimental.WithOptionsIterDataset(ds, grain.experimental.DatasetOptions(...))"
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
    "cache": _of_streams("cache()"),
    "concatenate": "use grain.MapDataset.concatenate([ds, other])",
    "limit": "use ds[:n]",
    "mp_prefetch": _of_streams("mp_prefetch(grain.MultiprocessingOptions(num_workers=...))"),
    "multithread_prefetch": _of_streams("multithread_prefetch(num_threads, buffer_size)"),
    "prefetch": (
        "ds.to_iter_dataset(grain.ReadOptions(num_threads=..., prefetch_buffer_size=...)) reads ahead with threads, "
        "ds.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=...)) with processes"
    ),
    "prefetch_to_device": _of_streams("prefetch_to_device(device)"),
    "rebatch": _of_streams("rebatch(n)"),
    "select": "use ds.slice(indices)",
    "shard": "use ds[index::num_shards]",
    "skip": "use ds[n:]",
    "take": "use ds[:n]",
    "thread_prefetch": _of_streams("thread_prefetch(n)"),
    "train_test_split": "use ds.split({'train': 0.9, 'test': 0.1}, seed=0)",
    "unbatch": _UNBATCH.format(call="flat_map(rows, max_fan_out=n)").replace("ds.rebatch", "ds.to_iter_dataset().rebatch"),
}

OF_STREAMS = _OF_BOTH | {
    "concatenate": "use grain.MapDataset.source([ds, other]).interleave(cycle_length=1), or MapDataset.concatenate",
    "interleave": "use MapDataset.source(datasets).interleave(cycle_length=...), or MapDataset.source(paths).interleave(...)",
    "range": "use MapDataset.range(n).to_iter_dataset()",
    "select": f"{_NO_RANDOM_ACCESS}call slice(indices) on the MapDataset before to_iter_dataset()",
    "shard": f"{_NO_RANDOM_ACCESS}shard the MapDataset, map_ds[index::num_shards], before to_iter_dataset()",
    "shuffle": (
        f"{_NO_RANDOM_ACCESS}shuffle the MapDataset before to_iter_dataset(), or shuffle what is near one another with "
        "ds.window_shuffle(window_size, seed=...)"
    ),
    "skip": (
        f"{_NO_RANDOM_ACCESS}slice the MapDataset, map_ds[n:], before to_iter_dataset(), or pass over elements with "
        "itertools.islice(ds, n, None); to go on where a run ended, restore the state of its iterator"
    ),
    "slice": f"{_NO_RANDOM_ACCESS}slice the MapDataset, map_ds[a:b], before to_iter_dataset(); ds.limit(n) is its beginning",
    "source": "use MapDataset.source(...).to_iter_dataset()",
    "take": "use ds.limit(n)",
    "to_iter_dataset": "it is a stream already",
    "split": f"{_NO_RANDOM_ACCESS}call split(...) on the MapDataset before to_iter_dataset()",
    "unbatch": _UNBATCH.format(call="flat_map(rows)"),
}

NO_ITEMS = (
    f"{_NO_RANDOM_ACCESS}index or slice the MapDataset before to_iter_dataset(); ds.limit(n) is the beginning of a stream, "
    "next(iter(ds)) its first element"
)


class NotSubscriptableError(TypeError, AttributeError):
    """Something without random access was indexed. An ``AttributeError``, so that ``hasattr`` denies ``__getitem__``."""


class _Elsewhere:
    """What stands in a class for an attribute that there is not."""

    def __init__(self, home: type, name: str, hint: str) -> None:
        self._home, self._name, self._hint = home, name, hint

    def __get__(self, obj: Any, owner: type) -> Any:
        try:  # of a class that comes later
            return getattr(super(self._home, owner if obj is None else obj), self._name)
        except AttributeError:
            pass
        if obj is None and hasattr(type(owner), self._name):  # a factory, which instances do not have
            return getattr(type(owner), self._name).__get__(owner)
        if self._name == "__getitem__":
            raise NotSubscriptableError(f"'{owner.__name__}' object is not subscriptable: {self._hint}")
        what = f"type object '{owner.__name__}'" if obj is None else f"'{owner.__name__}' object"
        raise AttributeError(f"{what} has no attribute '{self._name}': {self._hint}")


def with_hints(hints: Mapping[str, str]) -> Callable[[C], C]:
    """Lets a class say what to use in place of attributes that it does not have: their names, each with the words for it."""

    def add(cls: C) -> C:
        for name, hint in hints.items():
            assert name not in vars(cls), name
            setattr(cls, name, _Elsewhere(cls, name, hint))
        return cls

    return add


def without_hints(obj: Any, names: Iterable[str]) -> list[str]:
    """``names``, as ``dir`` finds them in an object or class, without those that there are not."""
    import inspect

    return [name for name in names if not isinstance(inspect.getattr_static(obj, name, None), _Elsewhere)]
