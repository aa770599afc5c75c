"""Streams of what is read from the beginning to the end: files, and data sets of other
libraries.
"""

from __future__ import annotations

import abc
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar

from gristmill.core.descriptors import with_descriptors
from gristmill.dataset.bases.cells import LineageRecord
from gristmill.dataset.bases.parameters import Described, Parameters
from gristmill.dataset.bases.traced import Traced
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.errors.context import add_error_context
from gristmill.sources.storage.files import is_url

R = TypeVar("R")


class Reading(Stream, abc.ABC):
    """A stage without parents whose elements are found by no index."""

    @abc.abstractmethod
    def start(self) -> Pos: ...

    @abc.abstractmethod
    def key_between(self, before: Pos, after: Pos) -> Any:
        """Return where the element between two positions is in what is read."""


class FileStream(Reading):
    """The elements of one file, which is read in blocks. Positions in it are ordered.

    The file is open from the first element to the end, an error or ``close``, whichever comes
    first; after an error the next attempt opens it again.

    Args:
        stage: the definition, which knows the folder of relative paths.
        path: the file.
    """

    _file: Any = None
    _is_closed = False

    def __init__(self, stage: Any, path: str | os.PathLike[str]) -> None:
        super().__init__(stage)
        self.path = path
        # The elements that were read last, with the positions before each and after all of them.
        self._block: tuple[Sequence[Any], Sequence[Pos]] = (), [self.start()]

    @property
    def parameters(self) -> Parameters:
        return Described({"file": PurePath(self.path).name})  # the folder may change

    @abc.abstractmethod
    def open_file(self) -> Any:
        """Return the file, opened: an object with ``close()``."""

    @abc.abstractmethod
    def read(self, file: Any, pos: Pos) -> tuple[Sequence[Any], Sequence[Pos]]:
        """Return the elements after ``pos``, none only at the end, with the positions before each
        and after all.
        """

    @abc.abstractmethod
    def skip(self, file: Any, pos: Pos) -> Pos:
        """Return the position after the element at ``pos``, which cannot be read."""

    def _run(self, cell: Cell) -> Iterator[Any]:
        while True:
            i = self.find(cell.pos)
            if i is None or i == len(self._block[0]):
                try:
                    self._block = self._use_file(self.read, cell.pos)
                except Exception:
                    cell.past_failed = partial(self._pass, cell)
                    raise
                i = 0
            elements, positions = self._block
            if not elements:
                cell.pos = positions[0]
                self.close_file()
                return
            for cell.pos, x in zip(positions[i + 1 :], elements[i:], strict=True):
                yield x

    def find(self, pos: Pos) -> int | None:
        """Return the index of ``pos`` among the positions of the last block."""
        positions = self._block[1]
        i = bisect_left(positions, pos)
        return i if i < len(positions) and positions[i] == pos else None

    def _pass(self, cell: Cell) -> None:
        cell.pos = self.look_up(self.skip, cell.pos)

    def look_up(self, use: Callable[[Any, Any], R], arg: object) -> R:
        """Return ``use(file, arg)``, between elements."""
        result = self._use_file(use, arg)
        if not self._block[0]:  # before the first one and at the end the file is closed
            self.close_file()
        return result

    def _use_file(self, use: Callable[[Any, Any], R], arg: Any) -> R:
        if self._is_closed:
            raise ValueError(f"{self} is closed")
        try:
            if self._file is None:
                self._file = with_descriptors(self.open_file)
            return use(self._file, arg)
        except BaseException as error:
            self.close_file()
            add_error_context(error, self)
            raise

    def absolute_path(self) -> str | os.PathLike[str]:
        """Return the absolute path of a local file; other paths as they are."""
        path, folder = self.path, self.stage._starting_folder
        if not folder or not isinstance(path, str | PurePath) or is_url(str(path)):
            return path
        return Path(folder, path)

    def close_file(self) -> None:
        """Close the file, if it is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        self._is_closed = True
        self.close_file()

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


class Located(Stream):
    """The elements of a ``Reading`` as ``Traced``, with the key of each.

    Args:
        stage: the definition.
        parent: what is read.
        source: the name of it.
        key_of: makes the key of an element of that which the parent says.
    """

    def __init__(
        self, stage: Any, parent: Reading, source: str, key_of: Callable[[Any], Any]
    ) -> None:
        super().__init__(stage, parent)
        self._reading = parent
        self._source = source
        self._key_of = key_of

    def _run(self, cell: Cell) -> Iterator[Any]:
        before = cell.pos
        for x in self.parent.run(cell):
            key = self._key_of(self._reading.key_between(before, cell.pos))
            before = cell.pos
            yield Traced(partial(_itself, x), [(LineageRecord(self._source, key, 0),)])


def _itself(x: object) -> Any:
    return x
