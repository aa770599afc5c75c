"""One small instance of every stage, and what the specification's formulas say it holds."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import entries_basic
import entries_device
import entries_files
import entries_packing
import entries_reshape
import entries_select
import entries_stream

from gristmill import loader
from gristmill.dataset import IterDataset, stages
from gristmill.dataset.bases.iterator import BlockIterator
from gristmill.dataset.bases.map import BlockMapDataset

_FAMILIES = (entries_basic, entries_device, entries_files, entries_packing, entries_reshape, entries_select, entries_stream)

MAP_ENTRIES = [entry for family in _FAMILIES for entry in family.MAP_ENTRIES]
ITER_ENTRIES = [entry for family in _FAMILIES for entry in family.ITER_ENTRIES]


def stage_classes() -> set[type]:
    """Every concrete stage: data sets and iterators defined in ``dataset/stages`` and ``loader``."""
    found = set()
    for package in (stages, loader):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if info.name.endswith((".elastic_batches", ".elastic_files")):
                continue  # parts of ``ElasticIterator``
            for value in vars(importlib.import_module(info.name)).values():
                is_stage = inspect.isclass(value) and issubclass(value, BlockMapDataset | IterDataset | BlockIterator)
                if is_stage and value.__module__ == info.name and not inspect.isabstract(value):
                    found.add(value)
    return found
