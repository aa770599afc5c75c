"""Rows of Parquet files (https://parquet.apache.org), read by pyarrow, as dictionaries."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import add_note, missing_package

_BLOCK_BYTES = 1 << 20  # of uncompressed columns,
_BLOCK_ROWS = 4096  # and rows, that are converted at a time


class ParquetRows:
    """The rows of a file, row group by row group.

    What a value is in NumPy may depend on the others of its column and row group: integers are floats if one of them is missing.
    So columns of integers, booleans and nested types that have missing values, or may have, are converted for a whole row group
    at once; the others are read and converted a block at a time.

    Args:
        path: the file.
        columns: the names of those to read; all by default.
        slices: which row groups to read: these slices of all, one after the other.
        read_kwargs: keyword arguments of ``pyarrow.parquet.ParquetFile``.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: the file cannot be opened.
        ValueError: it is not a Parquet file, or has no such column.
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
        with _explained(self._path):
            self._file = pyarrow.parquet.ParquetFile(self._path, **(read_kwargs or {}))
        self._metadata = self._file.metadata
        self._schema = self._file.schema_arrow
        names = self._schema.names
        unknown = set(columns or ()).difference(names)
        if unknown:
            self.close()
            raise ValueError(f"columns: {self._path} has no {min(unknown)!r}, it has {names}")
        self._columns = list(dict.fromkeys(names if columns is None else columns))
        self._groups = range(self._metadata.num_row_groups)
        for sl in slices:
            self._groups = self._groups[sl]
        self._blocks: Iterator[list[dict[str, Any]]] = iter(())
        self._position: tuple[int, int] | None = None  # row group and row at which the next of the blocks begins

    def close(self) -> None:
        self._file.close(force=True)

    @property
    def num_groups(self) -> int:
        """How many row groups there are to read, counted from 0."""
        return len(self._groups)

    def num_rows(self, group: int) -> int:
        return int(self._metadata.row_group(self._groups[group]).num_rows)

    def read(self, group: int, row: int) -> list[dict[str, Any]]:
        """Some rows of a row group from ``row`` on; none only at its end. Goes on at once where the last call ended.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged.
        """
        if self._position != (group, row):
            self._blocks = self._read_blocks(self._groups[group], row)
        self._position = None  # after an error nothing is left of the blocks
        with _explained(f"row group {self._groups[group]} of {self._path}"):
            rows = next(self._blocks, [])
        self._position = group, row + len(rows)
        return rows

    def _read_blocks(self, group: int, start: int) -> Iterator[list[dict[str, Any]]]:
        with_nulls = self._columns_with_nulls(group)
        whole = [name for name in self._columns if name in with_nulls and self._depends_on_nulls(self._type(name))]
        whole_values = self._as_numpy(self._file.read_row_group(group, columns=whole)) if whole else {}
        begin = 0
        for num_rows, values in self._pieces(group, [name for name in self._columns if name not in whole]):
            end = begin + num_rows
            if end > start:
                first = max(start, begin)
                values = {name: column[first - begin :] for name, column in values.items()}
                values.update({name: column[first:end] for name, column in whole_values.items()})
                rows = zip(*[values[name] for name in self._columns], strict=True)
                yield [*map(dict, map(zip, itertools.repeat(self._columns), rows))]
            begin = end
        if begin < self._metadata.row_group(group).num_rows:
            raise ValueError("it has fewer rows than its metadata say")

    def _pieces(self, group: int, names: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The row group cut into pieces: how many rows, and the values of the columns ``names``."""
        metadata = self._metadata.row_group(group)
        max_rows = _BLOCK_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1)
        size = min(max(max_rows, 1), _BLOCK_ROWS)
        if names:
            for batch in self._file.iter_batches(size, row_groups=[group], columns=names):
                yield batch.num_rows, self._as_numpy(self._pyarrow.Table.from_batches([batch]))
        else:
            for begin in range(0, metadata.num_rows, size):
                yield min(size, metadata.num_rows - begin), {}

    def _as_numpy(self, table: Any) -> dict[str, Any]:
        return {name: self._values(column) for name, column in zip(table.column_names, table.columns, strict=True)}

    def _values(self, column: Any) -> Any:
        # pyarrow looks up a missing value in the dictionary, too, and finds the last one.
        return (column.cast(column.type.value_type) if self._is_dictionary(column.type) else column).to_numpy()

    def _is_dictionary(self, arrow_type: Any) -> bool:
        return bool(self._pyarrow.types.is_dictionary(arrow_type))

    def _type(self, name: str) -> Any:
        """The type of a column's values."""
        arrow_type = self._schema.field(self._schema.get_all_field_indices(name)[-1]).type
        return arrow_type.value_type if self._is_dictionary(arrow_type) else arrow_type

    def _depends_on_nulls(self, arrow_type: Any) -> bool:
        """Whether missing values make others look different."""
        types = self._pyarrow.types
        return not (
            types.is_floating(arrow_type)
            or types.is_decimal(arrow_type)
            or types.is_temporal(arrow_type)
            or types.is_string(arrow_type)
            or types.is_large_string(arrow_type)
            or types.is_binary(arrow_type)
            or types.is_large_binary(arrow_type)
            or types.is_fixed_size_binary(arrow_type)
        )

    def _columns_with_nulls(self, group: int) -> set[str]:
        """The names of columns that have missing values in the row group, or may have."""
        metadata = self._metadata.row_group(group)
        found: set[str] = set()
        for i in range(metadata.num_columns if metadata.num_rows else 0):
            statistics = metadata.column(i).statistics
            has_count = statistics is not None and statistics.has_null_count
            if statistics.null_count if has_count else self._metadata.schema.column(i).max_definition_level:
                path = metadata.column(i).path_in_schema.split(".")  # of fields in fields; names may have dots, too
                found.update([".".join(path[:depth]) for depth in range(1, len(path) + 1)])
        return found

    def element_spec(self) -> dict[str, ShapeDtypeStruct]:
        """What a row looks like, from the schema and the statistics of the row groups.

        Raises:
            NotImplementedError: names a column of which that cannot be said.
        """
        with_nulls: set[str] = set().union(*[self._columns_with_nulls(group) for group in self._groups])
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
        elif has_nulls and self._depends_on_nulls(arrow_type):
            reason = "which may have missing values or empty lists, and these decide the dtype"
        else:
            return ShapeDtypeStruct(shape, dtype)
        raise NotImplementedError(
            f"column {name!r} of {self._path} has the type {arrow_type}, {reason}: leave it out with columns=[...]"
        )


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ValueError, ArrowException) as error:
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):  # not about its content
            if what not in str(error):
                add_note(error, f"{what} was to be read.")
            raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{what} cannot be read as Parquet: {reason}. Write the file again, or leave it out") from error
