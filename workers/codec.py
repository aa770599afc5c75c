"""What travels between a worker and the consumer: elements in bytes, large arrays in shared memory.

An element is pickled as a whole, whatever it is. Arrays in it, wherever they are, are replaced by a call of ``numpy.ndarray``
on a buffer: a slot of the arena if they are large, bytes in the message if not. So every array arrives as a plain writable
``numpy.ndarray``, and everything else as pickling gives it.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from gristmill.workers.arena import Arena, ArenaReader, Slot
from gristmill.workers.pickling import CloudPickler

MIN_SHARED_BYTES = 1 << 15  # smaller arrays are copied with the message: that is quicker than looking after a slot

_ARRAY_TYPES = (np.ndarray, np.memmap)


class Encoder:
    """Turns values into bytes and slots of an arena.

    Args:
        arena: where large arrays go.
        min_shared_bytes: how large these are at least.
    """

    def __init__(self, arena: Arena, min_shared_bytes: int) -> None:
        self._arena = arena
        self._min_shared_bytes = max(min_shared_bytes, MIN_SHARED_BYTES)
        self._granted: dict[int, tuple[np.ndarray[Any, Any], Slot]] = {}  # by the id of the array
        self._slots: list[Slot] = []  # of the message being encoded
        self._sent: list[int] = []  # the granted arrays in it
        self._marker = pickle.PickleBuffer(bytearray(1))  # stands for the next slot
        self._plain = True

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised array, as ``numpy.empty`` gives; a large one is in the arena and need not be copied to be sent."""
        num_bytes = dtype.itemsize * int(np.prod(shape, dtype=object))
        if num_bytes < self._min_shared_bytes or dtype.hasobject:
            return np.empty(shape, dtype)
        slot = self._arena.allocate(num_bytes)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, self._arena.view(slot))
        self._granted[id(array)] = array, slot
        return array

    def encode(self, value: Any) -> tuple[bytes, list[Slot]]:
        """``value`` as bytes, and the slots that hold its large arrays; raises what makes it impossible to send."""
        if self._plain:
            try:
                return self._encode(_PlainPickler, value)
            except Exception:
                # It may take cloudpickle, which costs more; what comes next will be of the same kind.
                result = self._encode(_ByValuePickler, value)
                self._plain = False
                return result
        return self._encode(_ByValuePickler, value)

    def forget_allocated(self) -> None:
        """Frees what was allocated and not sent. To be called when nobody refers to it any more."""
        for _, slot in self._granted.values():
            self._arena.free(slot)
        self._granted.clear()

    def _encode(self, pickler: type[_PlainPickler | _ByValuePickler], value: Any) -> tuple[bytes, list[Slot]]:
        self._slots, self._sent = [], []
        file = io.BytesIO()
        try:
            pickler(file, self).dump(value)
        except BaseException:
            granted = [self._granted[key][1] for key in self._sent]
            for slot in self._slots:
                if slot not in granted:
                    self._arena.free(slot)
            raise
        for key in self._sent:
            del self._granted[key]
        return file.getvalue(), self._slots

    def _is_inline(self, buffer: pickle.PickleBuffer) -> bool:
        return buffer is not self._marker  # users' objects have buffers too

    def _reduce(self, array: np.ndarray[Any, Any]) -> Any:
        dtype, shape, num_bytes = array.dtype, array.shape, array.nbytes
        if dtype.hasobject:
            return NotImplemented
        order = () if array.flags.c_contiguous or not array.flags.f_contiguous else (0, None, "F")
        if num_bytes < self._min_shared_bytes:
            return np.ndarray, (shape, dtype, bytearray(array.tobytes("A" if order else "C")), *order)
        granted = self._granted.get(id(array))
        if granted is not None and granted[0] is array:
            self._sent.append(id(array))
            slot = granted[1]
        else:
            slot = self._arena.allocate(num_bytes)
            np.ndarray(shape, dtype, self._arena.view(slot), *order)[...] = array
        self._slots.append(slot)
        return np.ndarray, (shape, dtype, self._marker, *order)


class _PlainPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, encoder: Encoder) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=encoder._is_inline)
        self._encoder = encoder

    def reducer_override(self, obj: Any) -> Any:
        return self._encoder._reduce(obj) if type(obj) in _ARRAY_TYPES else NotImplemented


class _ByValuePickler(CloudPickler):
    def __init__(self, file: io.BytesIO, encoder: Encoder) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, encoder._is_inline)
        self._encoder = encoder

    def reducer_override(self, obj: Any) -> Any:
        reduced = self._encoder._reduce(obj) if type(obj) in _ARRAY_TYPES else NotImplemented
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def decode(payload: Any, slots: list[Slot], reader: ArenaReader) -> Any:
    """The value that ``encode`` was given; its large arrays look at the slots."""
    return pickle.loads(payload, buffers=[reader.take(slot) for slot in slots])
