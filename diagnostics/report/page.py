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
    nodes = sorted(
        summary.values(), key=lambda node: (-node.wait_time_ratio, -node.total_processing_time_ns)
    )
    times = thread_times(diagnosis.snapshot.threads, summary.nodes, colours)
    names = legend(times, summary.nodes, colours)
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
    longest = max([node.total_processing_time_ns for node in nodes], default=0)
    columns = [
        ("Stage", "stage"),
        ("Share of waiting", ""),
        ("Own time", ""),
        ("Per element", "whole"),
        ("Elements", "number"),
        ("Runs in", ""),
        ("Output", "spec"),
    ]
    rows = [_stage(node, node is binding, longest, colours[node.id]) for node in nodes]
    return html_table(columns, rows, "cards", has_heads=True)


def _stage(node: StageSummary, is_binding: bool, longest: int, colour: str) -> list[HtmlCell]:
    num, own = node.num_produced_elements, node.total_processing_time_ns
    kind, bracket, rest = node.label.partition("(")
    head = macros("report_parts.html.j2").stage(node.id, shortened(kind, _MAX_NAME), colour)
    if is_binding:
        head += macros("report_parts.html.j2").mark("bottleneck")
    share = f"{node.wait_time_ratio:.1%}" if node.wait_time_ratio or not node.is_prefetch else "–"
    least, most = time_text(node.min_processing_time_ns), time_text(node.max_processing_time_ns)
    counts = [f"{node.kept_ratio:.1%} kept"] if node.kept_ratio is not None else []
    counts += [f"{node.buffered:,} ready"] if node.buffered is not None else []
    counts += [f"{node.num_errors:,} error{'s' * (node.num_errors > 1)}"] if node.num_errors else []
    sizes = [size_text(node.bytes_produced), f"{size_text(node.bytes_produced / max(num, 1))} each"]
    spec = macros("report_parts.html.j2").code(shortened(node.output_spec, _MAX_SPEC) or "–")
    return [
        HtmlCell(
            head,
            [shortened(bracket + rest, _MAX_NAME)],
            title=shortened(node.label, 4 * _MAX_NAME),
        ),
        HtmlCell(share, bar=[(colour, node.wait_time_ratio)]),
        HtmlCell(
            time_text(own),
            bar=[(colour, own / max(longest, 1))],
            label="Waiting" if node.is_prefetch else "",
        ),
        HtmlCell(time_text(own // num), [f"{least} to {most}"]) if num else HtmlCell("–"),
        HtmlCell(f"{num:,}", counts),
        HtmlCell(node.place),
        HtmlCell(spec, [", ".join(sizes)] if num and node.bytes_produced else []),
    ]


def _threads(times: Sequence[ThreadTime], names: Sequence[tuple[str, str]]) -> Markup | None:
    if not times:
        return None
    columns = [("Thread", "thread"), ("works", "number"), ("waits", "number"), ("Stages", "parts")]
    rows = []
    for one in times:
        kind = "process" if one.is_first else ""
        parts = [
            f"{name}: {one.shares[colour]:.1%}"
            for colour, name in names
            if one.shares.get(colour, 0.0) >= 0.0005
        ]
        rows.append(
            [
                HtmlCell(one.name, kind=kind, title=one.name),
                HtmlCell(f"{one.working:.0%}", kind=kind, label="works"),
                HtmlCell(f"{one.waiting:.0%}", kind=kind, label="waits"),
                HtmlCell("", bar=[*one.shares.items()], kind=kind, title="\n".join(parts)),
            ]
        )
    frame = f"scroll{' dense' if len(rows) > 16 else ''}"
    return html_table(columns, rows, "threads", frame, has_heads=True)


_OF_PROCESSES = (
    "Workers",
    "CPU wanted",
    "No room for outputs",
    "Making messages",
    "Reading messages, in the consumer",
)
_OF_ACTORS = ("Node", "Actors", "Computing", "Transfer", "Object store", "Waiting for room")


def _workers(
    summary: ExecutionSummary, loads: Sequence[WorkerLoad]
) -> list[tuple[str, list[WorkerLoad], Markup]]:
    """Returns the title, the loads and the table of processes and of actors, if there are any."""
    tables = []
    for title, titles, cells_of, some in (
        ("Worker processes", _OF_PROCESSES, _of_processes, [x for x in loads if not x.node]),
        ("Ray actors", _OF_ACTORS, _of_actors, [x for x in loads if x.node]),
    ):
        rows = [
            [f"{load.stage} {short_name(summary[load.stage])}", *cells_of(load)] for load in some
        ]
        if rows:
            columns = [("Stage", "stage"), *[(name, "") for name in titles]]
            tables.append((title, some, html_table(columns, rows, "cards", has_heads=True)))
    return tables


def _of_processes(load: WorkerLoad) -> list[Any]:
    whole = max(load.lifetime_ns, 1)
    return [
        _num_workers(load),
        f"{load.cpu_ns / whole:.0%}",
        f"{load.room_ns / whole:.1%}",
        f"{load.encoding_ns / whole:.1%}",
        time_text(load.decoding_ns),
    ]


def _of_actors(load: WorkerLoad) -> list[Any]:
    computing, transfer, storing, waiting = [f"{share:.1%}" for share in load.shares]
    reading = f"and {time_text(load.decoding_ns)} in the consumer"
    moving = HtmlCell(transfer, [reading])
    return [load.node, _num_workers(load), computing, moving, storing, waiting]


def _num_workers(load: WorkerLoad) -> HtmlCell:
    restarted = [f"{load.num_restarts} restarted"] if load.num_restarts else []
    return HtmlCell(f"{load.num_workers}", restarted)
