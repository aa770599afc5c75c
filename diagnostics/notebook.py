"""The HTML that notebooks show for pipelines and for results about them: small pieces that refer to
nothing else.

Their text has the colour of the page around them and their lines are half transparent, so that they
can be read on light and on dark pages, by the system's or the notebook's setting. All that comes
from users is escaped. Without Jinja2, notebooks show the text of the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.dataset.descriptions.display import length_text, stage_inputs
from gristmill.diagnostics.graph.stages import graph_of
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
        [
            f"{row.bars}{shortened(row.text, _MAX_NAME)}",
            "" if row.is_again else length_text(row.stage.length),
            "" if row.is_again else shortened(row.stage.spec or "", _MAX_SPEC),
        ]
        for row in graph_of(pipeline).rows
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


def _is_small(pipeline: Any) -> bool:
    seen, todo = 0, [pipeline]
    while todo and seen <= _MAX_STAGES:
        todo += stage_inputs(todo.pop())
        seen += 1
    return seen <= _MAX_STAGES
