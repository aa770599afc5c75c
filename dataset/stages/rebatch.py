"""``RebatchIterDataset``: the same rows in batches of another size."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import numpy as np

from gristmill.core import tree
from gristmill.core.element_spec import ShapeDtypeStruct, map_spec
from gristmill.dataset.bases.cells import records_of_row
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import unknown_number
from gristmill.dataset.bases.node import spec_of
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.bases.traced import Traced, Tracing, grouped
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.rebatching import Rebatch
from gristmill.transforms.base import check_batch_size
from gristmill.transforms.batching import stack
from gristmill.transforms.sequences import Array

T = TypeVar("T")


class RebatchParameters(Parameters):
    batch_size: int
    drop_remainder: bool

    def __post_init__(self) -> None:
        self._replace(
            batch_size=check_batch_size(self.batch_size), drop_remainder=bool(self.drop_remainder)
        )


class RebatchIterDataset(IterDataset[T]):
    """Returns the rows of the parent's batches in batches of ``batch_size`` rows.

    As if all batches were joined along the first axis of every leaf, and cut again. A batch from
    within one batch of the parent is a view of it; dtypes are promoted only where a batch is joined
    from several.

    Order: the parent's. State: the parent's before the batch that is being cut, and how many of its
    rows are used. Cost: a view per leaf, or one copy where batches are joined.

    Args:
        parent: a dataset of batches: pytrees of arrays, with the same number of rows, at least 1,
            in all leaves.
        batch_size: rows per batch, at least 1.
        drop_remainder: drop the last batch if it is smaller.

    Raises:
        TypeError: ``batch_size`` is not an integer.
        ValueError: it is not positive. When iterating, for elements of different structure, leaves
            with different numbers of rows, and batches without rows.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> list(RebatchIterDataset(MapDataset.range(8).to_iter_dataset().batch(3), 4))
        [array([0, 1, 2, 3]), array([4, 5, 6, 7])]
    """

    _gm_num_elements = unknown_number  # how many rows there are is seen in the batches
    _gm_parameters: RebatchParameters

    def __init__(self, parent: object, batch_size: int, drop_remainder: bool = False) -> None:
        super().__init__(parent)
        self._gm_parameters = RebatchParameters(batch_size, drop_remainder)

    @property
    def _element_spec(self) -> Any:
        size = self._gm_parameters.batch_size
        return map_spec(
            lambda leaf: ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype),
            spec_of(self._gm_parent),
        )

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _gm_parents=(tracing.of(self._gm_parent).map(_traced_rows),)).map(
            _joined
        )

    def __iter__(self) -> DatasetIterator[T]:
        given = self._gm_parameters
        return open_stage(
            self, partial(Rebatch, size=given.batch_size, drop_remainder=given.drop_remainder)
        )


def _traced_rows(x: Traced) -> Array:
    """Returns the rows of a batch, computed if their number is not known, as an array."""
    if not x.is_batch or x.changed_by:
        num_rows = tree.flatten(x.value)[0][0].shape[0]
    else:
        num_rows = len(x.rows)
    rows = np.empty(num_rows, object)
    for i in range(num_rows):
        rows[i] = Traced(partial(_row, x, i), partial(records_of_row, x, i, num_rows))
    return rows


def _row(x: Traced, i: int) -> Any:
    leaves, structure = tree.flatten(x.value)
    return tree.unflatten(structure, [leaf[i] for leaf in leaves])


def _joined(rows: Array) -> Traced:
    return grouped(stack, rows.tolist())
