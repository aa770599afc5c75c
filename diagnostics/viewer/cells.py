"""Leaves as HTML: in full, among others, and on one line. Their content is escaped as text, and its
size is bounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gristmill.core.naming import one_line
from gristmill.core.state import shown
from gristmill.diagnostics.graph.spec_text import spec_text
from gristmill.diagnostics.html_text import safe, shortened
from gristmill.diagnostics.units import size_text, time_text
from gristmill.diagnostics.viewer.leaves import ElementLeaf
from gristmill.diagnostics.viewer.looks import Look, Looks
from gristmill.diagnostics.viewer.numbers import ValueStatistics, numbers_of
from gristmill.diagnostics.viewer.pictures import LARGE, SMALL, Picture
from gristmill.diagnostics.viewer.sounds import MAX_SECONDS, outline

# characters: in full, among others, on one line
_MAX_TEXT, _MAX_SHORT_TEXT, _MAX_LINE = 20_000, 1200, 90
_MAX_SPEC = 120
_MAX_BYTES = 512
_MAX_SHORT = 8  # values of an array that are shown on one line
_MAX_VALUES = 200  # of an array of many dimensions
_TINY = 96  # pixels: a smaller picture is enlarged without being blurred
_NUM_BINS = 300  # of the outline of a sound


class LeafCells:
    """The leaves of an element, or of a row, as HTML.

    Args:
        leaves: all leaves of it.
        address: where it is, as links say it: pictures and sounds are below that.
        looks: the way to show leaves.
    """

    def __init__(self, leaves: Sequence[ElementLeaf], address: str, looks: Looks) -> None:
        self._leaves = leaves
        self._address = address
        self._looks = looks
        self._seen: dict[int, Look] = {}

    def __len__(self) -> int:
        return len(self._leaves)

    def look(self, number: int) -> Look:
        if number not in self._seen:
            self._seen[number] = self._looks.of(self._leaves[number], self._leaves)
        return self._seen[number]

    def is_none(self, number: int) -> bool:
        return self._leaves[number].value is None

    def name(self, number: int) -> str:
        return ".".join(self._leaves[number].path)

    def spec(self, number: int) -> str:
        return shortened(spec_text(self._leaves[number].value), _MAX_SPEC).removesuffix("[]")

    def is_short(self, number: int) -> bool:
        """True if a leaf fits on one line."""
        look = self.look(number)
        if look.kind in ("text", "scalar"):
            return len(look.value) <= _MAX_LINE and "\n" not in look.value
        return (
            look.kind == "array"
            and not look.documents
            and look.value.ndim == 1
            and look.value.size <= _MAX_SHORT
        )

    def line(self, number: int) -> str:
        """Returns a leaf on one line."""
        return _or_error(lambda: self._line(number))

    def _line(self, number: int) -> str:
        look = self.look(number)
        if look.kind in ("image", "audio", "file", "bytes"):
            return f'<span class="key">{safe(self.spec(number))}</span>'
        if look.kind == "error":
            return _error(look.value, 0)
        text = (
            look.note
            if look.kind == "tokens"
            else _values(look.value, _MAX_SHORT)
            if look.kind == "array"
            else look.value
        )
        return safe(one_line(text, _MAX_LINE))

    def fields(self, numbers: Iterable[int], *, full: bool) -> str:
        """Leaves with their names, those of a container together, which can be folded."""
        return f'<dl class="fields">{self._tree(list(numbers), 0, full)}</dl>'

    def _tree(self, numbers: list[int], depth: int, full: bool) -> str:
        parts = []
        for name, group in itertools.groupby(
            numbers, lambda i: self._leaves[i].path[depth : depth + 1]
        ):
            inside = list(group)
            path = self._leaves[inside[0]].path
            if len(path) <= depth + 1:
                parts += [self._field(i, full) for i in inside]
                continue
            what = f"{len(inside):,} value{'s' * (len(inside) != 1)}"
            parts.append(
                f'<details class="group" open data-path="{safe(".".join(path[: depth + 1]))}">'
                f"<summary>{safe(name[0])} <small>{what}</small></summary>"
                f'<dl class="fields">{self._tree(inside, depth + 1, full)}</dl></details>'
            )
        return "".join(parts)

    def _field(self, number: int, full: bool) -> str:
        path = self._leaves[number].path
        name = safe(path[-1]) if path else "element"
        title = f"<dt>{name} <small>{safe(self.spec(number))}</small></dt>"
        return f'<div class="field">{title}<dd>{self.content(number, full)}</dd></div>'

    def content(self, number: int, full: bool) -> str:
        """Returns a leaf without its name."""
        return _or_error(lambda: self._content(number, full))

    def _content(self, number: int, full: bool) -> str:
        look = self.look(number)
        if look.kind == "image":
            return self.pictures(number, full) + _note(look.note)
        if look.kind == "audio":
            return self._sound(number, look)
        if look.kind == "file":
            return self._file(number, look)
        if look.documents:
            title = f"{look.value.size:,} {'ids' if look.kind == 'tokens' else 'values'}"
            return (
                _documents(look, full)
                + _folded(title, _ids(look.value), False)
                + _note("" if look.kind == "tokens" else look.note)
            )
        if look.kind == "tokens":
            return _text(look.note, full) + _folded(
                f"{look.value.size:,} ids", _ids(look.value), False
            )
        if look.kind == "array":
            return _array(look, full)
        if look.kind == "bytes":
            return _bytes(look.value, full)
        if look.kind == "error":
            return _error(look.value, 400)
        return _text(look.value, full) + _note(look.note)

    def pictures(self, number: int, full: bool) -> str:
        """Returns the frames of a picture."""
        picture: Picture = self.look(number).value
        height, width = picture.array.shape[1:3]
        size = LARGE if full else SMALL
        scale = min(1.0, size / max(height, width))
        attributes = (
            f'width="{max(1, round(width * scale))}" height="{max(1, round(height * scale))}"'
            ' loading="lazy"'
        )
        tiny = ' class="tiny"' if max(height, width) <= _TINY else ""
        name = safe(f"{self.name(number) or 'picture'}, {height} × {width}")
        return (
            '<div class="pictures">'
            + "".join(
                [
                    "<img"
                    f' src="{self._address}/leaf/{number}.png?frame={frame}&amp;size={size}"{tiny}'
                    f' {attributes} alt="{name}">'
                    for frame in range(picture.num_frames if full else min(4, picture.num_frames))
                ]
            )
            + "</div>"
        )

    def _sound(self, number: int, look: Look) -> str:
        seconds = len(look.value) / look.rate
        lows, highs = outline(look.value, _NUM_BINS)
        step = 600 / len(lows)
        upper = [f"{i * step:.1f} {36 - 34 * high:.1f}" for i, high in enumerate(highs)]
        lower = [f"{i * step:.1f} {36.5 - 34 * low:.1f}" for i, low in reversed([*enumerate(lows)])]
        num = look.value.shape[1]
        texts = [
            f"{time_text(1e9 * seconds)} at {look.rate:,} Hz",
            f"{num} channels" if num > 1 else "",
            look.note,
        ]
        texts.append(f"the first {MAX_SECONDS} s are played" if seconds > MAX_SECONDS else "")
        return (
            f'<div class="sound" data-seconds="{seconds:.6f}"><svg viewBox="0 0 600 73"'
            ' preserveAspectRatio="none" role="img" aria-label="waveform"><path class="wave"'
            f' d="M{" L".join(upper + lower)}Z"/><line class="head-line" x1="0" x2="0" y1="0"'
            ' y2="73"/></svg><audio controls preload="none"'
            f' src="{self._address}/leaf/{number}.wav"></audio></div>'
            + _note("; ".join([text for text in texts if text]))
        )

    def _file(self, number: int, look: Look) -> str:
        source = f"{self._address}/leaf/{number}.file"
        size = _note(f"{look.media_type}, {size_text(len(look.value))}")
        if look.media_type.startswith("image/"):
            return (
                f'<div class="pictures"><img src="{source}" loading="lazy"'
                f' alt="{safe(self.name(number))}"></div>{size}'
            )
        return f'<audio controls preload="none" src="{source}"></audio>{size}'


def _or_error(make: Callable[[], str]) -> str:
    """Returns the HTML of a value, or what an object of the user's raises when it is looked at."""
    try:
        return make()
    except Exception as error:
        return _error(error, 400)


