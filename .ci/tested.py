"""Records a run of the tests in ``docs/tested.json`` and the README.

``make record-tests`` runs ``python .ci/tested.py REPORT SELECTION`` with the interpreter that ran
the tests. ``REPORT`` is what ``pytest --junitxml`` wrote, ``SELECTION`` says which tests ran. The
table after ``<!-- tested -->`` in the README has a row for each version of Python and system: the
last run that was recorded there.
"""

import json
import platform
import re
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RECORDED = ROOT / "docs/tested.json"


def record_of(report: Path, selection: str) -> dict[str, Any]:
    """Returns the record of a run with this interpreter.

    Raises:
        SystemExit: A test failed, or none passed.
    """
    (suite,) = ElementTree.parse(report).getroot()
    num = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    if num["failures"] or num["errors"] or num["tests"] == num["skipped"]:
        sys.exit(f"tested: only runs in which all tests pass are recorded, this one has {num}")
    return {
        "python": platform.python_version(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "system": f"{platform.system()} {platform.machine()}",
        "selection": selection,
        "passed": num["tests"] - num["skipped"],
        "skipped": num["skipped"],
        "date": suite.attrib["timestamp"][:10],
    }


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what a record is the last one of; keys sort by system and version."""
    major, minor = record["python"].split(".")[:2]
    return record["system"], int(major), int(minor), record["free_threaded"]


def with_record(records: list[dict[str, Any]], record: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the records with one that replaces an older one of its version and system."""
    return sorted([*(old for old in records if key(old) != key(record)), record], key=key)


def table(records: list[dict[str, Any]]) -> str:
    """Returns the table of the README."""
    lines = ["| Python | system | tests | passed | skipped | on |", "|---|---|---|---|---|---|"]
    for record in records:
        python = record["python"] + ", free-threaded" * record["free_threaded"]
        rest = [record[name] for name in ("system", "selection", "passed", "skipped", "date")]
        lines.append(f"| {' | '.join(map(str, [python, *rest]))} |")
    return "\n".join(lines)


def with_table(text: str, records: list[dict[str, Any]]) -> str:
    """Returns the text of the README with the table of these records."""
    head, mark, rest = text.partition("<!-- tested -->\n")
    return head + mark + re.sub(r"\A(\|.*\n)*", lambda _: f"{table(records)}\n", rest)


def main() -> None:
    report, selection = sys.argv[1:]
    records = with_record(json.loads(RECORDED.read_text()), record_of(Path(report), selection))
    RECORDED.write_text(json.dumps(records, indent=2) + "\n")
    README.write_text(with_table(README.read_text(), records))
    print("Recorded in", *[path.relative_to(ROOT) for path in (RECORDED, README)])


if __name__ == "__main__":
    main()
