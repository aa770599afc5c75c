"""Estimates of the memory that elements take."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_SECONDS = 2e-6  # to look at an element, at least
_SHARE = 0.01  # of the time that elements took, to be spent on looking at them
_MOST_PARTS = 32  # of a container that are looked at


def num_bytes_of(element: object, most_parts: int | None = None) -> float:
    """Return the bytes of an element: of arrays, those of their data.

    Args:
        element: any element of a pipeline.
        most_parts: the number of children of a container to measure, as a sample of all.
    """
    if isinstance(element, dict | list | tuple):
        parts = element.values() if isinstance(element, dict) else element
        num = len(parts)
        if most_parts is None or num <= most_parts:
            return sum([num_bytes_of(part, most_parts) for part in parts])
        return (
            sum([num_bytes_of(part, most_parts) for part in itertools.islice(parts, most_parts)])
            * num
            / most_parts
        )
    if isinstance(element, np.ndarray):
        return element.nbytes
    # arrays of others have their data elsewhere
    return max(sys.getsizeof(element), getattr(element, "nbytes", 0))


class Sampling:
    """Chooses which elements to look at: as many as can be looked at in a hundredth of the time
    that all of them took.

    Large ones take long to make, so all of them are looked at where that matters.
    """

    def __init__(self) -> None:
        self._num = 1.0  # to measure
        self._seconds = _SECONDS  # that the last ones took, each

    def num_of(self, seconds: float) -> int:
        """Return the number of those elements that took ``seconds``."""
        # Kept here: threads that come together may forget some, and no more.
        chosen = self._num + seconds * _SHARE / self._seconds
        num = int(chosen)
        self._num = min(chosen - num, 1.0)
        return num

    def mean_bytes(self, elements: Sequence[Any]) -> float:
        """Return ``mean_bytes(elements)``, and note how long that took."""
        began = time.thread_time()
        found = mean_bytes(elements)
        if elements:
            self._seconds = max(_SECONDS, (time.thread_time() - began) / len(elements))
        return found


def spread(elements: Sequence[T], num: int) -> Sequence[T]:
    """About ``num`` of ``elements``, from all parts of it."""
    return elements if num >= len(elements) else elements[:: -(-len(elements) // num)]


def mean_bytes(elements: Sequence[Any]) -> float:
    """Return the mean of the bytes of ``elements``, about; 0 if there are none, or they do not let
    themselves be looked at.
    """
    try:
        return (
            sum([num_bytes_of(element, _MOST_PARTS) for element in elements]) / len(elements)
            if elements
            else 0.0
        )
    except Exception:  # of users' classes
        return 0.0
