"""The numbers of an array: their range, mean, and how they are spread. Of a large one, those of a
sample of its values.
"""

from __future__ import annotations

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
        is_array = (hasattr(value, "dtype") and hasattr(value, "shape")) or hasattr(
            value, "__array_interface__"
        )
        return np.asarray(value) if is_array else None
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
    return array[
        tuple(
            [
                (
                    np.sort(rng.integers(0, size, _NUM_SAMPLED))
                    if i == 0
                    else rng.integers(0, size, _NUM_SAMPLED)
                )
                for i, size in enumerate(array.shape)
            ]
        )
    ]


def numbers_of(array: npt.NDArray[Any]) -> ValueStatistics | None:
    """Returns statistics of the values of an array; ``None`` if they are not numbers, or the array
    is empty.
    """
    if not array.size or not is_numeric(array):
        return None
    with np.errstate(all="ignore"):
        return _numbers(array.size, sample(array))


def _numbers(num: int, seen: npt.NDArray[Any]) -> ValueStatistics:
    values = (
        np.abs(seen)
        if seen.dtype.kind == "c"
        else seen.astype(np.uint8)
        if seen.dtype.kind == "b"
        else seen
    )
    if values.dtype.kind not in "biu":
        values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    num_nan = int(np.isnan(values).sum())
    if not finite.size:
        return ValueStatistics(
            num, seen.size, np.nan, np.nan, np.nan, num_nan, values.size - num_nan, []
        )
    low, high = finite.min().item(), finite.max().item()
    return ValueStatistics(
        num,
        seen.size,
        low,
        high,
        float(finite.mean(dtype=np.float64)),
        num_nan,
        values.size - finite.size - num_nan,
        _counts(finite, low, high),
        seen.dtype.kind == "b",
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
    return [
        int(x) for x in np.bincount(np.clip(places, 0, num - 1).astype(np.int64), minlength=num)
    ]
