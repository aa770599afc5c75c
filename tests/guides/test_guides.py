"""The code of the pages runs from top to bottom and prints what its comments say; what pages refer to is there."""

import logging
import re
import subprocess
from pathlib import Path

import pytest
from notebooks import PAGES as DOCS
from notebooks import blocks_of, environment_of, has_code
from pages import run_page
from refusing import assert_raises

import gristmill

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
PICTURES = sorted(ROOT.glob("docs/**/pictures/*"))
WITH_CODE = [page for page in DOCS if has_code(page)]
NOT_CODE = {"", "text", "yaml", "{toctree}", "{eval-rst}", "{include}", "{literalinclude}"}
NUM_COLUMNS = 88  # of code that the site shows without scrolling
IN_COLUMNS = ("<!-- text: table -->\n", "<!-- text: repr -->\n")  # a table and a tree, which wrapping would break
_FILE = re.compile(r"\]\(([^)#\s]+)[^)]*\)|src(?:set)?=\"([^\"]+)\"")
_PLACE_ON_A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users|usr|tmp/tmp)\w*/")


@pytest.fixture(autouse=True)
def _options(monkeypatch):
    """What a page sets is not set afterwards."""
    monkeypatch.setitem(vars(gristmill.config), "_updates", {})
    monkeypatch.setattr(logging.getLogger("gristmill"), "handlers", [])


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda path: path.stem)
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
    for text, match in (("python\nprint(1)  # 2", "says\n  2\nand prints\n  1"), ("sh\nfalse", "false")):
        page.write_text(f"```{text}\n```\n")
        assert_raises(AssertionError, match, run_page, page)


def _files(page):
    """What a page refers to in this repository."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = [name or source for name, source in _FILE.findall(prose) if "://" not in name]
    return [(page.parent / name).resolve() for name in names]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_code_is_run_and_not_cut_and_what_a_page_refers_to_is_there(page):
    text, blocks = page.read_text(), list(blocks_of(page))
    for block in blocks:
        assert page.parent == ROOT or block.runs or block.reason or block.language in NOT_CODE, f"{block.language}: {block.code}"
        if block.language.startswith("{") or text[: block.start].endswith(IN_COLUMNS):
            continue
        for line in block.code.splitlines():
            is_word = " " not in line.strip()[:NUM_COLUMNS]  # there is no place to break it
            assert len(line) <= NUM_COLUMNS or is_word, f"{len(line)} columns: {line}"
    assert page.parent == ROOT or sum(block.reason is not None for block in blocks) <= 4
    assert [file for file in _files(page) if not file.exists()] == []
    assert not _PLACE_ON_A_MACHINE.search(text)
    assert "```text\n```" not in text  # texts were made


def test_pictures_are_small_and_are_shown():
    shown = {file for page in PAGES for file in _files(page)}
    assert PICTURES
    for picture in PICTURES:
        assert picture in shown and picture.stat().st_size < 300_000
        if picture.suffix == ".svg":
            assert not _PLACE_ON_A_MACHINE.search(picture.read_text())


def test_all_metrics_and_switches_are_told():
    guide = (ROOT / "docs/guides/observing.md").read_text()
    registry = gristmill.start_telemetry(port=0)
    names = [metric.name + "_total" * (metric.type == "counter") for metric in registry.collect()]
    gristmill.stop_telemetry()
    assert len(names) > 10
    for name in names:
        assert f"`{name}`" in guide
    for option in ("py_debug_mode", "debug_report_seconds", "stall_seconds", "py_traceback_filtering"):
        assert getattr(gristmill.config, option) is not None
        assert f"`{option}`" in guide and f"`GRISTMILL_{option.upper()}`" in guide


def test_the_readme_finds_a_bottleneck(capsys):
    (block,) = re.findall(r"```py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(block, {"__name__": "readme"})
    assert capsys.readouterr().out.startswith("Bound by the transform MapMapDataset(transform=tokenize")
