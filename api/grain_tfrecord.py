"""Grain's private classes of TFRecord filesfor programs that derive from them to open files in
their own way.

The public way is ``TFRecordIterDataset(path, open=...)``.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset, TFRecordStream
from gristmill.sources.forwards import can_seek
from gristmill.sources.tfrecord import TFRecordFile


class _TFRecordReader:
    """A file that is open. Subclasses open it in ``__init__``, which sets ``_reader``, a binary
    file object that can seek.

    ``check_crc`` says whether checksums are compared.
    """

    check_crc: ClassVar[bool] = True
    _reader: Any = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = Path(path).open("rb")  # noqa: SIM115  (``close`` closes it)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class _TFRecordDatasetIterator(StreamIterator[bytes]):
    """The records of a ``_TFRecordReader``, which a subclass makes in ``__init__``: it sets
    ``_reader``.

    The reader stays open until ``close``: only the subclass knows how to open it again.
    """

    _reader: _TFRecordReader | None = None

    def __new__(cls, path: Any = "", *args: Any, **kwargs: Any) -> Self:
        # subclasses may call no other constructor than that of ``DatasetIterator``
        self = super().__new__(cls)
        stage = TFRecordIterDataset(path if isinstance(path, str | os.PathLike) else str(path))
        StreamIterator.__init__(
            self, stage, [], partial(_ReaderRecords, it=weakref.ref(self), name=cls.__name__)
        )
        return self

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = _TFRecordReader(path)

    def close(self) -> None:
        super().close()
        self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        super().__del__(is_finalizing)
        self._close_reader()


class _ReaderRecords(TFRecordStream):
    """The records of the reader of an iterator, which closes it."""

    def __init__(self, stage: Any, it: weakref.ref[_TFRecordDatasetIterator], name: str) -> None:
        super().__init__(stage, stage._path)
        self._it = it
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def open_file(self) -> TFRecordFile:
        it = self._it()
        reader = None if it is None else it._reader
        if reader is None or not can_seek(reader._reader):
            raise TypeError(
                f"{self} needs a _reader, a _TFRecordReader with a _reader of its own that is a"
                " binary file object and can seek, got"
                f" {reader if reader is None else reader._reader!r:.200}. Other files:"
                " TFRecordIterDataset(path, open=...)"
            )
        return TFRecordFile(
            self.path,
            check_crc=reader.check_crc,
            compression=None,
            open=lambda path: reader._reader,
        )

    def close_file(self) -> None:
        """Leave it open, at the end and after errors."""
