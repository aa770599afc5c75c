"""The pools of this process: their reuse, and when they end.

Guarantees:

1. Workers exist only between ``acquire`` and the end of their pool. A pool ends by ``close``, at
   the exit of the interpreter, ``idle_seconds`` after it was released, or when ``_MAX_IDLE`` others
   were; then its processes, file descriptors and memory are gone within ``_GRACE_SECONDS``, also if
   a worker is stuck in user code. If this process dies, the kernel kills the workers in the same
   moment. The fork server stays for a moment longer than the last pool that uses it.
2. ``release`` may be called anywhere, by a finalizer in the middle of a garbage collection or while
   a lock is held: it appends to a list and wakes the reaper with a queue that is made for that.
3. An idle pool serves the next request for the same, unchanged task in an equal environment, so
   that the next epoch does not wait for processes to start. It loads the task again, so nothing of
   the last use is left in its objects.
4. There is one thread, the reaper, and only while there are pools. Nothing of this is alive in a
   process that was forked from this one; arrays that it has inherited keep their content.
5. An interrupt at any point (a signal handler that raises) loses no process, descriptor or lock:
   processes are started by a thread that it does not reach and belong to a pool that is idle before
   anyone has it; and a pool that is being closed is idle for as long as that takes.
6. Idle pools have at most a quarter of the descriptors that this process may have, except for the
   pool that was released last. If descriptors run out for a pool, for a worker that replaces
   another one, or for a file, all idle pools are closed and the call is made again.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from gristmill.core.descriptors import max_descriptors, release_when_scarce, with_descriptors
from gristmill.core.locks import Lock
from gristmill.core.uninterrupted import uninterrupted
from gristmill.workers.fork_server import ForkServer, Inherited, inherited_environment

_MAX_IDLE = 8  # pools
_SHARE_OF_DESCRIPTORS = 4  # idle pools have 1 / 4 of those that this process may have
_GRACE_SECONDS = 0.3


class PooledWorker(Protocol):
    """Interface of a worker, as seen by the registry."""

    is_for_another: bool  # consumer than before: the next start

    def begin_close(self) -> None:
        """Ask it to end, without waiting."""

    def close(self, deadline: float) -> None:
        """Wait until it has ended, after ``deadline`` (``time.monotonic()``) with force."""

    def forget(self) -> None:
        """In a forked process: drop what belongs to the other one."""

    def share_memory(self) -> None:
        """Called before a fork."""


class Pool(Protocol):
    """Interface shared by local, thread, Ray and fork-server pools, as seen by the registry."""

    idle_seconds: float  # the registry closes it when it has been idle for so long
    idle_until: float
    owner: Callable[[], object]

    @property
    def is_closed(self) -> bool: ...

    @property
    def workers(self) -> Sequence[PooledWorker]: ...

    @property
    def num_descriptors(self) -> int:
        """Number of file descriptors that it has open here; 0 if idle ones are not limited."""

    def begin_close(self) -> None:
        """Refuse to be used again."""

    def finish_close(self, deadline: float) -> None:
        """Wait until the workers have ended, after ``deadline`` (``time.monotonic()``) with
        force.
        """

    def forget(self) -> None:
        """Drop what belongs to the parent, in a forked process."""


class _Leaving:
    """A worker that left its pool: as a pool that is idle until the worker has ended."""

    idle_seconds = 0.0
    is_closed = False
    num_descriptors = 0

    def __init__(self, worker: PooledWorker) -> None:
        self.idle_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.workers = [worker]

    def begin_close(self) -> None:
        self.is_closed = True

    def finish_close(self, deadline: float) -> None:
        self.workers[0].close(deadline)

    def forget(self) -> None:
        self.workers[0].forget()


P = TypeVar("P", bound=Pool)


class Registry:
    """The pools of one process."""

    def __init__(self) -> None:
        self.pools: set[Pool] = set()
        self.idle: list[Pool] = []
        self._is_registered = False
        self._fork_servers: list[ForkServer] = []
        self._failed: set[Inherited] = set()  # environments in which a fork server has failed
        self._begin()

    def _begin(self) -> None:
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Nothing that a finalizer calls, or that can be interrupted, takes this lock.
        self._lock = Lock()
        self._choosing = Lock()  # of the fork servers
        self._reaper: threading.Thread | None = None

    def acquire(
        self,
        make: Callable[[], P],
        is_fit: Callable[[P], bool],
        kind: type[P],
        owner: object | None,
    ) -> P:
        """Return a pool that runs a task: an idle one if it fits, otherwise a new one, which is
        idle, too.

        So it is not lost if the caller is interrupted before it has it; a caller that uses it calls
        ``use``.

        Args:
            make: makes a new one.
            is_fit: whether one of this kind will do.
            kind: its class.
            owner: the object of the task; ``None``: existing workers are not reused. Nor are those
                acquired for another object, even an equal one: what they have remembered since is
                that object's, not this one's.
        """
        return uninterrupted(partial(self._acquire, make, is_fit, kind, owner))

    def _acquire(
        self,
        make: Callable[[], P],
        is_fit: Callable[[P], bool],
        kind: type[P],
        owner: object | None,
    ) -> P:
        for pool in [*self.idle]:
            if not isinstance(pool, kind) or owner is None or pool.owner() is not owner:
                continue
            if self.use(pool):  # so it is not closed while it is looked at
                try:
                    is_right = is_fit(pool)
                finally:
                    self._put_idle(pool)
                if is_right:
                    for worker in pool.workers:
                        worker.is_for_another = True
                    return pool
        pool = with_descriptors(make)
        if owner is not None:
            pool.owner = weakref.ref(owner)
        self._add(pool)
        return pool

    def remove_worker(self, worker: PooledWorker) -> None:
        """End a worker whose pool has others, without a wait."""
        worker.begin_close()
        self._add(_Leaving(worker))

    def _add(self, pool: Pool) -> None:
        try:
            self.pools.add(pool)
            self._start_reaper()
            self.release(pool)
        except BaseException:
            self.close([pool])
            raise

    def release(self, pool: Pool) -> None:
        """Make a pool idle: the next request may use it; it is closed later. May be called
        anywhere.
        """
        pool.idle_until = time.monotonic() + pool.idle_seconds
        self._put_idle(pool)

    def _put_idle(self, pool: Pool) -> None:
        if pool not in self.idle:
            self.idle.append(pool)
        self._wake.put(None)

    def use(self, pool: Pool) -> bool:
        """Take an idle pool into use; False if it is too late for that."""
        if pool.is_closed:
            # where it is idle all the same, its end was interrupted: that is left to the reaper
            return False
        return self._take(pool) and not pool.is_closed

    def _take(self, pool: Pool) -> bool:
        """Return True if the pool was idle; it is in use afterwards."""
        try:
            self.idle.remove(pool)
        except ValueError:
            return False
        return True

    def close(self, pools: Sequence[Pool]) -> None:
        """Close pools, in as short a time as one of them."""
        for pool in pools:
            pool.begin_close()
            self.release(pool)  # where this is interrupted, the reaper does the rest
        for pool in pools:
            for worker in pool.workers:
                worker.begin_close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for pool in pools:
            pool.finish_close(deadline)
            self.pools.discard(pool)
            self._take(pool)
        self._wake.put(None)

    def close_idle(self, is_wanted: Callable[[Pool], bool] = lambda pool: True) -> None:
        """Close the idle pools of which ``is_wanted`` is true."""
        self._close_unused([pool for pool in [*self.idle] if is_wanted(pool) and self._take(pool)])

    def close_all(self) -> None:
        """Close everything: the pools first, then the fork servers that they used."""
        servers = [*self._fork_servers]
        self.close([pool for pool in [*self.pools] if pool not in servers])
        self.close([*self.pools])

    def forget(self) -> None:
        """Drop all pools in a forked process: they belong to the parent."""
        self._begin()  # a thread of the other one may hold the locks
        for pool in [*self.pools]:
            pool.forget()
        self.pools.clear()
        self.idle.clear()
        self._fork_servers.clear()

    def share_memory(self) -> None:
        """Called before a fork: the new process will see what is in shared memory, and cannot
        detect when it no longer does.
        """
        for pool in [*self.pools]:
            for worker in pool.workers:
                worker.share_memory()

    def _start_reaper(self) -> None:
        with self._lock:
            if not self._is_registered:
                atexit.register(self.close_all)
                self._is_registered = True
            if self._reaper is None:
                self._reaper = threading.Thread(
                    target=self._reap, name="gristmill-workers", daemon=True
                )
                try:
                    self._reaper.start()
                except BaseException:
                    self._reaper = None
                    raise

    def _reap(self) -> None:
        """Close idle pools in time, as long as there are pools."""
        try:
            while not self._is_done():
                deadlines = [pool.idle_until for pool in [*self.idle]]
                timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=timeout)
                for pool in self._surplus():
                    pool.idle_until = 0.0
                now = time.monotonic()
                expired = [pool for pool in [*self.idle] if pool.idle_until <= now]
                if expired:
                    self._close_unused([pool for pool in expired if self._take(pool)])
        finally:  # where closing one has failed, the next pool has another reaper
            with self._lock:
                if self._reaper is threading.current_thread():
                    self._reaper = None

    def _is_done(self) -> bool:
        with self._lock:
            if self.pools:
                return False
            self._reaper = None
            self._wake.put(None)  # another reaper runs if this one's start was interrupted
            return True

    def _surplus(self) -> list[Pool]:
        """Return the idle pools beyond the limits of pools and of descriptors, the oldest ones."""
        pools = [pool for pool in [*self.idle] if pool.num_descriptors and not pool.is_closed]
        num_kept, room = 0, max_descriptors() // _SHARE_OF_DESCRIPTORS
        for pool in reversed(pools[-_MAX_IDLE:]):
            room -= pool.num_descriptors
            if room < 0 and num_kept:
                break
            num_kept += 1
        return pools[: len(pools) - num_kept]

    def _close_unused(self, pools: Sequence[Pool]) -> None:
        """Close pools that were idle; fork servers only if no pool uses them."""
        servers = [server for server in self._fork_servers if server in pools]
        self.close([pool for pool in pools if pool not in servers])
        for server in servers:
            server.begin_close()
            if server.is_used:
                server.reopen()
                self.release(server)
            else:
                self.close([server])

    def join_fork_server(self, pool: Pool, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the process from which to fork workers of the pool, which keeps it from ending;
        ``None`` if they are started one by one.
        """
        key = inherited_environment(environment)
        with self._choosing:
            self._fork_servers = [x for x in self._fork_servers if x in self.pools]
            servers = [server for server in self._fork_servers if server.key == key]
            self._failed.update([server.key for server in servers if server.has_failed])
            if key is None or key in self._failed:
                return None
            for server in servers:
                if server.join(pool):
                    return server
            try:
                server = ForkServer(key, environment)
            except OSError:  # starting a worker will say why
                return None
            server.join(pool)
            before = self._fork_servers[-1:]
            self.pools.add(server)
            self._fork_servers.append(server)
        self._start_reaper()
        self.release(server)
        for other in before:
            self._release_server(other)
        return server

    def leave_fork_server(self, server: ForkServer, user: object) -> None:
        """Release the server, which ``user`` no longer needs."""
        server.leave(user)
        self._release_server(server)

    def _release_server(self, server: ForkServer) -> None:
        """Keep a fork server for a moment if no pool uses it, or close it if there is a newer
        one.
        """
        if not server.is_used and not server.is_closed:
            is_newest = server in self._fork_servers[-1:]
            server.idle_until = time.monotonic() + server.idle_seconds if is_newest else 0.0
            self._put_idle(server)


registry = Registry()


def _close_idle_when_scarce() -> None:
    gc.collect()  # releases the pools of iterators in reference cycles
    registry.close_idle(lambda pool: pool.num_descriptors > 0)


release_when_scarce(_close_idle_when_scarce)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=registry.share_memory, after_in_child=registry.forget)
