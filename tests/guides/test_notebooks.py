"""The pages of the documentation, as notebooks: they run from top to bottom and show what the pages say."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from notebooks import PAGES, blocks_of, has_code, notebook_of
from pages import expected_output

WITH_CODE = [page for page in PAGES if has_code(page)]


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
    """One: as scripts they all run (``test_guides.py``)."""
    (page,) = [page for page in WITH_CODE if page.stem == "start"]
    kernel, folder = tmp_path / "kernels/here", tmp_path / "work"
    kernel.mkdir(parents=True)
    folder.mkdir()
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": arguments, "display_name": "here", "language": "python"}))
    monkeypatch.setattr(KernelSpecManager, "kernel_dirs", [str(kernel.parent)])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = notebook_of(page)
    NotebookClient(notebook, kernel_name="here", timeout=100, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"]:
        if not cell.source.startswith("%%bash"):
            streams = [output.text for output in cell.outputs if output.get("name") == "stdout"]
            assert "".join(streams).splitlines() == expected_output(cell.source), cell.source
