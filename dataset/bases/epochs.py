"""The records at the positions of a map dataset over its epochs, and the records that datasets
share, as stages declare them.

A stage with ``_gm_moves_records`` may hold other records at a position in another epoch. One with
``_gm_shares_records`` may hold a record at several positions of an epoch. One with
``_gm_has_one_epoch`` asks its parents for nothing but their first epoch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode


def upstream(ds: Any, *, of_later_epochs: bool = False) -> Iterator[Any]:
    """Yields what ``ds`` draws from; ``of_later_epochs``: only what it reaches later epochs of."""
    seen: set[int] = set()
    todo = [ds]
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            if not (of_later_epochs and node._gm_has_one_epoch):
                todo += node._gm_draws_from


def keeps_records(ds: DatasetNode) -> bool:
    """True if every position has the same records in all epochs."""
    return not any([node._gm_moves_records for node in upstream(ds, of_later_epochs=True)])


def may_hold_twice(ds: DatasetNode) -> bool:
    """True if a record may be at several positions of an epoch."""
    return any([node._gm_shares_records for node in upstream(ds)])


def part_that_changes(ds: object) -> Any | None:
    """Returns a stage that takes some positions of reshuffled data, which differ by epoch."""
    for node in upstream(ds, of_later_epochs=True):
        if node._gm_takes_a_part and any(
            [above._gm_is_reshuffled for above in upstream(node, of_later_epochs=True)]
        ):
            return node
    return None


def are_parallel(ds: DatasetNode, other: DatasetNode) -> bool:
    """True if both have the same records of one dataset, in the same order."""
    root, positions = _positions(ds)
    other_root, other_positions = _positions(other)
    return root is other_root and positions == other_positions


def may_share_records(ds: DatasetNode, other: DatasetNode) -> bool:
    """True if both may have a record. Two sources that read the same files are two."""
    if {id(data) for data in _data(ds)}.isdisjoint([id(data) for data in _data(other)]):
        return False
    root, positions = _positions(ds)
    other_root, other_positions = _positions(other)
    return root is not other_root or not _are_disjoint(positions, other_positions)


def any_pair(datasets: Sequence[Any], *, parallel_ones: bool) -> tuple[Any, Any] | None:
    """Returns two of ``datasets`` that may share records; parallel ones only if asked for."""
    for ds, other in itertools.combinations(datasets, 2):
        if may_share_records(ds, other) and (parallel_ones or not are_parallel(ds, other)):
            return ds, other
    return None


def _data(ds: DatasetNode) -> list[Any]:
    return [node._gm_data for node in upstream(ds) if not node._gm_draws_from]


def _positions(ds: Any) -> tuple[Any, range]:
    """Returns the dataset or data whose records ``ds`` passes on, and their positions in it."""
    step = ds._gm_passed_on
    if step is None:
        return ds._gm_data, range(len(ds))
    parent, sl = step
    root, positions = _positions(parent)
    return root, positions[sl]


def _are_disjoint(one: range, other: range) -> bool:
    if not one or not other:
        return True
    if max(min(one[0], one[-1]), min(other[0], other[-1])) > min(
        max(one[0], one[-1]), max(other[0], other[-1])
    ):
        return True
    return (one.start - other.start) % math.gcd(one.step, other.step) != 0
