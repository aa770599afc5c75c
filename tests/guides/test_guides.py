"""The code of the guides runs from top to bottom and prints what its comments say; their pictures are there."""

import contextlib
import io
import logging
import re
from pathlib import Path

import pytest

import gristmill

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs/guides").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
PICTURES = sorted((ROOT / "docs/guides/pictures").iterdir())
_REMARK = re.compile(r"(?:^|  )# (.*)$")
_FILE = re.compile(r"\]\(([^)#\s]+)[^)]*\)|src(?:set)?=\"([^\"]+)\"")
_PLACE_ON_A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users|usr|tmp/tmp)\w*/")


@pytest.fixture(autouse=True)
def _options(monkeypatch):
    """What a guide sets is not set afterwards."""
    monkeypatch.setitem(vars(gristmill.config), "_updates", {})
    monkeypatch.setattr(logging.getLogger("gristmill"), "handlers", [])


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_blocks_print_what_they_say(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    assert len(blocks) > 5
    namespace = {"__name__": guide.stem}
    num_checked = 0
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"{guide.name}: {block.splitlines()[0]}", "exec"), namespace)
        said = [match[1] for match in map(_REMARK.search, block.splitlines()) if match]
        assert printed.getvalue().splitlines() == said, block
        num_checked += len(said)
    namespace.clear()  # threads that read ahead refer to it, by the functions that they call: its iterators end here
    assert num_checked > 5


def _files(page):
    """What a page refers to in this repository."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = [name or source for name, source in _FILE.findall(prose) if "://" not in name]
    return [(page.parent / name).resolve() for name in names]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_page_refers_to_is_there(page):
    assert [file for file in _files(page) if not file.exists()] == []


def test_pictures_are_small_and_are_shown():
    shown = {file for page in PAGES for file in _files(page)}
    assert PICTURES
    for picture in PICTURES:
        assert picture in shown
        assert picture.stat().st_size < 300_000
        if picture.suffix == ".svg":
            assert not _PLACE_ON_A_MACHINE.search(picture.read_text())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_texts_were_made_and_name_no_machine(guide):
    text = guide.read_text()
    assert not _PLACE_ON_A_MACHINE.search(text)
    assert "```text\n```" not in text


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
