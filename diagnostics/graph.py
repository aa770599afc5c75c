"""A pipeline as a graph: its stages, what each draws from, and what the elements look like after it.

Nothing is run for it. What it becomes is in ``graph_texts`` and ``drawing``; here is also where that goes.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.telling.display import stage_inputs, stage_length, stage_name
from gristmill.diagnostics.files import write_text
from gristmill.diagnostics.spec_text import static_spec_text
from gristmill.loader.data_loader import DataLoader
from gristmill.loader.iterator import DataLoaderIterator

Notes: TypeAlias = Mapping[int, Sequence[str]] | None  # lines about stages, by their numbers
Weights: TypeAlias = Mapping[int, float] | None  # in [0, 1], how much a stage is to catch the eye

_log = logging.getLogger("gristmill")


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Args:
        id: its number: 0 for the output, then depth first, the first input first.
        name: what it is, with its parameters.
        inputs: the numbers of the stages that it draws from.
        spec: what the elements after it look like, as ``spec_text`` says it; ``None`` if that is not known.
        length: number of its elements, if it has one.
    """

    id: int
    name: str
    inputs: tuple[int, ...] = ()
    spec: str | None = None
    length: int | None = None


@dataclass(frozen=True)
class Graph:
    """The stages of a pipeline, the output first."""

    stages: tuple[Stage, ...]

    @property
    def by_id(self) -> dict[int, Stage]:
        """The stages by their numbers."""
        return {stage.id: stage for stage in self.stages}

    def with_specs(self, specs: Mapping[int, str]) -> Graph:
        """The same graph, with what was seen of the elements after some of the stages."""
        return Graph(tuple([replace(stage, spec=specs.get(stage.id) or stage.spec) for stage in self.stages]))


def graph_of(pipeline: Any) -> Graph:
    """Returns the graph of a dataset, an iterator, a ``DataLoader`` or its iterator. Nothing is run, and no iterator made.

    A dataset that several stages draw from is one stage. What runs in worker threads and processes belongs to it, and so do
    the datasets of an interleave, and a dataset that is the source of another one.

    Raises:
        TypeError: ``pipeline`` is none of these.

    Example:
        >>> for stage in graph_of(MapDataset.range(4).batch(2, drop_remainder=True)).stages:
        ...     print(stage.id, stage.name, stage.inputs, stage.spec)
        0 BatchMapDataset(batch_size=2, drop_remainder=True) (1,) int64[2]
        1 RangeMapDataset(start=0, stop=4, step=1) () int64[]
    """
    output = pipeline
    if isinstance(pipeline, DataLoader):
        output = pipeline._dataset
    elif isinstance(pipeline, DataLoaderIterator):
        output = pipeline._iterator
    if not isinstance(output, DatasetNode | DatasetIterator):
        raise TypeError(
            "pipeline must be a dataset, a DataLoader or an iterator of one of them, "
            f"got {shown(pipeline)} of type {type(pipeline).__name__}"
        )
    nodes: list[Any] = []
    ids: dict[int, int] = {}
    todo = [output]
    while todo:
        node = todo.pop()
        if id(node) not in ids:
            ids[id(node)] = len(nodes)
            nodes.append(node)
            todo.extend(reversed(stage_inputs(node)))
    inputs = [tuple([ids[id(x)] for x in stage_inputs(node)]) for node in nodes]
    unknown = _made_by_running(nodes, inputs)
    return Graph(
        tuple(
            [
                Stage(i, stage_name(node), inputs[i], None if i in unknown else static_spec_text(node), stage_length(node))
                for i, node in enumerate(nodes)
            ]
        )
    )


def _made_by_running(nodes: list[Any], inputs: list[tuple[int, ...]]) -> set[int]:
    """The stages after an interleave of datasets that a ``MapDataset`` makes: to describe them, one would have to be made."""
    found = {i for i, node in enumerate(nodes) if isinstance(vars(node).get("_datasets"), MapDataset)}
    is_growing = bool(found)
    while is_growing:
        before = len(found)
        found |= {i for i in range(len(nodes)) if not found.isdisjoint(inputs[i])}
        is_growing = len(found) > before
    return found


def visualize(ds: Any, path: str | os.PathLike[str] | None = None) -> str:
    """Returns the graph of a pipeline as a text, from the sources down, with what elements look like after each stage.

    Nothing is run: what elements look like is shown as far as sources and transformations say it (see ``get_element_spec``).

    Args:
        ds: a dataset, an iterator, a ``DataLoader`` or its iterator.
        path: a file to write the graph to as well, as its ending says: ``.txt``, ``.svg`` or ``.html`` (a picture),
            ``.dot`` (for Graphviz) or ``.json``. An existing file is replaced.

    Raises:
        TypeError: ``ds`` is none of these.
        ValueError: ``path`` has another ending; nothing is written then.

    Example:
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
    return _forms()[".txt"](graph)


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes a graph to a file, as its ending says.

    Raises:
        ValueError: there is no such ending; nothing is written then.
    """
    path = Path(path)
    forms = _forms()
    if path.suffix.lower() not in forms:
        raise ValueError(f"path must end in one of {', '.join(forms)}, got {str(path)!r}")
    write_text(path, forms[path.suffix.lower()](graph))


def emit_graph(graph: Graph, specs: Mapping[int, str], destination: str) -> None:
    """Shows the graph of a pipeline whose first element has passed. A failure is logged, never raised.

    Args:
        graph: of ``graph_of``.
        specs: what was seen of the elements, by the numbers of the stages.
        destination: empty: the text is logged at level INFO. Otherwise a directory, which is made if need be: the graph is
            written there as ``pipeline-<k>.txt``, ``.svg``, ``.html`` and ``.json``, with a ``k`` that is not in use.
    """
    graph = graph.with_specs(specs)
    text = _forms()[".txt"](graph)
    try:
        if destination:
            _log.info("The graph of the pipeline is in %s and beside it", _write_all(Path(destination), graph))
        else:
            _log.info("%s", text)
        if "google.colab" in sys.modules:  # whose cells do not show what is logged at this level
            print(text)
    except (OSError, ValueError) as error:
        _log.warning("The graph of the pipeline could not be written to %r: %s", destination, error)


def _write_all(directory: Path, graph: Graph) -> Path:
    """Writes the graph in every form; returns the text's path."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        path = directory / f"pipeline-{number}.txt"
        try:
            path.touch(exist_ok=False)  # takes the number: other processes may write here, too
            break
        except FileExistsError:
            pass
    for ending in (".svg", ".html", ".json", ".txt"):
        write_text(path.with_suffix(ending), _forms()[ending](graph))
    return path


def _forms() -> dict[str, Callable[[Graph], str]]:
    """What writes a graph, by the ending of the file."""
    from gristmill.diagnostics.drawing import graph_html, graph_svg
    from gristmill.diagnostics.graph_texts import graph_dot, graph_json, graph_text

    return {".dot": graph_dot, ".html": graph_html, ".json": graph_json, ".svg": graph_svg, ".txt": graph_text}
