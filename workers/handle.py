"""A worker, seen from the consumer: a process, a thread or a session of a Ray actor.

Guarantees:

1. ``receive`` returns the worker's next message, or raises within a second of the worker's end. No
   code waits for a worker in any other way.
2. An interrupt in the middle of ``receive`` or ``start`` (as from the keyboard) leaves
   ``transport.usable`` false where something may be lost: another worker has to take over.
3. ``close`` waits only for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from gristmill.core.instruments import Wrap, shadow
from gristmill.workers.crash_journal import Entry
from gristmill.workers.protocol import (
    CALL,
    LANES,
    REPORT,
    START,
    STARTED,
    Header,
    LaneChange,
    Quarantine,
    Start,
    States,
)


class WorkerDied(Exception):
    """The worker has ended by itself; ``str`` says how."""


class WorkerBusy(Exception):
    """The worker does not notice that it was started again, at an element that is no longer
    needed; or it was lost.
    """


class WorkerSilent(Exception):
    """The worker runs, and says nothing for longer than its caller wants to wait."""


class Incident(Protocol):
    """The death of a process that worked for several consumers."""

    is_reported: bool  # the reason is known or was reported

    @property
    def num_suspects(self) -> int:
        """The number of workers that were at work."""

    def concerns(self, worker: WorkerHandle[Transport]) -> bool:
        """True if the work of ``worker`` may be the reason."""

    def is_for(self, worker: WorkerHandle[Transport]) -> bool:
        """True if ``worker``, which has repeated its work, reports the death of the process. It is
        asked once.
        """


class Transport(Protocol):
    """Carries commands to a worker and messages from it. One message is open at a time: ``wait``,
    ``next``, ``content`` or ``report``, and ``finish`` follow one another.
    """

    usable: bool  # false: something may be lost, so another worker has to take over
    answer_seconds: float  # within which a worker that runs notices a new start
    # The patience of ``receive`` begins with the start; else when the worker has noticed it.
    starts_at_once: bool

    @property
    def process_id(self) -> int: ...

    @property
    def place(self) -> str:
        """A description of the location of the worker."""

    @property
    def node(self) -> str:
        """The machine of the worker; empty if it is this one."""

    def is_alive(self) -> bool: ...

    def has_sent(self) -> bool:
        """Return true if the worker has sent something, or has ended."""

    def send(self, kind: int, generation: int, content: object) -> None:
        """Send a command. If the worker has ended, the next ``wait`` raises."""

    def wait(self, check: Callable[[], None]) -> None:
        """Wait until there is a message.

        Args:
            check: called several times a second while there is none; may raise.

        Raises:
            WorkerDied: the worker ended by itself.
            WorkerBusy: the worker was lost; another one should take over.
        """

    def next(self) -> Header:
        """Open the message."""

    def content(self, kind: int) -> object:
        """Return the content of the open message: of ``OUTPUTS`` what ``codec.decode`` returns, of
        others what ``codec.decode_other`` returns.
        """

    def report(self) -> bytes:
        """Return the content of the open message, a ``REPORT``."""

    def finish(self, header: Header, is_current: bool) -> None:
        """Close the open message. The worker may send others in its place.

        Args:
            header: its header.
            is_current: whether it is of the current generation.
        """

    def unfinished(self) -> list[Entry]:
        """Return the entries on which the worker works, or worked when it died, if they can be
        read.
        """

    def incident(self) -> Incident | None:
        """Return the incident of its death, shared with the other consumers that its process worked
        for; ``None`` if there are none.
        """

    def stacks(self) -> str | None:
        """Return the stacks of the worker's threads, empty if it does not answer; ``None`` if it
        has to be asked by a signal.
        """

    def share_memory(self) -> None:
        """Called when this process is forked."""

    def begin_close(self) -> None:
        """Ask the worker to stop, without waiting."""

    def close(self, deadline: float) -> None:
        """Wait until the worker has ended, after ``deadline`` (``time.monotonic()``) with force
        where there is any.
        """

    def forget(self) -> None:
        """In a forked process: drop what belongs to the other one."""


T_co = TypeVar("T_co", bound=Transport, covariant=True)


class WorkerHandle(Generic[T_co]):
    """A worker: starts, changes of lanes, and its messages.

    Args:
        index: which worker it is.
        transport: carries its messages.
    """

    def __init__(self, index: int, transport: T_co) -> None:
        self.index = index
        self.transport = transport
        self.generation = 0
        self.waited_seconds = 0.0  # for its messages
        # the next start, than the ones before were: the task is loaded again
        self.is_for_another = False
        self.last_report = b""  # the worker's last report, if it is observed
        self._has_answered = self._is_started = False  # it has noticed a start; the last start
        self._answer_by: float | None = None  # until then it should notice the last start

    @property
    def process_id(self) -> int:
        return self.transport.process_id

    def is_alive(self) -> bool:
        return self.transport.is_alive()

    @property
    def is_up(self) -> bool:
        """True if it runs, so that it begins at once with what it gets."""
        return self.transport.starts_at_once or self._has_answered or self.transport.has_sent()

    def start(
        self, states: States, *, skip: bool = False, quarantine: Quarantine | None = None
    ) -> None:
        """Makes the worker produce from ``states`` on; what it has sent before will not be received
        any more.

        Args:
            states: of each lane that it is to produce, in the order in which they are needed;
                ``None`` is the beginning.
            skip: skip the next element of the first lane, and send the state after it.
            quarantine: what to be careful about.
        """
        self.generation += 1
        self._is_started = self.transport.starts_at_once
        # or it is being born
        patience = self.transport.answer_seconds
        self._answer_by = time.monotonic() + patience if self._has_answered else None
        start = Start(states, skip, quarantine, self.is_for_another)
        self.transport.send(START, self.generation, start)
        self.is_for_another = False

    def change_lanes(self, states: States, leaving: Sequence[int]) -> None:
        """Let the worker compute other lanes, without a new start; it continues with those that are
        named nowhere.

        Args:
            states: of lanes that it computes from now on.
            leaving: lanes that it leaves when nothing is left that was computed ahead for them. Of
                each that has not ended until then, ``LEFT`` comes after its last output.
        """
        self.transport.send(LANES, self.generation, LaneChange({**states}, [*leaving]))

    def call(self, function: bytes) -> None:
        """Has the worker call a pickled function with its ``Worker``, soon, between two
        messages.
        """
        self.transport.send(CALL, self.generation, function)

    def set_instruments(self, waiting: Wrap | None, receiving: Wrap | None) -> None:
        """Lets an observer measure how long this process waits for messages, and how long it takes
        to receive them all in all.
        """
        shadow(self, "_wait", waiting)
        shadow(self, "receive", receiving)

    def receive(self, patience: float | None = None) -> tuple[int, int, object]:
        """Waits for the next message since ``start``: its kind, its lane and its content, which
        ``Transport.content`` describes.

        Args:
            patience: how many seconds to wait for it, from the time on that the worker has noticed
                its start, or from now on if its transport ``starts_at_once``.

        Raises:
            WorkerDied: the worker ended by itself.
            WorkerSilent: it took longer than ``patience``.
            WorkerBusy: it does not answer to ``start``, or was lost; another one should take over.
        """
        transport = self.transport
        while True:
            self._wait(partial(self._check, patience, time.monotonic()))
            header = transport.next()
            is_current = header.generation == self.generation
            is_wanted = is_current and header.kind not in (STARTED, REPORT)
            content = transport.content(header.kind) if is_wanted else None
            if header.kind == REPORT:
                self.last_report = transport.report()
            if is_current:
                self._has_answered, self._is_started, self._answer_by = True, True, None
            transport.finish(header, is_current)
            transport.usable = True
            if is_wanted:
                return header.kind, header.lane, content

    def _wait(self, check: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            self.transport.wait(check)
        finally:
            self.waited_seconds += time.monotonic() - began

    def _check(self, patience: float | None, began: float) -> None:
        now = time.monotonic()
        if self._answer_by is not None and now > self._answer_by:
            self.transport.usable = False
            raise WorkerBusy
        if patience is not None and self._is_started and now > began + patience:
            raise WorkerSilent

    def share_memory(self) -> None:
        """Called when this process is forked."""
        self.transport.share_memory()

    def begin_close(self) -> None:
        """Asks the worker to stop, without waiting."""
        self.transport.begin_close()

    def close(self, deadline: float) -> None:
        """Waits until the worker has ended, after ``deadline`` (``time.monotonic()``) with
        force.
        """
        self.transport.close(deadline)

    def kill(self) -> None:
        """Ends the worker now."""
        self.transport.close(time.monotonic())

    def forget(self) -> None:
        """In a forked process: drops what belongs to the other one."""
        self.transport.forget()
