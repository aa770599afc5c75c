"""The number of elements of a dataset, as ``gristmill.dataset_length`` returns it."""

from gristmill.dataset.bases.length import AtMost, Exact, Infinite, Unknown, dataset_length

__all__ = ["AtMost", "Exact", "Infinite", "Unknown", "dataset_length"]
