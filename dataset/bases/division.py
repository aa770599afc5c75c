"""The division of datasets among workers: the question that each is asked (``_gm_divided``), and
the possible answers.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode


class Division(abc.ABC):
    """The share of one worker, while it is made: a dataset answers with one of these methods, or
    raises ``ValueError``.

    Args:
        index: which worker.
        num_workers: their number.
        is_sequential: whether sources are cut into consecutive parts, instead of giving every
            ``num_workers``-th element.
        by_lanes: whether the shares are lanes, in which mixtures have the proportions of the whole.
    """

    def __init__(self, index: int, num_workers: int, is_sequential: bool, by_lanes: bool) -> None:
        self.index = index
        self.num_workers = num_workers
        self.is_sequential = is_sequential
        self.by_lanes = by_lanes

    @abc.abstractmethod
    def every_nth(self, ds: Any) -> Any:
        """Returns every ``num_workers``-th element of a map dataset, from the worker's first on."""

    @abc.abstractmethod
    def part(self, ds: Any) -> Any:
        """Returns the worker's part of a map dataset that is cut into consecutive ones."""

    @abc.abstractmethod
    def over_shares(self, ds: DatasetNode) -> Any:
        """Returns the same stage, over the worker's shares of the parents of ``ds``."""

    @abc.abstractmethod
    def sliced_by_itself(self, ds: DatasetNode) -> Any:
        """Returns a copy of a stream that has kept what its method ``set_slice`` keeps."""


def _cut(ds: DatasetNode, division: Division) -> Any:
    return division.part(ds) if division.is_sequential else division.every_nth(ds)


cut_into_parts = _cut  # ``_gm_divided`` of sources of ours
