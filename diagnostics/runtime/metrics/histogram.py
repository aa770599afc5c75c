"""A histogram of measurements by size."""

from __future__ import annotations


class Histogram:
    """Counts of whole numbers up to ``2**64`` by size, to about 6 %.

    ``counts[0]`` is that of zeros, ``counts[1 + 8 * k + i]`` that of the numbers of more than
    ``2**(k-1)`` and at most ``2**k``, in eighths of that range.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (1 + (65 << 3))
        self.total = 0  # of the numbers

    def add(self, number: int, times: int = 1) -> None:
        place = 0
        if number:
            bits = (number - 1).bit_length()
            place = 1 + (bits << 3 | number - 1 >> bits - 4 & 7 if bits > 3 else bits << 3)
        self.counts[place] += times
        self.total += number * times

    def add_all(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    @property
    def powers(self) -> list[int]:
        """The count of zeros, ones, twos, 3 to 4, 5 to 8 and so on."""
        places = range(1, len(self.counts), 8)
        return [self.counts[0], *[sum(self.counts[place : place + 8]) for place in places]]

    def add_to_most_frequent(self, times: int) -> None:
        """Counts measurements of unknown size as if they had the most frequent one."""
        self.counts[self.counts.index(max(self.counts))] += times

    def percentile(self, share: float) -> float:
        """Returns the number that this share of them did not exceed; 0 if there were none."""
        left = share * sum(self.counts)
        for place, num in enumerate(self.counts):
            left -= num
            if num and left <= 0:
                bits, eighth = divmod(place - 1, 8)
                return (8.5 + eighth) * 2.0 ** (bits - 4) if bits > 3 else float(int(2.0**bits))
        return 0.0
