"""``mp_prefetch``: the pipeline so far, run by workers: processes or threads."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gristmill.core.errors import add_note
from gristmill.core.naming import transform_name
from gristmill.core.options import ReadOptions, chosen_executor
from gristmill.core.ray_options import RayOptions, WorkerOptions
from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length
from gristmill.dataset.bases.node import ancestors, spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, aside, parameters_of
from gristmill.dataset.bases.round_robin import RoundRobinIterator, Shard
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.local_lanes import LocalLanesIterator
from gristmill.dataset.slicing import num_elements_of_shares, numbers_of, slice_pipeline
from gristmill.dataset.worker_lanes import LanesOfWorker, WorkerLane
from gristmill.dataset.worker_set import crew_of, join_workers
from gristmill.dataset.worker_task import PipelineTask
from gristmill.workers.pickling import dumps
from gristmill.workers.pool import Luggage, hire, park, unpark
from gristmill.workers.setup import preload

T = TypeVar("T")

preload("gristmill.dataset.worker_task")
preload(*[f"gristmill.dataset.stages.{name}" for name in ("batch", "filter", "map", "shuffle", "source")])


class MultiprocessPrefetchParameters(Parameters):
    multiprocessing_options: WorkerOptions = aside(in_text=True)
    worker_init_fn: Any = aside()
    sequential_slice: bool = aside()


class MultiprocessPrefetchIterDataset(IterDataset[T]):
    """The parent's elements in lanes, each of which has every ``num_lanes``-th one, computed by ``num_workers`` workers.

    Order: one output of each lane in turn. State: that of every lane after its last delivered output. Cost: processes start with
    the first element, in about 0.1 s; then a message for each large output, or for many small ones. Threads start at once and
    hand over the outputs themselves. Without workers the lanes are computed by the caller.
    """

    _adds_step = False  # seeds are those of the same pipeline without workers
    _starts_workers = True
    _tells_place = True
    _element_spec = spec_of_first_parent

    def __init__(
        self,
        parent: Any,
        options: WorkerOptions,
        worker_init_fn: Callable[[int, int], Any] | None = None,
        sequential_slice: bool = False,
    ) -> None:
        super().__init__(parent)
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise TypeError(f"worker_init_fn must be a callable of worker index and worker count, got {worker_init_fn!r:.200}")
        self._options = options
        self._worker_init_fn = worker_init_fn
        self._sequential_slice = bool(sequential_slice)
        self._parameters = MultiprocessPrefetchParameters(options, worker_init_fn, self._sequential_slice)
        check_no_workers(str(self), parent)
        self._num_lanes = lanes_of(options)
        # Without ``num_lanes`` the stream is Grain's.
        self._by_lanes = options.num_lanes is not None
        slice_pipeline(parent, 0, self._num_lanes, sequential=self._sequential_slice)  # raises if that is impossible

    def _num_elements(self) -> Length:
        return num_elements_of_shares(self._parent, self._num_lanes, self._sequential_slice, self._by_lanes)

    def _computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        options = self._options
        if num_workers in (None, options.num_workers) or isinstance(options, RayOptions) or num_workers > self._num_lanes:
            return self
        workers = dataclasses.replace(options, num_workers=num_workers, num_lanes=self._num_lanes)
        new: MultiprocessPrefetchIterDataset[T] = MultiprocessPrefetchIterDataset(
            self._parent, workers, self._worker_init_fn, self._sequential_slice
        )
        return new.divided_by_lanes(self._by_lanes)

    def divided_by_lanes(self, by_lanes: bool) -> MultiprocessPrefetchIterDataset[T]:
        """Return this dataset, which was not used before, where mixtures are divided as in lanes, or are not."""
        self._by_lanes = by_lanes
        return self

    def _traced(self, tracing: Tracing) -> Any:
        return TracedLanesIterDataset(tracing.of(self._parent), self._num_lanes, self._sequential_slice, self._by_lanes)

    def __iter__(self) -> DatasetIterator[T]:
        how: Any = {"sequential_slice": self._sequential_slice, "by_lanes": self._by_lanes}
        if not self._options.num_workers:
            return LocalLanesIterator(self._parent, self._num_lanes, **how)
        iterator_class = MultiprocessPrefetchIterator
        if isinstance(self._options, RayOptions):
            from gristmill.dataset.ray_prefetch import RayPrefetchIterator as iterator_class
        return iterator_class(self._parent, self._options, self._worker_init_fn, **how)


class TracedLanesIterDataset(IterDataset[T]):
    """The parent in lanes that the caller computes, whatever else there is in the pipeline."""

    _adds_step = False
    _element_spec = spec_of_first_parent

    def __init__(self, parent: Any, num_lanes: int, sequential_slice: bool, by_lanes: bool = False) -> None:
        super().__init__(parent)
        self._num_lanes = num_lanes
        self._sequential_slice = sequential_slice
        self._by_lanes = by_lanes

    def _num_elements(self) -> Length:
        return num_elements_of_shares(self._parent, self._num_lanes, self._sequential_slice, self._by_lanes)

    def __iter__(self) -> DatasetIterator[T]:
        how: Any = {"sequential_slice": self._sequential_slice, "by_lanes": self._by_lanes}
        return LocalLanesIterator(self._parent, self._num_lanes, **how)


class MultiprocessPrefetchIterator(RoundRobinIterator[T]):
    _begins_as_a_whole = True
    _options: Any
    _resting: Any = None  # the pool that was used last, if nobody else has taken it over
    _finalizer: Any = None
    _tell: Callable[[Any], None] | None = None  # is told of the pool that is used

    def __init__(
        self, ds: IterDataset[T], options: WorkerOptions, init_fn: Any, *, sequential_slice: bool, by_lanes: bool = False
    ) -> None:
        self._init_fn = init_fn
        super().__init__(ds, lanes_of(options), sequential_slice=sequential_slice, by_lanes=by_lanes)
        self._options = options
        self._held: list[Any] = []  # the pool that is in use; the finalizer has the list, too

    def __str__(self) -> str:
        return f"MultiprocessPrefetchIterator(multiprocessing_options={self._options})"

    @property
    def _pool(self) -> Any:
        return next(iter(self._held), None)

    @property
    def _work_options(self) -> Sequence[Any]:
        return [self._options, *super()._work_options]

    def _worker_processes(self) -> Sequence[Any]:
        return () if self._pool is None else self._pool.workers

    def _awaited_worker(self) -> str | None:
        lane = self._members.get(self._slot)
        return None if lane is None else str(lane)

    def _tell_hired(self, tell: Callable[[Any], None] | None) -> None:
        self._tell = tell
        if tell is not None and self._pool is not None:
            tell(self._pool)

    def _share(self, index: int) -> IterDataset[T]:
        how: Any = {"sequential": self._sequential_slice, "by_lanes": self._by_lanes}
        return slice_pipeline(self._ds, index, self._count, **how)

    def lanes(self) -> Sequence[Shard]:
        """The lanes, for whoever takes elements from them instead of from this iterator. None of them is computed yet."""
        return self._open()

    def _open(self) -> Sequence[Shard]:
        if self._finalizer is None:
            finalizer = weakref.finalize(self, _park_all, self._held)
            finalizer.atexit = False
            self._finalizer = finalizer
        pool = self._pool
        while pool is None or pool.is_closed:
            if self._closed:
                raise self._unusable()
            self._held.clear()
            pool, self._resting = self._resting, None
            if pool is None:
                pool = self._hire()
            try:
                if unpark(pool):
                    self._held.append(pool)
                else:
                    pool = None
            except BaseException:
                self._park_unless_held(pool)
                raise
        if self._closed:  # by another thread, which looked for a pool before this one was held
            pool.close()
            raise self._unusable()
        if self._tell is not None:
            self._tell(pool)
        return self._lanes_in(pool)

    def _lanes_in(self, pool: Any) -> list[Shard]:
        """The lanes, computed by the processes of ``pool``."""
        num_workers = self._options.num_workers
        numbers = None if self._sequential_slice else numbers_of(self._ds)
        workers = [LanesOfWorker(pool, i, num_workers, self._count, numbers) for i in range(num_workers)]
        lanes = {lane.number: lane for worker in workers for lane in worker.lanes.values()}
        return [lanes[number] for number in range(self._count)]

    def _start_all(self, states: Mapping[Shard, Any]) -> None:
        of_workers: dict[LanesOfWorker, dict[int, Any]] = {}
        for lane, state in states.items():
            assert isinstance(lane, WorkerLane)
            of_workers.setdefault(lane.worker, {})[lane.number] = state
        for worker, states_of_lanes in of_workers.items():
            worker.start(states_of_lanes)

    def _park_unless_held(self, pool: Any) -> None:
        """After an interrupt: nobody else would end it."""
        if pool is not None and pool not in self._held:
            park(pool)

    def _share_context(self, ctx: IteratorContext) -> None:
        super()._share_context(ctx)
        if self._may_share_processes:
            join_workers(self, ctx)

    @property
    def _may_share_processes(self) -> bool:
        return self._init_fn is None

    def _hire(self) -> Any:
        if chosen_executor(self._options) == "threads":
            from gristmill.dataset.thread_payload import ThreadPayload
            from gristmill.dataset.thread_workers import hire_threads

            payload = ThreadPayload(self._task(self._ctx.budget))
            return hire_threads(payload, self._options.num_workers, self._options.per_worker_buffer_size)
        luggage = self._pack({"buffer_size": self._options.per_worker_buffer_size}, self._options.worker_env or {})
        crew = crew_of(self, self._ctx) if self._may_share_processes else None
        return (hire if crew is None else crew.hire)(luggage, self._options.num_workers, self._owner)

    def _pack(self, settings: Mapping[str, Any], environment: Mapping[str, str | None]) -> Luggage:
        """What workers load."""
        try:
            return Luggage(self._task(), {**settings, "min_shared_bytes": self._ctx.options.min_shm_size}, environment)
        except Exception as error:
            _explain_unpicklable(error, self._ds, self._init_fn)
            raise

    def _task(self, budget: Budget | None = None) -> PipelineTask:
        given = self._ds, self._ctx.options, self._init_fn, self._sequential_slice, self._count, self._is_taken_again
        return PipelineTask(*given, budget, self._by_lanes)

    @property
    def _owner(self) -> Any:
        """For whom workers may be used again. What an init function has done to one cannot be undone."""
        return self._ds if self._init_fn is None else None

    def _rest(self) -> None:
        pool = self._pool
        if pool is not None:
            try:
                self._held.remove(pool)
                self._resting = pool
                park(pool)
            except BaseException:
                self._park_unless_held(pool)
                raise

    def __del__(self) -> None:
        pass  # the finalizer parks the processes, where close would end them and wait for that

    def close(self) -> None:
        super().close()
        pool = self._pool
        if pool is None and self._resting is not None and unpark(self._resting):
            pool = self._resting
        if pool is not None:
            pool.close()
        self._held.clear()
        for shard in self._members.values():
            shard.clear()


def _park_all(held: list[Any]) -> None:
    while held:
        park(held.pop())


def check_no_workers(stage: str, ds: Any) -> None:
    """Refuses to apply ``stage`` to a pipeline that starts workers."""
    for node in ancestors(ds):
        if node._starts_workers:
            raise ValueError(
                f"{stage} cannot be applied to a pipeline that already has {node}: workers do not start workers. "
                "Keep one of them, the last one, and add up their numbers of workers"
            )


def lanes_of(options: WorkerOptions) -> int:
    """How many lanes there are."""
    return options.num_workers if options.num_lanes is None else options.num_lanes


def _explain_unpicklable(error: Exception, ds: IterDataset[Any], init_fn: Any) -> None:
    """Notes at ``error`` which of the user's objects cannot be pickled."""
    parts = []
    for node in [*ancestors(ds)][::-1]:
        held = {**parameters_of(node).as_dict(), **vars(node)}
        parts += [(node, name, value) for name, value in held.items() if name not in ("_parents", "_parameters")]
    for node, name, value in [*parts, (None, "worker_init_fn", init_fn)]:
        try:
            dumps(value)
        except Exception:
            owner = "" if node is None else f" of {node}"
            add_note(
                error,
                f"The pipeline cannot be sent to worker processes: {name.lstrip('_')}{owner}, {transform_name(value):.200}, "
                "cannot be pickled. Make it without what cannot be copied to another process (open files, locks, "
                "connections), or make that when it is first used",
            )
            return
