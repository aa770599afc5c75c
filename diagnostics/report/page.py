"""A diagnosis as a page: one file that needs no network and no script, for the screen, the
telephone and the printer.
"""

from __future__ import annotations

from gristmill.diagnostics.diagnosis.verdict import Diagnosis
from gristmill.diagnostics.drawing import graph_svg
from gristmill.diagnostics.graph.stages import Graph, Stage
from gristmill.diagnostics.html_text import html_page, html_table, safe, shortened, swatch
from gristmill.diagnostics.report.style import NUM_COLOURS, STYLE
from gristmill.diagnostics.report.timeline import WAITING, short_name, timeline_html
from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary, WorkerLoad
from gristmill.diagnostics.units import digits_text, size_text, time_text

_WARNING = "c2"  # the orange of the seven colours
_MAX_STAGES = 100  # in the table
_MAX_DRAWN = 150  # in the picture
_MAX_NAME, _MAX_SPEC = 160, 400  # characters

_BODY = """\
<body>
<h1>{title}</h1>
{verdict}
<main class="body{layout}">
<section class="graph" aria-labelledby="graph">
<h2 id="graph">Pipeline</h2>
<p class="soft">From the sources down; the stronger the colour, the more of the waiting is due to
the stage.</p>
{graph}
</section>
<section class="stages" aria-labelledby="stages">
<h2 id="stages">Time per stage</h2>
<p class="soft">A share of waiting is how much of the time that the consumer waited is due to the
stage. Own time is that of all threads and processes together, without the upstream stages; hatched
is waiting for what others compute.</p>
{stages}
</section>
<section class="times" aria-labelledby="times">
<h2 id="times">Threads and workers</h2>
<p class="soft">Seconds since the pipeline is observed; the height of a colour is its share of the
thread's time. Where there is nothing, the thread did not run, or has not reported yet.</p>
{timeline}
</section>
{workers}
</main>
</body>"""


def report_html(diagnosis: Diagnosis, title: str = "Pipeline report") -> str:
    """Returns a page that shows a diagnosis: the verdict, the pipeline as a graph, its stages, and
    what every thread did when.

    It is one file without scripts that refers to nothing else, light or dark as its reader prefers,
    and below about 1 MB however long the pipeline ran and however many threads it has.

    Args:
        diagnosis: what to show.
        title: of the page.
    """
    summary = diagnosis.snapshot.summary
    binding = _binding(diagnosis)
    colours = _colours(summary, binding)
    is_chain = all([len(node.inputs) < 2 for node in summary.values()])
    body = _BODY.format(
        title=safe(title),
        verdict=_verdict(diagnosis),
        layout=" chain" if is_chain else "",
        graph=_graph(summary, binding),
        stages=_stages(summary, colours, binding),
        timeline=timeline_html(diagnosis.snapshot.threads, summary.nodes, colours),
        workers=_workers(summary, diagnosis.snapshot.workers),
    )
    return html_page(title, f"<style>\n{_style(summary, colours)}</style>", body)


def _colours(summary: ExecutionSummary, binding: StageSummary | None) -> dict[int, str]:
    """Returns the classes of the stages' colours: those that take the most time get one each, from
    the sources on; the bottleneck has the colour of warnings.
    """
    working = sorted(
        [node for node in summary.values() if not node.is_prefetch],
        key=lambda node: -node.total_processing_time_ns,
    )
    ids = sorted([node.id for node in working[:NUM_COLOURS]], reverse=True)
    named = {id_: f"c{i}" for i, id_ in enumerate(ids, 1)}
    if binding is not None and binding.id in named:
        other = next((id_ for id_ in ids if named[id_] == _WARNING), binding.id)
        named[other], named[binding.id] = named[binding.id], _WARNING
    return {
        node.id: WAITING if node.is_prefetch else named.get(node.id, "c0")
        for node in summary.values()
    }


def _style(summary: ExecutionSummary, colours: dict[int, str]) -> str:
    rules = [f".c{i}{{--c:var(--c{i})}}" for i in range(NUM_COLOURS + 1)]
    for id_, colour in colours.items():
        value = "hatch" if colour == WAITING else colour
        rules.append(f'.gm-stage[data-id="{id_}"]{{--c:var(--{value})}}')
        if summary[id_].is_prefetch:
            rules.append(f'.gm-stage[data-id="{id_}"] .gm-box{{stroke-dasharray:5 3}}')
    return STYLE + "\n".join(rules) + "\n"


