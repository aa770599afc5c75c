"""The interface of a data source."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar, runtime_checkable

from gristmill.core.state import shown

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """A collection of records that can be read in any order: ``len(source)`` and ``source[key]``.

    Subclassing is optional. Lists, tuples, NumPy arrays and the data sets of TFDS, Hugging Face and
    PyTorch are data sources as they are, and ``isinstance`` says so: it looks for the two methods
    and nothing else.

    A source has to be

    * deterministic: the same key always gives an equal record;
    * thread-safe, because several threads read ahead (``ReadOptions.num_threads``, 16 by default);
    * picklable by cloudpickle when worker processes are used; open files are best omitted from the
      pickle and reopened at the first read;
    * of a ``repr`` that says which data it holds and is the same in every run (no memory
      addresses), because the states of a ``DataLoader`` carry it to notice that they are restored
      with other data.

    Optional: ``__getitems__(keys: list[int])``, which returns ``[self[key] for key in keys]``, but
    faster. Pipelines read many records at once and call it when it is there.

    Example:
        >>> class Squares(RandomAccessDataSource[int]):
        ...     def __len__(self):
        ...         return 10
        ...
        ...     def __getitem__(self, index):
        ...         return index**2
        ...
        ...     def __repr__(self):
        ...         return "Squares()"
        >>> Squares()[3]
        9
        >>> isinstance([1, 2, 3], RandomAccessDataSource)
        True
    """

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Returns the record at ``index``, where ``0 <= index < len(self)``."""
        ...


_FILES = (
    ": a path is no source. To read files, use one of grain.sources: ArrayRecordDataSource,"
    " BagDataSource, JsonlSource, ParquetSource, TarSource, TokenSource; or the streams"
    " grain.experimental.TFRecordIterDataset and ParquetIterDataset; a list of paths is a source of"
    " paths"
)


def check_source(name: str, source: Any) -> None:
    """Refuse what is no source.

    Raises:
        TypeError: ``source`` has no ``__getitem__``; or it is text or bytes, most likely a path; or
            a table, whose ``[0]`` is a column.
        ValueError: it is a ``defaultdict``, a ``Counter`` or a similar dict, and lacks a key from
            ``0`` to ``len(source) - 1``.
    """
    is_text = isinstance(source, str | bytes) and type(source).__getitem__ in (
        str.__getitem__,
        bytes.__getitem__,
    )
    if is_text or not hasattr(source, "__getitem__"):
        is_path = is_text or isinstance(source, os.PathLike)
        raise TypeError(
            f"{name} must have __getitem__ and __len__ (a list, an array, a data source), got"
            f" {shown(source):.100} of type {type(source).__name__}{_FILES if is_path else ''}"
        )
    check_no_table(name, source)
    if (
        isinstance(source, dict)
        and hasattr(source, "__missing__")
        and type(source).__getitem__ is dict.__getitem__
    ):
        _check_keys(name, source)


def check_no_table(name: str, source: Any) -> None:
    """Refuse tables of pandas and pyarrow, whose ``[]`` takes names or numbers of columns.

    Raises:
        TypeError: ``source`` is a table.
    """
    kind = type(source)
    library = kind.__module__.partition(".")[0]
    if hasattr(kind, "columns") and (hasattr(kind, "iloc") or library == "pyarrow"):
        rows = "to_pylist()" if library == "pyarrow" else "to_dict('records')"
        raise TypeError(
            f"{name} must have a record at each position, got a {library} {kind.__name__}, whose []"
            f" takes columns. Hand in its rows, {name}.{rows}, or make MapDataset.source of its"
            " columns: {'name': array, ...}"
        )


def _check_keys(name: str, source: dict[Any, Any]) -> None:
    missing = next((key for key in range(len(source)) if key not in source), None)
    if missing is not None:
        raise ValueError(
            f"{name} must have the keys 0 to {len(source) - 1}, got a {type(source).__name__}"
            f" without {missing}, which makes records up for keys that it does not have. Hand in"
            f" list({name}.values()), or dict({name}) for keys of your own"
        )
