"""``mp_prefetch``: the pipeline so far, run by workers: processes or threads."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.options import (
    AUTO_LANES,
    DatasetOptions,
    MultiprocessingOptions,
    ReadOptions,
    chosen_executor,
)
from gristmill.core.ray_options import RayOptions, WorkerOptions, with_number
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length
from gristmill.dataset.bases.node import ancestors, spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.executors.auto import FIRST_WORKERS, most_threads, most_workers
from gristmill.dataset.executors.inline import InlineExecutor
from gristmill.dataset.executors.pools import PoolExecutor
from gristmill.dataset.executors.protocol import Executor
from gristmill.dataset.lanes.rows import LaneRowsIterDataset
from gristmill.dataset.slicing import num_elements_of_shares, slice_pipeline
from gristmill.dataset.workers.task import PipelineTask
from gristmill.workers.setup import preload

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")

preload("gristmill.dataset.workers.task")
preload(
    *[
        f"gristmill.dataset.stages.{name}"
        for name in ("batch", "filter", "map", "shuffle", "source")
    ]
)


class MultiprocessPrefetchParameters(Parameters):
    multiprocessing_options: WorkerOptions = field(in_checkpoint=False)
    worker_init_fn: Any = field(in_checkpoint=False, in_repr=False)
    sequential_slice: bool = field(in_checkpoint=False, in_repr=False)


class LanesIterDataset(IterDataset[T]):
    """Base of the stages that compute their parent in lanes: every n-th element each."""

    _gm_adds_step = False  # seeds are those of the same pipeline without lanes
    _element_spec = spec_of_first_parent
    _worker_init_fn: Callable[[int, int], Any] | None = None

    def __init__(
        self, parent: object, num_lanes: int, sequential_slice: bool, by_lanes: bool = False
    ) -> None:
        super().__init__(parent)
        self._num_lanes = num_lanes
        self._sequential_slice = bool(sequential_slice)
        self._by_lanes = by_lanes

    def _gm_num_elements(self) -> Length:
        return num_elements_of_shares(
            self._gm_parent, self._num_lanes, self._sequential_slice, self._by_lanes
        )

    def _gm_traced(self, tracing: Tracing) -> Any:
        return TracedLanesIterDataset(
            tracing.of(self._gm_parent), self._num_lanes, self._sequential_slice, self._by_lanes
        )

    def _check_division(self) -> None:
        """Raises ``ValueError`` if the parent cannot be divided."""
        slice_pipeline(self._gm_parent, 0, self._num_lanes, sequential=self._sequential_slice)

    @abc.abstractmethod
    def _executor(self) -> Executor:
        """Returns a new executor of the lanes."""

    def __iter__(self) -> DatasetIterator[T]:
        task = lanes_task(
            self._gm_parent,
            self._num_lanes,
            self._sequential_slice,
            self._by_lanes,
            self._worker_init_fn,
        )
        return RoundRobinIterator(self, task, self._executor())


class MultiprocessPrefetchIterDataset(LanesIterDataset[T]):
    """The parent's elements in lanes, each of which has every ``num_lanes``-th one, computed by
    ``num_workers`` workers.

    Order: one output of each lane in turn. State: that of every lane after its last delivered
    output. Cost: processes start with the first element, in about 0.1 s; then a message for each
    large output, or for many small ones. Threads start at once and hand over the outputs
    themselves. Without workers the lanes are computed by the caller.
    """

    _gm_starts_workers = True
    _gm_states_have_place = True

    def __init__(
        self,
        parent: object,
        options: WorkerOptions,
        worker_init_fn: Callable[[int, int], Any] | None = None,
        sequential_slice: bool = False,
    ) -> None:
        # Without ``num_lanes`` the stream is Grain's.
        by_lanes = options.num_lanes is not None
        super().__init__(parent, lanes_of(options), sequential_slice, by_lanes)
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise TypeError(
                "worker_init_fn must be a callable of worker index and worker count, got"
                f" {worker_init_fn!r:.200}"
            )
        self._options = options
        self._worker_init_fn = worker_init_fn
        self._gm_parameters = MultiprocessPrefetchParameters(
            options, worker_init_fn, self._sequential_slice
        )
        check_no_workers(str(self), self._gm_parent)
        self._check_division()

    def _gm_computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        options = self._options
        if (
            num_workers in (None, options.num_workers)
            or options.executor == "ray"
            or num_workers > self._num_lanes
        ):
            return self
        workers = dataclasses.replace(with_number(options, num_workers), num_lanes=self._num_lanes)
        new: MultiprocessPrefetchIterDataset[T] = MultiprocessPrefetchIterDataset(
            self._gm_parent, workers, self._worker_init_fn, self._sequential_slice
        )
        return new.divided_by_lanes(self._by_lanes)

    def divided_by_lanes(self, by_lanes: bool) -> MultiprocessPrefetchIterDataset[T]:
        """Return this new dataset, with mixtures divided as in lanes or not."""
        self._by_lanes = by_lanes
        return self

    def _executor(self) -> Executor:
        return executor_for(self._options, self._worker_init_fn)


class TracedLanesIterDataset(LanesIterDataset[T]):
    """Returns the parent in lanes that the caller computes, regardless of other stages."""

    def _executor(self) -> Executor:
        return InlineExecutor(self._num_lanes)


def lanes_task(
    ds: IterDataset[Any],
    num_lanes: int,
    sequential_slice: bool,
    by_lanes: bool = False,
    init_fn: Callable[[int, int], Any] | None = None,
) -> PipelineTask:
    """Return what an executor computes of ``ds``, without the options of the pipeline."""
    rows_of = ds.lanes if isinstance(ds, LaneRowsIterDataset) else None
    return PipelineTask(
        ds,
        DatasetOptions(),
        init_fn,
        sequential_slice,
        num_lanes,
        by_lanes=by_lanes,
        rows_of=rows_of,
    )


def executor_for(options: WorkerOptions, init_fn: object = None) -> Executor:
    """Return a new executor of lanes."""
    if options.num_workers == "auto":
        return tuned_executor(options, init_fn)
    if not options.num_workers:
        return InlineExecutor(lanes_of(options))
    if options.executor != "ray":
        return PoolExecutor(options, init_fn)
    from gristmill.dataset.executors.ray import RayExecutor

    return RayExecutor(options, init_fn)


def tuned_executor(
    options: WorkerOptions, init_fn: object, make: Callable[[Any, Any], Executor] | None = None
) -> Executor:
    """Return a new executor that finds its number of workers, made by ``make`` if that is given."""
    num_lanes, is_on_ray = lanes_of(options), isinstance(options, RayOptions)
    if is_on_ray:
        most = min(num_lanes, options.max_workers or num_lanes)
    else:
        most = most_workers(options.max_workers, num_lanes)
    if not most:
        return InlineExecutor(num_lanes)
    fixed = dataclasses.replace(with_number(options, min(FIRST_WORKERS, most)), num_lanes=num_lanes)
    executor = (make or executor_for)(fixed, init_fn)
    assert isinstance(executor, PoolExecutor)
    # What an init function or variables do to a worker is not to be done to this process.
    may_be_here = (
        isinstance(options, MultiprocessingOptions) and init_fn is None and not options.worker_env
    )
    num_threads = 0
    if may_be_here and options.executor is None and chosen_executor(options) == "processes":
        num_threads = most_threads(options.max_workers, num_lanes)
    executor.tune(options, most, may_be_here=may_be_here, most_threads=num_threads)
    return executor


def check_no_workers(stage: str, ds: DatasetNode) -> None:
    """Refuses to apply ``stage`` to a pipeline that starts workers."""
    for node in ancestors(ds):
        if node._gm_starts_workers:
            raise ValueError(
                f"{stage} cannot be applied to a pipeline that already has {node}: workers do not"
                " start workers. Keep one of them, the last one, and add up their numbers of"
                " workers"
            )


def lanes_of(options: WorkerOptions) -> int:
    """Return the number of lanes."""
    num_workers: int = AUTO_LANES if options.num_workers == "auto" else options.num_workers
    return num_workers if options.num_lanes is None else options.num_lanes
