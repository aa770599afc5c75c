"""A worker process, seen from the consumer.

Guarantees:

1. ``receive`` returns the worker's next message or raises ``WorkerDied``, no later than a second
   after the process has ended, for any reason. No code waits for a worker in any other way.
2. An exception that interrupts ``receive`` or ``start`` (such as a ``KeyboardInterrupt``) leaves
   ``usable`` false: bytes may be lost, and a new process has to take over.
3. ``stop`` waits only for a limited time; afterwards the process runs no more. Its exit status has
   been collected, unless the fork server that has forked it is stopped. Killing it needs no fork
   server: the kernel kills a process whose lifeline is closed. After an interrupt, ``stop`` does
   the rest when it is called again.
4. No lock is taken, so no interrupt leaves one held.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.instruments import Wrap, shadow
from gristmill.workers.arena import ArenaReader, Slot, open_memory
from gristmill.workers.codec import decode, decode_other
from gristmill.workers.crash_journal import Entry, read_entries
from gristmill.workers.descriptors import above_standard, close_all
from gristmill.workers.exits import Process
from gristmill.workers.fork_server import ForkServer
from gristmill.workers.messages import (
    CALL,
    COMMAND,
    HEADER,
    LANES,
    NOT_STARTED,
    OUTPUTS,
    REPORT,
    SLOT,
    START,
    STARTED,
    TAKEN,
    Message,
    Quarantine,
    pack_slots,
    unpack_slots,
)
from gristmill.workers.pickling import dumps
from gristmill.workers.starts import start_boot

# how often a process is looked at whose connection, kept open by a child of its own, says nothing
_LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 0.5  # to a new start of a worker that runs; a new process is there as quickly
_EXIT_SECONDS = 1.0  # between the end of the connection and that of the process
_KILL_SECONDS = 10.0  # until a process that was killed is gone, unless it hangs in the kernel
# Of this process for each worker: its connection, arena and lifeline, on macOS the arena twice.
NUM_DESCRIPTORS = 4 if sys.platform == "darwin" else 3
_NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


class WorkerDied(Exception):
    """The process has ended by itself; ``str`` says how."""


class WorkerBusy(Exception):
    """The process does not notice that it was started again, at an element that is no longer
    needed; or it was lost.
    """


class WorkerSilent(Exception):
    """The process runs, and says nothing for longer than its caller wants to wait."""


class _Bytes:
    """The bytes that a worker sends and receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.usable = True
        self._socket = connection
        self._received = bytearray()

    def has_sent(self) -> bool:
        """Return true if it has sent something, or has ended."""
        return bool(self._received) or self._is_readable(0)

    def _read(self) -> bytes:
        """Reads the available bytes; empty if the connection has ended."""
        try:
            return self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except OSError as error:
            if not self._is_gone(error):
                raise
            return b""

    def _is_gone(self, error: OSError) -> bool:
        """True if the other side has ended, or another thread is stopping this one: it has taken
        the data to read.
        """
        return isinstance(error, ConnectionError | BlockingIOError) or self._socket.fileno() < 0

    def _is_readable(self, seconds: float) -> bool:
        return bool(_poll(self._socket, select.POLLIN, seconds))

    def _send(self, data: bytes) -> None:
        self.usable = False
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_DONTWAIT | _NO_SIGPIPE) :]
            except BlockingIOError:
                # It may be waiting for its own messages to be received.
                if (
                    _poll(self._socket, select.POLLIN | select.POLLOUT, _LOOK_SECONDS)
                    & select.POLLIN
                ):
                    data = self._read()
                    if not data:
                        return
                    self._received += data
            except OSError as error:
                if not self._is_gone(error):
                    raise
                return  # the next to receive will learn why