def _binding(diagnosis: Diagnosis) -> StageSummary | None:
    """Returns the stage to mark; none if it is the consumer that is slow."""
    if diagnosis.bound_by == "consumer":
        return None
    named = [node for node in diagnosis.snapshot.summary.values() if node.name == diagnosis.stage]
    return max(
        named, key=lambda node: node.wait_time_ratio, default=diagnosis.snapshot.summary.bottleneck
    )


def _verdict(diagnosis: Diagnosis) -> str:
    snapshot = diagnosis.snapshot
    elapsed, waited = snapshot.summary.elapsed_ns, snapshot.summary.waited_ns
    ceiling = diagnosis.ceiling_per_second
    advice = "".join([f"<li>{safe(text)}</li>" for text in diagnosis.recommendations])
    delays = "".join(
        [
            f"<div><b>{time_text(ns)}</b><small>p{percent}</small></div>"
            for percent, ns in diagnosis.delay_ns.items()
        ]
    )
    bar = _bar(diagnosis.starved_ratio, "good" if diagnosis.bound_by == "consumer" else "bad")
    facts = [
        (
            "Throughput",
            (
                f"<b>{digits_text(diagnosis.elements_per_second)}</b> elements/s"
                f"<small>{snapshot.num_elements:,} elements in {time_text(elapsed)}</small>"
            ),
        ),
        (
            "Ceiling",
            (
                "<b>–</b><small>not known</small>"
                if ceiling is None
                else (
                    f"<b>≈ {digits_text(ceiling)}</b> elements/s<small>if what binds it took no"
                    " time</small>"
                )
            ),
        ),
        (
            "The consumer waits",
            (
                f"<b>{diagnosis.starved_ratio:.0%}</b> of the time{bar}<small>{time_text(waited)}"
                f" of {time_text(elapsed)}</small>"
            ),
        ),
        ("Delay of an element", f'<div class="delays">{delays}</div>'),
    ]
    return "\n".join(
        [
            (
                f'<section><div class="verdict {safe(diagnosis.bound_by)}"><p'
                f' class="sentence">{safe(diagnosis.sentence)}</p>'
            ),
            *([f"<h2>Recommendations</h2><ol>{advice}</ol>"] if advice else []),
            '</div><dl class="facts">',
            *[
                f"<div{' class=wide' if i > 1 else ''}><dt>{term}</dt><dd>{text}</dd></div>"
                for i, (term, text) in enumerate(facts)
            ],
            "</dl></section>",
        ]
    )


def _graph(summary: ExecutionSummary, binding: StageSummary | None) -> str:
    if not summary:
        return '<p class="soft">No stage has been seen at work.</p>'
    if len(summary) > _MAX_DRAWN:
        return f'<p class="soft">Its {len(summary)} stages are too many to be drawn.</p>'
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
    return f'<div class="scroll">{graph_svg(Graph(tuple(stages)), notes, weights)}</div>'


def _stages(
    summary: ExecutionSummary, colours: dict[int, str], binding: StageSummary | None
) -> str:
    if not summary:
        return '<p class="soft">There is nothing to show before the first element.</p>'
    nodes = sorted(
        summary.values(), key=lambda node: (-node.wait_time_ratio, -node.total_processing_time_ns)
    )
    longest = max([node.total_processing_time_ns for node in nodes])
    titles = [
        ("Stage", ""),
        ("Share of waiting", ""),
        ("Own time", ""),
        ("Per element", ""),
        ("Elements", "number"),
    ]
    titles += [("Runs in", ""), ("Output", "")]
    rows = [_row(node, node is binding, longest, colours[node.id]) for node in nodes[:_MAX_STAGES]]
    left = len(nodes) - len(rows)
    return "\n".join(
        [
            html_table(titles, rows, "cards"),
            *(
                [f'<p class="soft">… and {left} more stages, with smaller shares.</p>']
                if left
                else []
            ),
            *[f'<p class="soft">{safe(line)}</p>' for line in summary.remarks],
        ]
    )


