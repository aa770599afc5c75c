"""``ParquetSource``: rows of Parquet files in any order.

What holds when several threads and processes use one source:

1. A row group is decoded by one thread at a time; others that want rows of it wait for it (see
   ``kept.py``).
2. Decoded row groups belong to the process. Copies (pickles) do not carry them, nor does a process
   that was forked.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gristmill.core.errors import as_int, missing_package
from gristmill.sources.arrow_values import DecodedRows
from gristmill.sources.kept import KeptValues
from gristmill.sources.parquet import checked_columns
from gristmill.sources.parquet_groups import RowGroups
from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.files import Files, list_files
from gristmill.sources.storage.local import is_local, starting_folder


class ParquetSource(ShardedSource[dict[str, Any]]):
    """The rows of one or more Parquet files, as dictionaries: the name of a column to a value.

    Keys count through the rows of the files in the order given. A value is what
    ``ParquetIterDataset`` gives: NumPy scalars for numbers and dates, ``str`` and ``bytes``, arrays
    for lists, dictionaries for structs; a missing value is ``None``, NaN or NaT. In a row group
    where an integer is missing, that column is of floats, unless an integer in it is beyond 2**53:
    then the missing ones are ``None``, and the others stay integers.

    To read a row, its row group is decoded, the wanted columns alone. Decoded row groups are kept
    until they have ``max_bytes`` together; then those used longest ago are dropped. So read in an
    order that stays within a row group for a while, unless all of them fit:
    ``ds.block_shuffle(block_size)``, with about as many rows as a row group has. Pages of a row
    group cannot be read one by one: pyarrow has no function for that, with or without a page index.

    The constructor reads the footers, many files at a time
    (``gristmill.config.num_threads_computing_num_records``). There are no ``lengths``: how long
    values are is known when they are decoded.

    Args:
        paths: a path, a URL or a pattern, or a non-empty sequence of them (``*``, ``?``, ``[abc]``,
            ``{a,b}``, ``{00..15}``). With ``filesystem``, paths in it, without patterns.
        columns: the names of the columns to read; all by default. Their values must be of the same
            types in all files, however Arrow holds them (``list`` or ``large_list``, ``string`` or
            ``string_view``, with a dictionary or without).
        max_bytes: how many bytes of decoded row groups each process keeps, and decodes at a time,
            at most. A row group that is larger is decoded and kept alone.
        filesystem: one of pyarrow or fsspec, or a URI, for all files. Without it, URLs are read
            through obstore.
        page_checksum_verification: compare checksums that files may have, at about 0.4 ns per byte.

    Raises:
        TypeError, ValueError: an argument is something else; a file lacks a column, has several of
            its name, or has other columns than the first file.
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

    _of_process = ("_kept",)

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
        self._files = (
            Files(list_files("paths", paths))
            if filesystem is None
            else _without_sizes(paths, filesystem)
        )
        self._groups = RowGroups(self._files, filesystem, self._columns, page_checksum_verification)
        self._shards = ShardMap(self._groups.num_rows)
        self._start_closed()

    def _start_closed(self) -> None:
        self._kept: KeptValues[tuple[int, int], DecodedRows] = KeptValues(self._max_bytes)
        super()._start_closed()

    def _read_one(self, number: int, position: int) -> dict[str, Any]:
        group, row = self._located(number, position)
        return self._rows(number, group, [row])[0]

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return the rows. Each row group is decoded at most once, for any ``max_bytes``."""
        wanted: dict[tuple[int, int], tuple[list[int], list[int]]] = {}  # places and rows by group
        for place, (number, position) in enumerate(places):
            group, row = self._located(number, position)
            into, rows = wanted.setdefault((number, group), ([], []))
            into.append(place)
            rows.append(row)
        found: list[dict[str, Any]] = [{}] * len(places)
        for (number, group), (into, rows) in wanted.items():
            for place, each in zip(into, self._rows(number, group, rows), strict=True):
                found[place] = each
        return found

    def _located(self, number: int, position: int) -> tuple[int, int]:
        """Return the row group of a row of a file, and the row in it."""
        ends = self._groups.ends(number)
        group = bisect_right(ends, position)
        return group, position - (ends[group - 1] if group else 0)

    def _rows(self, number: int, group: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        groups = self._groups
        place = number, group
        decoded = self._kept.get(
            place, lambda: groups.expected_bytes(*place), lambda: groups.decode(*place)
        )
        try:
            return decoded.rows(rows)
        except Exception:
            with groups.explained(number, group):
                raise

    @property
    def kept_bytes(self) -> int:
        """The number of bytes of the decoded row groups that this process keeps now."""
        return self._kept.num_bytes

    def close(self) -> None:
        """Closes all files, and frees decoded row groups. The next read opens them again."""
        super().close()
        self._groups.close()

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={self._columns}"
        return f"ParquetSource({self._files.described()}{columns})"


def _without_sizes(paths: Any, filesystem: Any) -> Files:
    """Return ``paths`` in another file system, whose sizes are found out when they are opened."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if isinstance(paths, bytes) or not isinstance(paths, Sequence):
        raise TypeError(f"paths must be a path or a sequence of paths, got {paths!r:.200}")
    if not paths:
        raise ValueError("paths must not be empty: it has to name at least one file")
    files = Files([])
    start = starting_folder(map(os.fspath, paths)) if is_local(filesystem) else ""
    files.paths = [os.path.join(start, path) for path in paths]  # noqa: PTH118
    files.sizes = [-1] * len(paths)
    return files
