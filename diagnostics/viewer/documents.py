"""The documents of a packed row: the runs of one segment id beside a feature."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.diagnostics.viewer.leaves import ElementLeaf
from gristmill.diagnostics.viewer.numbers import as_array

_SUFFIX = "_segment_ids"
_MAX_DOCUMENTS = 64  # that are shown


def documents_of(leaf: ElementLeaf, others: Sequence[ElementLeaf]) -> list[tuple[int, int, int]]:
    """Returns the documents in a feature of a packed row, as ``(segment id, start, stop)``; id 0 is
    padding.

    Args:
        leaf: the feature.
        others: the leaves of its row: if there is none with the name of the feature and
            ``_segment_ids``, the row is not packed, and the list is empty.

    Example:
        >>> ids = ElementLeaf(("x_segment_ids",), np.array([1, 1, 2, 0]))
        >>> documents_of(ElementLeaf(("x",), np.array([5, 6, 7, 0])), [ids])
        [(1, 0, 2), (2, 2, 3), (0, 3, 4)]
    """
    if not leaf.path:
        return []
    name = (*leaf.path[:-1], leaf.path[-1] + _SUFFIX)
    found = next((other for other in others if other.path == name), None)
    values, ids = as_array(leaf.value), None if found is None else as_array(found.value)
    if values is None or ids is None or not _is_of_row(ids) or values.shape[:1] != ids.shape:
        return []
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    runs = [
        (int(ids[start]), start, stop) for start, stop in itertools.pairwise(bounds) if start < stop
    ]
    return runs[:_MAX_DOCUMENTS]


def _is_of_row(ids: Any) -> bool:
    return ids.ndim == 1 and ids.dtype.kind in "iu"
