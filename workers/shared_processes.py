"""Processes that several pools share.

Guarantees:

1. A set of processes has at most as many processes as the CPUs that this program may use, or as its
   pool of the most workers has workers, if that are more; and never more than all workers together.
   Workers of one pool are in different processes.
2. What a pool does with its workers is what it would do with processes of its own: each is a
   ``SharedTransport``, with a connection and memory of its own, so that none waits for what another
   pool has not taken, and each is started again without the others.
3. If a process dies, every pool learns it from its own worker. If it was ended since a worker of
   it was stuck, the other ones hear that it is busy, and continue in another process.
4. A process ends with the last of its workers. Workers with another environment (variables, paths,
   flags) are in other processes.
5. Which entry of whose work log may be why a process died is known once for all workers of it
   (``Incident``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping
from functools import partial

from gristmill.core.cgroup import usable_cpus
from gristmill.core.locks import Lock
from gristmill.core.uninterrupted import uninterrupted
from gristmill.workers.arena import open_memory
from gristmill.workers.exits import Process
from gristmill.workers.fork_server import ForkServer
from gristmill.workers.handle import Incident, Transport, WorkerBusy, WorkerDied, WorkerHandle
from gristmill.workers.payload import Payload
from gristmill.workers.pool import WorkerPool
from gristmill.workers.process import SocketTransport, check_system, start_process
from gristmill.workers.protocol import NOT_STARTED
from gristmill.workers.registry import registry
from gristmill.workers.setup import Preamble
from gristmill.workers.shared_child import JOIN, serve_workers

_RETRY_SECONDS = 0.01  # where more descriptors are on their way than the system allows


class SharedIncident:
    """A process has died that worked for several workers.

    Args:
        suspects: those that were at work.
    """

    def __init__(self, suspects: set[SharedTransport]) -> None:
        self._suspects: set[Transport] = {*suspects}
        self.is_reported = False  # the reason is known or was reported

    @property
    def num_suspects(self) -> int:
        """See ``Incident``."""
        return len(self._suspects)

    def concerns(self, worker: WorkerHandle[Transport]) -> bool:
        """See ``Incident``."""
        return worker.transport in self._suspects or not (self._suspects or self.is_reported)

    def is_for(self, worker: WorkerHandle[Transport]) -> bool:
        """See ``Incident``."""
        self._suspects.discard(worker.transport)
        is_last, self.is_reported = (
            not (self._suspects or self.is_reported),
            self.is_reported or not self._suspects,
        )
        return is_last


class SharedProcess:
    """A process that workers are opened in.

    Args:
        pool: the first one that needs it.
        fork_server: what to fork it from, if there is such a process.
    """

    def __init__(self, pool: SharedPool, fork_server: ForkServer | None) -> None:
        payload = Payload(serve_workers, {**pool.places, "is_shared": True}, {})
        fd = payload.pack()
        self._fork_server = (
            fork_server if fork_server is not None and fork_server.join(self) else None
        )
        try:
            self._transport = start_process(0, 1, fd, pool.environment, self._fork_server)
        except BaseException:
            self._leave_fork_server()
            raise
        finally:
            os.close(fd)
        self.shared_environment = pool.shared_environment
        self.workers: list[SharedTransport] = []
        self.is_closed = False  # no more workers are accepted
        self.was_killed = False  # it was killed by this program
        self._failure = b""

    @property
    def process(self) -> Process:
        return self._transport.process

    def is_alive(self) -> bool:
        return self._transport.is_alive()

    def close(self, deadline: float) -> None:
        """Waits until it has ended, after ``deadline`` with force."""
        self._transport.close(deadline)
        self._leave_fork_server()

    def _leave_fork_server(self) -> None:
        if self._fork_server is not None:
            registry.leave_fork_server(self._fork_server, self)

    def open(self, fds: list[int], index: int, count: int) -> None:
        """Opens a worker there."""
        while True:
            try:
                socket.send_fds(self._transport.connection, [JOIN.pack(index, count)], fds)
            except OSError as error:
                if self._transport.is_over(error):
                    return  # as who uses the worker will learn
                if error.errno != errno.ETOOMANYREFS or self.process.has_ended():
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def how_it_failed(self) -> str:
        """Returns the error message of a failed start; empty if it did not fail."""
        with contextlib.suppress(OSError):
            while data := self._transport.connection.recv(1 << 16, socket.MSG_DONTWAIT):
                self._failure += data
        is_failure = self._failure[:1] == bytes([NOT_STARTED])
        return (
            f"could not start:\n{self._failure[1:].decode(errors='replace')}" if is_failure else ""
        )

    def incident(self) -> SharedIncident:
        """The incident of its death, the same object for all."""
        suspects = {worker for worker in [*self.workers] if worker.unfinished()}
        found: SharedIncident = vars(self).setdefault("_incident", SharedIncident(suspects))
        return found

    def kill(self) -> None:
        """Kills it: what it is at is not wanted any more, and does not end."""
        self.is_closed = self.was_killed = True
        self._transport.kill()

    def forget(self) -> None:
        """In a forked process: drops what belongs to the other one."""
        self.is_closed = True
        self._transport.forget()

    def leave(self, worker: SharedTransport, deadline: float) -> None:
        """Called when a worker has ended."""
        with contextlib.suppress(ValueError):
            self.workers.remove(worker)
        self.end_if_unused(deadline)

    def end_if_unused(self, deadline: float) -> None:
        if not self.workers:
            self.is_closed = True
            if not self.workers:  # no worker has joined meanwhile
                self.close(deadline)


class SharedTransport(SocketTransport):
    """A worker in a process that works for others, too.

    Args:
        shared: the process.
        index, count: which worker it is, of how many.
        payload: file descriptor of the payload.
    """

    def __init__(self, shared: SharedProcess, index: int, count: int, payload: int) -> None:
        with contextlib.ExitStack() as failing:
            arena = open_memory(f"gristmill-worker-{index}")
            failing.callback(os.close, arena)
            ours, theirs = socket.socketpair()
            failing.callback(ours.close)
            with theirs:
                shared.open([theirs.fileno(), arena, payload], index, count)
            failing.pop_all()
        super().__init__(shared.process, ours, arena)
        self.shared = shared

    def incident(self) -> Incident:
        """See ``Transport``."""
        return self.shared.incident()

    def close(self, deadline: float) -> None:
        """See ``Transport``. Force ends the process."""
        shared = self.shared
        if self.connection.fileno() < 0:
            shared.leave(self, deadline)
            return
        if self.process.has_ended() and not shared.was_killed:
            shared.incident()  # as long as it can be seen
        self.begin_close()
        if not self._ends_by(deadline):
            shared.kill()
        self._release()
        shared.leave(self, deadline)

    def forget(self) -> None:
        """See ``Transport``; the process belongs to the other one, too."""
        super().forget()
        self.shared.forget()

    def _death(self) -> WorkerDied | WorkerBusy:
        failure = self.shared.how_it_failed()
        death = WorkerDied(failure) if failure else super()._death()
        self.usable = False
        return WorkerBusy() if self.shared.was_killed else death


class SharedPool(WorkerPool):
    """A pool whose workers are workers of shared processes."""

    def __init__(self, group: SharedProcesses, payload: Payload, count: int) -> None:
        self.group = group
        preamble = payload.preamble
        self.places: Preamble = {
            "path": preamble["path"],
            "argv": preamble["argv"],
            "directory": preamble["directory"],
            "logs": preamble["logs"],
        }
        self.shared_environment: Mapping[str, object] = {
            "environment": payload.environment,
            "settings": payload.parts[0],
            **self.places,
        }
        super().__init__(payload, count)

    def _new_transport(self, index: int, fork_server: ForkServer | None) -> SharedTransport:
        return self.group.open(self, index, self._count, self._payload, fork_server)

    def runs(self, payload: Payload, count: int) -> bool:
        """Always False: a shared pool is never reused for an exclusive request."""
        return False

    def fits(self, payload: Payload, count: int) -> bool:
        """True if it runs exactly this task."""
        return super().runs(payload, count)

    @property
    def processes(self) -> list[SharedProcess]:
        transports = [worker.transport for worker in self.workers]
        return [x.shared for x in transports if isinstance(x, SharedTransport)]


class SharedProcesses:
    """The processes of several pools, which come and end as they are needed."""

    def __init__(self) -> None:
        self._processes: list[SharedProcess] = []
        self._most_workers = 0
        self._lock = Lock()  # taken where no interrupt comes (see ``pool``)
        self._process_id = os.getpid()

    def acquire(
        self, payload: Payload, count: int, owner: object | None, num_now: int | None = None
    ) -> SharedPool:
        """Returns a pool of ``count`` workers that run the task; see ``pool.acquire``."""
        check_system()
        make = partial(SharedPool, self, payload, count if num_now is None else num_now)
        pool = registry.acquire(make, lambda pool: pool.fits(payload, count), SharedPool, owner)
        if pool.group is not self:  # it was idle
            uninterrupted(partial(self._adopt, pool))
        return pool

    def _adopt(self, pool: SharedPool) -> None:
        with self._own_lock():
            pool.group = self
            self._processes += [
                process for process in {*pool.processes} if process not in self._processes
            ]

    def _own_lock(self) -> Lock:
        if self._process_id != os.getpid():  # this is a fork
            self._processes, self._lock, self._process_id = [], Lock(), os.getpid()
        return self._lock

    def open(
        self, pool: SharedPool, index: int, count: int, payload: int, fork_server: ForkServer | None
    ) -> SharedTransport:
        """A worker, in a new process if there may be one more, which is forked from ``fork_server``
        if there is one.
        """
        with self._own_lock():
            self._most_workers = max(self._most_workers, count)
            while True:
                shared = self._process_for(pool, fork_server)
                try:
                    worker = SharedTransport(shared, index, count, payload)
                except BaseException:
                    shared.end_if_unused(time.monotonic())
                    raise
                shared.workers.append(worker)
                if not shared.is_closed:
                    return worker
                # its last worker has ended just now, or it was dismissed
                worker.close(time.monotonic())

    def _process_for(self, pool: SharedPool, fork_server: ForkServer | None) -> SharedProcess:
        self._processes = [
            process for process in self._processes if not process.is_closed and process.is_alive()
        ]
        used = pool.processes
        fit = [
            x
            for x in self._processes
            if x not in used and x.shared_environment == pool.shared_environment
        ]
        if not fit or len(self._processes) < max(usable_cpus(), self._most_workers):
            fit = [SharedProcess(pool, fork_server)]
            self._processes += fit
        return min(fit, key=lambda process: len(process.workers))
