"""The current work of a worker, in memory that outlives it: if it dies, the consumer learns which
elements may be the cause.

The first page of a worker's arena is a table of entries: the thread at work, and the range that it
works on. Threads of the worker write, each its own entry; the consumer reads when the worker has
died.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import NamedTuple

_ENTRY = struct.Struct("<qqq")  # the reader, plus 2, so that 0 means no reader; start; stop
_NUM_ENTRIES = 128
LOG_BYTES = _NUM_ENTRIES * _ENTRY.size
_NUM_OWN = 32  # of the thread that the worker runs in; the others are for threads that work ahead

# the thread that computes the next outputs; their range starts after the last one that was sent
OUTPUTS = -1
_MAX_ROOTS = 1 << 16  # of a lane


def who_reads(lane: int, root: int) -> int:
    """Returns the index of the reader of a lane, if there may be several."""
    return lane * _MAX_ROOTS + root


def lane_and_root(who: int) -> tuple[int, int]:
    return divmod(who, _MAX_ROOTS)


class Entry(NamedTuple):
    """Work that has begun and not ended: ``who`` is at the numbers from ``start`` to before
    ``stop``.
    """

    who: int
    start: int
    stop: int


class CrashJournal:
    """The worker's side.

    Args:
        memory: where it is, ``LOG_BYTES`` zeros.
    """

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._memory = memory
        self._free = list(range(_NUM_OWN, _NUM_ENTRIES))

    def begin(self, num: int) -> None:
        """Notes that up to ``num`` outputs are being computed, 0: none, and nothing else yet."""
        self._memory[: _NUM_OWN * _ENTRY.size] = bytes(_NUM_OWN * _ENTRY.size)
        if num:
            _ENTRY.pack_into(self._memory, 0, OUTPUTS + 2, 0, num)

    def note(self, who: int, start: int, stop: int) -> None:
        """Notes what the outputs are being made of, in place of what ``who`` was noted to be at."""
        _, root = lane_and_root(who)  # outputs are those of one lane at a time
        if root < _NUM_OWN - 1:
            _ENTRY.pack_into(self._memory, (root + 1) * _ENTRY.size, who + 2, start, stop)

    def note_alone(self, who: int, index: int) -> None:
        """Notes that the next output is being made of what ``who`` has at ``index``, and of nothing
        else any more.
        """
        self.begin(1)
        self.note(who, index, index + 1)

    def enter(self, who: int, start: int, stop: int) -> int:
        """Notes what another thread is at; returns the number of the entry, for ``leave``."""
        try:
            number = self._free.pop()
        except IndexError:  # that many threads
            return 0
        _ENTRY.pack_into(self._memory, number * _ENTRY.size, who + 2, start, stop)
        return number

    def leave(self, number: int) -> None:
        if number:
            _ENTRY.pack_into(self._memory, number * _ENTRY.size, 0, 0, 0)
            self._free.append(number)


def read_entries(fd: int) -> list[Entry]:
    """Returns the entries of a worker that has died.

    Args:
        fd: file descriptor of its arena.
    """
    with contextlib.suppress(OSError):
        page = os.pread(fd, LOG_BYTES, 0)
        page = page[: len(page) // _ENTRY.size * _ENTRY.size]
        return [Entry(who - 2, start, stop) for who, start, stop in _ENTRY.iter_unpack(page) if who]
    return []
