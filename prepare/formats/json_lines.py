"""JSON lines, plain or compressed in parts that can be decompressed alone."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from gristmill.core.errors import missing_package
from gristmill.core.state import shown
from gristmill.prepare.codecs import json_text
from gristmill.prepare.formats.base import Format, RecordWriter
from gristmill.prepare.formats.columns import Columns
from gristmill.prepare.formats.decoding import DecodedSource

_PART_BYTES = 1 << 18  # of text that is compressed together, and decompressed to read a record
_SUFFIXES = {None: ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}


class JsonLinesFormat(Format):
    """A line of JSON for each element: a dict, or any other value that JSON has.

    ``compression`` is ``None``, ``"gzip"`` or ``"zstd"``.
    """

    name = "jsonl"
    num_firsts = 32
    option_names: ClassVar[Mapping[str, Any]] = {"compression": None}

    def __init__(self, options: Mapping[str, Any], columns: Columns | None = None) -> None:
        super().__init__(options)
        if self.options["compression"] not in _SUFFIXES:
            raise ValueError(
                "compression must be None, 'gzip' or 'zstd', got "
                f"{shown(self.options['compression'])}"
            )
        if self.options["compression"] == "zstd":
            _zstandard()
        self._columns = columns

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (_SUFFIXES[self.options["compression"]],)

    def described(self) -> dict[str, Any]:
        return {
            **super().described(),
            "columns": None if self._columns is None else self._columns.types,
        }

    def restored(self, saved: Mapping[str, Any], codec: Any) -> Self:
        super().restored(saved, codec)
        return type(self)(
            self.options, None if saved["columns"] is None else Columns(saved["columns"])
        )

    def fitted(self, elements: Sequence[Any]) -> Self:
        is_table = bool(elements) and isinstance(elements[0], dict)
        return type(self)(self.options, Columns.of(elements) if is_table else None)

    def encode(self, element: Any) -> bytes:
        if self._columns is not None:
            element = self._columns.plain(element)
        return f"{json_text(element)}\n".encode()

    def size(self, record: bytes) -> int:
        return len(record)

    def open(self, path: str, number: int) -> RecordWriter:
        return _LinesWriter(path, self.options["compression"])

    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.json_lines import JsonlSource

        source = JsonlSource(list(paths), index_dir=self.index_dir)
        return source if self._columns is None else DecodedSource(source, self._columns.element)


class _LinesWriter:
    def __init__(self, path: str, compression: str | None) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115 - closed by close
        self._compression = compression
        self._lines: list[bytes] = []
        self._num_bytes = 0

    def write(self, record: bytes) -> None:
        self._lines.append(record)
        self._num_bytes += len(record)
        if self._num_bytes >= _PART_BYTES:
            self._flush()

    def close(self) -> None:
        try:
            if self._lines:
                self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        text = b"".join(self._lines)
        self._lines, self._num_bytes = [], 0
        if self._compression == "gzip":
            compressor = zlib.compressobj(6, wbits=31)  # a header without name and time
            text = compressor.compress(text) + compressor.flush()
        elif self._compression == "zstd":
            text = _zstandard().ZstdCompressor(write_content_size=True).compress(text)
        self._file.write(text)


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise missing_package("zstandard", "zstd", "compression='zstd'") from error
