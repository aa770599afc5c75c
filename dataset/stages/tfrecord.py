"""``TFRecordIterDataset``: the records of TFRecord files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gristmill.core.naming import transform_name
from gristmill.core.state import state_count
from gristmill.dataset.bases.parameters import field
from gristmill.dataset.engine.files import FileStream
from gristmill.dataset.engine.stream import Pos
from gristmill.dataset.stages.files import FilesIterDataset, FilesParameters
from gristmill.sources.tfrecord import (
    Compression,
    Opener,
    TFRecordFile,
    check_compression,
    check_opener,
)


class TFRecordParameters(FilesParameters):
    check_crc: bool = field(in_checkpoint=False, in_repr=False)
    compression: Compression | None = field(in_checkpoint=False, in_repr=False)
    open: Opener | None = field(is_function=True)

    def __post_init__(self) -> None:
        check_compression(self.compression)
        check_opener(self.open)


class TFRecordStream(FileStream):
    """The records of one TFRecord file. The position is where the next one begins."""

    @property
    def name(self) -> str:
        return "TFRecordDatasetIterator"

    def open_file(self) -> TFRecordFile:
        given = self.stage._gm_parameters
        path = self.absolute_path() if given.open is None else self.path
        return TFRecordFile(
            path, check_crc=given.check_crc, compression=given.compression, open=given.open
        )

    def start(self) -> int:
        return 0

    def save(self, pos: Pos) -> Any:
        return {"reader_offset": pos}

    def load(self, state: object) -> int:
        return state_count(state, "reader_offset", self)

    def read(self, file: TFRecordFile, pos: Pos) -> tuple[list[bytes], list[int]]:
        return self._checked(file, pos).read(pos)

    def skip(self, file: TFRecordFile, pos: Pos) -> int:
        return self._checked(file, pos).skip(pos)

    def _checked(self, file: TFRecordFile, pos: Pos) -> TFRecordFile:
        """Return ``file``, in which a record begins at ``pos``, which may be of a state."""
        if self.find(pos) is None:
            file.check_begin(pos)
        return file

    def key_between(self, before: Pos, after: Pos) -> int:
        return int(before)


class TFRecordIterDataset(FilesIterDataset[bytes]):
    """Returns the records of TFRecord files, as ``bytes``. TensorFlow is not needed.

    Order: the file's; the records of several files in turn, of 16 files at a time (as
    ``InterleaveIterDataset``). State: the offset of the next record in the file; restoring goes
    there at once. Cost: about 1 µs per record; the checksums as much again, and 1 ns per byte.

    Workers (``mp_prefetch``) share files: worker ``i`` of ``n`` reads files ``i``, ``i + n``, ….
    Several workers of a single path are an error: the starts of the records of a file are unknown
    until it is read.

    A record with a wrong checksum, or one that is cut off, is an error when its turn comes;
    ``skip_failed()`` continues after it, unless it is the length that is damaged. A cut-off record
    is the last one.

    Args:
        path: a file, or a sequence of files; none makes an empty dataset. An object with a method
            ``open``, like those of ``pathlib`` and ``etils.epath``, opens itself. Patterns are not
            expanded.
        check_crc: compare the checksums. Grain does not, and reads files that have none.
        compression: ``"gzip"`` or ``"zlib"`` for files that are compressed as a whole. Restoring a
            state then inflates the file up to the offset, which is that in the uncompressed data.
        open: opens files, such as those of an object store, in place of the built-in way: a
            function of a path, as it was given, that returns a binary file object with
            ``read(size)``, which returns ``bytes``, and ``close()``. If that has
            ``seek(offset, whence)`` as well, and no ``seekable()`` that denies it, a state is
            restored at once; else the file is read again up to there. It is called for the first
            record, and for the next one after the end or an error; what it returns is closed then.
            Worker processes need a function that can be pickled. An addition to Grain's arguments.

    Raises:
        TypeError: ``path`` or ``open`` is something else.
        ValueError: ``compression`` is something else.

    Errors of ``next``: ``ValueError`` names the file and the offset of a damaged record;
    ``StateIndexError`` says that a state is about a longer file; ``OSError`` if the file is missing
    or cannot be read; ``TypeError`` if ``open`` returns something else. What ``open`` and its files
    raise is raised as it is, with notes that name the file.

    Example:
        >>> import os, struct, tempfile
        >>> from gristmill.sources.crc32c import masked_crc32c
        >>> def framed(data):
        ...     size = struct.pack("<Q", len(data))
        ...     size_crc, data_crc = [struct.pack("<I", crc) for crc in masked_crc32c([size, data])]
        ...     return size + size_crc + data + data_crc
        >>> path = os.path.join(tempfile.mkdtemp(), "letters.tfrecord")
        >>> with open(path, "wb") as file:
        ...     _ = file.write(b"".join(framed(data) for data in (b"a", b"bb", b"")))
        >>> it = iter(TFRecordIterDataset(path))
        >>> next(it), it.get_state(), list(it)
        (b'a', {'reader_offset': 17}, [b'bb', b''])

        >>> import io
        >>> blobs = {"gs://bucket/letters": framed(b"x") + framed(b"yz")}
        >>> def open_blob(path):
        ...     return io.BytesIO(blobs[path])
        >>> list(TFRecordIterDataset("gs://bucket/letters", open=open_blob))
        [b'x', b'yz']
    """

    _gm_parameters: TFRecordParameters

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        check_crc: bool = True,
        compression: Compression | None = None,
        open: Opener | None = None,
    ) -> None:
        super().__init__(path)
        self._is_one_file = isinstance(path, str | os.PathLike)
        self._gm_parameters = TFRecordParameters(path, bool(check_crc), compression, open)

    def __str__(self) -> str:
        text, opener = super().__str__(), self._gm_parameters.open
        return text if opener is None else f"{text[:-1]}, open={transform_name(opener)})"

    @property
    def _path(self) -> Any:  # for subclasses that were written for Grain
        return self._paths[0] if self._is_one_file else self._paths

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the files: those of one of several workers.

        Raises:
            ValueError: ``path`` is not a sequence.
        """
        if self._is_one_file:
            raise ValueError(
                f"{self} is one file, which cannot be sliced among several workers: "
                "write the records to several files and pass a list of them, or use one worker"
            )
        super().set_slice(sl, sequential_slice)

    def _file_stream(self, path: str | os.PathLike[str]) -> TFRecordStream:
        return TFRecordStream(self, path)
