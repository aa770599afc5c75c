"""Parquet, written by pyarrow."""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from gristmill.core.errors import as_int, missing_package
from gristmill.core.state import shown
from gristmill.prepare.formats.base import Format, RecordWriter
from gristmill.prepare.formats.columns import Columns
from gristmill.prepare.formats.decoding import DecodedSource

_ROW_GROUP_BYTES = 8 << 20  # all of it is decoded to read a row
_MAX_ROWS = 1 << 16
_COMPRESSIONS = ("brotli", "gzip", "lz4", "snappy", "zstd")


class ParquetFormat(Format):
    """A row for each element, a dict of columns.

    ``row_group_size`` is the number of rows that are decoded together; by default, as many as have
    8 MB. ``compression`` is a codec of pyarrow, with a level such as ``"zstd:9"`` if it has levels.
    """

    name = "parquet"
    num_firsts = 32
    option_names: ClassVar[Mapping[str, Any]] = {"row_group_size": None, "compression": "zstd"}
    suffixes = (".parquet",)
    _kinds: ClassVar[Mapping[str, type]] = {
        "int64": int,
        "double": float,
        "string": str,
        "binary": bytes,
        "bool": bool,
    }

    def __init__(
        self, options: Mapping[str, Any], columns: Columns | None = None, schema: Any = None
    ) -> None:
        super().__init__({name: value for name, value in options.items() if value is not None})
        if self.options["row_group_size"] is not None:
            as_int("row_group_size", self.options["row_group_size"], minimum=1)
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
        except ImportError as error:
            raise missing_package("pyarrow", "parquet", "format='parquet'") from error
        self._check_compression(self.options["compression"])
        self._columns = columns
        self._schema = schema

    def _check_compression(self, compression: Any) -> None:
        """Refuse codecs and levels that Parquet does not have."""
        codec = self._arrow.Codec
        name, colon, level = str(compression).partition(":")
        names = [name for name in _COMPRESSIONS if codec.is_available(name)]
        allowed = f"'none', {', '.join(map(repr, names))}, or with a level such as 'zstd:9'"
        is_known = name in names or compression == "none"
        if name in names and colon:
            is_known = codec.supports_compression_level(name)
            allowed = f"{name!r} without a level"
            if is_known:
                first = codec.minimum_compression_level(name)
                last = codec.maximum_compression_level(name)
                is_known = re.fullmatch(r"-?\d+", level) and first <= int(level) <= last
                allowed = f"{name!r} with a level in [{first}, {last}]"
        if not is_known:
            raise ValueError(f"compression must be {allowed}, got {shown(compression)}")

    def described(self) -> dict[str, Any]:
        assert self._columns is not None  # fitted
        schema = base64.b64encode(self._schema.serialize()).decode()
        return {**super().described(), "columns": self._columns.types, "schema": schema}

    def restored(self, saved: Mapping[str, Any], codec: Any) -> Self:
        super().restored(saved, codec)
        ipc = importlib.import_module("pyarrow.ipc")
        schema = ipc.read_schema(self._arrow.py_buffer(base64.b64decode(saved["schema"])))
        return type(self)(self.options, Columns(saved["columns"]), schema)

    def fitted(self, elements: Sequence[Any]) -> Self:
        columns = Columns.of(elements)
        rows = [columns.plain(element) for element in elements]
        fields = []
        if elements and not columns.types:
            raise TypeError("it must have a column: Parquet does not keep rows without one")
        for name, column in columns.types.items():
            values = [row[name] for row in rows if row.get(name) is not None]
            if column["kind"] == "plain":
                type_ = self._inferred(name, values)
            else:
                type_ = self._numpy_type(name, np.dtype(column["dtype"]))
                for _ in range(
                    0 if column.get("row_shape") is None else 1 + len(column["row_shape"])
                ):
                    type_ = self._arrow.list_(type_)
            fields.append((name, type_))
        return type(self)(self.options, columns, self._arrow.schema(fields))

    def encode(self, element: Any) -> dict[str, Any]:
        assert self._columns is not None
        row = self._columns.plain(element)
        if row.keys() != self._columns.types.keys():
            raise TypeError(
                f"it must have the columns {shown([*self._columns.types])}, as the first "
                f"elements, got {shown([*row])}"
            )
        for name, column in self._columns.types.items():
            if column["kind"] == "plain":
                self._check(name, row[name], self._schema.field(name).type, is_top=True)
        return row

    def size(self, record: dict[str, Any]) -> int:
        return _num_bytes(record)

    def open(self, path: str, number: int) -> RecordWriter:
        parquet = importlib.import_module("pyarrow.parquet")
        name, _, level = self.options["compression"].partition(":")
        writer = parquet.ParquetWriter(
            path,
            self._schema,
            compression=name.upper(),
            compression_level=int(level) if level else None,
        )
        return _RowsWriter(writer, self._table, self.options["row_group_size"])

    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.parquet_table import ParquetSource

        assert self._columns is not None
        return DecodedSource(ParquetSource(list(paths)), self._columns.element)

    def _numpy_type(self, name: str, dtype: np.dtype[Any]) -> Any:
        try:
            return self._arrow.from_numpy_dtype(dtype)
        except self._arrow.ArrowNotImplementedError as error:
            raise TypeError(
                f"column {name!r} has dtype {dtype}, which Parquet cannot hold: convert it by a "
                "map before"
            ) from error

    def _inferred(self, name: str, values: Sequence[Any]) -> Any:
        """Returns the type of a column of Python's values."""
        try:
            found = self._arrow.infer_type(values)
        except self._arrow.ArrowException as error:
            raise TypeError(
                f"column {name!r} must have one type, got {shown(values[:3])}: {error}"
            ) from error
        if "null" in str(found) or (
            isinstance(found, self._arrow.StructType) and not found.num_fields
        ):
            raise TypeError(
                f"column {name!r} has no values in the first elements, {shown(values[:3])}, so "
                "that its type is not known: drop it "
                "by a map before, or write jsonl"
            )
        return found

    def _check(self, name: str, value: Any, wanted: Any, *, is_top: bool = False) -> None:
        """Refuses values that pyarrow would change, such as an integer among floats."""
        types = self._arrow.types
        if value is None and is_top and (types.is_string(wanted) or types.is_binary(wanted)):
            return
        if types.is_list(wanted) and type(value) is list:
            kinds = {*map(type, value)}
            if len(kinds) == 1 and kinds <= {bytes, bool, float}:
                value = value[:1]  # all have one type, and nothing but the type to check
            for item in value:
                self._check(name, item, wanted.value_type)
            return
        if (
            types.is_struct(wanted)
            and type(value) is dict
            and [*value] == [field.name for field in wanted]
        ):
            for field in wanted:
                self._check(name, value[field.name], field.type)
            return
        if type(value) is str and not value.isascii():
            value.encode()  # raises ValueError if it is not valid Unicode
        is_held = type(value) is self._kinds.get(str(wanted))
        if not is_held or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
            raise TypeError(
                f"column {name!r} is {wanted} in the first elements, which cannot hold "
                f"{shown(value)}: convert it by a map before "
                "(None only stands in place of a text or bytes), or write jsonl"
            )

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        return self._arrow.Table.from_pylist(rows, schema=self._schema)

    def __reduce__(self) -> Any:
        return _restored, (
            self.options,
            None if self._columns is None else self._columns.types,
            self._schema,
        )


