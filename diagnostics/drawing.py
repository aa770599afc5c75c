"""Pictures of pipelines as SVG, and a page around them.

The sources are at the top, the output is at the bottom. Colours follow the reader's choice of light
or dark.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.dataset.descriptions.display import abbreviated, length_text
from gristmill.diagnostics.graph.stages import Graph, Stage
from gristmill.diagnostics.html import html_table, render
from gristmill.diagnostics.table import Column

_MAX_INPUTS = 12  # drawn side by side
_LINE_LENGTH = 46  # characters
_MAX_LINES = 4
_CHARACTER_WIDTH, _BOLD_WIDTH, _ID_WIDTH, _LEAST_WIDTH = 6.65, 7.9, 26, 190
_TITLE_HEIGHT, _LINE_HEIGHT, _RULE_HEIGHT = 20, 15, 9
_PADDING, _GAP_X, _GAP_Y, _MARGIN = 12, 28, 34, 16


@dataclass
class GraphBox:
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
    colour: str = ""  # a class
    inputs: list[GraphBox] = field(default_factory=list)
    # those of the inputs that are not drawn above another box
    above: list[GraphBox] = field(default_factory=list)
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

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def text_x(self) -> float:
        return self.left + _PADDING

    @property
    def id_x(self) -> float:
        return self.right - _PADDING

    @property
    def title_y(self) -> float:
        return self.y + 3 + _TITLE_HEIGHT

    @property
    def rule_y(self) -> float:
        num_above = len(self.parameters) + len(self.notes)
        return self.title_y + 12 + num_above * _LINE_HEIGHT

    @property
    def lines(self) -> Iterator[tuple[str, float, str]]:
        """The class, the place and the text of each line below the title."""
        y = self.title_y + 2
        above = [("gm-parameters", x) for x in self.parameters] + [
            ("gm-note", x) for x in self.notes
        ]
        for kind, line in above:
            y += _LINE_HEIGHT
            yield kind, y, line
        y += _RULE_HEIGHT
        for line in self.spec:
            y += _LINE_HEIGHT
            yield "gm-spec", y, line


@dataclass(frozen=True)
class GraphPicture:
    """A drawn graph: its size in pixels, its boxes, the output first, and the paths of arrows."""

    width: float
    height: float
    boxes: list[GraphBox]
    edges: list[str]


def graph_svg(
    graph: Graph,
    notes: Mapping[int, Sequence[str]] | None = None,
    weights: Mapping[int, float] | None = None,
) -> str:
    """Returns a picture of the graph as SVG; see ``graph_picture``.

    Raises:
        ImportError: Jinja2 is not installed, which the extra ``view`` installs.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> from gristmill.diagnostics.graph.stages import graph_of
        >>> graph_svg(graph_of(MapDataset.range(4)))[:42]
        '<svg xmlns="http://www.w3.org/2000/svg" cl'
    """
    return render("graph.svg.j2", picture=graph_picture(graph, notes, weights))


def graph_picture(
    graph: Graph,
    notes: Mapping[int, Sequence[str]] | None = None,
    weights: Mapping[int, float] | None = None,
    colours: Mapping[int, str] | None = None,
) -> GraphPicture:
    """Returns a graph as it is drawn, for the template ``graph.svg.j2``.

    Args:
        graph: of ``graph_of``.
        notes: lines to show in the boxes of stages, by their numbers.
        weights: how warm the boxes of stages are, from 0 to 1, such as their share of the time.
        colours: classes of stages.
    """
    boxes = _boxes(graph, notes or {}, weights or {}, colours or {})
    width, height = _place(boxes)
    return GraphPicture(width, height, boxes, [edge for box in boxes for edge in _edges(box)])


def _boxes(
    graph: Graph,
    notes: Mapping[int, Sequence[str]],
    weights: Mapping[int, float],
    colours: Mapping[int, str],
) -> list[GraphBox]:
    """Returns the boxes of the drawing, the output first, then depth first."""
    boxes: list[GraphBox] = []
    drawn: dict[int | str, GraphBox] = {}  # of stages
    stages = graph.by_id
    names = {
        i: name
        for stage in graph.stages
        for i, name in zip(stage.inputs, stage.input_names, strict=False)
    }
    todo: list[tuple[int | str, GraphBox | None]] = [(graph.stages[0].id, None)]
    while todo:
        what, consumer = todo.pop()
        box = drawn.get(what)
        if box is None:
            if isinstance(what, str):
                box = GraphBox(what)
            else:
                box = drawn[what] = _box(stages, stages[what])
                box.notes = [f"component {names[what]}"] if what in names else []
                box.notes += notes.get(what, ())
                box.weight, box.colour = weights.get(what), colours.get(what, "")
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


def _box(stages: Mapping[int, Stage], stage: Stage) -> GraphBox:
    title = re.split(r"[^\w.]", stage.name, maxsplit=1)[0]
    parameters = stage.name[len(title) :]
    if parameters[:1] + parameters[-1:] == "()":
        parameters = parameters[1:-1]
    lines = _wrapped(parameters)
    if stage.length is not None and {stages[i].length for i in stage.inputs} != {stage.length}:
        lines.append(length_text(stage.length))
    tooltip = "\n".join(filter(None, [stage.name, stage.spec]))
    spec = _wrapped(stage.spec or "")
    return GraphBox(title or stage.name, tooltip, stage.id, parameters=lines, spec=spec)


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(text, _LINE_LENGTH, break_on_hyphens=False)
    return (
        lines
        if len(lines) <= _MAX_LINES
        else [*lines[: _MAX_LINES - 1], lines[_MAX_LINES - 1][: _LINE_LENGTH - 1] + "…"]
    )


def _place(boxes: list[GraphBox]) -> tuple[float, float]:
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


def _space_above(box: GraphBox) -> float:
    return sum([x.space for x in box.above]) + _GAP_X * max(0, len(box.above) - 1)


def _gap(consumer: GraphBox) -> float:
    is_straight = len(consumer.inputs) == len(consumer.above) == 1
    return _GAP_Y if is_straight else 2 * _GAP_Y


def _edges(consumer: GraphBox) -> list[str]:
    """Returns the paths of arrows from the inputs of ``consumer``."""
    edges = []
    step = min(28, consumer.width / (len(consumer.inputs) + 1))
    for i, box in enumerate(consumer.inputs):
        x, y = box.x, box.y + box.height
        to_x, to_y = consumer.x + (i - (len(consumer.inputs) - 1) / 2) * step, consumer.y
        bend = min(60, (to_y - y) / 2)
        edges.append(
            f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f}"
            f" {to_y:.1f}"
        )
    return edges


def graph_html(graph: Graph) -> str:
    """Returns a page with the picture and a table of the stages: one file that needs nothing
    else.
    """
    table = html_table(_COLUMNS, graph.stages)
    picture = graph_picture(graph)
    return render("graph.html.j2", title="Pipeline", picture=picture, table=table)


_COLUMNS = (
    Column("", lambda stage: stage.id),
    Column("stage", lambda stage: stage.name),
    Column("inputs", lambda stage: ", ".join(map(str, stage.inputs))),
    Column("length", lambda stage: length_text(stage.length)),
    Column("elements", lambda stage: stage.spec, missing=""),
)
