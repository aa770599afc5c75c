"""The classes of the results of ``explain``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gristmill.core.value import Value
from gristmill.dataset.bases.cells import LineageRecord
from gristmill.dataset.descriptions.display import abbreviated
from gristmill.diagnostics.html import html_or_text, html_table

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
    components, seeds = record.components, record.seeds
    component, seed = components[-1] if components else None, seeds[-1] if seeds else None
    given = (
        record.source,
        record.key,
        record.index,
        record.epoch,
        component,
        seed,
        record.span,
        components,
        seeds,
    )
    return Record(*given)


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

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Returns names of columns and lines: without columns that say nothing anywhere."""
        lines: list[tuple[str, Record | None]] = []
        for i, row in enumerate(self.rows):
            lines += [(str(i), record) for record in row.records] or [(str(i), None)]
        lines += [("skipped", record) for record in self.faults]
        columns = {name: [_cell(record, name) for _, record in lines] for name in _COLUMNS}
        names = [name for name, cells in columns.items() if any(cells)]
        return ["row", *names], [
            [row, *[columns[name][i] for name in names]] for i, (row, _) in enumerate(lines)
        ]

    def __str__(self) -> str:
        names, lines = self._table()
        shown = [
            line if isinstance(line, list) else [line]
            for line in abbreviated(lines, _MAX_LINES, "… {} more …".format)
        ]
        widths = [
            max(len(line[i]) for line in [names, *shown] if len(line) > 1)
            for i in range(len(names))
        ]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip()
            for line in [names, *shown]
        ]
        return "\n".join([*([] if self.step is None else [f"step {self.step}"]), *texts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names, lines = self._table()
        shown = abbreviated(lines, _MAX_LINES, "… {} more …".format)
        cells = [line if isinstance(line, list) else [line] for line in shown]
        return html_or_text(lambda: str(html_table(names, cells)), self)


_COLUMNS = ("source", "record_key", "place", "index", "epoch", "component", "seed", "span")


def _cell(record: Record | None, name: str) -> str:
    if record is None:
        return "(padding)" if name == "source" else ""
    if name == "component":
        return "/".join(map(str, record.components))
    value = getattr(record, name)
    return "" if value is None else str(value)
