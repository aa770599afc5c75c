"""What iterators tell of what went through them: faults that ``tolerate`` passed over, elements of components."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any

from gristmill.dataset.tolerance import FaultCounts, counted


class Tolerating:
    """A part of every iterator."""

    _counts_faults = False  # whether a step upstream passes over faults, so that they are in the state

    _parents: tuple[Any, ...] = ()

    @abc.abstractmethod
    def get_state(self) -> Any:
        """The position, in which the counts are."""

    def faults(self) -> FaultCounts:
        """What ``tolerate`` has passed over up to here, in this run and those that it continues.

        Returns:
            ``total``, how many elements; ``tried``, of how many; ``rate``, which of at least 1 000; and ``last``, the last 20 of
            this run, each with ``record_key``, ``stage`` and ``error``.

        Example:
            >>> from gristmill.dataset import MapDataset
            >>> it = iter(MapDataset.source([1, 0, 2]).map(lambda x: 2 // x).tolerate(max_total=1, max_rate=None))
            >>> list(it), it.faults().total, it.faults().last[0].record_key
            ([2, 1], 1, 1)
        """
        return counted(self.get_state())

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns what the state says of components of the mixture upstream, the nearest one, by name: how many ``"elements"``
        were drawn, their ``"lengths"`` together, the ``"epochs"`` before this one. What a step holds counts when it has come.
        Of a mixture of map datasets, where they are read in its order and in this process.
        """
        from gristmill.dataset.telling.counts import counts_of

        return counts_of(self)

    def _kept_knowledge(self) -> Callable[[], None]:
        """What puts back all that is known here and upstream of elements that are taken again, after a move between them."""
        puts = [parent._kept_knowledge() for parent in self._parents if parent._counts_faults]

        def put_back() -> None:
            for put in puts:
                put()

        return put_back

    def _share_faults(self, parents: Iterable[Tolerating]) -> None:
        if any([parent._counts_faults for parent in parents]):
            self._counts_faults = True

    def _pass_failed(self) -> bool:
        """Goes past what ``_take(1)`` has just failed with, from where that is left; false if it cannot, and nothing is done."""
        return False
