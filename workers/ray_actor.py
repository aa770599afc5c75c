"""The main loop of a Ray actor: the same worker as in a process, once for each program that uses
the actor.

Guarantees:

1. What a worker sends is in Ray's object store before the worker continues: nothing is copied on
   the way that is not changed meanwhile. Its consumer takes the objects from a streaming generator,
   in order, and owns them.
2. No more than ``budget`` bytes are sent and not taken, but for the one message that the consumer
   says it waits for.
3. A session ends when its consumer says so, when the actor ends, or when nothing has been heard of
   its consumer for ``_EXPIRY_SECONDS`` while it waits; a consumer that comes later finds that out
   as it finds out a death, and nothing is lost.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypedDict

import numpy as np
import ray

from gristmill.core.locks import Lock, Signal
from gristmill.workers.arena import Array, Bytes, Order
from gristmill.workers.child import Worker, end_with, load_task
from gristmill.workers.codec import Encoder
from gristmill.workers.connections import Connection, Disconnected, Size
from gristmill.workers.crash_journal import LOG_BYTES, CrashJournal
from gristmill.workers.logs import LogSettings, log_like
from gristmill.workers.producers import Failed, Producer
from gristmill.workers.protocol import CLOSE, START, Header, counted_bytes
from gristmill.workers.setup import Part, be_worker

_log = logging.getLogger("gristmill")

MAX_SESSIONS = 64  # of one actor at a time

_EXPIRY_SECONDS = 600.0

Command: TypeAlias = tuple[int, int, object]  # kind, generation, content


class ObjectRef(Protocol):
    """A reference to an object in Ray's store."""


class Method(Protocol):
    """A method of an actor."""

    def remote(self, *args: object) -> ObjectRef: ...


class StreamingMethod(Protocol):
    """A method of an actor that is a generator."""

    def remote(self, *args: object) -> Iterator[ObjectRef]: ...


class ActorHandle(Protocol):
    """A ``ray_actor.Actor``, as Ray gives it."""

    messages: StreamingMethod
    post: Method
    place: Method
    stacks: Method


class ActorClass(Protocol):
    """``Actor`` as Ray makes actors of it."""

    def options(self, **options: object) -> ActorClass: ...

    def remote(self, environment: Mapping[str, str]) -> ActorHandle: ...


class Message(NamedTuple):
    """A message in Ray's object store."""

    header: Header
    num_bytes: int  # that it counts for
    payload: Bytes
    arrays: list[Bytes]


class ActorSettings(TypedDict):
    """The beginning of a payload for an actor; see ``setup.Preamble``."""

    path: list[str]
    min_shared_bytes: int
    logs: LogSettings | None
    writable: bool  # arrays arrive so


class ArrayBytes:
    """Bytes of an array."""

    def __init__(self, array: Bytes) -> None:
        self.array = array


class Heap:
    """Memory for messages to send, as ``Arena`` is in a process: Ray copies it from here."""

    def allocate(self, num_bytes: int) -> ArrayBytes:
        return ArrayBytes(np.empty(num_bytes, np.uint8))

    def view(self, piece: ArrayBytes) -> Bytes:
        return piece.array

    def store(self, array: Array, order: Order) -> ArrayBytes:
        return ArrayBytes(
            np.ascontiguousarray(array.T if order else array).reshape(-1).view(np.uint8)
        )

    def free(self, piece: ArrayBytes) -> None:
        pass

    def settle(self) -> None:
        pass


class Channel(Connection[ArrayBytes]):
    """Between a worker and its consumer; three threads use it: the worker's, the one that gives
    messages to Ray, and Ray's for commands.
    """

    def __init__(self) -> None:
        super().__init__()
        # something has changed for that thread
        self._for_worker, self._for_ray = Signal(), Signal()
        self._commands: deque[Command] = deque()
        self._outbox: Message | None = None  # that is being handed over
        self._is_closed = False
        self._heard = time.monotonic()
        self._budget = 0
        self._num_sent = self._bytes_sent = 0
        self._num_wanted = self._bytes_taken = 0

    def post(self, commands: Sequence[Command]) -> None:
        """Handles a command of the consumer."""
        self._heard = time.monotonic()
        for command in commands:
            self._commands.append(command)
            if command[0] == CLOSE:
                self._is_closed = True
        self._for_worker.set()
        self._for_ray.set()

    def receive(self, *, wait: bool) -> None:
        """See ``Connection``."""
        while wait and not self._commands:
            self._wait()
        if self._is_closed:
            raise Disconnected
        while self._commands:
            kind, generation, content = self._commands.popleft()
            if kind == START:
                assert isinstance(content, tuple)
                self._budget, body = content
                content = pickle.loads(body)
            self._obey(kind, generation, content)

    def _wait(self) -> None:
        left = self._heard + _EXPIRY_SECONDS - time.monotonic()
        if left <= 0:
            self._is_closed = True
        if self._is_closed:
            self._for_ray.set()
            raise Disconnected
        self._for_worker.wait(left)

    def _begin(self) -> None:
        self._num_sent = self._bytes_sent = self._num_wanted = self._bytes_taken = 0

    def _note_taken(self, content: object) -> None:
        assert isinstance(content, tuple)
        self._num_wanted, self._bytes_taken = content

    def send(
        self,
        kind: int,
        payload: object,
        slots: list[ArrayBytes],
        num_elements: int = 0,
        lane: int = 0,
    ) -> None:
        """See ``Connection``."""
        assert isinstance(payload, bytes)
        held = len(payload) + sum([piece.array.nbytes for piece in slots])
        size = Size(num_elements, counted_bytes(num_elements, held), held)
        if not self._wait_for_room(size):
            return
        self._num_sent += 1
        self._bytes_sent += size.counted
        header = Header(kind, lane, self._generation)
        body = np.frombuffer(payload, np.uint8), [piece.array for piece in slots]
        self.hand_over(Message(header, size.counted, *body))

    def hand_over(self, message: Message) -> None:
        """Waits until Ray has stored a message."""
        self._outbox = message
        self._for_ray.set()
        while self._outbox is not None:
            if self._is_closed:
                raise Disconnected
            self._for_worker.wait()

    def _may_send(self, size: Size) -> bool:
        return (
            not size.num_elements
            or self._num_sent < self._num_wanted
            or self._bytes_sent - self._bytes_taken + size.counted <= self._budget
        )

    def messages(self) -> Iterator[Message]:
        """The messages to the consumer; a caller that takes the next one has stored the previous
        one.
        """
        while True:
            while self._outbox is None and not self._is_closed:
                self._for_ray.wait()
            if self._is_closed:
                return
            assert self._outbox is not None
            yield self._outbox
            self._outbox = None
            self._for_worker.set()