def _row(node: StageSummary, is_bottleneck: bool, longest: int, colour: str) -> str:
    num = node.num_produced_elements
    kind, bracket, rest = node.label.partition("(")
    parameters = bracket + rest if bracket else ""
    mark = ' <span class="mark">bottleneck</span>' if is_bottleneck else ""
    share = f"{node.wait_time_ratio:.1%}" if node.wait_time_ratio or not node.is_prefetch else "–"
    times = [
        node.total_processing_time_ns // max(num, 1),
        node.min_processing_time_ns,
        node.max_processing_time_ns,
    ]
    average, least, most = [time_text(t) if num else "–" for t in times]
    counts = [f"{node.kept_ratio:.1%} kept"] if node.kept_ratio is not None else []
    counts += [f"{node.buffered:,} ready"] if node.buffered is not None else []
    counts += [f"{node.num_errors:,} error{'s' * (node.num_errors > 1)}"] if node.num_errors else []
    sizes = (
        f"{size_text(node.bytes_produced)}, {size_text(node.bytes_produced / num)} each"
        if num and node.bytes_produced
        else ""
    )
    own, spec = node.total_processing_time_ns, safe(shortened(node.output_spec, _MAX_SPEC))
    time = f"{time_text(own)}{_bar(own / max(longest, 1), colour)}"
    cells = [
        ("Share of waiting", "", f"{share}{_bar(node.wait_time_ratio, colour)}"),
        ("Waiting" if node.is_prefetch else "Own time", "", time),
        ("Per element", "whole", f"{average}<small>{least} to {most}</small>" if num else "–"),
        ("Elements", "number", f"{num:,}{''.join([f'<small>{text}</small>' for text in counts])}"),
        ("Runs in", "", safe(node.place)),
        ("Output", "spec", f"<code>{spec or '–'}</code><small>{sizes}</small>"),
    ]
    return (
        '<tr><th scope="row" class="stage"'
        f' title="{safe(shortened(node.label, 4 * _MAX_NAME))}">{swatch(colour)}'
        f'<span class="id">{node.id}</span> <span'
        f' class="name">{safe(shortened(kind, _MAX_NAME))}</span>{mark}'
        f"<small>{safe(shortened(parameters, _MAX_NAME))}</small></th>"
        + "".join(
            [f'<td data-label="{label}" class="{kind}">{text}</td>' for label, kind, text in cells]
        )
        + "</tr>"
    )


def _workers(summary: ExecutionSummary, loads: list[WorkerLoad]) -> str:
    if not loads:
        return ""
    tables: list[str] = []
    for title, titles, cells_of, some in (
        (
            "Worker processes",
            _OF_PROCESSES,
            _of_processes,
            [load for load in loads if not load.node],
        ),
        ("Ray actors", _OF_ACTORS, _of_actors, [load for load in loads if load.node]),
    ):
        rows = []
        for load in some:
            name = f"{load.stage} {short_name(summary[load.stage])}"
            columns = zip(titles, cells_of(load), strict=True)
            rows.append(
                f'<tr><th scope="row" class="stage">{safe(name)}</th>'
                + "".join([f'<td data-label="{title}">{cell}</td>' for title, cell in columns])
                + "</tr>"
            )
        if rows:
            tables += [
                f"<h2{'' if tables else ' id=workers'}>{title}</h2>",
                (
                    '<p class="soft">Shares are of the time of all workers of a'
                    f" stage{' on a node' * (some[0].node != '')}.</p>"
                ),
                html_table([(title, "") for title in ("Stage", *titles)], rows, "cards"),
            ]
    return "\n".join(['<section class="workers" aria-labelledby="workers">', *tables, "</section>"])


_OF_PROCESSES = (
    "Workers",
    "CPU wanted",
    "No room for outputs",
    "Making messages",
    "Reading messages, in the consumer",
)
_OF_ACTORS = ("Node", "Actors", "Computing", "Transfer", "Object store", "Waiting for room")


def _of_processes(load: WorkerLoad) -> list[str]:
    whole = max(load.lifetime_ns, 1)
    shares = (
        f"{load.cpu_ns / whole:.0%}",
        f"{load.room_ns / whole:.1%}",
        f"{load.encoding_ns / whole:.1%}",
    )
    return [_num_workers(load), *shares, time_text(load.decoding_ns)]


def _of_actors(load: WorkerLoad) -> list[str]:
    computing, transfer, storing, waiting = [f"{share:.1%}" for share in load.shares]
    transfer += f"<small>and {time_text(load.decoding_ns)} in the consumer</small>"
    return [safe(load.node), _num_workers(load), computing, transfer, storing, waiting]


def _num_workers(load: WorkerLoad) -> str:
    restarted = f"<small>{load.num_restarts} restarted</small>" if load.num_restarts else ""
    return f"{load.num_workers}{restarted}"


def _bar(share: float, colour: str) -> str:
    return (
        f'<span class="bar"><i class="{colour}"'
        f' style="width:{100 * min(1, max(0, share)):.1f}%"></i></span>'
    )
