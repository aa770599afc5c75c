"""Templates: what is escaped, the files, and what happens without Jinja2."""

import re

import pytest
from html_page import Page
from package_files import ROOT
from programs import output

from gristmill.diagnostics.html import HtmlCell, asset, html_table, render
from gristmill.diagnostics.table import Column

HOSTILE = "</style></title></script><evil onclick='x'>\"&amp;\ud800\x00"
SHOWN = HOSTILE.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")
FOLDER = ROOT / "diagnostics/html"


def test_every_text_of_a_table_is_escaped():
    cell = HtmlCell(HOSTILE, [HOSTILE], [(HOSTILE, 0.5)], HOSTILE, HOSTILE, HOSTILE)
    columns = [Column(HOSTILE, lambda row: row, kind=HOSTILE)]
    table = html_table(columns, [cell, HOSTILE], "cards", HOSTILE)
    page = Page(table)
    assert not page.named("evil") and not [x for _, x in page.tags if "onclick" in x]
    assert page.rows == [[SHOWN], [SHOWN * 2], [SHOWN]]
    (first, _), (frame, *_) = page.named("td"), page.named("div")
    assert (first["title"], first["data-label"], frame["class"]) == (SHOWN, SHOWN, SHOWN)
    assert Page(render("notebook.html.j2", text=HOSTILE)).text.strip() == SHOWN


def test_nothing_but_the_environment_says_what_is_not_escaped():
    unsafe = re.compile(r"\bMarkup\(|\|\s*safe\b|autoescape|format_html|\.html_safe")
    paths = [*(ROOT / "diagnostics").rglob("*.py"), *FOLDER.glob("*.j2")]
    assert len(paths) > 80
    found = {path.name: unsafe.findall(path.read_text()) for path in paths}
    assert {name: uses for name, uses in found.items() if uses} == {
        "rendering.py": ["autoescape", "Markup("]  # on, and the styles of this package
    }


@pytest.mark.parametrize("name", ["base.css", "report.css", "viewer.css", "graph.css"])
def test_styles_cannot_end_their_element_and_load_nothing(name):
    assert not re.findall(r"<|https?:|@import|url\(", asset(name))


def test_without_jinja2_errors_name_the_extra(tmp_path):
    script = """
        import logging, sys
        from pathlib import Path
        sys.modules["jinja2"] = None
        import gristmill as gm
        from gristmill.diagnostics.cli import main
        from gristmill.diagnostics.graph.stages import graph_of
        from gristmill.diagnostics.graph.files import emit_graph

        def error_of(function, *args):
            try:
                function(*args)
            except ImportError as error:
                return str(error)

        ds = gm.MapDataset.range(9).map(lambda x: x)
        it = iter(ds)
        with gm.observe(it) as view:
            next(it)
        for function, *args in (
            (gm.view, ds),
            (view.save_html, "report.html"),
            (gm.visualize, ds, "graph.svg"),
            (gm.visualize, ds, "graph.html"),
        ):
            print(error_of(function, *args))
        shown = ds, gm.explain(ds, step=0), view, view.summary()
        print([x._repr_html_().startswith("<pre>") for x in shown])
        print("&lt;lambda&gt;" in ds._repr_html_())
        target = Path(sys.argv[0]).with_name("train.py")
        target.write_text("import gristmill\\nds = gristmill.MapDataset.range(9)\\n")
        sys.stderr = sys.stdout
        print(main(["view", f"{target}:ds"]))
        print(main(["inspect", f"{target}:ds", "--output", "graph.svg"]))
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        emit_graph(graph_of(ds), sys.argv[1])
    """
    *errors, pieces, is_escaped, said, code, said_of_file, code_of_file, logged = output(
        tmp_path, script, tmp_path / "graphs"
    )
    need = "the package jinja2, which is not installed; run: pip install 'gristmill[view]'"
    assert len(errors) == 4 and all([error.endswith(f"needs {need}") for error in errors]), errors
    assert (said, code) == (f"python -m gristmill: HTML needs {need}", "2")
    assert (said_of_file, code_of_file) == (said, code)
    assert (pieces, is_escaped) == ("[True, True, True, True]", "True")
    assert logged.endswith(need)
    assert {path.name for path in tmp_path.rglob("pipeline-*")} == {
        "pipeline-0.txt",
        "pipeline-0.json",
    }
