"""The stream that cuts batches into batches of another size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gristmill.core import tree
from gristmill.core.errors import StateIndexError
from gristmill.core.state import state_count
from gristmill.dataset.engine.choices import Records, Replaying
from gristmill.dataset.engine.stream import Cell, Pos, Stream, are_equal
from gristmill.dataset.errors.context import add_error_context
from gristmill.transforms.batching import Allocate, BufferPool, join_arrays

_END: Any = object()

Leaves = list[Any]  # of a batch, or the rows of one that are in another


class Rebatch(Replaying):
    """Batches of ``size`` consecutive rows of the parent's batches.

    The position: the parent's before the batch that is being cut, and how many of its rows were
    used. At the end these are the position there, and the rows of the last batch.
    """

    keys = ("parent", "batch_idx")
    knows_draws = True

    def __init__(self, stage: Any, parent: Stream, size: int, *, drop_remainder: bool) -> None:
        super().__init__(stage, parent)
        self.size = size
        self.drop_remainder = drop_remainder
        self._rows = _Rows(str(self))
        self._held: _HeldBatch | None = None  # the batch that is being cut

    def held(self, state: object) -> str | None:
        num = state_count(state, "batch_idx", self)
        return f"a batch, {num} rows of it delivered" if num else None

    def _run(self, cell: Cell) -> Iterator[Any]:
        before, row, records = cell.pos
        held = self._held
        if (
            held is not None
            and held.used <= row
            and are_equal((held.before, held.records), (before, records))
        ):
            inner = self.begin(cell, held.after, ())
        else:
            held, inner = None, self.begin(cell, before, records)
        batches = self.parent.run(inner)
        pieces: list[Leaves] = []
        num, missing = row, self.size
        while True:
            if held is None:
                leaves = self._next(cell, batches, row)
                if leaves is None:
                    break
                row = 0 if self.is_missing() else row
                records = self.records()
                self._held = held = _HeldBatch(leaves, before, inner.settle(), records)
            num = len(held.leaves[0])
            while row < num:
                start, row = row, min(row + missing, num)
                held.used = row
                pieces.append([leaf[start:row] for leaf in held.leaves])
                missing -= row - start
                if not missing:
                    cell.pos = before, row, records
                    made = [self._made(pieces)]
                    pieces, missing = [], self.size
                    yield made.pop()
            before, row, held = held.after, 0, None
            self.next_group()
        cell.pos = before, num, self.records()
        if pieces and not self.drop_remainder:
            made = [self._made(pieces)]
            del pieces
            yield made.pop()
        if self.continues(cell, (inner.settle(), 0, ())):
            yield from self._run(cell)

    def _next(self, cell: Cell, batches: Iterator[Any], row: int) -> Leaves | None:
        """Return the leaves of the next batch, of which ``row`` rows were used; ``None`` at the
        end.
        """
        try:
            batch = next(batches, _END)
            if batch is _END:
                return None
            try:
                leaves = self._rows.leaves(batch)
                if row > len(leaves[0]) and not self.is_missing():
                    raise StateIndexError(
                        f"batch_idx in the state of {self} must be in [0, {len(leaves[0])}], the"
                        f" rows there, got {row}"
                    )
            except Exception as error:
                add_error_context(error, self)
                raise
            return leaves
        except Exception:
            cell.past_failed = partial(self._pass, cell)
            raise

    def _made(self, pieces: list[Leaves]) -> Any:
        try:
            return self._rows.joined(pieces)
        except Exception as error:
            add_error_context(error, self)
            raise

    def _pass(self, cell: Cell) -> None:
        """Move past the batch that failed: it is not known how many rows it has."""
        self.inner.pass_failed()
        cell.pos = self.inner.settle(), 0, ()

    def allocate_with(self, allocate: Allocate) -> None:
        self._rows.allocate = allocate


@dataclass
class _HeldBatch:
    """A batch in memory.

    Args:
        before: the parent's position before it.
        after: and after it.
        records: the choices in between.
        used: rows that were cut off, which their user may have changed since.
    """

    leaves: Leaves
    before: Pos
    after: Pos
    records: Records
    used: int = 0


class _Rows:
    """The structure that batches share whose rows are joined.

    Args:
        owner: the stage, for errors.
    """

    def __init__(self, owner: str) -> None:
        self.allocate: Allocate = BufferPool()
        self._owner = owner
        self._flatten: Any = None  # the function that flattened the first batch, and what it found
        self._structure: Any = None

    def leaves(self, batch: object) -> Leaves:
        """Return the leaves of a batch.

        Raises:
            ValueError, TypeError: it is no batch, or not like the first one.
        """
        flatten = self._flatten or tree.flattener()
        leaves: Leaves
        leaves, structure = flatten(batch)
        if self._structure is not None and structure != self._structure:
            raise ValueError(
                f"all elements that {self._owner} joins must have the same structure; the first one"
                f" is {self._structure!s:.200}, another one {structure!s:.200}"
            )
        if not leaves:
            raise ValueError(
                f"{self._owner} needs batches, pytrees with arrays, got {batch!r:.100}"
            )
        for i, leaf in enumerate(leaves):
            if not getattr(leaf, "shape", ()):
                raise TypeError(
                    f"{self._owner} needs arrays with a first axis, {_name(batch, i)} is"
                    f" {leaf!r:.100}"
                )
            if leaf.shape[0] != leaves[0].shape[0]:
                raise ValueError(
                    f"all leaves of a batch must have the same number of rows; {_name(batch, 0)}"
                    f" has {leaves[0].shape[0]}, {_name(batch, i)} has {leaf.shape[0]}"
                )
        if leaves[0].shape[0] == 0:
            raise ValueError(f"{self._owner} got a batch without rows: leave it out with filter()")
        self._flatten, self._structure = flatten, structure
        return leaves

    def joined(self, pieces: list[Leaves]) -> Any:
        """Return the batch of the rows of ``pieces``."""
        if len(pieces) == 1:
            return tree.unflatten(self._structure, pieces[0])
        leaves = []
        for i, arrays in enumerate(zip(*pieces, strict=True)):
            try:
                leaves.append(join_arrays(arrays, self.allocate))
            except (ValueError, TypeError) as error:
                name = _name(tree.unflatten(self._structure, pieces[0]), i)
                shown = [
                    f"{getattr(array, 'dtype', type(array))}{list(array.shape)}" for array in arrays
                ]
                rows = {(getattr(array, "dtype", None), array.shape[1:]) for array in arrays}
                why = (
                    f": {error}"
                    if len(rows) == 1
                    else f" whose shapes or dtypes do not agree: {' and '.join(shown)}"
                )
                raise ValueError(f"{self._owner} cannot join pieces of {name}{why}") from error
        return tree.unflatten(self._structure, leaves)


def _name(batch: object, i: int) -> str:
    path = tree.leaf_paths(batch)[i]
    return f"leaf {path}" if path else "the element"
