"""The executor of lanes that pools of workers compute: processes, or threads with objects of their
own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gristmill.core.errors import add_note
from gristmill.core.naming import transform_name
from gristmill.core.options import chosen_executor
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.executors.auto import Kind
from gristmill.dataset.executors.protocol import Executor, Report
from gristmill.dataset.executors.tuning import Tuning
from gristmill.dataset.lanes.consumer import LanesHere
from gristmill.dataset.lanes.local import LocalLanes
from gristmill.dataset.lanes.processes import WorkerLane
from gristmill.dataset.lanes.ray import LanesOnRay
from gristmill.dataset.slicing import numbers_of
from gristmill.dataset.workers.task import PipelineTask
from gristmill.dataset.workers.thread_payload import ThreadPayload
from gristmill.dataset.workers.threads import acquire_threads
from gristmill.dataset.workers.worker_set import join_workers, shared_processes_of
from gristmill.workers.payload import Payload
from gristmill.workers.pickling import dumps
from gristmill.workers.pool import acquire
from gristmill.workers.registry import registry
from gristmill.workers.setup import Preamble


class PoolExecutor(Executor):
    """Computes lanes with the workers of a pool.

    ``receive`` waits in the ``receive`` of a worker alone, which looks four times a second whether
    the worker died or was closed; a worker that runs and does not answer a new start within half a
    second is replaced. ``close`` waits for the workers for 0.3 s, then kills processes and leaves
    threads behind. A pool that is not used any more is idle: another executor may take it over,
    and a thread of this process ends it otherwise.

    Args:
        options: those of the workers.
        init_fn: the function that each worker calls first. Its workers are used by no one else.
    """

    shards: list[WorkerLane]
    _lanes: LocalLanes | LanesOnRay | None = None  # since the last ``start``
    _may_be_here = False  # lanes may be computed by this process
    _released: Any = None  # the pool that was used last, unless another executor has taken it over
    _finalizer: Any = None

    def __init__(self, options: Any, init_fn: Any) -> None:
        self.shards = []
        self._options = options
        self.options = [options]
        self._num_workers = options.num_workers
        self._may_share = init_fn is None
        self._held: list[Any] = []  # the pool that is in use; the finalizer has the list, too

    def __str__(self) -> str:
        return f"MultiprocessPrefetchIterator(multiprocessing_options={self.options[0]})"

    @property
    def pool(self) -> Any:
        """The pool that is in use, or ``None``."""
        return self._held[-1] if self._held else None

    @property
    def workers(self) -> Sequence[Any]:  # type: ignore[override]
        return () if self.pool is None else self.pool.workers

    def join(self, ctx: IteratorContext) -> None:
        super().join(ctx)
        if self._may_share:
            join_workers(self, ctx)

    def tune(self, given: object, most: int, *, may_be_here: bool, most_threads: int = 0) -> None:
        """Find the number of workers while they run.

        Args:
            given: the options that the user gave.
            most: the largest number.
            may_be_here: true if this process may compute lanes, so that there need be no worker.
            most_threads: the largest number of threads in place of processes.
        """
        self._may_be_here, self.options = may_be_here, [given]
        self.tuning = Tuning(int(not may_be_here), most, self._num_workers, most_threads)

    def receive(self, number: int, num: int) -> None:
        lanes = self._lanes
        if self.tuning is None or lanes is None or not self.tuning.is_on:
            super().receive(number, num)
            return
        try:
            decision = self.tuning.receive(lanes, number, num)
        except Exception as error:
            if error is not lanes.refusal:
                raise
            self._num_workers = len(self.workers)
            self.tuning.refuse(self._num_workers, error)
            self.receive(number, num)
            return
        if decision is None:
            return
        if decision.kind is None:
            self._use(decision.after)
            return
        try:
            self.change_kind(decision.kind, decision.after)
        except Exception as error:
            self.tuning.refuse(self._num_workers, error, of_kind=True)

    def change_kind(self, kind: Kind, num_workers: int) -> None:
        """Let workers of another kind compute the lanes, from the next output of each on. The
        others are idle when they have left all lanes.
        """
        former, lanes, given = self.pool, self._lanes, (self._options, self._num_workers)
        assert isinstance(lanes, LocalLanes)
        self._options = replace(self._options, executor=kind)
        self._num_workers = num_workers
        try:
            pool = self._acquired()
            pool.resize(num_workers)
        except Exception:
            self._options, self._num_workers = given
            if self.pool is not former:
                registry.release(self._held.pop())
            raise
        former.on_start = None  # an observer learns of the new pool
        lanes.move_to(pool, self._release_former)
        self._report(pool)

    def _release_former(self) -> None:
        """Park the pools that were in use before the current one."""
        while len(self._held) > 1:
            registry.release(self._held.pop(0))

    def report_pool(self, report: Report | None) -> None:
        super().report_pool(report)
        if report is not None and self.pool is not None:
            report(self.pool)

    def where(self, number: int) -> str | None:
        return str(self.shards[number])

    def start(self, states: Mapping[int, Any]) -> None:
        pool = self._use_pool()
        if pool.workers or not self._may_be_here:
            pool.resize(self._num_workers)
        self._report(pool)
        self._start_in(pool, states)

    def _report(self, pool: Any) -> None:
        pool.tuning = self.tuning  # for observers
        if self._report_pool is not None:
            self._report_pool(pool)

    def _start_in(self, pool: object, states: Mapping[int, Any]) -> None:
        here = LanesHere(self._task, self.ctx.budget, self.opens) if self._may_be_here else None
        lanes = LocalLanes(pool, self._task.num_lanes, self._numbers(), here, self._num_workers)
        self._use_lanes(lanes, states)

    def drawn_from(self) -> Sequence[Any]:
        return () if self._lanes is None else self._lanes.drawn_from()

    def _use_lanes(self, lanes: LocalLanes | LanesOnRay, states: Mapping[int, Any]) -> None:
        self._end_lanes()
        self._lanes, self.shards = lanes, [*lanes.lanes]
        lanes.start({**states})
        if self.tuning is not None:
            self.tuning.restart()

    def resize(self, num_workers: int) -> bool:
        num_lanes = self._options.num_lanes or self._options.num_workers
        if num_workers > num_lanes:
            raise ValueError(
                f"num_workers must be at most num_lanes, {num_lanes}, got {num_workers}: a worker"
                " computes whole lanes. Make the pipeline with"
                f" {type(self._options).__name__}(num_lanes=...) of the largest number that you"
                " will need"
            )
        if not num_workers and not self._may_be_here:
            raise ValueError(
                "num_workers must be at least 1, got 0: where it, worker_init_fn or worker_env was"
                " given, or there are actors, elements are computed by workers only. Make the"
                " pipeline with MultiprocessingOptions('auto') and without these"
            )
        if self.tuning is not None:
            self.tuning.is_on = False  # the user decides from now on
        self._use(num_workers)
        return True

    def _use(self, num_workers: int) -> None:
        self._num_workers = num_workers
        if self._lanes is not None:
            self._lanes.resize(num_workers)

    def _numbers(self) -> Any:
        return None if self._task.sequential_slice else numbers_of(self._task.dataset)

    def _use_pool(self) -> Any:
        if self._finalizer is None:
            self._finalizer = weakref.finalize(self, _release_all, self._held)
            self._finalizer.atexit = False
        self._release_former()
        pool = self.pool
        if pool is None or pool.is_closed:
            self._held.clear()
            pool = self._acquired()
        return pool

    def _acquired(self) -> Any:
        """Return the pool that was used last, or another one, which is held now."""
        pool = None
        while pool is None:
            self._check_open()
            pool, self._released = self._released, None
            if pool is None:
                pool = self._acquire()
            try:
                if registry.use(pool):
                    self._held.append(pool)
                else:
                    pool = None
            except BaseException:
                self._release_unless_held(pool)
                raise
        if self.is_closed:  # by another thread, which looked for a pool before this one was held
            pool.close()
            self._check_open()
        return pool

    def _check_open(self) -> None:
        if self.is_closed:
            raise ValueError(f"{self} is closed")

    def _release_unless_held(self, pool: Any) -> None:
        """Release a pool after an interrupt: nothing else would close it."""
        if pool is not None and pool not in self._held:
            registry.release(pool)

    def _acquire(self) -> Any:
        options = self._options
        if chosen_executor(options) == "threads":
            return self._acquire_threads()
        payload = self._pack(
            {"buffer_size": options.per_worker_buffer_size}, options.worker_env or {}
        )
        processes = shared_processes_of(self, self.ctx) if self._may_share else None
        return (acquire if processes is None else processes.acquire)(
            payload, self._num_workers, self._owner, self._num_now
        )

    def _acquire_threads(self) -> Any:
        payload = ThreadPayload(replace(self._task, budget=self.ctx.budget))
        return acquire_threads(payload, self._num_now, self._options.per_worker_buffer_size)

    @property
    def _num_now(self) -> int:
        """The number of workers that a new pool starts with. Where this process may compute the
        first output, they start after that, and take no CPU from it.
        """
        return 0 if self._may_be_here else self._num_workers

    def _pack(self, settings: Preamble, environment: Mapping[str, str | None]) -> Payload:
        """Return what workers load."""
        task = self._task
        try:
            return Payload(
                task, {**settings, "min_shared_bytes": task.options.min_shm_size}, environment
            )
        except Exception as error:
            _explain_unpicklable(error, task)
            raise

    @property
    def _owner(self) -> Any:
        """The key by which workers are reused. What an init function has done to one cannot be
        undone.
        """
        return self._task.dataset if self._task.init_fn is None else None

    def rest(self) -> None:
        super().rest()
        self._end_lanes()
        self._release_former()
        pool = self.pool
        if pool is not None:
            try:
                self._held.remove(pool)
                self._released = pool
                registry.release(pool)
            except BaseException:
                self._release_unless_held(pool)
                raise

    def _end_lanes(self) -> None:
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            lanes.close()

    def close(self) -> None:
        super().close()
        self._end_lanes()
        self._release_former()
        pool = self.pool
        if pool is None and self._released is not None and registry.use(self._released):
            pool = self._released
        if pool is not None:
            pool.close()
        self._held.clear()
        for shard in self.shards:
            shard.clear()


class SharingExecutor(PoolExecutor):
    """Computes lanes with threads that share all functions and sources."""

    def __str__(self) -> str:
        return (
            "MultithreadPrefetchIterator(num_threads=auto,"
            f" buffer_size={self._options.per_worker_buffer_size})"
        )

    def _acquire_threads(self) -> Any:
        task = replace(self._task, budget=self.ctx.budget)
        return acquire_threads(lambda: task, self._num_now, self._options.per_worker_buffer_size)


def _release_all(held: list[Any]) -> None:
    while held:
        registry.release(held.pop())


def _explain_unpicklable(error: Exception, task: PipelineTask) -> None:
    """Note at ``error`` which of the user's objects cannot be pickled."""
    parts = []
    for node in [*ancestors(task.dataset)][::-1]:
        held = {**parameters_of(node).as_dict(), **vars(node)}
        parts += [
            (node, name, value)
            for name, value in held.items()
            if name not in ("_gm_parents", "_gm_parameters")
        ]
    for node, name, value in [*parts, (None, "worker_init_fn", task.init_fn)]:
        try:
            dumps(value)
        except Exception:
            owner = "" if node is None else f" of {node}"
            add_note(
                error,
                f"The pipeline cannot be sent to worker processes: {name.lstrip('_')}{owner},"
                f" {transform_name(value):.200}, cannot be pickled. Make it without what cannot be"
                " copied to another process (open files, locks, connections), or make that when it"
                " is first used",
            )
            return
