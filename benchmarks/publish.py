"""Puts the figures of a whole run into the documentation: ``python benchmarks/publish.py``, at the
end of ``make bench``.

``docs/benchmarks.json`` becomes a copy of ``out/benchmarks.json``. In ``docs/benchmarks.md`` the
part between ``<!-- table: QUESTION … -->`` and ``<!-- end of table -->`` becomes the table of these
questions, the paragraph after ``<!-- machine -->`` says where, when and how steadily it was
measured, and the list after ``<!-- missed -->`` which goals were missed. The sentence after ``<!--
headline -->`` and the rows after ``<!-- claims -->`` in the README are some of the same figures.
What is after ``<!-- pythons -->`` stays as ``interpreters.py`` has published it.

``python benchmarks/publish.py QUESTION`` puts the figures of ``python benchmarks/run.py QUESTION``
after ``<!-- alone: QUESTION -->``: of questions that take long and are measured by themselves. They
are kept in ``docs/benchmarks.json`` too, and missed goals among them are in the same list.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interpreters import pythons_text
from run import figure, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks.md"
README = ROOT / "README.md"
PUBLISHED = ROOT / "docs/benchmarks.json"
MEASURED = ROOT / "out/benchmarks.json"
NAMES = {"gristmill": "gristmill", "grain": "Grain", "torch": "PyTorch"}
# What the README says of a workload, and the section of the page that has it.
CLAIMS = {
    "ArrayRecord of 784 bytes, global shuffle, batch 128: DataLoader": (
        "[A record](docs/benchmarks.md#in-one-process) of ArrayRecord from a `DataLoader`,"
        " shuffled, batched"
    ),
    "19 MB image batches, DataLoader, 2 workers: time": (
        "[A batch](docs/benchmarks.md#worker-processes) of 19 MB from two worker processes"
    ),
    "restore 5 000 000 elements in, first element: DataLoader": (
        "[The first element](docs/benchmarks.md#states) after restoring, five million elements in"
    ),
    "first fit, 32 bins": (
        "[A token](docs/benchmarks.md#packing) packed into rows of 2048, first fit"
    ),
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


def headline(report: dict[str, Any]) -> str:
    """Returns the README's sentence on speed: a record against Grain, a batch against PyTorch."""
    results = {result["workload"]: result for result in report["results"]}

    def against(workload: str, peer: str, name: str) -> str:
        medians, unit = results[workload]["medians"], results[workload]["unit"].split("/")[0]
        ratio = figure(medians[peer] / medians["gristmill"])
        return f"{figure(medians['gristmill'])} {unit}, {ratio} times as fast as {name}"

    record, batch, *_ = CLAIMS
    return (
        f"**Fast**: a shuffled record of ArrayRecord in {against(record, 'grain', 'Grain')}; "
        f"a batch of 19 MB from worker processes in {against(batch, 'torch', 'PyTorch')} "
        "([figures](#figures))."
    )


# Six columns, as many as the site shows beside each other: the unit is beside the workload, ratios
# in parentheses.
HEAD = ["workload", "gristmill", "Grain", "PyTorch", "bound", "goal"]


def page_row(result: dict[str, Any]) -> list[str]:
    """A result as a row of the page."""
    medians = result["medians"]

    def peer(name: str) -> str:
        if name not in medians:
            return "–"
        ratio = figure(medians[name] / medians["gristmill"])
        return f"{figure(medians[name])} ({ratio}\N{NO-BREAK SPACE}×)"

    bounds = "; ".join(f"{figure(medians[name])} ({name})" for name in medians if name not in NAMES)
    goals = "; ".join(
        text if verdict == "reached" else f"{text}: **{verdict.lower()}**"
        for text, verdict in result["goals"].items()
    )
    workload = f"{result['workload']} [{result['unit']}]"
    return [
        workload,
        figure(medians["gristmill"]),
        peer("grain"),
        peer("torch"),
        bounds or "–",
        goals or "–",
    ]


def question_table(report: dict[str, Any], questions: list[str]) -> str:
    """The table of some questions, without columns that are empty in all rows."""
    found = [result for result in report["results"] if result["question"] in questions]
    if not found:
        raise ValueError(
            f"the report has nothing on {', '.join(questions)}: publish whole runs (no ARGS)"
        )
    rows = [
        HEAD,
        *([cell.replace("torch", "PyTorch") for cell in page_row(result)] for result in found),
    ]
    kept = [i for i in range(len(HEAD)) if any(cells[i] != "–" for cells in rows[1:])]
    return table([[cells[i] for i in kept] for cells in rows])


