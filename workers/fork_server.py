"""The process that workers are forked from, seen from the consumer; ``fork_server_child`` is what
happens in it.

Starting Python and importing NumPy takes a tenth of a second; forking a process that has done so
takes a millisecond.

Guarantees:

1. A worker that was forked finds what one that is started finds: the environment is equal
   (``inherited_environment``), or there is another fork server; what may differ all the same
   (directory, standard output) travels with the request, and ``sys.path``, ``sys.argv``, flags and
   the task are set in the worker, as ever. The fork server imports no code of the user's, so
   nothing of one pool reaches another. Global random generators are seeded again in every worker.
   (Hashes of texts are the fork server's.)
2. The fork server lives no longer than this process, however that ends: the kernel kills both it
   and its workers then, as it does workers that are started (``child``). It ends with its last
   pool, after a while; see ``registry``.
3. ``fork`` does not wait, also while the fork server starts. Where there will be no worker, because
   the fork server has died or the system lets it fork none, the process has ended and was not born;
   its owner starts one directly then, unnoticed. The same holds for a worker that is not forked
   within a second, because the fork server is stopped (such as by a debugger), or within five
   seconds, because the fork server is still starting. That fork server is asked for no other
   worker.
4. Only the fork server knows a worker's id for certain, as the process that waits for it. So it
   sends the signals; and it writes ids and ends of workers into memory that this process reads, as
   often as it likes: no interrupt loses them, and no lock is taken.
5. Ending a worker does not depend on the fork server: the kernel kills the worker when its lifeline
   is closed, and ``/proc`` shows that it is gone.
6. Workers whose fork server has died count as lost at once. Their owner has others take over, from
   the last output that came, and lets go of them, at which the kernel kills them.
7. A process that is forked from this one neither uses the fork server nor ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Never, TypeAlias

from gristmill.core.descriptors import is_scarcity
from gristmill.workers.arena import open_memory
from gristmill.workers.descriptors import above_standard, close_all
from gristmill.workers.exits import SHORTEST_SECONDS, Process
from gristmill.workers.protocol import FORK, FORK_REQUEST, KILL_REQUEST, RECORD
from gristmill.workers.setup import preloaded
from gristmill.workers.starts import interpreter, start_boot

_BIRTH_SECONDS = 1.0  # from the request for a worker; then one is started directly
_FIRST_BIRTH_SECONDS = 5.0  # the same, while the fork server starts
_STREAMS = (1, 2)
# What a process inherits from the thread that starts it: masks, limits, rights.
_INHERITED = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "SigBlk",
    "SigIgn",
    "Cap",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_a",
    "Mems_a",
)


Inherited: TypeAlias = tuple[object, ...]  # can be hashed


def inherited_environment(environment: Mapping[str, str]) -> Inherited | None:
    """All that a process inherits when it starts and cannot change later; ``None`` where none can
    be forked.
    """
    if sys.platform != "linux":  # on macOS, system libraries do not survive it
        return None
    try:
        status = Path("/proc/thread-self/status").read_text().splitlines()
        files = [
            Path("/proc/self", name).read_bytes() for name in ("limits", "cgroup", "oom_score_adj")
        ]
    except OSError:
        return None
    return (
        tuple(interpreter()),
        frozenset(environment.items()),
        tuple([line for line in status if line.startswith(_INHERITED)]),
        *files,
        (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.getsid(0)),
        tuple([_is_terminal(fd) for fd in _STREAMS]),  # which decides how they are written to
    )


def _run_state(process_id: int) -> str:
    """Return the state of a process: ``T`` or ``t`` if stopped, ``Z`` or ``X`` if ended."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return "X"
    return status.rpartition(")")[2].split()[0]


def _is_terminal(fd: int) -> bool | None:
    """Return true for a terminal, ``None`` for a closed descriptor."""
    try:
        os.fstat(fd)
    except OSError:
        return None
    return os.isatty(fd)


