"""The pages: an output with its rows, one row with its history, and what is said when there is
nothing to show.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from gristmill.core.state import shown
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import parents_of
from gristmill.dataset.descriptions.display import length_text
from gristmill.diagnostics.graph.stages import last_stage
from gristmill.diagnostics.html import html_table, render, shortened
from gristmill.diagnostics.provenance import Provenance
from gristmill.diagnostics.table import Column, DataTable
from gristmill.diagnostics.units import size_text
from gristmill.diagnostics.viewer.cells import LeafCells, histogram, leaf_html, range_html
from gristmill.diagnostics.viewer.history import RowHistory, StageResult, makes_batches
from gristmill.diagnostics.viewer.leaves import MAX_LEAVES, shape_of
from gristmill.diagnostics.viewer.looks import Look, Looks
from gristmill.diagnostics.viewer.numbers import numbers_of
from gristmill.diagnostics.viewer.outputs import Outputs, Seen, Waiting
from gristmill.diagnostics.viewer.steps import Step

_ROWS, _LEAVES, _OVERVIEW = 48, 120, 24  # on one page
_MAX_COLUMNS = 24
_MAX_CAPTION = 6
_MAX_RECORDS = 200
_MAX_ERROR, _MAX_TRACEBACK = 4000, 30_000


class PageFrame:
    """The parts that all pages share.

    Args:
        outputs: those of the pipeline.
        root: the address that all others begin with.
        name: of the pipeline, as requested.
        looks: the way to show leaves.
    """

    def __init__(self, outputs: Outputs, root: str, name: str, looks: Looks) -> None:
        pipeline = outputs.pipeline
        self._outputs = outputs
        self.root, self.name, self.looks = root, name, looks
        self.is_batched = _is_batched(pipeline)
        self.is_indexed = isinstance(pipeline, MapDataset)  # then steps do not end
        # the names of the states that steps may be counted from, the first one that of the
        # beginning
        self.since = [""]
        self._kind = getattr(pipeline, "_gm_node_family", "DataLoader")

    @property
    def about(self) -> str:
        """The kind of pipeline, and its length."""
        return ", ".join(filter(None, [self._kind, length_text(self._outputs.length)]))

    def address(self, step: Step, row: int | None = None) -> str:
        since = f"/since/{step.since}" if step.since else ""
        return f"{self.root}{since}/step/{step.number}{'' if row is None else f'/row/{row}'}"

    def page(
        self,
        template: str,
        step: Step,
        *,
        row: int | None = None,
        has_next: bool = True,
        **values: Any,
    ) -> str:
        """Returns the page of a template that extends ``viewer.html.j2``."""
        what, number = "Index" if self.is_indexed else "Step", step.number
        notes, length = [], self._outputs.length
        if step.since:
            notes.append(f"after {shortened(self.since[step.since], 60)}")
        elif length is not None and length < 10**15:
            notes.append(f"of {length:,}")
        if self.is_indexed and length and number >= length:
            notes.append(f"(epoch {number // length})")
        return render(
            template,
            view=self,
            step=step,
            row=row,
            what=what,
            notes=notes,
            title=f"{what} {number:,} · {self.name}",
            before=self.address(Step(number - 1, step.since), row) if number else "",
            after=self.address(Step(number + 1, step.since), row) if has_next else "",
            **values,
        )

    def notice(self, heading: str, text: str, step: Step, **values: Any) -> str:
        """Returns a page without an element; see ``viewer_notice.html.j2``."""
        return self.page("viewer_notice.html.j2", step, heading=heading, text=text, **values)


def _is_batched(pipeline: Any) -> bool:
    """True if outputs are batches, according to the stages in a row."""
    step = last_stage(pipeline)
    while not makes_batches(step):
        if len(parents_of(step)) != 1:
            return False
        step = parents_of(step)[0]
    return True


def step_page(
    view: PageFrame,
    seen: Seen,
    first: int,
    is_whole: bool,
    provenance: Provenance | str | Waiting | None,
    history: RowHistory | Waiting | None,
) -> str:
    """Returns an output: a batch as its rows, anything else in full.

    Args:
        view: what is the same on all pages.
        seen: the output.
        first: the row, or the leaf, to begin with.
        is_whole: show a batch as one thing, or rows of what is no batch according to the pipeline.
        provenance: what it is made of, if that is shown.
        history: of it, if that is shown.
    """
    step = seen.output.step
    if seen.output.is_end:
        return _end(view, step)
    if seen.output.error is not None:
        return view.page("viewer_failure.html.j2", step, failure=_failure(seen.output.error))
    if seen.output.element is None:
        text = "A step of the pipeline leaves it out, or it is None."
        return view.notice("There is no element here", text, step)
    address, num_rows = view.address(step), seen.num_rows
    cells = LeafCells(seen.leaves, address, view.looks)
    has_rows = bool(num_rows) and view.is_batched != is_whole
    links = []
    num_arrays = sum([shape_of(leaf.value) is not None for leaf in seen.leaves[:100]])
    if num_rows and (view.is_batched or num_arrays > 1):
        query = "" if is_whole else "?whole=1"
        links.append((address + query, "as one" if has_rows else f"as {num_rows:,} rows", ""))
    if has_rows and provenance is None:
        links.append((f"{address}?records=1", "records", ""))
    num = len(seen.leaves)
    about = f"{num:,}{'+' * (num == MAX_LEAVES)} value{'s' * (num != 1)}"
    rows = (
        _rows(view, seen, first, is_whole) if has_rows else _leaves(cells, first, address, is_whole)
    )
    return view.page(
        "viewer_element.html.j2",
        step,
        heading=f"Batch of {num_rows:,}" if view.is_batched and num_rows else "Element",
        about=f"{about}, {size_text(seen.nbytes)}" if seen.nbytes else about,
        up=None,
        links=links,
        address=address,
        overview=_overview(cells) if has_rows else None,
        num_more=max(0, num - _OVERVIEW),
        records=None if provenance is None else _records(provenance, None),
        history=None if history is None else _stages(view, address, history),
        **rows,
    )


def row_page(
    view: PageFrame,
    seen: Seen,
    row: int,
    first: int,
    provenance: Provenance | str | Waiting | None,
    history: RowHistory | Waiting | None,
) -> str:
    """Returns a row of a batch, where it comes from, and its history."""
    step, num_rows = seen.output.step, seen.num_rows or 0
    address = view.address(step, row)
    others = [("before", row - 1)] * (row > 0) + [("after", row + 1)] * (row + 1 < num_rows)
    what = "index" if view.is_indexed else "step"
    return view.page(
        "viewer_element.html.j2",
        step,
        row=row,
        heading=f"Row {row:,}",
        about=f"of {num_rows:,} in",
        up=(view.address(step), f"{what} {step.number:,}"),
        links=[(view.address(step, other), f"row {other:,}", rel) for rel, other in others],
        address=address,
        overview=None,
        num_more=0,
        records=None if provenance is None else _records(provenance, row),
        history=None if history is None else _stages(view, address, history),
        **_leaves(LeafCells(seen.row(row), address, view.looks), first, address),
    )


def waiting_page(view: PageFrame, step: Step, waiting: Waiting) -> str:
    """Returns the page for an output that does not exist yet; it reloads by itself."""
    if waiting.text:
        text = "Nothing has come for some seconds. This page asks again by itself."
        lines = shortened(waiting.text, _MAX_TRACEBACK)
        return view.notice("Waiting for the pipeline", text, step, lines=lines)
    text = f"{waiting.reached:,} so far. This page asks again by itself."
    return view.notice(f"On the way to step {step.number:,}", text, step)


def problem_page(view: PageFrame, title: str, text: str, lines: str = "") -> str:
    """Returns a page about something that cannot be done, with the way back."""
    return view.notice(title, text, Step(0), link=(f"{view.root}/", "Back"), lines=lines)


def _end(view: PageFrame, step: Step) -> str:
    num = length_text(step.number).replace("element", "output")
    begins = f"There {'is' if step.number == 1 else 'are'} {num}"
    last = view.address(Step(step.number - 1, step.since)), "The last one"
    link = {"link": last} if step.number else {}
    text = f"{begins}{' from there on' * bool(step.since)}."
    return view.notice("The end", text, step, has_next=False, **link)


def _failure(error: BaseException) -> Any:
    lines, half = "".join(traceback.format_exception(error)), _MAX_TRACEBACK // 2
    if len(lines) > _MAX_TRACEBACK:
        lines = f"{lines[:half]}\n…\n{lines[-half:]}"
    notes = [shortened(note, _MAX_ERROR) for note in getattr(error, "__notes__", [])[:1]]
    return leaf_html().failure(
        type(error).__name__, shortened(str(error), _MAX_ERROR), notes, lines
    )


def _overview(cells: LeafCells) -> Any:
    """Returns a table of the contents of a batch: types, ranges and distributions of values."""
    numbers = [_numbers_of(cells.look(i)) for i in range(min(len(cells), _OVERVIEW))]
    columns = [
        Column("Value", lambda i: shortened(cells.name(i) or "element", 80)),
        Column("Type", cells.spec, kind="spec"),
        Column("Range", lambda i: numbers[i] and range_html(numbers[i]), missing=""),
        Column(
            "Distribution",
            lambda i: numbers[i] and histogram(numbers[i]),
            missing="",
            kind="distribution",
        ),
    ]
    return html_table(columns, range(len(numbers)), has_heads=True)


def _numbers_of(look: Look) -> Any:
    if look.kind == "image":
        return numbers_of(look.value.array)
    return numbers_of(look.value) if look.kind in ("array", "audio", "tokens") else None


def _rows(view: PageFrame, seen: Seen, first: int, is_whole: bool) -> dict[str, Any]:
    """Returns the rows of a batch, with their layout: a table, tiles with pictures, or cards."""
    assert seen.num_rows is not None
    step = seen.output.step
    all_cells = {
        row: LeafCells(seen.row(row), view.address(step, row), view.looks)
        for row in range(first, min(first + _ROWS, seen.num_rows))
    }
    pages = _paging(view.address(step), first, _ROWS, seen.num_rows, "rows", is_whole)
    if not all_cells:
        return {"rows": None, "fields": "", "pages": pages}
    cells = all_cells[first]
    kinds = [cells.look(i).kind for i in range(min(len(cells), _LEAVES))]
    short = [i for i in range(len(kinds)) if all([x.is_short(i) for x in all_cells.values()])]
    if len(short) == len(kinds) <= _MAX_COLUMNS:
        return {"layout": "table", "rows": _table(view, step, all_cells), "pages": pages}
    if "image" in kinds and len(short) + kinds.count("image") == len(kinds) <= _MAX_CAPTION + 1:
        layout, show = "tiles", _tile
    else:
        layout, show = "cards", _card
    rows = [
        {"number": f"{row:,}", "address": view.address(step, row), **show(row, cells)}
        for row, cells in all_cells.items()
    ]
    return {"layout": layout, "rows": rows, "pages": pages}


def _table(view: PageFrame, step: Step, all_cells: dict[int, LeafCells]) -> Any:
    first = next(iter(all_cells.values()))
    names = [shortened(first.name(i), 60) or "value" for i in range(len(first))]
    rows = [
        [
            leaf_html().link(view.address(step, row), f"{row:,}"),
            *[cells.line(i) for i in range(len(names))],
        ]
        for row, cells in all_cells.items()
    ]
    columns = [Column(name, itemgetter(i)) for i, name in enumerate(["Row", *names])]
    return html_table(columns, rows, has_heads=True)


def _tile(row: int, cells: LeafCells) -> dict[str, Any]:
    images = [i for i in range(len(cells)) if cells.look(i).kind == "image"]
    others = [i for i in range(len(cells)) if i not in images and not cells.is_none(i)]
    return {
        "pictures": leaf_html().together([cells.pictures(i, full=False) for i in images]),
        "caption": [(cells.name(i), cells.line(i)) for i in others] or [("row", f"{row:,}")],
    }


def _card(row: int, cells: LeafCells) -> dict[str, Any]:
    numbers = [i for i in range(len(cells)) if not cells.is_none(i)]
    return {
        "fields": cells.fields(numbers[:_MAX_COLUMNS], full=False),
        "num_more": len(numbers[_MAX_COLUMNS:]),
    }


def _leaves(cells: LeafCells, first: int, address: str, is_whole: bool = False) -> dict[str, Any]:
    """Returns the leaves of an element in full."""
    fields = cells.fields(range(first, min(first + _LEAVES, len(cells))), full=True)
    pages = _paging(address, first, _LEAVES, len(cells), "values", is_whole)
    return {"rows": None, "fields": fields, "pages": pages}


def _paging(
    address: str, first: int, size: int, num: int, what: str, is_whole: bool
) -> dict[str, str] | None:
    if num <= size and not first:
        return None
    whole = "&whole=1" if is_whole else ""
    return {
        "text": f"{what} {first:,} to {min(first + size, num) - 1:,} of {num:,}",
        "before": f"{address}?first={max(0, first - size)}{whole}" if first else "",
        "after": f"{address}?first={first + size}{whole}" if first + size < num else "",
    }


def _records(provenance: Provenance | str | Waiting, row: int | None) -> dict[str, Any]:
    """Returns the records of a row as a table, or of all rows; or the reason why not."""
    if not isinstance(provenance, Provenance):
        is_waiting = isinstance(provenance, Waiting)
        reason = "" if is_waiting else shortened(str(provenance), _MAX_ERROR)
        return {"is_waiting": is_waiting, "reason": reason}
    rows = [*enumerate(provenance.rows)]
    rows = rows if row is None else rows[row : row + 1]
    lines = [(number, record) for number, one in rows for record in one.records][:_MAX_RECORDS]
    numbered = Column("Row", lambda line: line[0])
    columns = DataTable([numbered, *_RECORD], lines).without_empty_columns().columns
    columns = columns if row is None and len(rows) > 1 else columns[1:]
    return {
        "is_waiting": False,
        "reason": "",
        "table": html_table(columns, lines) if lines else None,
        "num_faults": len(provenance.faults),
    }


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return " / ".join([shown(part, 60) for part in value])
    return value if isinstance(value, str) else shown(value, 120)


def _of_record(title: str, name: str, text: Callable[[Any], str] = _value_text) -> Column:
    return Column(
        title,
        lambda line: getattr(line[1], name),
        lambda value: shortened(text(value), 120),
        missing="",
    )


_RECORD = (
    _of_record("Component", "components", lambda names: "/".join(map(str, names))),
    _of_record("Record", "record_key"),
    _of_record("Cells", "span", lambda span: f"{span[0]:,}–{span[1] - 1:,}"),
    _of_record("Epoch", "epoch"),
    _of_record("Index", "index"),
    _of_record("Random stream (seed, index)", "seed"),
    _of_record("File", "place"),
    _of_record("Source", "source"),
)


def _stages(view: PageFrame, address: str, history: RowHistory | Waiting) -> dict[str, Any]:
    """Returns the history of a row: the record, and the result of every stage."""
    if isinstance(history, Waiting):
        return {"is_waiting": True}
    stages = [_stage(view, f"{address}/stage/{i}", stage) for i, stage in enumerate(history.stages)]
    return {"is_waiting": False, "stages": stages, "reason": history.reason}


def _stage(view: PageFrame, address: str, stage: StageResult) -> dict[str, Any]:
    notes = [
        f"input {stage.branch.rstrip('.')}" if stage.branch else "",
        "" if stage.index is None else f"index {stage.index:,}",
        stage.note,
    ]
    found: dict[str, Any] = {
        "name": shortened(stage.name, 160),
        "notes": ", ".join([text for text in notes if text]),
        "is_same": stage.is_same,
        "failure": None if stage.error is None else _failure(stage.error),
        "fields": "",
        "num_more": 0,
        "same": "",
    }
    if stage.is_same or stage.error is not None:
        return found
    cells = LeafCells(stage.leaves, address, view.looks)
    is_same = [leaf.path in stage.unchanged for leaf in stage.leaves]
    changed = [i for i, same in enumerate(is_same) if not same]
    names = [cells.name(i) or "the element" for i, same in enumerate(is_same) if same]
    found["fields"] = cells.fields(changed[:_MAX_COLUMNS], full=False) if changed else ""
    found["num_more"] = len(changed[_MAX_COLUMNS:])
    found["same"] = shortened(", ".join(names), 300)
    return found
