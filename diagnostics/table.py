"""Tables: columns that know how their values look, and rows of values.

The same table is text for a terminal, records for JSON, and HTML (see ``html_table``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

_WIDTH = 30  # of a cell of a ruled table
_HEIGHT = 5
_HEADING_WIDTH = 10


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: its heading.
        value: takes the value out of what a row is about; ``None`` if there is none.
        text: makes the text of a value, with its unit.
        missing: the text in place of a value that there is not.
        align: ``"<"`` at the left side of a cell, ``">"`` at the right side.
        width: the smallest width, in characters, for tables that are printed row by row.
        name: the key of its values in JSON; by default the title.
        kind: classes of its cells in HTML, where values may be an ``HtmlCell`` or ``Markup``.
    """

    title: str
    value: Callable[[Any], Any]
    text: Callable[[Any], str] = str
    missing: str = "-"
    align: Literal["<", ">"] = "<"
    width: int = 0
    name: str = ""
    kind: str = ""

    def cell(self, row: Any) -> str:
        """Returns the text of a row's value."""
        value = self.value(row)
        return self.missing if value is None else self.text(value)


class DataTable:
    """Rows, each of which is an object that columns take their values from.

    Args:
        columns: what is shown of a row.
        rows: the objects.

    Example:
        >>> share = Column("share", lambda row: row[1], "{:.0%}".format, align=">")
        >>> table = DataTable(
        ...     [Column("stage", lambda row: row[0]), share], [("read", 1), ("map", None)]
        ... )
        >>> print(table)
        stage  share
        read    100%
        map        -
        >>> table.records()
        [{'stage': 'read', 'share': 1}, {'stage': 'map', 'share': None}]
    """

    def __init__(self, columns: Iterable[Column], rows: Iterable[Any] = ()) -> None:
        self.columns = [*columns]
        self.rows = [*rows]

    def cells(self) -> Iterator[list[str]]:
        """Yields the texts of each row."""
        return ([column.cell(row) for column in self.columns] for row in self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Returns the values of each row by the names of their columns."""
        return [{x.name or x.title: x.value(row) for x in self.columns} for row in self.rows]

    def without_empty_columns(self) -> DataTable:
        """Returns the same table without columns, but for the first, whose cells are all empty."""
        first, *others = self.columns
        kept = [x for x in others if any([x.cell(row) for row in self.rows])]
        return DataTable([first, *kept], self.rows)

    def lines(self, *, has_titles: bool = True) -> list[str]:
        """Returns the titles and the rows, one to a line, the columns below one another."""
        titles = [[column.title for column in self.columns]] if has_titles else []
        lines = [*titles, *self.cells()]
        widths = [
            max([x.width, *map(len, texts)]) for x, *texts in zip(self.columns, *lines, strict=True)
        ]
        return [
            "  ".join(
                [
                    f"{text:{x.align}{width}}"
                    for x, text, width in zip(self.columns, line, widths, strict=True)
                ]
            ).rstrip()
            for line in lines
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def ruled(self) -> str:
        """Returns the table with lines between columns and below the titles; long cells have
        several lines.
        """
        blocks = [[textwrap.wrap(column.title, _HEADING_WIDTH) for column in self.columns]]
        blocks += [[_wrapped(text) for text in cells] for cells in self.cells()]
        widths = [
            max([len(x) for block in blocks for x in block[i]]) for i in range(len(blocks[0]))
        ]
        lines: list[str] = []
        for block in blocks:
            for k in range(max(map(len, block))):
                texts = [cell[k] if k < len(cell) else "" for cell in block]
                cells = [f" {text:<{width}} " for text, width in zip(texts, widths, strict=True)]
                lines.append("|".join(cells).rstrip())
            if block is blocks[0]:
                lines.append("+".join(["-" * (width + 2) for width in widths]))
        return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    start = text[: len(text) - len(text.lstrip())]
    lines = textwrap.wrap(text.strip(), _WIDTH) or [""]
    if len(lines) > _HEIGHT:
        lines = [*lines[: _HEIGHT - 1], lines[_HEIGHT - 1][: _WIDTH - 3] + "..."]
    return [start + line for line in lines]
