"""Datasets: lazily chained operations, and their iterators."""

from gristmill.dataset import methods as _methods
from gristmill.dataset.bases import map as _map
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.methods import IterDatasetMeta, MapDatasetMeta

# For typing.get_type_hints: these classes are made of the methods, and cannot be imported there.
vars(_methods).update(MapDataset=MapDataset, IterDataset=IterDataset)
vars(_map)["DatasetIterator"] = DatasetIterator

__all__ = ["DatasetIterator", "IterDataset", "IterDatasetMeta", "MapDataset", "MapDatasetMeta"]
