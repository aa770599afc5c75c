"""A worker in a Ray actor, seen from the consumer: what ``SocketTransport`` is for a process.

Guarantees, besides those of ``WorkerHandle``:

1. ``wait`` returns when there is a message, or raises ``WorkerDied`` when Ray knows that there will
   be none, because the actor, its node or the object has been lost.
2. A message is the consumer's when it is finished. The actor learns of it later, at the latest
   ``_LATE_SECONDS`` after this has begun to wait for more, and at once where it may need to know.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import ray

from gristmill.workers.arena import Bytes
from gristmill.workers.codec import decode, decode_other
from gristmill.workers.crash_journal import Entry
from gristmill.workers.handle import Incident, WorkerBusy, WorkerDied, WorkerSilent
from gristmill.workers.pickling import dumps
from gristmill.workers.protocol import CLOSE, OUTPUTS, START, TAKEN, Header
from gristmill.workers.ray_actor import ActorHandle, Command, Message, ObjectRef

_STACKS_SECONDS = 1.0
_LOOK_SECONDS = 0.25
# without a needed message before the actor is notified: a notification costs as much as a message
_LATE_SECONDS = 0.02
# of the bytes that may be ahead, this part may have been taken without the actor's knowing
_UNREPORTED_SHARE = 4


class _Reader:
    """Arrays that are received: ``decode`` takes them from here."""

    def __init__(self, writable: bool) -> None:
        self._writable = writable

    def take(self, array: Bytes) -> Bytes:
        return np.array(array) if self._writable else array


class RayTransport:
    """A session of an actor.

    Args:
        actor: its handle.
        index, count: which worker this is, of how many.
        place: where the actor is.
        payload: reference to the payload.
        writable: whether arrays can be written to.
    """

    answer_seconds = 2.0
    starts_at_once = True  # its consumer has other actors to look at

    def __init__(
        self,
        actor: ActorHandle,
        index: int,
        count: int,
        place: tuple[str, int],
        payload: ObjectRef,
        writable: bool,
    ) -> None:
        self.usable = True
        self.node, self.process_id = place
        self.budget = 0  # bytes that it may be ahead, from the next start on
        self._actor = actor
        self._session = os.urandom(16)
        self._stream: Iterator[ObjectRef] | None = actor.messages.remote(
            self._session, index, count, [payload]
        )
        self._reader = _Reader(writable)
        self._death: str | None = None
        self._generation = 0
        self._message: Message | None = None  # that is open
        self._num_received = self._bytes_taken = self._bytes_reported = 0
        self._num_wanted = 0
        self._num_bytes = 0  # of the last message

    @property
    def place(self) -> str:
        """See ``Transport``."""
        return f"on node {self.node}, process {self.process_id}"

    def stacks(self) -> str | None:
        """See ``Transport``."""
        with contextlib.suppress(ray.exceptions.RayError):
            return str(ray.get(self._actor.stacks.remote(), timeout=_STACKS_SECONDS))
        return ""

    def is_alive(self) -> bool:
        return self.usable and self._death is None

    def has_sent(self) -> bool:
        """See ``Transport``."""
        return self._stream is not None and _is_ready(self._stream, 0)

    def send(self, kind: int, generation: int, content: object) -> None:
        """See ``Transport``."""
        self._generation = generation
        if kind == START:
            self._num_received = self._bytes_taken = self._bytes_reported = self._num_wanted = 0
            self.usable = False  # also if the content cannot be pickled: nothing is sent then
            content = self.budget, dumps(content)
            self.usable = True
        self._post(kind, content)

    def wait(self, check: Callable[[], None]) -> None:
        """See ``Transport``. The message may be on any node."""
        if not ray.is_initialized():  # or it would initialize itself
            self._die("was lost: Ray was shut down")
        if self._death is not None or self._stream is None:
            raise WorkerDied(self._death)
        try:
            while not _is_ready(self._stream, self._patience()):
                if self._num_wanted <= self._num_received:
                    self._num_wanted = self._num_received + 1
                    self._report_taken()
                else:
                    check()
        except (WorkerBusy, WorkerSilent):
            raise
        except Exception as error:
            raise self._lost(error) from None

    def next(self) -> Header:
        """See ``Transport``.

        Raises:
            WorkerDied: the message was lost with its actor, or there will be none.
        """
        assert self._stream is not None
        self.usable = False  # until it has been received whole
        try:
            self._message = ray.get(next(self._stream))
        except StopIteration:
            self._die("has ended this session, of which it had not heard for a long time")
            raise WorkerDied(self._death) from None
        except Exception as error:
            raise self._lost(error) from None
        return self._message.header

    def content(self, kind: int) -> object:
        """See ``Transport``."""
        assert self._message is not None
        payload = self._message.payload
        if kind != OUTPUTS:
            return decode_other(kind, bytes(payload))
        return decode(payload.data, self._message.arrays, self._reader)

    def report(self) -> bytes:
        """See ``Transport``."""
        assert self._message is not None
        return bytes(self._message.payload)

    def finish(self, header: Header, is_current: bool) -> None:
        """See ``Transport``."""
        message, self._message = self._message, None
        assert message is not None
        if is_current:
            self._num_received += 1
            self._bytes_taken += message.num_bytes
            self._num_bytes = message.num_bytes
            if (self._bytes_taken - self._bytes_reported) * _UNREPORTED_SHARE >= self.budget:
                self._report_taken()

    def unfinished(self) -> list[Entry]:
        """See ``Transport``: the memory of the actor cannot be read."""
        return []

    def incident(self) -> Incident | None:
        """See ``Transport``: the lanes of a lost actor are computed by others, without a word."""
        return None

    def _patience(self) -> float:
        """The time to wait for a message before other work: zero if the actor may wait for
        permission to send it.
        """
        if self._num_wanted > self._num_received:
            return _LOOK_SECONDS
        is_stuck = self._bytes_taken - self._bytes_reported + self._num_bytes > self.budget
        return 0 if is_stuck else _LATE_SECONDS

    def _die(self, how: str) -> None:
        self._death = how

    def _lost(self, error: Exception) -> WorkerDied:
        self._die(f"was lost: {_first_line(error)}")
        return WorkerDied(self._death)

    def _report_taken(self) -> None:
        self._bytes_reported = self._bytes_taken
        self._post(TAKEN, (self._num_wanted, self._bytes_taken))

    def _post(self, kind: int, content: object) -> None:
        commands: Sequence[Command] = [(kind, self._generation, content)]
        try:
            self._actor.post.remote(self._session, commands)
        except Exception as error:
            # it is gone, or its cluster is: the next to receive will learn that, too
            self._lost(error)

    def share_memory(self) -> None:
        """See ``Transport``: the other process cannot use Ray."""

    def begin_close(self) -> None:
        """See ``Transport``."""
        self.usable = False
        if self._death is None and ray.is_initialized():
            self._post(CLOSE, None)
        self._death = self._death or "was closed"
        self._stream = None

    def close(self, deadline: float) -> None:
        """See ``Transport``. There is nothing to wait for."""
        if self._stream is not None:
            self.begin_close()

    def forget(self) -> None:
        """See ``Transport``."""
        self.usable, self._death = False, "belongs to another process"


def _is_ready(stream: Iterator[ObjectRef], seconds: float) -> bool:
    """True if there is a message, on any node, within this time."""
    return bool(ray.wait([stream], timeout=seconds, fetch_local=False)[0])


def _first_line(error: Exception) -> str:
    text = str(error).strip() or "no reason given"
    return f"{type(error).__name__}, {text.splitlines()[0].rstrip('.')}"
