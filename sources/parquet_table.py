"""``ParquetSource``: rows of Parquet files in any order.

What holds when several threads and processes use one source:

1. A row group is decoded by one thread at a time; others that want rows of it wait for it (``kept.py``).
2. A file is open only while its footer, or one of its row groups, is read, by the thread that reads it: there are at most as
   many open files as threads that read.
3. Row groups and footers belong to the process. Copies (pickles) carry neither, and so does a process that was forked.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import operator
import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, SupportsIndex

from gristmill.core.config import config
from gristmill.core.errors import KeyRangeError, as_int, missing_package
from gristmill.sources.arrow_files import open_input, open_ranges
from gristmill.sources.arrow_values import DecodedRows, is_dictionary
from gristmill.sources.kept import KeptValues
from gristmill.sources.parquet import checked_columns, explained
from gristmill.sources.parquet_footer import read_footer
from gristmill.sources.storage.errors import changed
from gristmill.sources.storage.files import Files, is_url, list_files

_FOOTER_BYTES = 64 << 20  # of parsed footers that a process keeps
_PARSED_RATIO = 10  # a footer takes about this many times as much memory as space in the file
_MAX_NAMES = 20  # of columns that an error names


class _Footer(NamedTuple):
    """What is known of an open file."""

    metadata: Any  # of pyarrow
    checksum: int
    ends: array[int]  # for each row group, the rows of the file up to its end


class ParquetSource:
    """The rows of one or more Parquet files, as dictionaries: the name of a column to a value.

    Keys count through the rows of the files in the order given. A value is what ``ParquetIterDataset`` gives: NumPy scalars for
    numbers and dates, ``str`` and ``bytes``, arrays for lists, dictionaries for structs; a missing value is ``None``, NaN or NaT,
    and in a row group where an integer is missing, that column is of floats.

    To read a row, its row group is decoded, the wanted columns alone. Decoded row groups are kept until they have ``max_bytes``
    together; then those used longest ago are dropped. So read in an order that stays within a row group for a while, unless all
    of them fit: ``ds.block_shuffle(block_size)``, with about as many rows as a row group has. Pages of a row group cannot be read
    one by one: pyarrow has no function for that, with or without a page index.

    The constructor reads the footers, many files at a time (``gristmill.config.num_threads_computing_num_records``). There are no
    ``lengths``: how long values are is known when they are decoded.

    Args:
        paths: a path, a URL or a pattern, or a non-empty sequence of them (``*``, ``?``, ``[abc]``, ``{a,b}``, ``{00..15}``).
            With ``filesystem``, paths in it, without patterns.
        columns: the names of the columns to read; all by default. They must be of the same types in all files.
        max_bytes: how many bytes of decoded row groups each process keeps, and decodes at a time, at most. A row group that is
            larger is decoded and kept alone.
        filesystem: one of pyarrow or fsspec, or a URI, for all files. Without it, URLs are read through obstore.
        page_checksum_verification: compare checksums that files may have, at about 0.4 ns per byte.

    Raises:
        TypeError, ValueError: an argument is something else; a file has no such column, or other columns than the first file.
        OSError: a file cannot be read.
        DamagedFileError: a file is not a Parquet file, or is damaged (a ``ValueError``).
        ImportError: pyarrow is not installed.

    Example:
        >>> import os, tempfile, pyarrow, pyarrow.parquet
        >>> path = os.path.join(tempfile.mkdtemp(), "letters.parquet")
        >>> table = pyarrow.table({"number": [1.5, 2.5, 3.5], "letter": ["a", "b", "c"]})
        >>> pyarrow.parquet.write_table(table, path, row_group_size=2)
        >>> source = ParquetSource(path, columns=["letter"])
        >>> len(source), source[2], source.__getitems__([1, 0])
        (3, {'letter': 'c'}, [{'letter': 'b'}, {'letter': 'a'}])
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        max_bytes: int = 1 << 30,
        filesystem: Any = None,
        page_checksum_verification: bool = False,
    ) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise missing_package("pyarrow", "parquet", "ParquetSource") from error
        self._columns = checked_columns(columns)
        self._max_bytes = as_int("max_bytes", max_bytes, minimum=0)
        self._filesystem = filesystem
        self._verifies = page_checksum_verification
        self._files = Files(list_files("paths", paths)) if filesystem is None else _without_sizes(paths)
        self._checksums = array("L")  # of the footers
        self._start_closed()
        first = self._read_footer(0)
        schema = first.metadata.schema.to_arrow_schema()
        self._names = self._checked_names(schema)

        def check(number: int) -> _Footer:
            footer = self._read_footer(number)
            self._check_schema(number, footer.metadata.schema.to_arrow_schema(), schema)
            return footer._replace(metadata=None)

        with ThreadPoolExecutor(config.num_threads_computing_num_records) as pool:
            footers = [first, *pool.map(check, range(1, len(self._files)))]
        self._checksums = array("L", [footer.checksum for footer in footers])
        # File i holds the keys below ends[i] that no file before it holds.
        self._ends = array("q", itertools.accumulate([footer.ends[-1] for footer in footers]))

    def _start_closed(self) -> None:
        self._process = os.getpid()
        self._group_ends: dict[int, array[int]] = {}  # of the files whose footers were read
        self._statuses: dict[int, Any] = {}  # of local files, when these were read
        self._footers: KeptValues[int, _Footer] = KeptValues(_FOOTER_BYTES)
        self._row_groups: KeptValues[tuple[int, int], DecodedRows] = KeptValues(self._max_bytes)
        self._ratio = 1.0  # of decoded bytes to those in the last row group, which are encoded

    def _checked_names(self, schema: Any) -> list[str]:
        names = list(dict.fromkeys(schema.names if self._columns is None else self._columns))
        for name in names:
            if name not in schema.names:
                similar = difflib.get_close_matches(name, schema.names)
                hint = f", but {' and '.join(map(repr, similar))}" if similar else ""
                more = ", …" if len(schema.names) > _MAX_NAMES else ""
                known = ", ".join(map(repr, schema.names[:_MAX_NAMES])) + more
                raise ValueError(f"columns: {self._files.paths[0]} has no {name!r}{hint}; it has {known}")
        return names

    def _check_schema(self, number: int, schema: Any, first: Any) -> None:
        """Refuses a file whose wanted columns are not those of the first file."""
        if schema.equals(first):
            return
        differences = []
        theirs, ours = _types(schema), _types(first)
        for name in self._names if self._columns else dict.fromkeys([*ours, *theirs]):
            if name not in theirs or name not in ours:
                differences.append(f"{name!r} is only in the {'second' if name in theirs else 'first'}")
            elif theirs[name] != ours[name]:
                differences.append(f"{name!r} is {ours[name]} and {theirs[name]}")
        if differences:
            more = f", and {len(differences) - _MAX_NAMES} more" if len(differences) > _MAX_NAMES else ""
            raise ValueError(
                f"{self._files.paths[0]} and {self._files.paths[number]} have different columns: "
                f"{', '.join(differences[:_MAX_NAMES])}{more}. "
                "Name columns that agree with columns=[...], or make a source of each file"
            )

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, record_key: SupportsIndex, /) -> dict[str, Any]:
        """The row at the key.

        Raises:
            KeyRangeError: the key is negative or not below ``len(self)`` (an ``IndexError`` and a ``ValueError``).
            DamagedFileError: the row group cannot be decoded, or the file has changed (``ChangedFileError``).
            OSError: the file cannot be read.
        """
        number, group, row = self._locate(record_key)
        return self._rows(number, group, [row])[0]

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """The rows at the keys, in this order. Each row group is decoded at most once, whatever ``max_bytes`` is.

        Raises:
            KeyRangeError, DamagedFileError, OSError: as ``source[key]`` for the first key that has no row.
        """
        failure: tuple[int, Exception] | None = None  # the first of the keys, and its error
        groups: dict[tuple[int, int], tuple[list[int], list[int]]] = {}  # of each: places of keys, and rows
        for place, record_key in enumerate(record_keys):
            try:
                number, group, row = self._locate(record_key)
            except Exception as error:
                failure = place, error
                break
            places, rows = groups.setdefault((number, group), ([], []))
            places.append(place)
            rows.append(row)
        found: list[dict[str, Any]] = [{}] * len(record_keys)
        for (number, group), (places, rows) in groups.items():
            if failure is not None and places[0] > failure[0]:
                break
            try:
                for place, each in zip(places, self._rows(number, group, rows), strict=True):
                    found[place] = each
            except Exception as error:
                failure = self._first_failure(number, group, places, rows, failure or (places[0], error))
        if failure is not None:
            raise failure[1]
        return found

    def _first_failure(
        self, number: int, group: int, places: list[int], rows: list[int], failure: tuple[int, Exception]
    ) -> tuple[int, Exception]:
        """Which of the rows cannot be read, if it is one before ``failure``."""
        for place, row in zip(places, rows, strict=True):
            if place > failure[0]:
                break
            try:
                self._rows(number, group, [row])
            except Exception as error:
                return place, error
        return failure

    def _locate(self, record_key: SupportsIndex) -> tuple[int, int, int]:
        """The file, the row group and the row in it."""
        key = operator.index(record_key)
        if not 0 <= key < self._ends[-1]:
            raise KeyRangeError(f"record key must be in [0, {self._ends[-1]}), the number of rows, got {key}")
        if self._process != os.getpid():  # a fork: locks may be held by threads that are not here
            self._start_closed()
        number = bisect_right(self._ends, key)
        row = key - (self._ends[number - 1] if number else 0)
        ends = self._group_ends.get(number) or self._footer(number).ends
        group = bisect_right(ends, row)
        return number, group, row - (ends[group - 1] if group else 0)

    def _rows(self, number: int, group: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        decoded = self._row_groups.get(
            (number, group), lambda: self._expected_bytes(number, group), lambda: self._decode(number, group)
        )
        try:
            return decoded.rows(rows)
        except Exception:
            with self._explained(number, group):
                raise

    def _explained(self, number: int, group: int) -> contextlib.AbstractContextManager[None]:
        return explained(f"row group {group} of {self._files.paths[number]}")

    def _expected_bytes(self, number: int, group: int) -> int:
        metadata = self._footer(number).metadata.row_group(group)
        return max(int(metadata.total_byte_size * self._ratio), 1)

    def _decode(self, number: int, group: int) -> tuple[DecodedRows, int]:
        import pyarrow.parquet

        metadata = self._footer(number).metadata
        row_group = metadata.row_group(group)
        with self._explained(number, group), contextlib.closing(self._open(number)) as opened:
            options = {"pre_buffer": True, "page_checksum_verification": self._verifies}
            try:
                file = pyarrow.parquet.ParquetFile(opened, metadata=metadata, **options)
                table = file.read_row_group(group, columns=self._names if self._columns else None)
            finally:
                self._check_unchanged(number)
            if self._names and table.num_rows != row_group.num_rows:
                raise ValueError("it has fewer rows than its metadata say")
            columns = dict(zip(table.column_names, table.columns, strict=True))  # of a name that is there twice, the last
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
            num_rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            if min(num_rows, default=0) < 0 or sum(num_rows) != metadata.num_rows:
                raise ValueError(f"its metadata say that it has {metadata.num_rows} rows, and {sum(num_rows)} in its row groups")
        ends = array("q", itertools.accumulate(num_rows) if num_rows else [0])
        self._statuses.setdefault(number, status)
        self._group_ends[number] = ends
        return _Footer(metadata, checksum, ends)

    def _open(self, number: int) -> Any:
        """The file, open: a ``pyarrow.NativeFile``."""
        from pyarrow import fs

        path = self._files.paths[number]
        if self._filesystem is not None:
            return open_input(path, self._filesystem)
        return open_ranges(self._files, number) if is_url(path) else open_input(path, fs.LocalFileSystem())

    def _status(self, number: int) -> Any:
        """What changes when a local file is written to; ``None`` for others."""
        path = self._files.paths[number]
        if self._filesystem is not None or is_url(path):
            return None
        status = Path(path).stat()
        return status.st_size, status.st_mtime_ns

    def _check_unchanged(self, number: int) -> None:
        if self._status(number) != self._statuses[number]:
            raise changed(self._files.paths[number], "it was written to")

    def _check_size(self, number: int, size: int) -> None:
        expected = self._files.sizes[number]
        if expected < 0:
            self._files.sizes[number] = size
        elif size != expected:
            raise changed(self._files.paths[number], f"it had {expected} bytes and has {size}")

    @property
    def kept_bytes(self) -> int:
        """How many bytes the decoded row groups have that this process keeps now."""
        return self._row_groups.num_bytes

    def close(self) -> None:
        """Lets go of all decoded row groups, files and connections. The next read opens them again."""
        self._files.close()
        self._start_closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_process", "_group_ends", "_statuses", "_footers", "_row_groups", "_ratio")
        return {name: value for name, value in vars(self).items() if name not in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_closed()

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={self._names}"
        return f"ParquetSource({self._files.described()}{columns})"


def _without_sizes(paths: Any) -> Files:
    """``paths`` in another file system, whose sizes are found out when they are opened."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if isinstance(paths, bytes) or not isinstance(paths, Sequence):
        raise TypeError(f"paths must be a path or a sequence of paths, got {paths!r:.200}")
    if not paths:
        raise ValueError("paths must not be empty: it has to name at least one file")
    files = Files([])
    files.paths = [os.fspath(path) for path in paths]
    files.sizes = [-1] * len(paths)
    return files


def _types(schema: Any) -> dict[str, Any]:
    """The type of each column's values, as far as it is to be seen in rows: not how text is stored."""
    return {field.name: _type_of_values(field.type) for field in schema}


def _type_of_values(arrow_type: Any) -> Any:
    import pyarrow

    if is_dictionary(arrow_type):
        return _type_of_values(arrow_type.value_type)
    return {pyarrow.large_string(): pyarrow.string(), pyarrow.large_binary(): pyarrow.binary()}.get(arrow_type, arrow_type)
