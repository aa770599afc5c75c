"""Leaves as HTML: in full, among others, and on one line. The size of their content is bounded."""

from __future__ import annotations

import codecs
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.naming import one_line
from gristmill.core.state import shown
from gristmill.diagnostics.graph.spec_text import spec_text
from gristmill.diagnostics.html import macros, shortened
from gristmill.diagnostics.units import size_text, time_text
from gristmill.diagnostics.viewer.leaves import ElementLeaf
from gristmill.diagnostics.viewer.looks import Look, Looks, ids_text
from gristmill.diagnostics.viewer.numbers import ValueStatistics, numbers_of
from gristmill.diagnostics.viewer.pictures import LARGE, SMALL, Picture
from gristmill.diagnostics.viewer.sounds import MAX_SECONDS, outline

if TYPE_CHECKING:
    from markupsafe import Markup

# characters: in full, among others, on one line
_MAX_TEXT, _MAX_SHORT_TEXT, _MAX_LINE = 20_000, 1200, 90
_MAX_SPEC = 120
_MAX_PROBLEM = 400
_MAX_BYTES = 512
_MAX_SHORT = 8  # values of an array that are shown on one line
_MAX_VALUES = 200  # of an array of many dimensions
_MAX_IDS = 2000
_TINY = 96  # pixels: a smaller picture is enlarged without being blurred
_NUM_BINS = 300  # of the outline of a sound


def leaf_html() -> Any:
    """Returns the macros that show leaves."""
    return macros("leaf.html.j2")


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

    def line(self, number: int) -> Markup:
        """Returns a leaf on one line."""
        return _or_error(lambda: self._line(number))

    def _line(self, number: int) -> Markup:
        look, html = self.look(number), leaf_html()
        if look.kind in ("image", "audio", "file", "bytes"):
            return html.key(self.spec(number))
        if look.kind == "error":
            return html.flag(type(look.value).__name__)
        text = look.note if look.kind == "tokens" else look.value
        if look.kind == "array":
            text = _values(look.value, _MAX_SHORT)
        return html.text(one_line(text, _MAX_LINE))

    def fields(self, numbers: Iterable[int], *, full: bool) -> Markup:
        """Leaves with their names, those of a container together, which can be folded."""
        return leaf_html().fields(self._tree(list(numbers), 0, full))

    def _tree(self, numbers: list[int], depth: int, full: bool) -> Markup:
        html = leaf_html()
        parts: list[Markup] = []
        paths = [leaf.path for leaf in self._leaves]
        for name, group in itertools.groupby(numbers, lambda i: paths[i][depth : depth + 1]):
            inside = list(group)
            path = paths[inside[0]]
            if len(path) <= depth + 1:
                name_of = path[-1] if path else "element"
                parts += [html.field(name_of, self.spec(i), self.content(i, full)) for i in inside]
            else:
                content = self._tree(inside, depth + 1, full)
                parts.append(html.group(".".join(path[: depth + 1]), name[0], len(inside), content))
        return html.together(parts)

    def content(self, number: int, full: bool) -> Markup:
        """Returns a leaf without its name."""
        return _or_error(lambda: self._content(number, full))

    def _content(self, number: int, full: bool) -> Markup:
        look, html = self.look(number), leaf_html()
        if look.kind == "image":
            return self.pictures(number, full) + html.note(look.note)
        if look.kind == "audio":
            return self._sound(number, look)
        if look.kind == "file":
            return self._file(number, look)
        if look.documents or look.kind == "tokens":
            what, note = ("ids", "") if look.kind == "tokens" else ("values", look.note)
            ids = html.folded(f"{look.value.size:,} {what}", ids_text(look.value, _MAX_IDS))
            documents = [
                (segment, _text(text, full) if segment else html.paragraph(text))
                for segment, text in look.documents
            ]
            shown = html.documents(documents) if documents else _text(look.note, full)
            return shown + ids + html.note(note)
        if look.kind == "array":
            return _array(look, full)
        if look.kind == "bytes":
            return _bytes(look.value, full)
        if look.kind == "error":
            return _error(look.value)
        return _text(look.value, full) + html.note(look.note)

    def pictures(self, number: int, full: bool) -> Markup:
        """Returns the frames of a picture."""
        picture: Picture = self.look(number).value
        height, width = picture.array.shape[1:3]
        size = LARGE if full else SMALL
        scale = min(1.0, size / max(height, width))
        frames = range(picture.num_frames if full else min(4, picture.num_frames))
        address = f"{self._address}/leaf/{number}.png"
        return leaf_html().pictures(
            [f"{address}?frame={frame}&size={size}" for frame in frames],
            max(1, round(width * scale)),
            max(1, round(height * scale)),
            max(height, width) <= _TINY,
            f"{self.name(number) or 'picture'}, {height} × {width}",
        )

    def _sound(self, number: int, look: Look) -> Markup:
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
            f"the first {MAX_SECONDS} s are played" if seconds > MAX_SECONDS else "",
        ]
        wave = leaf_html().wave(seconds, upper + lower, f"{self._address}/leaf/{number}.wav")
        return wave + leaf_html().note("; ".join(filter(None, texts)))

    def _file(self, number: int, look: Look) -> Markup:
        html, source = leaf_html(), f"{self._address}/leaf/{number}.file"
        if look.media_type.startswith("image/"):
            shown = html.pictures([source], None, None, False, self.name(number))
        else:
            shown = html.audio(source)
        return shown + html.note(f"{look.media_type}, {size_text(len(look.value))}")