class WorkerHandle(_Bytes):
    """A worker with a connection and memory of its own, in some process.

    Args:
        index: which worker it is.
        process: the process that it runs in.
        connection: this end of it.
        arena: file descriptor of its memory.
        lifeline: this end of the pipe that keeps the process alive, if it is this worker's.
    """

    def __init__(
        self,
        index: int,
        process: Process,
        connection: socket.socket,
        arena: int,
        lifeline: Sequence[int] = (),
    ) -> None:
        super().__init__(connection)
        self.index = index
        self.generation = 0
        # the next start, than the ones before were: the task is loaded again
        self.is_for_another = False
        self.last_report = b""  # the worker's last report, if it is observed
        self._process = process
        self._has_answered = self._is_started = False  # it has noticed a start; the last start
        self._patience: float | None = None
        self._answer_by: float | None = None  # until then it should notice the last start
        self._lifeline = [*lifeline]
        self._fds = [arena]
        self._reader = ArenaReader(arena)
        self._to_return: list[Slot] = []

    @property
    def process_id(self) -> int:
        return self._process.process_id

    @property
    def place(self) -> str:
        """A description of the location of the process."""
        return f"process {self.process_id}"

    @property
    def was_born(self) -> bool:
        """True if there is, or was, a process."""
        return self._process.was_born

    def is_alive(self) -> bool:
        return self.usable and not self._process.is_gone()

    def start(
        self, states: Mapping[int, Any], *, skip: bool = False, quarantine: Quarantine | None = None
    ) -> None:
        """Makes the worker produce from ``states`` on; what it has sent before will not be received
        any more.

        Args:
            states: of each lane that it is to produce, in the order in which they are needed;
                ``None`` is the beginning.
            skip: skip the next element of the first lane, and send the state after it.
            care: what to be careful about.
        """
        # a state may have a class of __main__
        body = dumps((states, skip, quarantine, self.is_for_another))
        self._is_started = False
        self.generation += 1
        # or it is being born
        self._answer_by = time.monotonic() + _ANSWER_SECONDS if self._has_answered else None
        self._send(COMMAND.pack(START, self.generation, len(body)) + body)
        self.is_for_another = False
        self.usable = True

    def change_lanes(self, states: Mapping[int, Any], leaving: Sequence[int]) -> None:
        """Let the worker compute other lanes, without a new start; it continues with those that are
        named nowhere.

        Args:
            states: of lanes that it computes from now on.
            leaving: lanes that it leaves when nothing is left that was computed ahead for them. Of
                each that has not ended until then, ``LEFT`` comes after its last output.
        """
        body = dumps(({**states}, [*leaving]))
        self._send(COMMAND.pack(LANES, self.generation, len(body)) + body)
        self.usable = True

    @property
    def is_up(self) -> bool:
        """True if it runs, so that it begins at once with what it gets."""
        return self._has_answered or self.has_sent()

    def call(self, function: bytes) -> None:
        """Has the worker call a pickled function with its ``Worker``, soon, between two
        messages.
        """
        self._send(COMMAND.pack(CALL, self.generation, len(function)) + function)
        self.usable = True

    def unfinished(self) -> list[Entry]:
        """Return the entries on which the process works, or worked when it died."""
        return read_entries(self._fds[0]) if self._fds else []

    def incident(self) -> Any:
        """Return the incident of its death, shared with the other consumers that it worked for;
        ``None`` if there are none.
        """
        return None

    def set_instruments(self, waiting: Wrap | None, receiving: Wrap | None) -> None:
        """Lets an observer measure how long this process waits for messages, and how long it takes
        to receive them all in all.
        """
        shadow(self, "_next_message", waiting)
        shadow(self, "receive", receiving)

    def receive(self, patience: float | None = None) -> tuple[int, int, Any]:
        """Waits for the next message since ``start``: its kind, its lane and its content.

        The content of ``OUTPUTS`` is what ``decode`` returns, that of others what ``decode_other``
        returns.

        Args:
            patience: how many seconds to wait for it, from the time on that the worker has noticed
                its start.

        Raises:
            WorkerDied: the process ended by itself.
            WorkerSilent: it took longer than ``patience``.
            WorkerBusy: it does not answer to ``start``, or was lost; another one should take over.
        """
        self._patience = patience
        message = self._next_message()
        while message.generation != self.generation or message.kind in (STARTED, REPORT):
            if message.kind == REPORT:
                data = message.payload
                self.last_report = bytes(
                    self._reader.look(message.slots[-1]) if data is None else data
                )
            self._to_return += message.slots
            if message.generation == self.generation:
                self._has_answered, self._is_started, self._answer_by = True, True, None
                self._return_slots()
            self.usable = True
            message = self._next_message()
        slots, data = message.slots, message.payload
        if data is None:
            *slots, place = slots
            data = self._reader.look(place)
            self._to_return.append(place)
        content = (
            decode(data, slots, self._reader)
            if message.kind == OUTPUTS
            else decode_other(message.kind, bytes(data))
        )
        self._return_slots()
        self.usable = True
        return message.kind, message.lane, content

    def share_memory(self) -> None:
        """Called when this process is forked."""
        self._reader.share()

    def begin_close(self) -> None:
        """Asks the worker to stop, without waiting."""
        self.usable = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, deadline: float) -> None:
        """Waits until the worker has ended, after ``deadline`` (``time.monotonic()``) with
        force.
        """
        if self._socket.fileno() < 0:
            return  # that has been done
        self.begin_close()
        # it has ended, or another thread has stopped it
        with contextlib.suppress(OSError, ValueError):
            while self._is_readable(deadline - time.monotonic()) and self._socket.recv(
                1 << 16, socket.MSG_DONTWAIT
            ):
                pass
        if not self._process.wait_until_gone(deadline - time.monotonic()):
            self._kill()
            self._process.wait_until_gone(_KILL_SECONDS)
        self._release()

    def _kill(self) -> None:
        self._process.kill()
        close_all(self._lifeline)

    def forget(self) -> None:
        """Lets go of a process that belongs to the process that this one was forked from."""
        self.usable = False
        self._process.forget()
        self._reader.forget()
        self._release()

    def _release(self) -> None:
        self._reader.close()
        close_all(self._lifeline)
        close_all(self._fds)
        self._socket.close()

    def _next_message(self) -> Message:
        self._fill(HEADER.size)
        kind, is_shared, lane, generation, num_slots, length = HEADER.unpack_from(self._received)
        if kind == NOT_STARTED:
            with contextlib.suppress(WorkerDied):
                self._fill(1 << 30)
            raise WorkerDied(f"could not start:\n{self._received[1:].decode(errors='replace')}")
        start = HEADER.size + num_slots * SLOT.size
        stop = start + (0 if is_shared else length)
        self._fill(stop)
        self.usable = False
        slots = unpack_slots(self._received[HEADER.size : start])
        payload = None if is_shared else bytes(self._received[start:stop])
        del self._received[:stop]
        return Message(kind, lane, generation, slots, payload)

    def _fill(self, num_bytes: int) -> None:
        """Waits until this much has been received."""
        began = time.monotonic()
        while len(self._received) < num_bytes:
            while not self._is_readable(_LOOK_SECONDS):
                if self._process.has_ended():
                    raise self._death()
                if (
                    self._patience is not None
                    and self._is_started
                    and time.monotonic() > began + self._patience
                ):
                    raise WorkerSilent
                if self._answer_by is not None and time.monotonic() > self._answer_by:
                    raise WorkerBusy
            self.usable = False
            data = self._read()
            if not data:
                raise self._death()
            self._received += data
            self.usable = True

    def _return_slots(self) -> None:
        slots, self._to_return = self._to_return + self._reader.released(), []
        self._send(COMMAND.pack(TAKEN, self.generation, len(slots) * SLOT.size) + pack_slots(slots))

    def _death(self) -> WorkerDied | WorkerBusy:
        """Return the error that a waiting consumer gets when the process has ended."""
        if not self._process.wait(_EXIT_SECONDS):
            self.usable = False
            return WorkerDied("closed its connection")
        return WorkerBusy() if self._process.was_lost else WorkerDied(self._process.how_it_ended())


