"""The messages between a worker and the consumer.

A worker sends ``HEADER`` (kind, lane, generation, number of slots, bytes in the message), the
slots, and the bytes. Bytes beyond ``MAX_INLINE`` are in the last of the slots, so that a message
fits into the socket and no thread waits in the middle of one. The consumer sends ``COMMAND`` (kind,
generation, bytes that follow). The generation counts the starts of a worker: what it sent before
the last one is of no interest any more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from gristmill.workers.arena import Slot

OUTPUTS = 1  # elements of a lane and the states after them
END = 2  # there are no more elements in the lane
ERROR = 3  # what the next element of the lane raises
SKIPPED = 4  # the state of the lane after an element that was skipped
STARTED = 5  # the last start has been noticed
REPORT = 6  # what an observer of the worker requested
PASSED = 7  # the worker has passed the elements in quarantine
LEFT = 8  # the worker computes the lane no more, and has sent all that it computed of it
NOT_STARTED = 0xFF  # and a text, instead of a header: the process could not import what it needs

# kind, whether the bytes are in the last slot, lane, generation, slots, bytes
HEADER = struct.Struct("<BBHIIQ")
SLOT = struct.Struct("<QQ")

START = 1  # from a pickled state on
TAKEN = 2  # the consumer has taken a message; slots follow that may be used again
CALL = 3  # a pickled function follows, to be called with what runs in the worker
LANES = 4  # pickled states of lanes to compute besides the others, and the lanes to leave, follow
COMMAND = struct.Struct("<BxxxII")  # kind, generation, bytes

# to a fork server: descriptors come along, connection, arena, payload, lifeline, directory and open
# streams
FORK_REQUEST = 1
KILL_REQUEST = 2
# which of the two, slot, index, count, whether standard output and errors are open
FORK = struct.Struct("<BIII??")
# What a fork server writes of the worker in a slot: its id (0: not born yet; -1: it never will be),
# and 1 more than its status (0: it runs). In slot 0, the id is 1 when the fork server is ready.
RECORD = struct.Struct("<qq")

MAX_INLINE = 1 << 14


@dataclass(frozen=True)
class Quarantine:
    """The mode of a worker after one that died: it computes one output at a time, and nothing
    ahead.

    Args:
        refused: the elements not to compute again, by reader and number (see ``crash_journal``),
            and the text of the error to raise in its place.
        until: the number, by reader, at which the quarantine ends: the work of the dead worker is
            before it.
    """

    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)


class Passed(BaseException):
    """Raised in a worker where ``Quarantine.until`` says."""


@dataclass(slots=True)
class Message:
    kind: int
    lane: int
    generation: int
    slots: list[Slot]
    payload: Any  # bytes; None: they are in the last slot


def pack_slots(slots: list[Slot]) -> bytes:
    return b"".join([SLOT.pack(*slot) for slot in slots])


def unpack_slots(data: bytes | bytearray | memoryview) -> list[Slot]:
    return [Slot(*pair) for pair in SLOT.iter_unpack(data)]
