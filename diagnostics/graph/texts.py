"""The graph of a pipeline as a text, for Graphviz, and as JSON."""

from __future__ import annotations

import json

from gristmill.dataset.descriptions.display import abbreviated, length_text
from gristmill.diagnostics.graph.stages import Graph

_MAX_LINES = 60
_UNKNOWN = "(not known before the first element)"


def graph_text(graph: Graph) -> str:
    """Returns the graph as a text that is read from the sources down, with the look of the elements
    after every stage.

    The stage that joins several branches is below them; a stage with several consumers is drawn
    once.

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
    for row in graph.rows:
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


def graph_dot(graph: Graph) -> str:
    """Returns the graph in the language of Graphviz.

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
        label = "\n".join(filter(None, [stage.name, stage.spec]))
        lines.append(f"  s{stage.id} [label={json.dumps(label, ensure_ascii=False)}];")
        for i, name in graph.inputs_of(stage):
            edge = f" [label={json.dumps(name, ensure_ascii=False)}]" if name else ""
            lines.append(f"  s{i} -> s{stage.id}{edge};")
    return "\n".join([*lines, "}"])


def graph_json(graph: Graph) -> str:
    """Returns the graph as JSON: ``{"stages": [{"id": 0, "name": …, "inputs": […], "spec": …,
    "length": …}, …]}``.
    """
    stages = [
        {name: x for name, x in vars(stage).items() if name != "input_names" or x}
        for stage in graph.stages
    ]
    return json.dumps({"stages": stages}, indent=2, ensure_ascii=False)
