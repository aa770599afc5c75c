"""Datasets: lazily chained operations, and their iterators."""

from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.methods import IterDatasetMeta, MapDatasetMeta

__all__ = ["DatasetIterator", "IterDataset", "IterDatasetMeta", "MapDataset", "MapDatasetMeta"]
