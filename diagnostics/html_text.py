"""Pages, tables, and text in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
{head}
</head>
{body}
</html>
"""


def html_page(title: str, head: str, body: str) -> str:
    """Returns a page.

    Args:
        title: a text.
        head: HTML of its styles and scripts.
        body: HTML of its ``body``.
    """
    return _PAGE.format(title=safe(title), head=head, body=body)


def html_table(
    titles: Iterable[tuple[str, str]], rows: Iterable[str], kind: str = "", frame: str = "scroll"
) -> str:
    """Returns a table that is scrolled by itself.

    Args:
        titles: of its columns: HTML and class, which may be empty.
        rows: HTML of its rows, as of ``html_row``.
        kind: class of the table.
        frame: classes of what is around it.
    """
    head = "".join([f'<th scope="col"{_class(name)}>{title}</th>' for title, name in titles])
    body = "\n".join(rows)
    return (
        f'<div class="{frame}"><table{_class(kind)}><thead><tr>{head}</tr></thead><tbody>\n'
        f"{body}\n</tbody></table></div>"
    )


def html_row(cells: Iterable[str], head: str = "") -> str:
    """Returns a row of a table.

    Args:
        cells: HTML of its cells.
        head: HTML of the cells before these.
    """
    return f"<tr>{head}{''.join([f'<td>{cell}</td>' for cell in cells])}</tr>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def safe(text: str) -> str:
    """Returns ``text`` as HTML, also in attributes; what a file cannot hold is replaced."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def swatch(colour: str) -> str:
    return f'<i class="swatch {colour}"></i>'
