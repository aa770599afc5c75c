"""Templates filled in with values.

Guarantees:

1. Every value is escaped, in texts and in attributes, unless it is ``Markup``, which only templates
   of this folder make.
2. Characters that a file or a page cannot hold are replaced.
3. Jinja2, which the extra ``view`` installs, is imported by the first call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import missing_package
from gristmill.diagnostics.table import Column
from gristmill.diagnostics.units import digits_text, size_text, time_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class HtmlCell:
    """A cell of a table.

    Args:
        text: the content, escaped unless it is ``Markup``.
        notes: lines below it in small print.
        bar: a bar below the text: the colour and the share of each part, in [0, 1].
        kind: classes of the cell, besides those of its column.
        label: in place of the title of its column where the columns are below one another.
        title: shown by a browser when pointed at.
    """

    text: Any
    notes: Sequence[str] = ()
    bar: Sequence[tuple[str, float]] | None = None
    kind: str = ""
    label: str = ""
    title: str = ""


def render(template: str, **values: Any) -> str:
    """Returns the text of a template with these values.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    return _writable(_environment().get_template(template).render(values))


def macros(template: str) -> Any:
    """Returns the macros of a template as attributes: functions that return ``Markup``.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    return _environment().get_template(template).module


def html_table(
    columns: Iterable[Column],
    rows: Iterable[Any],
    kind: str = "",
    frame: str = "scroll",
    *,
    has_heads: bool = False,
) -> Markup:
    """Returns a table that is scrolled by itself.

    Args:
        columns: what is shown of a row.
        rows: the objects that columns take their values from.
        kind: classes of the table; in one of ``cards``, each cell is labelled with its column.
        frame: classes of the element around it.
        has_heads: the first cell of each row names the row.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    columns = [*columns]
    cells = [[_cell(column, row) for column in columns] for row in rows]
    table: Markup = macros("parts.html.j2").table(columns, cells, kind, frame, has_heads)
    return type(table)(_writable(table))


def _cell(column: Column, row: Any) -> HtmlCell:
    value = column.value(row)
    if isinstance(value, HtmlCell):
        return value
    return HtmlCell(value if hasattr(value, "__html__") else column.cell(row))


def html_or_text(make: Callable[[], str], shown: object) -> str:
    """Returns the HTML of an object for a notebook: its text, without Jinja2.

    Args:
        make: returns the HTML.
        shown: the object.
    """
    try:
        return make()
    except ImportError:
        return f"<pre>{escape(_writable(str(shown)))}</pre>"


def asset(name: str) -> str:
    """Returns the text of a file of this folder."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def shortened(text: str, length: int) -> str:
    """Returns ``text`` with no more than ``length`` characters, the last one an ellipsis if some
    are missing.
    """
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _writable(text: str) -> str:
    return _UNWRITABLE.sub("\ufffd", text)


@functools.cache
def _environment() -> Environment:
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise missing_package("jinja2", "view", "HTML") from None
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["style"] = lambda *names: Markup("".join(map(asset, names)))
    environment.filters |= {
        "digits": digits_text,
        "px": "{:.1f}".format,
        "shortened": shortened,
        "size": size_text,
        "time": time_text,
    }
    return environment
