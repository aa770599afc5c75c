"""The rows of Parquet files as pyarrow gives them, exactly."""

import numpy as np


def exact(x):
    """``x`` in a form that ``==`` compares with its types and dtypes, and that takes NaN for
    NaN.
    """
    if isinstance(x, np.ndarray):
        return ("array", str(x.dtype), x.shape, [exact(value) for value in x])
    if isinstance(x, dict):
        return {key: exact(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [type(x), *map(exact, x)]
    return (type(x), str(getattr(x, "dtype", "")), repr(x))


def plain_rows(file, group):
    """The rows of a row group of a ``ParquetFile``; columns with a dictionary as those without."""
    table = file.read_row_group(group)
    columns = []
    for column in table.columns:
        is_dictionary = str(column.type).startswith("dictionary")
        columns.append(
            plain_values(column.cast(column.type.value_type) if is_dictionary else column)
        )
    return [
        exact(dict(zip(table.column_names, row, strict=True))) for row in zip(*columns, strict=True)
    ]


def plain_values(column):
    """Returns the values of pyarrow, except for integers beside gaps that floats would round."""
    values = column.to_numpy()
    if str(column.type) not in ("int64", "uint64") or values.dtype.kind != "f":
        return values
    integers = column.to_pylist()
    if all([value is None or abs(value) <= 2**53 for value in integers]):
        return values
    return [None if value is None else np.dtype(str(column.type)).type(value) for value in integers]
