"""The messages between a worker and the consumer: elements in bytes, large arrays in shared memory.

An element of any type is pickled as a whole. Arrays in it, wherever they are, are replaced by a
call of ``numpy.ndarray`` on a buffer: a slot of the arena if they are large, bytes in the message
if not. So every array arrives as a plain writable ``numpy.ndarray``, and everything else as
pickling gives it.

The number of elements in a message must not be observable, neither by changing an element nor by
elements before one that cannot be pickled or unpickled. So each is pickled by itself, and shares
nothing with the next.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

import numpy as np

from gristmill.core.errors import add_note, drop_notes_of_serializing
from gristmill.workers.arena import Array, Bytes, DType, Order
from gristmill.workers.pickling import CloudPickler, dumps
from gristmill.workers.protocol import ERROR
from gristmill.workers.reductions import Reduced
from gristmill.workers.remote_errors import decode_error, encode_error

# smaller arrays are copied with the message: that is quicker than looking after a slot
MIN_SHARED_BYTES = 1 << 15

_ARRAY_TYPES = (np.ndarray, np.memmap)

Chunk = TypeVar("Chunk")  # of the memory where arrays go
_Received = TypeVar("_Received", contravariant=True)  # such a piece, at the other end
# The elements of a message, the states, and what the next element raised.
Decoded: TypeAlias = tuple[list[object], object, Exception | None]


class ArrayMemory(Protocol[Chunk]):
    """Interface of the memory where arrays go; see ``Arena``."""

    def allocate(self, num_bytes: int) -> Chunk: ...

    def view(self, slot: Chunk, /) -> Bytes: ...

    def store(self, array: Array, order: Order) -> Chunk: ...

    def free(self, slot: Chunk, /) -> None: ...

    def settle(self) -> None: ...


class ArrayTaker(Protocol[_Received]):
    """Interface of the other end of this memory; see ``ArenaReader``."""

    def take(self, slot: _Received, /) -> Bytes: ...


def _is_plain_array(obj: object) -> TypeGuard[Array]:
    """True if ``obj`` arrives as a plain array."""
    kind = type(obj)
    return kind in _ARRAY_TYPES or getattr(kind, "_travels_as_ndarray", False)


class Encoded(NamedTuple, Generic[Chunk]):
    """A message."""

    payload: object
    slots: list[Chunk]
    num_elements: int  # that are in it
    failure: BaseException | None  # what makes it impossible to send the next one
    num_bytes: int  # of the payload


class Encoder(Generic[Chunk]):
    """Turns values into bytes and slots of an arena.

    Args:
        arena: where large arrays go.
        min_shared_bytes: how large these are at least.
        writable: whether smaller ones arrive so that they can be written to. Of large ones the
            memory decides.
    """

    _file: io.BytesIO  # the message being encoded
    _pickler: _PlainPickler | _ByValuePickler

    def __init__(
        self, arena: ArrayMemory[Chunk], min_shared_bytes: int, *, writable: bool = True
    ) -> None:
        self._arena = arena
        self._min_shared_bytes = max(min_shared_bytes, MIN_SHARED_BYTES)
        self._bytes_of: type[bytes | bytearray] = bytearray if writable else bytes
        self._granted: dict[int, tuple[Array, Chunk]] = {}  # by the id of the array
        self._slots: list[Chunk] = []  # of the message being encoded
        self._sent: list[int] = []  # the granted arrays in it
        self._marker = pickle.PickleBuffer(bytearray(1))  # stands for the next slot
        self._pickler_class: type[_PlainPickler | _ByValuePickler] = _PlainPickler

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An uninitialised array, as ``numpy.empty`` gives; a large one is in the arena and need
        not be copied to be sent.
        """
        num_bytes = dtype.itemsize * int(np.prod(shape, dtype=object))
        if num_bytes < self._min_shared_bytes or dtype.hasobject:
            return np.empty(shape, dtype)
        slot = self._arena.allocate(num_bytes)
        array: Array = np.ndarray(shape, dtype, self._arena.view(slot))
        self._granted[id(array)] = array, slot
        return array

    def encode(self, elements: Sequence[object], states: object) -> Encoded[Chunk]:
        """``elements`` in a message, as many as can be sent, and ``states``, which must be
        sendable.
        """
        self._file, self._slots, self._sent = io.BytesIO(), [], []
        self._pickler = self._pickler_class(self._file, self._reduce, self._is_inline)
        self._dump(states)
        ends = [self._file.tell()]
        failure = None
        try:
            for element in elements:
                self._dump(element)
                ends.append(self._file.tell())
        except BaseException as error:
            add_note(
                error,
                f"An element of type {type(element).__name__} could not be sent from a worker"
                " process.",
            )
            failure = error
        if len(ends) == 1:
            self._take_back(0, 0, 0)
        for key in self._sent:
            del self._granted[key]
        self._file.write(struct.pack(f"<{len(ends) + 1}Q", *ends, len(ends)))
        payload = self._file.getvalue()
        del self._pickler, self._file  # which keep the elements
        return Encoded(payload, self._slots, len(ends) - 1, failure, len(payload))

    def encode_state(self, state: object) -> bytes:
        """A state, or ``None``, as the payload of a message without elements (see
        ``decode_other``).
        """
        return b"" if state is None else dumps(state)

    def encode_error(self, error: BaseException) -> bytes:
        """Return an error, as the payload of a message of the kind ``ERROR``."""
        return encode_error(error)

    def forget_allocated(self) -> None:
        """Frees what was allocated and not sent. Call it when no object refers to it any more."""
        for _, slot in self._granted.values():
            self._arena.free(slot)
        self._granted.clear()
        self._arena.settle()

    def _dump(self, value: object) -> None:
        """Appends ``value`` to the message, or raises what makes it impossible to send."""
        before = self._file.tell(), len(self._slots), len(self._sent)
        try:
            self._pickler.clear_memo()
            self._pickler.dump(value)
        except BaseException as error:
            self._take_back(*before)
            if type(self._pickler) is _ByValuePickler or not isinstance(error, Exception):
                drop_notes_of_serializing(error)
                raise
        else:
            return
        # It may take cloudpickle, which costs more; the next outputs will be of the same kind.
        self._pickler = _ByValuePickler(self._file, self._reduce, self._is_inline)
        self._dump(value)
        self._pickler_class = _ByValuePickler

    def _take_back(self, num_bytes: int, num_slots: int, num_sent: int) -> None:
        """Shortens the message to what it had before."""
        granted = [self._granted[key][1] for key in self._sent[num_sent:]]
        for slot in self._slots[num_slots:]:
            if slot not in granted:
                self._arena.free(slot)
        del self._slots[num_slots:], self._sent[num_sent:]
        self._file.seek(num_bytes)
        self._file.truncate()

    def _is_inline(self, buffer: pickle.PickleBuffer) -> bool:
        return buffer is not self._marker  # users' objects have buffers too

    def _reduce(self, array: Array) -> Reduced:
        shape, num_bytes = array.shape, array.nbytes
        if array.dtype.hasobject:
            return NotImplemented
        is_number = array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc"
        dtype = array.dtype.str if is_number else array.dtype  # quicker to pickle
        order: Order = (
            () if array.flags.c_contiguous or not array.flags.f_contiguous else (0, None, "F")
        )
        if num_bytes < self._min_shared_bytes:
            return np.ndarray, (
                shape,
                dtype,
                self._bytes_of(array.tobytes("A" if order else "C")),
                *order,
            )
        granted = self._granted.get(id(array))
        if granted is not None and granted[0] is array and id(array) not in self._sent:
            self._sent.append(id(array))
            slot = granted[1]
        else:
            slot = self._arena.store(array, order)
        self._slots.append(slot)
        return np.ndarray, (shape, dtype, self._marker, *order)