def alone_text(question: str, report: dict[str, Any]) -> str:
    """The table of a question that is measured by itself, and when it was."""
    return (
        f"{question_table(report, [question])}\n\nMeasured on {report['date']}, {report['rounds']}"
        f" rounds at most, load {report['machine']['load']:.2f} before it began."
    )


def machine_text(report: dict[str, Any]) -> str:
    """When and where the figures were measured, with which versions, and how much they vary."""
    machine = report["machine"]
    versions = {
        name: digest["version"]
        for result in report["results"]
        for name, digest in result["digests"].items()
    }
    peers = ", ".join(f"{NAMES[name]} {versions[name]}" for name in NAMES if versions.get(name))
    load = f", with a load of {machine['load']:.2f} before it began" if "load" in machine else ""
    spreads = [
        max(samples) / min(samples)
        for r in report["results"]
        if min(samples := r["samples"]["gristmill"]) > 0
    ]
    return (
        f"Measured on {report['date']} on a virtual machine with {machine['cpus']} CPUs"
        f" ({machine['platform']}){load}: CPython {machine['python']}, {peers}. Figures are medians"
        f" of {report['rounds']} rounds. From round to round they vary: for half of the workloads"
        f" gristmill's slowest round took more than {figure(statistics.median(spreads))} times its"
        " quickest."
    )


def missed_text(report: dict[str, Any]) -> str:
    """A sentence with the number of goals and the figures that missed them."""
    goals = [
        (result, text, verdict)
        for part in (report, *report["alone"].values())
        for result in part["results"]
        for text, verdict in result["goals"].items()
    ]
    missed = [
        f"- {result['workload']}: {figure(result['medians']['gristmill'])} {result['unit']}, and"
        f" the goal is {text}."
        for result, text, verdict in goals
        if verdict != "reached"
    ]
    return "\n".join(
        [
            (
                f"Of {len(goals)} goals {len(goals) - len(missed)} were reached, {len(missed)} were"
                " not:\n"
            ),
            *missed,
        ]
    )


def replaced(text: str, mark: str, end: str, content: Callable[[str], str]) -> str:
    """Puts what ``content`` returns after each comment ``mark``, up to ``end``.

    Args:
        mark: a pattern with one group, the argument of ``content``.
        end: a pattern.
    """
    return re.sub(
        rf"(<!-- {mark} -->).*?({end})",
        lambda part: f"{part[1]}{content(part[2])}{part[3]}",
        text,
        flags=re.DOTALL,
    )


def with_figures(text: str, report: dict[str, Any]) -> str:
    """A page with the report's figures in its marked places."""
    end = "<!-- end of table -->"
    text = replaced(text, "(headline)", "\n", lambda _: headline(report))
    text = replaced(text, "(claims)", "\n\n", lambda _: f"\n{claims(report)}")
    text = replaced(
        text,
        "table: (.*?)",
        end,
        lambda questions: f"\n\n{question_table(report, questions.split())}\n\n",
    )
    text = replaced(
        text,
        f"alone: ({'|'.join(report['alone'])})",
        end,
        lambda question: f"\n\n{alone_text(question, report['alone'][question])}\n\n",
    )
    pythons = pythons_text(report["pythons"])
    text = replaced(text, "(pythons)", end, lambda _: f"\n\n{pythons}\n\n")
    machine = textwrap.fill(machine_text(report), 100, break_on_hyphens=False)
    text = replaced(text, "(machine)", "\n\n", lambda _: f"\n{machine}")
    return replaced(text, "(missed)", r"\Z", lambda _: f"\n{missed_text(report)}\n")


def publish_part(part: dict[str, Any]) -> None:
    """Puts some figures in place of those published before; all others stay."""
    report = {**json.loads(PUBLISHED.read_text()), **part}
    page = with_figures(PAGE.read_text(), report)
    PUBLISHED.write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(page)


def main() -> None:
    measured, published = json.loads(MEASURED.read_text()), json.loads(PUBLISHED.read_text())
    if len(sys.argv) > 1:
        question = sys.argv[1]
        if f"<!-- alone: {question} -->" not in PAGE.read_text():
            raise ValueError(f"QUESTION must be one with a section of its own, got {question!r}")
        results = [part for part in measured["results"] if part["question"] == question]
        alone = {question: {**measured, "results": results}}
        publish_part({"alone": {**published["alone"], **alone}})
        return
    report = {**measured, "pythons": published["pythons"], "alone": published["alone"]}
    for page in (PAGE, README):
        page.write_text(with_figures(page.read_text(), report))
    PUBLISHED.write_text(json.dumps(report, indent=1) + "\n")
    print("Published:", *[path.relative_to(ROOT) for path in (PAGE, README, PUBLISHED)])


if __name__ == "__main__":
    main()