class Actor:
    """A process of the cluster that works for one program, or for several.

    Args:
        environment: variables of its environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        be_worker()
        self._lock = Lock()
        self._channels: dict[bytes, Channel] = {}
        self._ended: deque[bytes] = deque(maxlen=1024)

    def place(self) -> tuple[str, int]:
        """Returns its node, the address and the beginning of what Ray calls it, and its process."""
        return (
            f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:6]})",
            os.getpid(),
        )

    def stacks(self) -> str:
        """Returns the stacks of its workers."""
        names = {
            thread.ident: thread.name
            for thread in threading.enumerate()
            if thread.name.startswith("gristmill")
        }
        texts = [
            f"Thread {names[ident]}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident in names
        ]
        return "\n".join(texts)

    def post(self, session: bytes, commands: Sequence[Command]) -> None:
        """Passes on what the consumer of a session says."""
        channel = self._channel(session)
        if channel is not None:
            channel.post(commands)

    def messages(
        self, session: bytes, index: int, count: int, payload: list[ObjectRef]
    ) -> Iterator[Message]:
        """The messages of a worker that runs a task. The commands of the session control it.

        Args:
            session: its name.
            index, count: which worker it is, of how many.
            payload: a reference to the payload (see ``ray_pool``).
        """
        channel = self._channel(session)
        if channel is None:
            return
        args = channel, index, count, payload[0]
        threading.Thread(
            target=self._work, args=args, name=f"gristmill-worker-{index}", daemon=True
        ).start()
        try:
            yield from channel.messages()
        finally:
            channel.post([(CLOSE, 0, None)])
            with self._lock:
                self._channels.pop(session, None)
                self._ended.append(session)

    def _channel(self, session: bytes) -> Channel | None:
        with self._lock:
            if session in self._ended:
                return None
            return self._channels.setdefault(session, Channel())

    def _work(self, channel: Channel, index: int, count: int, payload: ObjectRef) -> None:
        try:
            node, process_id = self.place()
            _serve(channel, index, count, payload, f"on node {node}, process {process_id}")
        except Disconnected:
            pass
        except SystemExit as error:
            end_with(error)
        except BaseException:
            _log.exception("a worker ended")
            end_with(SystemExit(1))


def _serve(channel: Channel, index: int, count: int, payload: ObjectRef, place: str) -> None:
    settings, *parts = _fetched(payload)
    # of the consumer, if it is here
    sys.path.extend([folder for folder in settings["path"] if folder not in sys.path])
    encoder = Encoder(Heap(), settings["min_shared_bytes"], writable=settings["writable"])

    load = partial(load_task, *parts)
    producer: Producer
    try:
        producer = load()(index, count, encoder.allocate)
        producer.place = place
        log_like(settings["logs"], index, count)
    except SystemExit:
        raise
    except BaseException as error:
        producer = Failed.to_start(error, index, count, place)
    producer.log = CrashJournal(bytearray(LOG_BYTES))
    Worker(channel, encoder, producer, load).run()


def _fetched(payload: ObjectRef) -> tuple[ActorSettings, *tuple[Part, ...]]:
    return ray.get(payload)


_METHODS = {
    "messages": {"concurrency_group": "messages"},
    "post": {"concurrency_group": "commands"},
}


def actor_class() -> ActorClass:
    """``Actor`` as Ray makes actors of it. A stream of messages takes a thread for as long as it
    lasts; commands have one alone, which keeps them in order.
    """
    for name, options in _METHODS.items():
        setattr(Actor, name, ray.method(**options)(vars(Actor)[name]))
    made: ActorClass = ray.remote(concurrency_groups={"messages": MAX_SESSIONS, "commands": 1})(
        Actor
    )
    return made
