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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import ray

from gristmill.core.errors import add_note
from gristmill.core.locks import Lock, Signal
from gristmill.workers.child import Disconnected, Failed, Worker, end_with, load_task
from gristmill.workers.codec import Encoder
from gristmill.workers.crash_journal import LOG_BYTES, CrashJournal
from gristmill.workers.logs import log_like
from gristmill.workers.messages import CALL, START
from gristmill.workers.setup import be_worker

_log = logging.getLogger("gristmill")

CLOSE = 4  # a command besides those of ``messages``: the session is over
MAX_SESSIONS = 64  # of one actor at a time

_EXPIRY_SECONDS = 600.0
_MIN_BYTES = 128  # that an element counts for

Command = tuple[int, int, Any]  # kind, generation, content


class ArrayBytes:
    """Bytes of an array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


class Heap:
    """Memory for messages to send, as ``Arena`` is in a process: Ray copies it from here."""

    def allocate(self, num_bytes: int) -> ArrayBytes:
        return ArrayBytes(np.empty(num_bytes, np.uint8))

    def view(self, piece: ArrayBytes) -> np.ndarray[Any, Any]:
        return piece.array

    def store(self, array: np.ndarray[Any, Any], order: tuple[Any, ...]) -> ArrayBytes:
        return ArrayBytes(
            np.ascontiguousarray(array.T if order else array).reshape(-1).view(np.uint8)
        )

    def free(self, piece: ArrayBytes) -> None:
        pass

    def settle(self) -> None:
        pass


class Channel:
    """Between a worker and its consumer; three threads use it: the worker's, the one that gives
    messages to Ray, and Ray's for commands.
    """

    def __init__(self) -> None:
        self.start: Any = None  # see ``child.Connection``
        self.is_for_another = False
        self.calls: list[bytes] = []
        # lanes of actors change with a new start alone
        self.changes: list[tuple[dict[int, Any], Sequence[int]]] = []
        # something has changed for that thread
        self._for_worker, self._for_ray = Signal(), Signal()
        self._commands: deque[Command] = deque()
        self._outbox: Any = None  # the message that is being handed over
        self._is_closed = False
        self._heard = time.monotonic()
        self._generation = 0
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
        """Obeys the commands that are there."""
        while wait and not self._commands:
            self._wait()
        if self._is_closed:
            raise Disconnected
        while self._commands:
            self._obey(*self._commands.popleft())

    def _wait(self) -> None:
        left = self._heard + _EXPIRY_SECONDS - time.monotonic()
        if left <= 0:
            self._is_closed = True
        if self._is_closed:
            self._for_ray.set()
            raise Disconnected
        self._for_worker.wait(left)

    def _obey(self, kind: int, generation: int, content: Any) -> None:
        if kind == START:
            self._budget, body = content
            states, skip, quarantine, is_for_another = pickle.loads(body)
            self.start = states, skip, quarantine
            self.is_for_another |= is_for_another  # also if a start is overtaken
            self._generation = generation
            self._num_sent = self._bytes_sent = self._num_wanted = self._bytes_taken = 0
        elif kind == CALL:
            self.calls.append(content)
        elif generation == self._generation:
            self._num_wanted, self._bytes_taken = content

    def send(
        self, kind: int, payload: bytes, slots: list[Any], num_elements: int = 0, lane: int = 0
    ) -> None:
        """Sends a message as soon as the consumer lets it, unless it wants a new start
        meanwhile.
        """
        num_bytes = max(
            num_elements * _MIN_BYTES, len(payload) + sum([piece.array.nbytes for piece in slots])
        )
        while self.start is None and num_elements and not self._may_send(num_bytes):
            self.receive(wait=True)
        if self.start is not None:
            return
        self._num_sent += 1
        self._bytes_sent += num_bytes
        body = np.frombuffer(payload, np.uint8), [piece.array for piece in slots]
        self.hand_over((kind, lane, self._generation, num_bytes, *body))

    def hand_over(self, message: tuple[Any, ...]) -> None:
        """Waits until Ray has stored a message."""
        self._outbox = message
        self._for_ray.set()
        while self._outbox is not None:
            if self._is_closed:
                raise Disconnected
            self._for_worker.wait()

    def _may_send(self, num_bytes: int) -> bool:
        return (
            self._num_sent < self._num_wanted
            or self._bytes_sent - self._bytes_taken + num_bytes <= self._budget
        )

    def messages(self) -> Iterator[Any]:
        """Yields the messages to the consumer; a caller that takes the next one has stored the
        previous one.
        """
        while True:
            while self._outbox is None and not self._is_closed:
                self._for_ray.wait()
            if self._is_closed:
                return
            message = self._outbox
            yield message
            del message
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

    def messages(self, session: bytes, index: int, count: int, payload: list[Any]) -> Iterator[Any]:
        """Yields the messages of a worker that runs a task. The commands of the session control it.

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

    def _work(self, channel: Channel, index: int, count: int, payload: Any) -> None:
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


def _serve(channel: Channel, index: int, count: int, payload: Any, place: str) -> None:
    settings, *parts = ray.get(payload)
    # of the consumer, if it is here
    sys.path.extend([folder for folder in settings["path"] if folder not in sys.path])
    arena: Any = Heap()
    encoder = Encoder(arena, settings["min_shared_bytes"], writable=settings["writable"])

    load = partial(load_task, *parts)
    producer: Any
    try:
        producer = load()(index, count, encoder.allocate)
        producer.place = place
        producer.log = CrashJournal(bytearray(LOG_BYTES))
        log_like(settings["logs"], index, count)
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            add_note(error, f"Raised in worker {index} of {count}, {place}, when it was started.")
        producer = Failed(error)
    Worker(channel, encoder, producer, load).run()


_METHODS: dict[str, dict[str, Any]] = {
    "messages": {"concurrency_group": "messages"},
    "post": {"concurrency_group": "commands"},
}


def actor_class() -> Callable[..., Any]:
    """Returns ``Actor`` as Ray makes actors of it. A stream of messages takes a thread for as long
    as it lasts; commands have one alone, which keeps them in order.
    """
    for name, options in _METHODS.items():
        setattr(Actor, name, ray.method(**options)(vars(Actor)[name]))
    made: Callable[..., Any] = ray.remote(
        concurrency_groups={"messages": MAX_SESSIONS, "commands": 1}
    )(Actor)
    return made
