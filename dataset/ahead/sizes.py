"""How much memory elements take."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_SECONDS = 2e-6  # to look at an element, about
_SHARE = 0.01  # of the time that elements took, to be spent on looking at them
_MOST_PARTS = 32  # of a container that are looked at


def num_bytes_of(element: Any, most_parts: int | None = None) -> float:
    """The bytes of an element: of arrays, those of their data.

    Args:
        element: whatever a pipeline delivers.
        most_parts: look at so many parts of a container, which stand for the others.
    """
    if isinstance(element, dict | list | tuple):
        parts = element.values() if isinstance(element, dict) else element
        num = len(parts)
        if most_parts is None or num <= most_parts:
            return sum([num_bytes_of(part, most_parts) for part in parts])
        return sum([num_bytes_of(part, most_parts) for part in itertools.islice(parts, most_parts)]) * num / most_parts
    if isinstance(element, np.ndarray):
        return element.nbytes
    return max(sys.getsizeof(element), getattr(element, "nbytes", 0))  # arrays of others have their data elsewhere


def sample(elements: Sequence[T], seconds: float) -> Sequence[T]:
    """As many of ``elements``, at least one, as can be looked at in a hundredth of the time that they took.

    Large ones take long to make, so all of them are looked at where that matters.
    """
    num = max(1, int(seconds * _SHARE / _SECONDS))
    return elements if num >= len(elements) else elements[:: -(-len(elements) // num)]


def mean_bytes(elements: Sequence[Any]) -> float:
    """The mean of the bytes of ``elements``, about; 0 if there are none, or they do not let themselves be looked at."""
    try:
        return sum([num_bytes_of(element, _MOST_PARTS) for element in elements]) / len(elements) if elements else 0.0
    except Exception:  # of users' classes
        return 0.0
