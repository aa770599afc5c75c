"""Datasets: lazily chained operations, and their iterators."""

from gristmill.dataset.iter_dataset import IterDataset, IterDatasetMeta
from gristmill.dataset.iterator import DatasetIterator
from gristmill.dataset.map_dataset import MapDataset, MapDatasetMeta

__all__ = ["DatasetIterator", "IterDataset", "IterDatasetMeta", "MapDataset", "MapDatasetMeta"]
