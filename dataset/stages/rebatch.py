"""``RebatchIterDataset``: the same rows in batches of another size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from gristmill.core import tree
from gristmill.core.element_spec import ShapeDtypeStruct, map_spec
from gristmill.core.errors import StateIndexError
from gristmill.core.state import state_count, state_field
from gristmill.dataset.bases.cells import records_of_row
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, go_to, iterate, skip_one, snapshot, state_to_refill
from gristmill.dataset.bases.length import Length, Unknown
from gristmill.dataset.bases.node import spec_of
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.bases.traced import Traced, Tracing, grouped
from gristmill.dataset.drawn import turns_between
from gristmill.dataset.states.mixtures import drawn_until, has_mixtures
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.turns import TURNS, Turns
from gristmill.dataset.states.values import copied, is_same
from gristmill.dataset.telling.failures import tell
from gristmill.transforms.base import check_batch_size
from gristmill.transforms.batching import Allocate, BufferPool, join_arrays, stack
from gristmill.transforms.sequences import Array

T = TypeVar("T")


class RebatchParameters(Parameters):
    batch_size: int
    drop_remainder: bool

    def __post_init__(self) -> None:
        self._replace(batch_size=check_batch_size(self.batch_size), drop_remainder=bool(self.drop_remainder))


class RebatchIterDataset(IterDataset[T]):
    """Returns the rows of the parent's batches in batches of ``batch_size`` rows.

    As if all batches were joined along the first axis of every leaf, and cut again. What lies within one batch of the parent is
    a view of it; dtypes are promoted only where a batch is joined from several.

    Order: the parent's. State: the parent's before the batch that is being cut, and how many of its rows are used. Cost: a view
    per leaf, or one copy where batches are joined.

    Args:
        parent: a dataset of batches: pytrees of arrays, with the same number of rows, at least 1, in all leaves.
        batch_size: rows per batch, at least 1.
        drop_remainder: drop the last batch if it is smaller.

    Raises:
        TypeError: ``batch_size`` is not an integer.
        ValueError: it is not positive. When iterating, for elements of different structure, leaves with different numbers of
            rows, and batches without rows.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> list(RebatchIterDataset(MapDataset.range(8).to_iter_dataset().batch(3), 4))
        [array([0, 1, 2, 3]), array([4, 5, 6, 7])]
    """

    _parameters: RebatchParameters

    def __init__(self, parent: Any, batch_size: int, drop_remainder: bool = False) -> None:
        super().__init__(parent)
        self._parameters = RebatchParameters(batch_size, drop_remainder)

    def _num_elements(self) -> Length:
        return Unknown()  # how many rows there are is seen in the batches

    @property
    def _element_spec(self) -> Any:
        size = self._parameters.batch_size
        return map_spec(lambda leaf: ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), spec_of(self._parent))

    def _traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _parents=(tracing.of(self._parent).map(_traced_rows),)).map(_joined)

    def __iter__(self) -> DatasetIterator[T]:
        return RebatchDatasetIterator(iterate(self._parent), self._parameters)


def _traced_rows(x: Traced) -> Array:
    """The rows of a batch as an array of objects. If it is not known how many there are, it has to be computed."""
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


@dataclass(frozen=True)
class _Batch:
    """A batch that is being cut; without leaves, it stands for the end."""

    leaves: list[Any]
    num_rows: int
    before: Any  # the parent's state before it
    after: Any  # and after it
    turns: Any = None  # of which component of a mixture it is, as states say it, if that is known


class RebatchDatasetIterator(BlockIterator[T]):
    # The parent is always right behind the batch in memory, or at the batch that is to be cut.
    _flow = "stateful"
    _refills = True
    _turns: Any = None  # those that a state says of the batch that is to be cut
    _has_mixtures: bool | None = None  # whether states of the parent have those of mixtures; ``None``: that was not looked at

    def __init__(self, parent: DatasetIterator[Any], parameters: RebatchParameters) -> None:
        super().__init__(parent)
        self._source = parent
        self._parameters = parameters
        self._batch_size, self._drop_remainder = parameters.batch_size, parameters.drop_remainder
        self._allocate: Allocate = BufferPool()
        self._flatten: Any = None  # the function that flattened the first batch, and what it found
        self._structure: Any = None
        self._batch: _Batch | None = None
        self._row = 0  # rows used of the batch that is being cut, whether or not it is in memory

    def _take(self, n: int) -> list[Any]:
        batches: list[Any] = []
        while len(batches) < n:
            pieces = self._cut()
            if not pieces:
                break
            try:
                leaves = pieces[0] if len(pieces) == 1 else self._join(pieces)
            except Exception as error:
                tell(error, self)
                raise
            batches.append(tree.unflatten(self._structure, leaves))
        return batches

    def _cut(self) -> list[list[Any]]:
        """The next rows, the leaves of every piece of a batch; nothing at the end."""
        pieces: list[list[Any]] = []
        missing = self._batch_size
        while missing:
            while self._batch is None or self._row == self._batch.num_rows:
                if not self._read():
                    return [] if self._drop_remainder else pieces
            start, self._row = self._row, min(self._row + missing, self._batch.num_rows)
            pieces.append([leaf[start : self._row] for leaf in self._batch.leaves])
            missing -= self._row - start
        return pieces

    def _read(self) -> bool:
        """Gets the next batch to cut into memory, if there is one."""
        before = copied(snapshot(self._source))
        try:
            elements = self._source._take(1)
            after = copied(snapshot(self._source))
            if self._has_mixtures is None:
                self._has_mixtures = has_mixtures(before)
            start, turns = before, None
            if self._has_mixtures:
                start, turns = drawn_until(before, after), turns_between(self._source, before, after)
            batch = self._checked(elements[0], start, after) if elements else None
            if batch is not None and turns is not None:
                batch = replace(batch, turns=turns.saved())
        except BaseException:
            go_to(self._source, before)
            raise
        if batch is None:
            if self._batch is None or self._batch.leaves:
                self._batch = _Batch([], self._row, before, after)
            return False
        if self._batch is not None:
            self._row = 0
        self._batch = batch
        return True

    def _checked(self, element: Any, before: Any, after: Any) -> _Batch:
        try:
            return self._check(element, before, after)
        except Exception as error:
            tell(error, self)
            raise

    def _check(self, element: Any, before: Any, after: Any) -> _Batch:
        flatten = self._flatten or tree.flattener()
        leaves, structure = flatten(element)
        if self._structure is not None and structure != self._structure:
            raise ValueError(
                f"all elements that {self} joins must have the same structure; the first one is {self._structure!s:.200}, "
                f"another one {structure!s:.200}"
            )
        if not leaves:
            raise ValueError(f"{self} needs batches, pytrees with arrays, got {element!r:.100}")
        for i, leaf in enumerate(leaves):
            if not getattr(leaf, "shape", ()):
                raise TypeError(f"{self} needs arrays with a first axis, {_name(element, i)} is {leaf!r:.100}")
            if leaf.shape[0] != leaves[0].shape[0]:
                raise ValueError(
                    f"all leaves of a batch must have the same number of rows; {_name(element, 0)} has {leaves[0].shape[0]}, "
                    f"{_name(element, i)} has {leaf.shape[0]}"
                )
        num_rows = leaves[0].shape[0]
        if num_rows == 0:
            raise ValueError(f"{self} got a batch without rows: leave it out with filter()")
        if self._batch is None and self._row > num_rows:
            raise StateIndexError(f"batch_idx in the state of {self} must be in [0, {num_rows}], the rows there, got {self._row}")
        self._flatten, self._structure = flatten, structure
        return _Batch(leaves, num_rows, before, after)

    def _join(self, pieces: list[list[Any]]) -> list[Any]:
        joined = []
        for i, arrays in enumerate(zip(*pieces, strict=True)):
            try:
                joined.append(join_arrays(arrays, self._allocate))
            except (ValueError, TypeError) as error:
                name = _name(tree.unflatten(self._structure, pieces[0]), i)
                shown = [f"{getattr(array, 'dtype', type(array))}{list(array.shape)}" for array in arrays]
                rows = {(getattr(array, "dtype", None), array.shape[1:]) for array in arrays}
                why = f": {error}" if len(rows) == 1 else f" whose shapes or dtypes do not agree: {' and '.join(shown)}"
                raise ValueError(f"{self} cannot join pieces of {name}{why}") from error
        return joined

    def _allocate_with(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def get_state(self) -> Any:
        before, source = None if self._batch is None else self._batch.before, self._source
        parent = source.get_state() if before is None else state_to_refill(source, before, source.get_state)
        turns = self._turns if self._batch is None else self._batch.turns
        told = {} if turns is None or not self._row else {TURNS: copied(turns)}
        return {"parent": parent, "batch_idx": self._row, **told}

    def _restore(self, state: Any) -> None:
        turns = Turns.of(state, self)
        row = state_count(state, "batch_idx", self)
        if turns is not None and turns.last_is_gone:
            row, turns = 0, None
        before = state_field(state, "parent", self)
        batch = self._batch
        if batch is not None and batch.leaves and is_same(before, batch.before) and self._row <= row <= batch.num_rows:
            self._source.set_state(copied(batch.after))  # rows that have not been handed out are as they were
        else:
            with refilling(self, f"a batch, {row} rows of it delivered" if row else None):
                self._source.set_state(before)
            self._batch = None
        self._row, self._turns = row, turns and turns.saved()

    def _skip(self) -> None:
        try:
            self._cut()
        except Exception:  # how many rows that batch has cannot be known: the next output begins after it
            skip_one(self._source)
            self._batch = None
            self._row = 0


def _name(element: Any, i: int) -> str:
    path = tree.leaf_paths(element)[i]
    return f"leaf {path}" if path else "the element"
