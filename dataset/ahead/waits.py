"""Measures waits for the budget that all prefetching stages share."""

from __future__ import annotations

from typing import Literal, TypeAlias

Missing: TypeAlias = Literal["threads", "memory"]


class BudgetWaits:
    """The seconds that the consumer of one stage waited because there was no thread, or no memory,
    for what it needed next.
    """

    def __init__(self) -> None:
        self.seconds: dict[Missing, float] = {"threads": 0.0, "memory": 0.0}
        self.observed: BudgetWaits | None = None  # counts with this one

    def add(self, missing: Missing, seconds: float) -> None:
        """Counts more; called under the lock of the budget, shared by all with one ``observed``."""
        self.seconds[missing] += seconds
        if self.observed is not None:
            self.observed.add(missing, seconds)
