"""The number of elements that a prefetching stage computes in one call."""

from __future__ import annotations

QUICK_SECONDS = 0.0005  # blocks grow while one takes less
_SLOW_SECONDS = 0.002  # and shrink when one takes more


class BlockSize:
    """The size of the next block: it grows 1, 2, 4, … while a block takes less than about a
    millisecond.

    So small elements cost little more than without a worker in between, and none waits long for
    others.
    """

    def __init__(self) -> None:
        self.now = 1

    def adapt(
        self,
        seconds: float,
        size: int,
        most: int,
        *,
        num: int | None = None,
        is_heavy: bool = False,
        may_grow: bool = True,
    ) -> None:
        """Follows from the block that was computed last.

        Args:
            seconds: how long it took.
            size: the number of elements that were wanted.
            most: no block becomes larger; one that is stays so.
            num: how many came of them, if they need not be all.
            is_heavy: there is another reason for smaller blocks.
            may_grow: there is no reason against larger ones.
        """
        if is_heavy or seconds > _SLOW_SECONDS:
            self.now = max(1, min(self.now, (size if num is None else num) // 2))
        elif may_grow and seconds < QUICK_SECONDS:
            self.now = max(self.now, min(2 * size, most))

    def restart(self) -> None:
        """Resets the size of the next block to one element."""
        self.now = 1
