"""A worker process, seen from the consumer: its connection, its memory, and its end.

Guarantees:

1. ``wait`` returns when the worker's next message is there, or raises ``WorkerDied`` no later than
   a second after the process has ended, for any reason.
2. An interrupt in the middle of ``wait``, ``send`` or the receipt of a message leaves
   ``usable`` false: bytes may be lost, and a new process has to take over.
3. ``close`` waits only for a limited time; afterwards the process runs no more. Its exit status has
   been collected, unless the fork server that has forked it is stopped. Killing it needs no fork
   server: the kernel kills a process whose lifeline is closed. After an interrupt, ``close`` does
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
from collections.abc import Callable, Mapping, Sequence

from gristmill.workers.arena import ArenaReader, Slot, open_memory
from gristmill.workers.codec import decode, decode_other
from gristmill.workers.crash_journal import Entry, read_entries
from gristmill.workers.descriptors import above_standard, close_all
from gristmill.workers.exits import Process
from gristmill.workers.fork_server import ForkServer
from gristmill.workers.handle import Incident, WorkerBusy, WorkerDied
from gristmill.workers.pickling import dumps
from gristmill.workers.protocol import (
    COMMAND,
    HEADER,
    NOT_STARTED,
    OUTPUTS,
    SLOT,
    TAKEN,
    Header,
    pack_slots,
    unpack_slots,
)
from gristmill.workers.starts import start_boot

# how often a process is looked at whose connection, kept open by a child of its own, says nothing
_LOOK_SECONDS = 0.25
_EXIT_SECONDS = 1.0  # between the end of the connection and that of the process
_KILL_SECONDS = 10.0  # until a process that was killed is gone, unless it hangs in the kernel
# Of this process for each worker: its connection, arena and lifeline, on macOS the arena twice.
NUM_DESCRIPTORS = 4 if sys.platform == "darwin" else 3
_NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


class SocketTransport:
    """A connection to a process, and memory that is shared with it.

    Args:
        process: the process that the worker runs in.
        connection: this end of it.
        arena: file descriptor of its memory.
        lifeline: this end of the pipe that keeps the process alive, if it is this worker's.
    """

    answer_seconds = 0.5  # a new process is there as quickly
    starts_at_once = False
    node = ""

    def __init__(
        self,
        process: Process,
        connection: socket.socket,
        arena: int,
        lifeline: Sequence[int] = (),
    ) -> None:
        self.usable = True
        self.process = process
        self.connection = connection
        self._received = bytearray()
        self._lifeline = [*lifeline]
        self._fds = [arena]
        self._reader = ArenaReader(arena)
        # Of the open message: its slots, and its bytes unless they are in the last slot.
        self._slots: list[Slot] = []
        self._payload: bytes | None = None
        self._to_return: list[Slot] = []

    @property
    def process_id(self) -> int:
        return self.process.process_id

    @property
    def place(self) -> str:
        """See ``Transport``."""
        return f"process {self.process_id}"

    @property
    def was_born(self) -> bool:
        """True if there is, or was, a process."""
        return self.process.was_born

    def is_alive(self) -> bool:
        return self.usable and not self.process.is_gone()

    def has_sent(self) -> bool:
        """See ``Transport``."""
        return bool(self._received) or self._is_readable(0)

    def send(self, kind: int, generation: int, content: object) -> None:
        """See ``Transport``."""
        self.usable = False  # also if the content cannot be pickled: nothing is sent then
        # a state may have a class of __main__
        body = content if isinstance(content, bytes) else dumps(content)
        self._send(COMMAND.pack(kind, generation, len(body)) + body)
        self.usable = True

    def wait(self, check: Callable[[], None]) -> None:
        """See ``Transport``."""
        self._fill(HEADER.size, check)
        kind, is_shared, _, _, num_slots, length = HEADER.unpack_from(self._received)
        if kind == NOT_STARTED:
            with contextlib.suppress(WorkerDied):
                self._fill(1 << 30, check)
            raise WorkerDied(f"could not start:\n{self._received[1:].decode(errors='replace')}")
        self._fill(HEADER.size + num_slots * SLOT.size + (0 if is_shared else length), check)

    def next(self) -> Header:
        """See ``Transport``."""
        kind, is_shared, lane, generation, num_slots, length = HEADER.unpack_from(self._received)
        start = HEADER.size + num_slots * SLOT.size
        stop = start + (0 if is_shared else length)
        self.usable = False
        self._slots = unpack_slots(self._received[HEADER.size : start])
        self._payload = None if is_shared else bytes(self._received[start:stop])
        del self._received[:stop]
        return Header(kind, lane, generation)

    def content(self, kind: int) -> object:
        """See ``Transport``."""
        data = self._data()
        if kind != OUTPUTS:
            return decode_other(kind, bytes(data))
        slots, self._slots = self._slots, []  # the arrays look at them
        return decode(data, slots, self._reader)

    def report(self) -> bytes:
        """See ``Transport``."""
        return bytes(self._data())

    def _data(self) -> bytes | memoryview:
        if self._payload is not None:
            return self._payload
        slot = self._slots.pop()
        self._to_return.append(slot)
        return self._reader.look(slot).data

    def finish(self, header: Header, is_current: bool) -> None:
        """See ``Transport``."""
        self._to_return += self._slots
        self._slots, self._payload = [], None
        if is_current:
            slots, self._to_return = self._to_return + self._reader.released(), []
            data = pack_slots(slots)
            self._send(COMMAND.pack(TAKEN, header.generation, len(data)) + data)

    def unfinished(self) -> list[Entry]:
        """See ``Transport``."""
        return read_entries(self._fds[0]) if self._fds else []

    def incident(self) -> Incident | None:
        """See ``Transport``: the process is the worker's own."""
        return None

    def stacks(self) -> str | None:
        """See ``Transport``."""
        return None

    def share_memory(self) -> None:
        """See ``Transport``."""
        self._reader.share()

    def begin_close(self) -> None:
        """See ``Transport``."""
        self.usable = False
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def close(self, deadline: float) -> None:
        """See ``Transport``."""
        if self.connection.fileno() < 0:
            return  # that has been done
        self.begin_close()
        self._ends_by(deadline)
        if not self.process.wait_until_gone(deadline - time.monotonic()):
            self.kill()
            self.process.wait_until_gone(_KILL_SECONDS)
        self._release()

    def _ends_by(self, deadline: float) -> bool:
        """True if the connection, which this side has ended, or the process ends in time."""
        try:
            while self._is_readable(deadline - time.monotonic()):
                if not self.connection.recv(1 << 16, socket.MSG_DONTWAIT):
                    return True
        except (OSError, ValueError):  # it has ended, or another thread has stopped it
            return True
        return self.process.has_ended()

    def kill(self) -> None:
        """Ends the process by force, without waiting."""
        self.process.kill()
        close_all(self._lifeline)

    def forget(self) -> None:
        """See ``Transport``."""
        self.usable = False
        self.process.forget()
        self._reader.forget()
        self._release()

    def _release(self) -> None:
        self._reader.close()
        close_all(self._lifeline)
        close_all(self._fds)
        self.connection.close()

    def _fill(self, num_bytes: int, check: Callable[[], None]) -> None:
        """Waits until this much has been received."""
        while len(self._received) < num_bytes:
            while not self._is_readable(_LOOK_SECONDS):
                if self.process.has_ended():
                    raise self._death()
                check()
            self.usable = False
            data = self._read()
            if not data:
                raise self._death()
            self._received += data
            self.usable = True

    def _death(self) -> WorkerDied | WorkerBusy:
        """The error that a waiting consumer gets when the process has ended."""
        self.usable = False
        if not self.process.wait(_EXIT_SECONDS):
            return WorkerDied("closed its connection")
        return WorkerBusy() if self.process.was_lost else WorkerDied(self.process.how_it_ended())

    def _read(self) -> bytes:
        """Reads the available bytes; empty if the connection has ended."""
        try:
            return self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except OSError as error:
            if not self.is_over(error):
                raise
            return b""

    def is_over(self, error: OSError) -> bool:
        """True if the other side has ended, or another thread is stopping this one: it has taken
        what was to be read.
        """
        return isinstance(error, ConnectionError | BlockingIOError) or self.connection.fileno() < 0

    def _is_readable(self, seconds: float) -> bool:
        return bool(_poll(self.connection, select.POLLIN, seconds))

    def _send(self, data: bytes) -> None:
        self.usable = False
        view = memoryview(data)
        while view:
            try:
                view = view[self.connection.send(view, socket.MSG_DONTWAIT | _NO_SIGPIPE) :]
            except BlockingIOError:
                # It may be waiting for its own messages to be received.
                if (
                    _poll(self.connection, select.POLLIN | select.POLLOUT, _LOOK_SECONDS)
                    & select.POLLIN
                ):
                    data = self._read()
                    if not data:
                        return
                    self._received += data
            except OSError as error:
                if not self.is_over(error):
                    raise
                return  # the next to receive will learn why


def start_process(
    index: int,
    count: int,
    payload: int,
    environment: Mapping[str, str],
    fork_server: ForkServer | None = None,
) -> SocketTransport:
    """Starts a process; it imports what it needs and waits for a start.

    Args:
        index: which worker it is.
        count: of how many.
        payload: file descriptor of the payload.
        environment: its environment variables.
        fork_server: what to fork it from, if there is such a process.
    """
    with contextlib.ExitStack() as failing, contextlib.ExitStack() as starting:
        arena = open_memory(f"gristmill-worker-{index}")
        failing.callback(os.close, arena)
        # Closing the other end kills the process. Each has a pipe of its own: the signal goes to
        # one owner of a pipe.
        lifeline, other_end = os.pipe()
        starting.callback(os.close, lifeline)
        failing.callback(os.close, other_end)
        ours, theirs = socket.socketpair()
        starting.callback(theirs.close)
        failing.callback(ours.close)
        fds = [above_standard(fd, starting) for fd in (theirs.fileno(), arena, payload, lifeline)]
        forked = None if fork_server is None else fork_server.fork(fds, index, count)
        process: Process = forked or start_boot(fds, [index, count], environment)
        failing.pop_all()
    return SocketTransport(process, ours, arena, [other_end])


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
