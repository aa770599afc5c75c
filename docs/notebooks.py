"""Pages as notebooks: ``python docs/notebooks.py out/notebooks`` writes one for every page that has
code.

A fenced ``python`` or ``sh`` block becomes a cell; the text between blocks, and blocks after ``<!--
not run: why -->``, are Markdown. The tests run the same blocks (``tests/guides/pages.py``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nbformat import NotebookNode

DOCS = Path(__file__).parent
PAGES = sorted(
    page for folder in (".", "guides") for page in (DOCS / folder).glob("*.md")
)
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?)"
    r" -->\n+)?```(?P<language>[^\s`]*)[^\n`]*\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_ENVIRONMENT = re.compile(r"<!-- environment: (\w+) -->")


class Block(NamedTuple):
    """A fenced block: its language, its code, why it is not run (or ``None``), and where in the
    page it begins and ends.
    """

    language: str
    code: str
    reason: str | None
    start: int
    end: int

    @property
    def runs(self) -> bool:
        return self.reason is None and self.language in ("python", "sh")


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found = _BLOCK.finditer(page.read_text())
    return [
        Block(block["language"], block["code"], block["reason"], *block.span())
        for block in found
    ]


def has_code(page: Path) -> bool:
    return any(block.runs and block.language == "python" for block in blocks_of(page))


def environment_of(page: Path) -> Path | None:
    """The folder of the virtual environment that a page asks for, if it asks for one: ``make
    peers`` makes them; ``own`` is this one, in a process of the page's own.
    """
    name = _ENVIRONMENT.match(page.read_text())
    if name is None:
        return None
    return Path(sys.prefix) if name[1] == "own" else DOCS.parent / ".peers" / name[1]


def notebook_of(page: Path) -> NotebookNode:
    """The page as a notebook."""
    from nbformat.v4 import (
        new_code_cell,
        new_markdown_cell,
        new_notebook,
    )  # environments that only run pages lack it

    text = page.read_text()
    cells, end = [], 0

    def add_text(upto: int) -> None:
        if part := _COMMENT.sub("", text[end:upto]).strip():
            cells.append(new_markdown_cell(part))

    for block in blocks_of(page):
        if block.runs:
            add_text(block.start)
            cells.append(
                new_code_cell(
                    ("%%bash\n" if block.language == "sh" else "") + block.code.rstrip()
                )
            )
            end = block.end
    add_text(len(text))
    for number, cell in enumerate(cells):
        cell["id"] = f"{page.stem}-{number}"[
            -64:
        ]  # not by chance: the same page gives the same file
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def write_notebooks(folder: Path) -> list[Path]:
    """Writes the notebooks of all pages that have code into a folder; returns their paths."""
    import nbformat

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for page in filter(has_code, PAGES):
        paths.append(folder / f"{page.stem}.ipynb")
        nbformat.write(notebook_of(page), paths[-1])
    return paths


if __name__ == "__main__":
    print(*write_notebooks(Path(sys.argv[1])), sep="\n")
