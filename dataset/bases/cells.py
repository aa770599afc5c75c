"""The records of cells in packed rows and of rows in batches, for ``explain``.

Stages that pack and cut say which tokens they put where. A function of the user that keeps the
number of cells and rows is assumed to keep their places. Otherwise the records are marked with the
stage, because it is not known which of them are left.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gristmill.core.value import Value

if TYPE_CHECKING:
    from gristmill.dataset.bases.traced import Traced


class Cells(Value):
    """The cells ``start`` to ``stop`` of a feature of a packed row, which has ``length`` cells."""

    feature: tuple[Any, ...]  # its key, or the keys of a nested one
    length: int
    start: int
    stop: int


class LineageRecord(Value):
    """A record that an output is made of.

    Args:
        source: the text of the source that it was read from.
        key: its key in the source.
        epoch: number of finished epochs of the source; ``None`` if that is not known.
        index: index of the element that the pipeline read by index; ``None`` if there is no index.
        components: those of the mixtures that it came through, the outermost first.
        seeds: ``(seed, index)`` of the random streams that stages drew from, in the order of
            stages.
        cells: in a packed row, those of each feature that has segment ids.
        cut_by: the stage after which it is not known whether the output has anything of the record.
    """

    source: str
    key: Any
    epoch: int | None = None
    index: int | None = None
    components: tuple[Any, ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()
    cells: tuple[Cells, ...] = ()
    cut_by: str = ""

    @property
    def span(self) -> tuple[int, int] | None:
        """The bounds of its cells in the first feature of a packed row."""
        return (self.cells[0].start, self.cells[0].stop) if self.cells else None


Rows: TypeAlias = Sequence[tuple[LineageRecord, ...]]


def kept_rows(before: Traced, after: Traced, stage: str) -> Rows:
    """Returns the records of what a function made of ``before``.

    A function that keeps the number of cells of packed rows is assumed to keep their places.
    """
    rows = before.rows
    lengths = {cells.feature: cells.length for record in before.records for cells in record.cells}
    if not lengths or after.value is before.value:
        return rows
    num_rows = len(rows) if before.is_batch else 1
    shapes = {
        keys: shape for keys, shape in _shapes(after.value).items() if len(shape) > before.is_batch
    }
    left = [feature for feature in lengths if feature in shapes]
    if not all([_has_cells(shapes[feature], num_rows, lengths[feature]) for feature in left]):
        return cut_by(rows, stage)
    known = {
        (*keys[:-1], f"{keys[-1]}{end}")
        for keys in lengths
        for end in ("", "_segment_ids", "_positions")
    }
    others = [shape for keys, shape in shapes.items() if keys not in known]
    others = [
        x
        for x in others
        if not any([_has_cells(x, num_rows, lengths[feature]) for feature in left])
    ]
    may_be_renamed = bool(others) and len(left) < len(lengths)

    def kept(record: LineageRecord) -> list[LineageRecord]:
        if may_be_renamed:
            is_known = _are_alike(record.cells) and all(
                [_has_cells(x, num_rows, record.cells[0].length) for x in others]
            )
            return [record if is_known else _unknown(record, stage)]
        cells = tuple([x for x in record.cells if x.feature in left])
        if record.cells and not cells:
            return [_unknown(record, stage)]
        was_empty = all([x.start == x.stop for x in record.cells])
        if was_empty or any([x.stop > x.start for x in cells]):
            return [record.replaced(cells=cells)]
        return []

    return [tuple([new for record in row for new in kept(record)]) for row in rows]


def parted_rows(before: Traced, after: Traced, stage: str) -> Rows:
    """Returns the records of one of several elements that a stage made of ``before``."""
    if (
        not before.is_batch
        or not are_several(before.rows)
        or _shapes(after.value) == _shapes(before.value)
    ):
        return kept_rows(before, after, stage)
    return cut_by(before.rows, stage)


def are_several(rows: Rows) -> bool:
    """Returns true if the rows are of more than one record."""
    records = [record for row in rows for record in row]
    return any([record != records[0] for record in records])


def cut_by(rows: Rows, stage: str) -> Rows:
    """Returns ``rows``, marked because it is not known which records ``stage`` left."""
    return [tuple([_unknown(record, stage) for record in row]) for row in rows]


def _unknown(record: LineageRecord, stage: str) -> LineageRecord:
    return record.replaced(cut_by=record.cut_by or stage)


def _shapes(value: object, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Returns the shapes of the arrays in an element, by their keys."""
    if isinstance(value, Mapping):
        return {
            keys: shape
            for key, one in value.items()
            for keys, shape in _shapes(one, (*path, key)).items()
        }
    if isinstance(value, list | tuple) and not all([isinstance(x, numbers.Number) for x in value]):
        return {
            keys: shape
            for i, one in enumerate(value)
            for keys, shape in _shapes(one, (*path, i)).items()
        }
    return {
        path: (
            (len(value),) if isinstance(value, list | tuple) else tuple(getattr(value, "shape", ()))
        )
    }


