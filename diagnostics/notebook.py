"""The HTML that notebooks show for pipelines and for results about them: small pieces that refer to
nothing else.

Their text has the colour of the page around them and their lines are half transparent, so that they
can be read on light and on dark pages, by the system's or the notebook's setting. All that comes
from users is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.dataset.descriptions.display import joined, length_text, stage_inputs
from gristmill.diagnostics.graph.stages import Graph, Stage, graph_of
from gristmill.diagnostics.html_text import safe, shortened
from gristmill.diagnostics.units import rate_text, time_text
from gristmill.loader.data_loader import DataLoader

if TYPE_CHECKING:  # these show themselves by what is here
    from gristmill.diagnostics.diagnosis.verdict import Diagnosis
    from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary

_MAX_STAGES = 60
_MAX_NAME, _MAX_SPEC = 160, 300  # characters
_LINE = "1px solid rgba(128,128,128,.45)"
_BOX = 'style="font-size:13px;line-height:1.45;color:inherit;max-width:100%;overflow-x:auto"'
_TABLE = (
    'style="border-collapse:collapse;font-size:13px;color:inherit;background:none;margin:6px 0"'
)
_CELL = (
    "padding:3px 14px 3px 0;text-align:left;vertical-align:top;border:0;"
    f"border-top:{_LINE};background:none;color:inherit"
)
_CODE = (
    "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;white-space:pre-wrap;"
    "overflow-wrap:anywhere"
)
_SOFT = "opacity:.75"


def pipeline_html(pipeline: Any) -> str:
    """Returns the stages of a dataset or ``DataLoader``, from the sources down, with what is known
    without reading anything.
    """
    output = pipeline._dataset if isinstance(pipeline, DataLoader) else pipeline
    text = repr(pipeline)
    if not _is_small(output):
        return f'<div {_BOX}><div style="{_CODE}">{safe(text)}</div></div>'
    head = text if isinstance(pipeline, DataLoader) else text.partition("\n")[0].rstrip(":")
    graph = graph_of(pipeline)
    rows = [
        [
            _code(f"{bars}{shortened(name, _MAX_NAME)}"),
            _whole(length),
            _code(shortened(spec, _MAX_SPEC)),
        ]
        for bars, name, length, spec in _rows(graph)
    ]
    return f"<div {_BOX}><b>{safe(head)}</b>{_table(('Stage', 'Length', 'Element'), rows)}</div>"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Returns a diagnosis: the verdict, what to do, and the stages, that with the largest share of
    waiting first.
    """
    advice = "".join([f"<li>{safe(text)}</li>" for text in diagnosis.recommendations])
    delays = ", ".join(
        [f"p{percent} {time_text(delay)}" for percent, delay in diagnosis.delay_ns.items()]
    )
    facts = (
        f"{rate_text(diagnosis.elements_per_second)}; the consumer waited"
        f" {diagnosis.starved_ratio:.0%} of the time ({delays})"
    )
    return (
        f'<div {_BOX}><div style="padding-left:10px;border-left:4px solid'
        f' #c4591f"><b>{safe(diagnosis.sentence)}</b><div style="{_SOFT}">{safe(facts)}</div>'
        + (f'<ol style="margin:4px 0;padding-left:22px">{advice}</ol>' if advice else "")
        + f"</div>{_stages(diagnosis.snapshot.summary)}</div>"
    )


def summary_html(summary: ExecutionSummary) -> str:
    """Returns where the time went, stage by stage."""
    return f"<div {_BOX}>{_stages(summary)}</div>"


def _stages(summary: ExecutionSummary) -> str:
    nodes = sorted(
        summary.values(), key=lambda node: (-node.wait_time_ratio, -node.total_processing_time_ns)
    )
    left = len(nodes) - _MAX_STAGES
    titles = ("Stage", "Share of waiting", "Time of an element", "Elements", "Runs in", "Output")
    table = _table(titles, [_stage(node) for node in nodes[:_MAX_STAGES]])
    more = [f"… and {left} more stages, with smaller shares"] if left > 0 else []
    return table + "".join(
        [f'<div style="{_SOFT}">{safe(line)}</div>' for line in [*more, *summary.remarks]]
    )


def _stage(node: StageSummary) -> list[str]:
    share = f"{node.wait_time_ratio:.1%}" if node.wait_time_ratio or not node.is_prefetch else "–"
    return [
        _code(shortened(node.name, _MAX_NAME)),
        share,
        time_text(node.mean_processing_time_ns) if node.num_produced_elements else "–",
        f"{node.num_produced_elements:,}",
        _whole(node.place),
        _code(shortened(node.output_spec, _MAX_SPEC)),
    ]


def _rows(graph: Graph) -> list[tuple[str, str, str, str]]:
    """Returns the bars before the name of a stage, the name, its length and its elements, from the
    sources down.
    """
    texts: dict[str, tuple[str, str, str]] = {}
    rows = []
    for line in _lines(graph.by_id, graph.stages[0].id, texts):
        key = line.lstrip("│├┌─ ")
        rows.append((line.removesuffix(key), *texts[key]))
    return rows


def _lines(
    stages: Mapping[int, Stage], output: int, texts: dict[str, tuple[str, str, str]]
) -> list[str]:
    """Returns a line for each stage, with a key in place of its name; one that several draw from
    has one line, and others refer to it.
    """
    chain: list[Stage] = []
    above: Sequence[int] = (output,)
    while len(above) == 1 and f"{above[0]}" not in texts:
        stage = stages[above[0]]
        texts[f"{stage.id}"] = stage.name, length_text(stage.length), stage.spec or ""
        chain.append(stage)
        above = stage.inputs
    if len(above) == 1:
        texts[f"{above[0]}'"] = f"{stages[above[0]].name}  (as above)", "", ""
        lines = [f"{above[0]}'"]
    else:
        lines = joined([_lines(stages, i, texts) for i in above])
    return lines + [f"{stage.id}" for stage in chain[::-1]]


def _is_small(pipeline: Any) -> bool:
    seen, todo = 0, [pipeline]
    while todo and seen <= _MAX_STAGES:
        todo += stage_inputs(todo.pop())
        seen += 1
    return seen <= _MAX_STAGES


def _code(text: str) -> str:
    return f'<span style="{_CODE}">{safe(text)}</span>'


def _whole(text: str) -> str:
    return f'<span style="white-space:nowrap">{safe(text)}</span>'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(
        [
            f'<th style="{_CELL};border-top:0;font-weight:600;{_SOFT}">{title}</th>'
            for title in titles
        ]
    )
    body = "".join(
        [
            "<tr>" + "".join([f'<td style="{_CELL}">{cell}</td>' for cell in row]) + "</tr>"
            for row in rows
        ]
    )
    return f"<table {_TABLE}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
