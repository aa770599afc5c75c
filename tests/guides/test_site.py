"""The site of the documentation builds without a warning, refers to nothing that is not there, and
names all that is public.
"""

import json
import shutil
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sphinx.util.inventory as inventories
from public_names import ALIASES

import gristmill

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """The links of an HTML page, and the anchors in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.references: list[str] = []
        self.anchors: set[str] = set()
        self.images_without_text = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        self.references += [value for name in ("href", "src") if (value := values.get(name))]
        self.references += [
            part.split()[0] for part in (values.get("srcset") or "").split(",") if part
        ]
        self.images_without_text += tag == "img" and not values.get("alt")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        ROOT / "docs",
        folder,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def broken_links(pages):
    """All references of pages to files, or places in pages, that are not there."""
    for path, page in pages.items():
        for reference in page.references:
            address = urllib.parse.urlsplit(reference)
            if address.scheme or address.netloc:
                continue  # elsewhere
            target = (
                (path.parent / urllib.parse.unquote(address.path)).resolve()
                if address.path
                else path
            )
            if target.is_dir():
                target = target / "index.html"
            anchor = urllib.parse.unquote(address.fragment)
            if not target.exists():
                yield f"{path.name}: {reference}"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{path.name}: {reference} (no such place in the page)"


@pytest.mark.timeout(450)
def test_no_link_is_broken_and_pictures_have_descriptions(site, pages, tmp_path):
    notebooks = {path.stem for path in (site / "notebooks").glob("*.ipynb")}
    offered = {
        Path(reference).stem
        for page in pages.values()
        for reference in page.references
        if reference.endswith(".ipynb")
    }
    assert offered == notebooks and len(notebooks) > 15
    assert len(pages) > 40
    assert list(broken_links(pages)) == []
    wrong = tmp_path / "wrong.html"  # what the check finds
    wrong.write_text(
        '<a href="nowhere.html">1</a> <a href="#no">2</a> <h2 id="a"></h2> <a href="#a">3</a> <img'
        ' src="no.png">'
    )
    assert len(list(broken_links({wrong: Page(wrong)}))) == 3
    assert [
        path.name
        for path, page in pages.items()
        if page.images_without_text and "_modules" not in path.parts
    ] == []


# What readers look for, and the section about it.
SECTIONS = {
    "skip bad records": "guides/debugging#skip-bad-records",
    "csv": "guides/sequential_sources#csv",
    "webdataset shards": "guides/tar_files",
    "keras": "guides/pytorch_and_keras#keras",
    "parquet": "guides/parquet",
}


def test_titles_and_the_reference_name_what_is_looked_for(site):
    index = json.loads(
        (site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")")
    )
    titles = {
        title.lower(): [index["docnames"][page] for page, _ in places]
        for title, places in index["alltitles"].items()
    }
    assert [
        query
        for query, section in SECTIONS.items()
        if section.partition("#")[0] not in titles[query]
    ] == []
    inventory = inventories.InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in inventory.data.values() for name in kind}
    assert [name for name in ALIASES if f"gristmill.{name}" not in documented] == []
    methods = {name for name in dir(gristmill.MapDataset) if not name.startswith("_")} - {
        "index",
        "count",
    }
    assert [name for name in methods if f"gristmill.MapDataset.{name}" not in documented] == []


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node, which runs the site's search, is not installed"
)
def test_search_leads_to_guides_first(site):
    others = ["blocks", "read ahead", "checkpoints"]
    command = [
        "node",
        Path(__file__).with_name("search.js"),
        site,
        *SECTIONS,
        *others,
        "IndexSampler",
    ]
    *found, names = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    )
    assert [pages[0] for pages in found[: len(SECTIONS)]] == list(SECTIONS.values())
    for pages in found:
        guides, decisions = (
            [i for i, page in enumerate(pages) if page.startswith(kind)]
            for kind in ("guides/", "decisions/")
        )
        assert max(guides) < min(decisions, default=len(pages))
    assert any(page.startswith("decisions/") for pages in found for page in pages)
    assert names[0] == "reference/data_loader#gristmill.samplers.IndexSampler"
