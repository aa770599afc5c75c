"""Records in memory that all processes of a machine share.

The block of shared memory holds, in 64-bit little-endian words: a magic word, the number of
elements ``n``, ``n + 1`` offsets (where each element's slot starts, and where the last one ends),
and the slots. A slot is a word that holds the payload's length in bytes and its kind
(``length << 3 | kind``), and the payload, padded with zeros to the slot's end.
"""

from __future__ import annotations

import itertools
import mmap
import operator
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.shared_memory import ShareableList
from types import NoneType
from typing import Any, SupportsIndex

from gristmill.core.shared_block import SharedBlock
from gristmill.sources.base import check_no_table

_MAGIC = b"grstmil1"
_WORD = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_WORD_BYTES = 8
_TABLE = 2 * _WORD_BYTES  # where the offsets start


def _encode_int(value: int) -> bytes:
    return value.to_bytes(
        (value if value >= 0 else ~value).bit_length() // 8 + 1, "little", signed=True
    )


# The kind of a payload is its place in both tables.
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    int: _encode_int,
    float: _FLOAT.pack,
    bool: lambda value: b"\1" if value else b"\0",
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: bytes,
    NoneType: lambda value: b"",
}
_DECODERS: list[Callable[[bytes], Any]] = [
    lambda payload: int.from_bytes(payload, "little", signed=True),
    lambda payload: _FLOAT.unpack(payload)[0],
    lambda payload: payload[0] != 0,
    lambda payload: payload.decode("utf-8", "surrogatepass"),
    bytes,
    lambda payload: None,
]
_KINDS = {kind: number for number, kind in enumerate(_ENCODERS)}
_FORMATS = ["q", "d", "xxxxxxx?", "", "", "xxxxxx?x"]


def _encode(what: str, value: Any) -> tuple[int, bytes]:
    """Returns the kind and the payload of an element."""
    kind = type(value)
    if kind not in _KINDS:
        raise TypeError(
            f"{what} must be exactly an int, float, bool, str, bytes or None, got {value!r} of type"
            f" {kind.__qualname__}"
        )
    return _KINDS[kind], _ENCODERS[kind](value)


