"""Interface of file formats: elements become records and files, and elements again."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from gristmill.core.checksums import crc32
from gristmill.core.state import shown

_PIECE_BYTES = 1 << 18  # of a file, so that its checksum is computed in the processor's cache


class RecordWriter(Protocol):
    """A file that is being written."""

    def write(self, record: Any, /) -> None:
        """Appends a record."""
        ...

    def close(self) -> object:
        """Ends the file. Raises if anything of it could not be written."""
        ...


class Format(abc.ABC):
    """A file format with its options. It pickles into workers.

    Attributes:
        name: how ``write(format=...)`` calls it.
        option_names: the names that ``write`` accepts as further arguments, with their defaults.
        index_dir: where ``source`` puts indexes of files; ``None``: beside these.
    """

    name: ClassVar[str]
    option_names: ClassVar[Mapping[str, Any]] = {}
    takes_codec: ClassVar[bool] = False  # its records are bytes
    num_firsts: ClassVar[int] = 1  # the elements that it is fitted to
    is_read_by_path: ClassVar[bool] = False  # its library reads local files only
    index_dir: str | None = None
    is_cut_at_commas: ClassVar[bool] = False  # its library takes a path with one for two files

    def __init__(self, options: Mapping[str, Any]) -> None:
        unknown = [name for name in options if name not in self.option_names]
        if unknown:
            allowed = ", ".join(self.option_names) or "none"
            raise TypeError(
                f"{unknown[0]} is no option of format={self.name!r}; its options are: {allowed}"
            )
        self.options = {**self.option_names, **options}

    @property
    @abc.abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """The endings of the files that are written together, the one with the records first."""

    def described(self) -> dict[str, Any]:
        """Returns what a manifest says of the format, as JSON: all that ``restored`` needs."""
        return {"name": self.name, "options": self.options}

    def restored(self, saved: Mapping[str, Any], codec: Any) -> Self:
        """Returns the format that a manifest describes, made of one with the same options.

        Args:
            saved: what ``described`` returned.
            codec: a pair of functions, for a folder that was written with one; else ``None``.
        """
        if codec is not None:
            raise ValueError(
                f"codec must be None for files of format {self.name!r}, got {shown(codec)}"
            )
        return self

    def fitted(self, elements: Sequence[Any]) -> Self:
        """Returns the format for elements like these, the first ones.

        Raises:
            TypeError, ValueError: the format cannot hold them.
        """
        return self

    @abc.abstractmethod
    def encode(self, element: Any) -> Any:
        """Returns the record of an element.

        Raises:
            TypeError, ValueError: the format cannot hold it; the text says what to do.
        """

    @abc.abstractmethod
    def size(self, record: Any) -> int:
        """Returns about how many bytes a record takes, before compression."""

    @abc.abstractmethod
    def open(self, path: str, number: int) -> RecordWriter:
        """Begins file ``number``; files with other suffixes are written beside ``path``."""

    @abc.abstractmethod
    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        """Returns a random access source of the elements of these files.

        Args:
            paths: the files with records.
            counts: how many records each has.
        """


def crc32_of(path: Path) -> str:
    """Returns the checksum of a file, as a manifest has it."""
    checksum = 0
    piece = memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            checksum = crc32(piece[:size], checksum)
    return as_checksum(checksum)


def as_checksum(checksum: int) -> str:
    """Returns a checksum as a manifest has it.

    Example:
        >>> as_checksum(crc32(b"abc"))
        'crc32:352441c2'
    """
    return f"crc32:{checksum:08x}"