def _error(error: BaseException, limit: int) -> str:
    text = f" {safe(shown(error, limit))}" if limit else ""
    return f'<span class="flag">{safe(type(error).__name__)}</span>{text}'


def _array(look: Look, full: bool) -> str:
    array = look.value
    if array.ndim == 1 and array.size <= _MAX_SHORT:
        return f'<span class="values">{safe(_values(array, _MAX_SHORT))}</span>{_note(look.note)}'
    numbers = numbers_of(array)
    if numbers is None:
        return f"<pre>{safe(_values(array, _MAX_VALUES))}</pre>{_note(look.note)}"
    parts = [range_text(numbers), histogram(numbers), _note(_of_sample(numbers)), _note(look.note)]
    if full:
        parts.append(_folded("values", _values(array, _MAX_VALUES), array.size <= 100))
    return "".join(parts)


def range_text(numbers: ValueStatistics) -> str:
    """Returns the range and the mean of an array, and what is wrong with its values."""
    flags = [
        f"{num:,} {what}"
        for num, what in ((numbers.num_nan, "NaN"), (numbers.num_infinite, "infinite"))
        if num
    ]
    marks = "".join([f' <span class="flag">{flag}</span>' for flag in flags])
    if math.isnan(numbers.mean):
        return marks
    if numbers.low == numbers.high:
        return (
            f'<span class="range">{number_text(numbers.low)} <span'
            f' class="key">everywhere</span></span>{marks}'
        )
    text = f"{number_text(numbers.low)} … {number_text(numbers.high)}"
    mean = (
        f"{numbers.mean:.1%} true" if numbers.is_of_truth else f"mean {number_text(numbers.mean)}"
    )
    return f'<span class="range">{text} <span class="key">{mean}</span></span>{marks}'


