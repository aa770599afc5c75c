"""Datasets: lazily chained operations, and their iterators."""

from gristmill.dataset.bases.iter import IterDataset, IterDatasetMeta
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset, MapDatasetMeta

__all__ = ["DatasetIterator", "IterDataset", "IterDatasetMeta", "MapDataset", "MapDatasetMeta"]
