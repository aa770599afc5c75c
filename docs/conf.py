"""Configuration of Sphinx: ``make docs`` builds the site into ``out/docs``."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from notebooks import has_code, write_notebooks  # noqa: E402

project = "gristmill"
author = "the gristmill authors"
copyright = "the gristmill authors, Apache-2.0"
version = release = version_of("gristmill")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

html_theme = "furo"
html_title = f"gristmill {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "search_scorer.js")
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "tango", "github-dark"

myst_heading_anchors = 4
highlight_language = "python"
copybutton_exclude = ".gp, .go"  # prompts and outputs of docstrings

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    "Source",
    "Order",
    "State",
    "Cost",
    ("Guarantees", "returns_style"),
]


def _link_notebook(app: Any, docname: str, source: list[str]) -> None:
    """Adds below the title of a page with code where to get it as a notebook."""
    page = DOCS / f"{docname}.md"
    if has_code(page):
        href = f"{'../' * docname.count('/')}notebooks/{page.stem}.ipynb"
        link = (
            f'<p class="notebook"><a href="{href}" download>Download this page as a'
            " notebook</a></p>"
        )
        source[0] = re.sub(
            r"^(# .*\n)", rf"\1\n{link}\n", source[0], count=1, flags=re.MULTILINE
        )


def _break_names(
    app: Any, name: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Lets names in code break after dots, underscores and brackets, for narrow columns."""
    if body := context.get("body"):
        context["body"] = re.sub(
            r'(?<=<span class="pre">)[^<]+',
            lambda name: re.sub(r"(?<=[._(,=/])(?=\w)", "<wbr>", name[0]),
            body,
        )


def _add_files(app: Any, exception: Exception | None) -> None:
    """Adds what pages refer to from within HTML, which Sphinx does not follow: pictures,
    notebooks.
    """
    if exception is None and app.builder.format == "html":
        for folder in ("pictures", "guides/pictures"):
            shutil.copytree(
                DOCS / folder, Path(app.outdir) / folder, dirs_exist_ok=True
            )
        write_notebooks(Path(app.outdir) / "notebooks")


def setup(app: Any) -> None:
    app.connect("source-read", _link_notebook)
    app.connect("html-page-context", _break_names)
    app.connect("build-finished", _add_files)
