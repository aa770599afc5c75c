"""Puts the figures of a whole run into the documentation: ``python benchmarks/publish.py``, at the end of ``make bench``.

``docs/benchmarks.json`` becomes a copy of ``out/benchmarks.json``. In ``docs/benchmarks.md`` the part between
``<!-- table: QUESTION … -->`` and ``<!-- end of table -->`` becomes the table of these questions, and the paragraph after
``<!-- machine -->`` says where and when it was.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from run import HEAD, row, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks.md"
PUBLISHED = ROOT / "docs/benchmarks.json"
MEASURED = ROOT / "out/benchmarks.json"
NAMES = {"gristmill": "gristmill", "grain": "Grain", "torch": "PyTorch"}


def question_table(report: dict[str, Any], questions: list[str]) -> str:
    """The table of some questions, without columns that are empty in all rows."""
    found = [result for result in report["results"] if result["question"] in questions]
    if not found:
        raise ValueError(f"the report has nothing on {', '.join(questions)}: publish whole runs (no ARGS)")
    rows = [[cell.replace("torch", "PyTorch") for cell in cells] for cells in (HEAD, *map(row, found))]
    kept = [i for i in range(len(HEAD)) if any(cells[i] not in ("–", "") for cells in rows[1:])]
    return table([[cells[i] for i in kept] for cells in rows])


def machine_text(report: dict[str, Any]) -> str:
    """When, where and with which versions the figures were measured."""
    machine = report["machine"]
    versions = {name: digest["version"] for result in report["results"] for name, digest in result["digests"].items()}
    peers = ", ".join(f"{NAMES[name]} {versions[name]}" for name in NAMES if versions.get(name))
    where = f"{machine['cpus']} virtual CPUs, {machine['platform']}, CPython {machine['python']}"
    return f"Measured on {report['date']}: {where}, {peers}; medians of {report['rounds']} rounds."


def page_text(text: str, report: dict[str, Any]) -> str:
    """The page with the report's figures."""
    text = re.sub(
        r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)",
        lambda part: f"{part[1]}\n{question_table(report, part[2].split())}\n\n{part[3]}",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r"(<!-- machine -->\n).*?\n\n", lambda part: f"{part[1]}{machine_text(report)}\n\n", text, flags=re.DOTALL)


def main() -> None:
    report = json.loads(MEASURED.read_text())
    PAGE.write_text(page_text(PAGE.read_text(), report))
    shutil.copyfile(MEASURED, PUBLISHED)
    print(f"Published: {PAGE.relative_to(ROOT)}, {PUBLISHED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
