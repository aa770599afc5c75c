"""Formats whose records are bytes: ArrayRecord, Bagz, TFRecord."""

from __future__ import annotations

import abc
import importlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from gristmill.core.errors import as_int, missing_package
from gristmill.core.state import shown
from gristmill.prepare.codecs import Codec, codec_of, described_codec
from gristmill.prepare.formats.base import Format, RecordWriter
from gristmill.prepare.formats.decoding import DecodedSource
from gristmill.sources.crc32c import masked_crc32c

_TOGETHER = 1024  # TFRecords whose checksums are computed together
_TOGETHER_BYTES = 1 << 20


class BytesFormat(Format):
    """The base of formats whose records are bytes.

    Args:
        options: see ``option_names``.
        codec: what encodes elements; ``None``: chosen by the first one.
    """

    takes_codec = True

    def __init__(self, options: Mapping[str, Any], codec: Codec | None = None) -> None:
        super().__init__(options)
        self.codec = codec

    def described(self) -> dict[str, Any]:
        assert self.codec is not None  # fitted
        return {**super().described(), "codec": self.codec.described()}

    def restored(self, saved: Mapping[str, Any], codec: Any) -> Self:
        return type(self)(self.options, described_codec(saved["codec"], codec))

    def fitted(self, elements: Sequence[Any]) -> Self:
        is_bytes = bool(elements) and type(elements[0]) is bytes
        codec = self.codec or codec_of("bytes" if is_bytes else "msgpack")
        return type(self)(self.options, codec.fitted(elements))

    def encode(self, element: Any) -> bytes:
        assert self.codec is not None
        return self.codec.encode(element)

    def size(self, record: bytes) -> int:
        return len(record)

    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        assert self.codec is not None
        records = self._records(paths, counts)
        return records if self.codec.name == "bytes" else DecodedSource(records, self.codec.decode)

    @abc.abstractmethod
    def _records(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        """Return a source of the encoded records of files, ``counts`` of them in each."""


class ArrayRecordFormat(BytesFormat):
    """ArrayRecord, written by array_record.

    ``group_size`` is 1 by default: records of a group are compressed together, so that reading one
    decodes all of them.
    """

    name = "array_record"
    option_names: ClassVar[Mapping[str, Any]] = {"group_size": 1, "compression": None}
    suffixes = (".array_record",)
    is_read_by_path = True

    def __init__(self, options: Mapping[str, Any], codec: Codec | None = None) -> None:
        super().__init__(options, codec)
        as_int("group_size", self.options["group_size"], minimum=1)
        compression = self.options["compression"]
        if compression is not None and not isinstance(compression, str):
            raise TypeError(
                "compression must be None, 'zstd', 'brotli', 'snappy' or 'uncompressed', or a "
                "codec with a level such as "
                f"'zstd:9', got {shown(compression)}"
            )
        _array_record()

    def open(self, path: str, number: int) -> RecordWriter:
        compression = self.options["compression"]
        options = f"group_size:{self.options['group_size']}"
        options += "" if compression is None else f",{compression}"
        try:
            return _array_record().ArrayRecordWriter(path, options)
        except (RuntimeError, ValueError) as error:
            if "option" in str(error).lower():
                raise ValueError(
                    f"compression must be one that ArrayRecord knows, got {shown(compression)}: "
                    f"{error}"
                ) from error
            raise

    def _records(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.array_record import ArrayRecordDataSource

        # With ranges, no file is opened before it is read.
        return ArrayRecordDataSource(
            [f"{path}[0:{count}]" for path, count in zip(paths, counts, strict=True)]
        )


class BagFormat(BytesFormat):
    """Bagz, written by bagz. Records are compressed one by one.

    ``compression`` is ``"zstd"``, the default, or ``"none"``.
    """

    name = "bagz"
    option_names: ClassVar[Mapping[str, Any]] = {"compression": None}
    is_read_by_path = True
    is_cut_at_commas = True

    def __init__(self, options: Mapping[str, Any], codec: Codec | None = None) -> None:
        super().__init__(options, codec)
        if self.options["compression"] not in (None, "zstd", "none"):
            raise ValueError(
                "compression must be None, 'zstd' or 'none', got "
                f"{shown(self.options['compression'])}"
            )
        _bagz()

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".bag",) if self.options["compression"] == "none" else (".bagz",)

    def open(self, path: str, number: int) -> RecordWriter:
        return _bagz().Writer(path)

    def _records(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.bag import BagDataSource

        return BagDataSource(list(paths))


class TFRecordFormat(BytesFormat):
    """TFRecord, without TensorFlow. It has no index: a reader goes through a file once."""

    name = "tfrecord"
    suffixes = (".tfrecord",)

    def open(self, path: str, number: int) -> RecordWriter:
        return _TFRecordWriter(path)

    def _records(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.prepare.formats.tfrecord_index import TFRecordRecords

        return TFRecordRecords(paths, counts)


class _TFRecordWriter:
    def __init__(self, path: str) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115 - closed by close
        self._records: list[bytes] = []
        self._num_bytes = 0

    def write(self, record: bytes) -> None:
        self._records.append(record)
        self._num_bytes += len(record)
        if self._num_bytes >= _TOGETHER_BYTES or len(self._records) >= _TOGETHER:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        """Writes records together: computing checksums one by one takes ten times as long."""
        records, self._records, self._num_bytes = self._records, [], 0
        sizes = [struct.pack("<Q", len(record)) for record in records]
        crcs = masked_crc32c([*sizes, *records]).astype("<u4").tobytes()
        words = [crcs[i : i + 4] for i in range(0, len(crcs), 4)]
        frames = zip(sizes, words[: len(sizes)], records, words[len(sizes) :], strict=True)
        self._file.write(b"".join([part for frame in frames for part in frame]))


def _array_record() -> Any:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise missing_package("array-record", "array-record", "format='array_record'") from error


def _bagz() -> Any:
    try:
        return importlib.import_module("bagz")
    except ImportError as error:
        raise missing_package("bagz", "bagz", "format='bagz'") from error
