"""How many elements a dataset has: what ``gristmill.dataset_length`` returns."""

from gristmill.dataset.bases.length import AtMost, Exact, Infinite, Unknown, dataset_length

__all__ = ["AtMost", "Exact", "Infinite", "Unknown", "dataset_length"]