class WorkerProcess(WorkerHandle):
    """Starts a process; it imports what it needs and waits for ``start``.

    Args:
        index: which worker it is.
        count: of how many.
        payload: file descriptor of the payload.
        environment: its environment variables.
        fork_server: what to fork it from, if there is such a process.
    """

    def __init__(
        self,
        index: int,
        count: int,
        payload: int,
        environment: Mapping[str, str],
        fork_server: ForkServer | None = None,
    ) -> None:
        with contextlib.ExitStack() as failing, contextlib.ExitStack() as starting:
            arena = open_memory(f"gristmill-worker-{index}")
            failing.callback(os.close, arena)
            # Closing the other end kills the process. Each has a pipe of its own: the signal goes
            # to one owner of a pipe.
            lifeline, other_end = os.pipe()
            starting.callback(os.close, lifeline)
            failing.callback(os.close, other_end)
            ours, theirs = socket.socketpair()
            starting.callback(theirs.close)
            failing.callback(ours.close)
            fds = [
                above_standard(fd, starting) for fd in (theirs.fileno(), arena, payload, lifeline)
            ]
            forked = None if fork_server is None else fork_server.fork(fds, index, count)
            process: Process = forked or start_boot(fds, [index, count], environment)
            failing.pop_all()
        super().__init__(index, process, ours, arena, [other_end])


def _poll(connection: socket.socket, events: int, seconds: float) -> int:
    poll = select.poll()
    try:
        poll.register(connection, events)
    except ValueError:  # another thread has closed it, as the next user will see
        return events
    return sum([event for _, event in poll.poll(max(0.0, seconds) * 1000)])


def missing_calls() -> list[str]:
    """Return the calls that worker processes need and this system (Windows) lacks."""
    return [
        f"{module.__name__}.{name}"
        for module, name in ((os, "pread"), (select, "poll"))
        if not hasattr(module, name)
    ]


def check_system() -> None:
    """
    Raises:
        RuntimeError: there can be no worker processes here: the message says why, and what to do
            without.
    """
    missing = missing_calls()
    if missing:
        raise RuntimeError(
            f"there are no worker processes on this platform ({sys.platform}): it lacks"
            f" {' and '.join(missing)}, which Linux and macOS have. Use threads: worker_count=0 for"
            " a DataLoader; for a chain, multithread_prefetch(...) in place of mp_prefetch(...)"
        )
