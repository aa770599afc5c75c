"""A diagnosis as a page: one file that needs no network and no script, for the screen, the
telephone and the printer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.diagnostics.diagnosis.verdict import Diagnosis
from gristmill.diagnostics.drawing import GraphPicture, graph_picture
from gristmill.diagnostics.graph.stages import Graph, Stage
from gristmill.diagnostics.html import HtmlCell, html_table, macros, render, shortened
from gristmill.diagnostics.report.threads import (
    WAITING,
    ThreadTime,
    legend,
    short_name,
    thread_times,
)
from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary, WorkerLoad
from gristmill.diagnostics.table import Column
from gristmill.diagnostics.units import size_text, time_text

if TYPE_CHECKING:
    from markupsafe import Markup

_NUM_COLOURS = 7
_WARNING = "c2"  # the orange of the seven colours
_MAX_STAGES = 100  # in the table
_MAX_DRAWN = 150  # in the picture
_MAX_NAME, _MAX_SPEC = 160, 400  # characters


def report_html(diagnosis: Diagnosis, title: str = "Pipeline report") -> str:
    """Returns a page that shows a diagnosis: the verdict, the pipeline as a graph, its stages, and
    the time of every thread.

    It is one file without scripts that refers to nothing else, light or dark as its reader prefers,
    and below about 1 MB however long the pipeline ran and however many threads it has.

    Args:
        diagnosis: what to show.
        title: of the page.

    Raises:
        ImportError: Jinja2 is not installed, which the extra ``view`` installs.
    """
    summary = diagnosis.snapshot.summary
    binding = _binding(diagnosis)
    colours = _colours(summary, binding)
    nodes = summary.ranked
    times = thread_times(diagnosis.snapshot.threads, summary, colours)
    names = legend(times, summary, colours)
    return render(
        "report.html.j2",
        title=title,
        diagnosis=diagnosis,
        is_chain=all([len(node.inputs) < 2 for node in nodes]),
        picture=_picture(summary, binding, colours) if 0 < len(nodes) <= _MAX_DRAWN else None,
        stages=_stages(nodes[:_MAX_STAGES], colours, binding),
        num_more_stages=len(nodes[_MAX_STAGES:]),
        threads=_threads(times, names),
        legend=names,
        workers=_workers(summary, diagnosis.snapshot.workers),
    )


def _colours(summary: ExecutionSummary, binding: StageSummary | None) -> dict[int, str]:
    """Returns the classes of the stages' colours: those that take the most time get one each, from
    the sources on; the bottleneck has the colour of warnings.
    """
    working = sorted(
        [node for node in summary.values() if not node.is_prefetch],
        key=lambda node: -node.total_processing_time_ns,
    )
    ids = sorted([node.id for node in working[:_NUM_COLOURS]], reverse=True)
    named = {id_: f"c{i}" for i, id_ in enumerate(ids, 1)}
    if binding is not None and binding.id in named:
        other = next((id_ for id_ in ids if named[id_] == _WARNING), binding.id)
        named[other], named[binding.id] = named[binding.id], _WARNING
    return {
        node.id: WAITING if node.is_prefetch else named.get(node.id, "c0")
        for node in summary.values()
    }


def _binding(diagnosis: Diagnosis) -> StageSummary | None:
    """Returns the stage to mark; none if it is the consumer that is slow."""
    if diagnosis.bound_by == "consumer":
        return None
    named = [node for node in diagnosis.snapshot.summary.values() if node.name == diagnosis.stage]
    return max(
        named, key=lambda node: node.wait_time_ratio, default=diagnosis.snapshot.summary.bottleneck
    )


def _picture(
    summary: ExecutionSummary, binding: StageSummary | None, colours: Mapping[int, str]
) -> GraphPicture:
    notes, weights = {}, {}
    for id_, node in summary.items():
        lines = ["bottleneck"] if node is binding else []
        if node.component and any(
            [id_ in user.inputs and user.component != node.component for user in summary.values()]
        ):
            lines.append(f"component {shortened(node.component, _MAX_NAME)}")
        if node.wait_time_ratio >= 0.0005:
            lines.append(f"{node.wait_time_ratio:.1%} of waiting")
        if node.buffered is not None:
            lines.append(f"{node.buffered:,} ready")
        if node.kept_ratio is not None:
            lines.append(f"{node.kept_ratio:.1%} kept")
        notes[id_] = lines
        weights[id_] = 0.55 * node.wait_time_ratio  # text on it stays readable
    stages = [
        Stage(
            i,
            shortened(node.name, 4 * _MAX_NAME),
            node.inputs,
            shortened(node.output_spec, _MAX_SPEC),
        )
        for i, node in sorted(summary.items())
    ]
    return graph_picture(Graph(tuple(stages)), notes, weights, colours)


def _stages(
    nodes: Sequence[StageSummary], colours: Mapping[int, str], binding: StageSummary | None
) -> Markup:
    longest = max([node.total_processing_time_ns for node in nodes], default=0) or 1

    def name(node: StageSummary) -> HtmlCell:
        kind, bracket, rest = node.label.partition("(")
        parts = macros("report_parts.html.j2")
        head = parts.stage(node.id, shortened(kind, _MAX_NAME), colours[node.id])
        head += parts.mark("bottleneck") if node is binding else ""
        title = shortened(node.label, 4 * _MAX_NAME)
        return HtmlCell(head, [shortened(bracket + rest, _MAX_NAME)], title=title)

    def share(node: StageSummary) -> HtmlCell:
        return HtmlCell(node.share_text, bar=[(colours[node.id], node.wait_time_ratio)])

    def own_time(node: StageSummary) -> HtmlCell:
        own, label = node.total_processing_time_ns, "Waiting" if node.is_prefetch else ""
        return HtmlCell(time_text(own), bar=[(colours[node.id], own / longest)], label=label)

    columns = [
        Column("Stage", name, kind="stage"),
        Column("Share of waiting", share),
        Column("Own time", own_time),
        Column("Per element", _time_of_one, kind="whole", missing="–"),
        Column("Elements", _counts, kind="number"),
        Column("Runs in", lambda node: node.place),
        Column("Output", _spec, kind="spec"),
    ]
    return html_table(columns, nodes, "cards", has_heads=True)


def _time_of_one(node: StageSummary) -> HtmlCell | None:
    if not node.num_produced_elements:
        return None
    least, most = time_text(node.min_processing_time_ns), time_text(node.max_processing_time_ns)
    mean = node.total_processing_time_ns // node.num_produced_elements
    return HtmlCell(time_text(mean), [f"{least} to {most}"])


def _counts(node: StageSummary) -> HtmlCell:
    counts = [f"{node.kept_ratio:.1%} kept"] if node.kept_ratio is not None else []
    counts += [f"{node.buffered:,} ready"] if node.buffered is not None else []
    counts += [f"{node.num_errors:,} error{'s' * (node.num_errors > 1)}"] if node.num_errors else []
    return HtmlCell(f"{node.num_produced_elements:,}", counts)


def _spec(node: StageSummary) -> HtmlCell:
    num, size = node.num_produced_elements, node.bytes_produced
    sizes = [f"{size_text(size)}, {size_text(size / num)} each"] if num and size else []
    text = shortened(node.output_spec, _MAX_SPEC) or "–"
    return HtmlCell(macros("report_parts.html.j2").code(text), sizes)


def _threads(times: Sequence[ThreadTime], names: Sequence[tuple[str, str]]) -> Markup | None:
    if not times:
        return None

    def cell(one: ThreadTime, text: str, **values: Any) -> HtmlCell:
        return HtmlCell(text, kind="process" if one.is_first else "", **values)

    def stages(one: ThreadTime) -> HtmlCell:
        shares = [(name, one.shares.get(colour, 0.0)) for colour, name in names]
        title = "\n".join([f"{name}: {share:.1%}" for name, share in shares if share >= 0.0005])
        return cell(one, "", bar=[*one.shares.items()], title=title)

    columns = [
        Column("Thread", lambda x: cell(x, x.name, title=x.name), kind="thread"),
        Column("works", lambda x: cell(x, f"{x.working:.0%}", label="works"), kind="number"),
        Column("waits", lambda x: cell(x, f"{x.waiting:.0%}", label="waits"), kind="number"),
        Column("Stages", stages, kind="parts"),
    ]
    frame = f"scroll{' dense' if len(times) > 16 else ''}"
    return html_table(columns, times, "threads", frame, has_heads=True)


def _workers(
    summary: ExecutionSummary, loads: Sequence[WorkerLoad]
) -> list[tuple[str, list[WorkerLoad], Markup]]:
    """Returns the title, the loads and the table of processes and of actors, if there are any."""
    stage = Column("Stage", lambda x: f"{x.stage} {short_name(summary[x.stage])}", kind="stage")
    tables = []
    for title, columns, some in (
        ("Worker processes", _OF_PROCESSES, [x for x in loads if not x.node]),
        ("Ray actors", _OF_ACTORS, [x for x in loads if x.node]),
    ):
        if some:
            table = html_table([stage, *columns], some, "cards", has_heads=True)
            tables.append((title, some, table))
    return tables


def _transfer(load: WorkerLoad) -> HtmlCell:
    reading = f"and {time_text(load.decoding_ns)} in the consumer"
    return HtmlCell(f"{load.shares[1]:.1%}", [reading])


def _num_workers(load: WorkerLoad) -> HtmlCell:
    restarted = [f"{load.num_restarts} restarted"] if load.num_restarts else []
    return HtmlCell(f"{load.num_workers}", restarted)


_percent = "{:.1%}".format
_OF_PROCESSES = (
    Column("Workers", _num_workers),
    Column("CPU wanted", lambda x: x.cpu_ns / max(x.lifetime_ns, 1), "{:.0%}".format),
    Column("No room for outputs", lambda x: x.room_ns / max(x.lifetime_ns, 1), _percent),
    Column("Making messages", lambda x: x.encoding_ns / max(x.lifetime_ns, 1), _percent),
    Column("Reading messages, in the consumer", lambda x: x.decoding_ns, time_text),
)
_OF_ACTORS = (
    Column("Node", lambda x: x.node),
    Column("Actors", _num_workers),
    Column("Computing", lambda x: x.shares[0], _percent),
    Column("Transfer", _transfer),
    Column("Object store", lambda x: x.shares[2], _percent),
    Column("Waiting for room", lambda x: x.shares[3], _percent),
)
