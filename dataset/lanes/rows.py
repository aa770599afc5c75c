"""The next elements of several lanes, side by side: what a host, or one of its workers, gives to a
global batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from gristmill.core import tree
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Infinite, Length
from gristmill.dataset.engine.lane_rows import NEVER, LaneRowsDatasetIterator, Part
from gristmill.dataset.slicing import part_of_lanes, slice_pipeline
from gristmill.transforms.batching import Allocate, concatenate, stack


def join_parts(
    parts: Sequence[Part],
    size: int,
    *,
    stacks: bool,
    allocate: Allocate,
    unknown_row: Callable[[], Any],
) -> Any:
    """Returns the rows of all lanes of a host, ``size`` of each, where those of lanes without any
    are zeros.

    Args:
        parts: of all workers, none of which lacks rows since a lane is short.
        size: rows of each lane.
        stacks: whether rows must be stacked.
        allocate: makes the arrays for the rows of several parts.
        unknown_row: gives a row of zeros where no part has any.
    """
    if all([NEVER not in counts for _, counts in parts]):
        pieces = [rows for rows, _ in parts]
    else:
        present = next((rows for rows, _ in parts if rows is not None), None)
        if present is None:
            zero = unknown_row()
        else:
            zero = zero_like(_at(present, 0) if stacks else present[0])
        pieces = []
        for rows, counts in parts:
            start = 0
            for is_never, lanes in groupby([num == NEVER for num in counts]):
                num = size * len([*lanes])
                if is_never:
                    copies = [copy.deepcopy(zero) for _ in range(num)]
                    pieces.append(stack(copies) if stacks else copies)
                else:
                    part = slice(start, start + num)
                    pieces.append(_at(rows, part) if stacks else rows[part])
                    start += num
    return concatenate(pieces, allocate) if stacks else [row for piece in pieces for row in piece]


def _at(batch: object, rows: object) -> Any:
    leaves, structure = tree.flatten(batch)
    return tree.unflatten(structure, [leaf[rows] for leaf in leaves])


def zero_like(element: object) -> Any:
    """Returns an element of the same shape, all of whose leaves are zero, or empty text."""
    leaves, structure = tree.flatten(element)
    scalars = np.generic | int | float | complex | str | bytes
    zeros = [
        type(leaf)() if isinstance(leaf, scalars) else np.zeros_like(np.asarray(leaf))
        for leaf in leaves
    ]
    return tree.unflatten(structure, zeros)


class LaneRowsIterDataset(IterDataset[Part]):
    """The next ``size`` elements of each lane, step by step and without end: a lane that has ended
    gives no more.

    Args:
        parent: the whole pipeline.
        lanes: those whose elements are wanted.
        num_lanes: how many the pipeline is divided into.
        size: elements of each lane in a step.
        stacks: whether rows are stacked; else they are in a list.
        pads: whether a lane that has ended gives copies of its last element.
    """

    _gm_adds_step = False

    def __init__(
        self, parent: object, lanes: range, num_lanes: int, size: int, *, stacks: bool, pads: bool
    ) -> None:
        super().__init__(parent)
        self.lanes = lanes
        self.num_lanes = num_lanes
        self.size = size
        self.stacks = stacks
        self.pads = pads

    def __str__(self) -> str:
        return (
            f"LaneRowsIterDataset(lanes={self.lanes}, num_lanes={self.num_lanes}, size={self.size})"
        )

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps the lanes of one of several workers."""
        del sequential_slice
        self.lanes = part_of_lanes(self.lanes, sl.start, sl.step)

    def _gm_num_elements(self) -> Length:
        return Infinite()

    def share(self, lane: int) -> IterDataset[Any]:
        """Returns the pipeline of a lane."""
        return slice_pipeline(self._gm_parents[0], lane, self.num_lanes, by_lanes=True)

    def __iter__(self) -> DatasetIterator[Part]:
        return LaneRowsDatasetIterator(self)