def _or_error(make: Callable[[], Markup]) -> Markup:
    """Returns the HTML of a value, or what an object of the user's raises when it is looked at."""
    try:
        return make()
    except Exception as error:
        return _error(error)


def _error(error: BaseException) -> Markup:
    return leaf_html().flag(type(error).__name__) + f" {shown(error, _MAX_PROBLEM)}"


def _array(look: Look, full: bool) -> Markup:
    array, html = look.value, leaf_html()
    if array.ndim == 1 and array.size <= _MAX_SHORT:
        return html.values(_values(array, _MAX_SHORT)) + html.note(look.note)
    numbers = numbers_of(array)
    if numbers is None:
        return html.pre(_values(array, _MAX_VALUES)) + html.note(look.note)
    parts = [range_html(numbers), histogram(numbers)]
    parts += [html.note(_of_sample(numbers)), html.note(look.note)]
    if full:
        parts.append(html.folded("values", _values(array, _MAX_VALUES), array.size <= 100))
    return html.together(parts)


def range_html(numbers: ValueStatistics) -> Markup:
    """Returns the range and the mean of an array, and what is wrong with its values."""
    counts = {"NaN": numbers.num_nan, "infinite": numbers.num_infinite}
    flags = [f"{num:,} {what}" for what, num in counts.items() if num]
    low, high = number_text(numbers.low), number_text(numbers.high)
    if math.isnan(numbers.mean):
        text, about = "", ""
    elif numbers.low == numbers.high:
        text, about = low, "everywhere"
    elif numbers.is_of_truth:
        text, about = f"{low} … {high}", f"{numbers.mean:.1%} true"
    else:
        text, about = f"{low} … {high}", f"mean {number_text(numbers.mean)}"
    return leaf_html().range(text, about, flags)


def histogram(numbers: ValueStatistics) -> Markup | str:
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
    return leaf_html().histogram(bars, number_text(numbers.low), number_text(numbers.high))


def _of_sample(numbers: ValueStatistics) -> str:
    if numbers.is_exact:
        return ""
    return f"of {numbers.num_seen:,} values at random places, of {numbers.num:,}"


def number_text(value: float) -> str:
    is_long = isinstance(value, int) or 1e4 <= abs(value) < 1e12
    return (f"{round(value):,}" if is_long else f"{value:.4g}").replace("-", "−")


def _values(array: Any, limit: int) -> str:
    """Returns the values of an array as text: the first and last ones of a large one."""
    if array.ndim > 3:  # corners of many dimensions are many
        first = [str(x) for x in itertools.islice(array.flat, limit)]
        return " ".join(first) + " …" * (array.size > limit)
    if array.dtype.kind in "OSU":
        lines = [shown(x, _MAX_LINE) for x in itertools.islice(array.flat, limit)]
        return "\n".join(lines) + "\n…" * (array.size > limit)
    if array.dtype.kind == "V" and array.dtype.names:
        return shown(array.reshape(-1)[:limit].tolist(), _MAX_SHORT_TEXT)
    num = 4 if array.ndim < 3 else 2
    text = np.array2string(array, max_line_width=110, precision=4, threshold=limit, edgeitems=num)
    return text.replace("...", "…")


def _text(text: str, full: bool) -> Markup:
    limit, html = _MAX_TEXT if full else _MAX_SHORT_TEXT, leaf_html()
    if not text:
        return html.key("empty")
    if len(text) <= limit:
        return html.paragraph(text)
    note = html.note(f"the first {limit:,} of {len(text):,} characters")
    return html.paragraph(f"{text[:limit]}…") + note


def _bytes(data: bytes, full: bool) -> Markup:
    """Returns bytes as text, if they are that; else in hexadecimal digits."""
    html = leaf_html()
    if not data:
        return html.key("empty")
    is_cut = len(data) > 4 * _MAX_TEXT
    text = _as_text(data[: 4 * _MAX_TEXT], is_cut)
    if text:
        return _text(text, full) + html.note(f"{size_text(len(data))} of bytes" if is_cut else "")
    lines = [
        f"{i:06x}  {data[i : i + 16].hex(' '):<47} "
        f" {''.join([chr(x) if 32 <= x < 127 else '·' for x in data[i : i + 16]])}"
        for i in range(0, min(len(data), _MAX_BYTES if full else 64), 16)
    ]
    return html.pre("\n".join(lines)) + html.note(f"{len(data):,} bytes")


def _as_text(data: bytes, is_cut: bool) -> str:
    """Returns bytes as text, without the part of a character at a cut; nothing if they are not
    text.
    """
    try:
        text, _ = codecs.utf_8_decode(data, "strict", not is_cut)
    except UnicodeDecodeError:
        return ""
    num_shown = sum([character.isprintable() or character in "\n\r\t" for character in text])
    return text if num_shown > 0.95 * len(text) else ""
