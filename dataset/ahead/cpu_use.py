"""Measures how many CPUs the threads that read have used."""

from __future__ import annotations

_WINDOW_SECONDS = 0.1  # of one measurement, at least,
_BLOCKS_PER_THREAD = 4  # and with enough blocks: their CPU time counts when they end
_ALL = 0.8  # of the CPUs: the rest is for the consumer


class CpuUse:
    """The CPU time of blocks, over windows of a tenth of a second or more.

    Args:
        num_cpus: how many CPUs the threads may use.
    """

    def __init__(self, num_cpus: int) -> None:
        self._num_cpus = num_cpus
        self._began = self._seconds = 0.0
        self._num_blocks = 0

    def add(self, now: float, cpu_seconds: float, num_threads: int) -> bool:
        """Count a block of one of ``num_threads`` threads, which took ``cpu_seconds`` and has ended
        ``now``; return true if a window ends with it in which the threads used all CPUs.
        """
        self._seconds += cpu_seconds
        self._num_blocks += 1
        elapsed = now - self._began
        if elapsed < _WINDOW_SECONDS or self._num_blocks < _BLOCKS_PER_THREAD * num_threads:
            return False
        uses_all = self._seconds >= _ALL * self._num_cpus * elapsed
        self._began, self._seconds, self._num_blocks = now, 0.0, 0
        return uses_all
