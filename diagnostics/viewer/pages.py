"""The pages: an output with its rows, one row with its history, and what is said when there is
nothing to show.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.state import shown
from gristmill.dataset.descriptions.display import length_text
from gristmill.diagnostics.html_text import html_page, html_row, html_table, safe, shortened
from gristmill.diagnostics.provenance import Provenance
from gristmill.diagnostics.units import size_text
from gristmill.diagnostics.viewer.cells import LeafCells, histogram, range_text
from gristmill.diagnostics.viewer.history import RowHistory, StageResult
from gristmill.diagnostics.viewer.leaves import MAX_LEAVES, shape_of
from gristmill.diagnostics.viewer.looks import Looks
from gristmill.diagnostics.viewer.numbers import numbers_of
from gristmill.diagnostics.viewer.outputs import Seen, Waiting
from gristmill.diagnostics.viewer.steps import Step

_ROWS, _LEAVES, _OVERVIEW = 48, 120, 24  # on one page
_MAX_COLUMNS = 24
_MAX_CAPTION = 6
_MAX_RECORDS = 200
_LATER = (
    '<p class="reason">Where it comes from takes long to find out. This page asks again by'
    " itself.</p>"
)
_RECORD = {
    "row": "Row",
    "components": "Component",
    "record_key": "Record",
    "span": "Cells",
    "epoch": "Epoch",
    "index": "Index",
    "seed": "Random stream (seed, index)",
    "place": "File",
    "source": "Source",
}
_MAX_ERROR, _MAX_TRACEBACK = 4000, 30_000

_HEAD = """\
<link rel="icon" href="{root}/icon.png">
<link rel="stylesheet" href="{root}/style.css">
<script src="{root}/script.js" defer></script>"""
_BODY = """\
<body data-kind="{kind}">
<header>
<div class="name">{name}<small>{about}</small></div>
<nav aria-label="steps">{steps}</nav>
<form action="{root}/go" role="search"><input name="to"
aria-label="go to a step, or to a checkpoint" placeholder="Go to …" autocomplete="off"
title="the number of a step, or the path of a checkpoint" spellcheck="false"></form>
</header>
<main>
{content}
</main>
<footer>{keys}</footer>
</body>"""
_KEYS = "<kbd>←</kbd> <kbd>→</kbd> steps &nbsp; <kbd>g</kbd> go to"
_ROW_KEYS = f"{_KEYS} &nbsp; <kbd>k</kbd> <kbd>j</kbd> rows &nbsp; <kbd>Esc</kbd> back"


@dataclass(frozen=True)
class PageFrame:
    """The parts that all pages share.

    Args:
        root: the address that all others begin with.
        name: of the pipeline, as requested.
        about: what kind of pipeline it is, in some words.
        looks: the way to show leaves.
        is_batched: whether outputs are batches according to the pipeline.
        is_indexed: whether steps are indices, which do not end.
        length: number of outputs from the beginning on, if that is known.
        since: the names of the states that steps may be counted from, the first one that of the
            beginning.
    """

    root: str
    name: str
    about: str
    looks: Looks
    is_batched: bool
    is_indexed: bool
    length: int | None
    since: Sequence[str]

    def address(self, step: Step, row: int | None = None) -> str:
        since = f"/since/{step.since}" if step.since else ""
        return f"{self.root}{since}/step/{step.number}{'' if row is None else f'/row/{row}'}"

    def page(
        self,
        step: Step,
        content: str,
        *,
        kind: str = "step",
        has_next: bool = True,
        row: int | None = None,
    ) -> str:
        before = self._arrow(Step(step.number - 1, step.since), row, "prev", "‹", step.number > 0)
        after = self._arrow(Step(step.number + 1, step.since), row, "next", "›", has_next)
        what = "Index" if self.is_indexed else "Step"
        of = (
            f" <small>of {self.length:,}</small>"
            if self.length is not None and not step.since and self.length < 10**15
            else ""
        )
        of = (
            f" <small>after {safe(shortened(self.since[step.since], 60))}</small>"
            if step.since
            else of
        )
        if self.is_indexed and self.length and step.number >= self.length:
            of += f" <small>(epoch {step.number // self.length})</small>"
        body = _BODY.format(
            root=self.root,
            kind=kind,
            name=safe(self.name),
            about=safe(self.about),
            steps=f"{before}<h1>{what} {step.number:,}{of}</h1>{after}",
            content=content,
            keys=_ROW_KEYS if kind == "row" else _KEYS,
        )
        title = f"{what} {step.number:,} · {self.name}"
        return html_page(title, _HEAD.format(root=self.root), body)

    def _arrow(self, step: Step, row: int | None, rel: str, sign: str, is_there: bool) -> str:
        title = "before" if rel == "prev" else "after"
        if not is_there:
            return f'<span class="step" aria-hidden="true">{sign}</span>'
        return (
            f'<a class="step" rel="{rel}" href="{self.address(step, row)}" aria-label="the one'
            f' {title}">{sign}</a>'
        )


def step_page(view: PageFrame, seen: Seen, first: int, is_whole: bool, source: str) -> str:
    """Returns an output: a batch as its rows, anything else in full.

    Args:
        view: what is the same on all pages.
        seen: the output.
        first: the row, or the leaf, to begin with.
        is_whole: show a batch as one thing, or rows of what is no batch according to the pipeline.
        source: where it comes from, as HTML.
    """
    step = seen.output.step
    if seen.output.is_end:
        return view.page(step, _end(view, step), has_next=False)
    if seen.output.error is not None:
        return view.page(step, _failure(seen.output.error))
    if seen.output.element is None:
        return view.page(
            step,
            _notice(
                "There is no element here",
                "A step of the pipeline leaves it out, or it is <code>None</code>.",
            ),
        )
    cells = LeafCells(seen.leaves, view.address(step), view.looks)
    has_rows = bool(seen.num_rows) and view.is_batched != is_whole
    other = ""
    if seen.num_rows and (
        view.is_batched or sum([shape_of(leaf.value) is not None for leaf in seen.leaves[:100]]) > 1
    ):
        query = "" if is_whole else "?whole=1"
        text = "as one" if has_rows else f"as {seen.num_rows:,} rows"
        other = f'<a href="{view.address(step)}{query}">{text}</a>'
    what = f"Batch of {seen.num_rows:,}" if view.is_batched and seen.num_rows else "Element"
    num = (
        f"{len(seen.leaves):,}{'+' * (len(seen.leaves) == MAX_LEAVES)}"
        f" value{'s' * (len(seen.leaves) != 1)}"
    )
    if has_rows and not source:
        other += f'<a href="{view.address(step)}?records=1">records</a>'
    head = _head(what, f"{num}, {size_text(seen.nbytes)}" if seen.nbytes else num, other)
    if has_rows:
        return view.page(
            step,
            head
            + _overview(cells, view.address(step))
            + source
            + _rows(view, seen, first, is_whole),
        )
    return view.page(step, f"{head}{_leaves(cells, first, view.address(step), is_whole)}{source}")


def row_page(view: PageFrame, seen: Seen, row: int, first: int, source: str) -> str:
    """Returns a row of a batch, where it comes from, and how it came about."""
    step = seen.output.step
    address = view.address(step, row)
    cells = LeafCells(seen.row(row), address, view.looks)
    links = (
        [f'<a rel="before" href="{view.address(step, row - 1)}">row {row - 1:,}</a>'] if row else []
    )
    links += (
        [f'<a rel="after" href="{view.address(step, row + 1)}">row {row + 1:,}</a>']
        if row + 1 < (seen.num_rows or 0)
        else []
    )
    what = "index" if view.is_indexed else "step"
    of = (
        f'of {seen.num_rows:,} in <a rel="up" href="{view.address(step)}">{what}'
        f" {step.number:,}</a>"
    )
    head = _head(f"Row {row:,}", of, "".join(links))
    return view.page(
        step, f"{head}{_leaves(cells, first, address, False)}{source}", kind="row", row=row
    )


def waiting_page(view: PageFrame, step: Step, waiting: Waiting) -> str:
    """Returns the page for an output that does not exist yet; it reloads by itself."""
    if waiting.text:
        text = f"<pre class=wrap>{safe(shortened(waiting.text, _MAX_TRACEBACK))}</pre>"
        return view.page(
            step,
            _notice(
                "Waiting for the pipeline",
                "Nothing has come for some seconds. This page asks again by itself.",
                text,
            ),
        )
    return view.page(
        step,
        _notice(
            f"On the way to step {step.number:,}",
            f"{waiting.reached:,} so far. This page asks again by itself.",
        ),
    )


def problem_page(view: PageFrame, title: str, text: str) -> str:
    """Something that cannot be done, with the way back."""
    return view.page(
        Step(0),
        _notice(safe(title), safe(text), f'<p class="more"><a href="{view.root}/">Back</a></p>'),
    )


def _head(title: str, text: str, links: str) -> str:
    return (
        f'<div class="head"><h2>{title}</h2><p class="soft">{text}</p><span'
        f' class="links">{links}</span></div>'
    )


def _notice(title: str, text: str, more: str = "") -> str:
    return f'<div class="notice"><h2>{title}</h2><p>{text}</p>{more}</div>'


def _end(view: PageFrame, step: Step) -> str:
    last = (
        f'<p class="more"><a href="{view.address(Step(step.number - 1, step.since))}">The last'
        " one</a></p>"
        if step.number
        else ""
    )
    num = length_text(step.number).replace("element", "output")
    return _notice(
        "The end",
        f"There {'is' if step.number == 1 else 'are'}"
        f" {num}{' from there on' if step.since else ''}.",
        last,
    )


def _failure(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error))
    cut = (
        lines
        if len(lines) <= _MAX_TRACEBACK
        else f"{lines[: _MAX_TRACEBACK // 2]}\n…\n{lines[-_MAX_TRACEBACK // 2 :]}"
    )
    notes = "".join(
        [
            f'<p class="soft">{safe(shown_text(note))}</p>'
            for note in getattr(error, "__notes__", [])[:1]
        ]
    )
    return (
        f'<section class="failed"><h2>{safe(type(error).__name__)}</h2>'
        f"<p>{safe(shown_text(str(error)))}</p>{notes}"
        '<details class="plain"><summary>traceback</summary>'
        f'<pre class="wrap">{safe(cut)}</pre></details></section>'
    )


def shown_text(text: str) -> str:
    return shortened(text, _MAX_ERROR)


def _overview(cells: LeafCells, address: str) -> str:
    """Returns a table of the contents of a batch: types, ranges and distributions of values."""
    rows = []
    for number in range(min(len(cells), _OVERVIEW)):
        look = cells.look(number)
        array = (
            look.value.array
            if look.kind == "image"
            else look.value
            if look.kind in ("array", "audio", "tokens")
            else None
        )
        numbers = None if array is None else numbers_of(array)
        values = "" if numbers is None else range_text(numbers)
        spread = "" if numbers is None else histogram(numbers)
        name = safe(shortened(cells.name(number) or "element", 80))
        rows.append(
            f'<tr><th scope="row">{name}</th><td'
            f' class="spec">{safe(cells.spec(number))}</td><td>{values}</td><td'
            f' class="distribution">{spread}</td></tr>'
        )
    names = [("Value", ""), ("Type", ""), ("Range", ""), ("Distribution", "distribution")]
    left = len(cells) - len(rows)
    more = f'<p class="more"><a href="{address}?whole=1">{left:,} more</a></p>' if left else ""
    return f'<section class="overview">{html_table(names, rows)}{more}</section>'


def _rows(view: PageFrame, seen: Seen, first: int, is_whole: bool) -> str:
    assert seen.num_rows is not None
    rows = range(first, min(first + _ROWS, seen.num_rows))
    step = seen.output.step
    all_cells = [LeafCells(seen.row(row), view.address(step, row), view.looks) for row in rows]
    if not all_cells:
        return ""
    kinds = [all_cells[0].look(i).kind for i in range(min(len(all_cells[0]), _LEAVES))]
    short = [i for i in range(len(kinds)) if all([cells.is_short(i) for cells in all_cells])]
    if len(short) == len(kinds) <= _MAX_COLUMNS:
        content = _table(view, step, rows, all_cells)
    elif "image" in kinds and len(short) + kinds.count("image") == len(kinds) <= _MAX_CAPTION + 1:
        content = _tiles(view, step, rows, all_cells)
    else:
        content = _cards(view, step, rows, all_cells)
    paging = _paging(view.address(step), first, _ROWS, seen.num_rows, "rows", is_whole)
    return f'<section class="rows">{content}{paging}</section>'


def _table(view: PageFrame, step: Step, rows: range, all_cells: list[LeafCells]) -> str:
    columns = range(len(all_cells[0]))
    titles = [(safe(shortened(all_cells[0].name(i), 60)) or "value", "") for i in columns]
    lines = [
        html_row(
            [cells.line(i) for i in columns],
            f'<th scope="row"><a href="{view.address(step, number)}">{number:,}</a></th>',
        )
        for number, cells in zip(rows, all_cells, strict=True)
    ]
    return html_table([("Row", ""), *titles], lines)


def _tiles(view: PageFrame, step: Step, rows: range, all_cells: list[LeafCells]) -> str:
    tiles = []
    for row, cells in zip(rows, all_cells, strict=True):
        images = [i for i in range(len(cells)) if cells.look(i).kind == "image"]
        others = [i for i in range(len(cells)) if i not in images and not cells.is_none(i)]
        caption = "".join(
            [
                f'<p><span class="key">{safe(cells.name(i))}</span><span>{cells.line(i)}</span></p>'
                for i in others
            ]
        )
        number = f"<p><span class=key>row</span><span>{row:,}</span></p>"
        tiles.append(
            f'<a class="tile" href="{view.address(step, row)}" aria-label="row {row:,}">'
            f"{''.join([cells.pictures(i, full=False) for i in images])}"
            f'<div class="caption">{caption or number}</div></a>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _cards(view: PageFrame, step: Step, rows: range, all_cells: list[LeafCells]) -> str:
    cards = []
    for row, cells in zip(rows, all_cells, strict=True):
        numbers = [i for i in range(len(cells)) if not cells.is_none(i)]
        fields = cells.fields(numbers[:_MAX_COLUMNS], full=False)
        left = len(numbers) - _MAX_COLUMNS
        more = (
            f'<p class="more"><a href="{view.address(step, row)}">{left:,} more</a></p>'
            if left > 0
            else ""
        )
        cards.append(
            f'<article class="card"><h3><a href="{view.address(step, row)}">Row'
            f" {row:,}</a></h3>{fields}{more}</article>"
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _leaves(cells: LeafCells, first: int, address: str, is_whole: bool) -> str:
    numbers = range(first, min(first + _LEAVES, len(cells)))
    paging = _paging(address, first, _LEAVES, len(cells), "values", is_whole)
    return f'<section class="full">{cells.fields(numbers, full=True)}{paging}</section>'


def _paging(address: str, first: int, size: int, num: int, what: str, is_whole: bool) -> str:
    if num <= size and not first:
        return ""
    whole = "&amp;whole=1" if is_whole else ""
    links = [f'<a href="{address}?first={max(0, first - size)}{whole}">before</a>'] if first else []
    links.append(
        f'<span class="key">{what} {first:,} to {min(first + size, num) - 1:,} of {num:,}</span>'
    )
    links += (
        [f'<a href="{address}?first={first + size}{whole}">after</a>'] if first + size < num else []
    )
    return f'<p class="more">{"".join(links)}</p>'


def records_html(provenance: Provenance | str | Waiting, row: int | None) -> str:
    """Returns the records of a row as a table, or of all rows."""
    if isinstance(provenance, Waiting):
        return _LATER
    if isinstance(provenance, str):
        return f'<p class="reason">{safe(shortened(provenance, _MAX_ERROR))}</p>'
    rows = (
        list(enumerate(provenance.rows))
        if row is None
        else [(row, one) for one in provenance.rows[row : row + 1]]
    )
    lines = [
        (number, {"row": number, **record.as_dict()})
        for number, one in rows
        for record in one.records
    ][:_MAX_RECORDS]
    names = ["row"] if row is None and len(rows) > 1 else []
    names += [
        name
        for name in list(_RECORD)[1:]
        if any([values[name] not in (None, ()) for _, values in lines])
    ]
    cells = [[_record_cell(name, values[name]) for name in names] for _, values in lines]
    titles = [(_RECORD[name], "") for name in names]
    body = [html_row([safe(shortened(cell, 120)) for cell in line]) for line in cells]
    faults = len(provenance.faults)
    passed = (
        f'<p class="soft">{faults:,} record{"s were" if faults > 1 else " was"} skipped on the'
        " way.</p>"
        if faults
        else ""
    )
    title = _head("Where it comes from", "", "")
    return f"<section>{title}{html_table(titles, body)}{passed}</section>" if body else ""


def _record_cell(name: str, value: Any) -> str:
    if name == "components":
        return "/".join(map(str, value))
    if name == "span" and value is not None:
        return f"{value[0]:,}\u2013{value[1] - 1:,}"
    if isinstance(value, tuple):
        return " / ".join([shown(part, 60) for part in value])
    return value if isinstance(value, str) else "" if value is None else shown(value, 120)


def history_html(view: PageFrame, address: str, history: RowHistory | Waiting) -> str:
    """Returns the history of a row: the record, and the result of every stage."""
    if isinstance(history, Waiting):
        return _LATER
    if not history.stages and not history.reason:
        return ""
    reason = f'<p class="reason">{safe(history.reason)}</p>' if history.reason else ""
    stages = "".join(
        [_stage_html(view, f"{address}/stage/{i}", stage) for i, stage in enumerate(history.stages)]
    )
    return (
        '<section class="story"><div class="head"><h2>Before and after every'
        " transformation</h2></div>"
        + (f'<ol class="stages">{stages}</ol>' if stages else "")
        + f"{reason}</section>"
    )


def _stage_html(view: PageFrame, address: str, stage: StageResult) -> str:
    index = "" if stage.index is None else f"index {stage.index:,}"
    notes = ", ".join(
        [
            text
            for text in (
                f"input {stage.branch.rstrip('.')}" if stage.branch else "",
                index,
                stage.note,
            )
            if text
        ]
    )
    name = f"{safe(shortened(stage.name, 160))} <small>{safe(notes)}</small>"
    if stage.is_same:
        return f'<li class="same">{name}</li>'
    if stage.error is not None:
        return f'<li class="failing"><h3>{name}</h3>{_failure(stage.error)}</li>'
    cells = LeafCells(stage.leaves, address, view.looks)
    changed = [i for i, leaf in enumerate(stage.leaves) if leaf.path not in stage.unchanged]
    same = ", ".join(
        [
            cells.name(i) or "the element"
            for i, leaf in enumerate(stage.leaves)
            if leaf.path in stage.unchanged
        ]
    )
    note = f"<small>as before: {safe(shortened(same, 300))}</small>" if same else ""
    more = (
        f"<small>{len(changed) - _MAX_COLUMNS:,} more values</small>"
        if len(changed) > _MAX_COLUMNS
        else ""
    )
    fields = cells.fields(changed[:_MAX_COLUMNS], full=False) if changed else ""
    return f"<li><h3>{name}</h3>{fields}{more}{note}</li>"
