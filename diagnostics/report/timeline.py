"""The activity of every thread of a pipeline over time, as a table with a drawn row for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.diagnostics.html_text import html_table, safe, swatch
from gristmill.diagnostics.runtime.summary import StageSummary, ThreadTimeline

# the colour of stages whose elements others compute: their time is that of waiting
WAITING = "waiting"
_MAX_ROWS = 60
_NUM_PARTS = 400  # that the time is cut into
_MAX_SIZE = 400_000  # characters
_MAX_TICKS = 8

_Array = npt.NDArray[np.float64]


@dataclass
class _Row:
    """The drawn row of a thread: the shares of each part of the time, ``shares[layer, part]``."""

    process: str
    name: str
    shares: _Array
    began: float  # in [0, 1]: when it was first seen,
    ended: float  # and last
    is_first: bool = False  # of its process


def timeline_html(
    threads: Sequence[ThreadTimeline],
    stages: Mapping[int, StageSummary],
    colours: Mapping[int, str],
) -> str:
    """Returns a legend and a table with a row for each thread; where there are very many, one for
    all that is left.

    Args:
        threads: what each has done.
        stages: by their ids.
        colours: the classes of the stages' colours, by their ids: as many different ones as there
            are layers in a row.
    """
    if not threads:
        return '<p class="soft">No thread has been seen at work.</p>'
    threads = _in_order(threads)
    begin = min([thread.began_ns for thread in threads])
    end = max([thread.marks[-1][0] if thread.marks else thread.began_ns for thread in threads])
    end = max(end, begin + 1)
    layers = [
        *sorted({colour for colour in colours.values() if colour != WAITING}, key=_layer_order),
        WAITING,
    ]
    rows = _rows(threads, np.linspace(begin, end, _NUM_PARTS + 1), stages, colours, layers)
    html = _table(rows, layers, stages, colours, (end - begin) / 1e9)
    while len(html) > _MAX_SIZE and rows[0].shares.shape[1] % 2 == 0:
        for row in rows:
            row.shares = (row.shares[:, ::2] + row.shares[:, 1::2]) / 2
        html = _table(rows, layers, stages, colours, (end - begin) / 1e9)
    return html


def _layer_order(colour: str) -> tuple[bool, str]:
    return colour == "c0", colour  # the stages that share a colour on top


def _in_order(threads: Sequence[ThreadTimeline]) -> list[ThreadTimeline]:
    """Sorts the main process first, then the workers by number; the thread that takes the elements
    first of all.
    """
    processes = sorted({thread.process for thread in threads}, key=_process_order)
    order = {name: i for i, name in enumerate(processes)}
    return sorted(threads, key=lambda thread: (order[thread.process], not _takes_elements(thread)))


def _process_order(process: str) -> tuple[bool, int, str]:
    number = process.rpartition(" ")[2]
    return process != "main", int(number) if number.isdecimal() else 0, process


def _takes_elements(thread: ThreadTimeline) -> bool:
    return bool(thread.process == "main" and thread.marks and thread.marks[-1][1].get(0))


def _rows(
    threads: list[ThreadTimeline],
    edges: _Array,
    stages: Mapping[int, StageSummary],
    colours: Mapping[int, str],
    layers: list[str],
) -> list[_Row]:
    names = Counter([(thread.process, thread.thread) for thread in threads])
    numbers: Counter[tuple[str, str]] = Counter()
    in_process: Counter[str] = Counter()
    rows, places = [], []
    for thread in threads:
        key = thread.process, thread.thread
        numbers[key] += 1
        name = f"{thread.thread} {numbers[key]}" if names[key] > 1 else thread.thread
        last = thread.marks[-1][0] if thread.marks else thread.began_ns
        began, ended = [(t - edges[0]) / (edges[-1] - edges[0]) for t in (thread.began_ns, last)]
        shares = _shares(thread, edges, stages, colours, layers)
        rows.append(
            _Row(
                thread.process, name, shares, began, ended, is_first=not in_process[thread.process]
            )
        )
        places.append(in_process[thread.process])
        in_process[thread.process] += 1
    if len(rows) <= _MAX_ROWS:
        return rows
    # The first threads of every process, then the second ones, and so on, while there is room.
    shown = {*sorted(range(len(rows)), key=lambda i: (places[i], i))[: _MAX_ROWS - 1]}
    others = [row for i, row in enumerate(rows) if i not in shown]
    shares = np.mean([row.shares for row in others], axis=0)
    began, ended = min([row.began for row in others]), max([row.ended for row in others])
    together = _Row("", f"… and {len(others)} more threads", shares, began, ended, is_first=True)
    return [*[row for i, row in enumerate(rows) if i in shown], together]


def _shares(
    thread: ThreadTimeline,
    edges: _Array,
    stages: Mapping[int, StageSummary],
    colours: Mapping[int, str],
    layers: list[str],
) -> _Array:
    times = np.array([thread.began_ns, *[t for t, _ in thread.marks]], np.float64)
    ids = {i for _, owns in thread.marks for i in owns if i in stages}
    own = {i: np.array([0, *[owns.get(i, 0) for _, owns in thread.marks]], np.float64) for i in ids}
    spent = np.zeros((len(layers), len(times)))  # [layer, mark]
    for i, total in own.items():
        spent[layers.index(colours[i])] += (
            _waited(i, own, stages) if colours[i] == WAITING else total
        )
    # The last mark is of now, the one before it the last that the thread made itself: what it did
    # since, it did soon after.
    done = times[-2] + (spent[:, -1] - spent[:, -2]).sum() if len(times) > 1 else times[-1]
    if done < times[-1]:
        times, spent = np.insert(times, -1, done), np.insert(spent, -1, spent[:, -1], axis=1)
    used = _settled(np.diff(spent), np.diff(times))
    until = np.concatenate([np.zeros((len(layers), 1)), np.cumsum(used, axis=1)], axis=1)
    return np.array([np.diff(np.interp(edges, times, row)) for row in until]) / np.diff(edges)


def _waited(stage: int, own: Mapping[int, _Array], stages: Mapping[int, StageSummary]) -> _Array:
    """Returns the time that a prefetching stage has waited in this thread, which may also compute
    its input.
    """
    waited = own[stage]
    todo, seen = [*stages[stage].inputs], {stage}
    while todo:
        i = todo.pop()
        if i in seen or i not in stages:
            continue
        seen.add(i)
        waited = waited - own.get(i, 0)
        if not stages[i].is_prefetch:
            todo.extend(stages[i].inputs)
    return np.maximum.accumulate(np.maximum(waited, 0))


def _settled(spent: _Array, lengths: _Array) -> _Array:
    """Returns ``spent[layer, part]``, where no part has more than its length: a call is counted
    when it ends, so the rest was before.
    """
    if np.all(spent.sum(axis=0) <= lengths):
        return spent
    spent = spent.copy()
    for i in range(len(lengths) - 1, -1, -1):
        total = spent[:, i].sum()
        if total > lengths[i]:
            rest = spent[:, i] * (1 - lengths[i] / total)
            spent[:, i] -= rest
            if i:
                spent[:, i - 1] += rest
    return spent


def _table(
    rows: list[_Row],
    layers: list[str],
    stages: Mapping[int, StageSummary],
    colours: Mapping[int, str],
    seconds: float,
) -> str:
    num_parts = rows[0].shares.shape[1]
    ticks = _ticks(seconds)
    labels = "".join(
        [f'<span style="left:{100 * tick / seconds:.2f}%">{tick:g} s</span>' for tick in ticks]
    )
    grid = "".join([f"M{num_parts * tick / seconds:.1f} 0V100" for tick in ticks if tick])
    used = {
        layer
        for row in rows
        for layer, shares in zip(layers, row.shares, strict=True)
        if shares.any()
    }
    axis = f'<span class="axis" aria-label="seconds since the beginning">{labels}</span>'
    titles = [("Thread", ""), ("works", "number"), ("waits", "number"), (axis, "")]
    lines = []
    names = {layer: _layer_name(layer, stages, colours) for layer in layers}
    for row in rows:
        shares = [float(x) for x in row.shares.mean(axis=1) / max(row.ended - row.began, 1e-9)]
        parts = [
            f"{names[layer]}: {share:.1%}"
            for layer, share in zip(layers, shares, strict=True)
            if share >= 0.0005
        ]
        who = f"{row.process}: {row.name}" if row.process else row.name
        lines.append(
            f'<tr{" class=process" if row.is_first else ""}><th scope="row" class="thread"'
            f' title="{safe(who)}">{safe(who)}</th><td class="number"'
            f' data-label="works">{min(1, sum(shares[:-1])):.0%}</td><td class="number"'
            f' data-label="waits">{min(1, shares[-1]):.0%}</td><td><svg viewBox="0 0 {num_parts}'
            ' 100" preserveAspectRatio="none" role="img">'
            f"<title>{safe(chr(10).join([who, *parts]))}</title>{_drawn(row, layers)}"
            f'<path class="grid" d="{grid}"/></svg></td></tr>'
        )
    frame = f"scroll{' dense' if len(rows) > 16 else ''}"
    return f"{_legend(used, stages, colours)}\n{html_table(titles, lines, 'timeline', frame)}"


def _drawn(row: _Row, layers: list[str]) -> str:
    """Draws areas from the bottom up to the top of each layer, the highest first. The background
    shows waiting.
    """
    # [layer, part]
    tops = np.minimum(100, np.rint(100 * np.cumsum(row.shares, axis=0))).astype(int)
    parts = [f'<path class="free" d="{_area(tops[-1], 0)}"/>']
    for i in range(len(layers) - 2, -1, -1):
        below = tops[i - 1] if i else 0
        if np.any(tops[i] > below):
            parts.append(f'<path class="{layers[i]}" d="{_area(tops[i], 100)}"/>')
    num_parts = tops.shape[1]
    for left, right in ((0, num_parts * row.began), (num_parts * row.ended, num_parts)):
        if right - left >= 0.1:
            parts.append(f'<path class="absent" d="M{left:.1f} 0H{right:.1f}V100H{left:.1f}z"/>')
    return "".join(parts)


def _area(tops: npt.NDArray[np.int_], base: int) -> str:
    """Returns the area between ``base`` and a line of steps, all parts of the same height in
    one.
    """
    ends = [*np.flatnonzero(np.diff(tops)) + 1, len(tops)]
    return f"M0 {base}" + "".join([f"V{100 - tops[end - 1]}H{end}" for end in ends]) + f"V{base}z"


def _ticks(seconds: float) -> list[float]:
    """Round times, from 0 on."""
    step = next(
        10.0**e * m for e in range(-9, 12) for m in (1, 2, 5) if 10.0**e * m * _MAX_TICKS >= seconds
    )
    return [float(f"{i * step:.6g}") for i in range(int(seconds / step * 0.97) + 1)]


def _legend(used: set[str], stages: Mapping[int, StageSummary], colours: Mapping[int, str]) -> str:
    items = [
        f"<li>{swatch(colours[i])}{i} {safe(short_name(stages[i]))}</li>"
        for i in sorted(stages, reverse=True)
        if colours[i] in used and colours[i] not in ("c0", WAITING)
    ]
    if "c0" in used:
        items.append(f"<li>{swatch('c0')}{_layer_name('c0', stages, colours)}</li>")
    if WAITING in used:
        items.append(f"<li>{swatch(WAITING)}{_layer_name(WAITING, stages, colours)}</li>")
    items.append(f"<li>{swatch('idle')}anything else: no work, or the consumer's own</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _layer_name(layer: str, stages: Mapping[int, StageSummary], colours: Mapping[int, str]) -> str:
    if layer == WAITING:
        return "waiting for what other threads and processes compute"
    if layer == "c0":
        return "other stages"
    return next(f"{i} {short_name(stages[i])}" for i, colour in colours.items() if colour == layer)


def short_name(stage: StageSummary) -> str:
    """Returns its class, and the function if it has one."""
    kind, _, rest = stage.name.partition("(")
    function = (
        rest.removeprefix("transform=").partition(" @")[0] if rest.startswith("transform=") else ""
    )
    return f"{kind[:60]} {function[:60]}".strip()
