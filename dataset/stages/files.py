"""Code shared by datasets that read files from front to back."""

from __future__ import annotations

import abc
import copy
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Self, TypeVar

from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import unknown_number
from gristmill.dataset.bases.node import is_of_library
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Traced, Tracing, refuse_to_trace
from gristmill.dataset.engine.files import FileStream, Located
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.sources.storage.files import is_url
from gristmill.sources.storage.local import starting_folder

T = TypeVar("T")

_CYCLE_LENGTH = 16  # as in Grain: it decides the order
_BUFFER_SIZE = 16  # elements of each of several files that are ready ahead


class ReadingIterDataset(IterDataset[T]):
    """The elements of what is read from the beginning to the end, by a ``Reading`` of each part."""

    _gm_num_elements = unknown_number  # known when the files are read

    @abc.abstractmethod
    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None: ...

    def _parts(self) -> list[Self]:
        """Return the datasets that are read in turn."""
        return [self]

    def _key_of(self, key: Any) -> Any:
        """Return the key in the whole of the element that has ``key`` in this part of it."""
        return key

    def _gm_traced(self, tracing: Tracing) -> Any:
        if not is_of_library(self):
            raise refuse_to_trace(self)
        return _TracedReadingIterDataset(self)


class _TracedReadingIterDataset(IterDataset[Traced]):
    """The elements of ``ds``, with the key of each."""

    _gm_num_elements = unknown_number

    def __init__(self, ds: ReadingIterDataset[Any]) -> None:
        super().__init__()
        self._ds = ds

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        self._ds = copy.copy(self._ds)
        self._ds.set_slice(sl, sequential_slice)

    def __iter__(self) -> DatasetIterator[Traced]:
        ds, parts = self._ds, self._ds._parts()
        if len(parts) == 1:
            return StreamIterator(
                self, [ds.__iter__()], partial(Located, source=str(ds), key_of=ds._key_of)
            )
        located = [_TracedReadingIterDataset(part) for part in parts]
        return InterleaveIterDataset(
            located, cycle_length=_CYCLE_LENGTH, iter_buffer_size=0, make_iter_buffer_size=0
        ).__iter__()


class FilesParameters(Parameters):
    # The iterators of the files are described.
    path: Any = field(in_checkpoint=False, in_repr=False)


class FilesIterDataset(ReadingIterDataset[T]):
    """The elements of one file, or of several files, interleaved.

    Subclasses define ``_file_stream``.
    """

    _starting_folder = ""  # of relative paths, for subclasses that do not call this constructor

    def __init__(self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        super().__init__()
        self._paths = _as_paths(path)
        self._starting_folder = starting_folder(
            [str(path) for path in self._paths if not is_url(str(path))]
        )
        self._gm_parameters = FilesParameters(path)

    def __str__(self) -> str:
        files = str(self._paths[0]) if len(self._paths) == 1 else f"[{len(self._paths)} files]"
        return f"{type(self).__name__}({files})"

    @property
    def _gm_data(self) -> Any:
        """The files, for the digest of a pipeline."""
        return [str(path) for path in self._paths], self._starting_folder

    def __iter__(self) -> DatasetIterator[T]:
        if len(self._paths) == 1:
            return StreamIterator(self, [], partial(type(self)._file_stream, path=self._paths[0]))
        files = self._parts()
        return InterleaveIterDataset(
            files, cycle_length=_CYCLE_LENGTH, iter_buffer_size=_BUFFER_SIZE
        ).__iter__()

    def _parts(self) -> list[Self]:
        return [self._with_paths([path]) for path in self._paths]

    @abc.abstractmethod
    def _file_stream(self, path: str | os.PathLike[str]) -> FileStream:
        """Return the stream of one file, which is not opened yet."""

    def _with_paths(self, paths: list[str | os.PathLike[str]]) -> Self:
        new = copy.copy(self)
        new._paths = paths
        return new

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the files: those of one of several workers."""
        del sequential_slice  # a file is read in order in any case
        self._paths = self._paths[sl]


def _as_paths(path: object) -> list[str | os.PathLike[str]]:
    paths = [path] if isinstance(path, str | os.PathLike) else path
    if not isinstance(paths, Sequence) or not all(
        [isinstance(item, str | os.PathLike) for item in paths]
    ):
        raise TypeError(
            f"path must be a path or a sequence of paths (str, os.PathLike), got {path!r:.200}"
        )
    return list(paths)
