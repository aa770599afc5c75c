"""What datasets have in common that read files from the beginning to the end."""

from __future__ import annotations

import abc
import copy
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Self, TypeVar

from gristmill.core.descriptors import with_descriptors
from gristmill.dataset.bases.cells import Piece
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator
from gristmill.dataset.bases.length import Length, Unknown
from gristmill.dataset.bases.node import is_of_library
from gristmill.dataset.bases.observing import Wrap
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.bases.traced import Traced, Tracing, refuse_to_trace
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.telling.failures import tell
from gristmill.sources.storage.files import is_url
from gristmill.sources.storage.local import starting_folder

T = TypeVar("T")
R = TypeVar("R")

_CYCLE_LENGTH = 16  # as in Grain: it decides the order
_BUFFER_SIZE = 16  # elements of each of several files that are ready ahead


class FilesParameters(Parameters):
    path: Any = aside()  # the iterators of the files are described


class FilesIterDataset(IterDataset[T]):
    """The elements of one file, or of several files, interleaved.

    Subclasses define ``_file_iterator``.
    """

    _starting_folder = ""  # of relative paths, for subclasses that do not call this constructor

    def __init__(self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        super().__init__()
        self._paths = _as_paths(path)
        self._starting_folder = starting_folder([str(path) for path in self._paths if not is_url(str(path))])
        self._parameters = FilesParameters(path)

    def __str__(self) -> str:
        files = str(self._paths[0]) if len(self._paths) == 1 else f"[{len(self._paths)} files]"
        return f"{type(self).__name__}({files})"

    def __iter__(self) -> DatasetIterator[T]:
        if len(self._paths) == 1:
            return self._one_file(self._paths[0])
        files = [self._with_paths([path]) for path in self._paths]
        return InterleaveIterDataset(files, cycle_length=_CYCLE_LENGTH, iter_buffer_size=_BUFFER_SIZE).__iter__()

    def _one_file(self, path: str | os.PathLike[str]) -> DatasetIterator[T]:
        it = self._file_iterator(path)
        if isinstance(it, FileIterator):
            it._starting_folder = self._starting_folder
        return it

    def _traced(self, tracing: Tracing) -> Any:
        if not is_of_library(self):
            raise refuse_to_trace(self)
        return _TracedFiles(self)

    def _key_of(self, key: Any) -> Any:
        """The key in the whole file of a record that has ``key`` in this part of it."""
        return key

    def _num_elements(self) -> Length:
        return Unknown()  # the files tell, when they are read

    @abc.abstractmethod
    def _file_iterator(self, path: str | os.PathLike[str]) -> DatasetIterator[T]:
        """An iterator of one file, which is not opened yet."""

    def _with_paths(self, paths: list[str | os.PathLike[str]]) -> Self:
        new = copy.copy(self)
        new._paths = paths
        return new

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the files: those of one of several workers."""
        del sequential_slice  # a file is read in order in any case
        self._paths = self._paths[sl]


class _TracedFiles(IterDataset[Traced]):
    """The elements of ``files``, with where they stand."""

    def __init__(self, files: FilesIterDataset[Any]) -> None:
        super().__init__()
        self._files = files

    def _num_elements(self) -> Length:
        return Unknown()

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        self._files = copy.copy(self._files)
        self._files.set_slice(sl, sequential_slice)

    def __iter__(self) -> DatasetIterator[Traced]:
        files, paths = self._files, self._files._paths
        if len(paths) == 1:
            return _TracedFile(files)
        parts = [_TracedFiles(files._with_paths([path])) for path in paths]
        return InterleaveIterDataset(parts, cycle_length=_CYCLE_LENGTH, iter_buffer_size=0, make_iter_buffer_size=0).__iter__()


class _TracedFile(PassingIterator[Traced]):
    _flow = "stateful"

    def __init__(self, files: FilesIterDataset[Any]) -> None:
        super().__init__(files.__iter__())
        self._files = files

    def _take(self, n: int) -> list[Traced]:
        taken: list[Traced] = []
        while len(taken) < n and (elements := self._source._take(1)):
            file: Any = self._source
            piece = Piece(str(self._files), self._files._key_of(file.last_key()), 0)
            taken.append(Traced(partial(_itself, elements[0]), [(piece,)]))
        return taken


def _itself(x: Any) -> Any:
    return x


def _as_paths(path: Any) -> list[str | os.PathLike[str]]:
    paths = [path] if isinstance(path, str | os.PathLike) else path
    if not isinstance(paths, Sequence) or not all([isinstance(item, str | os.PathLike) for item in paths]):
        raise TypeError(f"path must be a path or a sequence of paths (str, os.PathLike), got {path!r:.200}")
    return list(paths)


class FileIterator(BlockIterator[T]):
    """Reads one file in blocks of elements, from wherever the state says.

    The file is open from the first ``next`` to the end, an error or ``close``, whichever comes first; after an error the next
    attempt opens it again. Subclasses define ``_open``, ``_read`` and what concerns the state.

    The block, its place and the position in it change together, without a call in between that could be interrupted.
    """

    _flow = "stateful"  # an element does not add one to every count in the state
    _file: Any = None
    _last_place: tuple[Any, int] | None = None  # where the last element of the block before this one stood
    _starting_folder = ""  # of a relative path
    _has_short_way = True  # from ``next`` to the block, past ``_take``

    def __init__(self, path: str | os.PathLike[str], place: Any) -> None:
        super().__init__()
        self._path = path
        self._block: list[Any] = []  # what has been read,
        self._block_place = place  # where that stands in the file,
        self._index = 0  # and which element of it is the next one
        self._is_at_end = False

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._path})"

    def _absolute_path(self) -> str | os.PathLike[str]:
        """Return the absolute path of a local file; other paths as they are."""
        path = self._path
        if not self._starting_folder or not isinstance(path, str | PurePath) or is_url(str(path)):
            return path
        return Path(self._starting_folder, path)

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return {"file": PurePath(self._path).name}  # where the file lies may change

    @abc.abstractmethod
    def last_key(self) -> Any:
        """Where in the file the element stands that was delivered last."""

    @abc.abstractmethod
    def _open(self) -> Any:
        """Opens the file: an object with ``close()``."""

    @abc.abstractmethod
    def _read(self, file: Any) -> tuple[list[Any], Any]:
        """The block behind this one, empty only at the end, and its place."""

    def __next__(self) -> T:
        claim = self._claim
        try:
            del claim.is_free
        except AttributeError:
            raise self._unusable() from None
        try:
            if self._index < len(self._block) and self._has_short_way:  # nearly always
                self._index += 1
                return self._block[self._index - 1]
        finally:
            claim.is_free = True
        return super().__next__()

    def _take(self, n: int) -> list[Any]:
        elements: list[Any] = []
        while len(elements) < n and (self._index < len(self._block) or self._fill()):
            part = self._block[self._index : self._index + n - len(elements)]
            self._index += len(part)
            elements += part
        return elements

    def _fill(self) -> bool:
        """Replaces the block, which has been delivered, by what follows it; whether there is anything."""
        if self._is_at_end:
            return False
        if self._index:
            self._last_place = self._block_place, self._index - 1
        block, place = self._use_file(self._read)
        self._block, self._block_place, self._index, self._is_at_end = block, place, 0, not block
        if not block:
            self._close_file()
        return bool(block)

    def _use_file(self, use: Callable[[Any], R]) -> R:
        if self._closed:
            raise ValueError(f"{self} is closed")
        try:
            if self._file is None:
                self._file = with_descriptors(self._open)
            result = use(self._file)
        except BaseException as error:
            self._close_file()
            tell(error, self)
            raise
        if self._is_at_end:  # nothing is to be read from it
            self._close_file()
        return result

    def _before_last(self) -> Any:
        now = self._block_place, self._index
        last = (self._block_place, self._index - 1) if self._index else self._last_place
        if last is None:
            return None
        self._block_place, self._index = last
        try:
            return self.get_state()
        finally:
            self._block_place, self._index = now

    def _leave_block(self, place: Any) -> None:
        """Goes to a place that is not in the block."""
        self._block, self._block_place, self._index, self._is_at_end = [], place, 0, False
        self._last_place = None

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _set_instrument(self, wrap: Wrap | None) -> None:
        super()._set_instrument(wrap)
        self._has_short_way = wrap is None and not self._closed

    def close(self) -> None:
        super().close()
        self._has_short_way = False
        self._close_file()
