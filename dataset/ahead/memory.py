"""The memory of what is computed ahead."""

from __future__ import annotations


class Holding:
    """The memory used by one prefetching stage. A separate object, so that the accounting keeps no
    stage alive.
    """

    def __init__(self) -> None:
        self.num_bytes = 0  # that its elements take, and that are reserved for those it computes
        self.is_open = True


class Memory:
    """Accounts for at most ``max_bytes`` bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0  # that are held
        self._largest = 0.0  # of all elements that were computed

    def hold(self, holding: Holding, num_bytes: int) -> None:
        """Records that this many bytes more, or fewer, are held."""
        if holding.is_open:
            holding.num_bytes += num_bytes
            self.num_bytes += num_bytes

    def release(self, holding: Holding) -> bool:
        """Nothing is held any more; false if that was so before."""
        was_open, holding.is_open = holding.is_open, False
        self.num_bytes -= holding.num_bytes if was_open else 0
        return was_open

    def affords(self, num: int, element_bytes: float) -> int:
        """Returns the number of elements, of ``num``, for which there is memory. While their size
        is unknown, each may be as large as any.
        """
        left = self.max_bytes - self.num_bytes
        needed = element_bytes or self._largest
        if needed * num <= left:
            return num
        return int(left // needed) if left > 0 else 0

    def learned(self, before: float, now: float) -> float:
        """Returns the new estimate of the size of elements, from the estimate ``before`` and one
        element of size ``now``.
        """
        size = (before + now) / 2 if before else now
        self._largest = max(self._largest, size)
        return size
