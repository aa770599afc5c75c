"""The graph of a pipeline as a text, for Graphviz, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.dataset.descriptions.display import abbreviated, joined, length_text, named
from gristmill.diagnostics.graph import Graph, Notes, Stage, Weights

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
        >>> from gristmill.diagnostics.graph import graph_of
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
    lines = [
        "Grain Dataset graph:",
        "",
        *_lines(graph.with_specs(specs or {}), _shown_with_spec, [""]),
    ]
    return "\n".join([line.rstrip() for line in lines]).rstrip()


def _shown_with_spec(chain: list[Stage]) -> list[str]:
    lines = []
    for stage in chain:
        name = f"  ││  {stage.name}" if stage.inputs else "  ││"
        lines += [] if stage.inputs else [stage.name]
        lines += ["  ││", name, "  ││", "  ╲╱", stage.spec or _UNKNOWN, ""]
    return lines


def stage_lines(graph: Graph) -> list[str]:
    """Returns the stages of a graph from the sources down, one to a line, with lengths and the look
    of elements where these change. Long pipelines are abbreviated in the middle.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph import graph_of
        >>> print(
        ...     "\\n".join(stage_lines(graph_of(MapDataset.range(4).batch(2, drop_remainder=True))))
        ... )
        RangeMapDataset(start=0, stop=4, step=1)  4 elements  int64[]
        BatchMapDataset(batch_size=2, drop_remainder=True)  2 elements  int64[2]
    """
    lines = _lines(graph, _shown_in_a_line, [])
    return abbreviated(lines, _MAX_LINES, "… {} more lines …".format)


def _shown_in_a_line(chain: list[Stage]) -> list[str]:
    lines = []
    length, spec = "", None
    for stage in chain:
        texts = [stage.name]
        if (now := length_text(stage.length)) not in ("", length):
            texts.append(now)
            length = now
        if stage.spec not in (None, spec):
            texts.append(str(stage.spec))
            spec = stage.spec
        lines.append("  ".join(texts))
    return lines


def _lines(graph: Graph, shown: Callable[[list[Stage]], list[str]], gap: list[str]) -> list[str]:
    """Returns the lines of a graph.

    Args:
        graph: of ``graph_of``.
        shown: the lines of stages of which each is the only consumer of the one before it.
        gap: lines after a stage that is shown elsewhere.
    """
    stages = graph.by_id
    drawn: set[int] = set()

    def upstream(output: int) -> list[str]:
        chain: list[Stage] = []
        above: tuple[int, ...] = (output,)
        while len(above) == 1 and above[0] not in drawn:
            chain.append(stages[above[0]])
            drawn.add(above[0])
            above = chain[-1].inputs
        if len(above) == 1:
            lines = [f"{stages[above[0]].name}  (as above)", *gap]
        else:
            names = chain[-1].input_names or ("",) * len(above)
            inputs = zip(above, names, strict=True)
            lines = joined([named(upstream(stage), name) for stage, name in inputs])
        return [*lines, *shown(chain[::-1])]

    return upstream(graph.stages[0].id)


def graph_dot(graph: Graph, notes: Notes = None, weights: Weights = None) -> str:
    """Returns the graph in the language of Graphviz.

    Args:
        graph: of ``graph_of``.
        notes: lines to show with stages, by their numbers.
        weights: how strongly to colour stages, from 0 to 1.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph import graph_of
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
        label = "\n".join(
            [stage.name, *([stage.spec] if stage.spec else []), *(notes or {}).get(stage.id, ())]
        )
        colour = (
            f', fillcolor="0.06 {0.7 * weights[stage.id]:.2f} 1.00"'
            if weights and stage.id in weights
            else ""
        )
        lines.append(f"  s{stage.id} [label={json.dumps(label, ensure_ascii=False)}{colour}];")
        names = stage.input_names or ("",) * len(stage.inputs)
        for i, name in zip(stage.inputs, names, strict=True):
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
        stages.append(
            {**vars(stage), "inputs": list(stage.inputs), "input_names": list(stage.input_names)}
        )
        if not stage.input_names:
            del stages[-1]["input_names"]
        if notes is not None:
            stages[-1]["notes"] = list(notes.get(stage.id, ()))
        if weights is not None:
            stages[-1]["weight"] = weights.get(stage.id)
    return json.dumps({"stages": stages}, indent=2, ensure_ascii=False)
