"""``ParquetIterDataset``: the rows of Parquet files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from gristmill.core.errors import StateIndexError
from gristmill.core.state import state_count
from gristmill.dataset.bases.parameters import field
from gristmill.dataset.engine.files import FileStream
from gristmill.dataset.engine.stream import Pos
from gristmill.dataset.stages.files import FilesIterDataset, FilesParameters
from gristmill.sources.parquet import ParquetRows, checked_columns
from gristmill.sources.storage.local import is_local

_Row: TypeAlias = tuple[int, int]  # a row group, and a row of it


class ParquetParameters(FilesParameters):
    columns: list[str] | None = field(in_checkpoint=False, in_repr=False)
    read_kwargs: dict[str, Any] = field(in_checkpoint=False, in_repr=False)


class ParquetStream(FileStream):
    """The rows of one Parquet file. The position: the row group, and a row in it."""

    def __init__(self, stage: ParquetIterDataset, path: str | os.PathLike[str]) -> None:
        super().__init__(stage, path)
        self._slices = stage._slices  # workers have others

    @property
    def name(self) -> str:
        return "ParquetDatasetIterator"

    def open_file(self) -> ParquetRows:
        read_kwargs = self.stage._read_kwargs
        filesystem = read_kwargs.get("filesystem")
        path = self.absolute_path() if filesystem is None or is_local(filesystem) else self.path
        return ParquetRows(
            path, columns=self.stage._columns, slices=self._slices, read_kwargs=read_kwargs
        )

    def start(self) -> _Row:
        return 0, 0

    def save(self, pos: Pos) -> Any:
        group, row = pos
        return {"row_group": group, "index_within_row_group": row}

    def load(self, state: object) -> _Row:
        return state_count(state, "row_group", self), state_count(
            state, "index_within_row_group", self
        )

    def read(self, file: ParquetRows, pos: Pos) -> tuple[list[dict[str, Any]], list[_Row]]:
        group, row = self._next_row(file, pos)
        # of the last row group, which may be damaged
        is_end = not file.num_groups or row == file.num_rows(group)
        rows = [] if is_end else file.read(group, row)
        return rows, [(group, i) for i in range(row, row + len(rows) + 1)]

    def _next_row(self, file: ParquetRows, pos: Pos) -> _Row:
        """Return the row that follows, at the end of the last row group alone."""
        group, row = pos
        if group >= max(file.num_groups, 1) or row > (
            file.num_rows(group) if file.num_groups else 0
        ):
            place = f"row {row} of row group {group}"
            raise StateIndexError(
                f"the state of {self} is {place}, but the file has no such place: it has become"
                " shorter"
            )
        while group + 1 < file.num_groups and row == file.num_rows(group):
            group, row = group + 1, 0
        return group, row

    def skip(self, file: ParquetRows, pos: Pos) -> _Row:
        group, _ = self._next_row(file, pos)
        return group, file.num_rows(group)

    def key_between(self, before: Pos, after: Pos) -> _Row:
        group, row = after
        return group, row - 1

    def index_of(self, pos: Pos) -> int:
        return self.look_up(self._index_of, pos)

    def _index_of(self, file: ParquetRows, pos: Pos) -> int:
        group, row = self._next_row(file, pos)
        return sum([file.num_rows(i) for i in range(group)]) + row

    def at_index(self, index: int) -> _Row:
        return self.look_up(_row_at, index)


def _row_at(file: ParquetRows, index: int) -> _Row:
    row = index
    for group in range(file.num_groups):
        if row <= file.num_rows(group):
            return group, row
        row -= file.num_rows(group)
    if row:
        raise StateIndexError(
            f"index must be in [0, {index - row}], the number of rows, got {index}"
        )
    return 0, 0


class ParquetIterDataset(FilesIterDataset[dict[str, Any]]):
    """Returns the rows of Parquet files, as dictionaries: the name of a column to a value.

    A value is what pyarrow's ``column.to_numpy()`` of the column in its row group holds: NumPy
    scalars for numbers and dates, ``str`` and ``bytes``, arrays for lists, dictionaries for
    structs. A missing value is ``None``, NaN or NaT. In a row group where an integer is missing,
    that column is of floats, unless an integer in it is beyond 2**53: then the missing ones are
    ``None``, and the others stay integers. Dates, times and durations in structs are objects of
    Python, or of NumPy where Python cannot hold them.

    Order: the file's; the rows of several files in turn, of 16 files at a time (as
    ``InterleaveIterDataset``). State: the row group and the row in it; restoring reads that row
    group again, up to there. Cost: about 0.2 µs per value. Memory: for each open file about a
    megabyte of rows, the row group that is being read as it is in the file (less with
    ``buffer_size=...``), and those of its columns whose values look different if one of them is
    missing (integers, booleans and nested types), unless the file's statistics say that none is
    missing and no list is empty. Statistics in encrypted files, and in ``metadata=...``, are not
    read.

    Workers (``mp_prefetch``) share files: worker ``i`` of ``n`` reads files ``i``, ``i + n``, …. Of
    a single file they share the row groups in the same way; a state then counts the row groups of
    the worker.

    A damaged row group is an error when its turn comes; ``skip_failed()`` continues after that row
    group.

    Args:
        path: a file, or a sequence of files; none makes an empty dataset. Patterns are not
            expanded.
        columns: the names of the columns to read; all by default. An addition to Grain's arguments.
        read_kwargs: go to ``pyarrow.parquet.ParquetFile``: ``memory_map=True``, ``filesystem=...``,
            ``page_checksum_verification=True`` (which compares checksums that a file may have, at
            about 0.4 ns per byte), ….

    Raises:
        TypeError: ``path`` or ``columns`` is something else.
        ValueError: ``columns`` is empty.

    Errors of ``next``: ``ImportError`` if pyarrow is not installed; ``ValueError`` names a file
    that is not a Parquet file, is damaged, lacks a column, or has several of its name;
    ``StateIndexError`` says that a state is about a longer file; ``OSError`` if the file is
    missing.

    Example:
        >>> import os, tempfile, pyarrow, pyarrow.parquet
        >>> path = os.path.join(tempfile.mkdtemp(), "letters.parquet")
        >>> table = pyarrow.table({"number": [1.5, 2.5, 3.5], "letter": ["a", "b", "c"]})
        >>> pyarrow.parquet.write_table(table, path, row_group_size=2)
        >>> it = iter(ParquetIterDataset(path).map(lambda row: row["letter"] * int(row["number"])))
        >>> next(it), it.get_state(), list(it)
        ('a', {'row_group': 0, 'index_within_row_group': 1}, ['bb', 'ccc'])
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        **read_kwargs: Any,
    ) -> None:
        super().__init__(path)
        columns = checked_columns(columns)
        self._gm_parameters = ParquetParameters(path, columns, read_kwargs)
        self._columns, self._read_kwargs = columns, read_kwargs
        self._slices: tuple[slice, ...] = ()  # of the row groups of a single file

    @property
    def _gm_data(self) -> Any:
        return super()._gm_data, self._slices, self._columns, self._read_kwargs

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the files, or of the row groups of a single one: those of one of several
        workers.
        """
        if len(self._paths) == 1:
            self._slices = (*self._slices, sl)
        else:
            super().set_slice(sl, sequential_slice)

    def _key_of(self, key: tuple[int, int]) -> tuple[int, int]:
        group, row = key
        groups = range(sys.maxsize)
        for sl in self._slices:
            groups = groups[sl]
        return groups[group], row

    @property
    def _element_spec(self) -> Any:
        if not self._paths:
            raise NotImplementedError(f"{self} has no rows to describe")
        with contextlib.closing(ParquetStream(self, self._paths[0]).open_file()) as rows:
            return rows.element_spec()

    def _file_stream(self, path: str | os.PathLike[str]) -> ParquetStream:
        return ParquetStream(self, path)
