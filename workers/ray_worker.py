"""A worker in a Ray actor, seen from the consumer: what ``WorkerProcess`` is for a process.

Guarantees, besides those of ``WorkerProcess``:

1. ``receive`` returns the worker's next message, raises ``WorkerDied`` when Ray knows that it
   will not come, because the actor, its node or the object has been lost, or ``WorkerSilent``.
2. A message is the consumer's when it is returned. The actor learns of it later, at the latest
   ``_LATE_SECONDS`` after this has begun to wait for more, and at once where it may need to know.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import numpy as np
import ray

from gristmill.core.instruments import Wrap, shadow
from gristmill.workers.codec import decode, decode_other
from gristmill.workers.crash_journal import Entry
from gristmill.workers.messages import CALL, OUTPUTS, REPORT, START, STARTED, TAKEN
from gristmill.workers.pickling import dumps
from gristmill.workers.process import WorkerBusy, WorkerDied, WorkerSilent
from gristmill.workers.ray_actor import CLOSE, Command

_ANSWER_SECONDS = 2.0  # to a new start of a worker that runs
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

    def take(self, array: Any) -> Any:
        return np.array(array) if self._writable else array


class RayWorker:
    """A session of an actor.

    Args:
        actor: its handle.
        index, count: which worker this is, of how many.
        place: where the actor is.
        payload: reference to the payload.
        writable: whether arrays can be written to.
    """

    def __init__(
        self,
        actor: Any,
        index: int,
        count: int,
        place: tuple[str, int],
        payload: Any,
        writable: bool,
    ) -> None:
        self.index = index
        self.usable = True
        self.generation = 0
        self.is_for_another = False
        self.last_report = b""
        self.node, self.process_id = place
        self.budget = 0  # bytes that it may be ahead, from the next start on
        self._actor = actor
        self._session = os.urandom(16)
        self._stream = actor.messages.remote(self._session, index, count, [payload])
        self._reader: Any = _Reader(writable)
        self._death: str | None = None
        self._has_answered = False
        self._answer_by: float | None = None
        self._num_received = self._bytes_taken = self._bytes_reported = 0
        self._num_wanted = 0
        self._num_bytes = 0  # of the last message

    @property
    def place(self) -> str:
        """A description of the location of the actor."""
        return f"on node {self.node}, process {self.process_id}"

    def stacks(self) -> str:
        """Return the stacks of its threads; empty if it does not answer."""
        with contextlib.suppress(ray.exceptions.RayError):
            return str(ray.get(self._actor.stacks.remote(), timeout=_STACKS_SECONDS))
        return ""

    def is_alive(self) -> bool:
        return self.usable and self._death is None

    def start(self, states: Any, *, skip: bool = False, quarantine: Any = None) -> None:
        """See ``WorkerProcess.start``."""
        self.generation += 1
        self._answer_by = time.monotonic() + _ANSWER_SECONDS if self._has_answered else None
        self._num_received = self._bytes_taken = self._bytes_reported = self._num_wanted = 0
        self._post(START, (self.budget, dumps((states, skip, quarantine, self.is_for_another))))
        self.is_for_another = False

    def has_sent(self) -> bool:
        """Return true if there is a message that was not received."""
        stream = self._stream
        return stream is not None and bool(ray.wait([stream], timeout=0, fetch_local=False)[0])

    def call(self, function: bytes) -> None:
        """See ``WorkerProcess.call``."""
        self._post(CALL, function)

    def unfinished(self) -> list[Entry]:
        """Return the entries on which the actor works: always empty, as its memory cannot be
        read.
        """
        return []

    def set_instruments(self, waiting: Wrap | None, receiving: Wrap | None) -> None:
        """See ``WorkerProcess.set_instruments``."""
        shadow(self, "_wait", waiting)
        shadow(self, "receive", receiving)

    def receive(self, patience: float | None = None) -> tuple[int, int, Any]:
        """See ``WorkerProcess.receive``; the patience begins at once."""
        deadline = None if patience is None else time.monotonic() + patience
        while True:
            kind, lane, generation, num_bytes, payload, arrays = self._next_message(deadline)
            if kind == REPORT:
                self.last_report = bytes(payload)
            if generation == self.generation:
                self._has_answered, self._answer_by = True, None
                self._num_received += 1
                self._bytes_taken += num_bytes
                self._num_bytes = num_bytes
                if kind not in (STARTED, REPORT):
                    break
            self.usable = True
        content = (
            decode(payload, arrays, self._reader)
            if kind == OUTPUTS
            else decode_other(kind, bytes(payload))
        )
        if (self._bytes_taken - self._bytes_reported) * _UNREPORTED_SHARE >= self.budget:
            self._report_taken()
        self.usable = True
        return kind, lane, content

    def _next_message(self, deadline: float | None) -> Any:
        stream = self._stream
        if not ray.is_initialized():  # or it would initialize itself
            self._die("was lost: Ray was shut down")
        if self._death is not None:
            raise WorkerDied(self._death)
        try:
            self._wait(stream, deadline)
            self.usable = False  # until it has been received whole
            return ray.get(next(stream))
        except StopIteration:
            self._die("has ended this session, of which it had not heard for a long time")
        except (WorkerBusy, WorkerSilent):
            raise
        except Exception as error:
            self._die(f"was lost: {_first_line(error)}")
        raise WorkerDied(self._death)

    def _wait(self, stream: Any, deadline: float | None) -> None:
        """Waits until there is a message, on whichever node."""
        while not ray.wait([stream], timeout=self._patience(), fetch_local=False)[0]:
            now = time.monotonic()
            if self._num_wanted <= self._num_received:
                self._num_wanted = self._num_received + 1
                self._report_taken()
            elif self._answer_by is not None and now > self._answer_by:
                raise WorkerBusy
            elif deadline is not None and now > deadline:
                raise WorkerSilent

    def _patience(self) -> float:
        """Return the time to wait for a message before other work: zero if the actor may wait for
        permission to send it.
        """
        if self._num_wanted > self._num_received:
            return _LOOK_SECONDS
        is_stuck = self._bytes_taken - self._bytes_reported + self._num_bytes > self.budget
        return 0 if is_stuck else _LATE_SECONDS

    def _die(self, how: str) -> None:
        self._death = how

    def _report_taken(self) -> None:
        self._bytes_reported = self._bytes_taken
        self._post(TAKEN, (self._num_wanted, self._bytes_taken))

    def _post(self, kind: int, content: Any) -> None:
        command: Command = kind, self.generation, content
        try:
            self._actor.post.remote(self._session, [command])
        except Exception as error:
            # it is gone, or its cluster is: the next to receive will learn that, too
            self._die(f"was lost: {_first_line(error)}")

    def share_memory(self) -> None:
        """Called when this process is forked: the other one cannot use Ray."""

    def begin_close(self) -> None:
        """Notifies the actor that this session is over, without waiting."""
        self.usable = False
        if self._death is None and ray.is_initialized():
            self._post(CLOSE, None)
        self._death = self._death or "was closed"
        self._stream = None

    def close(self, deadline: float) -> None:
        """There is nothing to wait for."""
        if self._stream is not None:
            self.begin_close()

    def forget(self) -> None:
        """Drop what belongs to the parent, in a forked process."""
        self.usable, self._death = False, "belongs to another process"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or "no reason given"
    return f"{type(error).__name__}, {text.splitlines()[0].rstrip('.')}"
