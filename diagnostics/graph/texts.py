"""The graph of a pipeline as a text, for Graphviz, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.descriptions.display import abbreviated, length_text
from gristmill.diagnostics.graph.stages import Graph, Notes, Weights

_MAX_LINES = 60
_UNKNOWN = "(not known before the first element)"


def graph_text(graph: Graph, specs: Mapping[int, str] | None = None) -> str:
    """Returns the graph as a text that is read from the sources down, with the look of the elements
    after every stage.

    The stage that joins several branches is below them; a stage with several consumers is drawn
    once.

    Args:
        graph: of ``graph_of``.
        specs: what was seen of the elements, by the numbers of the stages.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph.stages import graph_of
        >>> print(graph_text(graph_of(MapDataset.range(4).batch(2, drop_remainder=True))))
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
    lines = ["Grain Dataset graph:", ""]
    for row in graph.with_specs(specs or {}).rows:
        arrow = ["  ││", f"  ││  {row.text}" if row.stage.inputs else "  ││", "  ││", "  ╲╱"]
        texts = [] if row.stage.inputs and not row.is_again else [row.text]
        texts += [] if row.is_again else [*arrow, row.stage.spec or _UNKNOWN]
        first, *others = [*texts, ""]
        lines += [row.bars + first, *[row.more_bars + text for text in others]]
    return "\n".join([line.rstrip() for line in lines]).rstrip()


def stage_lines(graph: Graph) -> list[str]:
    """Returns the stages of a graph from the sources down, one to a line, with lengths and the look
    of elements where these change. Long pipelines are abbreviated in the middle.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph.stages import graph_of
        >>> print(
        ...     "\\n".join(stage_lines(graph_of(MapDataset.range(4).batch(2, drop_remainder=True))))
        ... )
        RangeMapDataset(start=0, stop=4, step=1)  4 elements  int64[]
        BatchMapDataset(batch_size=2, drop_remainder=True)  2 elements  int64[2]
    """
    lines, length, spec = [], "", ""
    for row in graph.rows:
        texts = [row.bars + row.text]
        if row.begins:
            length, spec = "", ""
        if not row.is_again:
            now, look = length_text(row.stage.length), row.stage.spec or ""
            texts += [
                text for text, before in ((now, length), (look, spec)) if text not in ("", before)
            ]
            length, spec = now or length, look or spec
        lines.append("  ".join(texts))
    return abbreviated(lines, _MAX_LINES, "… {} more lines …".format)


def graph_dot(graph: Graph, notes: Notes = None, weights: Weights = None) -> str:
    """Returns the graph in the language of Graphviz.

    Args:
        graph: of ``graph_of``.
        notes: lines to show with stages, by their numbers.
        weights: how strongly to colour stages, from 0 to 1.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph.stages import graph_of
        >>> print(graph_dot(graph_of(MapDataset.range(4))))
        digraph pipeline {
          node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];
          s0 [label="RangeMapDataset(start=0, stop=4, step=1)\\nint64[]"];
        }
    """
    lines = [
        "digraph pipeline {",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
    ]
    for stage in graph.stages[::-1]:
        texts = [stage.name, stage.spec or "", *(notes or {}).get(stage.id, ())]
        label = json.dumps("\n".join(filter(None, texts)), ensure_ascii=False)
        weight = (weights or {}).get(stage.id)
        colour = "" if weight is None else f', fillcolor="0.06 {0.7 * weight:.2f} 1.00"'
        lines.append(f"  s{stage.id} [label={label}{colour}];")
        for i, name in graph.inputs_of(stage):
            edge = f" [label={json.dumps(name, ensure_ascii=False)}]" if name else ""
            lines.append(f"  s{i} -> s{stage.id}{edge};")
    return "\n".join([*lines, "}"])


def graph_json(graph: Graph, notes: Notes = None, weights: Weights = None) -> str:
    """Returns the graph as JSON: ``{"stages": [{"id": 0, "name": …, "inputs": […], "spec": …,
    "length": …}, …]}``.

    Args:
        graph: of ``graph_of``.
        notes: lines about stages, by their numbers: ``"notes"``.
        weights: ``"weight"``.
    """
    stages: list[dict[str, Any]] = []
    for stage in graph.stages:
        found = {**vars(stage)}
        if not stage.input_names:
            del found["input_names"]
        if notes is not None:
            found["notes"] = notes.get(stage.id, ())
        if weights is not None:
            found["weight"] = weights.get(stage.id)
        stages.append(found)
    return json.dumps({"stages": stages}, indent=2, ensure_ascii=False)
