"""Grain's private classes of TFRecord files, as far as programs derive from them to open files in their own way.

The public way is ``TFRecordIterDataset(path, open=...)``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Self

from gristmill.dataset.stages.tfrecord import RecordsIterator
from gristmill.sources.forwards import can_seek
from gristmill.sources.tfrecord import TFRecordFile


class _TFRecordReader:
    """A file that is open. Subclasses open it in ``__init__``, which sets ``_reader``, a binary file object that can seek.

    ``check_crc`` says whether checksums are compared.
    """

    check_crc: ClassVar[bool] = True
    _reader: Any = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = Path(path).open("rb")  # noqa: SIM115  (``close`` closes it)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class _TFRecordDatasetIterator(RecordsIterator):
    """The records of a ``_TFRecordReader``, which a subclass makes in ``__init__``: it sets ``_reader``.

    The reader stays open until ``close``: only the subclass knows how to open it again.
    """

    _reader: _TFRecordReader | None = None

    def __new__(cls, path: Any = "", *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)  # subclasses may call no other constructor than that of ``DatasetIterator``
        RecordsIterator.__init__(self, path if isinstance(path, str | os.PathLike) else str(path))
        return self

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._reader = _TFRecordReader(path)

    def _open(self) -> TFRecordFile:
        reader = self._reader
        if reader is None or not can_seek(reader._reader):
            raise TypeError(
                f"{self} needs a _reader, a _TFRecordReader with a _reader of its own that is a binary file object and can seek, "
                f"got {reader if reader is None else reader._reader!r:.200}. Other files: TFRecordIterDataset(path, open=...)"
            )
        return TFRecordFile(self._path, check_crc=reader.check_crc, compression=None, open=lambda path: reader._reader)

    def _close_file(self) -> None:
        """Leaves it open, at the end and after errors."""

    def close(self) -> None:
        super().close()
        if self._reader is not None:
            self._reader.close()
