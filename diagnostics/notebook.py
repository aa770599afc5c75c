"""The HTML that notebooks show for pipelines and for results about them: small pieces that refer to
nothing else.

Their text has the colour of the page around them and their lines are half transparent, so that they
can be read on light and on dark pages, by the system's or the notebook's setting. All that comes
from users is escaped. Without Jinja2, notebooks show the text of the same object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.dataset.descriptions.display import joined, length_text, stage_inputs
from gristmill.diagnostics.graph.stages import Graph, Stage, graph_of
from gristmill.diagnostics.html import html_or_text, html_table, render, shortened
from gristmill.diagnostics.units import rate_text, time_text
from gristmill.loader.data_loader import DataLoader

if TYPE_CHECKING:  # these show themselves by what is here
    from gristmill.diagnostics.diagnosis.verdict import Diagnosis
    from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary

_MAX_STAGES = 60
_MAX_NAME, _MAX_SPEC = 160, 300  # characters


def pipeline_html(pipeline: Any) -> str:
    """Returns the stages of a dataset or ``DataLoader``, from the sources down, with what is known
    without reading anything.
    """
    return html_or_text(lambda: _pipeline_html(pipeline), pipeline)


def _pipeline_html(pipeline: Any) -> str:
    output = pipeline._dataset if isinstance(pipeline, DataLoader) else pipeline
    text = repr(pipeline)
    if not _is_small(output):
        return render("notebook.html.j2", text=text)
    columns = [("Stage", "code"), ("Length", "whole"), ("Element", "code")]
    rows = [
        [f"{bars}{shortened(name, _MAX_NAME)}", length, shortened(spec, _MAX_SPEC)]
        for bars, name, length, spec in _rows(graph_of(pipeline))
    ]
    head = text if isinstance(pipeline, DataLoader) else text.partition("\n")[0].rstrip(":")
    return render("notebook.html.j2", head=head, table=html_table(columns, rows, frame=""))


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Returns a diagnosis: the verdict, what to do, and the stages, that with the largest share of
    waiting first.
    """

    def html() -> str:
        delays = [f"p{percent} {time_text(ns)}" for percent, ns in diagnosis.delay_ns.items()]
        facts = (
            f"{rate_text(diagnosis.elements_per_second)}; the consumer waited"
            f" {diagnosis.starved_ratio:.0%} of the time ({', '.join(delays)})"
        )
        stages = _stages(diagnosis.snapshot.summary)
        return render("notebook.html.j2", diagnosis=diagnosis, facts=facts, **stages)

    return html_or_text(html, diagnosis)


def summary_html(summary: ExecutionSummary) -> str:
    """Returns where the time went, stage by stage."""
    return html_or_text(lambda: render("notebook.html.j2", **_stages(summary)), summary)


def _stages(summary: ExecutionSummary) -> dict[str, Any]:
    """Returns the table of the stages, and lines below it."""
    nodes = sorted(
        summary.values(), key=lambda node: (-node.wait_time_ratio, -node.total_processing_time_ns)
    )
    left = len(nodes) - _MAX_STAGES
    columns = [
        ("Stage", "code"),
        ("Share of waiting", ""),
        ("Time of an element", ""),
        ("Elements", ""),
        ("Runs in", "whole"),
        ("Output", "code"),
    ]
    table = html_table(columns, [_stage(node) for node in nodes[:_MAX_STAGES]], frame="")
    more = [f"… and {left} more stages, with smaller shares"] if left > 0 else []
    return {"table": table, "remarks": [*more, *summary.remarks]}


def _stage(node: StageSummary) -> list[str]:
    share = f"{node.wait_time_ratio:.1%}" if node.wait_time_ratio or not node.is_prefetch else "–"
    return [
        shortened(node.name, _MAX_NAME),
        share,
        time_text(node.mean_processing_time_ns) if node.num_produced_elements else "–",
        f"{node.num_produced_elements:,}",
        node.place,
        shortened(node.output_spec, _MAX_SPEC),
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
