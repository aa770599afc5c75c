"""Rows of Parquet files (https://parquet.apache.org), read by pyarrow, as dictionaries."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from gristmill.core.cached import cached
from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import add_note, missing_package
from gristmill.sources.arrow_files import open_input
from gristmill.sources.arrow_types import check_names_differ, stored_type
from gristmill.sources.arrow_values import as_numpy, depends_on_nulls, has_nulls
from gristmill.sources.parquet_footer import NullCounts, read_footer
from gristmill.sources.storage.errors import DamagedFileError

_BLOCK_BYTES = 1 << 20  # of uncompressed columns,
_BLOCK_ROWS = 4096  # and rows, that are converted at a time


class ParquetRows:
    """The rows of a file, row group by row group.

    What a value is in NumPy may depend on the others of its column and row group: integers are
    floats if one of them is missing. So columns of integers, booleans and nested types that have
    missing values, or may have, are converted for a whole row group at once; the others are read
    and converted a block at a time. The footer's statistics say what may be missing; they are not
    believed: values that are missing nevertheless are an error.

    Only those functions of pyarrow are called that raise where a file is damaged;
    ``metadata.column(i)`` ends the interpreter.

    Args:
        path: the file.
        columns: the names of those to read; all by default.
        slices: which row groups to read: these slices of all, one after the other.
        read_kwargs: keyword arguments of ``pyarrow.parquet.ParquetFile``.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: the file cannot be opened.
        ValueError: it is not a Parquet file, lacks a column, or has two of one name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        slices: Sequence[slice] = (),
        read_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise missing_package("pyarrow", "parquet", "ParquetIterDataset") from error
        self._pyarrow = pyarrow
        self._path = os.fspath(path)
        with explained(self._path):
            names = self._open(**(read_kwargs or {}))
        self._columns = list(dict.fromkeys(names if columns is None else columns))
        try:
            self._check_columns(names)
        except ValueError:
            self.close()
            raise
        self._groups = range(self._metadata.num_row_groups)
        for sl in slices:
            self._groups = self._groups[sl]
        self._blocks: Iterator[list[dict[str, Any]]] = iter(())
        # row group and row at which the next of the blocks begins
        self._position: tuple[int, int] | None = None

    def _open(self, **read_kwargs: Any) -> list[str]:
        """Returns the names of the columns."""
        self._source = open_input(
            self._path, read_kwargs.pop("filesystem", None), read_kwargs.get("memory_map", False)
        )
        self._has_own_footer = read_kwargs.get("metadata") is None
        try:
            self._file = self._pyarrow.parquet.ParquetFile(self._source, **read_kwargs)
            self._metadata = self._file.metadata
            self._schema = self._file.schema_arrow
            names: list[str] = self._schema.names
        except BaseException:
            self._source.close()
            raise
        return names

    def _check_columns(self, names: list[str]) -> None:
        unknown = set(self._columns).difference(names)
        if unknown:
            raise ValueError(f"columns: {self._path} has no {min(unknown)!r}, it has {names}")
        check_names_differ(self._path, self._schema, self._columns)

    def close(self) -> None:
        self._file.close(force=True)

    @property
    def num_groups(self) -> int:
        """The number of row groups to read, counted from 0."""
        return len(self._groups)

    def num_rows(self, group: int) -> int:
        """Returns the number of rows of a row group, from the footer.

        Raises:
            ValueError: the footer is damaged.
        """
        with self._explained_group(group):
            return int(self._row_group(self._groups[group]).num_rows)

    def _row_group(self, group: int) -> Any:
        metadata = self._metadata.row_group(group)
        if metadata.num_rows < 0:
            raise ValueError(f"its metadata say that it has {metadata.num_rows} rows")
        return metadata

    def _explained_group(self, group: int) -> contextlib.AbstractContextManager[None]:
        return explained(f"row group {self._groups[group]} of {self._path}")

    def read(self, group: int, row: int) -> list[dict[str, Any]]:
        """Returns some rows of a row group from ``row`` on; none only at its end. Continues at once
        where the last call ended.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged.
        """
        if self._position != (group, row):
            self._blocks = self._read_blocks(self._groups[group], row)
        self._position = None  # after an error nothing is left of the blocks
        with self._explained_group(group):
            rows = next(self._blocks, [])
        self._position = group, row + len(rows)
        return rows

    def _read_blocks(self, group: int, start: int) -> Iterator[list[dict[str, Any]]]:
        whole = self._columns_to_read_whole(group)
        whole_values = self._whole(group, whole) if whole else {}
        begin = 0
        for num_rows, values in self._pieces(
            group, [name for name in self._columns if name not in whole_values]
        ):
            end = begin + num_rows
            if end > start:
                first = max(start, begin)
                values = {name: column[first - begin :] for name, column in values.items()}
                values.update({name: column[first:end] for name, column in whole_values.items()})
                rows = zip(*[values[name] for name in self._columns], strict=True)
                yield [*map(dict, map(zip, itertools.repeat(self._columns), rows))]
            begin = end
        self._check_num_rows(group, begin)

    def _columns_to_read_whole(self, group: int) -> list[str]:
        if self._row_group(group).num_rows <= self._block_rows(group):
            return self._columns  # it is one block anyhow
        with_nulls = self._columns_with_nulls(group)
        return [name for name in self._columns if name in with_nulls and name in self._sensitive]

    def _block_rows(self, group: int) -> int:
        metadata = self._row_group(group)
        max_rows = _BLOCK_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1)
        return min(max(max_rows, 1), _BLOCK_ROWS)

    def _check_num_rows(self, group: int, num_rows: int) -> None:
        if num_rows < self._row_group(group).num_rows:
            raise ValueError("it has fewer rows than its metadata say")

    def _whole(self, group: int, names: list[str]) -> dict[str, Any]:
        table = self._file.read_row_group(group, columns=names)
        self._check_num_rows(group, table.num_rows)
        return self._as_numpy(table)

    def _pieces(self, group: int, names: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the row group cut into pieces: how many rows, and the values of the columns
        ``names``.
        """
        size = self._block_rows(group)
        if names:
            sensitive = self._sensitive & set(names)
            for batch in self._file.iter_batches(size, row_groups=[group], columns=names):
                self._check_no_nulls(batch, sensitive)
                yield batch.num_rows, self._as_numpy(self._pyarrow.Table.from_batches([batch]))
        else:
            num_rows = self._row_group(group).num_rows
            for begin in range(0, num_rows, size):
                yield min(size, num_rows - begin), {}

    def _check_no_nulls(self, batch: Any, names: Set[str]) -> None:
        for i, name in enumerate(batch.schema.names if names else ()):
            if name in names and has_nulls(batch.column(i)):
                raise ValueError(
                    f"column {name!r} has missing values, but its statistics say that it has none"
                )

    def _as_numpy(self, table: Any) -> dict[str, Any]:
        return {
            name: as_numpy(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }

    def _type(self, name: str) -> Any:
        """Returns the type of a column's values."""
        return stored_type(self._schema.field(name).type)

    @cached
    def _sensitive(self) -> Set[str]:
        """Returns the columns in which missing values make others look different."""
        return {name for name in self._columns if depends_on_nulls(self._type(name))}

    @cached
    def _leaves(self) -> list[tuple[list[str], bool]]:
        """Returns, for each column of the file's own schema, the columns and fields it is a part
        of, and whether values may be missing.
        """
        schema = self._metadata.schema
        columns = [schema.column(i) for i in range(len(schema))]
        # of fields in fields; names may have dots, too
        paths = [column.path.split(".") for column in columns]
        prefixes = [[".".join(path[:depth]) for depth in range(1, len(path) + 1)] for path in paths]
        return [
            (names, column.max_definition_level > 0)
            for names, column in zip(prefixes, columns, strict=True)
        ]

    @cached
    def _null_counts(self) -> NullCounts:
        return NullCounts(read_footer(self._source) if self._has_own_footer else b"")

    def _columns_with_nulls(self, group: int) -> set[str]:
        """Returns the names of columns that have missing values in the row group, or may have."""
        if not self._sensitive or not self._row_group(group).num_rows:
            return set()
        counts = itertools.chain(self._null_counts.of_group(group), itertools.repeat(None))
        found: set[str] = set()
        for (names, is_optional), count in zip(self._leaves, counts, strict=False):
            if is_optional if count is None else count:
                found.update(names)
        return found

    def element_spec(self) -> dict[str, ShapeDtypeStruct]:
        """Returns the spec of a row, from the schema and the statistics of the row groups.

        Raises:
            NotImplementedError: names a column of which that cannot be said.
        """
        with explained(self._path):
            with_nulls: set[str] = set().union(
                *[self._columns_with_nulls(group) for group in self._groups]
            )
        return {name: self._column_spec(name, name in with_nulls) for name in self._columns}

    def _column_spec(self, name: str, has_nulls: bool) -> ShapeDtypeStruct:
        types, arrow_type = self._pyarrow.types, self._type(name)
        shape: tuple[int | None, ...] = ()
        value_type = arrow_type
        if types.is_list(arrow_type) or types.is_large_list(arrow_type):
            shape, value_type = (None,), arrow_type.value_type
        elif types.is_fixed_size_list(arrow_type):
            shape, value_type = (arrow_type.list_size,), arrow_type.value_type
        dtype = self._pyarrow.chunked_array([self._pyarrow.array([], value_type)]).to_numpy().dtype
        if dtype.hasobject:
            reason = "whose values are not NumPy numbers or dates"
        elif has_nulls and depends_on_nulls(arrow_type):
            reason = "which may have missing values or empty lists, and these decide the dtype"
        else:
            return ShapeDtypeStruct(shape, dtype)
        raise NotImplementedError(
            f"column {name!r} of {self._path} has the type {arrow_type}, {reason}: leave it out"
            " with columns=[...]"
        )


def checked_columns(columns: Any) -> list[str] | None:
    """Returns ``columns`` as a list of names, or ``None`` for all.

    Raises:
        TypeError, ValueError: it is something else, or empty.
    """
    if columns is None:
        return None
    is_sequence = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not is_sequence or not all([isinstance(name, str) for name in columns]):
        raise TypeError(f"columns must be a sequence of names, got {columns!r:.200}")
    if not columns:
        raise ValueError(
            "columns must not be empty: name at least one, or leave it out to read all"
        )
    return list(columns)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of pyarrow become a ``DamagedFileError`` that names ``what``; those of the system only
    get a note.
    """
    from pyarrow import ArrowException

    try:
        yield
    except DamagedFileError:
        raise
    except (OSError, ValueError, ArrowException) as error:
        if isinstance(error, MemoryError):
            raise
        # not about its content
        if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
            if what not in str(error):
                add_note(error, f"{what} was to be read.")
            raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise DamagedFileError(
            f"{what} cannot be read as Parquet: {reason}. Write the file again, or leave it out"
        ) from error