def _restored(options: Mapping[str, Any], types: Any, schema: Any) -> ParquetFormat:
    return ParquetFormat(options, None if types is None else Columns(types), schema)


class _RowsWriter:
    def __init__(self, writer: Any, as_table: Any, row_group_size: int | None) -> None:
        self._writer = writer
        self._as_table = as_table
        self._row_group_size = row_group_size
        self._rows: list[Mapping[str, Any]] = []
        self._num_bytes = 0

    def write(self, record: Mapping[str, Any]) -> None:
        self._rows.append(record)
        if self._row_group_size is None:
            self._num_bytes += _num_bytes(record)
            is_full = self._num_bytes >= _ROW_GROUP_BYTES or len(self._rows) >= _MAX_ROWS
        else:
            is_full = len(self._rows) >= self._row_group_size
        if is_full:
            self._flush()

    def close(self) -> None:
        try:
            if self._rows:
                self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._as_table(self._rows), row_group_size=len(self._rows))
        self._rows, self._num_bytes = [], 0


def _num_bytes(value: Any) -> int:
    """Returns about how many bytes a value takes in a column."""
    if isinstance(value, str | bytes):
        return len(value) + 4
    if isinstance(value, dict):
        return sum([_num_bytes(item) for item in value.values()])
    if isinstance(value, list):
        return 4 + (
            8 * len(value)
            if value and isinstance(value[0], int | float)
            else sum([_num_bytes(item) for item in value])
        )
    return 8
