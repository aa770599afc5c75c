"""The code of the pages, also as notebooks, runs and prints what its comments say; what they refer
to, and figures, are there.
"""

import ast
import importlib
import itertools
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from notebooks import PAGES as DOCS
from notebooks import blocks_of, environment_of, has_code, notebook_of
from pages import expected_output, run_page
from refusing import assert_raises

import gristmill

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
PICTURES = sorted(ROOT.glob("docs/**/pictures/*"))
WITH_CODE = [page for page in DOCS if has_code(page)]
NOT_CODE = {"", "text", "yaml", "{toctree}", "{eval-rst}", "{include}", "{literalinclude}"}
NUM_COLUMNS = 88  # of code that the site shows without scrolling
# a table and a tree, which wrapping would break
IN_COLUMNS = ("<!-- text: table -->\n", "<!-- text: repr -->\n")
_FILE = re.compile(r"\]\(([^)#\s]+)[^)]*\)|src(?:set)?=\"([^\"]+)\"")
_PLACE_ON_A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users|usr|tmp/tmp)\w*/")


@pytest.fixture(autouse=True)
def _options(monkeypatch):
    """Restores the options that a page sets."""
    monkeypatch.setitem(vars(gristmill.config), "_updates", {})
    monkeypatch.setattr(logging.getLogger("gristmill"), "handlers", [])


# Those that need an environment or a process of their own import PyTorch and Keras, or start
# clusters, which takes long.
EACH_PAGE = [
    page if environment_of(page) is None else pytest.param(page, marks=pytest.mark.slow)
    for page in WITH_CODE
]


