"""One small instance of every stage, and what the specification's formulas say it holds."""

import importlib
import inspect
import pkgutil

import pytest
from entry import IterEntry, MapEntry
from iter_entries import ITER_ENTRIES
from map_entries import MAP_ENTRIES

from gristmill import loader
from gristmill.core.options import ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, stages
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.engine.iterators import StreamIterator


def _streamed(entry: MapEntry) -> IterEntry:
    expected = [x for x in map(entry.model, range(entry.length)) if x is not None]
    return IterEntry(f"map_{entry.name}", lambda: entry.make().to_iter_dataset(), expected)


STREAMS = [*ITER_ENTRIES, *map(_streamed, MAP_ENTRIES)]
WITH_PROCESSES = ("mp_prefetch",)  # every iterator starts some
LOCAL_WORKERS = (  # whose pipelines are taken for others of this process
    "hugging_face_workers",
    "parquet_workers",
    "stream_interleave",
)
_ALL = [entry for entry in [*MAP_ENTRIES, *ITER_ENTRIES] if entry.name not in LOCAL_WORKERS]
each_of_all = pytest.mark.parametrize(
    "entry", _ALL, ids=lambda entry: f"{type(entry).__name__}-{entry.name}"
)


def iterator_of(entry: MapEntry | IterEntry) -> DatasetIterator[object]:
    ds = entry.make()
    return iterate(
        ds if isinstance(ds, IterDataset) else ds.to_iter_dataset(ReadOptions(num_threads=0))
    )


def stage_classes() -> set[type]:
    """Every concrete stage: data sets and iterators defined in ``dataset/stages`` and
    ``loader``.
    """
    found = set()
    for package in (stages, loader):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if info.name.endswith((".elastic_batches", ".elastic_files")):
                continue  # parts of ``ElasticIterator``
            for value in vars(importlib.import_module(info.name)).values():
                is_stage = inspect.isclass(value) and issubclass(
                    value, BlockMapDataset | IterDataset | StreamIterator
                )
                is_own = (
                    is_stage and value.__module__ == info.name and not inspect.isabstract(value)
                )
                # a part of the traced pipelines of ``explain``
                if is_own and "Traced" not in value.__name__:
                    found.add(value)
    return found
