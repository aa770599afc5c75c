"""Tar archives with the names of WebDataset: the files of one key are a record."""

from __future__ import annotations

import functools
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gristmill.core.state import shown
from gristmill.prepare.codecs import is_array, json_text
from gristmill.prepare.formats.base import Format, RecordWriter
from gristmill.prepare.formats.decoding import DecodedSource

_KEY = "__key__"
_BLOCK_BYTES = 512
_GOOD_KEY = re.compile(r"(?!__)[^/.][^.]*(?<![/])")
_GOOD_EXTENSION = re.compile(r"[^/A-Z.][^/A-Z]*")


class TarFormat(Format):
    """A record for each element: a dict of extensions, each of which becomes a file.

    The values of an extension are ``bytes`` as they are, texts as UTF-8, integers as decimal
    digits, arrays as NumPy's ``.npy``, and dicts and lists as JSON. All values of an extension must
    be of one kind. The name of a record's files is its ``"__key__"``; without one, the number of
    the file and of the record in it.
    """

    name = "tar"
    num_firsts = 32
    suffixes = (".tar",)

    def __init__(self, options: Mapping[str, Any], kinds: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        self._kinds = dict(kinds or {})

    def described(self) -> dict[str, Any]:
        return {**super().described(), "kinds": self._kinds}

    def restored(self, saved: Mapping[str, Any], codec: Any) -> Self:
        super().restored(saved, codec)
        return type(self)(self.options, saved["kinds"])

    def fitted(self, elements: Sequence[Any]) -> Self:
        kinds: dict[str, str] = {}
        for element in elements:
            _check_dict(element)
            for extension, value in element.items():
                kinds.setdefault(extension, _kind_of(extension, value))
        return type(self)(self.options, kinds)

    def encode(self, element: Any) -> dict[str, Any]:
        _check_dict(element)
        if (_KEY in element) != (_KEY in self._kinds):
            first = "have" if _KEY in self._kinds else "do not have"
            raise TypeError(
                f"all elements or none must have a {_KEY}, and the first ones {first} it"
            )
        return {name: self._encoded(name, value) for name, value in element.items()}

    def size(self, record: dict[str, Any]) -> int:
        sizes = [len(data) for name, data in record.items() if name != _KEY]
        return sum([_BLOCK_BYTES * (1 + -(-size // _BLOCK_BYTES)) for size in sizes])

    def open(self, path: str, number: int) -> RecordWriter:
        return _ArchiveWriter(path, number)

    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.tar import TarSource

        source = TarSource(list(paths), index_dir=self.index_dir)
        return DecodedSource(source, self._decoded)

    def _encoded(self, name: str, value: Any) -> Any:
        kind = _kind_of(name, value)
        if self._kinds.get(name) != kind:
            raise TypeError(
                f"the value of {name!r} is of kind {kind!r}, and {self._kinds.get(name)!r} in the "
                "first elements: convert it by a map before"
            )
        if kind == "key":
            return value
        if kind == "text":
            return value.encode()
        if kind == "npy":
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return file.getvalue()
        return value if kind == "bytes" else json_text(value).encode()

    def _decoded(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: _value_of(self._kinds.get(name, "bytes"), data)
            for name, data in record.items()
            if name != _KEY or _KEY in self._kinds
        }


class _ArchiveWriter:
    def __init__(self, path: str, number: int) -> None:
        self._archive = tarfile.open(path, "w")  # noqa: SIM115 - closed by close
        self._number = number
        self._num_records = 0
        self._keys: set[str] = set()

    def write(self, record: Mapping[str, Any]) -> None:
        key = record.get(_KEY, f"{self._number:06d}-{self._num_records:06d}")
        if key in self._keys:
            raise ValueError(
                f"another record of the file has the key {key!r}, too: give each its own by a map"
                " before"
            )
        self._keys.add(key)
        self._num_records += 1
        for extension, data in record.items():
            if extension != _KEY:
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                self._archive.addfile(member, io.BytesIO(data))

    def close(self) -> None:
        self._archive.close()


def _check_dict(element: Any) -> None:
    if not isinstance(element, dict) or not element.keys() - {_KEY}:
        raise TypeError(
            "it must be a dict of extensions, such as {'jpg': b'...', 'cls': 3}, got "
            f"{shown(element)} of type {type(element).__name__}"
        )


def _kind_of(extension: Any, value: Any) -> str:
    if extension == _KEY:
        if not isinstance(value, str) or not _GOOD_KEY.fullmatch(value):
            raise ValueError(
                f"{_KEY} must be a text without dots that does not begin with '__' or '/', got "
                f"{shown(value)}: replace them by a map before"
            )
        return "key"
    if not isinstance(extension, str) or not _GOOD_EXTENSION.fullmatch(extension):
        raise ValueError(f"extensions must be small letters without '/', got {shown(extension)}")
    if isinstance(value, np.ndarray) and is_array(value):
        if value.dtype.hasobject or _dtype_in_npy(value.dtype) != value.dtype:
            raise TypeError(
                f"the value of {extension!r} has dtype {value.dtype}, which .npy cannot hold: make "
                "an array of numbers or texts of it by a map before, or write array_record"
            )
        return "npy"
    kinds = {bytes: "bytes", str: "text", int: "json", dict: "json", list: "json"}
    if type(value) not in kinds:
        raise TypeError(
            f"the value of {extension!r} must be bytes, a text, an integer, an array, a dict or a "
            f"list, got {type(value).__name__}: convert it by a map before"
        )
    return kinds[type(value)]


@functools.cache
def _dtype_in_npy(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype that NumPy reads from a file with arrays of ``dtype``."""
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))


def _value_of(kind: str, data: Any) -> Any:
    if kind == "text":
        return data.decode()
    if kind == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    return json.loads(data) if kind == "json" else data
