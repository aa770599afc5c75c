"""Groups of worker processes that run the same task, and how they end.

Guarantees:

1. Processes exist only between ``hire`` and the end of the pool. A pool ends by ``close``, at the
   exit of the interpreter, ``_PARKED_SECONDS`` after it was parked, or when ``_MAX_PARKED`` others
   were; then its processes, file descriptors and memory are gone within ``_GRACE_SECONDS``, also if
   a worker is stuck in user code. If this process dies, the kernel kills the workers in the same
   moment. The template that workers are forked from stays for a moment longer than the last pool
   that uses it.
2. ``park`` may be called anywhere, by a finalizer in the middle of a garbage collection or while a
   lock is held: it appends to a list and wakes a thread up with a queue that is made for that.
3. A parked pool serves the next one who wants to run the same, unchanged task in equal
   surroundings, so that the next epoch does not wait for processes to start. It loads the task
   again: what the last one has left in its objects is gone.
4. There is one thread, and only while there are pools. Nothing of this is alive in a process that
   was forked from this one; arrays that it has inherited keep their content.
5. An interrupt at any point (a signal handler that raises) loses no process, descriptor or lock:
   processes are started by a thread that it does not reach and belong to a pool that is parked
   before anybody has it; and one that is being closed is parked for as long as that takes.
6. Parked pools have at most a quarter of the descriptors that this process may have, except for the
   pool that was parked last. If descriptors run out for a pool, for a worker that replaces another
   one, or for a file, all parked pools are ended and the call is made again.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import marshal
import os
import pickle
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gristmill.core.config import config
from gristmill.core.descriptors import max_descriptors, release_when_scarce, with_descriptors
from gristmill.core.locks import Lock
from gristmill.core.node_types import expect
from gristmill.core.uninterrupted import uninterrupted
from gristmill.workers.arena import open_memory
from gristmill.workers.descriptors import close_all
from gristmill.workers.flags import flag_values, own_flags
from gristmill.workers.logs import log_settings
from gristmill.workers.pickling import dumps, pickled_registrations
from gristmill.workers.process import NUM_DESCRIPTORS, WorkerProcess, check_system
from gristmill.workers.setup import Call, setup_calls
from gristmill.workers.template import Template, surroundings

_PARKED_SECONDS = 1.0
_MAX_PARKED = 8  # pools
_SHARE_OF_DESCRIPTORS = 4  # parked pools have 1 / 4 of those that this process may have
_GRACE_SECONDS = 0.3
# from here on the arrays of a task are shared by its workers instead of copied
_MIN_BUFFER_BYTES = 1 << 16
_CHUNK = 1 << 20

# Workers never take accelerator memory unless asked to.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
}

# Settings of JAX that change results. As environment variables they reach a worker whether or not
# it will import JAX.
_JAX_SETTINGS = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_matmul_precision",
)


class Luggage:
    """The payload of the workers of a pool: a task by value, and the environment that it needs.

    Args:
        task: called in each worker with its index, the number of workers and a function that
            allocates arrays.
        options: what the worker's own loop needs to know.
        environment: variables to set, or with ``None`` to remove, in the environment of the
            workers.

    Raises:
        Exception: what pickling ``task`` raised.
    """

    def __init__(
        self, task: Any, options: Mapping[str, Any], environment: Mapping[str, str | None]
    ) -> None:
        buffers: list[memoryview] = []

        def keep_inline(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _MIN_BUFFER_BYTES:
                return True
            buffers.append(raw)
            return False

        setup: list[Call] = [
            *setup_calls(),
            *[(config.update, item) for item in config.explicit_values().items()],
        ]
        setup.append((expect, (pickled_registrations(),)))
        self.parts: list[bytes | memoryview] = [
            dumps((setup, flag_values(), own_flags())),
            dumps(task, keep_inline),
            *buffers,
        ]
        ends = [0x1000]
        for part in self.parts:
            ends.append(-(-(ends[-1] + len(part)) // 64) * 64)
        self._starts = ends[:-1]
        self.preamble = {
            "path": [str(entry) for entry in sys.path if isinstance(entry, str)],
            "argv": [str(arg) for arg in getattr(sys, "argv", [])],
            "directory": _working_directory(),
            "logs": log_settings(),
            "parts": [
                (start, start + len(part))
                for start, part in zip(self._starts, self.parts, strict=True)
            ],
            **options,
        }
        variables = {**os.environ, **accelerator_free(), **environment}
        self.environment = {name: value for name, value in variables.items() if value is not None}

    def pack(self) -> int:
        """A file descriptor of memory that holds all of it."""
        fd = open_memory("gristmill-task")
        try:
            for start, part in zip(self._starts, self.parts, strict=True):
                view = memoryview(part)
                while view:
                    num = os.pwrite(fd, view[: 1 << 30], start)
                    view, start = view[num:], start + num
            preamble = marshal.dumps(self.preamble)
            end = os.fstat(fd).st_size
            os.pwrite(fd, preamble, end)
            os.pwrite(fd, end.to_bytes(8, "little") + len(preamble).to_bytes(8, "little"), 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_in(self, fd: int) -> bool:
        """True if earlier packed memory contains exactly this payload."""
        for start, part in zip(self._starts, self.parts, strict=True):
            view = memoryview(part)
            for i in range(0, len(view), _CHUNK):
                piece = view[i : i + _CHUNK]
                if os.pread(fd, len(piece), start + i) != bytes(piece):
                    return False
        return True


def accelerator_free() -> dict[str, str]:
    """Environment variables of workers: no accelerators, and the settings that JAX has in this
    process, if it is in use here.
    """
    config = getattr(sys.modules.get("jax"), "config", None)
    values = {name.upper(): getattr(config, name, None) for name in _JAX_SETTINGS}
    return {
        **_ENVIRONMENT,
        **{name: str(value) for name, value in values.items() if value is not None},
    }


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return ""


class WorkerPool:
    """``count`` processes that run one task, each for its own share."""

    kind_of_worker = "process"  # in words
    parked_seconds = _PARKED_SECONDS

    def __init__(self, luggage: Luggage, count: int) -> None:
        self.preamble, self.environment = luggage.preamble, luggage.environment
        self.parked_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.workers: list[WorkerProcess] = []
        # called for every process that replaces another one
        self.on_start: Callable[[WorkerProcess], None] | None = None
        self._count = count
        self._is_closed = False
        self._replacing = Lock()
        self._fds: list[int] = []
        self._templates: set[Template] = set()
        try:
            template = self._template()  # starts while the task is copied
            self._luggage = luggage.pack()
            self._fds.append(self._luggage)
            for index in range(count):
                self.workers.append(self._new_worker(index, template))
        except BaseException:
            self.close()
            raise

    def _template(self) -> Template | None:
        template = _join_template(self, self.environment)
        if template is not None:
            self._templates.add(template)
        return template

    def _new_worker(self, index: int, template: Template | None) -> WorkerProcess:
        return WorkerProcess(index, self._count, self._luggage, self.environment, template)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def num_descriptors(self) -> int:
        """Number of file descriptors that the pool has open in this process."""
        return 1 + NUM_DESCRIPTORS * self._count

    def worker(self, index: int) -> WorkerProcess:
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
            self.workers[index].stop(time.monotonic())
            template = self._template() if self.workers[index].was_born else None
            worker = with_descriptors(partial(self._new_worker, index, template))
            try:
                if self.on_start is not None:
                    self.on_start(worker)
            finally:
                self.workers[index] = worker
                if self._is_closed:  # in the meantime
                    worker.stop(time.monotonic())

    def resize(self, count: int) -> None:
        """Have ``count`` workers. The last ones end without a wait."""
        if count != self._count:
            uninterrupted(partial(self._resize, count))

    def _resize(self, count: int) -> None:
        with self._replacing:
            self._count = count
            while len(self.workers) > count:
                retire(self.workers.pop())
            while len(self.workers) < count and not self._is_closed:
                worker = with_descriptors(
                    partial(self._new_worker, len(self.workers), self._template())
                )
                self.workers.append(worker)
                if self.on_start is not None:
                    self.on_start(worker)
                if self.is_closed:  # in the meantime
                    worker.stop(time.monotonic())

    def runs(self, luggage: Luggage, count: int) -> bool:
        """True if the pool runs exactly this task."""
        return (
            not self._is_closed
            and self._count == count
            and self.preamble == luggage.preamble
            and self.environment == luggage.environment
            and luggage.is_in(self._luggage)
        )

    def close(self) -> None:
        """Ends the processes; may be called again, by several threads."""
        close_pools([self])

    def shut(self) -> None:
        """It must not be used any more."""
        self._is_closed = True

    def release(self, deadline: float) -> None:
        """Waits until the workers have ended, after ``deadline`` with force."""
        for worker in self.workers:
            worker.stop(deadline)
        self._close_descriptors()
        for template in self._templates:
            leave_template(template, self)

    def abandon(self) -> None:
        """In a forked process: lets go of what belongs to the other one."""
        self._is_closed = True
        for worker in self.workers:
            worker.abandon()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        close_all(self._fds)


class Pool(Protocol):
    """Interface shared by local, Ray and fork-server pools, as seen by the registry."""

    parked_seconds: float
    parked_until: float
    owner: Callable[[], object]

    @property
    def is_closed(self) -> bool: ...

    @property
    def workers(self) -> list[Any]: ...

    def shut(self) -> None:
        """It must not be used any more."""

    def release(self, deadline: float) -> None:
        """Waits until the workers have ended, after ``deadline`` (``time.monotonic()``) with
        force.
        """

    def abandon(self) -> None:
        """In a forked process: lets go of what belongs to the other one."""


class _Retired:
    """A worker that its pool does not need any more, as a pool that is parked until it has
    ended.
    """

    parked_seconds = 0.0
    is_closed = False

    def __init__(self, worker: Any) -> None:
        self.parked_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.workers = [worker]

    def shut(self) -> None:
        self.is_closed = True

    def release(self, deadline: float) -> None:
        self.workers[0].stop(deadline)

    def abandon(self) -> None:
        self.workers[0].abandon()


P = TypeVar("P", bound=Pool)

_live: set[Pool] = set()
_parked: list[Pool] = []
_wake: queue.SimpleQueue[None] = queue.SimpleQueue()
_newest: Template | None = None  # of the templates
_failed: set[Any] = set()  # an environment without one
_choosing = Lock()  # of the two above
# of the two following; nothing that a finalizer calls takes it, or that can be interrupted
_lock = Lock()
_keeper: threading.Thread | None = None
_is_registered = False


def hire(luggage: Luggage, count: int, owner: object | None) -> WorkerPool:
    """A pool of ``count`` processes that run the task; see ``hire_pool``.

    Raises:
        OSError: the system does not give what is needed.
        RuntimeError: it is one that has no such processes (Windows), or there is no interpreter to
            run.
    """
    check_system()
    return hire_pool(
        partial(WorkerPool, luggage, count),
        lambda pool: pool.runs(luggage, count),
        WorkerPool,
        owner,
    )


def hire_pool(
    make: Callable[[], P], is_fit: Callable[[P], bool], kind: type[P], owner: object | None
) -> P:
    """A pool that runs a task: a parked one if there is one that does, otherwise a new one, which
    is parked, too.

    So it is not lost if the caller is interrupted before it has it; a caller that uses it calls
    ``unpark``.

    Args:
        make: makes a new one.
        is_fit: whether one of this kind will do.
        kind: its class.
        owner: the objects of the task; ``None``: existing workers are not reused. Nor are those
            acquired for another object, even an equal one: what they have remembered since is that
            object's, not this one's.
    """
    return uninterrupted(partial(_hire, make, is_fit, kind, owner))


def _hire(
    make: Callable[[], P], is_fit: Callable[[P], bool], kind: type[P], owner: object | None
) -> P:
    for pool in [*_parked]:
        # It is taken before it is looked at: so it is not closed meanwhile.
        if isinstance(pool, kind) and owner is not None and pool.owner() is owner and unpark(pool):
            try:
                is_right = is_fit(pool)
            finally:
                _park(pool)
            if is_right:
                for worker in pool.workers:
                    worker.is_for_another = True
                return pool
    pool = with_descriptors(make)
    if owner is not None:
        pool.owner = weakref.ref(owner)
    try:
        _live.add(pool)
        _start_keeper()
        park(pool)
    except BaseException:
        close_pools([pool])
        raise
    return pool


def retire(worker: Any) -> None:
    """End a worker whose pool has others, without a wait."""
    worker.hang_up()
    retired = _Retired(worker)
    _live.add(retired)
    _start_keeper()
    park(retired)


def _join_template(pool: WorkerPool, environment: Mapping[str, str]) -> Template | None:
    """The process from which to fork workers of the pool, which keeps it from ending; ``None``:
    they are started one by one.
    """
    global _newest
    key = surroundings(environment)
    with _choosing:
        templates = [x for x in [*_live] if isinstance(x, Template) and x.key == key]
        _failed.update([template.key for template in templates if template.has_failed])
        if key is None or key in _failed:
            return None
        for template in templates:
            if template.join(pool):
                return template
        try:
            template = Template(key, environment)
        except OSError:  # starting a worker will say why
            return None
        template.join(pool)
        before, _newest = _newest, template
    _live.add(template)
    _start_keeper()
    park(template)
    if before is not None:
        _park_unused(before)
    return template


def leave_template(template: Template, user: object) -> None:
    """``user`` needs it no more."""
    template.leave(user)
    _park_unused(template)


def _park_unused(template: Template) -> None:
    """Keeps a template for a moment if no pool uses it, or ends it if there is a newer one."""
    if not template.is_used and not template.is_closed:
        template.parked_until = (
            time.monotonic() + template.parked_seconds if template is _newest else 0.0
        )
        _park(template)


def park(pool: Pool) -> None:
    """Keeps the processes for a moment, for the next who needs them, and ends them then. May be
    called anywhere.
    """
    pool.parked_until = time.monotonic() + pool.parked_seconds
    _park(pool)


def _park(pool: Pool) -> None:
    if pool not in _parked:
        _parked.append(pool)
    _wake.put(None)


def unpark(pool: Pool) -> bool:
    """Takes a parked pool into use again; false if it is too late for that."""
    if pool.is_closed:
        # where it is parked all the same, its end was interrupted: that is left to the keeper
        return False
    return _take(pool) and not pool.is_closed


def _start_keeper() -> None:
    global _keeper, _is_registered
    with _lock:
        if not _is_registered:
            atexit.register(_close_all)
            _is_registered = True
        if _keeper is None:
            _keeper = threading.Thread(target=_keep, name="gristmill-workers", daemon=True)
            try:
                _keeper.start()
            except BaseException:
                _keeper = None
                raise


def _keep() -> None:
    """Ends parked pools in time, as long as there are pools."""
    global _keeper
    try:
        _end_parked_pools()
    finally:  # where ending one has failed, the next pool has another keeper
        with _lock:
            if _keeper is threading.current_thread():
                _keeper = None


def _end_parked_pools() -> None:
    global _keeper
    while True:
        deadlines = [pool.parked_until for pool in [*_parked]]
        with contextlib.suppress(queue.Empty):
            _wake.get(timeout=max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        for pool in _surplus():
            pool.parked_until = 0.0
        expired = [
            pool for pool in [*_parked] if pool.parked_until <= time.monotonic() and _take(pool)
        ]
        if expired:
            _end(expired)
        with _lock:
            if not _live:
                _keeper = None
                _wake.put(None)  # there is another keeper if this one's start was interrupted
                return


def _surplus() -> list[WorkerPool]:
    """Return the parked pools beyond the limits of pools and of descriptors, the oldest ones."""
    pools = [pool for pool in [*_parked] if isinstance(pool, WorkerPool) and not pool.is_closed]
    num_kept, room = 0, max_descriptors() // _SHARE_OF_DESCRIPTORS
    for pool in reversed(pools[-_MAX_PARKED:]):
        room -= pool.num_descriptors
        if room < 0 and num_kept:
            break
        num_kept += 1
    return pools[: len(pools) - num_kept]


def close_parked(kind: type[Pool]) -> None:
    """Ends the pools of this kind that are not in use at the moment."""
    _end([pool for pool in [*_parked] if isinstance(pool, kind) and _take(pool)])


def _close_parked_when_scarce() -> None:
    gc.collect()  # parks the pools of iterators in reference cycles
    close_parked(WorkerPool)


release_when_scarce(_close_parked_when_scarce)


def _end(pools: Sequence[Pool]) -> None:
    """Ends pools that are idle, and templates that no pool uses."""
    close_pools([pool for pool in pools if not isinstance(pool, Template)])
    for template in [pool for pool in pools if isinstance(pool, Template)]:
        template.shut()
        if template.is_used:
            template.reopen()
            park(template)
        else:
            close_pools([template])


def close_pools(pools: Sequence[Pool]) -> None:
    """Ends them, in as short a time as one of them."""
    for pool in pools:
        pool.shut()
        park(pool)  # where this is interrupted, the keeper does the rest
    for pool in pools:
        for worker in pool.workers:
            worker.hang_up()
    deadline = time.monotonic() + _GRACE_SECONDS
    for pool in pools:
        pool.release(deadline)
        _live.discard(pool)
        _take(pool)
    _wake.put(None)


def _take(pool: Pool) -> bool:
    """True if the pool was idle; it is in use afterwards."""
    try:
        _parked.remove(pool)
    except ValueError:
        return False
    return True


def _close_all() -> None:
    close_pools([pool for pool in [*_live] if not isinstance(pool, Template)])
    close_pools([*_live])


def _forget_all() -> None:
    """After a fork, in the new process: all of this belongs to the other one."""
    global _lock, _choosing, _wake, _keeper, _newest
    _lock, _choosing, _wake, _keeper, _newest = Lock(), Lock(), queue.SimpleQueue(), None, None
    for pool in [*_live]:
        pool.abandon()
    _live.clear()
    _parked.clear()


def _share_all() -> None:
    """Before a fork: the new process will see what is in shared memory, and cannot tell when it
    does no more.
    """
    for pool in [*_live]:
        for worker in pool.workers:
            worker.share_memory()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_share_all, after_in_child=_forget_all)
