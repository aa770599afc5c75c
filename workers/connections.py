"""The connections of workers to their consumers, seen from the worker."""

from __future__ import annotations

import abc
import contextlib
import pickle
import socket
from collections import deque
from typing import Generic, NamedTuple, Protocol

from gristmill.workers.arena import Arena, Slot
from gristmill.workers.codec import Chunk
from gristmill.workers.protocol import (
    CALL,
    COMMAND,
    HEADER,
    LANES,
    LARGE,
    MAX_BYTES_AHEAD,
    MAX_INLINE,
    START,
    LaneChange,
    Start,
    counted_bytes,
    pack_slots,
    unpack_slots,
)

_NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


class Frugal(Protocol):
    """A producer that has a budget of memory for what is ahead of the consumer. Called by any
    thread that sends.
    """

    def affords(self, num_bytes: int) -> bool:
        """True if there is memory for one more pending output of this many bytes."""

    def hold(self, num_bytes: int) -> None:
        """Records that pending outputs take this many bytes more, or fewer."""


class Disconnected(Exception):
    """The consumer needs this worker no more."""


class Size(NamedTuple):
    """The size of a message."""

    num_elements: int
    counted: int  # bytes that it counts for
    held: int  # bytes that it takes


class Connection(abc.ABC, Generic[Chunk]):
    """A worker's connection to its consumer: the commands that have come, and messages to send."""

    def __init__(self) -> None:
        self.start: Start | None = None  # that the worker has not obeyed yet
        self.is_for_another = False  # the start, than the ones before were
        self.calls: list[bytes] = []  # functions that were not called yet
        self.changes: list[LaneChange] = []  # that the worker has not obeyed yet
        self._generation = 0

    @property
    def num_ahead(self) -> int:
        """The number of messages that the consumer has not taken yet, if that is known."""
        return 0

    @abc.abstractmethod
    def receive(self, *, wait: bool) -> None:
        """Obeys the commands that are there.

        Raises:
            Disconnected: the consumer needs this worker no more.
        """

    @abc.abstractmethod
    def send(
        self,
        kind: int,
        payload: object,
        slots: list[Chunk],
        num_elements: int = 0,
        lane: int = 0,
    ) -> None:
        """Sends a message as soon as the consumer lets it, unless it wants a new start
        meanwhile.
        """

    @abc.abstractmethod
    def _may_send(self, size: Size) -> bool: ...

    @abc.abstractmethod
    def _begin(self) -> None:
        """Forgets the messages before a new start."""

    @abc.abstractmethod
    def _note_taken(self, content: object) -> None:
        """Obeys ``TAKEN``, of the current generation."""

    def _obey(self, kind: int, generation: int, content: object) -> None:
        if kind == START:
            assert isinstance(content, Start)
            self.start, self.changes = content, []
            self.is_for_another |= content.is_for_another  # also if a start is overtaken
            self._generation = generation
            self._begin()
        elif kind == CALL:
            assert isinstance(content, bytes)
            self.calls.append(content)
        elif kind == LANES:
            assert isinstance(content, LaneChange)
            self.changes.append(content)
        elif generation == self._generation:
            self._note_taken(content)

    def _wait_for_room(self, size: Size) -> bool:
        """Wait until a message may be sent; return False if there is a new start, so that it is not
        needed.
        """
        while self.start is None and not self._may_send(size):
            self.receive(wait=True)
        return self.start is None


class BoundedConnection(Connection[Chunk]):
    """Base of connections that know which of their messages the consumer has not taken yet.

    Args:
        buffer_size: the most elements in these messages, if they are large.
    """

    def __init__(self, buffer_size: int) -> None:
        super().__init__()
        self._buffer_size = buffer_size
        self.frugal: Frugal | None = None
        self._ahead: deque[Size] = deque()  # of the messages that were not taken yet
        self._num_ahead = 0  # elements in them
        self._bytes_ahead = 0  # that they count for

    @property
    def num_ahead(self) -> int:
        """See ``Connection``."""
        return len(self._ahead)

    def _begin(self) -> None:
        self.take_all_off()

    def _note_taken(self, content: object) -> None:
        self._take_off()

    def _may_send(self, size: Size) -> bool:
        if not self._num_ahead or not size.num_elements:
            return True
        if self.frugal is not None and not self.frugal.affords(size.held):
            return False
        return (
            self._num_ahead + size.num_elements <= self._buffer_size
            or self._bytes_ahead + size.counted <= MAX_BYTES_AHEAD
        )

    def _put_on(self, size: Size) -> None:
        self._ahead.append(size)
        self._count(size.num_elements, size.counted, size.held)

    def _take_off(self) -> None:
        size = self._ahead.popleft()
        self._count(-size.num_elements, -size.counted, -size.held)

    def take_all_off(self) -> None:
        while self._ahead:
            self._take_off()

    def _count(self, num_elements: int, num_bytes: int, held_bytes: int) -> None:
        self._num_ahead += num_elements
        self._bytes_ahead += num_bytes
        if self.frugal is not None:
            self.frugal.hold(held_bytes)


class SocketConnection(BoundedConnection[Slot]):
    """Sends messages, receives commands, and knows how far ahead the consumer lets it be."""

    def __init__(self, fd: int, arena: Arena, buffer_size: int) -> None:
        super().__init__(buffer_size)
        self._socket = socket.socket(fileno=fd)
        self._arena = arena
        self._received = bytearray()

    def receive(self, *, wait: bool) -> None:
        """See ``Connection``."""
        try:
            data = self._socket.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            raise Disconnected
        self._received += data
        while len(self._received) >= COMMAND.size:
            kind, generation, length = COMMAND.unpack_from(self._received)
            if len(self._received) < COMMAND.size + length:
                break
            body = bytes(memoryview(self._received)[COMMAND.size : COMMAND.size + length])
            del self._received[: COMMAND.size + length]
            self._obey(kind, generation, self._content(kind, body))

    def _content(self, kind: int, body: bytes) -> object:
        if kind == CALL:
            return body
        if kind in (START, LANES):
            return pickle.loads(body)
        for slot in unpack_slots(body):
            self._arena.free(slot)
        return None

    def send(
        self, kind: int, payload: object, slots: list[Slot], num_elements: int = 0, lane: int = 0
    ) -> None:
        """See ``Connection``."""
        assert isinstance(payload, bytes)
        num_bytes = LARGE if slots else counted_bytes(num_elements, len(payload))
        size = Size(num_elements, num_bytes, len(payload) + sum([slot.num_bytes for slot in slots]))
        if not self._wait_for_room(size):
            for slot in slots:
                self._arena.free(slot)
            return
        is_shared = len(payload) > MAX_INLINE
        length = len(payload)
        if is_shared:
            slot = self._arena.allocate(length)
            self._arena.view(slot)[:] = memoryview(payload)
            slots, payload = [*slots, slot], b""
        self._put_on(size)
        header = HEADER.pack(kind, is_shared, lane, self._generation, len(slots), length)
        try:
            self._socket.sendall(header + pack_slots(slots) + payload, _NO_SIGPIPE)
        except ConnectionError:
            raise Disconnected from None

    def shut(self) -> None:
        """Ends it. Who waits for something of it learns that, and then it may be closed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self.take_all_off()
