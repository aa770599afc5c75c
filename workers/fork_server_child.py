"""The main loop of the fork server: see ``fork_server``.

Guarantees:

1. It has one thread, forks when it is asked to, and reports every end; it computes nothing, writes
   nothing to the standard streams, and an interrupt from the keyboard is not for it. It ends when
   its connection does, and is killed with the consumer.
2. A worker that the consumer has let go of is not forked. One that cannot be forked, or watched, is
   reported as such.
3. A worker has nothing open but what was sent for it.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from os import _exit as end_process

from gristmill.workers.child import die_with
from gristmill.workers.protocol import FORK, KILL_REQUEST, RECORD

_MAX_FDS = 7
_STREAMS = (1, 2)

Worker = tuple[list[int], Callable[[], None]]


def fork_workers(modules: Sequence[str], connection: int, ledger: int, lifeline: int) -> Worker:
    """Forks workers until the consumer ends this process.

    Args:
        modules: to be imported before.
        connection: where requests come from.
        ledger: descriptor of the memory to write records into.
        lifeline: of this process.

    Returns:
        In each of them: the numbers that ``child.serve`` begins with, and the function to call
        then, in a process of its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (connection, ledger, lifeline):
        os.set_inheritable(fd, False)
    die_with(lifeline)
    for name in modules:
        importlib.import_module(name)
    os.close(os.pidfd_open(os.getpid()))  # raises where the system has none
    if threading.active_count() > 1:
        # something that the interpreter runs when it starts has threads, which would not be forked
        end_process(1)
    for fd in _STREAMS:
        _open_nothing(fd)
    return _Template(connection, ledger, lifeline).run()


def _open_nothing(fd: int) -> None:
    """Lets go of a stream that may be a pipe whose end another process waits for."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    if nothing != fd:
        os.dup2(nothing, fd)
        os.close(nothing)


class _Template:
    def __init__(self, connection: int, ledger: int, lifeline: int) -> None:
        self._connection = socket.socket(fileno=connection)
        self._ledger = ledger
        self._lifeline = lifeline
        self._workers: dict[int, tuple[int, int]] = {}  # id and slot, by descriptor
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        # Where the program ignores it, the workers, which inherit that, could not be waited for.
        self._at_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def run(self) -> Worker:
        gc.freeze()  # collections in workers do not touch, and so copy, what is here
        self._write(0, 1, 0)
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._workers:
                    self._bury(fd)
                else:
                    worker = self._obey()
                    if worker is not None:
                        return worker

    def _write(self, slot: int, process_id: int, end: int) -> None:
        os.pwrite(self._ledger, RECORD.pack(process_id, end), slot * RECORD.size)

    def _obey(self) -> Worker | None:
        """Executes a request; in a new worker, returns its description."""
        data, fds, _, _ = socket.recv_fds(self._connection, FORK.size, _MAX_FDS)
        if not data:
            end_process(0)
        kind, slot, index, count, *are_open = FORK.unpack(data)
        if kind == KILL_REQUEST:
            for process_id, other in self._workers.values():
                if other == slot:
                    os.kill(process_id, signal.SIGKILL)
            return None
        is_worker = False
        try:
            if len(fds) == 5 + sum(are_open) and not _has_ended(fds[3]):
                is_worker = self._fork(slot)
            else:
                self._write(slot, -1, 0)
        finally:
            if not is_worker:
                for fd in fds:
                    os.close(fd)
        if not is_worker:
            return None
        return [*fds[:4], index, count], partial(self._settle, fds[4:], are_open)

    def _fork(self, slot: int) -> bool:
        """True in the new process, false in the parent."""
        try:
            with warnings.catch_warnings():
                # of threads, which libraries take care of (OpenBLAS does)
                warnings.simplefilter("ignore")
                process_id = os.fork()
        except OSError:
            self._write(slot, -1, 0)
            return False
        if process_id == 0:
            return True
        try:
            watched = os.pidfd_open(process_id)
        except OSError:
            os.kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)
            self._write(slot, -1, 0)
            return False
        self._workers[watched] = process_id, slot
        self._poll.register(watched, select.POLLIN)
        self._write(slot, process_id, 0)
        return False

    def _bury(self, fd: int) -> None:
        process_id, slot = self._workers.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        end = os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
        assert end is not None  # a pidfd is readable when its process has ended
        status = end.si_status << 8 if end.si_code == os.CLD_EXITED else end.si_status
        # Recorded while the process can still be seen, so that it is never gone without a record.
        self._write(slot, process_id, status + 1)
        os.waitpid(process_id, 0)

    def _settle(self, fds: Sequence[int], are_open: Sequence[bool]) -> None:
        """Makes the new process what it would be, had the consumer started it."""
        self._connection.close()
        for fd in (self._ledger, self._lifeline, *self._workers):
            os.close(fd)
        signal.signal(signal.SIGCHLD, self._at_child)
        os.setpgid(0, 0)
        os.fchdir(fds[0])
        streams = iter(fds[1:])
        for fd, is_open in zip(_STREAMS, are_open, strict=True):
            if is_open:
                os.dup2(next(streams), fd)
            else:
                os.close(fd)
        for fd in fds:
            os.close(fd)
        gc.enable()
        sys.path_importer_cache.clear()  # what is in the folders may have changed
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()


def _has_ended(lifeline: int) -> bool:
    poll = select.poll()
    poll.register(lifeline, 0)
    return bool(poll.poll(0))
