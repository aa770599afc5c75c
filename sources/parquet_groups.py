"""The row groups of Parquet files: what the footers say of them, and how they are decoded.

What holds when several threads and processes use one ``RowGroups``:

1. A file is open only while its footer, or one of its row groups, is read, by the thread that reads
   it: there are at most as many open files as threads that read.
2. Footers belong to the process. Copies (pickles) carry how many rows the files have, and the
   checksums of their footers.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.core.config import config
from gristmill.core.uninterrupted import in_threads
from gristmill.sources.arrow_files import open_input, open_ranges
from gristmill.sources.arrow_types import check_names_differ, common_type, type_of_values
from gristmill.sources.arrow_values import DecodedRows
from gristmill.sources.kept import KeptValues
from gristmill.sources.parquet import explained
from gristmill.sources.parquet_footer import read_footer
from gristmill.sources.storage import forks
from gristmill.sources.storage.errors import changed
from gristmill.sources.storage.files import Files, is_url
from gristmill.sources.storage.per_process import PerProcess

_FOOTER_BYTES = 64 << 20  # of parsed footers that a process keeps
_PARSED_RATIO = 10  # a footer takes about this many times as much memory as space in the file
_MAX_NAMES = 20  # of columns that an error names


class _Footer(NamedTuple):
    """The facts known about an open file."""

    metadata: Any  # of pyarrow
    checksum: int
    ends: array[int]  # for each row group, the rows of the file up to its end


class RowGroups(PerProcess):
    """The row groups of files, by the number of the file and their number in it. Any thread may
    read at any time.

    Args:
        files: which ones. Sizes below 0 are not known yet.
        filesystem: one of pyarrow or fsspec, or a URI, to read them through; ``None`` reads as
            ``files`` does.
        columns: the names of those to decode; ``None`` for all of the first file.
        verifies: whether checksums are compared.

    Raises:
        ValueError: a file has no such column, or other columns than the first one.
        DamagedFileError: a file is not a Parquet file, or is damaged.
        OSError: a file cannot be read.
    """

    _of_process = ("_ends", "_statuses", "_footers", "_ratio")

    def __init__(
        self, files: Files, filesystem: Any, columns: Sequence[str] | None, verifies: bool
    ) -> None:
        self._files, self._filesystem, self._columns, self._verifies = (
            files,
            filesystem,
            columns,
            verifies,
        )
        self._checksums = array("L")  # of the footers
        self._start_closed()
        first = self._read_footer(0)
        schema = first.metadata.schema.to_arrow_schema()
        self._names = self._checked_names(schema)

        def read(number: int) -> tuple[_Footer, dict[str, Any] | None]:
            footer = self._read_footer(number)
            theirs = footer.metadata.schema.to_arrow_schema()
            types = None if theirs.equals(schema) else self._types(number, theirs)
            return footer._replace(metadata=None), types

        footers, types = [first], self._types(0, schema)
        found = in_threads(read, range(1, len(files)), config.num_threads_computing_num_records)
        for number, (footer, theirs) in enumerate(found, 1):
            footers.append(footer)
            if theirs is not None:
                types = self._common_types(number, types, theirs)
        self._checksums = array("L", [footer.checksum for footer in footers])
        self.num_rows = [footer.ends[-1] for footer in footers]

    def _start_closed(self) -> None:
        self._ends: dict[int, array[int]] = {}  # of the files whose footers were read
        self._statuses: dict[int, Any] = {}  # of local files, when these were read
        self._footers: KeptValues[int, _Footer] = KeptValues(_FOOTER_BYTES)
        self._ratio = 1.0  # of decoded bytes to those in the last row group, which are encoded
        super()._start_closed()

    def _checked_names(self, schema: Any) -> list[str]:
        names = list(dict.fromkeys(schema.names if self._columns is None else self._columns))
        for name in names:
            if name not in schema.names:
                similar = difflib.get_close_matches(name, schema.names)
                hint = f", but {' and '.join(map(repr, similar))}" if similar else ""
                more = ", …" if len(schema.names) > _MAX_NAMES else ""
                known = ", ".join(map(repr, schema.names[:_MAX_NAMES])) + more
                raise ValueError(
                    f"columns: {self._files.paths[0]} has no {name!r}{hint}; it has {known}"
                )
        return names

    def _types(self, number: int, schema: Any) -> dict[str, Any]:
        """Return the types of the values of the wanted columns of a file."""
        wanted = set(self._names) if self._columns else set(schema.names)
        names = [name for name in schema.names if name in wanted]
        check_names_differ(self._files.paths[number], schema, names)
        return {name: type_of_values(schema.field(name).type) for name in names}

    def _common_types(
        self, number: int, ours: dict[str, Any], theirs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the common types of the columns of the files so far and of this one.

        Raises:
            ValueError: the file has other columns.
        """
        differences, common = [], {}
        for name in dict.fromkeys([*ours, *theirs]):
            if name not in theirs or name not in ours:
                differences.append(
                    f"{name!r} is only in the {'second' if name in theirs else 'first'}"
                )
                continue
            common[name] = common_type(ours[name], theirs[name])
            if common[name] is None:
                differences.append(f"{name!r} is {ours[name]} and {theirs[name]}")
        if differences:
            more = (
                f", and {len(differences) - _MAX_NAMES} more"
                if len(differences) > _MAX_NAMES
                else ""
            )
            raise ValueError(
                f"{self._files.paths[0]} and {self._files.paths[number]} have different columns: "
                f"{', '.join(differences[:_MAX_NAMES])}{more}. "
                "Name columns that agree with columns=[...], or make a source of each file"
            )
        return common

    def ends(self, number: int) -> array[int]:
        """Return, for each row group of a file, the rows of the file up to its end."""
        if self._fork != forks.number:
            self._start_closed()
        return self._ends.get(number) or self._footer(number).ends

    def explained(self, number: int, group: int) -> contextlib.AbstractContextManager[None]:
        return explained(f"row group {group} of {self._files.paths[number]}")

    def expected_bytes(self, number: int, group: int) -> int:
        metadata = self._footer(number).metadata.row_group(group)
        return max(int(metadata.total_byte_size * self._ratio), 1)

    def decode(self, number: int, group: int) -> tuple[DecodedRows, int]:
        import pyarrow.parquet

        metadata = self._footer(number).metadata
        row_group = metadata.row_group(group)
        with self.explained(number, group), contextlib.closing(self._open(number)) as opened:
            options = {"pre_buffer": True, "page_checksum_verification": self._verifies}
            try:
                file = pyarrow.parquet.ParquetFile(opened, metadata=metadata, **options)
                table = file.read_row_group(group, columns=self._names if self._columns else None)
            finally:
                self._check_unchanged(number)
            if self._names and table.num_rows != row_group.num_rows:
                raise ValueError("it has fewer rows than its metadata say")
            columns = dict(zip(table.column_names, table.columns, strict=True))
            decoded = DecodedRows(self._names, [columns[name] for name in self._names])
        self._ratio = decoded.num_bytes / max(row_group.total_byte_size, 1)
        return decoded, decoded.num_bytes

    def _footer(self, number: int) -> _Footer:
        def read() -> tuple[_Footer, int]:
            footer = self._read_footer(number)
            return footer, footer.metadata.serialized_size * _PARSED_RATIO

        return self._footers.get(number, lambda: 1, read)

    def _read_footer(self, number: int) -> _Footer:
        import pyarrow.parquet

        path = self._files.paths[number]
        status = self._status(number)
        with explained(path), contextlib.closing(self._open(number)) as opened:
            self._check_size(number, opened.size())
            footer = read_footer(opened)
            checksum = zlib.crc32(footer)
            if self._checksums and checksum != self._checksums[number]:
                raise changed(path, "its footer is another one")
            if footer:  # is read once; pyarrow would read it again
                content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
                metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(content))
            else:
                metadata = pyarrow.parquet.read_metadata(opened)  # says what is wrong
            num_rows = [
                metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)
            ]
            # The number of rows of the whole file is not used: some writers leave it 0.
            if min(num_rows, default=0) < 0:
                raise ValueError(f"its metadata say that a row group has {min(num_rows)} rows")
        ends = array("q", itertools.accumulate(num_rows) if num_rows else [0])
        self._statuses.setdefault(number, status)
        self._ends[number] = ends
        return _Footer(metadata, checksum, ends)

    def _open(self, number: int) -> Any:
        """Return the file, open: a ``pyarrow.NativeFile``."""
        from pyarrow import fs

        path = self._files.paths[number]
        if self._filesystem is not None:
            return open_input(path, self._filesystem)
        if is_url(path):
            return open_ranges(self._files, number)
        return open_input(self._files.local_path(number), fs.LocalFileSystem())

    def _status(self, number: int) -> Any:
        """Return the part of the status that changes when a local file is written to; ``None`` for
        others.
        """
        path = self._files.paths[number]
        if self._filesystem is not None or is_url(path):
            return None
        status = Path(self._files.local_path(number)).stat()
        return status.st_size, status.st_mtime_ns

    def _check_unchanged(self, number: int) -> None:
        status = self._status(number)
        # none, after another thread has called ``close``
        if status != self._statuses.get(number, status):
            raise changed(self._files.paths[number], "it was written to")

    def _check_size(self, number: int, size: int) -> None:
        expected = self._files.sizes[number]
        if expected < 0:
            self._files.sizes[number] = size
        elif size != expected:
            raise changed(self._files.paths[number], f"it had {expected} bytes and has {size}")

    def close(self) -> None:
        """Lets go of footers, files and connections. What is read next opens them again."""
        self._files.close()
        self._start_closed()
