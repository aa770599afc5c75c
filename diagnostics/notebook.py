"""The HTML that notebooks show for pipelines and for results about them: small pieces that refer to
nothing else.

Their text has the colour of the page around them and their lines are half transparent, so that they
can be read on light and on dark pages, by the system's or the notebook's setting. All that comes
from users is escaped. Without Jinja2, notebooks show the text of the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.dataset.descriptions.display import length_text, stage_inputs
from gristmill.diagnostics.graph.stages import graph_of, last_stage
from gristmill.diagnostics.html import html_or_text, html_table, render, shortened
from gristmill.diagnostics.table import Column
from gristmill.diagnostics.units import rate_text, time_text
from gristmill.loader.data_loader import DataLoader

if TYPE_CHECKING:  # these show themselves by what is here
    from gristmill.diagnostics.diagnosis.verdict import Diagnosis
    from gristmill.diagnostics.runtime.summary import ExecutionSummary

_MAX_STAGES = 60
_MAX_NAME, _MAX_SPEC = 160, 300  # characters


def pipeline_html(pipeline: Any) -> str:
    """Returns the stages of a dataset or ``DataLoader``, from the sources down, with what is known
    without reading anything.
    """
    return html_or_text(lambda: _pipeline_html(pipeline), pipeline)


def _pipeline_html(pipeline: Any) -> str:
    output = last_stage(pipeline)
    text = repr(pipeline)
    if not _is_small(output):
        return render("notebook.html.j2", text=text)
    head = text if isinstance(pipeline, DataLoader) else text.partition("\n")[0].rstrip(":")
    table = html_table(_OF_GRAPH, graph_of(pipeline).rows, frame="")
    return render("notebook.html.j2", head=head, table=table)


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
    nodes = summary.ranked
    left = len(nodes) - _MAX_STAGES
    table = html_table(_OF_SUMMARY, nodes[:_MAX_STAGES], frame="")
    more = [f"… and {left} more stages, with smaller shares"] if left > 0 else []
    return {"table": table, "remarks": [*more, *summary.remarks]}


_OF_GRAPH = (
    Column("Stage", lambda row: f"{row.bars}{shortened(row.text, _MAX_NAME)}", kind="code"),
    Column(
        "Length", lambda row: "" if row.is_again else length_text(row.stage.length), kind="whole"
    ),
    Column(
        "Element",
        lambda row: "" if row.is_again else shortened(row.stage.spec or "", _MAX_SPEC),
        kind="code",
    ),
)
_OF_SUMMARY = (
    Column("Stage", lambda x: shortened(x.name, _MAX_NAME), kind="code"),
    Column("Share of waiting", lambda x: x.share_text),
    Column(
        "Time of an element",
        lambda x: x.mean_processing_time_ns if x.num_produced_elements else None,
        time_text,
        missing="–",
    ),
    Column("Elements", lambda x: x.num_produced_elements, "{:,}".format),
    Column("Runs in", lambda x: x.place, kind="whole"),
    Column("Output", lambda x: shortened(x.output_spec, _MAX_SPEC), kind="code"),
)


def _is_small(pipeline: Any) -> bool:
    seen, todo = 0, [pipeline]
    while todo and seen <= _MAX_STAGES:
        todo += stage_inputs(todo.pop())
        seen += 1
    return seen <= _MAX_STAGES
