"""Pages and pieces of HTML and SVG: the templates, styles and scripts of this folder, filled in."""

from gristmill.diagnostics.html.rendering import (
    HtmlCell,
    asset,
    html_or_text,
    html_table,
    macros,
    render,
    shortened,
)

__all__ = [
    "HtmlCell",
    "asset",
    "html_or_text",
    "html_table",
    "macros",
    "render",
    "shortened",
]
