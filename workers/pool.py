"""Worker processes that run the same task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gristmill.core.descriptors import with_descriptors
from gristmill.core.locks import Lock
from gristmill.core.uninterrupted import uninterrupted
from gristmill.workers.descriptors import close_all
from gristmill.workers.fork_server import ForkServer
from gristmill.workers.handle import WorkerHandle
from gristmill.workers.payload import Payload
from gristmill.workers.process import NUM_DESCRIPTORS, SocketTransport, check_system, start_process
from gristmill.workers.registry import registry

_IDLE_SECONDS = 1.0


class WorkerPool:
    """``count`` processes that run one task, each for its own share."""

    kind_of_worker = "process"  # in words
    idle_seconds = _IDLE_SECONDS

    def __init__(self, payload: Payload, count: int) -> None:
        self.preamble, self.environment = payload.preamble, payload.environment
        self.idle_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.workers: list[WorkerHandle[SocketTransport]] = []
        # called for every process that replaces another one
        self.on_start: Callable[[WorkerHandle[SocketTransport]], None] | None = None
        self._count = count
        self._is_closed = False
        self._replacing = Lock()
        self._fds: list[int] = []
        self._fork_servers: set[ForkServer] = set()
        try:
            # It starts while the task is copied.
            fork_server = self._fork_server() if count else None
            self._payload = payload.pack()
            self._fds.append(self._payload)
            for index in range(count):
                self.workers.append(self._new_worker(index, fork_server))
        except BaseException:
            self.close()
            raise

    def _fork_server(self) -> ForkServer | None:
        fork_server = registry.join_fork_server(self, self.environment)
        if fork_server is not None:
            self._fork_servers.add(fork_server)
        return fork_server

    def _new_worker(
        self, index: int, fork_server: ForkServer | None
    ) -> WorkerHandle[SocketTransport]:
        return WorkerHandle(index, self._new_transport(index, fork_server))

    def _new_transport(self, index: int, fork_server: ForkServer | None) -> SocketTransport:
        return start_process(index, self._count, self._payload, self.environment, fork_server)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def num_descriptors(self) -> int:
        """Number of file descriptors that the pool has open in this process."""
        return 1 + NUM_DESCRIPTORS * self._count

    def worker(self, index: int) -> WorkerHandle[SocketTransport]:
        """The worker, or a new process in its place if it has died or its connection was
        interrupted.
        """
        if not self.workers[index].is_alive():
            uninterrupted(partial(self._replace, index))
        return self.workers[index]

    def _replace(self, index: int) -> None:
        with self._replacing:
            if self.workers[index].is_alive():
                return  # the previous caller was interrupted
            former = self.workers[index]
            former.kill()
            fork_server = self._fork_server() if former.transport.was_born else None
            worker = with_descriptors(partial(self._new_worker, index, fork_server))
            try:
                if self.on_start is not None:
                    self.on_start(worker)
            finally:
                self.workers[index] = worker
                if self._is_closed:  # in the meantime
                    worker.kill()

    def resize(self, count: int) -> None:
        """Have ``count`` workers. The last ones end without a wait.

        Raises:
            OSError, RuntimeError: the system gives fewer. Those that have started stay.
        """
        if count != len(self.workers):
            uninterrupted(partial(self._resize, count))

    def _resize(self, count: int) -> None:
        with self._replacing:
            self._count = count
            try:
                self._start_or_end(count)
            finally:
                self._count = len(self.workers)

    def _start_or_end(self, count: int) -> None:
        while len(self.workers) > count:
            registry.remove_worker(self.workers.pop())
        while len(self.workers) < count and not self._is_closed:
            worker = with_descriptors(
                partial(self._new_worker, len(self.workers), self._fork_server())
            )
            self.workers.append(worker)
            if self.on_start is not None:
                self.on_start(worker)
            if self.is_closed:  # in the meantime
                worker.kill()

    def runs(self, payload: Payload, count: int) -> bool:
        """True if the pool runs exactly this task."""
        return (
            not self._is_closed
            and self._count == count
            and self.preamble == payload.preamble
            and self.environment == payload.environment
            and payload.is_in(self._payload)
        )

    def close(self) -> None:
        """Ends the processes; may be called again, by several threads."""
        registry.close([self])

    def begin_close(self) -> None:
        """Refuse further use."""
        self._is_closed = True

    def finish_close(self, deadline: float) -> None:
        """Waits until the workers have ended, after ``deadline`` with force."""
        for worker in self.workers:
            worker.close(deadline)
        self._close_descriptors()
        for fork_server in self._fork_servers:
            registry.leave_fork_server(fork_server, self)

    def forget(self) -> None:
        """Drop what belongs to the parent, in a forked process."""
        self._is_closed = True
        for worker in self.workers:
            worker.forget()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        close_all(self._fds)


def acquire(
    payload: Payload, count: int, owner: object | None, num_now: int | None = None
) -> WorkerPool:
    """Return a pool of ``count`` processes that run the task; see ``Registry.acquire``.

    Args:
        payload: the task.
        count: number of workers.
        owner: the object of the task.
        num_now: number of workers of a new pool, if the others start later, with ``resize``.

    Raises:
        OSError: the system does not give what is needed.
        RuntimeError: it is one that has no such processes (Windows), or there is no interpreter to
            run.
    """
    check_system()
    return registry.acquire(
        partial(WorkerPool, payload, count if num_now is None else num_now),
        lambda pool: pool.runs(payload, count),
        WorkerPool,
        owner,
    )
