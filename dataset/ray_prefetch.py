"""``mp_prefetch`` with Ray actors in place of processes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from gristmill.dataset.bases.round_robin import Shard
from gristmill.dataset.ray_lanes import LanesOnRay
from gristmill.dataset.slicing import numbers_of
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterator
from gristmill.dataset.worker_lanes import WorkerLane
from gristmill.workers.pool import hire_pool
from gristmill.workers.ray_cluster import connected

T = TypeVar("T")


class RayPrefetchIterator(MultiprocessPrefetchIterator[T]):
    _num_workers: int | None = None  # if it has been resized
    _divided: LanesOnRay | None = None
    _may_share_processes = False

    def _resize(self, num_workers: int) -> bool:
        if num_workers > self._count:
            raise ValueError(
                f"num_workers must be at most num_lanes, {self._count}, got {num_workers}: an actor computes whole lanes"
            )
        self._num_workers = num_workers
        if self._divided is not None:
            self._divided.resize(num_workers)
        return True

    def _hire(self) -> Any:
        connected()
        from gristmill.workers.ray_pool import RayPool

        luggage, options = self._pack({}, {}), self._options
        make = partial(RayPool, luggage, options)
        return hire_pool(make, lambda pool: pool.runs(luggage, options), RayPool, self._owner)

    def _lanes_in(self, pool: Any) -> list[Shard]:
        numbers = None if self._sequential_slice else numbers_of(self._ds)
        num_workers = self._num_workers or self._options.num_workers
        self._divided = LanesOnRay(pool, self._options, num_workers, self._count, numbers)
        return [*self._divided.lanes]

    def _start_all(self, states: Mapping[Shard, Any]) -> None:
        assert self._divided is not None
        self._divided.start({lane.number: state for lane, state in states.items() if isinstance(lane, WorkerLane)})

    def _rest(self) -> None:
        super()._rest()
        self._divided = None
