"""Puts the figures of a whole run into the documentation: ``python benchmarks/publish.py``, at the end of ``make bench``.

``docs/benchmarks.json`` becomes a copy of ``out/benchmarks.json``. In ``docs/benchmarks.md`` the part between
``<!-- table: QUESTION … -->`` and ``<!-- end of table -->`` becomes the table of these questions, and the paragraph after
``<!-- machine -->`` says where and when it was. The rows after ``<!-- claims -->`` in the README are some of the same figures.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from run import HEAD, figure, row, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks.md"
README = ROOT / "README.md"
PUBLISHED = ROOT / "docs/benchmarks.json"
MEASURED = ROOT / "out/benchmarks.json"
NAMES = {"gristmill": "gristmill", "grain": "Grain", "torch": "PyTorch"}
# What the README says of a workload, and the section of the page that has it.
CLAIMS = {
    "ArrayRecord of 784 bytes, global shuffle, batch 128: DataLoader": (
        "[A record](docs/benchmarks.md#in-one-process) of ArrayRecord from a `DataLoader`, shuffled, batched"
    ),
    "19 MB image batches, DataLoader, 2 workers: time": (
        "[A batch](docs/benchmarks.md#worker-processes) of 19 MB from two worker processes"
    ),
    "restore 5 000 000 elements in, first element: DataLoader": (
        "[The first element](docs/benchmarks.md#states) after restoring, five million elements in"
    ),
    "first fit, 32 bins": "[A token](docs/benchmarks.md#packing) packed into rows of 2048, first fit",
}


def claims(report: dict[str, Any]) -> str:
    """The table of the README: what each takes, and how many times that of gristmill."""
    results = {result["workload"]: result for result in report["results"]}
    rows = [["", "gristmill", "Grain", "PyTorch"]]
    for workload, text in CLAIMS.items():
        medians, unit = results[workload]["medians"], results[workload]["unit"].split("/")[0]
        cells = [text, f"{figure(medians['gristmill'])} {unit}"]
        for peer in ("grain", "torch"):
            ratio = figure(medians[peer] / medians["gristmill"]) if peer in medians else ""
            cells.append(f"{figure(medians[peer])} {unit}, **{ratio} ×**" if ratio else "–")
        rows.append(cells)
    return table(rows)


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


def with_figures(text: str, report: dict[str, Any]) -> str:
    """A page with the report's figures in its marked places."""
    text = re.sub(r"(<!-- claims -->\n).*?\n\n", lambda part: f"{part[1]}{claims(report)}\n\n", text, flags=re.DOTALL)
    text = re.sub(
        r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)",
        lambda part: f"{part[1]}\n{question_table(report, part[2].split())}\n\n{part[3]}",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r"(<!-- machine -->\n).*?\n\n", lambda part: f"{part[1]}{machine_text(report)}\n\n", text, flags=re.DOTALL)


def main() -> None:
    report = json.loads(MEASURED.read_text())
    for page in (PAGE, README):
        page.write_text(with_figures(page.read_text(), report))
    shutil.copyfile(MEASURED, PUBLISHED)
    print("Published:", *[path.relative_to(ROOT) for path in (PAGE, README, PUBLISHED)])


if __name__ == "__main__":
    main()
