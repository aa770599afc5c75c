"""Processes that several pools share.

Guarantees:

1. A set of processes has at most as many processes as the CPUs that this program may use, or as its
   pool of the most workers has workers, if that are more; and never more than all workers together.
   Workers of one pool are in different processes.
2. What a pool does with its workers is what it would do with processes of its own: each is a
   ``Session``, with a connection and memory of its own, so that none waits for what another pool
   has not taken, and each is started again without the others.
3. If a process dies, every pool learns it from its own session. If it was ended since a session of
   it was stuck, the other ones hear that it is busy, and continue in another process.
4. A process ends with the last of its sessions. Workers that run in other surroundings
   (environment, paths, flags) are in other processes.
5. Which entry of whose work log may be why a process died is known once for all sessions of it
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
from gristmill.workers.arena import ArenaReader, open_memory
from gristmill.workers.host import JOIN, host
from gristmill.workers.messages import NOT_STARTED
from gristmill.workers.pool import Luggage, WorkerPool, hire_pool, leave_template
from gristmill.workers.process import WorkerBusy, WorkerDied, WorkerProcess, check_system
from gristmill.workers.template import Template

_RETRY_SECONDS = 0.01  # where more descriptors are on their way than the system allows


class Incident:
    """A process has died that worked for several sessions.

    Args:
        suspects: those that were at work.
    """

    def __init__(self, suspects: set[Session]) -> None:
        self.suspects = suspects
        self.is_told = False  # the reason is known or was reported

    def concerns(self, session: Session) -> bool:
        """True if the work of ``session`` may be the reason."""
        return session in self.suspects or not (self.suspects or self.is_told)

    def is_for(self, session: Session) -> bool:
        """True if ``session``, which has repeated its work, reports the death of the process. It is
        asked once.
        """
        self.suspects.discard(session)
        is_last, self.is_told = (
            not (self.suspects or self.is_told),
            self.is_told or not self.suspects,
        )
        return is_last


class SharedProcess(WorkerProcess):
    """A process that sessions are opened in.

    Args:
        pool: the first one that needs it.
        template: what to fork it from, if there is such a process.
    """

    def __init__(self, pool: CrewPool, template: Template | None) -> None:
        luggage = Luggage(host, {**pool.places, "is_shared": True}, {})
        fd = luggage.pack()
        self._template = template if template is not None and template.join(self) else None
        try:
            super().__init__(0, 1, fd, pool.environment, self._template)
        except BaseException:
            self._leave_template()
            raise
        finally:
            os.close(fd)
        self.surroundings = pool.surroundings
        self.sessions: list[Session] = []
        self.is_closed = False  # no more sessions are accepted
        self.is_dismissed = False  # it was killed by this program
        self._failure = b""

    def stop(self, deadline: float) -> None:
        """See ``WorkerProcess``."""
        super().stop(deadline)
        self._leave_template()

    def _leave_template(self) -> None:
        if self._template is not None:
            leave_template(self._template, self)

    @property
    def child(self) -> Any:
        return self._process

    def send(self, fds: list[int], index: int, count: int) -> None:
        """Opens a session there."""
        while True:
            try:
                socket.send_fds(self._socket, [JOIN.pack(index, count)], fds)
            except OSError as error:
                if self._is_gone(error):
                    return  # as who uses the session will learn
                if error.errno != errno.ETOOMANYREFS or self._process.has_ended():
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def how_it_failed(self) -> str:
        """The error message of a failed start; empty if it did not fail."""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                self._failure += data
        is_failure = self._failure[:1] == bytes([NOT_STARTED])
        return (
            f"could not start:\n{self._failure[1:].decode(errors='replace')}" if is_failure else ""
        )

    def incident(self) -> Incident:
        """The incident of its death, the same object for all."""
        suspects = {session for session in [*self.sessions] if session.unfinished()}
        found: Incident = vars(self).setdefault("_incident", Incident(suspects))
        return found

    def dismiss(self) -> None:
        """Kills it: what it is at is not wanted any more, and does not end."""
        self.is_closed = self.is_dismissed = True
        self._kill()

    def leave(self, session: Session, deadline: float) -> None:
        """Called when a session has ended."""
        with contextlib.suppress(ValueError):
            self.sessions.remove(session)
        self.end_if_unused(deadline)

    def end_if_unused(self, deadline: float) -> None:
        if not self.sessions:
            self.is_closed = True
            if not self.sessions:  # no session has joined meanwhile
                self.stop(deadline)


class Session(WorkerProcess):
    """A worker in a process that works for others, too.

    Args:
        shared: the process.
        index, count: which worker it is, of how many.
        luggage: file descriptor of the payload.
    """

    def __init__(self, shared: SharedProcess, index: int, count: int, luggage: int) -> None:
        self._be_new(index)
        self.shared = shared
        self._process = shared.child
        with contextlib.ExitStack() as failing:
            arena = open_memory(f"gristmill-worker-{index}")
            failing.callback(os.close, arena)
            self._socket, theirs = socket.socketpair()
            failing.callback(self._socket.close)
            with theirs:
                shared.send([theirs.fileno(), arena, luggage], index, count)
            failing.pop_all()
        self._fds = [arena]
        self._reader = ArenaReader(arena)

    def incident(self) -> Incident | None:
        """See ``WorkerProcess``."""
        return self.shared.incident()

    def receive(self, patience: float | None = None) -> tuple[int, int, Any]:
        """See ``WorkerProcess``."""
        try:
            return super().receive(patience)
        except WorkerDied:
            if self.shared.is_dismissed:
                raise WorkerBusy from None
            raise

    def stop(self, deadline: float) -> None:
        """Waits until it has ended, after ``deadline`` with force, which ends the process."""
        shared = self.shared
        if self._socket.fileno() < 0:
            shared.leave(self, deadline)
            return
        if self._process.has_ended() and not shared.is_dismissed:
            shared.incident()  # as long as it can be seen
        self.hang_up()
        if not self._ends_by(deadline):
            shared.dismiss()
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

    def abandon(self) -> None:
        """See ``WorkerProcess``; the process belongs to the other one, too."""
        super().abandon()
        self.shared.is_closed = True
        self.shared.abandon()

    def _death(self) -> WorkerDied | WorkerBusy:
        failure = self.shared.how_it_failed()
        return WorkerDied(failure) if failure else super()._death()


class CrewPool(WorkerPool):
    """A pool whose workers are sessions of shared processes."""

    def __init__(self, crew: Crew, luggage: Luggage, count: int) -> None:
        self.crew = crew
        self.places = {
            name: luggage.preamble[name] for name in ("path", "argv", "directory", "logs")
        }
        self.surroundings: Mapping[str, Any] = {
            "environment": luggage.environment,
            "settings": luggage.parts[0],
            **self.places,
        }
        super().__init__(luggage, count)

    def _new_worker(self, index: int, template: Template | None) -> Session:
        return self.crew.open(self, index, self._count, self._luggage, template)

    def runs(self, luggage: Luggage, count: int) -> bool:
        """Always False: a shared pool is never reused for an exclusive request."""
        return False

    def fits(self, luggage: Luggage, count: int) -> bool:
        """True if it runs exactly this task."""
        return super().runs(luggage, count)

    @property
    def processes(self) -> list[SharedProcess]:
        return [worker.shared for worker in self.workers if isinstance(worker, Session)]


class Crew:
    """The processes of several pools, which come and end as they are needed."""

    def __init__(self) -> None:
        self._processes: list[SharedProcess] = []
        self._most_workers = 0
        self._lock = Lock()  # taken where no interrupt comes (see ``pool``)
        self._process_id = os.getpid()

    def hire(self, luggage: Luggage, count: int, owner: object | None) -> CrewPool:
        """A pool of ``count`` workers that run the task; see ``pool.hire``."""
        check_system()
        make = partial(CrewPool, self, luggage, count)
        pool = hire_pool(make, lambda pool: pool.fits(luggage, count), CrewPool, owner)
        if pool.crew is not self:  # it was parked
            uninterrupted(partial(self._adopt, pool))
        return pool

    def _adopt(self, pool: CrewPool) -> None:
        with self._own_lock():
            pool.crew = self
            self._processes += [
                process for process in {*pool.processes} if process not in self._processes
            ]

    def _own_lock(self) -> Lock:
        if self._process_id != os.getpid():  # this is a fork
            self._processes, self._lock, self._process_id = [], Lock(), os.getpid()
        return self._lock

    def open(
        self, pool: CrewPool, index: int, count: int, luggage: int, template: Template | None
    ) -> Session:
        """A worker, in a new process if there may be one more, which is forked from ``template`` if
        there is one.
        """
        with self._own_lock():
            self._most_workers = max(self._most_workers, count)
            while True:
                shared = self._process_for(pool, template)
                try:
                    session = Session(shared, index, count, luggage)
                except BaseException:
                    shared.end_if_unused(time.monotonic())
                    raise
                shared.sessions.append(session)
                if not shared.is_closed:
                    return session
                # its last session has ended just now, or it was dismissed
                session.stop(time.monotonic())

    def _process_for(self, pool: CrewPool, template: Template | None) -> SharedProcess:
        self._processes = [
            process for process in self._processes if not process.is_closed and process.is_alive()
        ]
        used = pool.processes
        fit = [x for x in self._processes if x not in used and x.surroundings == pool.surroundings]
        if not fit or len(self._processes) < max(usable_cpus(), self._most_workers):
            fit = [SharedProcess(pool, template)]
            self._processes += fit
        return min(fit, key=lambda process: len(process.sessions))
