"""Destinations of the graph of a pipeline: a returned text, files, the log."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gristmill.diagnostics.drawing import graph_html, graph_svg
from gristmill.diagnostics.files import write_text
from gristmill.diagnostics.graph.stages import Graph, graph_of
from gristmill.diagnostics.graph.texts import graph_dot, graph_json, graph_text

_log = logging.getLogger("gristmill")

_FORMS: dict[str, Callable[[Graph], str]] = {  # what writes a graph, by the ending of the file
    ".dot": graph_dot,
    ".html": graph_html,
    ".json": graph_json,
    ".svg": graph_svg,
    ".txt": graph_text,
}


def visualize(ds: Any, path: str | os.PathLike[str] | None = None) -> str:
    """Returns the graph of a pipeline as a text, from the sources down, with what elements look
    like after each stage.

    Nothing is run: what elements look like is shown if sources and transformations declare it (see
    ``get_element_spec``).

    Args:
        ds: a dataset, an iterator, a ``DataLoader`` or its iterator.
        path: a file to write the graph to as well, as its ending says: ``.txt``, ``.svg`` or
            ``.html`` (a picture, which needs the extra ``view``), ``.dot`` (for Graphviz) or
            ``.json``. An existing file is replaced.

    Raises:
        ImportError: ``path`` is that of a picture, and Jinja2 is not installed.
        TypeError: ``ds`` is of another type.
        ValueError: ``path`` has another ending; nothing is written then.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> print(visualize(MapDataset.range(4).batch(2, drop_remainder=True)))
        Grain Dataset graph:
        <BLANKLINE>
        RangeMapDataset(start=0, stop=4, step=1)
          ││
          ││
          ││
          ╲╱
        int64[]
        <BLANKLINE>
          ││
          ││  BatchMapDataset(batch_size=2, drop_remainder=True)
          ││
          ╲╱
        int64[2]
    """
    graph = graph_of(ds)
    if path is not None:
        write_graph(graph, path)
    return _FORMS[".txt"](graph)


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes a graph to a file, as its ending says.

    Raises:
        ValueError: there is no such ending; nothing is written then.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMS:
        raise ValueError(f"path must end in one of {', '.join(_FORMS)}, got {str(path)!r}")
    write_text(path, _FORMS[path.suffix.lower()](graph))


def emit_graph(graph: Graph, destination: str) -> None:
    """Shows the graph of a pipeline whose first element has passed. A failure is logged, never
    raised.

    Args:
        graph: with what was seen of the elements.
        destination: empty: the text is logged at level INFO. Otherwise a directory, which is made
            if need be: the graph is written there as ``pipeline-<k>.txt``, ``.svg``, ``.html`` and
            ``.json``, with a ``k`` that is not in use. Without Jinja2, there are no pictures.
    """
    text = _FORMS[".txt"](graph)
    try:
        if destination:
            path = _write_all(Path(destination), graph)
            _log.info("The graph of the pipeline is in %s and beside it", path)
        else:
            _log.info("%s", text)
        if "google.colab" in sys.modules:  # whose cells do not show what is logged at this level
            print(text)
    except (ImportError, OSError, ValueError) as error:
        _log.warning("The graph of the pipeline could not be written to %r: %s", destination, error)


def _write_all(directory: Path, graph: Graph) -> Path:
    """Writes the graph in every form, those without pictures first; returns the text's path."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        path = directory / f"pipeline-{number}.txt"
        try:
            path.touch(exist_ok=False)  # takes the number: other processes may write here, too
            break
        except FileExistsError:
            pass
    for ending in (".txt", ".json", ".svg", ".html"):
        write_text(path.with_suffix(ending), _FORMS[ending](graph))
    return path
