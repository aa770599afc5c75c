"""A source whose records are decoded as they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gristmill.core.errors import add_note
from gristmill.sources.reading import read_keys


class DecodedSource:
    """The records of a source, each changed by a function.

    Args:
        source: a random access source.
        decode: makes an element of a record.
    """

    def __init__(self, source: Any, decode: Callable[[Any], Any]) -> None:
        self._source = source
        self._decode = decode

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: int) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        records = read_keys(self._source, keys)
        elements = []
        for key, record in zip(keys, records, strict=True):
            try:
                elements.append(self._decode(record))
            except Exception as error:
                add_note(error, f"record {key} of {self._source!r:.200} cannot be decoded")
                raise
        return elements

    def __repr__(self) -> str:
        return repr(self._source)

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
