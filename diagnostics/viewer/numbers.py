"""The numbers of an array: their range, mean, and how they are spread. Of a large one, those of a
sample of its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MAX_EXACT = 4_000_000  # values of an array that are all looked at
_NUM_SAMPLED = 32_768
_NUM_BINS = 48


@dataclass(frozen=True)
class ValueStatistics:
    """Statistics of the values of an array.

    Args:
        num: how many there are.
        num_seen: how many were looked at.
        low, high, mean: of the finite ones; ``nan`` without any.
        num_nan, num_infinite: how many of those that were seen are so.
        counts: how many of the finite ones are in each of equal parts of the range.
        is_of_truth: they are truth values, ``mean`` is the share of those that are true.
    """

    num: int
    num_seen: int
    low: float
    high: float
    mean: float
    num_nan: int
    num_infinite: int
    counts: list[int]
    is_of_truth: bool = False

    @property
    def is_exact(self) -> bool:
        return self.num_seen == self.num


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """Returns an array of any library, or a list of numbers, as one of NumPy; ``None`` of anything
    else. It never raises.
    """
    try:
        if isinstance(value, np.ndarray | list | tuple):
            return np.asarray(value)
        if hasattr(value, "detach"):  # of PyTorch, perhaps on a device
            value = value.detach().cpu()
        names = ("dtype", "shape") if hasattr(value, "dtype") else ("__array_interface__",)
        return np.asarray(value) if all([hasattr(value, name) for name in names]) else None
    except Exception:
        return None


def is_numeric(array: npt.NDArray[Any]) -> bool:
    """True if its values are numbers or truth values; those of ``ml_dtypes`` count, too."""
    return array.dtype.kind in "biufc" or array.dtype.name.startswith(
        ("bfloat", "float", "int", "uint")
    )


def sample(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns all values of an array, or a sample of a large one at random places, the same ones
    every time.

    Returns:
        shape [values].
    """
    if array.size <= _MAX_EXACT:
        return array.reshape(-1)
    rng = np.random.default_rng(0)
    first, *others = [rng.integers(0, size, _NUM_SAMPLED) for size in array.shape]
    return array[(np.sort(first), *others)]


def numbers_of(array: npt.NDArray[Any]) -> ValueStatistics | None:
    """Returns statistics of the values of an array; ``None`` if they are not numbers, or the array
    is empty.
    """
    if not array.size or not is_numeric(array):
        return None
    with np.errstate(all="ignore"):
        return _numbers(array.size, sample(array))


def _numbers(num: int, seen: npt.NDArray[Any]) -> ValueStatistics:
    values, is_of_truth = seen, seen.dtype.kind == "b"
    if seen.dtype.kind == "c":
        values = np.abs(seen)
    elif is_of_truth:
        values = seen.astype(np.uint8)
    if values.dtype.kind not in "biu":
        values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    low = high = mean = math.nan
    counts: list[int] = []
    if finite.size:
        low, high = finite.min().item(), finite.max().item()
        mean, counts = float(finite.mean(dtype=np.float64)), _counts(finite, low, high)
    num_nan = int(np.isnan(values).sum())
    num_infinite = values.size - finite.size - num_nan
    return ValueStatistics(
        num, seen.size, low, high, mean, num_nan, num_infinite, counts, is_of_truth
    )


def _counts(values: npt.NDArray[Any], low: float, high: float) -> list[int]:
    """Returns a histogram; of integers, each part has as many of them."""
    if isinstance(low, int) and isinstance(high, int):
        width = -(-(high - low + 1) // _NUM_BINS)
        num = -(-(high - low + 1) // width)
        places = (values.astype(np.float64) - low) // width  # exact up to 2**53, near enough above
    else:
        # half of it: the whole may be more than a float can be
        num, half = _NUM_BINS, high / 2 - low / 2
        places = (values / 2 - low / 2) / half * num if half else np.zeros(values.shape)
    places = np.clip(places, 0, num - 1).astype(np.int64)
    counts: list[int] = np.bincount(places, minlength=num).tolist()
    return counts
