"""The rows of a data set of Hugging Face's ``datasets``, each exactly as the data set gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from gristmill.core.errors import missing_package
from gristmill.core.naming import transform_name
from gristmill.sources.sharded import checked_key, read_in_order

_NUM_SAMPLED = 8  # rows that distinguish data sets in the ``repr``


class HuggingFaceSource:
    """Returns the rows of a ``datasets.Dataset``: ``source[i]`` is what ``dataset[i]`` is, in the
    data set's own format.

    So a format (``with_format("numpy")``, ``"torch"``, ``"jax"``, ``"arrow"``, ...), chosen
    columns, ``output_all_columns``, ``with_transform`` and features that are decoded (images,
    audio) all hold. A block of rows is read at once where that is sure to give the same: rows
    without a format, of plain features; rows in the format ``"arrow"``; numbers in the format
    ``"numpy"``. Everything else is read row by row, as in a block the library gives other types (a
    float of 64 bits becomes one of 32, integers beside a missing one become floats), and hands a
    transform many rows.

    A data set on disk stays memory-mapped: copies in workers carry its paths and map the files
    again. One in memory is copied with its rows. All methods may be called by several threads at
    once. The files must not change while they are read.

    Args:
        dataset: one split. It is not copied, and must not be changed afterwards (``set_format``;
            use ``with_format`` before).

    Raises:
        TypeError: it is something else, such as all splits (``DatasetDict``), or a stream, for
            which there is ``HuggingFaceIterDataset``.
        ImportError: ``datasets`` is not installed.

    Errors of reading: ``KeyRangeError`` if a key is not in ``[0, len(source))``; any error of the
    library or of a transform.

    Example:
        >>> import datasets
        >>> letters = datasets.Dataset.from_dict({"number": [1, 2, 3], "letter": ["a", "b", "c"]})
        >>> source = HuggingFaceSource(letters)
        >>> source[1], len(source)
        ({'number': 2, 'letter': 'b'}, 3)
        >>> HuggingFaceSource(letters.with_format("numpy", columns=["number"]))[2]
        {'number': np.int64(3)}
    """

    def __init__(self, dataset: Any) -> None:
        _check(dataset)
        self._dataset = dataset
        self._start_without_views()

    def _start_without_views(self) -> None:
        self._num_rows: int = self._dataset.num_rows
        self._read_block = self._block_reader()
        self._text: str | None = None
        self._table: Any = None  # the same rows as Arrow tables
        # the same rows without the columns that are read from those, if there are any
        self._others: Any = None

    def _block_reader(self) -> Callable[[list[int]], list[Any]]:
        """Returns a function that reads several rows, each as it would be alone."""
        dataset = self._dataset
        given = dataset.format
        if not dataset.column_names or given["output_all_columns"]:
            return self._single_rows
        if given["type"] is None and all(map(_is_plain, dataset.features.values())):
            return dataset.__getitems__
        ways = {"arrow": self._tables, "numpy": self._numpy_rows}
        return ways.get(given["type"], self._single_rows)

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        return self._dataset[checked_key(record_key, self._num_rows)]

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        """Returns ``[self[key] for key in record_keys]``, by one read where that gives the same."""
        return read_in_order(self._checked_block, self.__getitem__, record_keys)

    def _checked_block(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        keys = [checked_key(record_key, self._num_rows) for record_key in record_keys]
        return self._read_block(keys) if len(keys) > 1 else self._single_rows(keys)

    def _single_rows(self, keys: list[int]) -> list[Any]:
        return [self._dataset[key] for key in keys]

    def _tables(self, keys: list[int]) -> list[Any]:
        table = self._dataset[keys]
        return [table.slice(place, 1) for place in range(len(keys))]

    def _numpy_rows(self, keys: list[int]) -> list[dict[str, Any]]:
        names = [
            name for name in self._dataset.column_names if name in self._dataset.format["columns"]
        ]
        numbers = self._numbers(names, keys)
        if not numbers:
            return self._single_rows(keys)
        rest = [name for name in names if name not in numbers]
        if not rest:
            return [
                dict(zip(names, row, strict=True))
                for row in zip(*[numbers[name] for name in names], strict=True)
            ]
        others = self._others
        if others is None or others.format["columns"] != rest:
            others = self._others = self._dataset.with_format(
                columns=rest, **_format_of(self._dataset)
            )
        rows = []
        for place, key in enumerate(keys):
            row = others[key]
            rows.append(
                {name: numbers[name][place] if name in numbers else row[name] for name in names}
            )
        return rows

    def _numbers(self, names: list[str], keys: list[int]) -> dict[str, list[Any]]:
        """Returns the columns of numbers in which none is missing: a missing one makes a float of
        an integer, in its row alone.
        """
        candidates = [name for name in names if _is_number(self._dataset.features[name])]
        if not candidates:
            return {}
        table = self._arrow_rows(keys).select(candidates)
        columns = zip(candidates, table.columns, strict=True)
        return {name: list(column.to_numpy()) for name, column in columns if not column.null_count}

    def _arrow_rows(self, keys: list[int]) -> Any:
        if self._table is None:
            self._table = self._dataset.with_format("arrow")
        return self._table[keys]

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_without_views()

    def __repr__(self) -> str:
        """Identifies the rows by some of them: fingerprints of the library change with the time
        when a file was written.
        """
        if self._text is None:
            import hashlib

            num_rows, given = len(self), self._dataset.format
            sampled = {num_rows * part // _NUM_SAMPLED for part in range(_NUM_SAMPLED)} | {
                num_rows - 1
            }
            rows = self._arrow_rows(sorted(sampled)).to_pylist() if num_rows else []
            content = f"{sorted(self._dataset.features.items())}{rows}"
            digest = hashlib.sha1(
                content.encode("utf8", "surrogatepass"), usedforsecurity=False
            ).hexdigest()[:8]
            transform = given["format_kwargs"].get("transform")
            how = given["type"] if transform is None else transform_name(transform)
            others = ", output_all_columns" if given["output_all_columns"] else ""
            self._text = (
                f"HuggingFaceSource({num_rows} rows, columns={given['columns']}{others},"
                f" format={how}, {digest})"
            )
        return self._text


def check_data_set(
    dataset: Any, kind: str, reader: str, *, for_other: str, how_to_load: str, else_: str
) -> None:
    """Refuses what is not the kind of data set that a reader is for, and says what to do instead.

    Args:
        dataset: what was given.
        kind: the class of ``datasets`` that is wanted, ``"Dataset"`` or ``"IterableDataset"``.
        reader: the name of the calling class, for errors.
        for_other: what to do with one of the other class.
        how_to_load: what makes a data set of a name.
        else_: what to do with anything else.

    Raises:
        TypeError: it is something else.
        ImportError: ``datasets`` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise missing_package("datasets", "huggingface", reader) from error
    if isinstance(dataset, getattr(datasets, kind)):
        return
    if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
        remedy = f"choose one of its splits, such as dataset[{next(iter(dataset), 'train')!r}]"
    elif isinstance(dataset, datasets.Dataset | datasets.IterableDataset):
        remedy = for_other
    else:
        remedy = f"load it: {how_to_load}" if isinstance(dataset, str) else else_
    raise TypeError(f"dataset must be a datasets.{kind}, got {type(dataset).__name__}: {remedy}")


def _check(dataset: Any) -> None:
    check_data_set(
        dataset,
        "Dataset",
        "HuggingFaceSource",
        for_other=(
            "it has no random access: use HuggingFaceIterDataset(dataset), or load it without"
            " streaming=True"
        ),
        how_to_load="datasets.load_dataset(name, split='train'), datasets.load_from_disk(path)",
        else_="other sources need no wrapper",
    )


def _is_plain(feature: Any) -> bool:
    """True if a value of ``feature`` does not depend on those it is read with."""
    import datasets

    if isinstance(feature, dict):
        return all(map(_is_plain, feature.values()))
    if isinstance(feature, list):
        return all(map(_is_plain, feature))
    if type(feature) in (datasets.List, datasets.LargeList):
        return _is_plain(feature.feature)
    return type(feature) in (datasets.Value, datasets.ClassLabel)


def _is_number(feature: Any) -> bool:
    import datasets
    import pyarrow

    if type(feature) not in (datasets.Value, datasets.ClassLabel):
        return False
    kind = feature.pa_type
    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind))


def _format_of(dataset: Any) -> dict[str, Any]:
    given = dataset.format
    return {"type": given["type"], **given["format_kwargs"]}
