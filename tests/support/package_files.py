"""The files of the package."""

from __future__ import annotations

import ast
import configparser
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def modules() -> dict[str, Path]:
    """The files of the library, by the names of the modules."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found = {}
    for line in setup["options"]["package_dir"].split("\n"):
        package, _, folder = (part.strip() for part in line.partition("="))
        for path in (ROOT / folder).rglob("*.py") if folder else ():
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of the syntax tree of a file."""
    return [*ast.walk(ast.parse(path.read_text()))]