class _PlainPickler(pickle.Pickler):
    def __init__(
        self,
        file: io.BytesIO,
        reduce: Callable[[Array], Reduced],
        is_inline: Callable[[pickle.PickleBuffer], bool],
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=is_inline)
        self._reduce = reduce

    def reducer_override(self, obj: object) -> Reduced:
        return self._reduce(obj) if _is_plain_array(obj) else NotImplemented


class _ByValuePickler(CloudPickler):
    def __init__(
        self,
        file: io.BytesIO,
        reduce: Callable[[Array], Reduced],
        is_inline: Callable[[pickle.PickleBuffer], bool],
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, is_inline)
        self._reduce = reduce

    def reducer_override(self, obj: object) -> Reduced:
        reduced = self._reduce(obj) if _is_plain_array(obj) else NotImplemented
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def decode(
    payload: bytes | memoryview, slots: list[_Received], reader: ArrayTaker[_Received]
) -> Decoded:
    """The elements of a message, as many as can be unpickled; the states; and what the next element
    raised.

    Large arrays look at the slots.
    """
    buffers = iter([reader.take(slot) for slot in slots])
    data = memoryview(payload)
    elements: list[object] = []
    states = None
    (num,) = struct.unpack_from("<Q", data, len(data) - 8)
    ends = struct.unpack_from(f"<{num}Q", data, len(data) - 8 * (num + 1))
    try:
        states = pickle.loads(data, buffers=buffers)
        for start, stop in pairwise(ends):
            elements.append(pickle.loads(data[start:stop], buffers=buffers))
    except Exception as error:
        return elements, states, error
    return elements, states, None


def decode_other(kind: int, payload: bytes) -> object:
    """Return the content of a message other than ``OUTPUTS``: for ``ERROR`` what makes the error,
    else a state or ``None``.
    """
    if kind == ERROR:
        return partial(decode_error, payload)
    return pickle.loads(payload) if payload else None