class ForkServer:
    """Starts the process.

    Args:
        key: the ``inherited_environment`` of its workers.
        environment: its environment variables.

    Raises:
        OSError: the system does not give what is needed.
    """

    idle_seconds = 3.0  # after the last pool
    num_descriptors = 0  # it is not limited

    def __init__(self, key: Inherited, environment: Mapping[str, str]) -> None:
        self.key = key
        self.idle_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.workers: Sequence[Never] = ()  # are those of pools
        self.is_late = False  # it has not forked a worker in time
        self._is_closed = False
        self._users: set[object] = set()
        self._slots = itertools.count(1)
        with contextlib.ExitStack() as failing, contextlib.ExitStack() as starting:
            ledger = open_memory("gristmill-fork-server")
            failing.callback(os.close, ledger)
            lifeline, other_end = os.pipe()
            starting.callback(os.close, lifeline)
            failing.callback(os.close, other_end)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            starting.callback(theirs.close)
            failing.callback(self._control.close)
            path = [entry for entry in sys.path if isinstance(entry, str)]
            self._control.send(marshal.dumps((path, preloaded())), socket.MSG_DONTWAIT)
            fds = [above_standard(fd, starting) for fd in (theirs.fileno(), ledger, lifeline)]
            self._process = start_boot(fds, [], environment)
            failing.pop_all()
        self._fds = [other_end, ledger]  # the end of the first one is that of the process

    def join(self, user: object) -> bool:
        """Keeps it from ending until ``user`` says ``leave``; false where it is too late for
        that.
        """
        self._users.add(user)
        if self._is_closed or self.is_late or self._process.has_ended():
            self._users.discard(user)
            return False
        return True

    def leave(self, user: object) -> None:
        self._users.discard(user)

    @property
    def is_used(self) -> bool:
        return bool(self._users)

    @property
    def has_failed(self) -> bool:
        """True if it ended before it could fork."""
        return self.has_ended() and not self.is_ready

    def has_ended(self) -> bool:
        return self._process.has_ended()

    @property
    def is_ready(self) -> bool:
        """True once it forks workers."""
        return bool(self.record(0)[0])

    @property
    def is_stopped(self) -> bool:
        """True while it does not run, because a signal or a debugger has stopped it."""
        return _run_state(self._process.process_id) in "Tt"

    def fork(self, fds: Sequence[int], index: int, count: int) -> Process | None:
        """Return a worker, soon; ``None`` if none is available.

        Args:
            fds: its connection, arena, payload and lifeline.
            index: which worker it is.
            count: of how many.

        Raises:
            OSError: this process has no descriptor left.
        """
        if self.is_late:
            return None
        slot = next(self._slots)
        with contextlib.ExitStack() as sending:
            try:
                directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                sending.callback(os.close, directory)
                streams = [fd for fd in _STREAMS if _is_terminal(fd) is not None]
                request = FORK.pack(
                    FORK_REQUEST, slot, index, count, *[fd in streams for fd in _STREAMS]
                )
                socket.send_fds(
                    self._control,
                    [request],
                    [*fds, directory, *streams],
                    socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
                )
            except OSError as error:
                if is_scarcity(error):
                    raise  # starting a worker directly takes more of them
                return None
        return ForkedProcess(self, slot)

    def kill(self, slot: int) -> None:
        """Has it end a worker."""
        with contextlib.suppress(OSError):
            self._control.send(
                FORK.pack(KILL_REQUEST, slot, 0, 0, False, False),
                socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
            )

    def record(self, slot: int) -> tuple[int, int]:
        """The record that it wrote about a worker; see ``RECORD``."""
        ledger = self._fds[1:]  # empty once it was closed, perhaps by another thread
        if not ledger:
            return 0, 0
        data = os.pread(ledger[0], RECORD.size, slot * RECORD.size)
        return RECORD.unpack(data.ljust(RECORD.size, b"\0"))

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def begin_close(self) -> None:
        """Refuse further use."""
        self._is_closed = True

    def reopen(self) -> None:
        """Allow use again: a thread has joined before it was shut."""
        self._is_closed = False

    def finish_close(self, deadline: float) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait(max(1.0, deadline - time.monotonic()))
        self._close_descriptors()

    def forget(self) -> None:
        """Drop what belongs to the parent, in a forked process."""
        self._is_closed = True
        self._process.forget()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._control.close()
        close_all(self._fds)


class ForkedProcess(Process):
    """A process that a fork server has forked, or is about to.

    Args:
        fork_server: the server that forks it.
        slot: where it writes about this one.
    """

    def __init__(self, fork_server: ForkServer, slot: int) -> None:
        self._fork_server = fork_server
        self._slot = slot
        self._record = 0, 0
        self._is_unwanted = False  # it is not to be born any more
        self._is_lost = False
        self._asked_at, self._was_ready = time.monotonic(), fork_server.is_ready

    @property
    def was_born(self) -> bool:
        return self._look()[0] > 0

    @property
    def was_lost(self) -> bool:
        return self.has_ended() and not self._look()[1]

    @property
    def process_id(self) -> int:
        while not self._look()[0] and not self.has_ended():
            time.sleep(SHORTEST_SECONDS)
        return max(self._record[0], 0)

    def has_ended(self) -> bool:
        """See ``Process``."""
        process_id, end = self._look()
        if not process_id and not self._is_lost and self._is_late():
            self._is_lost = self._fork_server.is_late = True  # its owner keeps it from being born
        is_unborn = process_id < 0 or (not process_id and self._is_unwanted)
        return bool(end) or is_unborn or self._is_lost or self._fork_server.has_ended()

    def is_gone(self) -> bool:
        """See ``Process``. A stopped fork server does not report ends, so ``/proc`` is read."""
        process_id, _ = self._look()
        if self.has_ended():
            return True
        return process_id > 0 and _run_state(process_id) in "ZX" and self._fork_server.is_stopped

    def _is_late(self) -> bool:
        seconds = time.monotonic() - self._asked_at
        is_quick = self._was_ready or seconds > _FIRST_BIRTH_SECONDS or self._fork_server.is_stopped
        return seconds > _BIRTH_SECONDS and is_quick

    @property
    def exit_code(self) -> int | None:
        """See ``Process``."""
        end = self._look()[1]
        return os.waitstatus_to_exitcode(end - 1) if end else None

    def kill(self) -> None:
        """See ``Process``. What is not born yet, its owner keeps from it by letting go of its
        lifeline.
        """
        self._is_unwanted = True
        self._fork_server.kill(self._slot)

    def forget(self) -> None:
        """See ``Process``."""
        self._is_lost = True

    def _look(self) -> tuple[int, int]:
        if not self._record[1] and not self._is_lost:
            found = self._fork_server.record(self._slot)
            if found[0]:
                self._record = found
        return self._record