def histogram(numbers: ValueStatistics) -> str:
    """Returns a histogram of values: bars that fill the width of the picture, the highest one its
    height.
    """
    if len(numbers.counts) < 2 or numbers.low == numbers.high:
        return ""
    width, most = 100 / len(numbers.counts), max(numbers.counts)
    gap = 0.2 * width
    bars = [
        f"M{i * width + gap / 2:.2f} 40v-{max(0.8, 40 * count / most):.2f}h{width - gap:.2f}V40z"
        for i, count in enumerate(numbers.counts)
        if count
    ]
    title = f"histogram from {number_text(numbers.low)} to {number_text(numbers.high)}"
    shape = (
        'class="hist" viewBox="0 0 100 40" preserveAspectRatio="none" role="img"'
        f' aria-label="{title}"'
    )
    return f'<svg {shape}><path d="{"".join(bars)}"/></svg>'


def _of_sample(numbers: ValueStatistics) -> str:
    return (
        ""
        if numbers.is_exact
        else f"of {numbers.num_seen:,} values at random places, of {numbers.num:,}"
    )


def number_text(value: float) -> str:
    is_long = isinstance(value, int) or 1e4 <= abs(value) < 1e12
    return (f"{round(value):,}" if is_long else f"{value:.4g}").replace("-", "−")


def _values(array: Any, limit: int) -> str:
    """Returns the values of an array as text: the first and last ones of a large one."""
    if array.ndim > 3:  # corners of many dimensions are many
        first = [str(x) for x in itertools.islice(array.flat, limit)]
        return " ".join(first) + (" …" if array.size > limit else "")
    if array.dtype.kind in "OSU":
        return "\n".join([shown(x, _MAX_LINE) for x in itertools.islice(array.flat, limit)]) + (
            "\n…" * (array.size > limit)
        )
    if array.dtype.kind == "V" and array.dtype.names:
        return shown(array.reshape(-1)[:limit].tolist(), _MAX_SHORT_TEXT)
    text = np.array2string(
        array,
        threshold=limit,
        max_line_width=110,
        precision=4,
        edgeitems=4 if array.ndim < 3 else 2,
    )
    return text.replace("...", "…")


def _ids(array: Any) -> str:
    more = " …" if array.size > 10 * _MAX_VALUES else ""
    return " ".join(map(str, array[: 10 * _MAX_VALUES].tolist())) + more


def _documents(look: Look, full: bool) -> str:
    """Returns the documents of a packed row, each on lines of its own."""
    items = []
    for segment, text in look.documents:
        content = _text(text, full) if segment else f'<p class="text">{safe(text)}</p>'
        items.append(
            "<li"
            f' class="{"doc" if segment else "pad"}"><small>{segment or ""}</small>{content}</li>'
        )
    return f'<ol class="docs">{"".join(items)}</ol>'


def _text(text: str, full: bool) -> str:
    limit = _MAX_TEXT if full else _MAX_SHORT_TEXT
    if not text:
        return '<span class="key">empty</span>'
    more = _note(f"the first {limit:,} of {len(text):,} characters") if len(text) > limit else ""
    return f'<p class="text">{safe(text[:limit])}{"…" if more else ""}</p>{more}'


def _bytes(data: bytes, full: bool) -> str:
    """Returns bytes as text, if they are that; else in hexadecimal digits."""
    if not data:
        return '<span class="key">empty</span>'
    head = data[: 4 * _MAX_TEXT]
    try:
        text = (head[:-3] if len(head) < len(data) else head).decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        text = (
            head[: error.start].decode()
            if error.start >= len(head) - 3 and len(head) < len(data)
            else ""
        )
    if text and sum(
        [character.isprintable() or character in "\n\r\t" for character in text]
    ) > 0.95 * len(text):
        return _text(text, full) + (
            _note(f"{size_text(len(data))} of bytes") if len(head) < len(data) else ""
        )
    lines = [
        f"{i:06x}  {data[i : i + 16].hex(' '):<47} "
        f" {''.join([chr(x) if 32 <= x < 127 else '·' for x in data[i : i + 16]])}"
        for i in range(0, min(len(data), _MAX_BYTES if full else 64), 16)
    ]
    return f"<pre>{safe(chr(10).join(lines))}</pre>{_note(f'{len(data):,} bytes')}"


def _folded(title: str, text: str, is_open: bool) -> str:
    return (
        f'<details class="plain"{" open" * is_open}><summary>{title}</summary>'
        f"<pre>{safe(text)}</pre></details>"
    )


def _note(text: str) -> str:
    return f"<small>{safe(text)}</small>" if text else ""