def _has_cells(shape: tuple[int, ...] | None, num_rows: int, length: int) -> bool:
    """Returns true if an array of this shape has as many cells; axes of length 1 do not count."""
    if shape is None:
        return False
    expected, found = ([n for n in given if n != 1] for given in ((num_rows, length), shape))
    return found[: len(expected)] == expected


def _are_alike(cells: Sequence[Cells]) -> bool:
    """Returns true if the features of a packed row have the record in the same cells."""
    return len({(c.length, c.start, c.stop) for c in cells}) == 1


class Placed(Value):
    """The tokens of a sequence from number ``first`` on, which are in ``cells`` of a packed row."""

    cells: Cells
    first: int = 0


def placed(x: Traced, parts: Sequence[Placed], *, keeps_empty: bool) -> list[LineageRecord]:
    """Returns the records of a sequence, with their cells in a packed row with its tokens.

    Args:
        x: the sequence; it may be a packed row itself, or a batch.
        parts: the tokens, for each feature.
        keeps_empty: records without a token in the row are returned, too.
    """
    records = []
    for k, row in enumerate(x.rows):
        for record in row:
            found = [_tokens_of(x, k, record, part.cells.feature) for part in parts]
            owned = [own for own in found if own is not None]
            if len(owned) < len(found):
                records.append(_unknown(record, x.changed_by or "a stage"))
                continue
            cells = tuple([_moved(part, own) for part, own in zip(parts, owned, strict=True)])
            if keeps_empty or any([c.stop > c.start for c in cells]):
                records.append(record.replaced(cells=cells))
    return records


def _tokens_of(
    x: Traced, k: int, record: LineageRecord, feature: tuple[Any, ...]
) -> tuple[int, int] | None:
    """Returns the bounds of a record's tokens in row ``k`` of a sequence; ``None`` if not known."""
    if not x.is_batch and not record.cells:
        return 0, sys.maxsize
    num = (_shapes(x.value).get(feature) or (1,))[0]
    if x.is_batch:
        return (k, k + 1) if num == len(x.rows) else None
    own = [c for c in record.cells if c.feature == feature] or record.cells[
        : _are_alike(record.cells)
    ]
    return (own[0].start, own[0].stop) if own and own[0].length == num else None


def records_of_row(x: Traced, i: int, num_rows: int) -> Rows:
    """Returns the records of row ``i`` of ``num_rows``, into which an element is taken apart."""
    if x.is_batch and num_rows == len(x.rows):
        return [x.rows[i]]
    packed = [record.cells for record in x.records if record.cells]
    if x.is_batch or not all(
        [_are_alike(cells) and cells[0].length == num_rows for cells in packed]
    ):
        return cut_by([x.records], x.changed_by or "a stage")
    own = [p for p in x.records if not p.cells or p.cells[0].start <= i < p.cells[0].stop]
    return [tuple([p.replaced(cells=()) for p in own])]


def _moved(part: Placed, own: tuple[int, int]) -> Cells:
    """Returns the cells of the tokens ``own`` of a sequence."""
    cells, shift = part.cells, part.cells.start - part.first
    start = min(max(own[0] + shift, cells.start), cells.stop)
    return cells.replaced(start=start, stop=max(start, min(own[1] + shift, cells.stop)))
