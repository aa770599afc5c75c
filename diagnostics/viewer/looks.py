"""The kind of a leaf for display: picture, sound, text, tokens, number or array."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np

from gristmill.core.locks import Lock
from gristmill.core.state import shown
from gristmill.diagnostics.graph.spec_text import is_plain_list
from gristmill.diagnostics.viewer.documents import documents_of
from gristmill.diagnostics.viewer.encoded import media_type_of
from gristmill.diagnostics.viewer.leaves import ElementLeaf, Unreadable
from gristmill.diagnostics.viewer.numbers import as_array, is_numeric
from gristmill.diagnostics.viewer.pictures import Picture, picture_of
from gristmill.diagnostics.viewer.sounds import channels_of

Kind: TypeAlias = Literal[
    "image", "audio", "tokens", "text", "bytes", "file", "scalar", "array", "error"
]

DEFAULT_RATE = 16_000
_MAX_RATE = 400_000
_MAX_TOKENS = 4096
_MAX_DECODED = 20_000  # characters
_KINDS = ("image", "audio", "tokens", "array")
_OPTION = re.compile(r"(image|audio|tokens|array)(?::([1-9]\d{2,6}))?=(.+)")
_IMAGE_NAME = re.compile(
    r"image|img|picture|photo|pixel|frame|video|rgb|depth|mask|canvas|jpe?g|png", re.IGNORECASE
)
_AUDIO_NAME = re.compile(r"audio|wav|sound|speech|voice|pcm", re.IGNORECASE)
_TOKENS_NAME = re.compile(
    r"token|(^|_)ids?$|inputs?$|targets?$|text|sequence|prompt|completion", re.IGNORECASE
)
_NO_TOKENS_NAME = re.compile(r"segment|position|mask|length|weight", re.IGNORECASE)
_RATE_NAMES = ("sampling_rate", "sample_rate", "samplerate", "rate", "sr", "fs")
_TIMES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
_SCALARS = {int, float, complex, bool, type(None), *_TIMES}
_MAX_REPR = 2000  # characters
_MAX_VALUES = 200  # of a document


@dataclass(frozen=True)
class Look:
    """The way to display a leaf.

    Args:
        kind: what it is.
        value: what is shown of it: a picture; sound as [samples, channels]; an array; text, also of
            a scalar; bytes; the error.
        note: what has to be said about it.
        rate: of a sound, samples per second.
        media_type: of a file in bytes.
        documents: of a feature of a packed row, the segment id and the text of each; 0 is padding.
    """

    kind: Kind
    value: Any
    note: str = ""
    rate: int = 0
    media_type: str = ""
    documents: tuple[tuple[int, str], ...] = ()


class Looks:
    """Determines the way to show leaves.

    Args:
        given: ``kind=pattern`` or ``audio:RATE=pattern``: which kind leaves are whose names, joined
            with dots, fit the pattern. Kinds are ``image``, ``audio``, ``tokens`` and ``array``.
        decoder: a function that makes text of a list of token ids.

    Raises:
        ValueError: something else is given.
    """

    def __init__(
        self, given: Sequence[str] = (), decoder: Callable[[list[int]], Any] | None = None
    ) -> None:
        self._given = [_parsed(text) for text in given]
        self._decoder = decoder
        self._lock = Lock()  # decoders may be made for one thread

    def of(self, leaf: ElementLeaf, others: Sequence[ElementLeaf] = ()) -> Look:
        """Returns the way to display a leaf, given the other leaves of its element. Never
        raises.
        """
        try:
            return self._look(leaf, others)
        except Exception as error:  # of an object of the user's
            return Look("error", error)

    def _look(self, leaf: ElementLeaf, others: Sequence[ElementLeaf]) -> Look:
        value = leaf.value
        if isinstance(value, Unreadable):
            return Look("error", value.error)
        if isinstance(value, str):
            return Look("text", str(value))
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            media_type = media_type_of(data)
            return Look("file", data, media_type=media_type) if media_type else Look("bytes", data)
        if type(value) in _SCALARS or isinstance(value, np.generic):
            return Look("scalar", _scalar_text(value))
        if is_plain_list(value) and isinstance(value[0], str | bytes):
            return Look("array", np.asarray(value, object))
        array = as_array(value)
        if array is None:
            return Look("scalar", shown(value, _MAX_REPR), note=type(value).__name__)
        if not array.ndim:
            return Look("scalar", _scalar_text(array[()]))
        return self._of_array(leaf, array, others)

    def _of_array(self, leaf: ElementLeaf, array: Any, others: Sequence[ElementLeaf]) -> Look:
        name = ".".join(leaf.path)
        given = [(kind, rate) for kind, rate, form in self._given if fnmatchcase(name, form)]
        kind, rate = given[0] if given else ("", 0)
        if kind == "array":
            return Look("array", array)
        if kind == "audio" or (not kind and _AUDIO_NAME.search(name)):
            channels = channels_of(array)
            if channels is not None:
                return _sound(channels, rate, leaf, others)
        documents = documents_of(leaf, others)
        has_tokens = not kind and self._decoder is not None and _is_named_as_tokens(leaf)
        if kind == "tokens" or has_tokens:
            is_of_ids = array.ndim == 1 and array.dtype.kind in "iu"
            return self._decoded(array, documents) if is_of_ids else Look("array", array)
        if kind in ("", "image"):
            names = {name for name in ("__array_interface__", "dtype") if hasattr(leaf.value, name)}
            is_of_pil = names == {"__array_interface__"}
            picture = picture_of(array, bool(kind or is_of_pil or _IMAGE_NAME.search(name)))
            if picture is not None:
                return _picture(picture)
        note = f"this is no {kind}" if kind else ""
        return Look("array", array, note=note, documents=_values_of(array, documents))

    def _decoded(self, ids: Any, documents: list[tuple[int, int, int]]) -> Look:
        """Returns the ids and, as the note, their text. A long run of one id at the end is padding,
        as is segment 0 of a packed row.
        """
        if self._decoder is None:
            note = "there is no decoder for its tokens"
            return Look("array", ids, note=note, documents=_values_of(ids, documents))
        different = np.flatnonzero(ids[:-1] != ids[-1:])
        num = int(different[-1]) + 2 if different.size else min(1, ids.size)
        kept = ids[:num] if ids.size - num >= 8 else ids
        try:
            with self._lock:
                texts = [
                    (i, self._text_of(ids[start:stop]) if i else _cells(stop - start))
                    for i, start, stop in documents
                ]
                text = " ".join([text for i, text in texts if i]) if texts else self._text_of(kept)
        except Exception as error:
            note = f"the decoder raised {type(error).__name__}: {shown(str(error))}"
            return Look("array", ids, note=note)
        return Look("tokens", ids, note=text[:_MAX_DECODED], documents=tuple(texts))

    def _text_of(self, ids: Any) -> str:
        assert self._decoder is not None
        return str(self._decoder(ids[:_MAX_TOKENS].tolist()))[:_MAX_DECODED]


def _values_of(array: Any, documents: list[tuple[int, int, int]]) -> tuple[tuple[int, str], ...]:
    if array.ndim != 1:
        return ()
    texts = [
        (i, ids_text(array[start:stop], _MAX_VALUES) if i else _cells(stop - start))
        for i, start, stop in documents
    ]
    return tuple(texts)


def ids_text(array: Any, limit: int) -> str:
    """Returns the first values of a list of ids."""
    more = " …" if array.size > limit else ""
    return " ".join(map(str, array[:limit].tolist())) + more


def _cells(num: int) -> str:
    return f"padding, {num:,} cell{'s' * (num != 1)}"


def _scalar_text(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item() if value.dtype.kind in "biufc" else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if type(value) is int and abs(value) < 10**18:
        return f"{value:,}"
    return str(value) if isinstance(value, (str, *_TIMES)) else shown(value, _MAX_REPR)


def _parsed(text: str) -> tuple[str, int, str]:
    found = _OPTION.fullmatch(text) if isinstance(text, str) else None
    if found is None or (found[2] and (found[1] != "audio" or int(found[2]) > _MAX_RATE)):
        raise ValueError(
            f"it must be KIND=NAME with a kind of {', '.join(_KINDS)}, or audio:RATE=NAME with"
            f" samples per second, got {shown(text)}"
        )
    return found[1], int(found[2] or 0), found[3]


def _is_named_as_tokens(leaf: ElementLeaf) -> bool:
    name = leaf.path[-1] if leaf.path else "tokens"
    return bool(_TOKENS_NAME.search(name)) and not _NO_TOKENS_NAME.search(name)


def _picture(picture: Picture) -> Look:
    notes = []
    if picture.is_scaled:
        notes.append(f"black is {picture.low:.4g}, white {picture.high:.4g}")
    if len(picture.array) > picture.num_frames:
        notes.append(f"{picture.num_frames} of {len(picture.array)} frames")
    return Look("image", picture, note="; ".join(notes))


def _sound(channels: Any, rate: int, leaf: ElementLeaf, others: Sequence[ElementLeaf]) -> Look:
    """Returns a sound with its rate: the one given, one beside it, or one that is common."""
    if rate:
        return Look("audio", channels, rate=rate)
    beside = [x for x in others if x.path and x.path[:-1] == leaf.path[:-1]]
    for other in beside:
        if other.path[-1].lower() in _RATE_NAMES:
            array = np.asarray(other.value)
            if array.size == 1 and is_numeric(array) and 100 <= array.item() <= _MAX_RATE:
                return Look("audio", channels, rate=int(array.item()))
    assumed = (
        f"played at {DEFAULT_RATE:,} Hz, for want of a rate: --as audio:RATE={'.'.join(leaf.path)}"
    )
    return Look("audio", channels, note=assumed, rate=DEFAULT_RATE)
