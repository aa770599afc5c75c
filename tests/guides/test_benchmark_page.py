"""The figures in the documentation are those of the published JSON, which is one whole run of the benchmarks."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def publish(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("publish")


@pytest.fixture(scope="module")
def report():
    return json.loads((ROOT / "docs/benchmarks.json").read_text())


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_pages_have_the_published_figures(publish, report, page):
    text = (ROOT / page).read_text()
    assert publish.with_figures(text, report) == text
    figures = json.loads(json.dumps(report))
    for result in figures["results"]:
        result["medians"] = {name: 2.5 * median for name, median in result["medians"].items()}
    assert publish.with_figures(text, figures) != text


def test_every_workload_was_measured_by_all_and_is_in_a_table(publish, report):
    text = (ROOT / "docs/benchmarks.md").read_text()
    shown = {name for questions in re.findall("<!-- table: (.*?) -->", text) for name in questions.split()}
    questions = {path.stem for path in (ROOT / "benchmarks/questions").glob("*.py")}
    assert shown == questions
    measured = {(result["question"], result["workload"]) for result in report["results"]}
    workloads = {(name, w.name) for name in questions for w in importlib.import_module(f"questions.{name}").WORKLOADS}
    assert measured == workloads
    for result in report["results"]:
        assert result["failures"] == {} and result["differences"] == []
    assert not report["code_changed"]


def test_missed_goals_the_steadiness_and_parts_of_runs(publish, report):
    page = (ROOT / "docs/benchmarks.md").read_text()
    for verdict, is_missed in (("reached", False), ("MISSED", True)):
        results = [{**result, "goals": dict.fromkeys(result["goals"], verdict)} for result in report["results"]]
        tables, missed = publish.with_figures(page, {**report, "results": results}).split("<!-- missed -->")
        num_goals = sum(len(result["goals"]) for result in results)
        assert tables.count("**missed**") == missed.count("\n- ") == num_goals * is_missed
    text = publish.machine_text({**report, "machine": {**report["machine"], "load": 0.25}})
    assert f"Measured on {report['date']}" in text and "a load of 0.25" in text
    assert f"medians of {report['rounds']} rounds" in text
    steady = [{**result, "samples": {"gristmill": [3.0, 3.3]}} for result in report["results"]]
    assert "more than 1.10 times its quickest" in publish.machine_text({**report, "results": steady})
    part = {**report, "results": report["results"][:3]}
    with pytest.raises(ValueError, match="publish whole runs"):
        publish.with_figures(page, part)