class SharedMemoryDataSource(ShareableList[Any]):
    """A fixed-length list in shared memory, as a data source. Pickling sends its name: no process
    copies the data.

    What is put in comes out again, exactly. Elements can be assigned to (``source[0] = 10``) within
    the room that their first value took, which is at least 8 bytes; all processes see the new
    value. Any number of threads and processes may read at the same time, but an element that is
    read while it is assigned may come out garbled.

    The process that creates the source owns the memory: it is freed by ``unlink``, or else when
    that process ends. Deleting the object, or ``close``, only detaches this handle. Other processes
    keep what they have attached.

    ``repr`` has the length and a hash of the content instead of the content and the name, so it is
    short and the same in every run. The hash is computed once, and again after assignments through
    this handle; assignments by other processes do not show in it.

    Args:
        elements: the records: ``int``, ``float``, ``bool``, ``str``, ``bytes`` or ``None`` of any
            size, no other types. ``None`` attaches to the existing source of that name.
        name: the name of the block of shared memory, unique on the machine. ``None`` chooses one.

    Raises:
        ValueError: neither is given, or the block of that name is not one of this class.
        TypeError: an element is of another type, or ``elements`` is text, a set, a mapping or a
            table.
        FileExistsError: the name is taken.
        FileNotFoundError: there is nothing of that name to attach to.
        OSError: there is not enough shared memory.

    Example:
        >>> source = SharedMemoryDataSource(["zero", "öné", b"two", 3])
        >>> source[1], source[-1], len(source)
        ('öné', 3, 4)
        >>> source
        SharedMemoryDataSource(len=4, content=b38c742c099a22bb)
        >>> attached = SharedMemoryDataSource(name=source.shm.name)
        >>> source.unlink()
        >>> attached[0]
        'zero'
    """

    shm: SharedBlock

    def __init__(self, elements: Iterable[Any] | None = None, *, name: str | None = None) -> None:
        self._content: str | None = None
        if elements is None:
            if name is None:
                raise ValueError(
                    "Elements or name must be provided: elements to create, or a name to attach to"
                )
            self.shm = SharedBlock(name)
            memory = self._memory()
            if len(memory) < _TABLE or memory[:_WORD_BYTES] != _MAGIC:
                self.close()
                raise ValueError(
                    f"the shared memory block {name!r} was not made by SharedMemoryDataSource"
                )
            self._length: int = _word_at(memory, _WORD_BYTES)
            return

        check_no_table("elements", elements)
        if isinstance(elements, str | bytes | Mapping | set | frozenset):
            raise TypeError(
                f"elements must be a sequence of records, got a {type(elements).__name__}: hand in"
                " a list, such as list(elements.values()) of a dict or sorted(elements) of a set"
            )
        slots = [
            _slot(*_encode(f"elements[{place}]", value)) for place, value in enumerate(elements)
        ]
        self._length = len(slots)
        first = _TABLE + (len(slots) + 1) * _WORD_BYTES
        offsets = itertools.accumulate(map(len, slots), initial=first)
        data = b"".join(
            [_WORD.pack(len(slots)), struct.pack(f"<{len(slots) + 1}q", *offsets), *slots]
        )
        self.shm = SharedBlock(name, _WORD_BYTES + len(data))
        memory = self._memory()
        memory[_WORD_BYTES : _WORD_BYTES + len(data)] = data
        memory[:_WORD_BYTES] = _MAGIC  # last, so that no process attaches to half a source

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: SupportsIndex) -> Any:
        """Returns the element at the position; negative positions count from the end.

        Raises:
            IndexError: there is no such element.
            TypeError: the source is closed, or the position is not an integer.
        """
        memory, offset = self._memory(), self._offset_of(position)
        (start,) = _WORD.unpack(memory[offset : offset + _WORD_BYTES])
        (word,) = _WORD.unpack(memory[start : start + _WORD_BYTES])
        start += _WORD_BYTES
        return _DECODERS[word & 7](memory[start : start + (word >> 3)])

    def __getitems__(self, positions: Sequence[SupportsIndex]) -> list[Any]:
        """Returns the elements at the positions, in this order."""
        return [self[position] for position in positions]

    def __setitem__(self, position: SupportsIndex, value: Any) -> None:
        """Replaces an element, for all processes.

        Raises:
            IndexError: there is no such element.
            TypeError: ``value`` is of a type that cannot be shared, or the source is closed.
            ValueError: ``value`` needs more room than the element has.
        """
        kind, payload = _encode("value", value)
        memory, offset = self._memory(), self._offset_of(position)
        start, capacity = _word_at(memory, offset), self._capacity(memory, offset)
        if len(payload) > capacity:
            raise ValueError(
                f"value exceeds available storage: it needs {len(payload)} bytes, element"
                f" {position} has {capacity}"
            )
        slot = _slot(kind, payload, capacity)
        memory[start : start + len(slot)] = slot
        self._content = None

    def __iter__(self) -> Iterator[Any]:
        for position in range(self._length):
            yield self[position]

    @property
    def format(self) -> str:
        """The elements' types and room, spelled as the standard library's ``ShareableList``
        does.
        """
        memory = self._memory()
        formats = []
        for offset in range(_TABLE, _TABLE + self._length * _WORD_BYTES, _WORD_BYTES):
            word = _word_at(memory, _word_at(memory, offset))
            formats.append(_FORMATS[word & 7] or f"{self._capacity(memory, offset)}s")
        return "".join(formats)

    def close(self) -> None:
        """Detaches this handle from the memory; it cannot be read any more. Other handles are not
        affected.
        """
        self.shm.close()

    def unlink(self) -> None:
        """Frees the name now and the memory when all handles are closed.

        Raises:
            FileNotFoundError: this has been done already.
        """
        self.shm.unlink()

    def __repr__(self) -> str:
        if self._content is None and self.shm.memory is not None:
            import hashlib

            memory = self._memory()
            end = _word_at(memory, _TABLE + self._length * _WORD_BYTES)
            content = memoryview(memory)[:end]
            self._content = hashlib.sha1(content, usedforsecurity=False).hexdigest()[:16]
        return f"SharedMemoryDataSource(len={self._length}, content={self._content or 'closed'})"

    def __str__(self) -> str:
        return f"InMemoryDataSource(name={self.shm.name}, len={self._length})"

    def is_described_by(self, text: str) -> bool:
        """True if ``text`` is the ``repr`` of a source with these elements: of ours, or of Grain's,
        under any name.
        """
        return (
            text == repr(self)
            or re.sub(r", name='[^']*'\)$", "", text) == f"SharedMemoryDataSource({list(self)}"
        )

    def _memory(self) -> mmap.mmap:
        memory = self.shm.memory
        if memory is None:
            raise TypeError(f"{self} is closed and cannot be read; attach again by its name")
        return memory

    def _offset_of(self, position: SupportsIndex) -> int:
        """Returns where in the block the element's offset is."""
        place = operator.index(position)
        if place < 0:
            place += self._length
        if not 0 <= place < self._length:
            raise IndexError(f"index {position} is out of range for {self}")
        return _TABLE + place * _WORD_BYTES

    def _capacity(self, memory: mmap.mmap, offset: int) -> int:
        return _word_at(memory, offset + _WORD_BYTES) - _word_at(memory, offset) - _WORD_BYTES


def _word_at(memory: mmap.mmap, offset: int) -> int:
    word: int = _WORD.unpack(memory[offset : offset + _WORD_BYTES])[0]
    return word


def _slot(kind: int, payload: bytes, capacity: int = 0) -> bytes:
    capacity = capacity or _WORD_BYTES * (len(payload) // _WORD_BYTES + 1)
    return _WORD.pack(len(payload) << 3 | kind) + payload.ljust(capacity, b"\0")
