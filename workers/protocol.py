"""The protocol between a worker and its consumer, over any transport: see ``handle.Transport``.

A worker sends messages: a kind, a lane, a generation and a content. The consumer sends commands: a
kind, a generation and a content. The generation counts the starts of a worker: what it sent before
the last one is dropped.

Through a socket a worker sends ``HEADER`` (kind, lane, generation, number of slots, bytes in the
message), the slots, and the bytes. Bytes beyond ``MAX_INLINE`` are in the last of the slots, so
that a message fits into the socket and no thread waits in the middle of one. The consumer sends
``COMMAND`` (kind, generation, bytes that follow). Ray and queues carry the same in tuples.

A worker is ahead of its consumer by the messages that it has sent and the consumer has not taken.
``counted_bytes`` says how many bytes a message counts for there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gristmill.workers.arena import Slot

# Kinds of messages.
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

# Kinds of commands.
START = 1  # a ``Start`` follows
TAKEN = 2  # the consumer has taken a message; slots follow that may be used again
CALL = 3  # a pickled function follows, to be called with what runs in the worker
LANES = 4  # a ``LaneChange`` follows
CLOSE = 5  # the worker is not needed any more; a socket is closed instead
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

MAX_BYTES_AHEAD = 1 << 20  # of messages of which the number of elements does not limit how many
# what a message counts for of which ``buffer_size`` alone says how many may wait
LARGE = MAX_BYTES_AHEAD + 1
_MIN_BYTES = 128  # that an element counts for: no more than 8192 are ahead

States: TypeAlias = Mapping[int, object]  # of lanes, by number


def counted_bytes(num_elements: int, num_bytes: int) -> int:
    """Return how many bytes a message of ``num_elements`` and ``num_bytes`` counts for."""
    return max(num_bytes, num_elements * _MIN_BYTES)


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


class Start(NamedTuple):
    """Content of ``START``."""

    states: States  # where each lane continues, in the order in which they are needed
    skip: bool  # the next element of the first lane
    quarantine: Quarantine | None
    is_for_another: bool  # consumer than the starts before


class LaneChange(NamedTuple):
    """Content of ``LANES``."""

    added: States  # lanes to compute besides the others, and where they continue
    leaving: Sequence[int]  # lanes to leave


class Header(NamedTuple):
    """A message without its content."""

    kind: int
    lane: int
    generation: int


def pack_slots(slots: list[Slot]) -> bytes:
    return b"".join([SLOT.pack(*slot) for slot in slots])


def unpack_slots(data: bytes | bytearray | memoryview) -> list[Slot]:
    return [Slot(*pair) for pair in SLOT.iter_unpack(data)]
