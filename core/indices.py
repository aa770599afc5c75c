"""Blocks of indices.

A block is a ``range`` or a 1-d NumPy array of integers: int64, or object (Python's own integers)
where int64 could overflow. Arithmetic on it is written once, with operators that mean the same for
an ``int`` and for an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = "Sequence[int] | NDArray[Any]"

_INT64_MAX = 2**63 - 1


def as_array(indices: Indices, limit: int) -> NDArray[Any]:
    """Returns ``indices`` as an int64 array [n] if none exceeds ``limit`` in magnitude, else as an
    object array [n].

    Args:
        indices: the block; not empty.
        limit: largest magnitude for which the caller's arithmetic stays within int64; ``2**63 - 1``
            takes every int64.
    """
    if isinstance(indices, np.ndarray):
        if (
            indices.dtype == object
            or limit >= _INT64_MAX
            or (-limit <= indices.min() and indices.max() <= limit)
        ):
            return indices
        return indices.astype(object)
    if isinstance(indices, range):
        if abs(indices[0]) <= limit and abs(indices[-1]) <= limit:
            return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    elif max(map(abs, indices)) <= limit:
        return np.array(indices, dtype=np.int64)
    return np.array(indices, dtype=object)


def as_ints(indices: Indices) -> Sequence[int]:
    """Returns ``indices`` as built-in ``int``s, for user code."""
    return indices.tolist() if isinstance(indices, np.ndarray) else indices
