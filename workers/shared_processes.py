"""Processes that several pools share.

Guarantees:

1. A set of processes has at most as many processes as the CPUs that this program may use, or as its
   pool of the most workers has workers, if that are more; and never more than all workers together.
   Workers of one pool are in different processes.
2. What a pool does with its workers is what it would do with processes of its own: each is a
   ``SharedWorker``, with a connection and memory of its own, so that none waits for what another
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
from typing import Any

from gristmill.core.cgroup import usable_cpus
from gristmill.core.locks import Lock
from gristmill.core.uninterrupted import uninterrupted
from gristmill.workers.arena import open_memory
from gristmill.workers.fork_server import ForkServer
from gristmill.workers.messages import NOT_STARTED
from gristmill.workers.payload import Payload
from gristmill.workers.pool import WorkerPool
from gristmill.workers.process import (
    WorkerBusy,
    WorkerDied,
    WorkerHandle,
    WorkerProcess,
    check_system,
)
from gristmill.workers.registry import registry
from gristmill.workers.shared_child import JOIN, serve_workers

_RETRY_SECONDS = 0.01  # where more descriptors are on their way than the system allows


class Incident:
    """A process has died that worked for several workers.

    Args:
        suspects: those that were at work.
    """

    def __init__(self, suspects: set[SharedWorker]) -> None:
        self.suspects = suspects
        self.is_reported = False  # the reason is known or was reported

    def concerns(self, worker: SharedWorker) -> bool:
        """True if the work of ``worker`` may be the reason."""
        return worker in self.suspects or not (self.suspects or self.is_reported)

    def is_for(self, worker: SharedWorker) -> bool:
        """True if ``worker``, which has repeated its work, reports the death of the process. It is
        asked once.
        """
        self.suspects.discard(worker)
        is_last, self.is_reported = (
            not (self.suspects or self.is_reported),
            self.is_reported or not self.suspects,
        )
        return is_last


class SharedProcess(WorkerProcess):
    """A process that workers are opened in.

    Args:
        pool: the first one that needs it.
        fork server: what to fork it from, if there is such a process.
    """

    def __init__(self, pool: SharedPool, fork_server: ForkServer | None) -> None:
        payload = Payload(serve_workers, {**pool.places, "is_shared": True}, {})
        fd = payload.pack()
        self._fork_server = (
            fork_server if fork_server is not None and fork_server.join(self) else None
        )
        try:
            super().__init__(0, 1, fd, pool.environment, self._fork_server)
        except BaseException:
            self._leave_fork_server()
            raise
        finally:
            os.close(fd)
        self.shared_environment = pool.shared_environment
        self.workers: list[SharedWorker] = []
        self.is_closed = False  # no more workers are accepted
        self.was_killed = False  # it was killed by this program
        self._failure = b""

    def close(self, deadline: float) -> None:
        """See ``WorkerProcess``."""
        super().close(deadline)
        self._leave_fork_server()

    def _leave_fork_server(self) -> None:
        if self._fork_server is not None:
            registry.leave_fork_server(self._fork_server, self)

    @property
    def child(self) -> Any:
        return self._process

    def send(self, fds: list[int], index: int, count: int) -> None:
        """Opens a worker there."""
        while True:
            try:
                socket.send_fds(self._socket, [JOIN.pack(index, count)], fds)
            except OSError as error:
                if self._is_gone(error):
                    return  # the user of the worker will see that
                if error.errno != errno.ETOOMANYREFS or self._process.has_ended():
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def how_it_failed(self) -> str:
        """Returns the error message of a failed start; empty if it did not fail."""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                self._failure += data
        is_failure = self._failure[:1] == bytes([NOT_STARTED])
        return (
            f"could not start:\n{self._failure[1:].decode(errors='replace')}" if is_failure else ""
        )

    def incident(self) -> Incident:
        """Returns the incident of its death, the same object for all."""
        suspects = {worker for worker in [*self.workers] if worker.unfinished()}
        found: Incident = vars(self).setdefault("_incident", Incident(suspects))
        return found

    def kill(self) -> None:
        """Kills it: what it is at is not wanted any more, and does not end."""
        self.is_closed = self.was_killed = True
        self._kill()

    def leave(self, worker: SharedWorker, deadline: float) -> None:
        """Called when a worker has ended."""
        with contextlib.suppress(ValueError):
            self.workers.remove(worker)
        self.end_if_unused(deadline)

    def end_if_unused(self, deadline: float) -> None:
        if not self.workers:
            self.is_closed = True
            if not self.workers:  # no worker has joined meanwhile
                self.close(deadline)


class SharedWorker(WorkerHandle):
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
                shared.send([theirs.fileno(), arena, payload], index, count)
            failing.pop_all()
        super().__init__(index, shared.child, ours, arena)
        self.shared = shared

    def incident(self) -> Incident | None:
        """See ``WorkerProcess``."""
        return self.shared.incident()

    def receive(self, patience: float | None = None) -> tuple[int, int, Any]:
        """See ``WorkerProcess``."""
        try:
            return super().receive(patience)
        except WorkerDied:
            if self.shared.was_killed:
                raise WorkerBusy from None
            raise

    def close(self, deadline: float) -> None:
        """Waits until it has ended, after ``deadline`` with force, which ends the process."""
        shared = self.shared
        if self._socket.fileno() < 0:
            shared.leave(self, deadline)
            return
        if self._process.has_ended() and not shared.was_killed:
            shared.incident()  # as long as it can be seen
        self.begin_close()
        if not self._ends_by(deadline):
            shared.kill()
        self._release()
        shared.leave(self, deadline)

    def _ends_by(self, deadline: float) -> bool:
        try:
            while self._is_readable(deadline - time.monotonic()):
                if not self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                    return True
        except (OSError, ValueError):  # it has ended, or another thread has stopped it
            return True
        return self._process.has_ended()

    def forget(self) -> None:
        """See ``WorkerProcess``; the process belongs to the other one, too."""
        super().forget()
        self.shared.is_closed = True
        self.shared.forget()

    def _death(self) -> WorkerDied | WorkerBusy:
        failure = self.shared.how_it_failed()
        return WorkerDied(failure) if failure else super()._death()


class SharedPool(WorkerPool):
    """A pool whose workers are workers of shared processes."""

    def __init__(self, group: SharedProcesses, payload: Payload, count: int) -> None:
        self.group = group
        self.places = {
            name: payload.preamble[name] for name in ("path", "argv", "directory", "logs")
        }
        self.shared_environment: Mapping[str, Any] = {
            "environment": payload.environment,
            "settings": payload.parts[0],
            **self.places,
        }
        super().__init__(payload, count)

    def _new_worker(self, index: int, fork_server: ForkServer | None) -> SharedWorker:
        return self.group.open(self, index, self._count, self._payload, fork_server)

    def runs(self, payload: Payload, count: int) -> bool:
        """Always False: a shared pool is never reused for an exclusive request."""
        return False

    def fits(self, payload: Payload, count: int) -> bool:
        """True if it runs exactly this task."""
        return super().runs(payload, count)

    @property
    def processes(self) -> list[SharedProcess]:
        return [worker.shared for worker in self.workers if isinstance(worker, SharedWorker)]


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
    ) -> SharedWorker:
        """Returns a worker, in a new process if there may be one more, which is forked from
        ``fork_server`` if there is one.
        """
        with self._own_lock():
            self._most_workers = max(self._most_workers, count)
            while True:
                shared = self._process_for(pool, fork_server)
                try:
                    worker = SharedWorker(shared, index, count, payload)
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
