"""What iterators report: elements that ``tolerate`` skipped, elements of components."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

from gristmill.dataset.faults.budget import FaultCounts


class Tolerating:
    """The part of every iterator that reports these."""

    _counts_faults = False  # a stage here or upstream tolerates faults, so that its counts are in the state

    _parents: tuple[Any, ...] = ()

    @abc.abstractmethod
    def get_state(self) -> Any:
        """Return the state, which has the counts."""

    def faults(self) -> FaultCounts:
        """Return what ``tolerate`` has skipped or replaced so far, in this run and those that it continues.

        Returns:
            ``total``, the number of elements; ``tried``, of how many; ``rate``, their share of these, at least of 1000; and
            ``last``, the last 20 of this run, each with ``record_key``, ``stage`` and ``error``.

        Example:
            >>> from gristmill.dataset import MapDataset
            >>> it = iter(MapDataset.source([1, 0, 2]).map(lambda x: 2 // x).tolerate(max_total=1, max_rate=None))
            >>> list(it), it.faults().total, it.faults().last[0].record_key
            ([2, 1], 1, 1)
        """
        from gristmill.dataset.faults.counts import counted

        return counted(self.get_state())

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns what the state says of components of the mixture upstream, the nearest one, by name: how many ``"elements"``
        were drawn, their ``"lengths"`` together, the ``"epochs"`` before this one. What a step holds counts when it has come.
        Of a mixture of map datasets, where they are read in its order and in this process.
        """
        from gristmill.dataset.telling.counts import counts_of

        return counts_of(self)

    def _share_faults(self, parents: Iterable[Tolerating]) -> None:
        if any([parent._counts_faults for parent in parents]):
            self._counts_faults = True
