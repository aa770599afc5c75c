"""Pictures of pipelines: SVG, made here and needing nothing, and a page around it.

The sources are at the top, the output is at the bottom. Colours follow the reader's choice of light
or dark.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.dataset.descriptions.display import abbreviated, length_text
from gristmill.diagnostics.graph.stages import Graph, Notes, Stage, Weights
from gristmill.diagnostics.html_text import html_page, html_row, html_table, safe

_MAX_INPUTS = 12  # drawn side by side
_LINE_LENGTH = 46  # characters
_MAX_LINES = 4
_CHARACTER_WIDTH, _BOLD_WIDTH, _ID_WIDTH, _LEAST_WIDTH = 6.65, 7.9, 26, 190
_TITLE_HEIGHT, _LINE_HEIGHT, _RULE_HEIGHT = 20, 15, 9
_PADDING, _GAP_X, _GAP_Y, _MARGIN = 12, 28, 34, 16

_STYLE = """\
.gm-back{fill:#ffffff}
.gm-box{fill:#f6f8fa;stroke:#8c959f}
.gm-output{stroke-width:2}
.gm-more{fill:none;stroke:#8c959f;stroke-dasharray:4 4}
.gm-heat{fill:#e8590c}
.gm-edge{fill:none;stroke:#6e7781;stroke-width:1.5}
.gm-arrow{fill:#6e7781}
.gm-rule{stroke:#1f2328;stroke-opacity:.15}
.gm text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#424a53}
.gm .gm-title{font:600 13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1f2328}
.gm .gm-note{fill:#1f2328;font-weight:600}
.gm .gm-spec{fill:#033d8b}
@media (prefers-color-scheme:dark){
.gm-back{fill:#0d1117}
.gm-box{fill:#161b22;stroke:#6e7681}
.gm-more{stroke:#6e7681}
.gm-heat{fill:#f76707}
.gm-edge{stroke:#8b949e}
.gm-arrow{fill:#8b949e}
.gm-rule{stroke:#f0f6fc}
.gm text{fill:#b1bac4}
.gm .gm-title{fill:#f0f6fc}
.gm .gm-note{fill:#f0f6fc}
.gm .gm-spec{fill:#a5d6ff}
}"""

_PAGE_STYLE = """\
<style>
:root{color-scheme:light dark}
body{margin:24px;font:14px/1.5 system-ui,sans-serif;background:#ffffff;color:#1f2328}
.picture{overflow-x:auto;margin:16px 0}
table{border-collapse:collapse}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid #d0d7de}
td{font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
td:nth-child(1),td:nth-child(3),td:nth-child(4){white-space:nowrap}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#f0f6fc}th,td{border-color:#30363d}}
</style>"""


@dataclass
class _Box:
    """A stage as it is drawn; ``x`` is its middle, ``y`` its top, ``space`` the width of all that
    is drawn above it.
    """

    title: str
    tooltip: str = ""
    id: int | None = None  # of a stage; ``None`` for several stages that are not drawn
    parameters: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spec: list[str] = field(default_factory=list)
    weight: float | None = None
    inputs: list[_Box] = field(default_factory=list)
    # those of the inputs that are not drawn above another box
    above: list[_Box] = field(default_factory=list)
    x: float = 0
    y: float = 0
    space: float = 0

    @property
    def width(self) -> float:
        longest = max(map(len, ["", *self.parameters, *self.notes, *self.spec]))
        title = len(self.title) * _BOLD_WIDTH + _ID_WIDTH
        return max(_LEAST_WIDTH, 2 * _PADDING + max(title, longest * _CHARACTER_WIDTH))

    @property
    def height(self) -> float:
        num_lines = len(self.parameters) + len(self.notes) + len(self.spec)
        return 17 + _TITLE_HEIGHT + num_lines * _LINE_HEIGHT + (_RULE_HEIGHT if self.spec else 0)


def graph_svg(graph: Graph, notes: Notes = None, weights: Weights = None) -> str:
    """Returns a picture of the graph as SVG, to be put into a file or into a page.

    Args:
        graph: of ``graph_of``.
        notes: lines to show in the boxes of stages, by their numbers.
        weights: how warm the boxes of stages are, from 0 to 1, such as their share of the time.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph.stages import graph_of
        >>> graph_svg(graph_of(MapDataset.range(4)))[:42]
        '<svg xmlns="http://www.w3.org/2000/svg" cl'
    """
    boxes = _boxes(graph, notes or {}, weights or {})
    width, height = _place(boxes)
    edges = [edge for box in boxes for edge in _edges(box)]
    return svg_picture(
        width,
        height,
        "graph of the pipeline",
        [*edges, *[_drawn(box, is_output=not i) for i, box in enumerate(boxes)]],
    )


def svg_picture(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """Returns a picture as SVG: what is in it, in the colours of the reader's choice.

    Args:
        width: in pixels, as ``height``.
        height: of the picture.
        label: what it is, for screen readers.
        parts: elements of SVG, which may use the classes of the style and the marker ``gm-arrow``.
    """
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" class="gm" width="{width:.0f}"'
                f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
                f' aria-label="{safe(label)}">'
            ),
            f"<style>{_STYLE}</style>",
            (
                '<defs><marker id="gm-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
                ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path'
                ' class="gm-arrow" d="M0 0L8 4L0 8z"/></marker></defs>'
            ),
            f'<rect class="gm-back" width="{width:.0f}" height="{height:.0f}"/>',
            *parts,
            "</svg>",
        ]
    )


def _boxes(
    graph: Graph, notes: Mapping[int, Sequence[str]], weights: Mapping[int, float]
) -> list[_Box]:
    """Returns the boxes of the drawing, the output first, then depth first."""
    boxes: list[_Box] = []
    drawn: dict[int | str, _Box] = {}  # of stages
    stages = graph.by_id
    names = {
        i: name
        for stage in graph.stages
        for i, name in zip(stage.inputs, stage.input_names, strict=False)
    }
    todo: list[tuple[int | str, _Box | None]] = [(graph.stages[0].id, None)]
    while todo:
        what, consumer = todo.pop()
        box = drawn.get(what)
        if box is None:
            if isinstance(what, str):
                box = _Box(what)
            else:
                named = [f"component {names[what]}"] if what in names else []
                box = drawn[what] = _box(
                    stages, stages[what], [*named, *notes.get(what, ())], weights.get(what)
                )
                inputs = abbreviated(list(stages[what].inputs), _MAX_INPUTS, _left_out)
                todo.extend([(x, box) for x in reversed(inputs)])
            boxes.append(box)
            if consumer is not None:
                consumer.above.append(box)
        if consumer is not None:
            consumer.inputs.append(box)
    return boxes


def _left_out(num: int) -> str:
    return f"… {num} more"


def _box(
    stages: Mapping[int, Stage], stage: Stage, notes: Sequence[str], weight: float | None
) -> _Box:
    title = re.split(r"[^\w.]", stage.name, maxsplit=1)[0]
    parameters = stage.name[len(title) :]
    if parameters[:1] + parameters[-1:] == "()":
        parameters = parameters[1:-1]
    lines = _wrapped(parameters)
    if stage.length is not None and {stages[i].length for i in stage.inputs} != {stage.length}:
        lines.append(length_text(stage.length))
    tooltip = "\n".join([stage.name, *([stage.spec] if stage.spec else [])])
    return _Box(
        title or stage.name,
        tooltip,
        stage.id,
        lines,
        list(notes),
        _wrapped(stage.spec or ""),
        weight,
    )


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(text, _LINE_LENGTH, break_on_hyphens=False)
    return (
        lines
        if len(lines) <= _MAX_LINES
        else [*lines[: _MAX_LINES - 1], lines[_MAX_LINES - 1][: _LINE_LENGTH - 1] + "…"]
    )


def _place(boxes: list[_Box]) -> tuple[float, float]:
    """Gives every box its place; returns width and height of the picture.

    Each has a column to itself and to what is drawn above it, so that no two overlap.
    """
    for box in reversed(boxes):
        box.space = max(box.width, _space_above(box))
    boxes[0].x = _MARGIN + boxes[0].space / 2
    for box in boxes:
        left = box.x - _space_above(box) / 2
        for above in box.above:
            above.x = left + above.space / 2
            left += above.space + _GAP_X
    num_consumers = Counter([id(x) for box in boxes for x in box.inputs])
    boxes[0].y = -boxes[0].height
    todo = [boxes[0]]
    while todo:
        box = todo.pop()
        for x in box.inputs:
            x.y = min(x.y, box.y - _gap(box) - x.height)
            num_consumers[id(x)] -= 1
            if not num_consumers[id(x)]:
                todo.append(x)
    top = min([box.y for box in boxes])
    for box in boxes:
        box.y += _MARGIN - top
    return boxes[0].space + 2 * _MARGIN, 2 * _MARGIN - top


def _space_above(box: _Box) -> float:
    return sum([x.space for x in box.above]) + _GAP_X * max(0, len(box.above) - 1)


def _gap(consumer: _Box) -> float:
    is_straight = len(consumer.inputs) == len(consumer.above) == 1
    return _GAP_Y if is_straight else 2 * _GAP_Y


def _edges(consumer: _Box) -> list[str]:
    """Arrows from the inputs of ``consumer``."""
    edges = []
    step = min(28, consumer.width / (len(consumer.inputs) + 1))
    for i, box in enumerate(consumer.inputs):
        x, y = box.x, box.y + box.height
        to_x, to_y = consumer.x + (i - (len(consumer.inputs) - 1) / 2) * step, consumer.y
        bend = min(60, (to_y - y) / 2)
        path = (
            f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f}"
            f" {to_y:.1f}"
        )
        edges.append(f'<path class="gm-edge" marker-end="url(#gm-arrow)" d="{path}"/>')
    return edges


def _drawn(box: _Box, *, is_output: bool) -> str:
    left, right = box.x - box.width / 2, box.x + box.width / 2
    frame = (
        f'x="{left:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
        f' rx="{6 if box.inputs else 16}"'
    )
    if box.id is None:
        middle = f'x="{box.x:.1f}" y="{box.y + box.height / 2 + 4:.1f}" text-anchor="middle"'
        return f'<rect class="gm-more" {frame}/><text {middle}>{safe(box.title)}</text>'
    parts = [
        f'<g class="gm-stage" data-id="{box.id}"><title>{safe(box.tooltip)}</title>',
        f'<rect class="gm-box{" gm-output" if is_output else ""}" {frame}/>',
    ]
    if box.weight:
        parts.append(
            f'<rect class="gm-heat" {frame} fill-opacity="{0.45 * min(1, box.weight):.2f}"/>'
        )
    y = box.y + 3 + _TITLE_HEIGHT
    parts.append(
        f'<text class="gm-title" x="{left + _PADDING:.1f}" y="{y:.1f}">{safe(box.title)}</text>'
    )
    parts.append(
        f'<text class="gm-id" x="{right - _PADDING:.1f}" y="{y:.1f}"'
        f' text-anchor="end">{box.id}</text>'
    )
    y += 2
    for kind, lines in (
        ("gm-parameters", box.parameters),
        ("gm-note", box.notes),
        ("gm-spec", box.spec),
    ):
        if kind == "gm-spec" and lines:
            rule = f'x1="{left:.1f}" x2="{right:.1f}" y1="{y + 10:.1f}" y2="{y + 10:.1f}"'
            parts.append(f'<line class="gm-rule" {rule}/>')
            y += _RULE_HEIGHT
        for line in lines:
            y += _LINE_HEIGHT
            parts.append(
                f'<text class="{kind}" x="{left + _PADDING:.1f}" y="{y:.1f}">{safe(line)}</text>'
            )
    return "".join([*parts, "</g>"])


def graph_html(graph: Graph, notes: Notes = None, weights: Weights = None) -> str:
    """Returns a page with the picture and a table of the stages: one file that needs nothing else.

    Args:
        graph: of ``graph_of``.
        notes: lines to show in the boxes of stages, by their numbers.
        weights: how warm the boxes of stages are, from 0 to 1.
    """
    rows = []
    for stage in graph.stages:
        cells = [
            str(stage.id),
            stage.name,
            ", ".join(map(str, stage.inputs)),
            length_text(stage.length),
            stage.spec or "",
        ]
        if notes is not None:
            cells.append("; ".join(notes.get(stage.id, ())))
        rows.append(html_row(map(safe, cells)))
    titles = [
        "",
        "stage",
        "inputs",
        "length",
        "elements",
        *(["notes"] if notes is not None else []),
    ]
    body = [
        "<body>\n<h1>Pipeline</h1>",
        f'<div class="picture">\n{graph_svg(graph, notes, weights)}\n</div>',
        html_table([(title, "") for title in titles], rows),
        "</body>",
    ]
    return html_page("Pipeline", _PAGE_STYLE, "\n".join(body))
