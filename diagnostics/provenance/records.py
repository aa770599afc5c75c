"""The classes of the results of ``explain``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from gristmill.core.value import Value
from gristmill.dataset.bases.cells import LineageRecord
from gristmill.dataset.descriptions.display import abbreviated
from gristmill.diagnostics.html import html_or_text, html_table
from gristmill.diagnostics.table import Column, DataTable

_MAX_LINES = 40  # of a table


class Record(Value):
    """A record of a source that a row of an output is made of.

    Args:
        source: what it was read from: its ``repr``; of files the dataset with the name of the file.
        record_key: which record: its position in the source; in files ``(row group, row)`` of
            Parquet, the offset of a TFRecord.
        index: its position in the stream of elements that are read by index, before filters and
            batches: ``ds[index]`` of the ``MapDataset`` that is iterated, batches taken apart; of a
            ``DataLoader`` that of the sampler. ``None`` in files.
        epoch: counted from 0; ``None`` if that is not known, as of users' samplers.
        component: its name or number in the innermost mixture; ``None`` without one.
        seed: ``(seed, index)`` of the random stream from which the last random stage drew for it;
            ``None`` without one.
        span: ``(start, stop)``, its cells in a packed row; ``None`` elsewhere.
        components: those in all mixtures, the outermost first.
        seeds: the random streams of all random stages, the first one first.
        place: its file and the position there, counted from 0, such as ``"web.jsonl, record 40"``;
            ``None`` for a source that is no file, or does not say.

    Example:
        >>> Record("[4, 5]", 1, 7, 3, None, None, None)
        Record('[4, 5]', record_key=1, index=7, epoch=3)
    """

    source: str
    record_key: Any
    index: int | None = None
    epoch: int | None = None
    component: Any = None
    seed: tuple[int, int] | None = None
    span: tuple[int, int] | None = None
    components: tuple[Any, ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()
    place: str | None = None

    def __repr__(self) -> str:
        known = {
            name: value
            for name, value in self.as_dict().items()
            if value not in (None, ()) and name != "source"
        }
        values = [repr(self.source), *[f"{name}={value!r}" for name, value in known.items()]]
        return f"Record({', '.join(values)})"


class Row(Value):
    """A row of an output: the records that it is made of, in the order of use; none, if it is
    padding.
    """

    records: Sequence[Record]


def record_of(record: LineageRecord) -> Record:
    """Returns the public record of an internal lineage entry."""
    return Record(
        record.source,
        record.key,
        record.index,
        record.epoch,
        component=record.components[-1] if record.components else None,
        seed=record.seeds[-1] if record.seeds else None,
        span=record.span,
        components=record.components,
        seeds=record.seeds,
    )


class Provenance:
    """The lineage of an output. It prints as a table, a line for each record.

    Args:
        rows: one for each row of the output, one if it is no batch; each has its ``records``.
        faults: records that ``tolerate`` skipped on the way.
        step: the number of the output, if that is known.
    """

    def __init__(
        self, rows: Iterable[Row], faults: Iterable[Record] = (), step: int | None = None
    ) -> None:
        self.rows = list(rows)
        self.faults = list(faults)
        self.step = step

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provenance) and (self.rows, self.faults) == (
            other.rows,
            other.faults,
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def records(self) -> list[Record]:
        """Those of all rows."""
        return [record for row in self.rows for record in row.records]

    def to_dict(self) -> dict[str, Any]:
        """Returns the same as plain dictionaries and lists, for JSON where the keys are."""
        rows = [{"records": [record.as_dict() for record in row.records]} for row in self.rows]
        return {
            "step": self.step,
            "rows": rows,
            "faults": [record.as_dict() for record in self.faults],
        }

    @property
    def table(self) -> DataTable:
        """A row for each record, without columns that say nothing anywhere."""
        rows: list[tuple[str, Record | None]] = []
        for i, row in enumerate(self.rows):
            rows += [(str(i), record) for record in row.records] or [(str(i), None)]
        rows += [("skipped", record) for record in self.faults]
        return DataTable(_COLUMNS, rows).without_empty_columns()

    def __str__(self) -> str:
        heading, *lines = self.table.lines()
        lines = abbreviated(lines, _MAX_LINES, "… {} more …".format)
        return "\n".join([*([] if self.step is None else [f"step {self.step}"]), heading, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        titles, cells = [x.title for x in self.table.columns], [*self.table.cells()]
        shown = abbreviated(cells, _MAX_LINES, "… {} more …".format)
        rows = [line if isinstance(line, list) else [line, *[""] * len(titles)] for line in shown]
        columns = [Column(title, itemgetter(i)) for i, title in enumerate(titles)]
        return html_or_text(lambda: str(html_table(columns, rows)), self)


def _column(name: str) -> Column:
    """Returns the column of an attribute of a record; padding has none."""
    return Column(name, lambda row: getattr(row[1], name, None), missing="")


_COLUMNS = (
    Column("row", lambda row: row[0]),
    Column("source", lambda row: "(padding)" if row[1] is None else row[1].source),
    *map(_column, ("record_key", "place", "index", "epoch")),
    Column(
        "component", lambda row: "" if row[1] is None else "/".join(map(str, row[1].components))
    ),
    *map(_column, ("seed", "span")),
)
