"""A histogram of measurements by size."""

from __future__ import annotations


class Histogram:
    """Counts of whole numbers by size: zeros, ones, twos, 3 to 4, 5 to 8, …, up to ``2**64``."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * 66
        self.total = 0  # of the numbers

    def add(self, number: int, times: int = 1) -> None:
        self.counts[(number - 1).bit_length() + 1 if number else 0] += times
        self.total += number * times

    def add_all(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