@pytest.mark.parametrize("page", EACH_PAGE, ids=lambda path: path.stem)
def test_blocks_print_what_they_say(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = environment_of(page)
    if environment is None:
        assert run_page(page) > 0
    elif (environment / "bin/python").exists():
        command = [environment / "bin/python", "-W", "error", ROOT / "tests/guides/pages.py", page]
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stdout + result.stderr
    else:
        pytest.skip(f"{environment.name} is not installed: run `make peers`")


def test_a_wrong_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    for text, match in (
        ("python\nprint(1)  # 2", "says\n  2\nand prints\n  1"),
        ("sh\nfalse", "false"),
    ):
        page.write_text(f"```{text}\n```\n")
        assert_raises(AssertionError, match, run_page, page)


def _files(page):
    """The files of this repository to which a page refers."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = [name or source for name, source in _FILE.findall(prose) if "://" not in name]
    return [(page.parent / name).resolve() for name in names]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_code_is_run_and_references_of_a_page_exist(page):
    text, blocks = page.read_text(), list(blocks_of(page))
    for block in blocks:
        assert page.parent == ROOT or block.runs or block.reason or block.language in NOT_CODE, (
            f"{block.language}: {block.code}"
        )
        if block.language.startswith("{") or text[: block.start].endswith(IN_COLUMNS):
            continue
        for line in block.code.splitlines():
            is_word = " " not in line.strip()[:NUM_COLUMNS]  # there is no place to break it
            assert len(line) <= NUM_COLUMNS or is_word, f"{len(line)} columns: {line}"
    assert page.parent == ROOT or sum(block.reason is not None for block in blocks) <= 4
    assert [file for file in _files(page) if not file.exists()] == []
    assert not _PLACE_ON_A_MACHINE.search(text)
    assert "```text\n```" not in text  # texts were made
    assert not re.search(r"^ *%", text, re.MULTILINE)  # a comment, which the site skips


PACKAGES = {  # of modules with another name
    "PIL": "pillow",
    "array_record": "array-record",
    "google": "protobuf",
    "orbax": "orbax-checkpoint",
    "tensorflow_datasets": "tensorflow-datasets",
}


def _modules(page):
    """The modules that the code of a page imports, without those that gristmill brings."""
    code = [block.code for block in blocks_of(page) if block.runs and block.language == "python"]
    nodes = [node for text in code for node in ast.walk(ast.parse(text))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    own = {*sys.stdlib_module_names, "numpy", "cloudpickle", "gristmill", "grain"}
    return {name.partition(".")[0] for name in names} - own


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_pages_name_the_packages_that_their_code_imports(page):
    commands = " ".join(re.findall(r"pip install ([^`\n]*)", page.read_text()))
    named = set(re.findall(r"[\w-]+", commands))
    extras = {"huggingface": "datasets", "remote": "obstore"}
    named |= {package for extra, package in extras.items() if extra in named}
    assert {PACKAGES.get(name, name) for name in _modules(page)} <= named


def test_pictures_are_small_and_are_shown():
    shown = {file for page in PAGES for file in _files(page)}
    assert PICTURES
    for picture in PICTURES:
        assert picture in shown and picture.stat().st_size < 300_000
        if picture.suffix == ".svg":
            assert not _PLACE_ON_A_MACHINE.search(picture.read_text())


def test_all_metrics_and_switches_are_documented():
    metrics = (ROOT / "docs/guides/traces_and_metrics.md").read_text()
    switches = (ROOT / "docs/guides/observing.md").read_text()
    registry = gristmill.start_telemetry(port=0)
    names = [metric.name + "_total" * (metric.type == "counter") for metric in registry.collect()]
    gristmill.stop_telemetry()
    assert len(names) > 10
    for name in names:
        assert f"`{name}`" in metrics
    for option in (
        "py_debug_mode",
        "debug_report_seconds",
        "stall_seconds",
        "py_traceback_filtering",
    ):
        assert getattr(gristmill.config, option) is not None
        assert f"`{option}`" in switches and f"`GRISTMILL_{option.upper()}`" in switches


def functions_of_the_page():
    (block,) = [
        block
        for block in blocks_of(ROOT / "docs/guides/many_hosts.md")
        if "def pad_to_multiple" in block.code
    ]
    namespace = {"grain": gristmill}
    exec(block.code[block.code.index("def ") : block.code.index("even = ")], namespace)
    return namespace


KEEP = {
    "all": lambda x: True,
    "some": lambda x: x % 3 == 1,
    "late": lambda x: x >= 4,
    "one": lambda x: x == 5,
}


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
@pytest.mark.parametrize("num_hosts", [1, 2, 3, 5])
def test_an_evaluation_of_many_hosts_sees_every_record_once(keep, num_hosts):
    pad_to_multiple = functions_of_the_page()["pad_to_multiple"]
    for length, batch_size in itertools.product((6, 7, 13, 24), (1, 2, 4)):
        test_set = (
            gristmill.MapDataset.range(length).map(lambda x: (x, -x)).filter(lambda x: keep(x[0]))
        )
        even = pad_to_multiple(test_set, num_hosts * batch_size)
        shares = [
            list(even[i::num_hosts].to_iter_dataset().batch(batch_size)) for i in range(num_hosts)
        ]
        assert len({len(share) for share in shares}) == 1
        assert {len(batch["counts"]) for share in shares for batch in share} == {batch_size}
        rows = [(*batch["x"], batch["counts"]) for share in shares for batch in share]
        seen = [
            (int(a), int(b)) for row in rows for a, b, counts in zip(*row, strict=True) if counts
        ]
        assert sorted(seen) == [(x, -x) for x in range(length) if keep(x)]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_notebooks_are_valid_and_hold_the_page(page):
    notebook = notebook_of(page)
    nbformat.validate(notebook)
    assert notebook == notebook_of(page)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) == sum(block.runs for block in blocks_of(page))
    assert notebook.cells[0].source.startswith("# ")  # the title, not a comment


@pytest.mark.slow
def test_a_notebook_runs(tmp_path, monkeypatch):
    """One: as scripts they all run."""
    (page,) = [page for page in WITH_CODE if page.stem == "start"]
    kernel, folder = tmp_path / "kernels/here", tmp_path / "work"
    kernel.mkdir(parents=True)
    folder.mkdir()
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": arguments, "display_name": "here", "language": "python"})
    )
    monkeypatch.setattr(KernelSpecManager, "kernel_dirs", [str(kernel.parent)])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = notebook_of(page)
    NotebookClient(
        notebook, kernel_name="here", timeout=100, resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"]:
        if not cell.source.startswith("%%bash"):
            streams = [output.text for output in cell.outputs if output.get("name") == "stdout"]
            assert "".join(streams).splitlines() == expected_output(cell.source), cell.source


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
    shown = {
        name
        for questions in re.findall("<!-- table: (.*?) -->", text)
        for name in questions.split()
    }
    # These take minutes: each is run by itself, and has a section.
    alone = {"writing", *re.findall("<!-- alone: (.*?) -->", text)}
    questions = {path.stem for path in (ROOT / "benchmarks/questions").glob("*.py")} - alone
    assert len(alone) == 3
    assert shown == questions
    measured = {(result["question"], result["workload"]) for result in report["results"]}
    workloads = {
        (name, w.name)
        for name in questions
        for w in importlib.import_module(f"questions.{name}").WORKLOADS
    }
    assert measured == workloads
    for result in report["results"]:
        assert result["failures"] == {} and result["differences"] == []
    assert not report["code_changed"]


def test_missed_goals_the_steadiness_and_parts_of_runs(publish, report):
    page = (ROOT / "docs/benchmarks.md").read_text()
    parts = {"": report, **report["alone"]}
    num_goals = sum(len(result["goals"]) for part in parts.values() for result in part["results"])
    for verdict, is_missed in (("reached", False), ("MISSED", True)):
        judged = {
            name: {
                **part,
                "results": [
                    {**result, "goals": dict.fromkeys(result["goals"], verdict)}
                    for result in part["results"]
                ],
            }
            for name, part in parts.items()
        }
        whole = {**judged.pop(""), "alone": judged}
        tables, missed = publish.with_figures(page, whole).split("<!-- missed -->")
        assert tables.count("**missed**") == missed.count("\n- ") == num_goals * is_missed
    text = publish.machine_text({**report, "machine": {**report["machine"], "load": 0.25}})
    assert f"Measured on {report['date']}" in text and "a load of 0.25" in text
    assert f"medians of {report['rounds']} rounds" in text
    steady = [{**result, "samples": {"gristmill": [3.0, 3.3]}} for result in report["results"]]
    assert "more than 1.10 times its quickest" in publish.machine_text(
        {**report, "results": steady}
    )
    part = {**report, "results": report["results"][:3]}
    assert_raises(ValueError, "publish whole runs", publish.with_figures, page, part)
